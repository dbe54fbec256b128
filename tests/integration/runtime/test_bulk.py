"""Recall in bulk: each answer is as true as that of a single recall, and firing goes on beside it."""

import asyncio
import random
from collections import Counter

import numpy as np
import pytest

from tests.harness.drive import settle, turns_between
from tests.harness.held import open_held
from tests.harness.racing import Race
from timerwheel.errors import NotReadyError, RefusedError
from timerwheel.groups.config import GroupTerms
from timerwheel.index import lookups
from timerwheel.index.lookups import Window
from timerwheel.model.messages import Outgoing, State
from timerwheel.model.tags import IllegalFilterError
from timerwheel.runtime.bulk_changes import shifted
from timerwheel.runtime.bulk_recall import PART_MESSAGES
from timerwheel.runtime.recall_filter import RecallCount, RecallFilter, RecallResult
from timerwheel.state.groups import group_topic
from timerwheel.store.errors import NoSpaceError
from timerwheel.store.index import Index
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import Horizons
from timerwheel.wheel.slot_table import ENTRY_DTYPE

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FORGED = ["0" * 24, "f" * 24, "not an id", ""]


def codes(results):
    return [result.code for result in results]


async def send_tagged(world, tags, delay_ms=HOUR_MS, topic="orders", **more):
    messages = [Outgoing(topic, b"x", {"TIMER_DELAY_MS": str(delay_ms), "TAGS": t} | more) for t in tags]
    return [receipt.id for receipt in await world.engine.sender.send(messages)]


async def schedule_own(engine, topic="%TASK%mail", delay_ms=HOUR_MS, **properties):
    """Schedule a message of the service itself."""
    own = Outgoing(topic, b"x", {"TIMER_DELAY_MS": str(delay_ms)} | properties, to_reserved=True)
    [receipt] = await engine.sender.send([own])
    return receipt.id


# ---------------------------------------------------------------------- by id


@pytest.mark.parametrize("start", [None, "restart", "crash", "lose_index"])
async def test_each_id_gets_its_true_answer_in_the_order_given(world, start):
    engine = await world.open()
    delivered, near, far, before, moved = await world.send_ids(1_000, 2_500, 50 * DAY_MS, HOUR_MS, HOUR_MS)
    [at_once] = await world.send_ids(0)
    await engine.recalls.recall(before)
    await engine.recalls.reschedule(moved, {"TIMER_DELAY_MS": str(2 * HOUR_MS)})
    await world.advance(1_000)
    if start is not None:
        engine = await getattr(world, start)()
    ids = [far, delivered, FORGED[0], near, far, before, at_once, moved, *FORGED[1:], delivered]
    results = await engine.bulk_recalls.recall_many(ids)
    assert [result.id for result in results] == ids
    assert results[0] == RecallResult(far, None, State.RECALLED)
    assert codes(results) == [
        *(None, "already_delivered", "unknown_message", None, "already_recalled", "already_recalled"),
        *("already_delivered", None, *["unknown_message"] * 3, "already_delivered"),
    ]
    assert results[1].state is State.DELIVERED
    assert results[2].state is None
    assert await world.pending_ids() == []
    assert set(codes(await engine.bulk_recalls.recall_many([far, near, moved]))) == {"already_recalled"}
    await world.advance(100 * DAY_MS)
    assert set(await world.delivered_ids()) == {delivered, at_once}


async def test_bulk_and_single_recall_leave_the_same_log_and_the_same_messages(world):
    engine = await world.open()
    one, other = await world.send_ids(HOUR_MS, HOUR_MS, body=b"kept")
    before = engine.core.log.tail
    await engine.recalls.recall(one)
    single = engine.core.log.read(before)
    before = engine.core.log.tail
    await engine.bulk_recalls.recall_many([other])
    bulk = engine.core.log.read(before)
    assert len(single) == len(bulk)
    assert single[8:28] == bulk[8:28]
    views = [await engine.messages.get(one), await engine.messages.get(other)]
    assert [(v.state, v.body, v.recalled_ms) for v in views] == [
        (State.RECALLED, b"kept", world.clock.now_ms())
    ] * 2


