"""The service as a process: started on one port again and again, killed or stopped by its id."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp

from tests.harness.commands import Command
from tests.harness.processes import COMMAND, ROOT, environment

READY_S_MAX = 60.0
STOP_S_MAX = 30.0  # a quiet machine needs less than one
_POLL_S = 0.01


class Service:
    """One data directory and port; at most one process at a time. `with` ends what still runs.

    A `forked` one need not load Python and its modules: see `tests.harness.commands`.
    """

    def __init__(
        self, data: Path, port: int, errors: Path, host: str = "127.0.0.1", *, forked: bool = False
    ) -> None:
        self.data = data
        self.port = port
        self.url = f"http://{host}:{port}"
        self.command = list(COMMAND)
        """What starts it; another one may run it elsewhere."""
        self._host = host
        self._errors = errors
        self._forked = forked
        self._process: subprocess.Popen[bytes] | Command | None = None

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self, *flags: object) -> None:
        place = ("--host", self._host, "--port", self.port, "--data", self.data, "--disk-reserve", 0)
        words = ["serve", *map(str, (*place, *flags))]
        with self._errors.open("ab") as errors, Path(os.devnull).open("r+b") as nothing:
            if self._forked:
                streams = [nothing.fileno(), nothing.fileno(), errors.fileno()]
                self._process = Command(words, environment(), ROOT, streams)
                return
            self._process = subprocess.Popen(
                [*self.command, *words], stdout=nothing, stderr=errors, env=environment()
            )

    @property
    def process(self) -> subprocess.Popen[bytes] | Command:
        assert self._process is not None
        return self._process

    async def ready(self) -> float:
        """Wait until `/readyz` says so; returns the seconds since the call."""
        begun = monotonic()
        async with aiohttp.ClientSession() as session:
            while monotonic() - begun < READY_S_MAX:
                try:
                    async with session.get(self.url + "/readyz", timeout=_timeout(1.0)) as response:
                        if response.status == 200:
                            return monotonic() - begun
                except (aiohttp.ClientError, OSError, TimeoutError):
                    pass
                await self.running(_POLL_S)
        raise AssertionError(f"not ready within {READY_S_MAX} s: {self.errors()}")

    async def status(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """What `/readyz` says, nothing if it does not answer."""
        try:
            async with session.get(self.url + "/readyz", timeout=_timeout(1.0)) as response:
                found: dict[str, Any] = await response.json(content_type=None)
                return found
        except (aiohttp.ClientError, OSError, TimeoutError):
            return {}

    async def running(self, seconds: float) -> None:
        """Let it run so long; it must not end by itself."""
        code = await self._ended(seconds)
        assert code is None, f"the service ended by itself with {code}: {self.errors()}"

    async def _ended(self, seconds: float) -> int | None:
        try:
            return await asyncio.to_thread(self.process.wait, seconds)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def killed(self) -> None:
        """After SIGKILL: gone."""
        assert await self._ended(STOP_S_MAX) == -signal.SIGKILL

    async def stopped(self) -> None:
        """After SIGTERM: gone in good order and in time."""
        code = await self._ended(STOP_S_MAX)
        assert code is not None, f"SIGTERM did not end the service within {STOP_S_MAX} s"
        assert code == 0, f"SIGTERM ended the service with {code}: {self.errors()}"

    def errors(self) -> str:
        """What all processes so far wrote to stderr, its end."""
        return self._errors.read_text(errors="replace")[-6_000:]


def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds)
