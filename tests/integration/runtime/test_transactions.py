"""Transactions: a half message is delivered once, if it is committed, and never otherwise."""

import asyncio
import random

import orjson
import pytest

from tests.harness.columns import send_in_columns
from tests.harness.drive import settle
from timerwheel.errors import (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    CongestedError,
    NoOpenTransactionError,
    OpenTransactionError,
    RefusedError,
    UnknownMessageError,
)
from timerwheel.model.admission import ENVELOPE_PROPERTY, HALF_DUE_MS
from timerwheel.model.ids import root_of
from timerwheel.model.messages import Outgoing, State
from timerwheel.runtime import transactions
from timerwheel.runtime.recall_filter import RecallFilter
from timerwheel.store.errors import NoSpaceError
from timerwheel.store.record import decode
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import DAY_MS, Level

TIMEOUT_MS, INTERVAL_MS = 6_000, 30_000
YEAR_MS = 365 * 86_400_000
HOWS = ["restart", "crash", "lose_index"]


async def test_a_page_looks_at_a_bounded_number_of_transactions(world, monkeypatch):
    monkeypatch.setattr(transactions, "LOOKED_AT_MAX", 3)
    engine = await world.open()
    begun = [await begin(world, topic=topic) for topic in ("a", "b", "b", "b", "a", "b", "a")]
    found, pages, cursor = [], 0, None
    while pages == 0 or cursor is not None:
        page = engine.transactions.page(lambda topic: topic == "a", cursor=cursor)
        found += [one.id for one in page.transactions]
        pages, cursor = pages + 1, page.cursor
    assert (found, pages) == ([begun[0], begun[4], begun[6]], 3)
    first = engine.transactions.page(limit=1)
    await engine.transactions.rollback(begun[0])  # the cursor names one that has ended
    assert engine.transactions.page(limit=1, cursor=first.cursor).transactions[0].id == begun[1]