async def test_thousands_of_scattered_ids_are_recalled_and_stay_so(world):
    engine = await world.open(batch_bytes_max=1 << 20, segment_size_bytes=1 << 16, index_records_max=5_000)
    rng = random.Random(7)
    ids = []
    for _ in range(6):
        ids += await world.send_ids(*[rng.randrange(1_000, 40 * DAY_MS) for _ in range(500)])
    chosen = rng.sample(ids, 2 * PART_MESSAGES + 100)
    assert codes(await engine.bulk_recalls.recall_many(chosen)) == [None] * len(chosen)
    left = set(ids) - set(chosen)
    assert set(await world.pending_ids()) == left
    engine = await world.lose_index()
    assert set(await world.pending_ids()) == left
    assert set(codes(await engine.bulk_recalls.recall_many(chosen))) == {"already_recalled"}


async def test_more_ids_than_a_request_may_have_are_refused_whole(world):
    engine = await world.open(messages_per_request_max=3)
    ids = await world.send_ids(*[HOUR_MS] * 3)
    with pytest.raises(RefusedError) as refused:
        await engine.bulk_recalls.recall_many([*ids, ids[0]])
    assert refused.value.faults[0].code == "too_many_messages"
    assert len(await world.pending_ids()) == 3
    assert await engine.bulk_recalls.recall_many([]) == []


async def test_without_space_nothing_is_recalled_and_what_waited_still_waits(world):
    engine = await world.open()
    ids = await world.send_ids(*[1_500] * 20, *[HOUR_MS] * 20)
    world.files.space_bytes = 0
    with pytest.raises(NoSpaceError):
        await engine.bulk_recalls.recall_many(ids)
    assert sorted(await world.pending_ids()) == sorted(ids)
    world.files.space_bytes = 1 << 40
    assert codes(await engine.bulk_recalls.recall_many(ids[1:])) == [None] * 39
    await world.advance(HOUR_MS)
    assert await world.delivered_ids() == ids[:1]


async def test_a_part_without_space_says_so_and_its_messages_wait_on(world):
    engine = await world.open()
    ids = await world.send_ids(*[HOUR_MS] * 60)
    await engine.indexer.commit()
    world.files.space_bytes = 4_000
    results = await engine.bulk_recalls.recall_many(ids)
    recalled = [result.id for result in results if result.code is None]
    refused = [result.id for result in results if result.code == "no_space"]
    assert recalled
    assert refused
    assert sorted(recalled + refused) == sorted(ids)
    assert {result.state for result in results if result.code} == {State.SCHEDULED}
    world.files.space_bytes = 1 << 40
    assert sorted(await world.pending_ids()) == sorted(refused)


async def test_single_and_bulk_recalls_of_the_same_ids_recall_each_once(world):
    engine = await world.open()
    ids = await world.send_ids(*[1_000] * 15, *[HOUR_MS] * 15)
    bulks = [engine.bulk_recalls.recall_many(random.Random(n).sample(ids, len(ids))) for n in range(4)]
    singles = [engine.recalls.recall(message_id) for message_id in ids[::3]]
    answers = await asyncio.gather(*bulks, *singles, return_exceptions=True)
    won = [result.id for answer in answers[:4] for result in answer if result.code is None]
    won += [answer.id for answer in answers[4:] if not isinstance(answer, Exception)]
    assert sorted(won) == sorted(ids)
    others = {result.code for answer in answers[:4] for result in answer if result.code is not None}
    assert others == {"already_recalled"}


async def test_a_caller_that_goes_away_leaves_every_message_whole(world):
    engine = await world.open()
    ids = await world.send_ids(*[1_000] * 60)
    for spins in range(12):
        task = asyncio.create_task(engine.bulk_recalls.recall_many(ids[spins * 5 : spins * 5 + 5]))
        for _ in range(spins):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await settle(engine)
    waiting = await world.pending_ids()
    await world.advance(1_000)
    assert sorted(await world.delivered_ids()) == sorted(waiting)
    states = [(await engine.messages.get(message_id)).state for message_id in ids]
    assert states.count(State.RECALLED) == 60 - len(waiting)


