"""One engine in a world under the test's hand: its clock, its disk, its restarts."""

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

from tests.harness.clock import ManualClock
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles
from tests.harness.gated_threads import GatedThreads
from timerwheel.engine import Engine
from timerwheel.model.messages import MessageView, Outgoing, Receipt
from timerwheel.store.errors import IndexDamagedError

SPINS_TO_SLEEP = 30


class World:
    """A data directory, a clock, a file layer, and the engine that is open on them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.files: Any = FaultyFiles()
        self.limits: dict[str, Any] = {"retention_ms": 10**12}
        self.threads: GatedThreads
        self.engine: Engine

    async def open(self, **limits: Any) -> Engine:
        """Open the engine; limits given here hold for later openings too."""
        self.limits |= limits
        settings = small_settings(self.directory, **self.limits)
        self.engine = await Engine.open(settings, self.clock, self.files, threads=self._new_threads)
        await settle(self.engine)
        return self.engine

    def _new_threads(self) -> GatedThreads:
        self.threads = GatedThreads()
        return self.threads

    async def open_healing(self, **limits: Any) -> Engine:
        """Open as a supervisor does: one failed start is followed by another."""
        try:
            return await self.open(**limits)
        except (IndexDamagedError, RuntimeError):
            return await self.open(**limits)

    async def restart(self, **limits: Any) -> Engine:
        await self.engine.close()
        return await self.open(**limits)

    async def crash(self, rng: random.Random | None = None, **limits: Any) -> Engine:
        """Stop without a word; with `rng`, the disk forgets what it may forget."""
        await self.engine.abandon()
        if rng is not None:
            self.files = self.files.after_crash(rng)
        return await self.open(**limits)

    async def lose_index(self, **limits: Any) -> Engine:
        await self.engine.abandon()
        shutil.rmtree(self.directory / "index")
        return await self.open(**limits)

    async def send(self, *delays_ms: int, topic: str = "orders", body: bytes = b"x") -> list[Receipt]:
        """One array of messages with these delays."""
        return await self.engine.sender.send(
            [Outgoing(topic, body, {"TIMER_DELAY_MS": str(delay)}) for delay in delays_ms]
        )

    async def send_ids(self, *delays_ms: int, topic: str = "orders", body: bytes = b"x") -> list[str]:
        return [receipt.id for receipt in await self.send(*delays_ms, topic=topic, body=body)]

    async def advance(self, duration_ms: int) -> None:
        for _ in range(SPINS_TO_SLEEP):  # every loop must be asleep on the clock before it moves
            await asyncio.sleep(0)
        self.clock.advance(duration_ms)
        await settle(self.engine)

    async def step(self, by_ms: int) -> None:
        """Step the wall clock and let the engine notice."""
        self.clock.step(by_ms)
        await self.engine.watch_once()
        await settle(self.engine)

    async def retention_turn(self) -> int:
        dropped = await self.engine.retention.turn()
        await settle(self.engine)
        return dropped

    async def roll(self) -> None:
        """Send ordinary messages until the segment that is now the last one is sealed."""
        last = self.engine.core.log.bases[-1]
        while self.engine.core.log.bases[-1] == last:
            await self.engine.sender.send([Outgoing("filler", b"f" * 900)])

    async def delivered(self, topic: str = "orders") -> list[MessageView]:
        return await read_all(self.engine, topic)

    async def delivered_ids(self, topic: str = "orders") -> list[str]:
        return [message.id for message in await self.delivered(topic)]

    async def pending_ids(self) -> list[str]:
        return [message.id for message in (await self.engine.messages.pending(limit=100_000)).messages]
