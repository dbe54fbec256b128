"""The story of a message: what the log tells of it, the same to a running service and to its directory."""

import asyncio
import shutil

import msgspec
import pytest

from tests.harness.gated_threads import spin
from tests.harness.held_threads import HeldThreads
from tests.harness.scratch import scratch
from tests.harness.world import World
from timerwheel.errors import UnknownMessageError
from timerwheel.groups.config import Exponential, GroupConfig, GroupTerms
from timerwheel.history.directory import offline_history
from timerwheel.history.history import GroupPart, Standing, What
from timerwheel.history.service import HistoryReader
from timerwheel.model.messages import Outgoing, State
from timerwheel.store.files import DiskFiles

HOUR_MS = 3_600_000
QUICK = Exponential(initial_ms=1_000)


@pytest.fixture
async def world():
    """One on a real file system, in memory: stories are read from there."""
    with scratch() as root:
        world = World(root / "data")
        world.files = DiskFiles()
        yield world
        await world.engine.close()


@pytest.fixture
async def on_disk(world):
    await world.open()
    return world


def offline(world, message_id, **limits):
    """What a copy of the directory tells: LMDB lets no process open an index twice."""
    copy = world.directory.with_name("copy")
    shutil.copytree(world.directory, copy)
    try:
        return offline_history(copy, message_id, **limits)
    finally:
        shutil.rmtree(copy)


async def story_of(world, message_id, **limits):
    """The story; asked both ways, with the index as it is and with all of the log in it."""
    found = await HistoryReader().read(world.engine, message_id, **limits)
    assert offline(world, message_id, **limits) == without_leases(found)
    await world.engine.indexer.commit()
    assert offline(world, message_id, **limits) == without_leases(found)
    assert await HistoryReader().read(world.engine, message_id, **limits) == found
    return found


def without_leases(story):
    """What its directory tells of a message that is leased in the first attempt: not received."""
    groups = [
        GroupPart(part.group, Standing.NOT_RECEIVED, 0) if part.standing is Standing.IN_FLIGHT else part
        for part in story.groups
    ]
    return msgspec.structs.replace(story, groups=groups)


def whats(story):
    return [event.what for event in story.events]


def standings(story):
    return {part.group: (part.standing, part.attempts) for part in story.groups}


async def send_one(world, body=b"x", **properties):
    [receipt] = await world.engine.sender.send([Outgoing("orders", body, dict(properties))])
    return receipt.id


async def receive(world, group="g", **options):
    [delivery] = await world.engine.groups.receive("orders", group, **options, terms=GroupTerms(create=True))
    return delivery.receipt


async def test_a_waiting_message_was_sent_and_lies_in_the_slot_of_its_due_time(on_disk):
    now_ms = on_disk.clock.now_ms()
    message_id = await send_one(on_disk, TIMER_DELAY_MS=str(5 * HOUR_MS))
    await send_one(on_disk, TIMER_DELAY_MS=str(5 * HOUR_MS + 1))
    story = await story_of(on_disk, message_id)
    assert (story.id, story.topic, story.state) == (message_id, "orders", State.SCHEDULED)
    sent, due = story.events
    assert (sent.what, sent.at_ms, sent.due_ms) == (What.SENT, now_ms, now_ms + 5 * HOUR_MS)
    assert sent.segment == f"{0:020d}.log"
    assert (due.what, due.at_ms, due.offset) == (What.DUE, now_ms + 5 * HOUR_MS, None)
    assert (story.slot.level, story.slot.count) == ("hour", 2)
    assert story.slot.start_ms <= story.due_ms < story.slot.end_ms
    assert story.complete
    assert story.groups == []


