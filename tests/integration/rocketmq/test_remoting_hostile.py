"""Clients that take more than their share: each limit of a connection, and what is kept of it in memory."""

import asyncio
import struct
import zlib

import orjson
import pytest
from msgspec.structs import replace

from tests.harness.gated_threads import spin
from tests.harness.remoting import Caller, Callers, Peer, bodies_in, messages_in, remoting_of
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq import locks, members, producers, pulls, repeats
from timerwheel.rocketmq.codes import SYS_COMPRESSED, Call, Result
from timerwheel.rocketmq.connection import FRAME_MS_MAX, UNREAD_BYTES_MAX
from timerwheel.rocketmq.frame import HEADER_BYTES_MAX, encode
from timerwheel.rocketmq.front import LARGE_BYTES
from timerwheel.rocketmq.locks import LOCK_MS
from timerwheel.rocketmq.members import HEARTBEAT_BYTES_MAX
from timerwheel.rocketmq.repeats import KEY_CHARACTERS_MAX
from timerwheel.tokens import Scope


def heartbeat(client="one", consumers=(), makers=()):
    return orjson.dumps(
        {
            "clientID": client,
            "consumerDataSet": [{"groupName": name} for name in consumers],
            "producerDataSet": [{"groupName": name} for name in makers],
        }
    )


def lock_body(*queues, group="readers"):
    named = [{"topic": "orders", "brokerName": "b", "queueId": queue} for queue in queues]
    return orjson.dumps({"consumerGroup": group, "clientId": "one", "mqSet": named})


async def test_a_header_that_no_request_needs_closes_the_connection(world, peer):
    header = b'{"code":105,"opaque":1,"extFields":{"a":"%b"}}' % (b"x" * HEADER_BYTES_MAX)
    peer.connection.data_received(struct.pack(">iI", 4 + len(header), len(header)) + header)
    await world.advance(1)
    assert peer.connection.is_closed


async def test_a_request_that_comes_too_slowly_closes_the_connection(world, remoting, peer):
    data = encode(peer.send_frame(body=b"slow"))
    for byte in data[: FRAME_MS_MAX // 1_000 - 1]:
        peer.connection.data_received(bytes((byte,)))
        await world.advance(1_000)
        remoting.look()
    assert not peer.connection.is_closed
    await world.advance(1_000)
    remoting.look()
    await world.advance(1)
    assert peer.connection.is_closed


async def test_many_requests_in_a_row_are_not_one_slow_request(world, remoting, peer):
    rest = b""
    for _ in range(2 * FRAME_MS_MAX // 1_000):
        data = rest + encode(peer.send_frame())
        peer.connection.data_received(data[:-1])
        rest = data[-1:]
        await world.advance(1_000)
        remoting.look()
    assert not peer.connection.is_closed


async def test_a_client_that_does_not_read_is_sent_no_more_messages(world, peer):
    await world.engine.sender.send([Outgoing("orders", b"x")])
    peer.wire.unread_bytes = UNREAD_BYTES_MAX + 1
    peer.connection.pause_writing()
    await peer.ask(Call.ROUTE, {"topic": "orders"})
    answer = await peer.pull()
    assert (answer.code, answer.fields["nextBeginOffset"]) == (Result.PULL_RETRY_NOW, "0")
    peer.wire.unread_bytes = 0
    peer.connection.resume_writing()
    assert bodies_in(await peer.pull()) == [b"x"]


async def test_the_pulls_of_one_connection_leave_room_for_others(world, remoting, peer, monkeypatch):
    monkeypatch.setattr(pulls, "HELD_OF_CONNECTION_MAX", 2)
    peer.put(peer.held_pull_frame(), peer.held_pull_frame())
    await world.advance(10)
    frame = peer.held_pull_frame()
    peer.put(frame)
    assert (await peer.answer_to(frame)).code == Result.SYSTEM_BUSY
    other = Peer(remoting)
    held = other.held_pull_frame()
    other.put(held)
    await world.advance(10)
    assert other.answer_now(held) is None
    peer.wire.close()
    await world.advance(10)
    again = Peer(remoting)
    held = again.held_pull_frame()
    again.put(held)
    await world.advance(10)
    assert again.answer_now(held) is None


async def test_a_client_is_in_no_more_groups_than_the_most(peer, monkeypatch):
    monkeypatch.setattr(members, "GROUPS_MAX", 2)
    assert (await peer.ask(Call.HEARTBEAT, body=heartbeat("one", ["a", "b"]))).code == Result.SUCCESS
    assert (await peer.ask(Call.HEARTBEAT, body=heartbeat("one", ["a", "b"]))).code == Result.SUCCESS
    for client, group in (("one", "c"), ("two", "a")):
        answer = await peer.ask(Call.HEARTBEAT, body=heartbeat(client, [group]))
        assert answer.code == Result.SYSTEM_ERROR
        assert "in 2 groups; leave some first" in answer.remark
    await peer.ask(Call.UNREGISTER, {"clientID": "one", "consumerGroup": "a"})
    assert (await peer.ask(Call.HEARTBEAT, body=heartbeat("two", ["a"]))).code == Result.SUCCESS


async def test_heartbeats_are_not_kept_beyond_their_bytes(peer, monkeypatch):
    answer = await peer.ask(Call.HEARTBEAT, body=b" " * (HEARTBEAT_BYTES_MAX + 1))
    assert (answer.code, "bytes" in answer.remark) == (Result.SYSTEM_ERROR, True)
    monkeypatch.setattr(members, "MEMBERS_BYTES_MAX", 300)
    assert (await peer.ask(Call.HEARTBEAT, body=heartbeat("one", ["a"]))).code == Result.SUCCESS
    answer = await peer.ask(Call.HEARTBEAT, body=heartbeat("two", ["b" * 250]))
    assert answer.code == Result.SYSTEM_ERROR


def subscribed(client, topic, group="readers"):
    one = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "paid"}]}
    return orjson.dumps({"clientID": client, "consumerDataSet": [one]})


