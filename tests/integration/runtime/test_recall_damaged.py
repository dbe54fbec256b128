"""The way out for an operator when the record of a pending timer cannot be read: it is recalled unread."""

import pytest

from tests.harness.cold import make_cold
from timerwheel.errors import AlreadyRecalledError, UnknownMessageError
from timerwheel.model.messages import Outgoing, State
from timerwheel.store.errors import CorruptionError

RETENTION_MS = 10_000
FAR_MS = 10**9
IN_BODY, IN_CRC = 90, 4
"""Bytes of a record, from its start."""


def damage(world, message_id, at=IN_BODY):
    """Flip a bit of a record on the disk."""
    make_cold(world.engine)
    log, offset = world.engine.core.log, int(message_id[:16], 16)
    base = log.base_of(offset)
    node = world.files.names_now[str(log.path(base))]
    node.data[offset - base + at] ^= 0x10
    node.durable = bytes(node.data)


async def age(world):
    """Let what is stored so far grow older than retention, in sealed segments, and drop what may go."""
    for _ in range(3):
        await world.roll()
    await world.advance(RETENTION_MS + 1_000)
    await world.roll()
    return await world.retention_turn()


async def damaged(world, delay_ms, *, is_indexed):
    """A timer whose record cannot be read, in the first segment of the log."""
    [message_id] = await world.send_ids(delay_ms, body=b"b" * 40)
    if is_indexed:
        await world.engine.indexer.commit()
    damage(world, message_id)
    await world.advance(3_000)
    return message_id


@pytest.mark.parametrize("start", [None, "restart", "crash"])
@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("delay_ms", [1_000, FAR_MS])
async def test_retention_goes_on_once_an_unreadable_timer_is_recalled_unread(
    world, delay_ms, is_indexed, start
):
    engine = await world.open(retention_ms=RETENTION_MS)
    first, due_ms = engine.core.log.bases[0], world.clock.now_ms() + delay_ms
    message_id = await damaged(world, delay_ms, is_indexed=is_indexed)
    await age(world)
    assert engine.core.log.bases[0] == first, "it keeps its segment"
    with pytest.raises(CorruptionError):
        await engine.recalls.recall(message_id)
    view = await engine.bulk_recalls.end_damaged(message_id)
    assert (view.id, view.topic, view.state, view.due_ms) == (message_id, "orders", State.RECALLED, due_ms)
    assert view.problem is not None
    if start is not None:
        engine = await getattr(world, start)()
    with pytest.raises(AlreadyRecalledError):
        await engine.recalls.recall(message_id)
    assert engine.core.state.pending == 0
    assert (await engine.messages.wheel()).set_aside == []
    assert await age(world) > 0
    assert engine.core.log.bases[0] > first
    assert await world.delivered_ids() == []


async def test_a_timer_whose_header_is_damaged_is_recalled_unread_by_the_id_that_its_sender_has(world):
    engine = await world.open()
    [message_id] = await world.send_ids(FAR_MS, body=b"b" * 40)
    await engine.indexer.commit()
    damage(world, message_id, IN_CRC)
    with pytest.raises(UnknownMessageError):
        await engine.recalls.recall(message_id)
    view = await engine.bulk_recalls.end_damaged(message_id)
    assert view.state is State.RECALLED
    assert engine.core.state.pending == 0


async def test_a_timer_that_was_moved_to_a_damaged_record_is_recalled_unread(world):
    engine = await world.open()
    [message_id] = await world.send_ids(FAR_MS, body=b"b" * 40)
    tail = engine.core.log.tail
    await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "900000"})
    damage(world, f"{tail:016x}{0:08x}")
    assert (await engine.bulk_recalls.end_damaged(message_id)).state is State.RECALLED
    assert engine.core.state.pending == 0
    assert await engine.bulk_recalls.end_damaged(message_id) is None


async def test_an_open_transaction_that_cannot_be_read_is_ended_unread(world):
    engine = await world.open()
    begun = await engine.transactions.begin(Outgoing("orders", b"b" * 40, {}))
    damage(world, begun.id)
    assert (await engine.bulk_recalls.end_damaged(begun.id)).state is State.RECALLED
    assert engine.core.state.pending == 0


async def test_a_message_that_can_be_read_or_is_not_pending_is_left_alone(world):
    engine = await world.open()
    waits, goes = await world.send_ids(FAR_MS, 1_000)
    await world.advance(1_000)
    for message_id in (waits, goes, f"{engine.core.log.tail:016x}{0:08x}", "no id"):
        assert await engine.bulk_recalls.end_damaged(message_id) is None
    assert await world.pending_ids() == [waits]


async def test_the_log_says_what_to_do_about_a_timer_that_retention_cannot_move(world, caplog):
    await world.open(retention_ms=RETENTION_MS)
    message_id = await damaged(world, FAR_MS, is_indexed=True)
    await world.send(*[0] * 40, body=b"f" * 400)  # so that moving it would free more than it writes
    await age(world)
    assert f"`timerwheel recall {message_id} --damaged`" in caplog.text
