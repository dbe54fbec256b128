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

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "timerwheel.cli.main"]
PATIENCE_S = 180


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document that stdout holds."""
        assert self.code == 0, self.err
        return orjson.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON documents that stdout holds, one a line."""
        assert self.code == 0, self.err
        return [orjson.loads(line) for line in self.out.splitlines()]


def environment(**changed: str) -> dict[str, str]:
    """This process's environment without settings of the machine that would change an answer."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIMERWHEEL_")}
    return {**kept, "PYTHONPATH": str(ROOT), "TZ": "UTC", "LC_ALL": "C.UTF-8", "COLUMNS": "200", **changed}


def timerwheel(*arguments: object, stdin: bytes = b"", **changed: str) -> Result:
    """Run one command to its end; keywords are environment variables."""
    done = subprocess.run(
        [*COMMAND, *map(os.fsencode, map(str, arguments))],
        input=stdin,
        capture_output=True,
        env=environment(**changed),
        timeout=PATIENCE_S,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def started(*arguments: object, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on by itself; it is killed if the test takes too long, and at the end."""
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=cwd,
    ) as process:
        watchdog = threading.Timer(PATIENCE_S, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


class RunningService(NamedTuple):
    """A service that takes messages."""

    process: subprocess.Popen[str]
    url: str
    data: Path

    def end(self, number: int) -> Result:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        out, err = self.process.communicate()
        return Result(self.process.returncode, out, err)


@contextmanager
def serving(data: Path, *flags: object, cwd: Path | None = None) -> Iterator[RunningService]:
    """`timerwheel serve` on a free port, from when it says it is ready."""
    with started("serve", "--port", 0, "--data", data, "--disk-reserve", 0, *flags, cwd=cwd) as process:
        line = process.stdout.readline()
        found = re.search(r"http://[0-9.]+:[0-9]+", line)
        if found is None:
            process.kill()
            pytest.fail(f"not ready: {line!r} {process.stderr.read()}")
        yield RunningService(process, found[0], data)
