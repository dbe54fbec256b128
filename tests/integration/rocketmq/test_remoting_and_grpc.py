"""One table for each direction: what a message sent over remoting is over gRPC, and the other way round."""

import zlib

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")

from tests.harness.remoting import messages_in, properties_of
from timerwheel.kafka.envelope import Envelope as KafkaEnvelope
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq.codes import SYS_COMMIT, SYS_COMPRESSED, Call
from timerwheel.rocketmq.grpc.codes import Encoding, MessageType
from timerwheel.rocketmq.grpc.messages import outgoing, set_ms, stored, to_ms
from timerwheel.rocketmq.grpc.schema import message_class
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.translation import BORN_MS_MAX, OF_THE_BROKER

BORN_MS, PEER = 1_700_000_000_000, Host("10.0.0.8", 5)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NORMAL, DELAY = MessageType.NORMAL, MessageType.DELAY
FIFO, TRANSACTION = MessageType.FIFO, MessageType.TRANSACTION


async def over_grpc(world):
    """The one delivered message as a gRPC consumer gets it."""
    [view] = await world.delivered()
    return stored(view, message_class("Resource")(name="orders"), "here:1"), view


async def over_remoting(peer):
    """The one delivered message as a remoting consumer pulls it, and its properties but the broker's."""
    [message] = messages_in(await peer.pull())
    shown = properties_of(message)
    assert shown.items() >= OF_THE_BROKER.items()
    return message, {name: value for name, value in shown.items() if name not in OF_THE_BROKER}


@pytest.mark.parametrize(
    ("properties", "system", "user"),
    [
        ({}, {"message_type": NORMAL}, {}),
        ({"TAGS": "a"}, {"tag": "a"}, {}),
        ({"KEYS": "k1  k2 "}, {"keys": ["k1", "k2"]}, {}),
        ({"__SHARDINGKEY": "g"}, {"message_type": FIFO, "message_group": "g"}, {}),
        ({"traceparent": TRACE}, {"trace_context": TRACE}, {}),
        ({"__BORNHOST": "shop-1"}, {"born_host": "shop-1"}, {}),
        ({"UNIQ_KEY": "7F01"}, {"message_id": "7F01", "born_host": "10.0.0.7"}, {}),
        ({"colour": "größe 日", "INSTANCE_ID": "i"}, {}, {"colour": "größe 日", "INSTANCE_ID": "i"}),
        ({"DELAY": "1"}, {"message_type": DELAY, "delivery_timestamp": 1_000}, {}),
        ({"DELAY": "-1"}, {"message_type": NORMAL}, {}),
        ({"TIMER_DELAY_MS": "1234"}, {"message_type": DELAY, "delivery_timestamp": 1_234}, {}),
        ({"TIMER_DELAY_SEC": "2"}, {"message_type": DELAY, "delivery_timestamp": 2_000}, {}),
        ({"TIMER_DELAY_MS": "5000", "__SHARDINGKEY": "g"}, {"message_type": FIFO, "message_group": "g"}, {}),
        ({"TRAN_MSG": "true", "PGROUP": "payers"}, {"message_type": TRANSACTION}, {}),
        (
            {"TRAN_MSG": "true", "traceparent": TRACE},
            {"message_type": TRANSACTION, "trace_context": TRACE},
            {},
        ),
        ({"TRAN_MSG": "false"}, {"message_type": NORMAL}, {}),
        ({"WAIT": "true", "MSG_REGION": "r", "TRACE_ON": "false", "CLUSTER": "c", "POP_CK": "x"}, {}, {}),
        ({"REAL_TOPIC": "t", "REAL_QID": "1", "TIMER_OUT_MS": "5", "DLQ_REASON": "r"}, {}, {}),
        ({"DLQ_ORIGIN_TOPIC": "t", "DLQ_ORIGIN_MESSAGE_ID": "7F"}, {"dead_letter_queue": None}, {}),
    ],
)
async def test_what_was_sent_over_remoting_is_shown_over_grpc(world, peer, properties, system, user):
    sent_ms = world.clock.now_ms()
    answer = await peer.send(properties=properties, body=zlib.compress(b"body"), f=SYS_COMPRESSED, g=BORN_MS)
    if properties.get("TRAN_MSG") == "true":
        place = int(answer.fields["msgId"][-16:], 16)
        group = properties.get("PGROUP", "producers")
        end = {"producerGroup": group, "commitLogOffset": place, "commitOrRollback": SYS_COMMIT}
        await peer.ask(Call.END_TRANSACTION, end)
    await world.advance(10_000)
    message, view = await over_grpc(world)
    found = message.system_properties
    assert (message.body, dict(message.user_properties), to_ms(found.born_timestamp)) == (
        b"body",
        user,
        BORN_MS,
    )
    assert found.message_id == properties.get("UNIQ_KEY", view.id)
    for name, value in system.items():
        if name == "delivery_timestamp":
            assert to_ms(found.delivery_timestamp) == sent_ms + value
        elif value is None:
            assert not found.HasField(name)
        else:
            assert getattr(found, name) == value, name