async def test_each_change_of_the_due_time_is_reported_with_its_moment(on_disk):
    message_id = await send_one(on_disk, TIMER_DELAY_MS="100000")
    await on_disk.advance(1_000)
    await on_disk.engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "200000"})
    await on_disk.advance(1_000)
    await on_disk.engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "3000"})
    await on_disk.advance(3_000)
    story = await story_of(on_disk, message_id)
    assert whats(story) == [What.SENT, What.RESCHEDULED, What.RESCHEDULED, What.DUE, What.DELIVERED]
    begin_ms = story.events[0].at_ms
    assert [event.at_ms - begin_ms for event in story.events] == [0, 1_000, 2_000, 5_000, 5_000]
    assert [event.due_ms for event in story.events[:3]] == [begin_ms + ms for ms in (100_000, 201_000, 5_000)]
    assert (story.events[-1].lateness_ms, story.events[-1].queue_offset) == (0, 0)
    assert story.slot is None


async def begin_one(world, **properties):
    return (await world.engine.transactions.begin(Outgoing("orders", b"x", properties))).id


async def test_a_commit_without_a_delay_delivers_and_is_no_change_of_the_due_time(on_disk):
    message_id = await begin_one(on_disk)
    await on_disk.advance(700)
    await on_disk.engine.transactions.commit(message_id)
    story = await story_of(on_disk, message_id)
    assert whats(story) == [What.BEGUN, What.COMMITTED, What.DELIVERED]
    begun, committed, delivered = story.events
    assert committed.at_ms - begun.at_ms == 700
    assert (begun.due_ms, committed.due_ms) == (None, None)
    assert (delivered.reason, delivered.lateness_ms, delivered.queue_offset) == (None, 0, 0)


async def test_a_commit_with_a_delay_is_followed_by_all_that_happens_to_a_scheduled_message(on_disk):
    message_id = await begin_one(on_disk, TIMER_DELAY_MS="5000")
    await on_disk.advance(1_000)
    receipt = await on_disk.engine.transactions.commit(message_id)
    story = await story_of(on_disk, message_id)
    assert whats(story) == [What.BEGUN, What.COMMITTED, What.DUE]
    assert story.events[1].due_ms == story.due_ms == receipt.due_ms
    assert (story.slot.count, story.slot.level) == (1, "second")
    await on_disk.engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "1000"})
    await on_disk.advance(1_000)
    story = await story_of(on_disk, message_id)
    assert whats(story) == [What.BEGUN, What.COMMITTED, What.RESCHEDULED, What.DUE, What.DELIVERED]


@pytest.mark.parametrize("rolled_back", [False, True])
async def test_an_open_transaction_has_no_due_time_and_a_rollback_is_no_recall(on_disk, rolled_back):
    message_id = await begin_one(on_disk, TIMER_DELAY_MS="5000")
    state, events = State.SCHEDULED, [What.BEGUN]
    if rolled_back:
        await on_disk.engine.transactions.rollback(message_id)
        state, events = State.RECALLED, [What.BEGUN, What.ROLLED_BACK]
    story = await story_of(on_disk, message_id)
    assert (story.state, whats(story), story.slot) == (state, events, None)


async def test_a_group_of_offsets_has_committed_past_a_message_or_has_not(on_disk):
    engine = on_disk.engine
    await engine.groups.put("orders", "g", GroupConfig(kind="offsets"))
    ids = [await send_one(on_disk) for _ in range(3)]
    await on_disk.engine.groups.put("orders", "late", GroupConfig(kind="offsets", start="tail"))
    engine.groups.offsets.commit("orders", "g", {0: 2})
    asked = [await HistoryReader().read(engine, message_id) for message_id in ids]
    await engine.groups.offsets.flush()
    assert [await story_of(on_disk, message_id) for message_id in ids] == [
        msgspec.structs.replace(story, looked_until=engine.core.log.tail) for story in asked
    ], "a commit counts at once"
    past, not_yet = (Standing.COMMITTED_PAST, 0), (Standing.NOT_COMMITTED, 0)
    assert [standings(story)["g"] for story in asked] == [past, past, not_yet]
    assert [standings(story)["late"] for story in asked] == [past] * 3
    last = await send_one(on_disk)
    assert standings(await story_of(on_disk, last)) == {"g": not_yet, "late": not_yet}


