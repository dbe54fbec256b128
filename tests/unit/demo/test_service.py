"""The port of the demo's service: the usual one if nobody has it."""

import contextlib
import socket

from timerwheel.demo import service


def test_without_the_usual_port_the_service_chooses_one():
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another service of this machine may have it
            stack.enter_context(socket.create_server((service.HOST, service.USUAL_PORT)))
        assert service.free_port() == 0
