import asyncio

import orjson
import pytest

from tests.harness.remoting import Caller, Callers, Peer, bodies_in, messages_in, remoting_of
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq import pulls
from timerwheel.rocketmq.codes import PULL_COMMIT, PULL_SUBSCRIPTION, PULL_SUSPEND, Call, Result
from timerwheel.rocketmq.pulls import ANSWER_BYTES_MAX, FILTER_CHARACTERS_MAX, MESSAGES_MAX, WAIT_MS_MAX
from timerwheel.tokens import Scope


async def store(world, *bodies, topic="orders", **properties):
    for body in bodies:
        await world.engine.sender.send([Outgoing(topic, body, dict(properties))])


def bounds(answer):
    return tuple(int(answer.fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))


async def test_a_pull_returns_messages_with_their_places(world, peer):
    await store(world, b"a", b"b", b"c")
    answer = await peer.pull(offset=1)
    assert (answer.code, bodies_in(answer)) == (Result.SUCCESS, [b"b", b"c"])
    assert bounds(answer) == (3, 0, 3)
    assert answer.fields["suggestWhichBrokerId"] == "0"
    first, second = messages_in(answer)
    assert (first.queue_offset, second.queue_offset) == (1, 2)
    assert first.log_offset < second.log_offset


async def test_a_pull_returns_no_more_than_the_most_messages_whatever_it_asks(world, peer):
    await store(world, *[b"%d" % n for n in range(MESSAGES_MAX + 5)])
    answer = await peer.pull(maxMsgNums=1_000)
    assert len(messages_in(answer)) == MESSAGES_MAX
    assert bounds(answer)[0] == MESSAGES_MAX
    assert len(messages_in(await peer.pull(maxMsgNums=3))) == 3


