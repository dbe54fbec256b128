"""Recall and reschedule: the answer is the truth, the id stays, and what was answered is final."""

import asyncio

import pytest

from tests.harness.drive import read_all, settle
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine
from timerwheel.errors import (
    AdmissionError,
    AlreadyDeliveredError,
    AlreadyRecalledError,
    TimerwheelError,
    UnknownMessageError,
)
from timerwheel.model.messages import Outgoing, State
from timerwheel.settings import Settings
from timerwheel.state.config_table import ConfigTable, Put
from timerwheel.store.record import FLAG_MORE, decode_header


async def test_id_is_kept_over_many_reschedules_restarts_and_a_lost_index(world):
    engine = await world.open()
    [message_id] = await world.send_ids(5_000, body=b"kept")
    for turn in range(24):
        delay_ms = 60_000 + turn * 3_700_000
        receipt = await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": str(delay_ms)})
        assert receipt.id == message_id
        due_ms = world.clock.now_ms() + delay_ms
        assert (await engine.messages.get(message_id)).due_ms == receipt.due_ms == due_ms
        assert await world.pending_ids() == [message_id]
        await world.advance(1_000)
        if turn % 6 == 3:
            engine = await world.restart()
        elif turn % 6 == 5:
            engine = await world.lose_index()
    await world.advance(due_ms - world.clock.now_ms() - 1)
    assert await world.delivered_ids() == []
    await world.advance(1)
    [message] = await world.delivered()
    assert (message.id, message.body, message.lateness_ms) == (message_id, b"kept", 0)
    assert (await engine.messages.get(message_id)).state is State.DELIVERED


@pytest.mark.parametrize("start", ["restart", "crash", "lose_index"])
async def test_recalled_message_stays_recalled(world, start):
    engine = await world.open()
    near, far, kept = await world.send_ids(1_000, 9_000_000, 1_000)
    view = await engine.recalls.recall(near)
    assert (view.state, view.recalled_ms) == (State.RECALLED, world.clock.now_ms())
    await engine.recalls.recall(far)
    engine = await getattr(world, start)()
    for message_id in (near, far):
        assert (await engine.messages.get(message_id)).state is State.RECALLED
        with pytest.raises(AlreadyRecalledError):
            await engine.recalls.recall(message_id)
        with pytest.raises(AlreadyRecalledError):
            await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "5"})
    await world.advance(10_000_000)
    assert await world.delivered_ids() == [kept]


async def test_recalled_view_keeps_the_message_and_its_last_due_time(world):
    engine = await world.open()
    [message_id] = await world.send_ids(5_000, body=b"body")
    receipt = await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "7000"})
    await engine.recalls.recall(message_id)
    view = await engine.messages.get(message_id)
    assert (view.id, view.body, view.due_ms) == (message_id, b"body", receipt.due_ms)


@pytest.mark.parametrize("start", [None, "restart", "crash", "lose_index"])
async def test_after_delivery_the_answer_is_already_delivered(world, start):
    engine = await world.open()
    [message_id] = await world.send_ids(1_500)
    [at_once] = await world.send_ids(0)
    await world.advance(1_500)
    if start is not None:
        engine = await getattr(world, start)()
    for delivered in (message_id, at_once):
        with pytest.raises(AlreadyDeliveredError):
            await engine.recalls.recall(delivered)
        with pytest.raises(AlreadyDeliveredError):
            await engine.recalls.reschedule(delivered, {"TIMER_DELAY_MS": "5"})
        assert (await engine.messages.get(delivered)).state is State.DELIVERED
    assert await world.delivered_ids() == [at_once, message_id]


@pytest.mark.parametrize("where", ["stage", "index", "near", "after a lost index"])
async def test_recall_and_reschedule_reach_a_timer_wherever_it_lies(world, where):
    engine = await world.open()
    delay_ms = 1_900 if where == "near" else 90_000_000
    recalled, moved = await world.send_ids(delay_ms, delay_ms)
    if where == "index":
        await engine.indexer.commit()
    if where == "after a lost index":
        engine = await world.lose_index()
    await engine.recalls.recall(recalled)
    await engine.recalls.reschedule(moved, {"TIMER_DELAY_MS": "500"})
    assert await world.pending_ids() == [moved]
    await world.advance(500)
    assert await world.delivered_ids() == [moved]
    await world.advance(100_000_000)
    assert await world.delivered_ids() == [moved]