async def test_a_damaged_message_says_so_and_stops_none_of_the_others(world):
    engine = await world.open(segment_size_bytes=1 << 16)
    ids = await world.send_ids(*[HOUR_MS] * 5, body=b"b" * 200)
    offset = int(ids[2][:16], 16)
    [base] = engine.core.log.bases
    world.files.names_now[str(engine.core.log.path(base))].data[offset - base + 200] ^= 0xFF
    assert codes(await engine.bulk_recalls.recall_many(ids)) == [None, None, "corruption", None, None]
    assert await engine.bulk_recalls.recall_where(RecallFilter(topic="orders")) == RecallCount(1, 0, 1)


async def test_bulk_recall_is_refused_by_an_engine_that_is_not_ready(world):
    engine = await world.open()
    ids = await world.send_ids(HOUR_MS)
    await engine.close()
    with pytest.raises(NotReadyError):
        await engine.bulk_recalls.recall_many(ids)
    with pytest.raises(NotReadyError):
        await engine.bulk_recalls.recall_where(RecallFilter(topic="orders"))


# ---------------------------------------------------------------------- by condition


@pytest.mark.parametrize("start", [None, "commit", "restart", "lose_index"])
async def test_a_condition_recalls_what_it_matches_and_nothing_else(world, start):
    engine = await world.open()
    delays = [500, 1_999, 70_000, 2 * HOUR_MS, 3 * DAY_MS, 400 * DAY_MS]
    orders = await world.send_ids(*delays)
    tickets = await world.send_ids(*delays, topic="tickets")
    if start == "commit":
        await engine.indexer.commit()
    elif start is not None:
        engine = await getattr(world, start)()
    now_ms = world.clock.now_ms()
    between = RecallFilter(topic="orders", due_from_ms=now_ms + 1_999, due_to_ms=now_ms + 3 * DAY_MS)
    assert await engine.bulk_recalls.recall_where(between, dry_run=True) == RecallCount(3, 0, 0)
    assert len(await world.pending_ids()) == 12
    assert await engine.bulk_recalls.recall_where(between) == RecallCount(3, 3, 0)
    assert await engine.bulk_recalls.recall_where(between) == RecallCount(0, 0, 0)
    assert set(await world.pending_ids()) == {orders[0], orders[4], orders[5], *tickets}
    assert await engine.bulk_recalls.recall_where(
        RecallFilter(due_from_ms=now_ms + 3 * DAY_MS)
    ) == RecallCount(4, 4, 0)
    await world.advance(500 * DAY_MS)
    assert await world.delivered_ids() == [orders[0]]
    assert await world.delivered_ids("tickets") == tickets[:4]


async def test_tags_and_key_prefixes_choose_by_what_the_message_says(world):
    engine = await world.open()
    a, _b, none = await send_tagged(world, ["a", "b", ""])
    await send_tagged(world, ["a"], topic="tickets")
    condition = RecallFilter(topic="orders", tag="a || c")
    assert await engine.bulk_recalls.recall_where(condition, dry_run=True) == RecallCount(1, 0, 0)
    assert await engine.bulk_recalls.recall_where(condition) == RecallCount(1, 1, 0)
    assert (await engine.messages.get(a)).state is State.RECALLED
    delay = {"TIMER_DELAY_MS": "5000"}
    keyed = [
        Outgoing("orders", b"1", delay, dedup_key="user-7/1"),
        Outgoing("orders", b"2", delay, dedup_key="user-8/1"),
        Outgoing("orders", b"3", delay | {"KEYS": "x user-7"}),
        Outgoing("orders", b"4", delay | {"KEYS": "xuser-7"}),
    ]
    ids = [receipt.id for receipt in await engine.sender.send(keyed)]
    assert await engine.bulk_recalls.recall_where(RecallFilter(key_prefix="user-7")) == RecallCount(2, 2, 0)
    states = [(await engine.messages.get(message_id)).state for message_id in [*ids, none]]
    recalled, waits = State.RECALLED, State.SCHEDULED
    assert states == [recalled, waits, recalled, waits, waits]


@pytest.mark.parametrize(
    "condition",
    [
        RecallFilter(),
        RecallFilter(tag="*"),
        RecallFilter(tag="a ||"),
        RecallFilter(key_prefix=""),
        RecallFilter(topic="orders", tag=""),
        RecallFilter(topic="orders", tag=" "),
        RecallFilter(topic="orders", key_prefix=""),
    ],
)
async def test_a_condition_that_names_nothing_is_refused(world, condition):
    engine = await world.open()
    await world.send(HOUR_MS)
    with pytest.raises(IllegalFilterError):
        await engine.bulk_recalls.recall_where(condition)
    assert len(await world.pending_ids()) == 1