async def strangers(world):
    """Two clients of one group, whose tokens have no topic in common."""
    callers = Callers(
        orders=Caller(Scope.RECEIVE, topics=("orders",)), bills=Caller(Scope.RECEIVE, topics=("bills",))
    )
    remoting = remoting_of(await world.open(), callers)
    found = Peer(remoting, "orders"), Peer(remoting, "bills")
    for peer, topic in zip(found, ("orders", "bills"), strict=True):
        assert (await peer.ask(Call.HEARTBEAT, body=subscribed(f"reader of {topic}", topic))).code == 0
    return found


async def test_the_clients_of_a_group_are_not_for_strangers_to_see(world):
    for peer, topic in zip(await strangers(world), ("orders", "bills"), strict=True):
        answer = await peer.ask(Call.CONSUMER_CONNECTIONS, {"consumerGroup": "readers"})
        seen = orjson.loads(answer.body)
        assert [one["clientId"] for one in seen["connectionSet"]] == [f"reader of {topic}"]
        assert [*seen["subscriptionTable"]] == [topic]
        nobody = await peer.ask(Call.CONSUMER_CONNECTIONS, {"consumerGroup": "others"})
        assert (nobody.code, nobody.body) == (Result.CONSUMER_NOT_ONLINE, b"")


async def test_a_stranger_that_joins_a_group_and_leaves_notifies_nobody(world):
    reader, stranger = await strangers(world)
    reader.told.clear()
    for _ in range(3):
        await stranger.ask(Call.HEARTBEAT, body=subscribed("theirs", "bills"))
        await stranger.ask(Call.UNREGISTER, {"clientID": "theirs", "consumerGroup": "readers"})
    await reader.ask(Call.ROUTE, {"topic": "orders"})
    assert reader.told == []


async def test_a_stranger_does_not_lock_others_out_of_their_retries(world):
    reader, stranger = await strangers(world)
    queue = {"topic": "%RETRY%readers", "brokerName": "b", "queueId": 0}

    async def locks_it(peer, client):
        body = {"consumerGroup": "readers", "clientId": client, "mqSet": [queue]}
        answer = await peer.ask(Call.LOCK_QUEUES, body=orjson.dumps(body))
        return bool(orjson.loads(answer.body)["lockOKMQSet"])

    assert await locks_it(stranger, "reader of bills")
    assert await locks_it(reader, "reader of orders")
    assert not await locks_it(reader, "second")  # of the same token, so they share the queue
    assert await locks_it(stranger, "reader of bills")


