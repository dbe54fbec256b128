"""Records at hand: what is due next and what was just written never waits for a read of the log."""

import asyncio
import errno
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from tests.harness.cold import make_cold
from tests.harness.drive import settle, small_settings
from tests.harness.held import open_held
from timerwheel.engine import Engine
from timerwheel.runtime.record_cache import RecordCache
from timerwheel.runtime.threads import Threads
from timerwheel.store.errors import CorruptionError

BODY = b"b" * 40


class Shelf:
    """Enough of a log: records by offset, some damaged, on a disk that may fail."""

    def __init__(self, records: dict[int, bytes | CorruptionError]) -> None:
        self._records = records
        self.asked: list[int] = []
        self.fails: OSError | None = None

    def read_many(self, offsets: np.ndarray, _sizes: np.ndarray) -> list[bytes | CorruptionError]:
        self.asked += offsets.tolist()
        if self.fails is not None:
            raise self.fails
        return [self._records[offset] for offset in offsets.tolist()]


def places(offsets: Sequence[int]) -> np.ndarray:
    return np.array(offsets, np.uint64)


def sizes(count: int) -> np.ndarray:
    return np.full(count, 100, np.uint32)


def shelf_of(*offsets: int) -> Shelf:
    return Shelf({offset: b"%0100d" % offset for offset in offsets})


async def test_what_is_kept_is_not_read_again_and_the_rest_is():
    shelf = shelf_of(1, 2, 3, 4)
    record_cache = RecordCache(shelf, Threads(inline=True))
    record_cache.keep(places([2, 4]), [b"%0100d" % 2, b"%0100d" % 4])
    assert await record_cache.read(places([4, 3, 2, 1]), sizes(4)) == [b"%0100d" % n for n in (4, 3, 2, 1)]
    assert shelf.asked == [3, 1]


async def test_the_oldest_make_room():
    record_cache = RecordCache(shelf := shelf_of(1, 2, 3), Threads(inline=True), bytes_max=200)
    for offset in (1, 2, 3):
        record_cache.keep(places([offset]), [b"%0100d" % offset])
    await record_cache.read(places([1, 2, 3]), sizes(3))
    assert shelf.asked == [1]


async def test_a_record_larger_than_the_room_is_not_kept_and_still_read():
    record_cache = RecordCache(shelf := shelf_of(1), Threads(inline=True), bytes_max=50)
    await record_cache.fetch(places([1]), sizes(1))
    assert shelf.asked == []
    assert await record_cache.read(places([1]), sizes(1)) == [b"%0100d" % 1]


async def test_fetching_takes_at_most_half_of_the_room_and_only_what_is_missing():
    record_cache = RecordCache(shelf := shelf_of(*range(10)), Threads(inline=True), bytes_max=800)
    record_cache.keep(places([1]), [b"%0100d" % 1])
    await record_cache.fetch(places(range(10)), sizes(10))
    assert shelf.asked == [0, 2, 3]


async def test_a_damaged_record_is_reported_each_time_and_never_kept():
    error = CorruptionError("log", 2, "the CRC does not match")
    record_cache = RecordCache(shelf := Shelf({1: b"x", 2: error}), Threads(inline=True))
    await record_cache.fetch(places([1, 2]), sizes(2))
    assert await record_cache.read(places([1, 2]), sizes(2)) == [b"x", error]
    assert shelf.asked == [1, 2, 2]


async def test_a_read_ahead_that_fails_harms_nobody_and_what_it_was_for_is_read_when_needed():
    record_cache = RecordCache(shelf := shelf_of(1, 2), Threads(inline=True))
    shelf.fails = OSError(errno.EIO, "Input/output error")
    await record_cache.fetch(places([1, 2]), sizes(2))
    shelf.fails = None
    shelf.asked.clear()
    assert await record_cache.read(places([1, 2]), sizes(2)) == [b"%0100d" % 1, b"%0100d" % 2]
    assert shelf.asked == [1, 2], "nothing of what failed is kept"


async def test_a_disk_that_still_fails_when_a_record_is_needed_is_an_error_of_that_read():
    record_cache = RecordCache(shelf := shelf_of(1), Threads(inline=True))
    shelf.fails = OSError(errno.ENXIO, "No such device")
    await record_cache.fetch(places([1]), sizes(1))
    with pytest.raises(OSError, match="No such device"):
        await record_cache.read(places([1]), sizes(1))


async def test_timers_of_a_cold_log_are_read_before_they_are_due(world):
    await world.open(near_entries_max=100, fire_records_max=50)
    ids = await world.send_ids(*range(5_000, 5_020), body=BODY)
    await world.engine.close()
    threads = await open_held(world, near_entries_max=100)
    for _ in range(49):
        await world.advance(100)  # the loop that reads ahead looks ten times a second
    reads = threads.calls["read_many"]
    assert reads
    await world.advance(200)
    assert await world.delivered_ids() == ids
    assert threads.calls["read_many"] == reads, "each record was there when its timer was due"


async def test_a_consumer_that_keeps_up_reads_nothing(world):
    threads = await open_held(world)
    ids = await world.send_ids(100, 200, 300, body=BODY)
    await world.advance(1_000)
    assert await world.delivered_ids() == ids
    assert threads.calls["read_many"] == 0


async def test_without_a_record_cache_all_is_the_same(world):
    engine = await world.open()
    make_cold(engine)
    ids = await world.send_ids(100, 200, 300, body=BODY)
    await world.advance(1_000)
    await settle(engine)
    assert await world.delivered_ids() == ids


async def test_a_due_message_of_a_cold_log_waits_for_no_listing(world):
    settings = small_settings(world.directory, **world.limits)
    engine = world.engine = await Engine.open(settings, world.clock, world.files)
    [message_id] = await world.send_ids(1_000, body=BODY)
    make_cold(engine)
    over = threading.Event()
    listings = [asyncio.create_task(engine.core.threads.read(over.wait)) for _ in range(4)]
    await asyncio.sleep(0)
    try:
        await world.advance(1_000)
        assert engine.queues.topic("orders").visible == 1
    finally:
        over.set()
        await asyncio.gather(*listings)
    assert await world.delivered_ids() == [message_id]