async def test_a_pull_stays_below_its_bytes_but_returns_at_least_one(world):
    peer = Peer(remoting_of(await world.open(segment_size_bytes=64 << 20, batch_bytes_max=64 << 20)))
    await store(world, bytes(ANSWER_BYTES_MAX), *[bytes(ANSWER_BYTES_MAX // 2 - 1_000)] * 3)
    assert [len(body) for body in bodies_in(await peer.pull())] == [ANSWER_BYTES_MAX]
    assert len(bodies_in(await peer.pull(offset=1))) == 2


async def test_tags_are_matched_exactly_and_the_consumer_goes_on_behind_the_others(world, peer):
    await store(world, b"a", TAGS="A")
    await store(world, b"b", b"b2", TAGS="B")
    await store(world, b"none")
    answer = await peer.pull(subscription="A || C")
    assert (bodies_in(answer), bounds(answer)[0]) == ([b"a"], 4)
    nothing = await peer.pull(offset=1, subscription="A")
    assert (nothing.code, bounds(nothing)[0], nothing.body) == (Result.PULL_RETRY_NOW, 4, b"")


async def test_without_a_subscription_that_of_the_heartbeat_counts(world, peer):
    await store(world, b"a", TAGS="A")
    await store(world, b"b", TAGS="B")
    data = {"groupName": "readers", "subscriptionDataSet": [{"topic": "orders", "subString": "B"}]}
    heartbeat = {"clientID": "one", "consumerDataSet": [data], "producerDataSet": []}
    await peer.ask(Call.HEARTBEAT, body=orjson.dumps(heartbeat))
    assert bodies_in(await peer.pull(sysFlag=0)) == [b"b"]


@pytest.mark.parametrize(
    ("text", "bodies"),
    [
        ("A||||B", [b"a", b"b"]),
        (" A |||| ", [b"a"]),
        ("B||*", [b"b"]),
        ("*", [b"a", b"b", b"long", b"none"]),
        ("", [b"a", b"b", b"long", b"none"]),
        ("C" * 10_240, [b"long"]),
        ("||", []),
    ],
)
async def test_a_subscription_is_read_as_rocketmq_reads_it(peer, text, bodies):
    for body, tag in ((b"a", "A"), (b"b", "B"), (b"long", "C" * 10_240), (b"none", "")):
        await peer.send(body=body, properties={"TAGS": tag})
    assert bodies_in(await peer.pull(subscription=text)) == bodies


@pytest.mark.parametrize(
    "fields", [{"expressionType": "SQL92"}, {"subscription": "A" * (FILTER_CHARACTERS_MAX + 1)}]
)
async def test_a_filter_that_is_not_of_tags_is_refused(peer, fields):
    assert (await peer.pull(**fields)).code == Result.SYSTEM_ERROR


async def test_a_held_pull_is_answered_when_a_message_comes(world, peer):
    frame = peer.held_pull_frame()
    peer.put(frame)
    await world.advance(1_000)
    assert peer.answer_now(frame) is None
    await store(world, b"came")
    assert bodies_in(await peer.answer_to(frame)) == [b"came"]


async def test_a_held_pull_is_answered_when_a_timer_fires(world, peer):
    await world.send(5_000)
    frame = peer.held_pull_frame()
    peer.put(frame)
    await world.advance(4_999)
    assert peer.answer_now(frame) is None
    await world.advance(1)
    assert bodies_in(await peer.answer_to(frame)) == [b"x"]


@pytest.mark.parametrize(("wanted_ms", "held_ms"), [(2_000, 2_000), (10**9, WAIT_MS_MAX)])
async def test_a_held_pull_ends_after_its_time(world, peer, wanted_ms, held_ms):
    frame = peer.held_pull_frame(wait_ms=wanted_ms)
    peer.put(frame)
    await world.advance(held_ms - 1)
    assert peer.answer_now(frame) is None
    await world.advance(1)
    assert (await peer.answer_to(frame)).code == Result.PULL_NOT_FOUND


async def test_a_pull_that_does_not_want_to_wait_is_answered_at_once(peer):
    answer = await peer.pull()
    assert (answer.code, bounds(answer)) == (Result.PULL_NOT_FOUND, (0, 0, 0))


async def test_a_stop_answers_held_pulls(world, remoting, peer):
    frame = peer.held_pull_frame()
    peer.put(frame)
    await world.advance(10)
    await remoting.close()
    answer = peer.answer_now(frame)
    assert answer is not None
    assert answer.code == Result.PULL_NOT_FOUND
    assert peer.connection.is_closed


async def test_held_pulls_end_with_their_connection(world, peer):
    peer.put(peer.held_pull_frame(), peer.held_pull_frame())
    await world.advance(10)
    assert world.engine.queues.has_waiting
    peer.wire.close()
    await world.advance(10)
    assert not world.engine.queues.has_waiting


async def test_more_held_pulls_than_the_most_are_refused(world, peer, monkeypatch):
    monkeypatch.setattr(pulls, "HELD_MAX", 2)
    peer.put(peer.held_pull_frame(), peer.held_pull_frame())
    await world.advance(10)
    frame = peer.held_pull_frame()
    peer.put(frame)
    assert (await peer.answer_to(frame)).code == Result.SYSTEM_BUSY


async def test_offsets_outside_of_the_queue_are_moved_into_it(world, peer):
    await store(world, b"a", b"b")
    for offset, moved in ((-1, 0), (3, 2), (10**12, 2)):
        answer = await peer.pull(offset=offset)
        assert (answer.code, bounds(answer)) == (Result.PULL_OFFSET_MOVED, (moved, 0, 2))


async def test_an_offset_that_retention_has_passed_is_moved(world):
    peer = Peer(remoting_of(await world.open(retention_ms=1_000)))
    await store(world, b"old")
    await world.roll()
    await world.roll()
    await world.advance(5_000)
    await world.engine.indexer.tick()
    assert await world.retention_turn() > 0
    await store(world, b"new")
    answer = await peer.pull(offset=0)
    assert (answer.code, bounds(answer)) == (Result.PULL_OFFSET_MOVED, (1, 1, 2))
    assert bodies_in(await peer.pull(offset=1)) == [b"new"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"queueId": 4}, Result.SYSTEM_ERROR),
        ({"queueId": -1}, Result.SYSTEM_ERROR),
        ({"queueId": "x"}, Result.SYSTEM_ERROR),
        ({"topic": "no/topic"}, Result.TOPIC_NOT_EXIST),
        ({"topic": "orders/readers"}, Result.TOPIC_NOT_EXIST),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, Result.TOPIC_NOT_EXIST),
        ({"topic": "/control"}, Result.TOPIC_NOT_EXIST),
    ],
)
async def test_a_pull_from_what_is_no_queue_is_refused(peer, fields, code):
    assert (await peer.pull(**fields)).code == code


async def test_a_reader_needs_its_scope_and_its_topic(world):
    callers = Callers(reader=Caller(Scope.RECEIVE, topics=("orders",)), sender=Caller(Scope.SEND))
    remoting = remoting_of(await world.open(), callers)
    await store(world, b"mine")
    await store(world, b"theirs", topic="bills")
    assert bodies_in(await Peer(remoting, "reader").pull()) == [b"mine"]
    for token, topic in (("reader", "bills"), ("sender", "orders")):
        assert (await Peer(remoting, token).pull(topic)).code == Result.NO_PERMISSION