async def test_an_unknown_topic_matches_nothing(world):
    engine = await world.open()
    await world.send(HOUR_MS)
    assert await engine.bulk_recalls.recall_where(RecallFilter(topic="other")) == RecallCount(0, 0, 0)


async def test_a_level_topic_chooses_level_messages(world):
    engine = await world.open()
    await world.send(HOUR_MS)
    await engine.sender.send([Outgoing("orders", b"", {"DELAY": "10"})] * 3)
    assert await engine.bulk_recalls.recall_where(RecallFilter(topic="SCHEDULE_TOPIC_XXXX")) == RecallCount(
        3, 3, 0
    )
    assert sum(level.pending for level in await engine.messages.levels()) == 0


async def test_rescheduled_and_moved_messages_are_met_once(world):
    engine = await world.open(retention_ms=1_000)
    ids = await world.send_ids(*[30 * DAY_MS] * 20)
    for message_id in ids[:10]:
        await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": str(40 * DAY_MS)})
    await world.roll()
    await world.advance(HOUR_MS)
    await world.retention_turn()
    assert await engine.bulk_recalls.recall_where(RecallFilter(topic="orders"), dry_run=True) == RecallCount(
        20, 0, 0
    )
    assert await engine.bulk_recalls.recall_where(RecallFilter(topic="orders")) == RecallCount(20, 20, 0)
    await world.advance(50 * DAY_MS)
    assert await world.delivered_ids() == []


async def test_a_sweep_over_many_slots_in_many_steps_misses_none_while_slots_cascade(world, monkeypatch):
    monkeypatch.setattr("timerwheel.runtime.bulk_recall.STEP_ROWS", 3)
    engine = await world.open()
    rng = random.Random(11)
    ids = await world.send_ids(*[rng.randrange(3 * HOUR_MS, 60 * HOUR_MS) for _ in range(400)])
    kept = await world.send_ids(*[rng.randrange(3 * HOUR_MS, 60 * HOUR_MS) for _ in range(50)], topic="kept")
    await engine.indexer.commit()
    sweep = asyncio.create_task(engine.bulk_recalls.recall_where(RecallFilter(topic="orders")))
    fired = 0
    while not sweep.done():
        world.clock.advance(1_200_000)
        for _ in range(8):
            await asyncio.sleep(0)
        fired += 1
    count = await sweep
    await settle(engine)
    assert fired > 3
    delivered = set(await world.delivered_ids())
    assert count.recalled == len(ids) - len(delivered)
    assert count.matched == count.recalled + count.missed
    recalled = [i for i in ids if (await engine.messages.get(i)).state is State.RECALLED]
    assert len(recalled) == count.recalled
    assert delivered == set(ids) - set(recalled)
    await world.advance(100 * HOUR_MS)
    assert sorted(await world.delivered_ids("kept")) == sorted(kept)


async def test_what_arrives_while_a_sweep_runs_is_left_alone(world):
    engine = await world.open()
    await world.send(*[HOUR_MS] * 30)
    sweep = asyncio.create_task(engine.bulk_recalls.recall_where(RecallFilter(topic="orders")))
    await asyncio.sleep(0)
    late = []
    while not sweep.done():
        late += await world.send_ids(HOUR_MS)
    assert await sweep == RecallCount(30, 30, 0)
    assert await world.pending_ids() == late


async def test_a_cancelled_sweep_stops_between_parts_and_lets_the_next_one_in(world):
    engine = await world.open()
    ids = await world.send_ids(*[HOUR_MS] * 200)
    sweep = asyncio.create_task(engine.bulk_recalls.recall_where(RecallFilter(topic="orders")))
    waiting = asyncio.create_task(
        engine.bulk_recalls.recall_where(RecallFilter(topic="orders"), dry_run=True)
    )
    for _ in range(12):
        await asyncio.sleep(0)
    assert not waiting.done()
    sweep.cancel()
    await asyncio.gather(sweep, return_exceptions=True)
    count = await waiting
    left = await world.pending_ids()
    assert count == RecallCount(len(left), 0, 0)
    assert 0 < len(left) < 200
    await settle(engine)
    assert await engine.bulk_recalls.recall_where(RecallFilter(topic="orders")) == RecallCount(
        len(left), len(left), 0
    )
    await world.advance(HOUR_MS)
    assert await world.delivered_ids() == []
    assert {(await engine.messages.get(message_id)).state for message_id in ids} == {State.RECALLED}