async def test_forged_ids_are_unknown(world):
    engine = await world.open()
    [message_id] = await world.send_ids(1_000)
    forged = [
        message_id[:-1] + ("0" if message_id[-1] != "0" else "1"),
        f"{int(message_id[:16], 16) + 8:016x}{message_id[16:]}",
        f"{1 << 62:016x}{message_id[16:]}",
        f"{0:024x}",
        "not an id",
        "",
    ]
    for one in forged:
        for call in (engine.messages.get, engine.recalls.recall):
            with pytest.raises(UnknownMessageError):
                await call(one)


async def test_id_of_a_later_record_of_the_message_is_not_the_messages_id(world):
    engine = await world.open()
    [message_id] = await world.send_ids(5_000)
    tail = engine.core.log.tail
    await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "6000"})
    crc = int.from_bytes(engine.core.log.read(tail)[4:8], "little")
    with pytest.raises(UnknownMessageError):
        await engine.messages.get(f"{tail:016x}{crc:08x}")


@pytest.mark.parametrize("properties", [{"TIMER_DELAY_MS": "0"}, {"TIMER_DELIVER_MS": "1"}])
@pytest.mark.parametrize("delay_ms", [1_000, 90_000_000])
async def test_reschedule_to_now_delivers_at_once_and_exactly_once(world, properties, delay_ms):
    engine = await world.open()
    [message_id] = await world.send_ids(delay_ms)
    receipt = await engine.recalls.reschedule(message_id, properties)
    assert (receipt.state, receipt.due_ms) == (State.DELIVERED, world.clock.now_ms())
    assert await world.delivered_ids() == [message_id]
    engine = await world.restart()
    await world.advance(100_000_000)
    engine = await world.lose_index()
    await world.advance(100_000_000)
    assert await world.delivered_ids() == [message_id]
    with pytest.raises(AlreadyDeliveredError):
        await engine.recalls.recall(message_id)


@pytest.mark.parametrize(
    "properties", [{}, {"DELAY": "0"}, {"TAGS": "x", "TIMER_DELAY_MS": "5"}, {"TIMER_DELAY_MS": "no"}]
)
async def test_a_refused_reschedule_leaves_the_message_as_it_was(world, properties):
    engine = await world.open()
    [message_id] = await world.send_ids(1_500)
    before = await engine.messages.get(message_id)
    with pytest.raises(AdmissionError):
        await engine.recalls.reschedule(message_id, properties)
    assert await engine.messages.get(message_id) == before
    await world.advance(1_500)
    assert await world.delivered_ids() == [message_id]


async def test_reschedule_to_a_level_and_back_keeps_the_level_counts(world):
    engine = await world.open()
    [message_id] = await world.send_ids(1_500)
    await engine.recalls.reschedule(message_id, {"DELAY": "5"})
    assert [level.pending for level in await engine.messages.levels()][4] == 1
    await engine.recalls.reschedule(message_id, {"DELAY": "6"})
    assert [level.pending for level in await engine.messages.levels()][4:6] == [0, 1]
    await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "70000"})
    assert sum(level.pending for level in await engine.messages.levels()) == 0
    await world.advance(70_000)
    assert await world.delivered_ids() == [message_id]


