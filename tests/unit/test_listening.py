"""How a port is given back: handshakes are dropped, and connections that nobody has accepted are taken."""

import contextlib
import socket
import sys

import pytest

from timerwheel.listening import drop_handshakes, take_handshakes, waiting_connections

IN_VAIN_S = 0.05


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is one of Linux")
def test_new_handshakes_are_dropped_until_they_are_taken_again(listening):
    drop_handshakes(listening)
    with pytest.raises(TimeoutError):
        socket.create_connection(listening.getsockname(), timeout=IN_VAIN_S)
    take_handshakes(listening)
    socket.create_connection(listening.getsockname()).close()


def test_connections_that_wait_are_taken_with_what_their_clients_have_sent(listening):
    with contextlib.ExitStack() as stack:
        for number in range(3):
            client = stack.enter_context(socket.create_connection(listening.getsockname()))
            client.sendall(b"%d" % number)
        drop_handshakes(listening)
        taken = [stack.enter_context(one) for one in waiting_connections(listening)]
        assert [one.recv(10) for one in taken] == [b"0", b"1", b"2"]
    assert list(waiting_connections(listening)) == []


def test_a_client_of_a_connection_made_before_can_go_on_sending(listening):
    with socket.create_connection(listening.getsockname()) as client:
        drop_handshakes(listening)
        (taken,) = waiting_connections(listening)
        with taken:
            client.sendall(b"later")
            taken.setblocking(True)
            assert taken.recv(10) == b"later"


def test_taking_handshakes_that_were_never_dropped_changes_nothing(listening):
    take_handshakes(listening)
    socket.create_connection(listening.getsockname()).close()