async def test_a_sweep_without_space_says_so_and_can_be_repeated(world):
    engine = await world.open()
    await world.send(*[1_500] * 30, *[HOUR_MS] * 30)
    await engine.indexer.commit()
    world.files.space_bytes = 3_000
    with pytest.raises(NoSpaceError):
        await engine.bulk_recalls.recall_where(RecallFilter(topic="orders"))
    world.files.space_bytes = 1 << 40
    await settle(engine)
    left = len(await world.pending_ids())
    assert 0 < left < 60
    assert await engine.bulk_recalls.recall_where(RecallFilter(topic="orders")) == RecallCount(left, left, 0)
    await world.advance(HOUR_MS)
    assert await world.delivered_ids() == []


async def test_ten_thousand_in_one_slot_are_swept_in_bounded_steps(world, monkeypatch):
    monkeypatch.setattr("timerwheel.runtime.bulk_recall.STEP_ROWS", 2_048)
    limits = {"batch_bytes_max": 1 << 20, "segment_size_bytes": 1 << 20, "index_records_max": 2_500}
    threads = await open_held(world, **limits)
    engine = world.engine
    for topic in ("orders", "tickets"):
        for _ in range(5):
            await world.send(*[90 * DAY_MS] * 1_000, topic=topic)
        await engine.indexer.commit()
    sizes = []

    async def measure(found):
        sizes.append(len(found[0]))

    threads.see("_walk", measure)
    assert await engine.bulk_recalls.recall_where(RecallFilter(topic="tickets")) == RecallCount(
        5_000, 5_000, 0
    )
    assert max(sizes) <= 2 * 2_048
    assert engine.queues.topic("orders").pending == 5_000
    assert engine.queues.topic("tickets").pending == 0


async def test_records_of_groups_are_never_matched(world):
    engine = await world.open()
    await world.send(0)
    [lease] = await engine.groups.receive("orders", "g", invisible_ms=HOUR_MS, terms=GroupTerms(create=True))
    leases = group_topic("orders", "g")
    assert leases in engine.core.state.topics
    now_ms = world.clock.now_ms()
    for start in (None, engine.indexer.commit):
        if start is not None:
            await start()
        for condition in (RecallFilter(topic=leases), RecallFilter(due_from_ms=now_ms)):
            assert await engine.bulk_recalls.recall_where(condition) == RecallCount(0, 0, 0)
    [answer] = await engine.groups.ack("orders", "g", [lease.receipt])
    assert answer.ok


async def test_a_walk_through_the_wheel_meets_what_pending_lists(world):
    engine = await world.open()
    rng = random.Random(3)
    ids = await world.send_ids(
        *[rng.choice([900, 5_000, 90_000, HOUR_MS * 5, DAY_MS * 9]) for _ in range(90)]
    )
    await engine.bulk_recalls.recall_many(ids[::7])
    await engine.indexer.commit()
    page = await engine.messages.pending(limit=1000)
    dues = [message.due_ms for message in page.messages]
    for low, high in ((0, len(dues) - 1), (10, 20), (45, 46)):
        from_ms, to_ms = dues[low], dues[high] + 1
        condition = RecallFilter(due_from_ms=from_ms, due_to_ms=to_ms)
        count = sum(from_ms <= due < to_ms for due in dues)
        assert await engine.bulk_recalls.recall_where(condition, dry_run=True) == RecallCount(count, 0, 0)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("near", [False, True])
