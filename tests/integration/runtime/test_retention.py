"""Retention bounds the disk and changes nothing that a client may rely on."""

import asyncio
import random
import shutil

import pytest

from tests.harness.consumers import put, receive, send
from tests.harness.drive import read_all
from tests.harness.group_checks import check_groups
from tests.harness.held import open_held
from timerwheel.errors import AlreadyDeliveredError, AlreadyRecalledError, UnknownMessageError
from timerwheel.index.writer import IndexWriter
from timerwheel.model.messages import State
from timerwheel.runtime.retention import DROP_MS

STARTS = ["restart", "crash", "lose_index"]
RETENTION_MS = 10_000


async def age(world, rolls=3):
    """Let what is stored so far grow older than retention, in sealed segments, and drop it.

    There is more of what may go than of what waits, or it would not be worth while to move that.
    """
    for _ in range(rolls):
        await world.roll()
    await world.advance(RETENTION_MS + 1_000)
    await world.roll()
    return await world.retention_turn()


@pytest.mark.parametrize("start", STARTS)
async def test_moved_timers_keep_id_due_time_order_and_body(world, start):
    engine = await world.open(retention_ms=RETENTION_MS)
    receipts = await world.send(*[500_000] * 12, *[400_000 + n for n in range(12)], body=b"kept")
    views = {receipt.id: await engine.messages.get(receipt.id) for receipt in receipts}
    for turn in range(4):
        assert await age(world) > 0
        engine = await getattr(world, start)()
        for message_id, before in views.items():
            now = await engine.messages.get(message_id)
            assert (now.id, now.due_ms, now.body, now.state) == (
                message_id,
                before.due_ms,
                b"kept",
                State.SCHEDULED,
            )
            assert int(now.properties["TIMER_ROLL_TIMES"]) >= turn
            assert now.enqueue_ms == before.enqueue_ms
    in_order = [r.id for r in sorted(receipts, key=lambda r: (r.due_ms, r.id))]
    assert await world.pending_ids() == in_order
    await world.advance(500_000)
    assert await world.delivered_ids() == in_order


