"""A service that is thrown away: `timerwheel serve` as a child process, its data in a temporary directory."""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from timerwheel.errors import TimerwheelError
from timerwheel.model.text import printable
from timerwheel.settings import Serving
from timerwheel.store.files import create_file

HOST = "127.0.0.1"
USUAL_PORT: int = Serving().port
_PREFIX = "timerwheel-demo-"
_OWN_VARIABLES = "TIMERWHEEL_"
_PR_SET_PDEATHSIG = 1
# Small segments and a short retention bound the disk, however long the demo runs.
_FLAGS = (
    *("--host", HOST, "--push-private-targets", "--segment-size", "8MiB", "--retention", "1h"),
    *("--log-level", "error", "--json"),
)


class ServiceEndedError(TimerwheelError):
    """The service of the demo did not start, or ended without being asked."""

    code = "service_ended"


class Service(NamedTuple):
    """A running service, where it is, and where its data lies."""

    process: asyncio.subprocess.Process
    url: str
    data: Path

    async def ended(self) -> None:
        """Wait for the end of the process; raises ServiceEndedError."""
        code = await self.process.wait()
        raise ServiceEndedError(f"the service of the demo ended with exit code {code}")


def free_port() -> int:
    """Return the usual port of a service if it is free, else 0, which has the service choose one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


@contextlib.asynccontextmanager
async def throw_away_service(port: int) -> AsyncIterator[Service]:
    """Run a service until the end of the block, then end it and remove its data.

    Raises ServiceEndedError if it does not start.
    """
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        data, lines = Path(folder) / "data", Path(folder) / "service.log"
        process = await _started(port, data, lines)
        try:
            yield Service(process, await _url_of(process, lines), data)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # nothing is to be kept, so nothing has to be finished
            await process.wait()


async def _started(port: int, data: Path, lines: Path) -> asyncio.subprocess.Process:
    # Settings of another service on this machine are not meant for this one.
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    with os.fdopen(create_file(lines), "wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "timerwheel", "serve", "--port", str(port), "--data", str(data)),
            *_FLAGS,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=variables,
            start_new_session=True,  # Ctrl-C goes to the demo, which stops its workers before the service
            preexec_fn=_end_with_parent,
        )


def _end_with_parent() -> None:
    """Have this process killed when its parent ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def _url_of(process: asyncio.subprocess.Process, lines: Path) -> str:
    """Wait until the service is ready; raises ServiceEndedError that quotes its last line."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        await process.wait()
        raise ServiceEndedError(f"the service of the demo did not start: {_last_line(lines)}")
    url: str = json.loads(line)["url"]
    return url


def _last_line(lines: Path) -> str:
    *_, last = lines.read_text(errors="replace").splitlines() or [""]
    return printable(last.removeprefix("timerwheel: "))