async def test_what_changes_while_records_are_read_is_looked_at_again(world, near, committed):
    threads = await open_held(world)
    engine = world.engine
    one, two, three = await world.send_ids(*[1_500 if near else HOUR_MS] * 3)

    async def change(_):
        await engine.recalls.recall(one)
        await engine.recalls.reschedule(two, {"TIMER_DELAY_MS": str(2 * HOUR_MS)})
        if committed:
            await engine.indexer.commit()

    threads.see_once("_read_ids", change)
    assert codes(await engine.bulk_recalls.recall_many([one, two, three])) == ["already_recalled", None, None]
    assert engine.queues.topic("orders").pending == 0
    [four, five] = await world.send_ids(*[1_500 if near else HOUR_MS] * 2)

    async def recall_four(_):
        await engine.recalls.recall(four)
        if committed:
            await engine.indexer.commit()

    threads.see_once("_read_matching", recall_four)
    assert await engine.bulk_recalls.recall_where(RecallFilter(topic="orders")) == RecallCount(1, 1, 0)
    assert (await engine.messages.get(four)).state is State.RECALLED
    assert (await engine.messages.get(five)).state is State.RECALLED
    assert engine.queues.topic("orders").pending == 0


@pytest.mark.parametrize("spins", range(6))
@pytest.mark.parametrize("delay_ms", [1_500, HOUR_MS])
async def test_a_sweep_and_single_recalls_end_each_message_once(world, delay_ms, spins):
    engine = await world.open()
    ids = await world.send_ids(*[delay_ms] * 40)
    singles = [asyncio.create_task(engine.recalls.recall(message_id)) for message_id in ids[::2]]
    for _ in range(spins):
        await asyncio.sleep(0)
    count = await engine.bulk_recalls.recall_where(RecallFilter(topic="orders"))
    answers = await asyncio.gather(*singles, return_exceptions=True)
    won = sum(not isinstance(answer, Exception) for answer in answers)
    assert count.missed == 0
    assert count.recalled + won == 40
    assert engine.queues.topic("orders").pending == 0
    await world.advance(HOUR_MS)
    assert await world.delivered_ids() == []


async def test_due_messages_that_could_not_be_written_are_recalled_and_not_missed(world):
    engine = await world.open()
    await world.send(*[1_000] * 5)
    world.files.space_bytes = 0
    world.clock.advance(1_000)
    while not engine.core.in_flight:
        await asyncio.sleep(0)
    sweep = asyncio.create_task(engine.bulk_recalls.recall_where(RecallFilter(topic="orders")))
    while not engine.firing.retries:
        await asyncio.sleep(0)
    world.files.space_bytes = 1 << 40
    assert await sweep == RecallCount(5, 5, 0)
    await world.advance(1_000)
    assert await world.delivered_ids() == []


@pytest.mark.parametrize("dry_run", [True, False])
async def test_what_the_index_takes_over_or_receives_in_between_is_not_counted(world, dry_run):
    threads = await open_held(world)
    engine = world.engine
    await world.send(*[HOUR_MS] * 20, *[9 * DAY_MS] * 20)
    late = []

    async def take_over(_):
        late.extend(await world.send_ids(HOUR_MS, 9 * DAY_MS))
        await engine.indexer.commit()

    threads.see_once("_staged", take_over)
    count = await engine.bulk_recalls.recall_where(RecallFilter(topic="orders"), dry_run=dry_run)
    assert count == RecallCount(40, 0 if dry_run else 40, 0)
    assert late
    assert set(late) <= set(await world.pending_ids())


@pytest.mark.parametrize("rows_max", [1, 3, 1_000])
async def test_a_walk_meets_every_level_of_a_slot_that_is_being_cascaded(tmp_path, rows_max):
    index = Index(tmp_path / "index", 1 << 24)
    day_ms = 20_000 * DAY_MS
    dues = [day_ms + step for step in (0, 1, 61_000, 3 * HOUR_MS, 5 * HOUR_MS, 23 * HOUR_MS)]
    dues += [due + DAY_MS for due in dues]
    reach = [
        Horizons(0, 0, 0),
        Horizons(0, 0, day_ms + DAY_MS),
        Horizons(0, day_ms + 4 * HOUR_MS, day_ms + DAY_MS),
        Horizons(day_ms + HOUR_MS, day_ms + 4 * HOUR_MS, day_ms + DAY_MS),
    ]
    sequence = 0
    with index.write() as txn:
        for number, horizons in enumerate(reach):
            entries = np.zeros(len(dues), ENTRY_DTYPE)
            entries["due_ms"] = dues
            entries["offset"] = entries["root"] = np.arange(len(dues)) + 1_000 * number
            sequence, _ = slot_table.put(txn, entries, horizons, sequence)
    for low, high in ((0, lookups.FAR_MS), (dues[2], dues[9]), (dues[3] + 1, dues[3] + 2)):
        window = Window(low, -1, high)
        at = lookups.walk_from(window)
        met = []
        while at is not None:
            with index.read() as txn:
                entries, at = lookups.walk(txn, at, window, rows_max)
            met += zip(entries["offset"].tolist(), entries["due_ms"].tolist(), strict=True)
        expected = [(1_000 * n + m, due) for n in range(4) for m, due in enumerate(dues) if low <= due < high]
        assert sorted(met) == sorted(expected)
    index.close()


