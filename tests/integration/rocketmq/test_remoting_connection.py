"""Connections, the name server, members and locks of groups, and what mqadmin asks for."""

import struct

import orjson
import pytest

from tests.harness.drive import settle
from tests.harness.remoting import Caller, Callers, Peer, bodies_in, messages_in, properties_of, remoting_of
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq import connection as connections
from timerwheel.rocketmq import front
from timerwheel.rocketmq.codes import FLAG_ONE_WAY, Call, Result
from timerwheel.rocketmq.connection import IDLE_MS
from timerwheel.rocketmq.frame import FRAME_BYTES_MAX, encode
from timerwheel.rocketmq.locks import LOCK_MS
from timerwheel.rocketmq.name_server import BROKER, Advertised
from timerwheel.rocketmq.stored_message import Host
from timerwheel.tokens import Scope

# ---------------------------------------------------------------------- connections


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", FRAME_BYTES_MAX + 1),
        struct.pack(">iI", 8, 4) + b"nope",
        struct.pack(">iI", 8, 9 << 24) + b"nope",
    ],
)
async def test_bytes_that_are_no_frame_close_the_connection(world, peer, data):
    peer.connection.data_received(data)
    await world.advance(1)
    assert peer.connection.is_closed


async def test_a_frame_may_arrive_byte_by_byte(world, peer):
    frame = peer.send_frame(body=b"slow")
    for byte in encode(frame):
        peer.connection.data_received(bytes((byte,)))
    assert (await peer.answer_to(frame)).code == Result.SUCCESS
    assert bodies_in(await peer.pull()) == [b"slow"]
    assert world.engine.ready


async def test_half_a_frame_stores_nothing(world, peer):
    peer.connection.data_received(encode(peer.send_frame(body=b"half"))[:-1])
    peer.wire.close()
    await world.advance(1)
    assert world.engine.queues.topic_id("orders") < 0


async def test_answers_of_clients_are_no_requests(world, peer):
    frame = peer.send_frame()
    peer.put(peer.frame(Call.SEND_V2, frame.fields, b"x", 1))
    await world.advance(1)
    assert peer.answer_now(frame) is None
    assert world.engine.queues.topic_id("orders") < 0


async def test_a_client_that_does_not_read_is_not_read_either(world, peer):
    peer.connection.pause_writing()
    assert not peer.wire.reading
    peer.connection.resume_writing()
    assert peer.wire.reading
    assert world.engine.ready


async def test_reading_pauses_while_too_many_requests_are_in_progress(peer, monkeypatch):
    monkeypatch.setattr(connections, "REQUESTS_MAX", 3)
    frames = [peer.send_frame() for _ in range(3)]
    peer.put(*frames)
    assert not peer.wire.reading
    for frame in frames:
        assert (await peer.answer_to(frame)).code == Result.SUCCESS
    assert peer.wire.reading


async def test_held_pulls_do_not_keep_other_requests_waiting(world, peer, monkeypatch):
    monkeypatch.setattr(connections, "REQUESTS_MAX", 2)
    for _ in range(4):
        peer.put(peer.held_pull_frame())
        await world.advance(1)
    assert peer.wire.reading
    assert (await peer.send()).code == Result.SUCCESS


async def test_more_bytes_than_the_service_may_hold_are_refused(world):
    remoting = remoting_of(await world.open(in_progress_bytes_max=5_000))
    peer = Peer(remoting)
    frames = [peer.send_frame(body=bytes(2_000)) for _ in range(3)]
    peer.put(*frames)
    codes = [(await peer.answer_to(frame)).code for frame in frames]
    assert codes == [Result.SUCCESS, Result.SUCCESS, Result.SYSTEM_BUSY]
    assert (await peer.send(body=bytes(2_000))).code == Result.SUCCESS


async def test_an_incomplete_frame_that_takes_too_much_memory_ends_its_connection(world):
    remoting = remoting_of(await world.open(in_progress_bytes_max=5_000))
    peer = Peer(remoting)
    peer.connection.data_received(encode(peer.send_frame(body=bytes(9_000)))[:6_000])
    await world.advance(1)
    assert peer.connection.is_closed
    assert (await Peer(remoting).send()).code == Result.SUCCESS


async def test_a_silent_connection_is_closed(world, remoting, peer):
    other = Peer(remoting)
    await world.advance(IDLE_MS - 1)
    await other.ask(Call.HEARTBEAT, body=heartbeat("one"))
    await world.advance(1)
    remoting.look()
    await world.advance(1)
    assert peer.connection.is_closed
    assert not other.connection.is_closed