async def test_a_message_that_was_recalled_ends_there(on_disk):
    message_id = await send_one(on_disk, TIMER_DELAY_MS="100000")
    await on_disk.advance(700)
    await on_disk.engine.recalls.recall(message_id)
    story = await story_of(on_disk, message_id)
    assert (story.state, whats(story)) == (State.RECALLED, [What.SENT, What.RECALLED])
    assert story.events[1].at_ms - story.events[0].at_ms == 700


async def test_a_message_without_a_delay_is_delivered_as_it_is_sent(on_disk):
    await send_one(on_disk)
    message_id = await send_one(on_disk)
    story = await story_of(on_disk, message_id)
    assert whats(story) == [What.SENT, What.DELIVERED]
    assert story.events[1].queue_offset == 1


async def test_what_each_group_did_is_reported_from_the_first_attempt_to_the_acknowledgement(on_disk):
    for group in ("g", "h", "late", "picky"):
        tags = "other" if group == "picky" else "*"
        config = GroupConfig(invisible_ms=5_000, backoff=QUICK, tags=tags)
        await on_disk.engine.groups.put("orders", group, config)
    message_id = await send_one(on_disk, TIMER_DELAY_MS="2000", TAGS="one")
    await on_disk.advance(2_000)
    await send_one(on_disk, TAGS="other")
    await receive(on_disk, "picky")
    receipt = await receive(on_disk)
    await on_disk.engine.groups.nack("orders", "g", [receipt], delay_ms=1_500)
    await on_disk.advance(1_500)
    receipt = await receive(on_disk)
    await on_disk.engine.groups.extend("orders", "g", [receipt], 9_000)
    await on_disk.advance(9_000)
    await on_disk.advance(2_000)
    receipt = await receive(on_disk)
    await on_disk.engine.groups.ack("orders", "g", [receipt])
    await receive(on_disk, "h")
    story = await story_of(on_disk, message_id)
    own = [event for event in story.events if event.group == "g"]
    assert [event.what for event in own] == [
        *(What.GIVEN_BACK, What.CAME_BACK),
        *(What.EXPIRED, What.CAME_BACK),
        What.ACKNOWLEDGED,
    ]
    assert [event.attempt for event in own] == [1, None, 2, None, 3]
    assert own[0].due_ms == own[0].at_ms + 1_500
    assert own[2].at_ms - own[1].at_ms == 9_000
    assert standings(without_leases(story)) == {
        "g": (Standing.ACKNOWLEDGED, 3),
        "h": (Standing.NOT_RECEIVED, 0),
        "late": (Standing.NOT_RECEIVED, 0),
        "picky": (Standing.PASSED_OVER, 0),
    }


async def test_a_message_whose_ttl_was_over_has_expired_for_its_group(on_disk):
    await on_disk.engine.groups.put("orders", "g", GroupConfig(backoff=QUICK))
    tried, fresh = [await send_one(on_disk, TIMER_TTL_MS="10000") for _ in range(2)]
    await on_disk.engine.groups.nack("orders", "g", [await receive(on_disk)], delay_ms=9_000)
    await on_disk.advance(10_000)
    assert await on_disk.engine.groups.receive("orders", "g", count_max=9) == []
    await on_disk.advance(0)
    for message_id, attempts in ((tried, 1), (fresh, 0)):
        story = await story_of(on_disk, message_id)
        assert standings(story) == {"g": (Standing.EXPIRED, attempts)}
        assert whats(story)[-1] is What.TTL_OVER


async def test_only_the_running_service_knows_that_a_message_is_leased(on_disk):
    message_id = await send_one(on_disk)
    await receive(on_disk)
    assert standings(await story_of(on_disk, message_id)) == {"g": (Standing.IN_FLIGHT, 1)}
    assert standings(offline(on_disk, message_id)) == {"g": (Standing.NOT_RECEIVED, 0)}


