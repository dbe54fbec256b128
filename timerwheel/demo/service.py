"""A service that is thrown away: `timerwheel serve` as a child process, its data in a temporary directory."""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from timerwheel.clock import SystemClock
from timerwheel.errors import TimerwheelError
from timerwheel.model.text import printable
from timerwheel.settings import Serving
from timerwheel.store.errors import StoreError
from timerwheel.store.files import create_file
from timerwheel.store.lock import DirectoryLock, is_locked

HOST = "127.0.0.1"
USUAL_PORT: int = Serving().port
_PREFIX = "timerwheel-demo-"
LEFT_MS_MIN = 60_000
"""A directory younger than this may be one that another demo has just made, and not locked yet."""
_FIGURES = "figures.json"
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


@dataclass(eq=False)
class Service:
    """A running service, where it is, and where its data lies."""

    process: asyncio.subprocess.Process
    url: str
    data: Path
    log: Path

    async def ended(self) -> None:
        """Wait for the end of the process; raises ServiceEndedError."""
        code = await self.process.wait()
        raise ServiceEndedError(f"the service of the demo ended with exit code {code}")

    async def restart_charts(self) -> None:
        """Restart the service without its figures; raises ServiceEndedError if it does not start again.

        Filling it takes a second, beside which everything that follows would be a flat line.
        """
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()
        for path in (self.data / _FIGURES, self.log):
            path.unlink(missing_ok=True)
        self.process = await _started(urlsplit(self.url).port or 0, self.data, self.log)
        await _url_of(self.process, self.log)


def remove_leftovers(temporary: Path, now_ms: int) -> None:
    """Remove the directories of demos that were killed: nobody holds their locks any more.

    What belongs to another user, is not a directory or cannot be removed stays.
    """
    for folder in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, StoreError):
            found, data = folder.lstat(), folder / "data"
            is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            is_old = now_ms - found.st_mtime * 1000 >= LEFT_MS_MIN
            if not is_own or not is_old or (data.exists() and is_locked(data)):
                continue
            with _locked(folder):
                shutil.rmtree(folder)


def _locked(folder: Path) -> DirectoryLock:
    """Hold a demo's directory; raises LockedError if a demo that runs does."""
    return DirectoryLock(folder, purpose="demo", now_text="")


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
    remove_leftovers(Path(tempfile.gettempdir()), SystemClock().now_ms())
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, _locked(Path(folder)):
        data, lines = Path(folder) / "data", Path(folder) / "service.log"
        service = Service(await _started(port, data, lines), "", data, lines)
        try:
            service.url = await _url_of(service.process, lines)
            yield service
        finally:
            with contextlib.suppress(ProcessLookupError):
                service.process.kill()  # nothing is to be kept, so nothing has to be finished
            await service.process.wait()


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
