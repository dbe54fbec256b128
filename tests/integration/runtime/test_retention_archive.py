"""Retention that waits for the archive: nothing is removed that `timerwheel archive` has not put away."""

import logging

from tests.integration.runtime.test_retention import RETENTION_MS, age
from timerwheel.runtime.archived import MARKER_FILE, Archived, write_archived


def mark(world, until: int, log_id: str | None = None) -> None:
    own = world.engine.core.log.log_id.hex()
    marker = Archived(log_id or own, until, "/archive", world.clock.now_ms())
    write_archived(world.files, world.directory, marker)


async def test_without_the_setting_retention_waits_for_no_archive(world):
    await world.open(retention_ms=RETENTION_MS)
    await world.send(*[0] * 7)
    assert await age(world) > 0


async def test_no_segment_is_removed_before_anything_was_archived_and_that_is_said_once(world, caplog):
    await world.open(retention_ms=RETENTION_MS, retention_archived_only=True)
    await world.send(*[0] * 7)
    with caplog.at_level(logging.WARNING):
        assert await age(world) == 0
        assert await world.retention_turn() == 0
    [message] = [record.getMessage() for record in caplog.records if "archived" in record.getMessage()]
    assert message.endswith("nothing is archived yet; run `timerwheel archive`")


async def test_segments_are_removed_up_to_the_archived_offset_as_the_marker_moves_on(world):
    engine = await world.open(retention_ms=RETENTION_MS, retention_archived_only=True)
    for _ in range(4):
        await world.send(0)
        await world.roll()
    await age(world)
    bases = list(engine.core.log.bases)
    mark(world, bases[2] - 8)
    assert await world.retention_turn() == 1  # the second one is archived but for its last record
    assert engine.core.log.bases[0] == bases[1]
    mark(world, bases[3])
    assert await world.retention_turn() == 2
    assert engine.core.log.bases[0] == bases[3]


async def test_timers_of_a_segment_that_is_not_archived_are_not_moved(world):
    engine = await world.open(retention_ms=RETENTION_MS, retention_archived_only=True)
    [message_id] = await world.send_ids(10**9)
    await age(world)
    assert (await engine.messages.get(message_id)).properties["TIMER_ROLL_TIMES"] == "0"
    mark(world, engine.core.log.bases[-1])
    await world.retention_turn()
    assert (await engine.messages.get(message_id)).properties["TIMER_ROLL_TIMES"] == "1"


async def test_a_marker_of_another_log_counts_for_nothing(world, caplog):
    engine = await world.open(retention_ms=RETENTION_MS, retention_archived_only=True)
    mark(world, 1 << 40, log_id="ab" * 16)
    with caplog.at_level(logging.WARNING):
        assert await age(world) == 0
    assert f"belongs to another log, {'ab' * 16}" in caplog.text
    mark(world, engine.core.log.tail)
    assert await world.retention_turn() > 0


async def test_a_damaged_marker_counts_for_nothing(world, caplog):
    await world.open(retention_ms=RETENTION_MS, retention_archived_only=True)
    world.files.write_whole(world.directory / MARKER_FILE, b'{"log_id": 7')
    with caplog.at_level(logging.WARNING):
        assert await age(world) == 0
    assert "cannot be read" in caplog.text
