"""POP: receive, acknowledge, give back and prolong, over remoting on groups that lease messages."""

import asyncio
import base64

import orjson
import pytest

from bench.wires import rocketmq_pop
from tests.harness.remoting import Caller, Callers, Peer, bodies_in, messages_in, properties_of, remoting_of
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq import pops
from timerwheel.rocketmq.checkpoint import ACKNOWLEDGED_MAX, Checkpoint
from timerwheel.rocketmq.codes import Call, Result
from timerwheel.rocketmq.pops import WAIT_MS_MAX
from timerwheel.rocketmq.pulls import ANSWER_BYTES_MAX, MESSAGES_MAX
from timerwheel.state.groups import DEAD_QUEUE
from timerwheel.tokens import Scope

INVISIBLE_MS = 60_000
GROUP = "poppers"


async def store(world, *bodies, topic="orders", queue=None, **properties):
    for body in bodies:
        await world.engine.sender.send([Outgoing(topic, body, dict(properties), queue=queue)])


def pop_frame(peer, topic="orders", **fields):
    found = {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": INVISIBLE_MS,
        "pollTime": 0,
        "bornTime": 1,
        "initMode": 0,
        "exp": "*",
        "expType": "TAG",
    }
    return peer.frame(Call.POP, found | fields)


async def pop(peer, topic="orders", **fields):
    frame = pop_frame(peer, topic, **fields)
    peer.put(frame)
    return await peer.answer_to(frame)


def checkpoint(message):
    return properties_of(message)["POP_CK"]


def short(message):
    """The checkpoint as clients write it that make their own."""
    return checkpoint(message).rpartition(" ")[0]


def named(message, topic="orders", group=GROUP, extra=None):
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": message.queue,
        "offset": message.queue_offset,
        "extraInfo": checkpoint(message) if extra is None else extra,
    }


async def acknowledge(peer, message, **named_as):
    return await peer.ask(Call.ACKNOWLEDGE, named(message, **named_as))


async def change(peer, message, invisible_ms, **named_as):
    fields = named(message, **named_as) | {"invisibleTime": invisible_ms}
    return await peer.ask(Call.CHANGE_INVISIBLE_TIME, fields)


async def join(peer, group=GROUP):
    """Be a push consumer of the group, as heartbeats say."""
    body = {"clientID": "c", "consumerDataSet": [{"groupName": group, "subscriptionDataSet": []}]}
    assert (await peer.ask(Call.HEARTBEAT, {}, orjson.dumps(body))).code == Result.SUCCESS


# ---------------------------------------------------------------------- pops


async def test_a_pop_leases_messages_of_all_queues_and_says_where_they_are(world, peer):
    await world.engine.topics.change("orders", queues=3)
    await store(world, b"a", queue=0)
    await store(world, b"b", b"c", queue=2)
    answer = await pop(peer)
    assert answer.code == Result.SUCCESS
    messages = messages_in(answer)
    assert sorted((one.queue, one.queue_offset, one.body) for one in messages) == [
        (0, 0, b"a"),
        (2, 0, b"b"),
        (2, 1, b"c"),
    ]
    assert sorted(answer.fields["startOffsetInfo"].split(";")) == ["0 0 0", "0 2 0"]
    assert sorted(answer.fields["msgOffsetInfo"].split(";")) == ["0 0 0", "0 2 0,1"]
    assert answer.fields["restNum"] == "0"
    assert answer.fields["invisibleTime"] == str(INVISIBLE_MS)
    assert answer.fields["popTime"] == str(world.clock.now_ms())
    assert (await pop(peer)).code == Result.POLLING_TIMEOUT


async def test_a_checkpoint_has_the_parts_of_rocketmq_and_a_receipt(world, peer):
    await store(world, b"a", b"b")
    answer = await pop(peer)
    message = messages_in(answer)[1]
    parts = checkpoint(message).split(" ")
    popped = answer.fields["popTime"]
    assert parts[:8] == [
        "0",
        popped,
        str(INVISIBLE_MS),
        answer.fields["reviveQid"],
        "0",
        "timerwheel",
        "0",
        "1",
    ]
    assert Checkpoint.decode(checkpoint(message)).encode() == checkpoint(message)
    held_receipt = world.engine.groups.lease_of("orders", GROUP, 0, 1).receipt
    assert parts[8] == held_receipt