async def test_more_connections_than_the_most_are_closed_at_once(world, remoting, monkeypatch):
    monkeypatch.setattr(front, "CONNECTIONS_MAX", 2)
    peers = [Peer(remoting) for _ in range(3)]
    await world.advance(1)
    assert [peer.connection.is_closed for peer in peers] == [False, False, True]
    peers[0].wire.close()
    await world.advance(1)
    assert (await Peer(remoting).send()).code == Result.SUCCESS


async def test_a_stop_finishes_what_is_in_progress(world, remoting, peer):
    await peer.send()
    frames = [peer.send_frame(body=b"%d" % n) for n in range(3)]
    peer.put(*frames)
    await remoting.close()
    assert [peer.answer_now(frame).code for frame in frames] == [Result.SUCCESS] * 3
    assert peer.connection.is_closed
    assert len((await world.engine.queues.read_queue("orders", 0, 0, 9)).messages) == 4


POP = {
    "consumerGroup": "poppers",
    "topic": "bills",
    "queueId": -1,
    "maxMsgNums": 32,
    "invisibleTime": 60_000,
    "pollTime": 20_000,
}


async def test_a_connection_ends_with_a_token_of_its_requests(world):
    callers = Callers(kept=Caller(*Scope), ended=Caller(*Scope), sender=Caller(*Scope))
    for name, caller in callers.known.items():
        caller.name = name
    remoting = remoting_of(await world.open(), callers)
    peers = {name: Peer(remoting, name) for name in callers.known}
    await peers["sender"].send("orders", b"seen")
    held = {name: peers[name].held_pull_frame(offset=1) for name in ("kept", "ended")}
    pop = peers["ended"].frame(Call.POP, POP)
    for name, frame in held.items():
        peers[name].put(frame)
    peers["ended"].put(pop)
    remoting.look_at_tokens()
    assert not any(peer.wire.is_closing() for peer in peers.values())
    del callers.known["ended"]
    remoting.look_at_tokens()
    assert [name for name, peer in peers.items() if peer.wire.is_closing()] == ["ended"]
    await peers["sender"].send("orders", b"unseen")
    await peers["sender"].send("bills", b"unseen")
    assert bodies_in(await peers["kept"].answer_to(held["kept"])) == [b"unseen"]
    assert peers["ended"].answer_now(held["ended"]) is None
    assert peers["ended"].answer_now(pop) is None


async def test_a_token_that_was_made_anew_under_its_name_ends_connections_too(world):
    callers = Callers(token=Caller(*Scope))
    remoting = remoting_of(await world.open(), callers)
    peer = Peer(remoting, "token")
    await peer.ask(Call.ROUTE, {"topic": "orders"})
    callers.known["token"] = Caller(Scope.RECEIVE)
    await peer.ask(Call.ROUTE, {"topic": "orders"})
    remoting.look_at_tokens()
    assert peer.wire.is_closing()


async def test_requests_without_a_known_token_are_refused(world):
    remoting = remoting_of(await world.open(), Callers(reader=Caller(Scope.RECEIVE)))
    for token in ("", "wrong"):
        answer = await Peer(remoting, token).ask(Call.ROUTE, {"topic": "orders"})
        assert answer.code == Result.NO_PERMISSION
        assert "AccessKey" in answer.remark
    assert (await Peer(remoting, "reader").ask(Call.ROUTE, {"topic": "orders"})).code == Result.SUCCESS


async def test_requests_are_counted_by_name_and_by_how_they_ended(world, remoting):
    peer = Peer(remoting)
    await peer.send()
    await peer.send(properties={"DELAY": "x"})
    peer.put(peer.send_frame(one_way=True))
    await peer.pull()
    for code in (Call.CHECK_TRANSACTION, 9_999, -1):  # clients choose codes: the names stay few
        assert (await peer.ask(code)).code == Result.NOT_SUPPORTED
    await Peer(remoting, "unknown").ask(Call.CLUSTER)
    await settle(world.engine)  # nobody waits for the send without an answer
    assert world.engine.counters.front_calls == {
        ("remoting", "SEND_V2", "SUCCESS"): 2,
        ("remoting", "SEND_V2", "MESSAGE_ILLEGAL"): 1,
        ("remoting", "PULL", "SUCCESS"): 1,
        ("remoting", "CLUSTER", "NO_PERMISSION"): 1,
        ("remoting", "other", "NOT_SUPPORTED"): 3,
    }


