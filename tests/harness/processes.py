"""The command line in processes of its own: a command run to its end, one that goes on, and a service."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from tests.harness import commands
from tests.harness.java import HAS_JAVA, WHY
from tests.harness.syscalls import traced

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "timerwheel.cli.main"]
"""A command in a Python of its own; most tests fork one that is loaded, see `tests.harness.commands`."""
WITHOUT = "import sys; sys.modules[{!r}] = None; from timerwheel.cli.main import app; app()"
TROUBLED = [sys.executable, "-m", "tests.harness.troubled"]
PATIENCE_S = 900  # only keeps a failure from hanging: a busy machine may take minutes
# Java programs that end soon: most of what a better compiler would make of their code comes too late.
QUICK_JAVA_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",  # for the next one: classes of known packages are taken as they are
    "-XX:-BytecodeVerificationRemote",
)
QUICK_JAVA = {"JAVA_TOOL_OPTIONS": " ".join(QUICK_JAVA_FLAGS)}


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document that stdout holds."""
        assert self.code == 0, self.out + self.err
        return orjson.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON documents that stdout holds, one a line."""
        assert self.code == 0, self.err
        return [orjson.loads(line) for line in self.out.splitlines()]


def environment(**changed: str) -> dict[str, str]:
    """This process's environment without settings of the machine that would change an answer."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TIMERWHEEL_", "LINES"))
    }
    return {**kept, "PYTHONPATH": str(ROOT), "TZ": "UTC", "LC_ALL": "C.UTF-8", "COLUMNS": "200", **changed}


def timerwheel(*arguments: object, stdin: bytes = b"", **changed: str) -> Result:
    """Run one command to its end; keywords are environment variables."""
    given = [os.fsencode(str(argument)) for argument in arguments]
    code, out, err = commands.run(given, stdin, environment(**changed), PATIENCE_S)
    assert b"Traceback" not in err, err.decode()
    return Result(code, out.decode(), err.decode())


def python(*arguments: object, umask: int = -1) -> Result:
    """Run a new Python to its end, from which Java ends soon."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(**QUICK_JAVA),
        timeout=PATIENCE_S,
        check=False,
        umask=umask,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def spark_job(*arguments: object, umask: int = -1) -> Any:
    """The JSON document of a command that runs on Spark; without Java, the test is skipped."""
    if not HAS_JAVA:
        pytest.skip(WHY)
    return python(*COMMAND[1:], *arguments, "--json", umask=umask).json


Process = commands.PipedCommand | subprocess.Popen[str]


@contextmanager
def started(
    *arguments: object, cwd: Path | None = None, own_group: bool = False, **changed: str
) -> Iterator[commands.PipedCommand]:
    """A command that goes on by itself; it is killed if the test takes too long, and at the end.

    With `own_group` a signal may be sent to it and all its children; keywords are environment variables.
    """
    with (
        _forked(*arguments, cwd=cwd, own_group=own_group, **changed) as process,
        _patience(process),
    ):
        yield process


@contextmanager
def _forked(
    *arguments: object, cwd: Path | None = None, own_group: bool = False, **changed: str
) -> Iterator[commands.PipedCommand]:
    """A command until the end of the block."""
    words, settings = list(map(str, arguments)), environment(**changed)
    with commands.PipedCommand(words, settings, cwd or Path.cwd(), own_group=own_group) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _loading(command: list[str], *arguments: object, cwd: Path | None) -> Iterator[subprocess.Popen[str]]:
    """A command in a Python of its own, until the end of the block."""
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=cwd,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _patience(process: Process) -> Iterator[None]:
    """Kill a process for which the block waits too long."""
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


class RunningService(NamedTuple):
    """A service that takes messages."""

    process: Process
    url: str
    data: Path

    def end(self, number: int) -> Result:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        with _patience(self.process):
            out, err = self.process.communicate()
        return Result(self.process.returncode, out, err)


@contextmanager
def serving(data: Path, *flags: object, cwd: Path | None = None) -> Iterator[RunningService]:
    """`timerwheel serve` on a free port, from when it says it is ready, for as long as tests last."""
    with _forked(*_serve(data), *flags, cwd=cwd) as process:
        yield _ready(process, data)


@contextmanager
def serving_alone(
    data: Path,
    *flags: object,
    files_max: int | None = None,
    trace: Path | None = None,
    without: str | None = None,
) -> Iterator[RunningService]:
    """As `serving`, in a Python that shares nothing with another process.

    Its system calls go to the file `trace`. It cannot import the module `without`.
    """
    command = COMMAND if files_max is None else ["prlimit", f"--nofile={files_max}", *COMMAND]
    command = command if trace is None else traced(trace, command)
    command = command if without is None else [sys.executable, "-c", WITHOUT.format(without)]
    with _loading(command, *_serve(data), *flags, cwd=None) as process:
        yield _ready(process, data)


def _serve(data: Path) -> tuple[object, ...]:
    return "serve", "--port", 0, "--data", data, "--disk-reserve", 0


@contextmanager
def serving_in_trouble(data: Path) -> Iterator[RunningService]:
    """A service whose disk can hang and whose clock can be stepped: see `tests/harness/troubled.py`."""
    flags = ("--port", 0, "--data", data, "--disk-reserve", 0)
    with _loading(TROUBLED, *flags, cwd=None) as process:
        yield _ready(process, data)


def _ready(process: Process, data: Path) -> RunningService:
    with _patience(process):
        line = process.stdout.readline()
    found = re.search(r"https?://[0-9.]+:[0-9]+", line)
    if found is None:
        process.kill()
        pytest.fail(f"not ready: {line!r} {process.stderr.read()}")
    return RunningService(process, found[0], data)