async def test_a_pop_of_nothing_has_the_fields_that_clients_require(peer):
    answer = await pop(peer)
    assert (answer.code, answer.body) == (Result.POLLING_TIMEOUT, b"")
    assert {name: answer.fields[name] for name in ("popTime", "invisibleTime", "reviveQid", "restNum")} == {
        "popTime": "0",
        "invisibleTime": "0",
        "reviveQid": "0",
        "restNum": "0",
    }


async def test_a_pop_returns_no_more_than_the_most_messages_and_says_how_many_are_left(world, peer):
    await store(world, *[b"%d" % n for n in range(MESSAGES_MAX + 5)])
    answer = await pop(peer, maxMsgNums=1_000)
    assert (len(messages_in(answer)), answer.fields["restNum"]) == (MESSAGES_MAX, "5")
    assert len(messages_in(await pop(peer, maxMsgNums=2))) == 2


async def test_a_pop_stays_near_its_bytes(world):
    peer = Peer(remoting_of(await world.open(segment_size_bytes=64 << 20, batch_bytes_max=64 << 20)))
    await store(world, *[bytes(ANSWER_BYTES_MAX // 2)] * 3)
    assert [len(one.body) for one in messages_in(await pop(peer))] == [ANSWER_BYTES_MAX // 2] * 2


async def test_a_popped_message_looks_as_a_pulled_one(world, peer):
    await peer.send(body=b"x", properties={"UNIQ_KEY": "7F", "KEYS": "k", "TIMER_DELAY_MS": "1000"}, h=9, g=5)
    await peer.send(body=b"y", properties={"DELAY": "1", "TAGS": "A"})
    await world.advance(1_000)
    pulled = {one.body: one for queue in range(4) for one in messages_in(await peer.pull(queueId=queue))}
    popped = {one.body: one for one in messages_in(await pop(peer))}
    for body, one in popped.items():
        like = pulled[body]
        found = properties_of(one)
        del found["POP_CK"]
        assert found == properties_of(like)
        for name in (
            "topic",
            "queue",
            "queue_offset",
            "born_ms",
            "born_host",
            "store_ms",
            "flag",
            "sys_flag",
        ):
            assert getattr(one, name) == getattr(like, name)
        assert one.consumed_before == 0
        view = await peer.ask(Call.VIEW_MESSAGE, {"offset": one.log_offset})
        assert bodies_in(view) == [body]


async def test_a_committed_transaction_says_so_when_it_is_popped(peer):
    answer = await peer.send(body=b"paid", properties={"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "7F"})
    half = int(answer.fields["msgId"][16:], 16)
    fields = {"producerGroup": "p", "tranStateTableOffset": 0, "commitLogOffset": half, "commitOrRollback": 8}
    await peer.ask(Call.END_TRANSACTION, fields)
    [pulled] = messages_in(await peer.pull())
    [popped] = messages_in(await pop(peer))
    assert (popped.sys_flag, popped.half_offset) == (pulled.sys_flag, pulled.half_offset) == (8, half)
    assert properties_of(popped)["TRAN_MSG"] == "true"


@pytest.mark.parametrize(("mode", "expected"), [(0, [b"kept", b"new"]), (1, [b"kept", b"new"])])
async def test_a_group_begins_at_the_first_message_of_a_young_topic(world, peer, mode, expected):
    await store(world, b"kept", b"new")
    assert bodies_in(await pop(peer, initMode=mode)) == expected


async def test_a_group_filters_tags_and_another_filter_is_refused(world, peer):
    for tag in "ABC":
        await store(world, tag.encode(), TAGS=tag)
    assert bodies_in(await pop(peer, exp="B || A")) == [b"A", b"B"]
    refused = await pop(peer, exp="C")
    assert (refused.code, "has the tags" in refused.remark) == (Result.NO_PERMISSION, True)
    assert (await pop(peer, exp=" A||B|| ")).code == Result.POLLING_TIMEOUT
    assert (await pop(peer, exp="a > 1", expType="SQL92")).code == Result.SYSTEM_ERROR


async def test_a_pop_may_name_a_queue_that_the_topic_has(world, peer):
    await store(world, b"a")
    assert (await pop(peer, queueId=1)).code == Result.SYSTEM_ERROR
    assert (await pop(peer, queueId=-2)).code == Result.SYSTEM_ERROR
    assert bodies_in(await pop(peer, queueId=0)) == [b"a"]


async def test_an_ordered_pop_needs_an_ordered_topic_and_gets_one_message_of_each_key(world, peer):
    for key in "kkl":
        await store(world, key.encode(), __SHARDINGKEY=key)
    assert "is not ordered" in (await pop(peer, order="true")).remark
    await world.engine.topics.change("orders", ordered=True)
    first = messages_in(await pop(peer, order="true"))
    assert [one.body for one in first] == [b"k", b"l"]
    assert (await pop(peer, order="true")).code == Result.POLLING_TIMEOUT
    await acknowledge(peer, first[0])
    assert bodies_in(await pop(peer, order="true")) == [b"k"]


@pytest.mark.parametrize("invisible_ms", [0, -1, (12 * 3_600_000) + 1, "soon", ""])
async def test_an_invisible_time_out_of_range_is_refused(peer, invisible_ms):
    answer = await pop(peer, invisibleTime=invisible_ms)
    assert (answer.code, "invisibleTime" in answer.remark) == (Result.SYSTEM_ERROR, True)


async def test_a_lease_is_never_shorter_than_the_redelivery_delay(world, peer):
    await store(world, b"a")
    least_ms = world.engine.settings.redelivery_delay_ms
    assert (await pop(peer, invisibleTime=1)).fields["invisibleTime"] == str(least_ms)


async def test_a_damaged_message_is_left_out_and_does_not_come_again_at_once(world, peer, caplog):
    await store(world, b"a" * 100, b"b")
    await world.roll()
    await world.restart()
    peer = Peer(remoting_of(world.engine))
    _, positions = await world.engine.queues.positions("orders", 0, 0, 1)
    log = world.engine.core.log
    place = int(positions["offset"][0]) - log.bases[0] + 150
    world.files.names_now[str(log.path(log.bases[0]))].data[place] ^= 1
    answer = await pop(peer)
    assert (bodies_in(answer), answer.fields["msgOffsetInfo"]) == ([b"b"], "0 0 1")
    assert "cannot be read" in caplog.text
    assert (await acknowledge(peer, messages_in(answer)[0])).code == Result.SUCCESS
    assert (await pop(peer)).code == Result.POLLING_TIMEOUT


# ---------------------------------------------------------------------- waiting


async def test_a_pop_waits_for_a_message(world, peer):
    frame = pop_frame(peer, pollTime=15_000)
    peer.put(frame)
    await world.advance(0)
    assert peer.answer_now(frame) is None
    await store(world, b"late")
    assert bodies_in(await peer.answer_to(frame)) == [b"late"]


async def test_a_pop_waits_for_its_time_and_no_longer_than_the_most(world, peer):
    waits = {5_000: 5_000, 10 * WAIT_MS_MAX: WAIT_MS_MAX}
    for asked_ms, wait_ms in waits.items():
        frame = pop_frame(peer, pollTime=asked_ms)
        peer.put(frame)
        await world.advance(0)
        await world.advance(wait_ms - 1)
        assert peer.answer_now(frame) is None
        await world.advance(1)
        assert (await peer.answer_to(frame)).code == Result.POLLING_TIMEOUT


async def test_more_pops_than_may_be_held_are_answered_at_once(world, monkeypatch):
    monkeypatch.setattr(pops, "HELD_MAX", 1)
    peer = Peer(remoting_of(await world.open()))
    first = pop_frame(peer, pollTime=15_000)
    peer.put(first)
    await world.advance(0)
    assert (await pop(peer, pollTime=15_000)).code == Result.POLLING_FULL
    await store(world, b"a")
    assert bodies_in(await peer.answer_to(first)) == [b"a"]


async def test_nothing_is_leased_for_a_client_that_left_or_does_not_read(world, remoting):
    gone, deaf, there = Peer(remoting), Peer(remoting), Peer(remoting)
    for one in (gone, deaf):
        one.put(pop_frame(one, pollTime=15_000))
    await world.advance(0)
    gone.wire.close()
    deaf.connection.pause_writing()
    await world.advance(0)
    await store(world, b"a")
    await world.advance(0)
    assert bodies_in(await pop(there)) == [b"a"]


async def test_a_stop_answers_pops_that_wait(world, remoting):
    peer = Peer(remoting)
    frame = pop_frame(peer, pollTime=15_000)
    peer.put(frame)
    await world.advance(0)
    closing = asyncio.create_task(remoting.close())
    assert (await peer.answer_to(frame)).code == Result.POLLING_TIMEOUT
    await closing


async def test_a_notification_says_when_there_are_messages(world, peer):
    fields = {"consumerGroup": GROUP, "topic": "orders", "queueId": -1, "pollTime": 0, "bornTime": 0}
    assert (await peer.ask(Call.NOTIFICATION, fields)).code == Result.GROUP_NOT_EXIST
    await pop(peer)
    answer = await peer.ask(Call.NOTIFICATION, fields)
    assert answer.fields == {"hasMsg": "false", "pollingFull": "false"}
    frame = peer.frame(Call.NOTIFICATION, fields | {"pollTime": 15_000})
    peer.put(frame)
    await world.advance(0)
    assert peer.answer_now(frame) is None
    await store(world, b"a")
    assert (await peer.answer_to(frame)).fields["hasMsg"] == "true"
    assert bodies_in(await pop(peer)) == [b"a"]
    assert (await peer.ask(Call.NOTIFICATION, fields)).fields["hasMsg"] == "false"


async def test_a_notification_leaves_the_message_to_a_pop_that_waits(world, remoting):
    told, popper = Peer(remoting), Peer(remoting)
    await pop(popper)
    fields = {"consumerGroup": GROUP, "topic": "orders", "queueId": -1, "pollTime": 15_000, "bornTime": 0}
    told.put(told.frame(Call.NOTIFICATION, fields))
    await world.advance(0)
    frame = pop_frame(popper, pollTime=15_000)
    popper.put(frame)
    await world.advance(0)
    await store(world, b"a")
    assert bodies_in(await popper.answer_to(frame)) == [b"a"]


# ---------------------------------------------------------------------- acknowledgements


async def test_an_acknowledged_message_is_done_and_may_be_acknowledged_again(world, peer):
    await store(world, b"a", b"b")
    first, second = messages_in(await pop(peer))
    for _ in range(2):
        assert (await acknowledge(peer, first)).code == Result.SUCCESS
    await world.advance(INVISIBLE_MS + 1_000)
    [again] = messages_in(await pop(peer))
    assert (again.body, again.consumed_before) == (second.body, 1)


async def test_a_client_may_write_the_checkpoint_itself(world, peer):
    await store(world, b"a", b"b")
    first, second = messages_in(await pop(peer))
    assert (await acknowledge(peer, second, extra=short(second))).code == Result.SUCCESS
    assert (await acknowledge(peer, second, extra=short(second))).code == Result.NO_MESSAGE
    assert (await acknowledge(peer, first)).code == Result.SUCCESS


async def test_a_checkpoint_of_an_earlier_pop_is_not_that_of_the_lease(world, peer):
    await store(world, b"a")
    [first] = messages_in(await pop(peer))
    await world.advance(INVISIBLE_MS)
    await world.advance(1_000)
    [again] = messages_in(await pop(peer))
    assert (await acknowledge(peer, first, extra=short(first))).code == Result.NO_MESSAGE
    assert (await acknowledge(peer, first)).code == Result.NO_MESSAGE
    assert (await acknowledge(peer, again, extra=short(again))).code == Result.SUCCESS


async def test_many_are_acknowledged_with_bits(world, peer):
    await world.engine.topics.change("orders", queues=2)
    await store(world, *[b"%d" % n for n in range(20)], queue=1)
    await store(world, b"zero", queue=0)
    answer = await pop(peer)
    parts = [
        {
            "c": GROUP,
            "t": "orders",
            "r": "0",
            "so": 0,
            "q": queue,
            "rq": int(answer.fields["reviveQid"]),
            "pt": int(answer.fields["popTime"]),
            "it": INVISIBLE_MS,
            "b": base64.b64encode(bits).decode(),
        }
        for queue, bits in ((0, b"\x01"), (1, b"\xff\xff\x07"))
    ]
    body = orjson.dumps({"brokerName": "timerwheel", "acks": parts})
    assert (await peer.ask(Call.ACKNOWLEDGE_BATCH, {}, body)).code == Result.SUCCESS
    await world.advance(INVISIBLE_MS + 1_000)
    assert bodies_in(await pop(peer)) == [b"19"]
    again = await peer.ask(Call.ACKNOWLEDGE_BATCH, {}, body)
    assert (again.code, "20 of 20" in again.remark) == (Result.NO_MESSAGE, True)


@pytest.mark.parametrize(
    "part",
    [
        {"b": "!"},
        {"so": -1},
        {"so": (1 << 48) - 1, "b": base64.b64encode(b"\x02").decode()},
        {"q": DEAD_QUEUE + 1},
        {"rq": 1 << 31},
        {"b": base64.b64encode(b"\xff" * (ACKNOWLEDGED_MAX // 8 + 1)).decode()},
        {"b": base64.b64encode(b"\x01" * (ACKNOWLEDGED_MAX + 1)).decode()},
        {"c": 7},
    ],
)
async def test_a_batch_that_cannot_be_is_refused_and_changes_nothing(peer, part):
    whole = {"c": GROUP, "t": "orders", "r": "0", "so": 0, "q": 0, "rq": 1, "pt": 1, "it": 1, "b": "AQ=="}
    answer = await peer.ask(Call.ACKNOWLEDGE_BATCH, {}, orjson.dumps({"acks": [whole | part]}))
    assert answer.code == Result.MESSAGE_ILLEGAL
    assert (await peer.ask(Call.ACKNOWLEDGE_BATCH, {}, b"[[")).code == Result.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    "extra",
    [
        "",
        "0 1 2 3 0 b 0",
        "0 1 2 3 0 b 0 0 r more",
        "x 1 2 3 0 b 0 0",
        "0 1 2 3 0 b -1 0",
        f"0 1 2 3 0 b {DEAD_QUEUE + 1} 0",
        f"0 1 2 3 0 b 0 {1 << 48}",
        "9" * 2_000,
        "0 1 2 3 0 b 0 " + "9" * 20,
    ],
)
async def test_what_is_no_checkpoint_is_refused(peer, extra):
    fields = {"consumerGroup": GROUP, "topic": "orders", "queueId": 0, "offset": 0, "extraInfo": extra}
    assert (await peer.ask(Call.ACKNOWLEDGE, fields)).code == Result.MESSAGE_ILLEGAL


async def test_a_receipt_is_good_for_its_group_alone(world, peer):
    await store(world, b"a")
    [message] = messages_in(await pop(peer))
    await pop(peer, consumerGroup="others")
    assert (await acknowledge(peer, message, group="others")).code == Result.NO_MESSAGE
    assert (await acknowledge(peer, message, group="unknown")).code == Result.GROUP_NOT_EXIST
    assert (await acknowledge(peer, message)).code == Result.SUCCESS


# ---------------------------------------------------------------------- failing and prolonging


async def test_what_a_push_consumer_failed_comes_back_after_its_delay_even_after_a_crash(world, peer):
    await join(peer)
    await store(world, b"a")
    [message] = messages_in(await pop(peer))
    answer = await change(peer, message, 10_000)
    assert (answer.code, answer.fields["invisibleTime"]) == (Result.SUCCESS, "10000")
    peer = Peer(remoting_of(await world.crash()))
    await world.advance(9_999)
    assert (await pop(peer)).code == Result.POLLING_TIMEOUT
    await world.advance(1)
    [again] = messages_in(await pop(peer))
    assert (again.body, again.consumed_before) == (b"a", 1)
    assert (await acknowledge(peer, message)).code == Result.NO_MESSAGE


async def test_a_push_consumer_cannot_have_a_message_sooner_than_the_redelivery_delay(world, peer):
    await join(peer)
    await store(world, b"a")
    [message] = messages_in(await pop(peer))
    await change(peer, message, 0)
    await world.advance(world.engine.settings.redelivery_delay_ms - 1)
    assert (await pop(peer)).code == Result.POLLING_TIMEOUT
    await world.advance(1)
    assert bodies_in(await pop(peer)) == [b"a"]


async def test_after_the_last_attempt_a_message_is_a_dead_letter(world, peer):
    await world.engine.groups.put("orders", GROUP, GroupConfig(max_attempts=2))
    await join(peer)
    await store(world, b"poison", KEYS="k")
    for attempt in (1, 2):
        [message] = messages_in(await pop(peer))
        assert message.consumed_before == attempt - 1
        assert (await change(peer, message, 1_000)).code == Result.SUCCESS
        await world.advance(1_000)
    assert (await pop(peer)).code == Result.POLLING_TIMEOUT
    [letter] = (await world.engine.groups.dead.page(GROUP)).letters
    assert (letter.message.body, letter.attempts) == (b"poison", 2)
    assert letter.reason == "its consumer could not process it"


async def test_a_redriven_dead_letter_is_popped_and_acknowledged_like_any_other(world, peer):
    await world.engine.groups.put("orders", GROUP, GroupConfig(max_attempts=1))
    await join(peer)
    await store(world, b"poison")
    [message] = messages_in(await pop(peer))
    await change(peer, message, 1_000)
    await world.engine.groups.dead.redrive(GROUP, [0])
    await world.advance(1_000)
    [again] = messages_in(await pop(peer))
    assert (again.body, again.topic, again.queue) == (b"poison", "orders", DEAD_QUEUE)
    assert (await acknowledge(peer, again, extra=short(again))).code == Result.SUCCESS
    await world.advance(INVISIBLE_MS)
    assert (await pop(peer)).code == Result.POLLING_TIMEOUT


async def test_any_other_client_prolongs_its_lease_and_may_acknowledge_it(world, peer):
    await store(world, b"a")
    [message] = messages_in(await pop(peer))
    await world.advance(INVISIBLE_MS - 1)
    answer = await change(peer, message, INVISIBLE_MS)
    fields = answer.fields
    await world.advance(INVISIBLE_MS - 1)
    assert (await pop(peer)).code == Result.POLLING_TIMEOUT
    own = f"0 {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 timerwheel 0 0"
    assert (await acknowledge(peer, message, extra=own)).code == Result.SUCCESS


async def test_a_refused_change_tells_nothing_of_the_lease_of_another(world, peer):
    await store(world, b"a")
    [first] = messages_in(await pop(peer))
    await world.advance(INVISIBLE_MS)
    await world.advance(1_000)
    await pop(peer)
    answer = await change(peer, first, 1_000)
    assert answer.code == Result.NO_MESSAGE
    assert answer.fields["reviveQid"] == short(first).split(" ")[3]


async def test_a_lease_that_has_ended_cannot_be_changed(world, peer):
    await store(world, b"a")
    [message] = messages_in(await pop(peer))
    await acknowledge(peer, message)
    for _ in range(2):
        answer = await change(peer, message, 1_000)
        assert (answer.code, "popTime" in answer.fields) == (Result.NO_MESSAGE, True)
        await join(peer)


# ---------------------------------------------------------------------- rights, and other consumers


async def test_each_call_needs_the_scope_and_the_topic(world):
    callers = Callers(
        nobody=Caller(Scope.RECEIVE, topics=("orders",)), sender=Caller(Scope.SEND), all=Caller(*Scope)
    )
    remoting = remoting_of(await world.open(), callers)
    owner = Peer(remoting, "all")
    await store(world, b"a", topic="secret")
    [message] = messages_in(await pop(owner, "secret"))
    part = {"c": GROUP, "t": "secret", "r": "0", "so": 0, "q": 0, "rq": 1, "pt": 1, "it": 1, "b": "AQ=="}
    query = {"topic": "secret", "consumerGroup": GROUP, "clientId": "c"}
    notification = {"consumerGroup": GROUP, "topic": "secret", "queueId": -1, "pollTime": 0, "bornTime": 0}
    for token in ("", "sender"):
        peer = Peer(remoting, token)
        answers = [
            await pop(peer, "secret"),
            await acknowledge(peer, message, topic="secret"),
            await change(peer, message, 1_000, topic="secret"),
            await peer.ask(Call.NOTIFICATION, notification),
            await peer.ask(Call.ACKNOWLEDGE_BATCH, {}, orjson.dumps({"acks": [part]})),
            await peer.ask(Call.QUERY_ASSIGNMENT, {}, orjson.dumps(query)),
            await peer.ask(Call.SET_REQUEST_MODE, {}, orjson.dumps(query | {"mode": "POP"})),
        ]
        assert [answer.code for answer in answers] == [Result.NO_PERMISSION] * 7
    stranger = Peer(remoting)
    await pop(stranger)
    refused = await acknowledge(stranger, message)  # a receipt of a topic that the token must not read
    assert refused.code == Result.NO_MESSAGE
    assert (await acknowledge(owner, message, topic="secret")).code == Result.SUCCESS


async def test_the_topic_of_retries_is_not_popped(peer):
    answer = await pop(peer, f"%RETRY%{GROUP}")
    assert (answer.code, "cannot be popped" in answer.remark) == (Result.NO_PERMISSION, True)


async def test_a_group_is_shared_with_consumers_over_http(world, peer):
    await store(world, *[b"%d" % n for n in range(4)])
    mine = messages_in(await pop(peer, maxMsgNums=2))
    theirs = await world.engine.groups.receive("orders", GROUP, count_max=9)
    assert [one.body for one in mine] + [one.message.body for one in theirs] == [b"0", b"1", b"2", b"3"]
    assert (await acknowledge(peer, mine[0])).code == Result.SUCCESS
    checkpoint_of_theirs = f"0 1 2 3 0 timerwheel 0 2 {theirs[0].receipt}"
    assert (await acknowledge(peer, mine[1], extra=checkpoint_of_theirs)).code == Result.SUCCESS
    assert world.engine.groups.info("orders", GROUP).in_flight == 2


async def test_a_group_that_commits_offsets_cannot_pop(world, peer):
    await store(world, b"a")
    await world.engine.groups.put("orders", GROUP, GroupConfig(kind="offsets"))
    answer = await pop(peer)
    assert (answer.code, "is of kind 'offsets'" in answer.remark) == (Result.NO_PERMISSION, True)


# ---------------------------------------------------------------------- assignments


async def assigned(peer, client="c", topic="orders", group=GROUP, **more):
    query = {"topic": topic, "consumerGroup": group, "clientId": client, **more}
    answer = await peer.ask(Call.QUERY_ASSIGNMENT, {}, orjson.dumps(query))
    assert answer.code == Result.SUCCESS
    found = orjson.loads(answer.body)["messageQueueAssignments"]
    return None if found is None else [(one["messageQueue"]["queueId"], one["mode"]) for one in found]


async def set_mode(peer, mode, group=GROUP):
    body = orjson.dumps({"topic": "orders", "consumerGroup": group, "mode": mode, "popShareQueueNum": 0})
    return await peer.ask(Call.SET_REQUEST_MODE, {}, body)


async def test_a_group_pops_once_it_was_told_to_and_after_a_crash_too(world, peer):
    await join(peer)
    assert await assigned(peer) == [(queue, "PULL") for queue in range(4)]
    assert (await set_mode(peer, "POP")).code == Result.SUCCESS
    assert await assigned(peer) == [(-1, "POP")]
    peer = Peer(remoting_of(await world.crash()))
    assert await assigned(peer) == [(-1, "POP")]
    assert (await set_mode(peer, "POP")).code == Result.SUCCESS


async def test_mqadmin_sees_the_progress_of_a_group_that_pops(world, peer):
    await store(world, *[b"%d" % n for n in range(5)])
    await pop(peer, maxMsgNums=3)
    answer = await peer.ask(Call.CONSUME_STATS, {"consumerGroup": GROUP, "topic": "orders"})
    assert b'"brokerOffset":5,"consumerOffset":3' in answer.body
    groups = await peer.ask(Call.GROUPS_OF_TOPIC, {"topic": "orders"})
    assert orjson.loads(groups.body) == {"groupList": [GROUP]}


async def test_the_mode_of_a_group_cannot_be_changed(peer):
    await set_mode(peer, "POP")
    await set_mode(peer, "PULL", "pullers")
    for mode, group in (("PULL", GROUP), ("POP", "pullers")):
        assert (await set_mode(peer, mode, group)).code == Result.NO_PERMISSION
    assert (await set_mode(peer, "PUSH")).code == Result.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [("AVG", [[0, 1, 2], [3, 4], [5, 6]]), ("AVG_BY_CIRCLE", [[0, 3, 6], [1, 4], [2, 5]])],
)
async def test_consumers_that_pull_share_the_queues(world, peer, strategy, shares):
    await world.engine.topics.change("orders", queues=7)
    for client in "cab":
        body = {"clientID": client, "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": []}]}
        await peer.ask(Call.HEARTBEAT, {}, orjson.dumps(body))
    found = [await assigned(peer, client, strategyName=strategy) for client in "abc"]
    assert [[queue for queue, _ in each] for each in found] == shares
    assert await assigned(peer, "a", strategyName="MACHINE_ROOM") is None
    assert await assigned(peer, "stranger") is None
    everything = await assigned(peer, "a", messageModel="BROADCASTING")
    assert len(everything) == 7


async def test_a_query_that_is_malformed_is_refused(peer):
    for code in (Call.QUERY_ASSIGNMENT, Call.SET_REQUEST_MODE):
        assert (await peer.ask(code, {}, b"{")).code == Result.SYSTEM_ERROR


# ---------------------------------------------------------------------- the load of the benchmark


@pytest.mark.parametrize(("count_max", "ack_with_next"), [(1, False), (8, True)])
async def test_the_benchmarks_worker_pops_and_acknowledges_all(world, peer, count_max, ack_with_next):
    bodies = [b"%d" % n for n in range(20)]
    await store(world, *bodies)
    spec = {"topic": "orders", "count_max": count_max, "ack_with_next": ack_with_next}
    worker = rocketmq_pop.Worker(spec)
    peer.connection.data_received(worker.begin())
    finished = []
    for _ in range(2_000):
        if len(finished) == len(bodies):
            break
        await asyncio.sleep(0)
        written = bytes(peer.wire.written)
        peer.wire.written.clear()
        found = worker.feed(written)
        finished += found.bodies
        if found.reply:
            peer.connection.data_received(found.reply)
    assert sorted(finished) == sorted(bodies)
    await world.advance(0)
    counts = world.engine.groups.info("orders", rocketmq_pop.GROUP)
    assert (counts.lag, counts.in_flight, counts.waiting) == (0, 0, 0)


async def test_a_pop_of_a_paused_topic_waits_for_the_resume(world, peer):
    await store(world, b"a")
    await world.engine.topics.pause("orders")
    assert (await pop(peer)).code == Result.POLLING_TIMEOUT
    frame = pop_frame(peer, pollTime=10_000, bornTime=world.clock.now_ms())
    peer.put(frame)
    await world.advance(1_000)
    assert peer.answer_now(frame) is None
    await world.engine.topics.resume("orders")
    assert bodies_in(await peer.answer_to(frame)) == [b"a"]


async def test_a_pop_has_no_message_whose_ttl_is_over(world, peer):
    await store(world, b"a", b"b", TIMER_TTL_MS="10000")
    await store(world, b"c")
    await world.advance(9_999)
    assert bodies_in(await pop(peer, maxMsgNums=1)) == [b"a"]
    await world.advance(1)
    assert bodies_in(await pop(peer)) == [b"c"]
    assert (await pop(peer)).code == Result.POLLING_TIMEOUT
