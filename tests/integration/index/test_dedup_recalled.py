"""A key whose message was recalled: free for another, closed to late repeats of the recalled one."""

import asyncio

import msgspec
import pytest

from tests.harness.drive import settle
from tests.integration.index.test_dedup import (
    DAY_MS,
    HOUR_MS,
    STARTS,
    keyed,
    refusal_of,
    send_one,
    start_again,
)
from timerwheel.errors import RefusedError
from timerwheel.model.messages import Outgoing, State
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.schedules.stored import Stored
from timerwheel.state.config_table import ConfigTable
from timerwheel.state.dedup_key import KEY_KEPT_MS, RECALLED_KEPT_MAX


def after(message, recalled):
    """The same message, sent again on purpose after this one was recalled."""
    return msgspec.structs.replace(message, after_recall=recalled.id)


@pytest.mark.parametrize("start", STARTS)
async def test_after_a_recall_the_key_takes_another_message(world, start):
    engine = await world.open()
    first = await send_one(world, keyed(body=b"1"))
    await engine.recalls.recall_key("orders", "k")
    await start_again(world, start)
    second = await send_one(world, keyed(body=b"2"))
    assert (second.duplicate, second.state) == (False, State.SCHEDULED)
    assert await world.engine.keys.id_of("orders", "k") == second.id != first.id
    await start_again(world, start)
    again = await send_one(world, keyed(body=b"2"))
    assert (again.id, again.duplicate) == (second.id, True)
    assert await refusal_of(world, keyed(body=b"3")) == "key_reused"
    await world.advance(HOUR_MS)
    assert [message.body for message in await world.delivered()] == [b"2"]


@pytest.mark.parametrize("start", STARTS)
async def test_a_late_repeat_of_a_recalled_send_is_refused_and_stores_nothing(world, start):
    engine = await world.open()
    first = await send_one(world, keyed())
    await engine.recalls.recall(first.id)
    await start_again(world, start)
    with pytest.raises(RefusedError) as refused:
        await world.engine.sender.send([Outgoing("orders", b"plain"), keyed("new"), keyed()])
    [fault] = refused.value.faults
    assert (fault.index, fault.code) == (2, "key_recalled")
    assert first.id in fault.detail
    assert await world.pending_ids() == []
    await world.advance(KEY_KEPT_MS - 1)
    assert await refusal_of(world, keyed()) == "key_recalled"
    await world.advance(1)
    assert not (await send_one(world, keyed())).duplicate


@pytest.mark.parametrize("start", STARTS)
async def test_who_names_the_recalled_message_sends_the_same_again(world, start):
    engine = await world.open()
    first = await send_one(world, keyed())
    await engine.recalls.recall(first.id)
    await start_again(world, start)
    second = await send_one(world, after(keyed(), first))
    assert (second.duplicate, second.id == first.id) == (False, False)
    await start_again(world, start)
    for late in (keyed(), after(keyed(), first)):
        again = await send_one(world, late)
        assert (again.id, again.duplicate) == (second.id, True)
    await world.engine.recalls.recall(second.id)
    await start_again(world, start)
    for late in (keyed(), after(keyed(), first)):
        assert await refusal_of(world, late) == "key_recalled"
    third = await send_one(world, after(keyed(), second))
    assert await world.pending_ids() == [third.id]


async def test_a_wrong_name_of_the_recalled_message_opens_nothing(world):
    engine = await world.open()
    other = await send_one(world, keyed("other"))
    first = await send_one(world, keyed())
    await engine.bulk_recalls.recall_many([other.id, first.id])
    for wrong in (other.id, "", "no id", first.id[:-1] + "x"):
        assert await refusal_of(world, msgspec.structs.replace(keyed(), after_recall=wrong)) == "key_recalled"


async def test_naming_a_recalled_message_needs_a_key_and_changes_no_other_rule(world):
    engine = await world.open()
    assert await refusal_of(world, Outgoing("orders", b"x", after_recall="a")) == "illegal_key"
    first = await send_one(world, after(keyed(), await send_one(world, keyed("other"))))
    assert not first.duplicate
    assert (await send_one(world, after(keyed(), first))).duplicate
    assert await refusal_of(world, after(keyed(body=b"y"), first)) == "key_reused"
    await world.advance(HOUR_MS)
    assert (await engine.messages.get(first.id)).state is State.DELIVERED
    assert (await send_one(world, after(keyed(), first))).duplicate


@pytest.mark.parametrize("start", STARTS)
async def test_a_repeat_of_any_send_that_was_recalled_under_the_key_is_refused(world, start):
    await world.open(retention_ms=1_000)
    bodies = [bytes([n]) for n in range(RECALLED_KEPT_MAX)]
    for body in bodies:
        assert not (await send_one(world, keyed(body=body, delay_ms=30 * DAY_MS))).duplicate
        await world.engine.recalls.recall_key("orders", "k")
    await world.roll()
    await world.advance(HOUR_MS)
    await world.retention_turn()
    await start_again(world, start)
    for body in bodies:
        assert await refusal_of(world, keyed(body=body, delay_ms=30 * DAY_MS)) == "key_recalled"
    last = await send_one(world, keyed(body=b"last", delay_ms=30 * DAY_MS))
    assert await world.pending_ids() == [last.id]
    await start_again(world, start)
    await world.engine.recalls.recall(last.id)
    # One more than are kept: the oldest is forgotten, none of the others.
    for body in (*bodies[1:], b"last"):
        assert await refusal_of(world, keyed(body=body, delay_ms=30 * DAY_MS)) == "key_recalled"