async def test_transactions_that_have_ended_leave_nothing_in_the_wheel(world, monkeypatch):
    monkeypatch.setattr(slot_table, "COMPACTED_MIN", 20)
    engine = await world.open()
    for turn in range(6):
        halves = [await begin(world) for _ in range(10)]
        await engine.indexer.commit()
        end = engine.transactions.commit if turn % 2 else engine.transactions.rollback
        for half in halves[turn:]:
            await end(half)
        await settle(engine)
        await engine.indexer.commit()
        await engine.indexer.tick()
        await engine.indexer.tick()
    with engine.core.index.read() as txn:
        left = slot_table.slot_entries(txn, Level.DAY, HALF_DUE_MS // DAY_MS * DAY_MS)
    assert len(left) <= 3 * 15 + 2 * 20
    assert sorted(opened(world)) == sorted(one.id for one in (await engine.messages.pending()).messages)
    assert len(opened(world)) == 15


async def test_limits_that_were_lowered_do_not_count_at_the_commit(world):
    engine = await world.open(max_delay_ms=10_000, properties_max=5)
    many = {f"p{number}": "x" for number in range(5)}
    half = (await engine.transactions.begin(Outgoing("orders", b"x", many | {"TIMER_DELAY_MS": "9000"}))).id
    engine = await world.restart(max_delay_ms=1_000, properties_max=2)
    receipt = await engine.transactions.commit(half)
    assert receipt.due_ms == world.clock.now_ms() + 9_000
    await world.advance(9_000)
    [message] = await world.delivered()
    assert message.properties.items() >= many.items()


async def begin(world, body=b"x", topic="orders", queue=None, **properties):
    message = Outgoing(topic, body, properties, queue=queue)
    return (await world.engine.transactions.begin(message)).id


def opened(world):
    return [one.id for one in world.engine.transactions.page().transactions]


@pytest.mark.parametrize("how", HOWS)
async def test_a_half_message_is_delivered_when_it_is_committed_and_not_before(world, how):
    await world.open()
    half = await begin(world, KEYS="k", TRAN_MSG="true")
    assert opened(world) == [half]
    engine = await getattr(world, how)()
    await world.advance(TIMEOUT_MS)
    assert await world.delivered() == []
    assert opened(world) == [half]
    receipt = await engine.transactions.commit(half)
    assert (receipt.id, receipt.state, receipt.due_ms) == (half, State.DELIVERED, world.clock.now_ms())
    engine = await getattr(world, how)()
    [message] = await world.delivered()
    assert (message.id, message.body, message.properties["KEYS"]) == (half, b"x", "k")
    assert "TRAN_MSG" not in message.properties
    assert opened(world) == []


@pytest.mark.parametrize("how", HOWS)
async def test_the_delay_counts_from_the_commit(world, how):
    engine = await world.open()
    by_ms = await begin(world, TIMER_DELAY_MS="5000")
    by_level = await begin(world, DELAY="3")
    await world.advance(60_000)
    receipt = await engine.transactions.commit(by_ms)
    assert (receipt.due_ms, receipt.state) == (world.clock.now_ms() + 5_000, State.SCHEDULED)
    assert (await engine.transactions.commit(by_level)).due_ms == world.clock.now_ms() + 10_000
    assert (await engine.messages.get(by_level)).level == 3
    await getattr(world, how)()
    await world.advance(4_999)
    assert await world.delivered_ids() == []
    await world.advance(1)
    assert await world.delivered_ids() == [by_ms]
    await world.advance(5_000)
    assert await world.delivered_ids() == [by_ms, by_level]
    for message in await world.delivered():
        assert not message.properties.keys() & {"DELAY", "TIMER_DELAY_MS"}


async def test_a_time_that_has_passed_at_the_commit_is_now(world):
    engine = await world.open()
    half = await begin(world, TIMER_DELIVER_MS=str(world.clock.now_ms() + 1_000))
    await world.advance(2_000)
    assert (await engine.transactions.commit(half)).state is State.DELIVERED


@pytest.mark.parametrize("how", HOWS)
async def test_a_transaction_that_is_rolled_back_is_never_delivered(world, how):
    engine = await world.open()
    half = await begin(world)
    assert (await engine.transactions.rollback(half)).state is State.RECALLED
    engine = await getattr(world, how)()
    with pytest.raises(AlreadyRecalledError):
        await engine.transactions.commit(half)
    await world.advance(400 * YEAR_MS)
    assert await world.delivered() == []
    assert opened(world) == []


async def test_each_transaction_ends_once_and_a_repeat_is_told_how(world):
    engine = await world.open()
    at_once, later = await begin(world), await begin(world, TIMER_DELAY_MS="5000")
    for half in (at_once, later):
        await engine.transactions.commit(half)
    for call in (engine.transactions.commit, engine.transactions.rollback):
        with pytest.raises(AlreadyDeliveredError):
            await call(at_once)
        with pytest.raises(NoOpenTransactionError):
            await call(later)
        with pytest.raises(UnknownMessageError):
            await call("0" * 24)
    await world.advance(5_000)
    assert sorted(await world.delivered_ids()) == sorted([at_once, later])


async def test_of_ends_that_race_one_wins(world):
    engine = await world.open()
    for _ in range(20):
        half = await begin(world)
        calls = [engine.transactions.commit, engine.transactions.rollback] * 2
        random.shuffle(calls)
        results = await asyncio.gather(*(call(half) for call in calls), return_exceptions=True)
        assert sum(not isinstance(one, Exception) for one in results) == 1
        delivered = half in await world.delivered_ids()
        assert delivered == ((await engine.messages.get(half)).state is State.DELIVERED)


async def test_only_its_commit_gives_an_open_transaction_a_due_time(world):
    engine = await world.open()
    half = await begin(world)
    with pytest.raises(OpenTransactionError):
        await engine.recalls.reschedule(half, {"TIMER_DELAY_MS": "5"})
    with pytest.raises(OpenTransactionError):
        await engine.recalls.recall(half)
    [scheduled] = await world.send_ids(5_000)
    for call in (engine.transactions.commit, engine.transactions.rollback):
        with pytest.raises(NoOpenTransactionError):
            await call(scheduled)
    await engine.transactions.commit(half)
    await world.advance(5_000)
    assert await world.delivered_ids() == [half, scheduled]


async def test_what_a_send_would_refuse_is_not_begun(world):
    engine = await world.open(topics_max=1, body_bytes_max=3)
    await world.send(0)
    tail = engine.core.log.tail
    for message, code in (
        (Outgoing("no good", b""), "illegal_topic"),
        (Outgoing("%RETRY%g", b""), "system_topic"),
        (Outgoing("orders", b"1234"), "body_too_large"),
        (Outgoing("orders", b"", {"DELAY": "-1"}), "illegal_delay"),
        (Outgoing("orders", b"", after_ms=2**62), "delay_too_long"),
        (Outgoing("orders", b"", queue=1), "illegal_queue"),
        (Outgoing("orders", b"", dedup_key="k"), "transactional"),
        (Outgoing("second", b""), "too_many_topics"),
    ):
        with pytest.raises(RefusedError) as caught:
            await engine.transactions.begin(message)
        assert caught.value.faults[0].code == code
    assert engine.core.log.tail == tail
    for refused in (engine.sender.send, lambda sent: send_in_columns(engine, sent)):
        with pytest.raises(RefusedError, match="begin a transaction"):
            await refused([Outgoing("orders", b"", {"TRAN_MSG": "true"})])


async def test_the_sender_of_an_open_transaction_is_asked_until_it_is_ended(world):
    engine = await world.open(transaction_checks_max=3)
    asked = []
    engine.transactions.on_check.append(lambda half, check: asked.append((half.message_id, check)) or True)
    half, other = await begin(world, PGROUP="p"), await begin(world)
    await engine.transactions.commit(other)
    await world.advance(TIMEOUT_MS - 1_000)
    assert asked == []
    await world.advance(1_000)
    assert asked == [(half, 1)]
    [one] = engine.transactions.page().transactions
    assert (one.topic, one.checks, one.next_check_ms) == ("orders", 1, world.clock.now_ms() + INTERVAL_MS)
    for check in (2, 3):
        await world.advance(INTERVAL_MS)
        assert asked[-1] == (half, check)
    assert (await engine.messages.get(half)).state is State.SCHEDULED
    await world.advance(INTERVAL_MS)
    assert (await engine.messages.get(half)).state is State.RECALLED
    assert (len(asked), opened(world)) == (3, [])


async def test_a_check_does_not_count_while_a_protocol_knows_the_sender_and_cannot_ask_it(world):
    engine = await world.open(transaction_checks_max=1)
    is_there = False
    engine.transactions.on_check.append(lambda *_: True)  # of another protocol
    engine.transactions.on_check.append(lambda *_: is_there)
    half = await begin(world)
    await world.advance(TIMEOUT_MS)
    for _ in range(3):
        await world.advance(INTERVAL_MS)
    assert [(one.id, one.checks) for one in engine.transactions.page().transactions] == [(half, 0)]
    is_there = True
    await world.advance(INTERVAL_MS)
    assert [(one.id, one.checks) for one in engine.transactions.page().transactions] == [(half, 1)]
    await world.advance(INTERVAL_MS)
    assert opened(world) == []


async def test_an_open_transaction_is_found_by_the_offset_of_its_half_message(world):
    engine = await world.open()
    half = await begin(world)
    assert engine.transactions.open_at(root_of(half)).id == half
    assert engine.transactions.open_at(root_of(half) + 8) is None
    await engine.transactions.commit(half)
    assert engine.transactions.open_at(root_of(half)) is None


async def test_what_another_protocol_keeps_with_a_half_message_counts_for_no_limit(world):
    engine = await world.open(properties_max=1)
    message = Outgoing("orders", b"x", {"KEYS": "k"}, envelope="1 10.0.0.7 40001")
    half = (await engine.transactions.begin(message)).id
    await engine.transactions.commit(half)
    page = await engine.queues.records("orders", 0, 0, 1)
    assert orjson.loads(decode(page.records[0]).properties) == {
        "KEYS": "k",
        ENVELOPE_PROPERTY: "1 10.0.0.7 40001",
    }


async def test_a_check_that_fails_ends_no_other(world):
    engine = await world.open()
    asked = []

    def on_check(half, _):
        asked.append(half.message_id)
        if half.message_id == asked[0]:
            raise ConnectionError("the producer is gone")
        return True

    engine.transactions.on_check.append(on_check)
    halves = [await begin(world), await begin(world)]
    await world.advance(TIMEOUT_MS)
    await world.advance(INTERVAL_MS)
    assert asked == halves * 2


async def test_a_start_counts_checks_from_0_so_an_outage_drops_nothing(world):
    engine = await world.open(transaction_checks_max=2)
    half = await begin(world)
    await world.advance(TIMEOUT_MS)
    await world.advance(INTERVAL_MS)
    await engine.close()
    world.clock.advance(YEAR_MS)
    engine = await world.open()
    asked = []
    assert [(one.id, one.checks) for one in engine.transactions.page().transactions] == [(half, 0)]
    engine.transactions.on_check.append(lambda _, check: asked.append(check) or True)
    await world.advance(TIMEOUT_MS)
    assert asked == [1]
    assert (await engine.transactions.commit(half)).state is State.DELIVERED


async def test_recalls_of_many_leave_open_transactions_alone(world):
    engine = await world.open()
    half = await begin(world)
    [scheduled] = await world.send_ids(5_000)
    [result] = await engine.bulk_recalls.recall_many([half])
    assert (result.code, result.state) == ("open_transaction", State.SCHEDULED)
    count = await engine.bulk_recalls.recall_where(RecallFilter(topic="orders"))
    assert (count.matched, count.recalled) == (1, 1)
    assert (await engine.messages.get(scheduled)).state is State.RECALLED
    assert opened(world) == [half]
    assert (await engine.messages.wheel()).next_due_ms is None


async def test_the_slot_limit_counts_at_the_commit(world):
    engine = await world.open(slot_messages_max=2)
    halves = [await begin(world, TIMER_DELAY_MS="5000") for _ in range(4)]
    for half in halves[:2]:
        await engine.transactions.commit(half)
    with pytest.raises(CongestedError):
        await engine.transactions.commit(halves[2])
    assert opened(world) == halves[2:]
    await world.advance(1_000)
    await engine.transactions.commit(halves[2])


async def test_on_a_full_disk_a_transaction_stays_open_and_is_committed_later(world):
    engine = await world.open()
    half = await begin(world)
    world.files.space_bytes = 0
    with pytest.raises(NoSpaceError):
        await engine.transactions.commit(half)
    with pytest.raises(NoSpaceError):
        await begin(world)
    world.files.space_bytes = 1 << 40
    assert opened(world) == [half]
    assert (await engine.transactions.commit(half)).id == half


async def test_retention_keeps_what_is_open_and_its_id(world):
    engine = await world.open(retention_ms=1_000)
    half = await begin(world, queue=0)
    await world.roll()
    await world.advance(5_000)
    await world.roll()
    await world.retention_turn()
    engine = await world.lose_index()
    assert opened(world) == [half]
    assert (await engine.transactions.commit(half)).id == half
    assert await world.delivered_ids() == [half]
