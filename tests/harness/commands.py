"""A process that has loaded the command line and forks for each command.

Each command is a process of its own with its own streams, environment and exit code, as if it had been
started anew; but it does not load Python and its modules, which takes longer than what most commands do.
`python -m tests.harness.commands FD` waits at a socket for what it is sent: arguments, environment and
directory, with three open files for stdin, stdout and stderr. It answers with the exit code.
"""

import atexit
import contextlib
import gc
import io
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache
from pathlib import Path

from timerwheel.cli.main import app

ROOT = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 1 << 20
_one_at_a_time = threading.Lock()


def run(
    arguments: list[bytes], stdin: bytes, environment: dict[str, str], patience_s: float
) -> tuple[int, bytes, bytes]:
    """Run one command to its end: its exit code and what it wrote to stdout and stderr.

    TimeoutError if it takes longer than it may; then no other command can be run.
    """
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        given.write(stdin)
        given.seek(0)
        streams = [given.fileno(), out.fileno(), err.fileno()]
        texts = [os.fsdecode(argument) for argument in arguments]
        code = hand_over(texts, environment, ROOT, streams, patience_s)
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def hand_over(
    arguments: list[str], environment: dict[str, str], cwd: Path, streams: list[int], patience_s: float
) -> int:
    """Run one command to its end on open files for stdin, stdout and stderr: its exit code; as `run`."""
    request = pickle.dumps((arguments, environment, str(cwd)))
    with _one_at_a_time:
        connection = _loaded()
        connection.settimeout(patience_s)
        socket.send_fds(connection, [request], streams)
        return int(connection.recv(16))


@cache
def _loaded() -> socket.socket:
    """The connection to the process, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.commands", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _wait_for_command(connection: socket.socket) -> bool:
    """True in a child that is to run the command in `sys.argv`; False when there are no more."""
    while True:
        request, streams, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 3)
        if not request:
            return False
        child = os.fork()
        if child == 0:
            break
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(child, 0)
        connection.send(b"%d" % os.waitstatus_to_exitcode(status))
    connection.close()
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        os.dup2(streams[number], number)
        os.close(streams[number])
        # What Python opened at its start keeps on seeking if it could do so there, and fails in a pipe.
        before = getattr(sys, name)
        setattr(
            sys, name, os.fdopen(number, mode, encoding=before.encoding, errors=before.errors, closefd=False)
        )
    arguments, environment, cwd = pickle.loads(request)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = ["timerwheel", *arguments]
    return True


def _warm_up() -> None:
    """Run a command that reaches no service, since much is loaded only by the first one."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        app(["topics", "list", "--url", "http://127.0.0.1:1"])


if __name__ == "__main__":
    _warm_up()
    gc.freeze()  # what is loaded stays shared with the children
    if _wait_for_command(socket.socket(fileno=int(sys.argv[1]))):
        app()