# ---------------------------------------------------------------------- the name server


async def route(peer, topic):
    answer = await peer.ask(Call.ROUTE, {"topic": topic})
    return orjson.loads(answer.body) if answer.body else answer.code


@pytest.mark.parametrize("topic", ["orders", "%RETRY%readers", "%DLQ%readers", "TBW102", "inst%orders"])
async def test_every_legal_topic_has_a_route_and_nothing_is_stored_for_it(world, peer, topic):
    found = await route(peer, topic)
    assert found["brokerDatas"] == [
        {"brokerAddrs": {"0": "127.0.0.1:9876"}, "brokerName": BROKER, "cluster": "DefaultCluster"}
    ]
    [queues] = found["queueDatas"]
    wanted = 1 if topic.startswith(("%RETRY", "%DLQ")) else 4
    assert (queues["readQueueNums"], queues["writeQueueNums"]) == (wanted, wanted)
    assert world.engine.queues.topic_id(topic) < 0


@pytest.mark.parametrize("topic", ["", "no/topic", "x" * 128, "/control", "rmq_sys_wheel_timer"])
async def test_no_other_name_has_a_route(peer, topic):
    assert await route(peer, topic) == Result.TOPIC_NOT_EXIST


async def test_a_topic_of_http_keeps_its_number_of_queues(world, peer):
    await world.engine.sender.send([Outgoing("orders", b"x")])
    assert (await route(peer, "orders"))["queueDatas"][0]["readQueueNums"] == 1
    await world.engine.topics.change("wide", queues=7)
    assert (await route(peer, "wide"))["queueDatas"][0]["readQueueNums"] == 7


async def test_clients_are_sent_to_the_advertised_address(world):
    advertised = await Advertised.of(Host("192.0.2.7", 19_876))
    peer = Peer(remoting_of(await world.open(), advertised=advertised))
    assert (await route(peer, "orders"))["brokerDatas"][0]["brokerAddrs"] == {"0": "192.0.2.7:19876"}
    assert (await peer.send()).fields["msgId"].startswith("C000020700004DA4")
    cluster = orjson.loads((await peer.ask(Call.CLUSTER)).body)
    assert cluster["clusterAddrTable"] == {"DefaultCluster": [BROKER]}
    assert cluster["brokerAddrTable"][BROKER]["brokerAddrs"] == {"0": "192.0.2.7:19876"}


@pytest.mark.parametrize(
    ("name", "ids"),
    [("localhost", "7F00000100004DA4"), ("x" * 64, "7F00000100002694")],  # no name has so long a part
)
async def test_an_advertised_name_stands_in_routes_and_its_address_in_ids(world, name, ids, caplog):
    advertised = await Advertised.of(Host(name, 19_876))
    peer = Peer(remoting_of(await world.open(), advertised=advertised))
    assert (await route(peer, "orders"))["brokerDatas"][0]["brokerAddrs"] == {"0": f"{name}:19876"}
    sent = await peer.send(properties={"UNIQ_KEY": "7F"})
    assert sent.fields["msgId"].startswith(ids)
    assert bodies_in(await peer.pull()) == [b"x"]
    assert ("cannot resolve" in caplog.text) == (name != "localhost")


async def test_a_reader_of_some_topics_has_a_route_to_its_retries(world):
    callers = Callers(
        reader=Caller(Scope.RECEIVE, topics=("orders",)), sender=Caller(Scope.SEND, topics=("orders",))
    )
    remoting = remoting_of(await world.open(), callers)
    assert (await route(Peer(remoting, "reader"), "%RETRY%readers"))["queueDatas"]
    assert await route(Peer(remoting, "reader"), "%DLQ%readers") == Result.NO_PERMISSION
    assert await route(Peer(remoting, "sender"), "%RETRY%readers") == Result.NO_PERMISSION


async def test_a_route_needs_access_to_its_topic(world):
    peer = Peer(remoting_of(await world.open(), Callers(one=Caller(Scope.SEND, topics=("orders",)))), "one")
    assert (await route(peer, "orders"))["queueDatas"]
    assert await route(peer, "bills") == Result.NO_PERMISSION


# ---------------------------------------------------------------------- members and locks


def heartbeat(client, *groups):
    data = [
        {"groupName": group, "subscriptionDataSet": [{"topic": "orders", "subString": "*"}]}
        for group in groups
    ]
    return orjson.dumps({"clientID": client, "consumerDataSet": data, "producerDataSet": []})


