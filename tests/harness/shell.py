"""The commands that shell scripts in the documents call, as programs on a PATH.

`python` is the one that runs the tests. `timerwheel` is a few lines that hand arguments, environment,
directory and streams over to the process of `tests.harness.commands`: pages call it dozens of times, and to
load its modules each time would take longer than all that it does.
"""

import os
import pickle
import secrets
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness import commands

# An address of the kernel's, not of a file: those are short.
_HAND_OVER = """#!{python} -IS
import os, pickle, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as service:
    service.connect("\\0{name}")
    request = pickle.dumps((sys.argv[1:], dict(os.environ), os.getcwd()))
    socket.send_fds(service, [request], [0, 1, 2])
    sys.exit(int(service.recv(16)))
"""
_PYTHON = '#!/bin/sh\nexec {python} "$@"\n'


@contextmanager
def commands_in(folder: Path, patience_s: float) -> Iterator[str]:
    """A PATH that begins with a new directory of these commands, which work until the end of the block.

    They run one after the other. One that takes longer than `patience_s` fails the test.
    """
    name = f"timerwheel-{secrets.token_hex(8)}"
    folder.mkdir()
    _write(folder / "timerwheel", _HAND_OVER.format(python=sys.executable, name=name))
    _write(folder / "python", _PYTHON.format(python=shlex.quote(sys.executable)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        thread = threading.Thread(target=_serve, args=(listening, patience_s))
        thread.start()
        try:
            yield os.pathsep.join([str(folder), os.environ["PATH"]])
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # which ends `accept`
            thread.join()


def _write(program: Path, text: str) -> None:
    program.write_text(text)
    program.chmod(0o755)


def _serve(listening: socket.socket, patience_s: float) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            request, streams, _, _ = socket.recv_fds(connection, commands.REQUEST_BYTES_MAX, 3)
            arguments, environment, cwd = pickle.loads(request)
            try:
                code = commands.hand_over(arguments, environment, Path(cwd), streams, patience_s)
            finally:
                for stream in streams:
                    os.close(stream)
            connection.send(b"%d" % code)
