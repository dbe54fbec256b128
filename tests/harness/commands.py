"""A process that has loaded the command line and forks for each command.

Each command is a process of its own with its own streams, environment and exit code, like one that was
started. It need not load Python and its modules, which takes longer than most commands and than the start of
a service. `python -m tests.harness.commands FD` waits at a socket for arguments, environment and directory,
with four open files: stdin, stdout, stderr, and a pipe. It writes the id of the process into the pipe, and
later its exit code.

At its end, a command waits for its threads, calls what was to be called at exit, and writes out its streams,
as Python does. It does not take apart the modules that it shares with the process it came from: that would
copy their memory, and took four fifths of the processor time of a command.
"""

import atexit
import contextlib
import gc
import importlib
import io
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn, Self

from timerwheel.cli.main import app

ROOT = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 1 << 20
STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
SERVING = ("timerwheel.cli.serve", "timerwheel.api.server", "uvloop")
"""What `serve` loads when it runs, besides what every command loads."""
UNWRITTEN = 120
"""The exit code of a Python that could not write all of its output."""
_NUMBER = struct.Struct("=q")
_one_at_a_time = threading.Lock()


def run(
    arguments: Sequence[bytes], stdin: bytes, environment: Mapping[str, str], patience_s: float
) -> tuple[int, bytes, bytes]:
    """Run one command to its end: its exit code and what it wrote to stdout and stderr.

    TimeoutError if it takes longer than it may.
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
    arguments: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    streams: Sequence[int],
    patience_s: float,
) -> int:
    """Run one command to its end on open files for stdin, stdout and stderr: its exit code; as `run`."""
    command = Command(arguments, environment, cwd, streams)
    try:
        return command.wait(patience_s)
    except subprocess.TimeoutExpired:
        command.kill()
        raise TimeoutError from None


class Command:
    """A command in a process of its own on open files for stdin, stdout and stderr.

    It may be signalled and awaited as a `subprocess.Popen`.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        streams: Sequence[int],
        *,
        own_group: bool = False,
    ) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._lock = threading.Lock()
        request = pickle.dumps((list(arguments), dict(environment), str(cwd), own_group))
        told, tell = os.pipe()
        self._told = told
        weakref.finalize(self, os.close, told)
        try:
            with _one_at_a_time:
                socket.send_fds(_loaded(), [request], [*streams, tell])
        finally:
            os.close(tell)
        self.pid = self._number()

    def poll(self) -> int | None:
        """The exit code, minus the number of the signal that ended it; None while it runs."""
        with self._lock:
            if self.returncode is None and self._has_ended(0):
                self.returncode = self._number()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code once it has ended; `subprocess.TimeoutExpired` if that takes longer."""
        while (code := self.poll()) is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        return bool(select.select([self._told], [], [], timeout)[0])

    def _number(self) -> int:
        """What the process that forks says next."""
        said = os.read(self._told, _NUMBER.size)
        if len(said) < _NUMBER.size:
            raise RuntimeError("the process that forks for commands has ended")
        return int(_NUMBER.unpack(said)[0])


class PipedCommand(Command):
    """A command whose stdout and stderr are texts that can be read while it runs."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        *,
        own_group: bool = False,
    ) -> None:
        out, write_out = os.pipe()
        err, write_err = os.pipe()
        self.stdout: IO[str] = os.fdopen(out, encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(err, encoding="utf-8")
        nothing = os.open(os.devnull, os.O_RDONLY)
        streams = [nothing, write_out, write_err]
        try:
            super().__init__(arguments, environment, cwd, streams, own_group=own_group)
        finally:
            for stream in streams:
                os.close(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it still writes to stdout and stderr until it has ended; as `wait`."""
        texts = ["", ""]

        def read(place: int, stream: IO[str]) -> None:
            texts[place] = stream.read()

        both = enumerate((self.stdout, self.stderr))
        readers = [threading.Thread(target=read, args=one, daemon=True) for one in both]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return texts[0], texts[1]


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
    running: dict[
        int, tuple[int, int]
    ] = {}  # by the descriptor that tells its end: its id, and where to say so
    while True:
        ready = select.select([connection.fileno(), *running], [], [])[0]
        for ended in running.keys() & ready:
            child, tell = running.pop(ended)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            _say(tell, code)
            os.close(tell)
            os.close(ended)
        if connection.fileno() not in ready:
            continue
        request, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, len(STREAMS) + 1)
        if not request:
            for child, _ in running.values():
                os.kill(child, signal.SIGKILL)
            return False
        *streams, tell = files
        child = os.fork()
        if child == 0:
            break
        _say(tell, child)
        running[os.pidfd_open(child)] = child, tell
        for stream in streams:
            os.close(stream)
    connection.close()
    for descriptor in (tell, *running, *(theirs for _, theirs in running.values())):
        os.close(descriptor)
    _take_over(streams)
    arguments, environment, cwd, own_group = pickle.loads(request)
    if own_group:
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = ["timerwheel", *arguments]
    return True


def _say(tell: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(tell, _NUMBER.pack(number))


def _take_over(streams: Sequence[int]) -> None:
    """Make these open files stdin, stdout and stderr."""
    for number, (name, mode) in enumerate(STREAMS):
        os.dup2(streams[number], number)
        os.close(streams[number])
        # What Python opened at its start keeps on seeking if it could do so there, and fails in a pipe.
        before = getattr(sys, name)
        buffering = 1 if name == "stderr" else -1
        opened = os.fdopen(
            number, mode, buffering, encoding=before.encoding, errors=before.errors, closefd=False
        )
        setattr(sys, name, opened)


def _warm_up() -> None:
    """Load what a service needs, and run commands that reach none: they too load much for later ones."""
    for name in SERVING:
        importlib.import_module(name)
    for words in (["topics", "list", "--url", "http://127.0.0.1:1"], ["topics", "--help"]):
        nowhere = io.StringIO()
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            _code_of(words)


def _code_of(words: list[str] | None) -> int:
    """Run a command, by default the one in `sys.argv`, and return its exit code."""
    try:
        app(words)
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            raise  # Python prints what it is
        return ended.code or 0
    return 0


def _end(code: int) -> NoReturn:
    """End this process as Python ends one, but leave its memory to the system."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or UNWRITTEN
    os._exit(code)


if __name__ == "__main__":
    _warm_up()
    gc.freeze()  # what is loaded stays shared with the children
    if _wait_for_command(socket.socket(fileno=int(sys.argv[1]))):
        _end(_code_of(None))