async def test_a_client_is_notified_no_more_while_it_does_not_read(remoting, peer):
    await peer.ask(Call.HEARTBEAT, body=heartbeat("one", ["readers"]))
    peer.told.clear()
    peer.wire.unread_bytes = UNREAD_BYTES_MAX + 1
    other = Peer(remoting)
    for _ in range(3):
        await other.ask(Call.HEARTBEAT, body=heartbeat("two", ["readers"]))
        await other.ask(Call.UNREGISTER, {"clientID": "two", "consumerGroup": "readers"})
    await peer.ask(Call.ROUTE, {"topic": "orders"})
    assert len(peer.told) <= 1


async def test_a_client_that_left_while_its_heartbeat_waited_is_in_no_group(world, remoting, peer):
    confirmed, lead = asyncio.Event(), world.engine.lead
    until_ms, lead.confirm = lead.until_ms, confirmed.wait
    lead.until_ms = lambda: 0
    leaver = Peer(remoting)
    leaver.put(leaver.frame(Call.HEARTBEAT, {}, heartbeat("gone", ["readers"], ["makers"])))
    await world.advance(1)
    leaver.wire.close()
    await world.advance(1)
    confirmed.set()
    await world.advance(1)
    lead.until_ms = until_ms
    answer = await peer.ask(Call.CONSUMER_LIST, {"consumerGroup": "readers"})
    assert (answer.code, answer.body) == (Result.SYSTEM_ERROR, b"")


async def test_what_all_clients_say_of_themselves_is_limited(remoting, peer, monkeypatch):
    body = heartbeat("one", ["a" * 100])
    monkeypatch.setattr(members, "ALL_MEMBERS_BYTES_MAX", 2 * len(body) - 1)
    for _ in range(2):
        assert (await peer.ask(Call.HEARTBEAT, body=body)).code == Result.SUCCESS
    other = Peer(remoting)
    refused = await other.ask(Call.HEARTBEAT, body=heartbeat("two", ["a" * 100]))
    assert (refused.code, "all clients" in refused.remark) == (Result.SYSTEM_BUSY, True)
    await peer.ask(Call.UNREGISTER, {"clientID": "one", "consumerGroup": "a" * 100})
    answer = await other.ask(Call.HEARTBEAT, body=heartbeat("two", ["a" * 100]))
    assert answer.code == Result.SUCCESS


@pytest.mark.parametrize("call", [Call.VIEW_MESSAGE, Call.QUERY_MESSAGE])
async def test_a_client_that_looks_up_much_lets_others_come_in_between(world, remoting, peer, call):
    answer = await peer.send(properties={"KEYS": "k"})
    fields = {"offset": int(answer.fields["msgId"][-16:], 16), "topic": "orders", "key": "k"}
    frames = [peer.frame(call, fields) for _ in range(40)]
    world.threads.reads.clear()
    peer.put(*frames)
    other = Peer(remoting)
    frame = other.frame(call, fields)
    other.put(frame)
    await spin()
    world.threads.reads.set()
    assert bodies_in(await other.answer_to(frame)) == [b"x"]
    assert sum(peer.answer_now(frame) is not None for frame in frames) < 20
    assert bodies_in(await peer.answer_to(frames[-1])) == [b"x"]