async def test_a_turn_with_much_to_move_removes_segments_in_between(world):
    """Else a service that ends before that, or whose disk is full, never removed any."""
    engine = await world.open(retention_ms=RETENTION_MS, retention_interval_ms=86_400_000)
    ids: list[str] = []
    for _ in range(6):
        ids += await world.send_ids(10_000_000)
        await world.roll()
    await world.advance(RETENTION_MS + 1_000)
    await world.roll()
    before = engine.core.log.bases
    turn, begins = asyncio.create_task(engine.retention.turn()), set()
    while not turn.done():
        world.clock.advance(DROP_MS // 2)
        begins.add(engine.core.log.bases[0])
        await asyncio.sleep(0)
    assert len(begins) > 3
    assert turn.result() == len(set(before) - set(engine.core.log.bases)) == 6
    engine = await world.crash()
    assert await world.pending_ids() == ids


async def test_same_due_time_keeps_the_order_stored_when_only_some_were_moved(world):
    engine = await world.open(retention_ms=RETENTION_MS)
    due_ms = world.clock.now_ms() + 600_000
    ids = await world.send_ids(*[600_000] * 5)
    await age(world)
    for _ in range(3):
        ids += await world.send_ids(*[due_ms - world.clock.now_ms()] * 5)
        await age(world)
    ids += await world.send_ids(*[due_ms - world.clock.now_ms()] * 5)
    assert engine.core.log.start > int(ids[0][:16], 16)
    await world.advance(due_ms - world.clock.now_ms())
    assert await world.delivered_ids() == ids


@pytest.mark.parametrize("start", STARTS)
async def test_queue_offsets_of_consumers_survive(world, start):
    engine = await world.open(retention_ms=RETENTION_MS)
    for _ in range(3):
        await world.send(*[500] * 10)
        await world.advance(500)
        assert await age(world) > 0
    kept = await world.send_ids(*[500] * 10)
    await world.advance(500)
    engine = await getattr(world, start)()
    [queue] = engine.queues.topic("orders").queues
    assert queue.max_offset == 40
    assert queue.min_offset == 30
    page = await engine.queues.read_queue("orders", 0, 0, 100)
    assert [message.queue_offset for message in page.messages] == list(range(30, 40))
    assert [message.id for message in page.messages] == kept
    assert (page.min_offset, page.next_offset, page.max_offset) == (30, 40, 40)
    await world.send(0)
    assert (await engine.queues.read_queue("orders", 0, 40, 10)).messages[0].queue_offset == 40


@pytest.mark.parametrize("start", STARTS)
async def test_a_queue_whose_every_message_is_dropped_goes_on_at_its_offset(world, start):
    await world.open(retention_ms=RETENTION_MS)
    await world.send(*[0] * 7)
    await age(world)
    engine = await getattr(world, start)()
    assert engine.queues.topic("orders").visible == 0
    await world.send(0)
    [message] = (await engine.queues.read_queue("orders", 0, 0, 10)).messages
    assert message.queue_offset == 7


@pytest.mark.parametrize("start", STARTS)
async def test_a_read_from_before_retention_after_a_restart_goes_on_at_what_is_kept(world, start):
    await world.open(retention_ms=RETENTION_MS)
    await world.send(*[0] * 7)
    await age(world)
    engine = await getattr(world, start)()
    page = await asyncio.wait_for(engine.queues.read_queue("orders", 0, 0, 10), 60)
    assert (page.messages, page.min_offset, page.next_offset) == ([], 7, 7)


@pytest.mark.parametrize("start", [None, *STARTS])
async def test_a_moved_timer_can_be_recalled_and_rescheduled_under_its_id(world, start):
    engine = await world.open(retention_ms=RETENTION_MS)
    recalled, moved, kept = await world.send_ids(900_000, 900_000, 900_000)
    await age(world)
    if start is not None:
        engine = await getattr(world, start)()
    await engine.recalls.recall(recalled)
    receipt = await engine.recalls.reschedule(moved, {"TIMER_DELAY_MS": "300000"})
    assert receipt.id == moved
    await world.advance(1_000_000)
    assert await world.delivered_ids() == [moved, kept]
    with pytest.raises(AlreadyRecalledError):
        await engine.recalls.recall(recalled)


async def test_delivered_messages_past_retention_are_unknown(world):
    engine = await world.open(retention_ms=RETENTION_MS)
    ids = await world.send_ids(0, 500)
    await world.advance(500)
    await age(world)
    for message_id in ids:
        for call in (engine.messages.get, engine.recalls.recall):
            with pytest.raises(UnknownMessageError):
                await call(message_id)


async def test_a_delivered_message_within_retention_is_known_when_its_timers_segment_is_gone(world):
    """The timer was stored long ago, the message a moment ago: it is still in its queue."""
    engine = await world.open(retention_ms=RETENTION_MS)
    [message_id] = await world.send_ids(9_000)
    await world.roll()
    await world.advance(9_000)
    await world.roll()
    await world.advance(2_000)
    await world.retention_turn()
    assert await world.delivered_ids() == [message_id]
    assert (await engine.messages.get(message_id)).state is State.DELIVERED
    with pytest.raises(AlreadyDeliveredError):
        await engine.recalls.recall(message_id)


async def test_a_recalled_message_whose_timer_is_gone_is_answered_without_an_unexpected_error(world):
    engine = await world.open(retention_ms=RETENTION_MS)
    [message_id] = await world.send_ids(900_000_000)
    await world.roll()
    await world.advance(9_000)
    await engine.recalls.recall(message_id)
    await world.roll()
    await world.advance(RETENTION_MS + 2_000)
    assert await world.retention_turn() > 0
    with pytest.raises((AlreadyRecalledError, UnknownMessageError)):
        await engine.recalls.recall(message_id)
    try:
        view = await engine.messages.get(message_id)
    except UnknownMessageError:
        return
    assert view.state is State.RECALLED


async def test_disk_size_is_bounded_over_many_turns(world):
    engine = await world.open(retention_ms=RETENTION_MS)
    far = await world.send_ids(*[10**9] * 6, body=b"f" * 100)
    sizes = []
    for _ in range(40):
        await world.send(*[700] * 8, body=b"b" * 200)
        await world.advance(6_000)
        await world.retention_turn()
        files = world.files.names_now.items()
        sizes.append(sum(len(node.data) for name, node in files if "/log/" in name))
        for message_id in far:
            assert (await engine.messages.get(message_id)).state is State.SCHEDULED
    assert max(sizes[20:]) <= 1.5 * max(sizes[5:20])
    assert len(engine.core.log.bases) < 15
    pages = engine.core.index.index
    with pages.read() as txn:
        assert sum(1 for _ in txn.items("queues")) < 40
        assert sum(1 for _ in txn.items("segments")) < 15
    await world.advance(10**9)
    assert (await world.delivered_ids())[-6:] == far


def log_bytes(world) -> int:
    return sum(len(node.data) for name, node in world.files.names_now.items() if name.endswith(".log"))


async def test_what_waits_is_not_written_again_for_less_than_that_frees(world):
    engine = await world.open(retention_ms=RETENTION_MS)
    ids = await world.send_ids(*[10**9] * 100, body=b"w" * 200)
    waiting = log_bytes(world)
    for _ in range(5):
        await world.advance(RETENTION_MS + 1_000)
        assert await world.retention_turn() == 0
        assert log_bytes(world) == waiting, "all of it waits: nothing would be freed"
    while log_bytes(world) < 1.8 * waiting:
        await world.roll()
    await world.advance(RETENTION_MS + 1_000)
    assert await world.retention_turn() == 0, "less is behind it than would have to be written again"
    while log_bytes(world) < 2.3 * waiting:
        await world.roll()
    await world.advance(RETENTION_MS + 1_000)
    assert await world.retention_turn() > 0
    assert log_bytes(world) < 1.6 * waiting
    rolls = {(await engine.messages.get(message_id)).properties["TIMER_ROLL_TIMES"] for message_id in ids}
    assert rolls == {"1"}
    assert await world.pending_ids() == ids


async def test_the_log_takes_at_most_twice_what_waits_and_retention(world):
    rng = random.Random(3)
    await world.open(retention_ms=RETENTION_MS)
    waiting: list[tuple[int, int]] = []
    recent: list[tuple[int, int]] = []
    for _ in range(120):
        before = world.engine.core.log.tail
        delays = [rng.choice((300, 2_000, 60_000, 400_000)) for _ in range(rng.randint(0, 12))]
        await world.send(*delays, body=b"w" * rng.randint(0, 300))
        now_ms = world.clock.now_ms()
        size = (world.engine.core.log.tail - before) // max(len(delays), 1)
        waiting = [(due_ms, of) for due_ms, of in waiting if due_ms > now_ms]
        waiting += [(now_ms + delay_ms, size) for delay_ms in delays]
        await world.advance(rng.choice((300, 2_000, 8_000)))
        recent.append((world.clock.now_ms(), world.engine.core.log.tail - before))
        await world.retention_turn()
        since_ms = world.clock.now_ms() - 2 * RETENTION_MS - 8_000
        recent = [(at_ms, of) for at_ms, of in recent if at_ms >= since_ms]
        grown = world.engine.core.log.tail - world.engine.core.log.bases[0]  # without the zeros ahead
        bound = 2 * sum(of for _, of in waiting) + 2 * sum(of for _, of in recent)
        assert grown <= bound + 4 * world.engine.settings.segment_size_bytes


@pytest.mark.parametrize("seed", range(4))
async def test_random_work_with_retention_keeps_the_books(world, seed):
    rng = random.Random(seed)
    engine = await world.open(retention_ms=RETENTION_MS)
    waiting, seen, recalled, offset = {}, [], set(), 0
    for _ in range(25):
        for receipt in await world.send(*[rng.choice((300, 5_000, 40_000, 900_000)) for _ in range(6)]):
            waiting[receipt.id] = receipt.due_ms
        if rng.random() < 0.5:
            message_id = rng.choice(sorted(waiting))
            await engine.recalls.recall(message_id)
            recalled.add(message_id)
            del waiting[message_id]
        if rng.random() < 0.5:
            message_id = rng.choice(sorted(waiting))
            receipt = await engine.recalls.reschedule(
                message_id, {"TIMER_DELAY_MS": str(rng.randint(1, 99_000))}
            )
            waiting[message_id] = receipt.due_ms
        await world.advance(rng.choice((300, 4_000, 12_000)))
        messages = await read_all(engine, "orders", offset)
        assert [m.queue_offset for m in messages] == list(range(offset, offset + len(messages)))
        offset += len(messages)
        for message in messages:
            assert waiting.pop(message.id) == message.due_ms
            seen.append(message.id)
        assert await world.pending_ids() == sorted(waiting, key=lambda i: (waiting[i], i))
        await world.retention_turn()
        if rng.random() < 0.3:
            engine = await getattr(world, rng.choice(STARTS))()
    await world.advance(2_000_000)
    last = [message.id for message in await read_all(engine, "orders", offset)]
    seen += last
    assert len(seen) == len(set(seen))
    assert not set(seen) & recalled
    # The clock has jumped far beyond the near wheel: timers that retention was moving come after the others.
    assert sorted(last) == sorted(waiting)


class _CutShortError(Exception):
    """The machine stopped in the middle of a rebuild."""


async def rebuild_in_two_goes(world, monkeypatch, commits: int) -> None:
    """Lose the index; the first try to make it anew ends after so many commits, the second goes on."""
    await world.engine.abandon()
    shutil.rmtree(world.directory / "index")
    left = commits
    commit = IndexWriter.commit

    def commit_and_stop(writer, memtable, snapshot):
        nonlocal left
        commit(writer, memtable, snapshot)
        left -= 1
        if not left:
            raise _CutShortError

    with monkeypatch.context() as patched:
        patched.setattr(IndexWriter, "commit", commit_and_stop)
        with pytest.raises(_CutShortError):
            await world.open(index_records_max=1)
    await world.open()


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_a_rebuild_that_is_cut_short_after_retention_counts_no_timer_twice(world, monkeypatch, commits):
    await world.open(retention_ms=RETENTION_MS)
    ids = await world.send_ids(*[500_000] * 120)
    assert await age(world, 6) > 0
    for message_id in ids[:20]:
        await world.engine.recalls.recall(message_id)
    await rebuild_in_two_goes(world, monkeypatch, commits)
    assert await world.pending_ids() == ids[20:]
    assert world.engine.core.state.pending == 100
    assert sum(level.count for level in (await world.engine.messages.wheel()).levels) == 100
    await world.restart()
    assert world.engine.core.state.pending == 100


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_a_rebuild_that_is_cut_short_after_retention_tells_groups_as_they_were(
    world, monkeypatch, commits
):
    await world.open(retention_ms=RETENTION_MS)
    await world.engine.topics.change("lanes", ordered=True)
    await put(world, topic="lanes", invisible_ms=3_600_000)
    await send(world, "old")
    await world.roll()
    await world.advance(RETENTION_MS + 1)
    await send(world, *"abcde", topic="lanes", __SHARDINGKEY="x")
    for _ in range(3):
        [held] = await receive(world, topic="lanes")
        await world.roll()
        await world.engine.groups.nack("lanes", "g", [held.receipt], delay_ms=100)
        await world.advance(1_000)
    await send(world, "f", "g", topic="lanes")
    got = await receive(world, topic="lanes")  # in flight: a for the fourth time, f and g
    await world.engine.groups.ack("lanes", "g", [got[2].receipt])

    def told():
        state, info = (
            world.engine.core.state.groups.by_name["lanes/g"],
            world.engine.groups.info("lanes", "g"),
        )
        # What was in flight is visible again, and what was parked is looked at again.
        visible = info.in_flight + info.ready + info.lag + info.parked
        return {key: state.pack(key) for key in state.items}, state.passed, state.since, info.waiting, visible

    assert await world.retention_turn() > 0
    before = told()
    await rebuild_in_two_goes(world, monkeypatch, commits)
    check_groups(world.engine)
    assert told() == before
    again = await receive(world, topic="lanes")
    assert [(d.message.body, d.attempt) for d in again] == [(b"a", 4), (b"f", 1)]


async def test_a_listing_that_meets_retention_lists_what_was_moved(world):
    threads = await open_held(world, retention_ms=RETENTION_MS)
    engine = world.engine
    ids = await world.send_ids(*range(500_000, 512_000, 1_000))
    await engine.indexer.commit()
    dropped = []

    async def aging(found):
        dropped.append(await age(world))
        assert int(found["offset"].min()) < engine.core.log.start

    threads.see_once("_pending_entries", aging)
    page = await engine.messages.pending(limit=1_000)
    assert dropped[0] > 0
    assert [(message.id, message.problem) for message in page.messages] == [(one, None) for one in ids]


async def test_a_timer_whose_segment_is_gone_is_listed_with_what_is_wrong(world):
    engine = await world.open()
    ids = await world.send_ids(500_000, 600_000)
    await world.roll()
    engine.core.log.drop_before(engine.core.log.bases[-1])
    page = await engine.messages.pending(limit=1_000)
    assert len(page.messages) == len(ids)
    assert all("the log now begins at" in message.problem for message in page.messages)


async def test_quarantine_files_go_when_their_own_retention_is_over_and_not_before(world):
    engine = await world.open(quarantine_retention_ms=10_000)
    last = str(engine.core.log.path(engine.core.log.bases[-1]))
    await world.send(90_000)
    await engine.abandon()
    world.files.names_now[last].data += b"\xa5" * 100  # a torn tail
    engine = await world.open()
    [kept] = [name for name in world.files.names_now if name.endswith(".cut")]
    await world.advance(9_999)
    await world.retention_turn()
    assert kept in world.files.names_now
    await world.advance(2)
    await world.retention_turn()
    assert kept not in world.files.names_now
    assert len(await world.pending_ids()) == 1


async def test_damage_in_a_segment_without_a_sidecar_neither_ends_retention_nor_holds_its_whole_timers(world):
    engine = await world.open(retention_ms=RETENTION_MS)
    ids = await world.send_ids(10**9, 2 * 10**9, 3 * 10**9)
    first = engine.core.log.bases[0]
    for _ in range(3):
        await world.roll()
    await world.advance(RETENTION_MS + 1_000)
    offset = int(ids[1][:16], 16)
    world.files.names_now[str(engine.core.log.path(first))].data[offset - first + 82] ^= 1
    del world.files.names_now[str(engine.core.log.sidecar_path(first))]
    await world.retention_turn()
    assert engine.ready
    rolls = {
        message.id: message.properties.get("TIMER_ROLL_TIMES")
        for message in (await engine.messages.pending(limit=10)).messages
    }
    assert (rolls[ids[0]], rolls[ids[2]]) == ("1", "1")
