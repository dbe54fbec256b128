"""A real service in this process: engine, HTTP and files, in a thread, on a clock that stands still.

    with LocalService() as service, service.client() as client:
        client.send("orders", "close order 17", delay="30m")
        service.advance("30m")
        assert next(client.receive("orders")).text == "close order 17"

A pytest fixture, `timerwheel_service`, makes one for a test: `timerwheel.testing.plugin`.
"""

import asyncio
import datetime as dt
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from timerwheel.api.app import make_app
from timerwheel.api.connection_limit import Runner
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.client.app import App
from timerwheel.client.drafts import length_ms, time_ms
from timerwheel.client.loop_thread import LoopThread
from timerwheel.client.sync_client import SyncClient
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine
from timerwheel.model.durations import parse_delay_ms
from timerwheel.model.instants import instant
from timerwheel.push.push import Push
from timerwheel.settings import Settings
from timerwheel.testing.manual_clock import ManualClock
from timerwheel.testing.settling import settle

HOST = "127.0.0.1"
STEPS_MAX = 500
"""How often `advance` stops at most, to deliver what is due at its own time."""
_CONNECTIONS = 1_000
_SEGMENT_BYTES = 4 << 20
_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory with a random name within it


class LocalService:
    """A service on a free port of the loopback, with data of its own, for one test or many.

    Its clock begins at the present and stands still; `advance` moves it. Delays, leases, retries, schedules
    and the ends of keys all follow it. It may be used from synchronous and asynchronous tests: its own event
    loop runs in a thread.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - the types of `Settings`
        """`settings` are those of `timerwheel serve`, by the names of `timerwheel.settings.Settings`."""
        self._inner = _Inner(settings)
        self._loop = LoopThread(self._inner)
        try:
            self.url = self._loop.run(self._inner.start())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the running service."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.close()

    def close(self) -> None:
        """End the service and delete its data."""
        self._loop.close()
        self._inner.delete()

    def client(self) -> SyncClient:
        """Return a client of this service; close it before the service."""
        return SyncClient(self.url)

    @property
    def data(self) -> Path:
        """The data directory, which is deleted when the service is closed."""
        return self._inner.folder / "data"

    def work_off(self, app: App) -> int:
        """Have an app handle all messages that are ready; returns their number. Not within a running loop."""
        return asyncio.run(app.work_off(self.url))

    @property
    def now_ms(self) -> int:
        """What the clock reads, in epoch milliseconds."""
        return self._inner.clock.now_ms()

    @property
    def now(self) -> dt.datetime:
        """What the clock reads, as an aware datetime."""
        return instant(self.now_ms)

    def advance(self, by: str | dt.timedelta) -> None:
        """Let time pass, such as "30m" or a timedelta; what became due is delivered when this returns.

        What is due on the way is delivered at its own time. With more than 500 different due times, some
        are delivered together.
        """
        self._loop.run(
            self._inner.advance(length_ms(by) if isinstance(by, dt.timedelta) else parse_delay_ms(by))
        )

    def advance_to(self, time: dt.datetime) -> None:
        """Advance to a time, an aware datetime. `ValueError` if it is in the past or has no time zone."""
        by_ms = time_ms(time, "time") - self.now_ms
        if by_ms < 0:
            raise ValueError(f"{time} is in the past: the clock reads {self.now}")
        self._loop.run(self._inner.advance(by_ms))


class _Inner:
    """The service on its event loop."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.clock = ManualClock(SystemClock().now_ms())
        self._settings = settings
        # In memory if possible: each message is synced before it is acknowledged.
        parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="timerwheel-test-", dir=parent))
        self._is_ours = True
        self._engine: Engine | None = None
        self._runner: Runner | None = None

    def open(self) -> None:
        """Do nothing: `start` does it."""

    def forget(self) -> None:
        """Leave everything to the parent of a forked child."""
        self._is_ours = False

    async def start(self) -> str:
        """Start, and return the URL."""
        values = {"disk_reserve_bytes": 0, "segment_size_bytes": _SEGMENT_BYTES, **self._settings}
        settings = Settings(data=self.folder / "data", **values)
        engine = self._engine = await Engine.open(settings, self.clock, threads=False)
        handle = EngineHandle(settings)
        push = Push(engine, allow_private=True)
        handle.open(engine, push)
        app = make_app(handle, clock=self.clock)
        app.on_startup.append(lambda _: push.start())
        app.on_cleanup.append(lambda _: push.close())
        self._runner = Runner(app, _CONNECTIONS, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def close(self) -> None:
        """End it."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._engine is not None:
            await self._engine.close()

    def delete(self) -> None:
        """Delete the data, unless they are those of a parent process."""
        if self._is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def advance(self, by_ms: int) -> None:
        """Move the clock, stopping at each due time."""
        assert self._engine is not None
        engine, end_ms = self._engine, self.clock.now_ms() + by_ms
        step_ms = -(-by_ms // STEPS_MAX)
        await settle(engine)
        while (now_ms := self.clock.now_ms()) < end_ms:
            next_ms = engine.core.near.next_due_ms()  # what is not loaded yet is due later
            if next_ms is None:
                next_ms = (await engine.messages.wheel()).next_due_ms
            stop_ms = end_ms if next_ms is None else min(max(next_ms, now_ms + step_ms), end_ms)
            self.clock.advance(stop_ms - now_ms)
            await settle(engine)