async def test_a_connection_has_no_more_producers_than_the_most(peer, monkeypatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    for _ in range(2):
        assert (await peer.ask(Call.HEARTBEAT, body=heartbeat(makers=["a", "b"]))).code == Result.SUCCESS
    answer = await peer.ask(Call.HEARTBEAT, body=heartbeat(makers=["c"]))
    assert (answer.code, "2 producers" in answer.remark) == (Result.SYSTEM_ERROR, True)


async def test_locks_that_have_run_out_make_room(world, peer, monkeypatch):
    monkeypatch.setattr(locks, "LOCKS_MAX", 2)
    assert (await peer.ask(Call.LOCK_QUEUES, body=lock_body(0, 1))).code == Result.SUCCESS
    assert (await peer.ask(Call.LOCK_QUEUES, body=lock_body(0, 1))).code == Result.SUCCESS
    assert (await peer.ask(Call.LOCK_QUEUES, body=lock_body(2))).code == Result.SYSTEM_BUSY
    await world.advance(LOCK_MS)
    assert (await peer.ask(Call.LOCK_QUEUES, body=lock_body(2))).code == Result.SUCCESS


async def test_the_locks_of_one_connection_leave_room_for_others(world, remoting, peer, monkeypatch):
    monkeypatch.setattr(locks, "LOCKS_OF_CONNECTION_MAX", 2)
    monkeypatch.setattr(locks, "LOCKS_MAX", 3)
    await peer.ask(Call.LOCK_QUEUES, body=lock_body(0, 1))
    assert (await peer.ask(Call.LOCK_QUEUES, body=lock_body(2))).code == Result.SYSTEM_BUSY
    other = Peer(remoting)
    answer = await other.ask(Call.LOCK_QUEUES, body=lock_body(0, group="others"))
    assert answer.code == Result.SUCCESS
    peer.wire.close()
    await world.advance(1)
    answer = await other.ask(Call.LOCK_QUEUES, body=lock_body(1, group="others"))
    assert len(orjson.loads(answer.body)["lockOKMQSet"]) == 1


@pytest.mark.parametrize(("characters", "stored"), [(KEY_CHARACTERS_MAX, 1), (KEY_CHARACTERS_MAX + 1, 2)])
async def test_sends_with_keys_that_no_client_makes_are_not_remembered(world, peer, characters, stored):
    frames = [peer.send_frame(properties={"UNIQ_KEY": "7" * characters}) for _ in range(2)]
    peer.put(*frames)
    for frame in frames:
        assert (await peer.answer_to(frame)).code == Result.SUCCESS
    found = await world.engine.queues.read_queue("orders", 0, 0, 9)
    assert len(found.messages) == stored


async def test_remembered_answers_are_limited_in_all(world, remoting, peer, monkeypatch):
    monkeypatch.setattr(repeats, "ANSWERS_CHARACTERS_MAX", 64)  # of two messages
    sent = [{"UNIQ_KEY": f"{number}"} for number in range(3)]
    for properties in sent:
        await peer.send(properties=properties)
    peer.wire.close()
    await world.advance(1)
    again = Peer(remoting)
    for properties in reversed(sent):
        await again.send(properties=properties)
    assert world.engine.queues.queue_bounds("orders", 0) == (0, 4)


# ---------------------------------------------------------------------- memory


async def codes_of(peer, *frames):
    peer.put(*frames)
    return [(await peer.answer_to(frame)).code for frame in frames]


@pytest.mark.parametrize(
    "fields",
    [
        {"body": zlib.compress(bytes(30_000)), "f": SYS_COMPRESSED},
        {"properties": {"UNIQ_KEY": "", "KEYS": "k" * 20_000}},
    ],
    ids=["compressed", "properties"],
)
async def test_a_request_counts_as_what_it_takes(world, fields):
    peer = Peer(remoting_of(await world.open(in_progress_bytes_max=100_000)))
    await peer.send()
    codes = await codes_of(peer, *(peer.send_frame(**fields) for _ in range(8)))
    assert set(codes) == {Result.SUCCESS, Result.SYSTEM_BUSY}
    assert await codes_of(peer, peer.send_frame(**fields)) == [Result.SUCCESS]


async def test_what_held_pulls_and_pops_keep_is_limited(world):
    peer = Peer(remoting_of(await world.open(in_progress_bytes_max=100_000)))
    await peer.send()
    junk = {"junk": "x" * 60_000}
    pop = {"consumerGroup": "poppers", "topic": "other", "maxMsgNums": 1, "invisibleTime": 60_000}
    for number in range(4):  # what they do not need is forgotten
        held = peer.held_pull_frame(offset=1)
        peer.put(replace(held, fields=held.fields | junk | {"consumerGroup": f"g{number}"}))
        peer.put(peer.frame(Call.POP, pop | junk | {"queueId": -1, "pollTime": 15_000}))
        await world.advance(1)
    assert (await peer.send("third", b"x" * 20_000)).code == Result.SUCCESS
    wanted = {"subscription": "||".join(map(str, range(5_000)))}
    frames = []
    for number in range(6):
        held = peer.held_pull_frame(offset=1)
        frames.append(replace(held, fields=held.fields | wanted | {"consumerGroup": f"g{number}"}))
        peer.put(frames[-1])
        await world.advance(1)
    answered = [answer.code for frame in frames if (answer := peer.answer_now(frame)) is not None]
    assert set(answered) == {Result.SYSTEM_BUSY}


async def test_large_answers_wait_until_those_before_are_read(peer):
    await peer.send(body=bytes(50_000), properties={"KEYS": "k"})
    place = int((await peer.send(body=bytes(50_000))).fields["msgId"][-16:], 16)
    peer.wire.unread_bytes = UNREAD_BYTES_MAX + 1
    await peer.ask(Call.ROUTE, {"topic": "orders"})
    asked = [(Call.VIEW_MESSAGE, {"offset": place}), (Call.QUERY_MESSAGE, {"topic": "orders", "key": "k"})]
    for call, fields in asked:
        assert (await peer.ask(call, fields)).code == Result.SYSTEM_BUSY
    peer.wire.unread_bytes = 0
    await peer.ask(Call.ROUTE, {"topic": "orders"})
    for call, fields in asked:
        answer = await peer.ask(call, fields)
        assert bodies_in(answer) == [bytes(50_000)]


async def test_a_pop_of_a_client_with_much_to_read_leases_nothing(peer):
    await peer.send(body=b"x")
    peer.wire.unread_bytes = UNREAD_BYTES_MAX + 1
    await peer.ask(Call.ROUTE, {"topic": "orders"})
    pop = {"consumerGroup": "poppers", "topic": "orders", "queueId": -1, "maxMsgNums": 1}
    pop |= {"invisibleTime": 60_000}
    assert (await peer.ask(Call.POP, pop)).code == Result.POLLING_TIMEOUT
    peer.wire.unread_bytes = 0
    await peer.ask(Call.ROUTE, {"topic": "orders"})
    [message] = messages_in(await peer.ask(Call.POP, pop))
    assert (message.body, message.consumed_before) == (b"x", 0)


async def test_who_leaves_most_memory_idle_makes_room_for_a_request_that_arrives(world):
    remoting = remoting_of(await world.open(in_progress_bytes_max=100_000))
    hog, peer = Peer(remoting), Peer(remoting)
    await peer.send()
    hog.connection.data_received(encode(hog.send_frame(body=bytes(90_000)))[:-1])
    frame = peer.send_frame(body=bytes(40_000))
    data = encode(frame)
    for part in (data[:20_000], data[20_000:]):
        peer.connection.data_received(part)
    assert (await peer.answer_to(frame)).code == Result.SUCCESS
    assert (hog.connection.is_closed, peer.connection.is_closed) == (True, False)


@pytest.mark.parametrize("how", ["incomplete", "unread"])
async def test_who_leaves_most_memory_idle_makes_room_for_requests_that_are_refused(world, how):
    remoting = remoting_of(await world.open(in_progress_bytes_max=LARGE_BYTES + 100_000))
    hog, peer = Peer(remoting), Peer(remoting)
    await peer.send()
    if how == "incomplete":
        hog.connection.data_received(encode(hog.send_frame(body=bytes(LARGE_BYTES)))[:-1])
    else:
        hog.wire.unread_bytes = LARGE_BYTES
        await hog.ask(Call.ROUTE, {"topic": "orders"})
    frame = peer.send_frame(body=bytes(200_000))
    assert await codes_of(peer, frame) == [Result.SYSTEM_BUSY]
    await world.advance(1)
    assert hog.connection.is_closed
    assert await codes_of(peer, peer.send_frame(body=bytes(200_000))) == [Result.SUCCESS]


def test_long_subscriptions_are_not_kept():
    long = "||".join(map(str, range(5_000)))
    assert pulls.tags_of(long) is not pulls.tags_of(long)
    assert pulls.tags_of("a || b") is pulls.tags_of("a || b")