async def members(peer, group="readers"):
    answer = await peer.ask(Call.CONSUMER_LIST, {"consumerGroup": group})
    return orjson.loads(answer.body)["consumerIdList"] if answer.body else answer.code


def told(peer):
    peer.answer_now(peer.frame(0, {}))
    found = [(frame.code, frame.fields["consumerGroup"], frame.flag) for frame in peer.told]
    peer.told.clear()
    return found


async def test_members_are_told_when_one_joins_or_leaves(world, remoting, peer):
    other = Peer(remoting)
    await peer.ask(Call.HEARTBEAT, body=heartbeat("one", "readers"))
    await other.ask(Call.HEARTBEAT, body=heartbeat("two", "readers", "others"))
    assert await members(peer) == ["one", "two"]
    notice = (Call.NOTIFY_CONSUMERS, "readers", FLAG_ONE_WAY)
    assert told(peer) == [notice, notice]
    await other.ask(Call.HEARTBEAT, body=heartbeat("two", "readers", "others"))
    assert told(peer) == []
    other.wire.close()
    await world.advance(1)
    assert told(peer) == [notice]
    assert await members(peer) == ["one"]
    await peer.ask(Call.UNREGISTER, {"clientID": "one", "consumerGroup": "readers"})
    assert await members(peer) == Result.SYSTEM_ERROR


async def test_a_client_that_connects_again_stays_when_its_old_connection_ends(world, remoting, peer):
    again = Peer(remoting)
    for connection in (peer, again):
        await connection.ask(Call.HEARTBEAT, body=heartbeat("one", "readers"))
    peer.wire.close()
    await world.advance(1)
    assert await members(again) == ["one"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({}, ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")),
        ({"consumeType": "CONSUME_ACTIVELY"}, ("CONSUME_ACTIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")),
        (
            {"consumeType": 0, "messageModel": 0, "consumeFromWhere": 4},
            ("CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET"),
        ),
        (
            {"consumeType": 9, "messageModel": -1, "consumeFromWhere": 99},
            ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET"),
        ),
    ],
)
async def test_a_consumer_says_how_it_consumes_by_name_or_as_in_cpp_by_number(peer, said, shown):
    data = [{"groupName": "readers", "subscriptionDataSet": []} | said]
    body = orjson.dumps({"clientID": "one", "consumerDataSet": data})
    assert (await peer.ask(Call.HEARTBEAT, body=body)).code == Result.SUCCESS
    assert await members(peer) == ["one"]
    found = orjson.loads((await peer.ask(Call.CONSUMER_CONNECTIONS, {"consumerGroup": "readers"})).body)
    assert (found["consumeType"], found["messageModel"], found["consumeFromWhere"]) == shown


async def test_a_client_of_another_token_shares_no_queues_of_topics_that_it_may_not_read(world):
    callers = Callers(
        shop=Caller(Scope.RECEIVE),
        cashier=Caller(Scope.RECEIVE, topics=("orders",)),
        stranger=Caller(Scope.RECEIVE, topics=("bills",)),
    )
    remoting = remoting_of(await world.open(), callers)
    shop, again, cashier, stranger = (
        Peer(remoting, token) for token in ("shop", "shop", "cashier", "stranger")
    )
    for client, one in {"one": shop, "two": again, "three": cashier, "four": stranger}.items():
        assert (await one.ask(Call.HEARTBEAT, body=heartbeat(client, "readers"))).code == Result.SUCCESS
    for one in (shop, again, cashier):
        assert await members(one) == ["one", "two", "three"]
    assert await members(stranger) == ["four"]
    body = {"consumerGroup": "readers", "topic": "orders", "clientId": "one", "strategyName": "AVG"}
    answer = await shop.ask(Call.QUERY_ASSIGNMENT, body=orjson.dumps(body))
    queues = [one["messageQueue"]["queueId"] for one in orjson.loads(answer.body)["messageQueueAssignments"]]
    assert queues == [0, 1]  # of four for three


async def test_a_client_of_another_token_takes_no_place_of_a_client(world):
    callers = Callers(shop=Caller(Scope.RECEIVE), stranger=Caller(Scope.RECEIVE, topics=("bills",)))
    remoting = remoting_of(await world.open(), callers)
    shop, stranger = Peer(remoting, "shop"), Peer(remoting, "stranger")
    await shop.ask(Call.HEARTBEAT, body=heartbeat("one", "readers"))
    answer = await stranger.ask(Call.HEARTBEAT, body=heartbeat("one", "readers"))
    assert answer.code == Result.NO_PERMISSION
    stranger.wire.close()
    await world.advance(1)
    assert await members(shop) == ["one"]