async def test_every_answer_is_true_in_two_thousand_races_with_firing(tmp_path):
    race = Race(tmp_path / "data", seed=20)
    await race.run(2_000)
    await race.check()
    await race.reopen()
    await race.check()
    await race.engine.close()
    assert race.recalled
    assert race.late


# ---------------------------------------------------------------------- the service's own topics


@pytest.mark.parametrize("where", ["staged", "indexed"])
@pytest.mark.parametrize(
    ("condition", "mine", "own"),
    [
        ({"due_from_ms": 0}, 2, 1),
        ({"tag": "a"}, 1, 1),
        ({"key_prefix": "47"}, 2, 1),
        ({"topic": "orders"}, 2, 0),
        ({"topic": "%TASK%mail"}, 0, 1),
    ],
)
async def test_the_services_own_messages_are_recalled_only_if_they_are_asked_for(
    world, where, condition, mine, own
):
    engine = await world.open()
    ids = await send_tagged(world, ["a", "b"], KEYS="4711")
    task = await schedule_own(engine, TAGS="a", KEYS="4711")
    if where == "indexed":
        await world.restart()
        engine = world.engine
    without = mine + own * ("topic" in condition)
    for reserved, count in ((False, without), (True, mine + own)):
        wanted = RecallFilter(**condition, reserved=reserved)
        assert await engine.bulk_recalls.recall_where(wanted, dry_run=True) == RecallCount(count, 0, 0)
        moved = await engine.bulk_recalls.reschedule_where(wanted, shifted(HOUR_MS))
        assert (moved.matched, moved.rescheduled) == (count, count)
    assert (await engine.bulk_recalls.recall_where(RecallFilter(**condition))).recalled == without
    if own and "topic" not in condition:
        assert (await engine.messages.get(task)).state is State.SCHEDULED
    left = (await engine.messages.pending()).messages
    assert len(left) == len([*ids, task]) - without


async def test_own_topics_that_begin_during_a_recall_are_left_alone_too(world):
    engine = await world.open()
    ids = await send_tagged(world, ["a"] * (2 * PART_MESSAGES))
    sweep = asyncio.create_task(engine.bulk_recalls.recall_where(RecallFilter(tag="a")))
    await asyncio.sleep(0)
    task = await schedule_own(engine, TAGS="a")
    assert (await sweep).recalled == len(ids)
    assert (await engine.messages.get(task)).state is State.SCHEDULED


async def test_reserved_is_no_condition_by_itself(world):
    engine = await world.open()
    with pytest.raises(IllegalFilterError):
        await engine.bulk_recalls.recall_where(RecallFilter(reserved=True))


async def test_a_crowd_recalled_at_one_moment_leaves_the_loop_its_turns(world, monkeypatch):
    """When its time comes, firing passes over all of it; other tasks run in between."""
    monkeypatch.setattr("timerwheel.wheel.near.GONE_AT_ONCE", 20, raising=False)
    engine = await world.open(near_entries_max=1_000)
    await world.send(*[1_000] * 600)
    assert (await engine.bulk_recalls.recall_where(RecallFilter(topic="orders"))).recalled == 600
    last = await world.send_ids(1_000)
    looks: list[int] = []
    async with turns_between() as turns:
        pop_due = engine.core.near.pop_due

        def watched(*limits):
            looks.append(turns())
            return pop_due(*limits)

        monkeypatch.setattr(engine.core.near, "pop_due", watched)
        await world.advance(1_000)
    assert await world.delivered_ids() == last
    assert max(Counter(looks).values()) <= 3
