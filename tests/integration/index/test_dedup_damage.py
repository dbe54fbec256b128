"""A message with a deduplication key whose record is damaged: its key is lost, and nothing else.

A lost index is made anew from the sidecars, which know the records of a sealed segment but for their payload.
Only what a key is needs the record itself, so this is where a start meets the damage.
"""

import logging

import pytest

from tests.integration.engine.test_failure import damage_record
from tests.integration.index.test_dedup import DAY_MS, HOUR_MS, index_keys, keyed, send_one
from timerwheel.errors import UnknownMessageError
from timerwheel.model.messages import State
from timerwheel.state.dedup_key import KEY_KEPT_MS
from timerwheel.store import sidecar
from timerwheel.store.record import FLAG_KEYED

BODY = b"b" * 100


async def two_keyed(world, delay_ms):
    """Two messages with the keys `lost` and `kept`, in a sealed segment that has a sidecar."""
    engine = await world.open()
    receipts = [await send_one(world, keyed(key, BODY, delay_ms)) for key in ("lost", "kept")]
    await world.roll()
    await engine.indexer.tick()
    log = engine.core.log
    base = log.bases[0]
    assert {log.base_of(int(receipt.id[:16], 16)) for receipt in receipts} == {base}
    assert sidecar.read(log.files, log.sidecar_path(base), base, log.end_of(base)) is not None
    return receipts


@pytest.mark.parametrize("delay_ms", [0, HOUR_MS])
async def test_a_start_that_meets_a_damaged_keyed_record_loses_its_key_alone_and_says_so(
    world, delay_ms, caplog
):
    lost, kept = await two_keyed(world, delay_ms)
    damage_record(world, lost.id)
    with caplog.at_level(logging.ERROR, "timerwheel"):
        engine = await world.lose_index()
    assert engine.ready
    [line] = [record.getMessage() for record in caplog.records if "deduplication key" in record.message]
    assert "lost" in line
    assert engine.core.log.path(engine.core.log.bases[0]).name in line
    assert str(int(lost.id[:16], 16)) in line
    assert index_keys(engine) == [1, 1]
    assert await engine.keys.id_of("orders", "kept") == kept.id
    with pytest.raises(UnknownMessageError):
        await engine.keys.id_of("orders", "lost")


async def test_a_lost_key_is_free_and_is_taken_again_once(world):
    lost, kept = await two_keyed(world, HOUR_MS)
    damage_record(world, lost.id)
    engine = await world.lose_index()
    fresh, again = [await send_one(world, keyed("lost", BODY)) for _ in range(2)]
    assert not fresh.duplicate
    assert (again.id, again.duplicate) == (fresh.id, True)
    assert (await send_one(world, keyed("kept", BODY))).id == kept.id
    engine = await world.restart()
    assert await engine.keys.id_of("orders", "lost") == fresh.id


async def test_messages_beside_one_whose_key_was_lost_are_delivered_and_the_loss_is_logged(world):
    lost, kept = await two_keyed(world, HOUR_MS)
    damage_record(world, lost.id)
    engine = await world.lose_index()
    await world.advance(HOUR_MS)
    assert await world.delivered_ids() == [kept.id]
    view = await engine.messages.get(lost.id)
    assert view.state is State.SCHEDULED
    assert view.problem is not None
    assert (await engine.messages.wheel()).pending == 1


async def test_the_key_of_a_damaged_message_that_the_index_knows_outlives_a_start(world):
    lost, _ = await two_keyed(world, DAY_MS)
    damage_record(world, lost.id)
    engine = await world.restart()
    assert await engine.keys.id_of("orders", "lost") == lost.id
    again = await send_one(world, keyed("lost", BODY, DAY_MS))
    assert (again.id, again.duplicate) == (lost.id, True)


@pytest.mark.parametrize("carried", [False, True])
async def test_damage_that_hides_a_key_holds_its_segment_until_no_key_of_it_counts(world, carried):
    engine = await world.open(retention_ms=1_000)
    await send_one(world, keyed(delay_ms=0))
    if carried:
        await world.roll()
        await world.advance(5_000)
        await world.retention_turn()
    await world.roll()
    await engine.indexer.tick()  # writes the sidecar, which knows the record
    base = next(base for base, segment in engine.core.state.segments.items() if segment.keyed)
    rows = engine.core.log.segment_table(base).rows
    offset = int(rows["offset"][rows["flags"] & FLAG_KEYED != 0][0])
    damage_record(world, f"{offset:016x}")
    await world.advance(KEY_KEPT_MS - 10_000)
    await world.retention_turn()
    assert engine.core.log.start <= offset
    await world.advance(10_001)
    await world.retention_turn()
    assert engine.core.log.start > base