async def test_nobody_unregisters_the_client_of_another_connection(remoting, peer):
    await peer.ask(Call.HEARTBEAT, body=heartbeat("one", "readers"))
    await Peer(remoting).ask(Call.UNREGISTER, {"clientID": "one", "consumerGroup": "readers"})
    assert await members(peer) == ["one"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[", b'{"clientID":"\x80"}', b'{"clientID":7}', b'{"clientID":"' + b"x" * 300 + b'"}'],
)
async def test_a_malformed_heartbeat_is_an_error(peer, body):
    assert (await peer.ask(Call.HEARTBEAT, body=body)).code == Result.SYSTEM_ERROR


def lock_body(client, *queues):
    mq_set = [{"topic": "orders", "brokerName": BROKER, "queueId": queue} for queue in queues]
    return orjson.dumps({"consumerGroup": "readers", "clientId": client, "mqSet": mq_set})


async def locked(peer, client, *queues):
    answer = await peer.ask(Call.LOCK_QUEUES, body=lock_body(client, *queues))
    return [queue["queueId"] for queue in orjson.loads(answer.body)["lockOKMQSet"]]


async def test_a_queue_is_locked_by_one_client_of_a_group(world, remoting, peer):
    other = Peer(remoting)
    assert await locked(peer, "one", 0, 1) == [0, 1]
    assert await locked(other, "two", 1, 2) == [2]
    await peer.ask(Call.UNLOCK_QUEUES, body=lock_body("one", 1))
    assert await locked(other, "two", 0, 1) == [1]
    await world.advance(LOCK_MS - 1)
    assert await locked(other, "two", 0) == []
    await world.advance(1)
    assert await locked(other, "two", 0) == [0]


async def test_locks_end_with_the_connection_of_their_client(world, remoting, peer):
    assert await locked(peer, "one", 0) == [0]
    peer.wire.close()
    await world.advance(1)
    assert await locked(Peer(remoting), "two", 0) == [0]


# ---------------------------------------------------------------------- mqadmin


async def test_mqadmin_makes_topics_and_sees_their_queues(world, peer):
    fields = {"topic": "orders", "readQueueNums": 6, "writeQueueNums": 6, "perm": 6}
    assert (await peer.ask(Call.UPDATE_TOPIC, fields)).code == Result.SUCCESS
    assert world.engine.topics.queues_of("orders") == 6
    assert (await peer.ask(Call.UPDATE_TOPIC, fields | {"readQueueNums": 2, "writeQueueNums": 2})).code
    await peer.send(e=5)
    names = orjson.loads((await peer.ask(Call.ALL_TOPICS)).body)
    assert names == {"topicList": ["orders"]}
    stats = (await peer.ask(Call.TOPIC_STATS, {"topic": "orders"})).body
    key = b'{"brokerName":"timerwheel","queueId":5,"topic":"orders"}'
    value = b'{"lastUpdateTimestamp":%d,"maxOffset":1,"minOffset":0}' % world.clock.now_ms()
    assert key + b":" + value in stats
    assert (await peer.ask(Call.TOPIC_CONFIG, {"topic": "orders"})).code == Result.TOPIC_NOT_EXIST
    assert (await peer.ask(Call.UPDATE_GROUP)).code == Result.SUCCESS
    assert orjson.loads((await peer.ask(Call.BROKER_RUNTIME_INFO)).body)["table"]["brokerVersionDesc"]


async def test_mqadmin_is_refused_what_a_topic_cannot_be(world, peer):
    usual = {"topic": "orders", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "order": "false"}
    assert (await peer.ask(Call.UPDATE_TOPIC, usual | {"topicSysFlag": 0})).code == Result.SUCCESS
    assert (await peer.ask(Call.UPDATE_TOPIC, usual | {"perm": 7})).code == Result.SUCCESS
    for more in ({"perm": 4}, {"perm": 2}, {"perm": 0}, {"order": "true"}, {"writeQueueNums": 2}):
        answer = await peer.ask(Call.UPDATE_TOPIC, usual | {"topic": "bills"} | more)
        assert (answer.code, bool(answer.remark)) == (Result.NOT_SUPPORTED, True), more
    assert not world.engine.topics.has("bills")
    letters = usual | {"topic": "%DLQ%readers", "readQueueNums": 1, "writeQueueNums": 1}
    assert (await peer.ask(Call.UPDATE_TOPIC, letters)).code == Result.NOT_SUPPORTED


MQADMINS_GROUP = {
    "groupName": "readers",
    "consumeEnable": True,
    "consumeFromMinEnable": False,
    "consumeBroadcastEnable": False,
    "consumeMessageOrderly": False,
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "groupRetryPolicy": {"type": "CUSTOMIZED", "retryPolicy": {"next": [1_000]}},
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "attributes": {},
}


@pytest.mark.parametrize(
    ("more", "result"),
    [
        ({}, Result.SUCCESS),
        ({"consumeMessageOrderly": True, "consumeBroadcastEnable": True}, Result.SUCCESS),
        ({"consumeEnable": False}, Result.NOT_SUPPORTED),
        ({"retryMaxTimes": 3}, Result.NOT_SUPPORTED),
        ({"groupRetryPolicy": {"type": "EXPONENTIAL"}}, Result.NOT_SUPPORTED),
        ({"groupRetryPolicy": {"customizedRetryPolicy": {"next": [1_000]}}}, Result.NOT_SUPPORTED),
        ({"retryQueueNums": 4}, Result.NOT_SUPPORTED),
        ({"brokerId": 1}, Result.NOT_SUPPORTED),
        ({"notifyConsumerIdsChangedEnable": False}, Result.NOT_SUPPORTED),
        ({"retryMaxTimes": "often"}, Result.SYSTEM_ERROR),
    ],
)
async def test_mqadmin_is_refused_what_a_group_cannot_be(peer, more, result):
    answer = await peer.ask(Call.UPDATE_GROUP, body=orjson.dumps(MQADMINS_GROUP | more))
    assert answer.code == result
    assert all(name in (answer.remark or "") for name in more) or result != Result.NOT_SUPPORTED


async def test_the_list_of_topics_names_the_retry_topics_of_all_groups(world):
    callers = Callers(all=Caller(*Scope), cashier=Caller(Scope.RECEIVE, topics=("bills",)))
    remoting = remoting_of(await world.open(), callers)
    peer, cashier = Peer(remoting, "all"), Peer(remoting, "cashier")
    for topic in ("orders", "bills"):
        await peer.send(topic)
    await world.engine.groups.put("orders", "stored", GroupConfig(kind="offsets"))
    await world.engine.groups.put("bills", "leasing", GroupConfig())
    await peer.ask(Call.HEARTBEAT, body=heartbeat("one", "connected"))
    lists = [orjson.loads((await one.ask(Call.ALL_TOPICS)).body)["topicList"] for one in (peer, cashier)]
    groups = ["%RETRY%connected", "%RETRY%leasing", "%RETRY%stored"]
    assert [sorted(names) for names in lists] == [[*groups, "bills", "orders"], ["%RETRY%leasing", "bills"]]


async def test_mqadmin_sees_the_language_and_the_version_of_a_client(peer):
    frame = peer.frame(Call.HEARTBEAT, {}, heartbeat("one", "readers"))
    said = encode(frame).replace(b'"JAVA"', b'"RUST"').replace(b'"version":479', b'"version":399')
    for data, shown in (
        (said, ("RUST", 399)),
        (said.replace(b'"RUST"', b'"ROST"').replace(b":399", b":-99"), ("OTHER", 0)),
    ):
        peer.connection.data_received(data)
        await peer.answer_to(frame)
        found = await peer.ask(Call.CONSUMER_CONNECTIONS, {"consumerGroup": "readers"})
        [client] = orjson.loads(found.body)["connectionSet"]
        assert (client["language"], client["version"]) == shown


async def test_a_deleted_topic_begins_again_where_it_ended(world, peer):
    await peer.send(e=0)
    await peer.send(e=0, properties={"DELAY": "18"})
    await world.engine.groups.put("orders", "workers", GroupConfig(kind="offsets"))
    for call in (Call.DELETE_TOPIC, Call.DELETE_TOPIC_ROUTE, Call.DELETE_TOPIC):
        assert (await peer.ask(call, {"topic": "orders"})).code == Result.SUCCESS
    assert orjson.loads((await peer.ask(Call.ALL_TOPICS)).body) == {"topicList": []}
    assert world.engine.groups.all("orders") == []
    await peer.send(e=0)
    fields = {"consumerGroup": "workers", "topic": "orders", "queueId": 0}
    answer = await peer.ask(Call.QUERY_OFFSET, fields)  # a young topic is read from its beginning
    assert (answer.code, answer.fields["offset"]) == (Result.SUCCESS, "1")


async def test_a_deleted_group_keeps_its_offsets_unless_they_are_to_go_too(world, peer):
    for topic in ("orders", "tickets"):
        await peer.send(topic=topic)
        await world.engine.groups.put(topic, "workers", GroupConfig(kind="offsets"))
    await world.engine.groups.put("orders", "others", GroupConfig(kind="offsets"))
    fields = {"groupName": "workers"}
    for kept in ({}, {"cleanOffset": "false"}):
        assert (await peer.ask(Call.DELETE_GROUP, fields | kept)).code == Result.SUCCESS
        assert len(world.engine.groups.all("orders")) == 2
    for _ in range(2):
        assert (await peer.ask(Call.DELETE_GROUP, fields | {"cleanOffset": "true"})).code == Result.SUCCESS
    assert [info.group for info in world.engine.groups.all("orders")] == ["others"]
    assert world.engine.groups.all("tickets") == []
    for topic in ("%RETRY%workers", "%DLQ%workers"):  # what mqadmin deletes next
        assert (await peer.ask(Call.DELETE_TOPIC, {"topic": topic})).code == Result.SUCCESS
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
        assert (await peer.ask(Call.DELETE_KV_CONFIG, fields)).code == Result.SUCCESS


async def test_a_topic_that_is_being_deleted_takes_no_sends(world, peer):
    await peer.send()
    world.engine.topics.ending.add("orders")
    assert (await peer.send()).code == Result.TOPIC_NOT_EXIST


async def test_a_reset_moves_a_group_and_tells_its_clients(world, peer):
    for n in range(3):
        await peer.send(body=b"%d" % n)
        await world.advance(1_000)
    await peer.ask(Call.HEARTBEAT, body=heartbeat("one", "readers"))
    place = {"consumerGroup": "readers", "topic": "orders", "queueId": 0}
    await peer.ask(Call.UPDATE_OFFSET, place | {"commitOffset": 3})
    told(peer)
    fields = {"topic": "orders", "group": "readers", "timestamp": world.clock.now_ms() - 2_000}
    answer = await peer.ask(Call.RESET_OFFSETS, fields | {"isForce": "true"})
    assert b'{"brokerName":"timerwheel","queueId":0,"topic":"orders"}:1' in answer.body
    assert (await peer.ask(Call.QUERY_OFFSET, place)).fields == {"offset": "1"}
    [reset] = peer.told
    assert (reset.code, reset.body) == (Call.RESET_CLIENT_OFFSETS, answer.body)
    stats = (await peer.ask(Call.CONSUME_STATS, {"consumerGroup": "readers"})).body
    assert b'"brokerOffset":3,"consumerOffset":1' in stats
    connected = orjson.loads((await peer.ask(Call.CONSUMER_CONNECTIONS, {"consumerGroup": "readers"})).body)
    assert [one["clientId"] for one in connected["connectionSet"]] == ["one"]
    nobody = await peer.ask(Call.CONSUMER_CONNECTIONS, {"consumerGroup": "nobody"})
    assert nobody.code == Result.CONSUMER_NOT_ONLINE


async def test_a_reset_survives_a_crash_and_a_commit_on_its_way(world, peer):
    await peer.send()
    await peer.send()
    place = {"consumerGroup": "readers", "topic": "orders", "queueId": 0}
    await peer.ask(Call.UPDATE_OFFSET, place | {"commitOffset": 2})
    await world.engine.groups.offsets.flush()
    reset = peer.frame(Call.RESET_OFFSETS, {"topic": "orders", "group": "readers", "timestamp": 0})
    peer.put(reset, peer.frame(Call.UPDATE_OFFSET, place | {"commitOffset": 2}))
    assert (await peer.answer_to(reset)).code == Result.SUCCESS
    again = Peer(remoting_of(await world.crash()))
    assert (await again.ask(Call.QUERY_OFFSET, place)).fields == {"offset": "0"}


async def test_a_rewind_by_another_protocol_moves_the_clients_of_a_group(world, peer):
    """They keep the offset to which they have read, and would soon commit it again."""
    await peer.send()
    await peer.ask(Call.HEARTBEAT, body=heartbeat("one", "readers"))
    place = {"consumerGroup": "readers", "topic": "orders", "queueId": 0}
    await peer.ask(Call.UPDATE_OFFSET, place | {"commitOffset": 1})
    told(peer)
    await world.engine.groups.rewind("orders", "readers", offsets={0: 0})
    assert (await peer.ask(Call.QUERY_OFFSET, place)).fields == {"offset": "0"}
    [reset] = peer.told
    assert (reset.code, reset.fields["topic"], reset.fields["group"]) == (
        Call.RESET_CLIENT_OFFSETS,
        "orders",
        "readers",
    )
    key = b'{"brokerName":"timerwheel","queueId":0,"topic":"orders"}'
    assert reset.body == b'{"offsetTable":{%s:0}}' % key


async def filled(peer, kind):
    """A topic with five messages in its first queue and two in its second, and a group done with all."""
    for n in range(7):
        await peer.send(e=n // 5)
    place = {"consumerGroup": "readers", "topic": "orders"}
    if kind == "leases":
        popped = await peer.ask(Call.POP, POP | place)
        for message in messages_in(popped):
            ends = place | {"queueId": message.queue, "offset": message.queue_offset}
            ends["extraInfo"] = properties_of(message)["POP_CK"]
            assert (await peer.ask(Call.ACKNOWLEDGE, ends)).code == Result.SUCCESS
        return
    for queue, offset in enumerate((5, 2)):
        await peer.ask(Call.UPDATE_OFFSET, place | {"queueId": queue, "commitOffset": offset})


async def progress(peer):
    """How far the group is in the first two queues."""
    stats = (await peer.ask(Call.CONSUME_STATS, {"consumerGroup": "readers", "topic": "orders"})).body
    return [int(part.partition(b",")[0]) for part in stats.split(b'"consumerOffset":')[1:3]]


RESET = {"topic": "orders", "group": "readers", "timestamp": 0, "isForce": "true"}


@pytest.mark.parametrize("kind", ["offsets", "leases"])
@pytest.mark.parametrize(
    ("more", "at", "reset"),
    [
        ({"queueId": 0, "offset": 3}, [3, 2], {0: 3}),
        ({"queueId": 1, "offset": -1}, [5, 0], {1: 0}),
        ({"queueId": -1, "offset": -1}, [0, 0], {0: 0, 1: 0, 2: 0, 3: 0}),
        ({}, [0, 0], {0: 0, 1: 0, 2: 0, 3: 0}),
        ({"queueId": 0, "offset": 4, "isForce": "false"}, [4, 2], {0: 4}),
        ({"timestamp": -1, "isForce": "false"}, [5, 2], {2: 0, 3: 0}),
    ],
)
async def test_a_reset_moves_the_queues_that_it_names_and_lists_only_those(peer, kind, more, at, reset):
    await filled(peer, kind)
    answer = await peer.ask(Call.RESET_OFFSETS, RESET | more)
    assert answer.code == Result.SUCCESS
    key = b'{"brokerName":"timerwheel","queueId":%d,"topic":"orders"}:%d'
    wanted = reset if kind == "offsets" or at != [5, 2] else {}  # it has come to the end of empty queues, too
    assert answer.body == b'{"offsetTable":{%s}}' % b",".join(key % one for one in wanted.items())
    assert await progress(peer) == at


async def test_messages_of_a_group_that_leases_come_again_after_a_reset(peer):
    await filled(peer, "leases")
    pop = POP | {"consumerGroup": "readers", "topic": "orders", "pollTime": 0}
    await peer.ask(Call.RESET_OFFSETS, RESET | {"timestamp": -1})
    assert bodies_in(await peer.ask(Call.POP, pop)) == []
    await peer.ask(Call.RESET_OFFSETS, RESET)
    assert len(bodies_in(await peer.ask(Call.POP, pop))) == 7


@pytest.mark.parametrize("more", [{"queueId": 0, "offset": 6}, {"queueId": 4}, {"offset": 3}])
async def test_a_reset_to_a_place_that_is_not_there_is_refused(peer, more):
    await filled(peer, "offsets")
    assert (await peer.ask(Call.RESET_OFFSETS, RESET | more)).code == Result.SYSTEM_ERROR
    assert await progress(peer) == [5, 2]


@pytest.mark.parametrize(
    "call",
    [
        Call.UPDATE_TOPIC,
        Call.DELETE_TOPIC,
        Call.DELETE_TOPIC_ROUTE,
        Call.UPDATE_GROUP,
        Call.RESET_OFFSETS,
        Call.BROKER_RUNTIME_INFO,
    ],
)
async def test_what_changes_the_service_needs_an_admin(world, call):
    callers = Callers(user=Caller(Scope.SEND, Scope.RECEIVE))
    peer = Peer(remoting_of(await world.open(), callers), "user")
    answer = await peer.ask(call, {"topic": "orders", "group": "readers", "timestamp": 0})
    assert answer.code == Result.NO_PERMISSION