@pytest.mark.parametrize("start", STARTS)
async def test_a_timer_that_was_moved_before_its_recall_frees_its_key_as_any_other(world, start):
    engine = await world.open(retention_ms=1_000)
    first = await send_one(world, keyed(delay_ms=30 * DAY_MS))
    for _ in range(3):
        await world.roll()
        await world.advance(DAY_MS + 1)
        await world.retention_turn()
    assert engine.core.log.start > int(first.id[:16], 16)
    await engine.recalls.recall(first.id)
    await start_again(world, start)
    assert await refusal_of(world, keyed(delay_ms=30 * DAY_MS)) == "key_recalled"
    second = await send_one(world, keyed(body=b"2", delay_ms=30 * DAY_MS))
    await start_again(world, start)
    assert await world.engine.keys.id_of("orders", "k") == second.id
    assert await world.pending_ids() == [second.id]


@pytest.mark.parametrize("committed", [True, False])
async def test_of_many_senders_after_a_recall_exactly_one_stores(world, committed):
    engine = await world.open()
    first = await send_one(world, keyed())
    await engine.recalls.recall(first.id)
    if committed:
        await engine.indexer.commit()
    receipts = [
        receipt
        for pair in await asyncio.gather(*(engine.sender.send([after(keyed(), first)] * 2) for _ in range(9)))
        for receipt in pair
    ]
    assert len({receipt.id for receipt in receipts}) == 1
    assert sum(not receipt.duplicate for receipt in receipts) == 1
    assert await world.pending_ids() == [receipts[0].id]


async def test_of_different_messages_after_a_recall_one_wins(world):
    engine = await world.open()
    await engine.recalls.recall((await send_one(world, keyed())).id)
    answers = await asyncio.gather(
        *(engine.sender.send([keyed(body=bytes([n]))]) for n in range(8)), return_exceptions=True
    )
    faults = [answer.faults[0].code for answer in answers if isinstance(answer, RefusedError)]
    assert faults == ["key_reused"] * 7
    assert len(await world.pending_ids()) == 1


@pytest.mark.parametrize("spins", range(10))
async def test_a_send_that_races_with_the_recall_sees_it_or_does_not(world, spins):
    engine = await world.open()
    first = await send_one(world, keyed())
    recall = asyncio.create_task(engine.recalls.recall(first.id))
    for _ in range(spins):
        await asyncio.sleep(0)
    same, other = await asyncio.gather(
        engine.sender.send([keyed()]), engine.sender.send([keyed(body=b"2")]), return_exceptions=True
    )
    await recall
    await settle(engine)
    if isinstance(same, list):
        assert (same[0].id, same[0].duplicate) == (first.id, True)
    else:
        assert same.faults[0].code in ("key_recalled", "key_reused")
    stored = [] if isinstance(other, RefusedError) else [receipt.id for receipt in other]
    assert await world.pending_ids() == stored


async def test_in_an_array_after_a_recall_a_key_stores_once(world):
    engine = await world.open()
    first = await send_one(world, keyed())
    await engine.recalls.recall(first.id)
    receipts = await engine.sender.send([keyed(body=b"2"), keyed("other"), keyed(body=b"2")])
    assert [receipt.duplicate for receipt in receipts] == [False, False, True]
    assert receipts[0].id == receipts[2].id
    assert await world.pending_ids() == [receipts[0].id, receipts[1].id]


async def test_after_bulk_recalls_each_key_is_free(world):
    engine = await world.open()
    receipts = await engine.sender.send([keyed(str(n)) for n in range(30)])
    await engine.bulk_recalls.recall_many([receipt.id for receipt in receipts])
    fresh = await engine.sender.send([keyed(str(n), b"2") for n in range(30)])
    assert not any(receipt.duplicate for receipt in fresh)
    assert sorted(await world.pending_ids()) == sorted(receipt.id for receipt in fresh)


async def test_a_send_that_found_no_space_after_a_recall_leaves_the_key_free(world):
    engine = await world.open()
    await engine.recalls.recall((await send_one(world, keyed())).id)
    world.files.space_bytes = 0
    [answer] = await asyncio.gather(engine.sender.send([keyed(body=b"2")]), return_exceptions=True)
    assert answer.code == "no_space"
    world.files.space_bytes = 1 << 40
    assert not (await send_one(world, keyed(body=b"3"))).duplicate


async def test_a_recalled_run_of_a_schedule_stays_recalled_and_holds_up_no_other(world):
    engine = await world.open()
    spec = ScheduleSpec(topic="orders", body=b"tick", recurrence=Recurrence(every_ms=HOUR_MS))
    await engine.schedules.put("n", spec)
    [run] = (await engine.messages.pending()).messages
    await engine.recalls.recall(run.id)
    stored = Stored.decode(engine.control.get(ConfigTable.SCHEDULE, "n"))
    moment_ms = int(run.properties["SCHEDULE_RUN_MS"])
    [receipt] = await engine.sender.send([spec.message("n", stored.generation, moment_ms)])
    assert (receipt.id, receipt.duplicate, receipt.state) == (run.id, True, State.RECALLED)
    for _ in range(6):
        await world.advance(HOUR_MS // 2)
    moments = [int(m.properties["SCHEDULE_RUN_MS"]) for m in await world.delivered()]
    assert moments == [moment_ms + HOUR_MS, moment_ms + 2 * HOUR_MS]
    assert (await engine.schedules.get("n")).problem is None