async def test_a_backlog_is_read_ahead_and_answered_in_order(world):
    await world.open()
    bodies = [b"%d" % number for number in range(3 * MESSAGES_MAX)]
    await store(world, *bodies)
    peer = Peer(remoting_of(await world.restart()))
    found, offset = [], 0
    while offset < len(bodies):
        answer = await peer.pull(offset=offset)
        found += bodies_in(answer)
        offset, _, high = bounds(answer)
        assert high == len(bodies)
    assert found == bodies
    await store(world, b"last")
    answer = await peer.pull(offset=offset)
    assert (bodies_in(answer), bounds(answer)) == ([b"last"], (offset + 1, 0, offset + 1))


# ---------------------------------------------------------------------- offsets


def of_queue(**fields):
    return {"consumerGroup": "readers", "topic": "orders", "queueId": 0} | fields


async def committed(peer, **fields):
    answer = await peer.ask(Call.QUERY_OFFSET, of_queue(**fields))
    return answer.fields.get("offset", answer.code)


async def test_a_commit_counts_and_is_there_after_a_restart(world, peer):
    await store(world, b"a", b"b", b"c")
    await peer.ask(Call.UPDATE_OFFSET, of_queue(commitOffset=2))
    assert await committed(peer) == "2"
    await world.restart()
    assert await committed(Peer(remoting_of(world.engine))) == "2"
    assert world.engine.groups.info("orders", "readers").lag == 1


async def test_a_pull_commits_what_was_consumed_before(world, peer):
    await store(world, b"a", b"b", b"c")
    await peer.pull(offset=2, sysFlag=PULL_COMMIT | PULL_SUBSCRIPTION, commitOffset=1)
    assert await committed(peer) == "1"


async def test_a_new_group_begins_at_the_first_message_as_long_as_that_is_kept(world):
    peer = Peer(remoting_of(await world.open(retention_ms=1_000)))
    await store(world, b"old")
    assert await committed(peer) == "0"
    assert await committed(peer, setZeroIfNotFound="false") == Result.QUERY_NOT_FOUND
    await world.roll()
    await world.roll()
    await world.advance(5_000)
    await world.engine.indexer.tick()
    assert await world.retention_turn() > 0
    assert await committed(peer) == Result.QUERY_NOT_FOUND


async def test_a_group_that_leases_commits_no_offsets(world, peer):
    await store(world, b"a")
    await world.engine.groups.put("orders", "readers", GroupConfig())
    assert (await peer.ask(Call.UPDATE_OFFSET, of_queue(commitOffset=1))).code == Result.NO_PERMISSION
    assert (await peer.ask(Call.QUERY_OFFSET, of_queue())).code == Result.NO_PERMISSION


async def test_consumers_of_a_deleted_topic_commit_nothing_and_wait_for_what_comes_next(world, peer):
    await world.engine.topics.change("orders", queues=4)
    await peer.send(e=3)
    await peer.ask(Call.DELETE_TOPIC, {"topic": "orders"})
    flags = PULL_SUBSCRIPTION | PULL_SUSPEND | PULL_COMMIT
    fields = {"queueId": 3, "sysFlag": flags, "commitOffset": 1, "suspendTimeoutMillis": 15_000}
    frame = peer.pull_frame(offset=1, **fields)
    peer.put(frame)
    place = {"consumerGroup": "readers", "topic": "orders", "queueId": 3, "commitOffset": 1}
    assert (await peer.ask(Call.UPDATE_OFFSET, place)).code == Result.SUCCESS
    assert world.engine.groups.all("orders") == []
    await peer.send(body=b"again", e=3)
    assert bodies_in(await peer.answer_to(frame)) == [b"again"]
    await peer.ask(Call.UPDATE_OFFSET, place | {"commitOffset": 2})
    assert (await peer.ask(Call.QUERY_OFFSET, place)).fields == {"offset": "2"}


async def test_commits_while_a_topic_is_being_deleted_change_nothing(world, peer):
    await peer.send()
    world.engine.topics.ending.add("orders")
    place = {"consumerGroup": "readers", "topic": "orders", "queueId": 0, "commitOffset": 1}
    assert (await peer.ask(Call.UPDATE_OFFSET, place)).code == Result.SUCCESS
    assert world.engine.groups.all("orders") == []


async def test_an_offset_beyond_the_end_is_not_committed(world, peer):
    await store(world, b"a")
    assert (await peer.ask(Call.UPDATE_OFFSET, of_queue(commitOffset=2))).code == Result.SYSTEM_ERROR
    assert await committed(peer) == "0"


async def test_the_bounds_of_a_queue_and_the_offset_of_a_time(world, peer):
    await store(world, b"a")
    await world.advance(1_000)
    middle_ms = world.clock.now_ms()
    await store(world, b"b", b"c")
    answers = {
        call: (await peer.ask(call, of_queue(timestamp=middle_ms))).fields
        for call in (Call.MAX_OFFSET, Call.MIN_OFFSET, Call.SEARCH_OFFSET, Call.EARLIEST_STORE_TIME)
    }
    assert answers == {
        Call.MAX_OFFSET: {"offset": "3"},
        Call.MIN_OFFSET: {"offset": "0"},
        Call.SEARCH_OFFSET: {"offset": "1"},
        Call.EARLIEST_STORE_TIME: {"timestamp": str(middle_ms - 1_000)},
    }