async def test_a_dead_letter_is_followed_to_its_redrive_and_a_second_one_to_its_drop(on_disk):
    await on_disk.engine.groups.put("orders", "g", GroupConfig(max_attempts=1, backoff=QUICK))
    first, second = await send_one(on_disk), await send_one(on_disk)
    for _ in range(2):
        await on_disk.engine.groups.nack("orders", "g", [await receive(on_disk)], reason="broken")
    letters = (await on_disk.engine.groups.dead.page("g")).letters
    assert standings(await story_of(on_disk, first)) == {"g": (Standing.DEAD_LETTER, 1)}
    await on_disk.engine.groups.dead.redrive("g", [letters[0].offset])
    await on_disk.engine.groups.dead.drop("g", [letters[1].offset])
    await on_disk.advance(1_000)
    await on_disk.engine.groups.ack("orders", "g", [await receive(on_disk)])
    story = await story_of(on_disk, first)
    assert [event.what for event in story.events if event.group] == [
        *(What.DEAD_LETTERED, What.REDRIVEN),
        *(What.CAME_BACK, What.ACKNOWLEDGED),
    ]
    assert [event.reason for event in story.events if event.what is What.DEAD_LETTERED] == ["broken"]
    assert standings(story) == {"g": (Standing.ACKNOWLEDGED, 2)}
    story = await story_of(on_disk, second)
    assert whats(story)[-2:] == [What.DEAD_LETTERED, What.DROPPED]
    assert standings(story) == {"g": (Standing.DROPPED, 1)}


async def test_the_history_of_a_dead_letter_says_who_gave_it_up_and_that_it_was_drained(on_disk):
    groups = on_disk.engine.groups
    for place in (("orders", "g"), ("%DLQ%g", "g"), ("%DLQ%g", "other")):
        await groups.put(*place, GroupConfig(max_attempts=1, backoff=QUICK))
    message_id = await send_one(on_disk)
    await groups.nack("orders", "g", [await receive(on_disk)], reason="broken")
    [letter] = (await groups.dead.page("g")).letters
    for group in ("other", "g"):
        [held] = await groups.receive("%DLQ%g", group)
        await (groups.nack if group == "other" else groups.ack)("%DLQ%g", group, [held.receipt])
    story = await story_of(on_disk, message_id)
    assert [event.what for event in story.events if event.group == "g"][-2:] == [
        What.DEAD_LETTERED,
        What.ACKNOWLEDGED,
    ]
    assert standings(story) == {"g": (Standing.ACKNOWLEDGED, 1)}
    assert standings(await story_of(on_disk, letter.message.id)) == {
        "g": (Standing.ACKNOWLEDGED, 1),
        "other": (Standing.GIVEN_UP, 1),
    }


async def test_the_reason_of_every_failed_attempt_is_reported_also_after_a_crash(on_disk):
    groups = on_disk.engine.groups
    await groups.put("orders", "g", GroupConfig(max_attempts=5, invisible_ms=5_000, backoff=QUICK))
    message_id, other = await send_one(on_disk), await send_one(on_disk)

    async def take():
        return [one.receipt for one in await on_disk.engine.groups.receive("orders", "g", count_max=2)]

    await groups.nack("orders", "g", await take(), reason="HTTP 503")
    await on_disk.advance(1_000)
    await take()
    await on_disk.advance(5_000)  # not acknowledged in time
    await on_disk.advance(4_000)
    await on_disk.engine.groups.nack("orders", "g", await take())  # for no reason
    await on_disk.crash()
    await on_disk.advance(9_000)
    await on_disk.engine.groups.nack("orders", "g", await take(), reason="x" * 600)
    await on_disk.advance(9_000)
    await on_disk.engine.groups.nack("orders", "g", await take(), reason="no more")
    for one in (message_id, other):
        story = await story_of(on_disk, one)
        told = [(event.what, event.reason) for event in story.events if event.group]
        assert told == [
            *((What.GIVEN_BACK, "HTTP 503"), (What.CAME_BACK, None)),
            *((What.EXPIRED, "attempt 2 was not acknowledged in time"), (What.CAME_BACK, None)),
            *((What.GIVEN_BACK, None), (What.CAME_BACK, None)),
            *((What.GIVEN_BACK, "x" * 500), (What.CAME_BACK, None)),
            (What.DEAD_LETTERED, "no more"),
        ]


