"""Driving a real engine on a manual clock: inline threads, so every run of a test is the same run."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from timerwheel.engine import Engine
from timerwheel.model.messages import MessageView
from timerwheel.settings import Settings
from timerwheel.testing.settling import settle

__all__ = ["read_all", "settle", "small_settings", "turns_between"]


def small_settings(data: Path, **changes: Any) -> Settings:
    """Limits so small that a handful of messages crosses each of them."""
    values: dict[str, Any] = {
        "segment_size_bytes": 4096,
        "near_ms": 2_000,
        "near_entries_max": 40,
        "cascade_entries_max": 5,
        "fire_records_max": 7,
        "index_records_max": 50,
        "index_map_size_bytes": 1 << 28,
        "batch_bytes_max": 2048,
        "disk_reserve_bytes": 0,
    }
    return Settings(data=data, **(values | changes))


async def read_all(engine: Engine, topic: str, offset: int = 0, queue: int = 0) -> list[MessageView]:
    """Every delivered message of a queue from an offset on."""
    found: list[MessageView] = []
    if topic not in engine.core.state.topics:
        return found
    while True:
        page = await engine.queues.read_queue(topic, queue, offset, 1000)
        found += page.messages
        if not page.messages:
            return found
        offset = page.next_offset


@asynccontextmanager
async def turns_between() -> AsyncIterator[Callable[[], int]]:
    """Count the turns that the loop takes within the block: work in one step takes none."""
    count = 0

    async def tick() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    try:
        yield lambda: count
    finally:
        ticking.cancel()