@pytest.mark.parametrize(
    ("after_ms", "lower", "upper"),
    [
        (-5_000, 0, 0),
        (-1, 0, 0),
        (0, 0, 0),
        (1, 1, 0),
        (999, 1, 0),
        (1_000, 1, 2),
        (1_001, 3, 2),
        (9_000, 3, 2),
    ],
)
async def test_the_offset_of_a_time_has_two_boundaries(world, peer, after_ms, lower, upper):
    begin_ms = world.clock.now_ms()
    await store(world, b"a")
    await world.advance(1_000)
    await store(world, b"b", b"c")
    fields = of_queue(timestamp=begin_ms + after_ms)
    for boundary, offset in (("LOWER", lower), ("UPPER", upper), ("upper", upper)):
        answer = await peer.ask(Call.SEARCH_OFFSET, fields | {"boundaryType": boundary})
        assert answer.fields == {"offset": str(offset)}, boundary


@pytest.mark.parametrize(
    ("kind", "text", "remark"),
    [
        ("SQL92", "a > 1", "SQL is not supported; use tags"),
        ("CLASS", "x", "'CLASS' are not"),
        ("TAG", "a", None),
    ],
)
async def test_a_consumer_learns_at_its_start_that_sql_is_not_supported(peer, kind, text, remark):
    subscription = {
        "topic": "orders",
        "subString": text,
        "expressionType": kind,
        "tagsSet": [],
        "codeSet": [],
    }
    body = orjson.dumps({"clientId": "one", "group": "readers", "subscriptionData": subscription})
    answer = await peer.ask(Call.CHECK_CLIENT, body=body)
    assert answer.code == (Result.SYSTEM_ERROR if remark else Result.SUCCESS)
    assert (remark or "") in (answer.remark or "")


async def test_pulls_of_many_queues_are_held_side_by_side(world, peer):
    await peer.send()
    frames = [
        peer.frame(Call.PULL, peer.held_pull_frame(offset=int(queue == 0)).fields | {"queueId": queue})
        for queue in range(4)
    ]
    peer.put(*frames)
    await world.advance(10)
    assert (await peer.send(body=b"second", e=2)).code == Result.SUCCESS
    assert bodies_in(await peer.answer_to(frames[2])) == [b"second"]
    await asyncio.sleep(0)
    assert [peer.answer_now(frame) is None for frame in frames] == [True, True, False, True]


async def test_pulls_of_a_paused_topic_find_nothing_and_held_ones_are_answered_by_the_resume(world, peer):
    await store(world, b"a", b"b")
    await world.engine.topics.pause("orders")
    answer = await peer.pull(offset=1)
    assert (answer.code, bounds(answer)) == (Result.PULL_NOT_FOUND, (1, 0, 2))
    held, short = peer.held_pull_frame(), peer.held_pull_frame(wait_ms=2_000)
    peer.put(held)
    peer.put(short)
    await store(world, b"c")
    await world.advance(1_999)
    assert peer.answer_now(held) is None
    assert peer.answer_now(short) is None
    await world.advance(1)
    assert (await peer.answer_to(short)).code == Result.PULL_NOT_FOUND
    await world.engine.topics.resume("orders")
    assert bodies_in(await peer.answer_to(held)) == [b"a", b"b", b"c"]


async def test_a_stop_answers_the_held_pulls_of_a_paused_topic(world, remoting, peer):
    await store(world, b"a")
    await world.engine.topics.pause("orders")
    frame = peer.held_pull_frame()
    peer.put(frame)
    await world.advance(1)
    await remoting.close()
    answer = peer.answer_now(frame)
    assert answer is not None
    assert answer.code == Result.PULL_NOT_FOUND


async def test_a_pull_passes_over_messages_whose_ttl_is_over(world, peer):
    await store(world, b"a", b"b", TIMER_TTL_MS="10000")
    await store(world, b"c")
    await world.advance(9_999)
    assert bodies_in(await peer.pull()) == [b"a", b"b", b"c"]
    await world.advance(1)
    answer = await peer.pull()
    assert (bodies_in(answer), bounds(answer)) == ([b"c"], (3, 0, 3))
    await store(world, b"d", TIMER_TTL_MS="1")
    await world.advance(1)
    none = await peer.pull(offset=3)
    assert (none.code, bounds(none)[0]) == (Result.PULL_RETRY_NOW, 4)