async def test_a_message_that_waits_for_its_turn_was_not_received(on_disk):
    await on_disk.engine.topics.change("orders", ordered=True)
    await send_one(on_disk, __SHARDINGKEY="k")
    message_id = await send_one(on_disk, __SHARDINGKEY="k")
    await on_disk.engine.groups.receive("orders", "g", count_max=5, terms=GroupTerms(create=True))
    story = await story_of(on_disk, message_id)
    assert whats(story)[-1] is What.DELIVERED
    assert standings(story) == {"g": (Standing.NOT_RECEIVED, 0)}


async def test_what_retention_moved_and_what_it_removed_is_in_the_history(world):
    await world.open(retention_ms=5_000)
    message_id = await send_one(world, TIMER_DELAY_MS=str(HOUR_MS))
    while world.engine.core.log.bases[0] == 0:
        await world.roll()
        await world.advance(5_001)
        await world.retention_turn()
    story = await story_of(world, message_id)
    assert whats(story) == [What.FORGOTTEN, What.MOVED, What.DUE]
    assert story.events[0].at_ms == story.enqueue_ms
    assert story.events[0].offset is None
    await world.advance(HOUR_MS)
    assert whats(await story_of(world, message_id))[-2:] == [What.DUE, What.DELIVERED]


async def test_a_log_without_an_index_tells_the_same(on_disk):
    message_id = await send_one(on_disk, TIMER_DELAY_MS="2000")
    await on_disk.advance(2_000)
    await receive(on_disk)
    found = await story_of(on_disk, message_id)
    await on_disk.engine.close()
    for path in (on_disk.directory / "index").iterdir():
        path.unlink()
    (on_disk.directory / "index").rmdir()
    told = offline(on_disk, message_id)
    assert told.looked_until > found.looked_until, "the stop has stored nothing"
    assert told == msgspec.structs.replace(without_leases(found), looked_until=told.looked_until)


async def test_a_history_that_is_not_read_to_its_end_says_so(on_disk):
    message_id = await send_one(on_disk)
    await receive(on_disk)
    await on_disk.roll()
    story = await HistoryReader().read(on_disk.engine, message_id, records_max=1)
    assert not story.complete
    assert story.looked_until < on_disk.engine.core.log.tail
    assert {part.standing for part in story.groups} == {Standing.UNKNOWN}


async def test_damage_on_the_way_is_reported_with_the_rest_of_the_history(on_disk):
    message_id = await send_one(on_disk, TIMER_DELAY_MS="100000")
    first = (await story_of(on_disk, message_id)).events[0].offset
    await on_disk.engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "2000"})
    await on_disk.advance(2_000)
    path = on_disk.directory / "log" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[first + 81] ^= 1
    path.write_bytes(raw)
    story = await HistoryReader().read(on_disk.engine, message_id)
    assert whats(story)[-2:] == [What.DUE, What.DELIVERED]
    assert str(first) in story.problem


@pytest.mark.parametrize("message_id", ["", "x", "0" * 24, "f" * 24])
async def test_an_id_that_no_message_has_has_no_history(on_disk, message_id):
    await send_one(on_disk)
    with pytest.raises(UnknownMessageError):
        await HistoryReader().read(on_disk.engine, message_id)
    with pytest.raises(UnknownMessageError):
        offline(on_disk, message_id)


async def test_a_history_whose_caller_is_gone_ends_with_the_step_that_is_under_way(on_disk):
    sent = await send_one(on_disk)
    threads, reader = HeldThreads(), HistoryReader()
    asyncio.get_running_loop().set_default_executor(threads)
    reading = asyncio.create_task(reader.read(on_disk.engine, sent))
    while not threads.calls:
        await asyncio.sleep(0)
    reading.cancel()
    await spin()
    has_ended = reading.done()
    threads.gate.set()
    assert not has_ended, "its thread has the log open"
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert threads.calls == 1
    assert whats(await reader.read(on_disk.engine, sent)) == [What.SENT, What.DELIVERED]
