"""A wall clock that was wrong neither ends for good what has time left, nor keeps what is over."""

import pytest

from tests.harness.consumers import bodies, put, receive, send
from timerwheel.errors import RefusedError
from timerwheel.model.messages import Outgoing
from timerwheel.state.dedup_key import KEY_KEPT_MS
from timerwheel.store import quarantine

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DECADE_MS = 3_650 * DAY_MS
RETENTION_MS = 10_000
STARTS = [None, "restart", "crash", "lose_index"]


def keyed(body=b"x", **properties):
    return Outgoing("orders", body, properties, dedup_key="k")


async def is_repeat(world, message):
    [receipt] = await world.engine.sender.send([message])
    return receipt.duplicate


async def start_again(world, start):
    if start is not None:
        await getattr(world, start)()


async def age(world, duration_ms):
    """Let what is stored so far grow older, in segments that are sealed, and then remove what may go."""
    for _ in range(3):
        await world.roll()
    await world.advance(duration_ms)
    await world.roll()
    return await world.retention_turn()


@pytest.mark.parametrize("start", STARTS)
async def test_a_clock_that_was_ahead_for_a_moment_keeps_no_segment(world, start):
    engine = await world.open(retention_ms=RETENTION_MS)
    await world.step(DECADE_MS)
    await world.send(0)
    tail = engine.core.log.tail
    await world.step(-DECADE_MS)
    await start_again(world, start)
    assert await age(world, 2 * RETENTION_MS) > 0
    assert world.engine.core.log.start > tail


@pytest.mark.parametrize("start", STARTS)
async def test_segments_that_were_sealed_while_the_clock_was_ahead_go_with_those_behind_them(world, start):
    engine = await world.open(retention_ms=RETENTION_MS)
    await world.step(DECADE_MS)
    for _ in range(3):
        await world.roll()
    tail = engine.core.log.tail
    await world.step(-DECADE_MS)
    await start_again(world, start)
    await world.roll()
    assert await world.retention_turn() == 0
    assert await age(world, 2 * RETENTION_MS) > 0
    assert world.engine.core.log.start > tail


@pytest.mark.parametrize("start", STARTS)
async def test_a_message_that_ended_while_the_clock_was_ahead_keeps_no_segment(world, start):
    engine = await world.open(retention_ms=RETENTION_MS)
    await world.send(HOUR_MS)
    await world.roll()
    tail = engine.core.log.tail
    await world.step(DECADE_MS)
    assert len(await world.delivered_ids()) == 1
    await world.step(-DECADE_MS)
    await start_again(world, start)
    assert await age(world, 2 * RETENTION_MS) > 0
    assert world.engine.core.log.start > tail


@pytest.mark.parametrize("is_set_back", [True, False])
async def test_a_step_forward_takes_away_nothing_that_a_consumer_has_not_had(world, is_set_back):
    await world.open(retention_ms=3 * DAY_MS)
    await put(world)
    await send(world, "a")
    await world.roll()
    await world.step(4 * DAY_MS)
    assert await world.retention_turn() == 0
    if is_set_back:
        await world.step(-4 * DAY_MS)
    await world.advance(2 * DAY_MS)
    assert await world.retention_turn() == 0
    assert bodies(await receive(world)) == ["a"]


async def test_after_the_machine_slept_a_segment_goes_once_the_service_has_run_for_the_retention(world):
    """Sleep looks like a step forward: the wall clock goes on, the monotonic one does not."""
    engine = await world.open(retention_ms=3 * DAY_MS)
    await world.send(0)
    await world.roll()
    first = engine.core.log.bases[0]
    await world.step(30 * DAY_MS)
    await world.retention_turn()
    assert engine.core.log.bases[0] == first
    await world.advance(3 * DAY_MS + 1)
    await world.retention_turn()
    assert engine.core.log.bases[0] > first


@pytest.mark.parametrize("start", [None, "crash"])
async def test_records_of_a_clock_that_was_behind_take_away_nothing_before_them(world, start):
    engine = await world.open(retention_ms=3 * DAY_MS)
    await world.send(0)
    first = engine.core.log.bases[0]
    await world.roll()
    await world.step(-DECADE_MS)
    await world.roll()
    await world.roll()
    await start_again(world, start)
    await world.step(DECADE_MS)
    await world.roll()
    await world.retention_turn()
    assert world.engine.core.log.bases[0] == first


async def test_a_step_forward_ends_no_deduplication_key(world):
    await world.open()
    assert not await is_repeat(world, keyed())
    await world.engine.indexer.commit()
    await world.advance(1_000)
    await world.step(2 * DAY_MS)
    await world.engine.keys.sweep()
    assert await is_repeat(world, keyed())
    await world.step(-2 * DAY_MS)
    await world.engine.keys.sweep()
    assert await is_repeat(world, keyed())
    await world.advance(KEY_KEPT_MS)
    assert not await is_repeat(world, keyed())


async def test_a_key_that_outlived_a_step_forward_is_swept_when_its_day_is_over(world):
    engine = await world.open()
    await engine.sender.send([keyed()])
    await engine.indexer.commit()
    await world.step(2 * DAY_MS)
    await engine.keys.sweep()
    await world.advance(KEY_KEPT_MS + 120_000)
    await engine.keys.sweep()
    with engine.core.index.index.read() as txn:
        assert [sum(1 for _ in txn.items(table)) for table in ("keys", "key_ends")] == [0, 0]


@pytest.mark.parametrize("start", STARTS)
async def test_a_key_of_a_message_from_a_clock_that_was_ahead_is_free_a_day_later(world, start):
    await world.open()
    await world.step(DECADE_MS)
    assert not await is_repeat(world, keyed())
    await world.step(-DECADE_MS)
    await start_again(world, start)
    for _ in range(2):  # what is behind a message says when it was stored at the latest
        await world.roll()
    with pytest.raises(RefusedError):
        await is_repeat(world, keyed(b"another"))
    await world.advance(KEY_KEPT_MS + 1_000)
    await world.roll()
    assert not await is_repeat(world, keyed(b"another"))


@pytest.mark.parametrize("start", ["restart", "lose_index"])
async def test_a_key_that_retention_carries_ends_though_its_message_ended_while_the_clock_was_ahead(
    world, start
):
    await world.open(retention_ms=RETENTION_MS)
    await world.step(DECADE_MS)
    assert not await is_repeat(world, keyed())
    await world.step(-DECADE_MS)
    await start_again(world, start)
    assert await age(world, 2 * RETENTION_MS) > 0
    await start_again(world, start)
    assert await is_repeat(world, keyed())
    await world.advance(KEY_KEPT_MS)
    assert not await is_repeat(world, keyed(b"another"))


async def test_a_step_forward_removes_no_quarantine_file(world):
    engine = await world.open()
    log, kept_ms = engine.core.log, engine.settings.quarantine_retention_ms
    path = quarantine.keep(world.files, log.directory, log.log_id, 8_192, b"cut", world.clock.now_ms())
    await world.step(kept_ms + DAY_MS)
    await world.retention_turn()
    assert path.name in world.files.names(log.directory)
    await world.advance(kept_ms + DAY_MS)
    await world.retention_turn()
    assert path.name not in world.files.names(log.directory)