@pytest.mark.parametrize(
    ("system", "user", "shown"),
    [
        ({}, {}, {}),
        ({"tag": "a"}, {}, {"TAGS": "a"}),
        ({"keys": ["k1", "k2"]}, {}, {"KEYS": "k1 k2"}),
        ({"message_group": "g"}, {}, {"__SHARDINGKEY": "g"}),
        ({"trace_context": TRACE}, {}, {"traceparent": TRACE}),
        ({"trace_context": "nonsense"}, {}, {}),
        ({"born_host": "shop-1"}, {}, {"__BORNHOST": "shop-1"}),
        ({}, {"colour": "größe 日"}, {"colour": "größe 日"}),
        ({"delivery_timestamp": 5_000}, {}, {"TIMER_OUT_MS": 5_000, "REAL_TOPIC": "orders", "REAL_QID": "0"}),
        ({"delivery_timestamp": -5_000}, {}, {}),
        ({"message_type": TRANSACTION, "tag": "a"}, {}, {"TRAN_MSG": "true", "TAGS": "a"}),
        ({"body_encoding": Encoding.GZIP}, {}, {}),
    ],
)
async def test_what_was_sent_over_grpc_is_shown_over_remoting(world, peer, system, user, shown):
    now_ms, body = world.clock.now_ms(), b"body"
    is_compressed = system.get("body_encoding") == Encoding.GZIP
    message = message_class("Message")(body=zlib.compress(body) if is_compressed else body)
    message.topic.name = "orders"
    message.user_properties.update(user)
    found = message.system_properties
    found.message_id = "0102"
    set_ms(found.born_timestamp, BORN_MS)
    for name, value in system.items():
        if name == "delivery_timestamp":
            set_ms(found.delivery_timestamp, now_ms + value)
        elif isinstance(value, list):
            getattr(found, name).extend(value)
        else:
            setattr(found, name, value)
    sent = outgoing(message, PEER, now_ms, 1_000)
    is_half = system.get("message_type") == TRANSACTION
    if is_half:
        begun = await world.engine.transactions.begin(sent)
        await world.engine.transactions.commit(begun.id)
    else:
        await world.engine.sender.send([sent])
    await world.advance(5_000)
    pulled, properties = await over_remoting(peer)
    if "TIMER_OUT_MS" in shown:
        shown = shown | {"TIMER_OUT_MS": str(now_ms + shown["TIMER_OUT_MS"])}
    assert properties == shown | {"UNIQ_KEY": "0102"}
    assert (pulled.body, pulled.born_ms, pulled.born_host) == (b"body", BORN_MS, PEER)
    assert pulled.sys_flag == (SYS_COMMIT if is_half else 0)


async def test_a_message_of_http_has_the_same_id_over_both(world, peer):
    [receipt] = await world.engine.sender.send([Outgoing("orders", b"x")])
    _, properties = await over_remoting(peer)
    message, _ = await over_grpc(world)
    assert properties["UNIQ_KEY"] == message.system_properties.message_id == receipt.id


async def test_a_born_time_beyond_all_bounds_is_shown_over_both(world, peer):
    message = message_class("Message")(body=b"grpc")
    message.topic.name, message.system_properties.message_id = "orders", "0102"
    message.system_properties.born_timestamp.seconds = 9_300_000_000_000_000
    await world.engine.sender.send([outgoing(message, PEER, world.clock.now_ms(), 1_000)])
    await peer.send(body=b"remoting", properties={"UNIQ_KEY": "7F0"}, g=2**63 - 1)
    pulled = messages_in(await peer.pull())
    assert {one.body: one.born_ms for one in pulled} == {b"grpc": BORN_MS_MAX, b"remoting": BORN_MS_MAX}
    for view in await world.delivered():
        found = stored(view, message_class("Resource")(name="orders"), "here:1")
        found.system_properties.born_timestamp.ToDatetime()  # which fails for a time that is not legal


async def test_a_message_that_came_from_kafka_is_pulled_and_popped(world, peer):
    envelope = KafkaEnvelope(b"key", [("name", b"value")]).encode()
    await world.engine.sender.send([Outgoing("orders", b"x", {"UNIQ_KEY": "k"}, envelope=envelope)])
    message, properties = await over_remoting(peer)
    assert (message.body, properties["UNIQ_KEY"]) == (b"x", "k")
    fields = {"consumerGroup": "poppers", "topic": "orders", "queueId": -1, "maxMsgNums": 1}
    popped = await peer.ask(Call.POP, fields | {"invisibleTime": 60_000})
    assert [one.born_ms for one in messages_in(popped)] == [message.born_ms]