@pytest.mark.parametrize("order", ["recall first", "reschedule first"])
@pytest.mark.parametrize("delay_ms", [1_000, 90_000_000])
async def test_concurrent_recalls_and_reschedules_of_one_message_take_one_order(world, order, delay_ms):
    engine = await world.open()
    [message_id] = await world.send_ids(delay_ms)
    calls = [engine.recalls.recall(message_id) for _ in range(5)]
    calls += [engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": str(2_000 + n)}) for n in range(5)]
    if order == "reschedule first":
        calls.reverse()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    recalls = [a for a in answers if not isinstance(a, Exception) and a.state is State.RECALLED]
    wrong = [a for a in answers if isinstance(a, Exception)]
    assert len(recalls) == 1
    assert all(isinstance(a, AlreadyRecalledError) for a in wrong)
    assert (await engine.messages.get(message_id)).state is State.RECALLED
    assert await world.pending_ids() == []
    await world.advance(100_000_000)
    assert await world.delivered_ids() == []


async def test_concurrent_reschedules_end_with_one_due_time(world):
    engine = await world.open()
    [message_id] = await world.send_ids(90_000_000)
    answers = await asyncio.gather(
        *(engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": str(3_000 + n)}) for n in range(20))
    )
    assert {answer.id for answer in answers} == {message_id}
    assert (await engine.messages.get(message_id)).due_ms in {answer.due_ms for answer in answers}
    await world.advance(200_000_000)
    assert await world.delivered_ids() == [message_id]


async def test_a_caller_that_goes_away_leaves_the_message_whole(world):
    engine = await world.open()
    ids = await world.send_ids(*[1_000] * 10)
    tasks = [asyncio.create_task(engine.recalls.recall(message_id)) for message_id in ids]
    for spins, task in enumerate(tasks):
        for _ in range(spins % 4):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await settle(engine)
    waiting = set(await world.pending_ids())
    await world.advance(1_000)
    assert set(await world.delivered_ids()) == waiting
    for message_id in ids:
        state = State.DELIVERED if message_id in waiting else State.RECALLED
        assert (await engine.messages.get(message_id)).state is state


def test_recall_raced_with_firing_gives_each_message_one_true_end(tmp_path):
    """Real threads, real clock: hundreds of messages are recalled within 5 ms of their due time."""

    async def race():
        settings = Settings(data=tmp_path / "data", disk_reserve_bytes=0, index_map_size_bytes=1 << 28)
        engine = await Engine.open(settings)
        clock = SystemClock()
        due_ms = clock.now_ms() + 250
        receipts = await engine.sender.send(
            [
                Outgoing("orders", b"x", {"TIMER_DELIVER_MS": str(due_ms + n % 40), "n": str(n)})
                for n in range(600)
            ]
        )

        async def recall(receipt, n):
            await clock.sleep_for(max(receipt.due_ms - clock.now_ms() + n % 11 - 5, 0))
            try:
                view = await engine.recalls.recall(receipt.id)
            except TimerwheelError as error:
                return type(error)
            return view.state

        answers = await asyncio.gather(*(recall(receipt, n) for n, receipt in enumerate(receipts)))
        while engine.core.state.pending:
            await clock.sleep_for(5)
        delivered = [message.id for message in await read_all(engine, "orders")]
        states = [(await engine.messages.get(receipt.id)).state for receipt in receipts]
        await engine.close()
        engine = await Engine.open(settings)
        again = [message.id for message in await read_all(engine, "orders")]
        await engine.close()
        return receipts, answers, delivered, states, again

    receipts, answers, delivered, states, again = asyncio.run(race())
    assert set(answers) <= {State.RECALLED, AlreadyDeliveredError}
    late = [r.id for r, a in zip(receipts, answers, strict=True) if a is AlreadyDeliveredError]
    assert len(delivered) == len(set(delivered))
    assert set(delivered) == set(late)
    assert again == delivered
    assert [s is State.RECALLED for s in states] == [a is State.RECALLED for a in answers]


@pytest.mark.parametrize("start", ["restart", "crash", "lose_index"])
async def test_a_recall_and_the_settings_with_it_are_stored_together(world, start):
    engine = await world.open()
    [message_id] = await world.send_ids(1_000)
    before = engine.core.log.tail
    await engine.recalls.recall(message_id, puts=[Put(ConfigTable.KAFKA_INLET, "a/0", 7)])
    cancel = decode_header(engine.core.log.read(before))
    assert cancel.flags & FLAG_MORE
    assert not decode_header(engine.core.log.read(before + cancel.size)).flags & FLAG_MORE
    engine = await getattr(world, start)()
    assert engine.control.get(ConfigTable.KAFKA_INLET, "a/0") == 7
    assert (await engine.messages.get(message_id)).state is State.RECALLED


async def test_a_recall_that_comes_too_late_stores_no_settings(world):
    engine = await world.open()
    [message_id] = await world.send_ids(1_000)
    await world.advance(1_000)
    with pytest.raises(AlreadyDeliveredError):
        await engine.recalls.recall(message_id, puts=[Put(ConfigTable.KAFKA_INLET, "a/0", 7)])
    assert engine.control.get(ConfigTable.KAFKA_INLET, "a/0") is None
