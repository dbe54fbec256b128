"""What HTTP refuses, remoting refuses: names, sizes and numbers, by request code."""

import base64
from typing import Any

import msgspec
import orjson
import pytest

from tests.harness.stored_messages import BatchedMessage, encode_batch
from timerwheel.model.listing import KEY_CHARACTERS_MAX
from timerwheel.rocketmq.codes import PULL_SUBSCRIPTION, SYS_COMMIT, Call, Result
from timerwheel.rocketmq.request import INT32_MAX
from timerwheel.settings import TOPIC_QUEUES_MAX

TOPIC, GROUP, QUEUES = "orders", "readers", 4
PLACE = {"topic": TOPIC, "consumerGroup": GROUP, "queueId": 0}
CHECKPOINT = "0 1700000000000 30000 1 0 timerwheel 0 0"
ANY_OFFSET = {"offset": 0}
POP = PLACE | {"maxMsgNums": 1, "invisibleTime": 30_000, "pollTime": 0}
PULL = PLACE | {"queueOffset": 0, "maxMsgNums": 32, "sysFlag": PULL_SUBSCRIPTION, "subscription": "*"}
SEND = {"a": "makers", "b": TOPIC, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0}
LEGAL_GROUPS = ("readers", "a|b_c-d%e", "x" * 120)
ILLEGAL_GROUPS = ("", "no good", "%RETRY%readers", "readers/1", "x" * 121, "größe")
ILLEGAL_TOPICS = ("", "no good", "orders/readers", "x" * 128, "größe", "SCHEDULE_TOPIC_XXXX", "%TASK%mail")


class Asked(msgspec.Struct):
    """A request that is served. `group` and `topic` are a field that names them, or a path in its body."""

    call: Call
    fields: dict[str, Any]
    body: Any = None
    group: str | None = "consumerGroup"
    topic: str | None = "topic"
    numbers: dict[str, tuple[Any, ...]] = {}
    """Values of fields that are refused."""
    is_of_all: bool = False
    """Whether an empty topic means all of them."""

    def named(self, place: str, name: str) -> tuple[dict[str, Any], bytes]:
        """Fields and body with this name in this place."""
        if self.body is None or place in self.fields:
            return self.fields | {place: name}, self.content
        *path, last = place.split(".")
        body = orjson.loads(orjson.dumps(self.body))
        at = body
        for part in path:
            at = at[part][0]
        at[last] = name
        return self.fields, orjson.dumps(body)

    @property
    def content(self) -> bytes:
        return (
            b""
            if self.body is None
            else self.body
            if isinstance(self.body, bytes)
            else orjson.dumps(self.body)
        )


NO_NUMBERS = ("", "x", "1.5", "\u0661", "9" * 30, 1 << 63)
NO_QUEUES = {"queueId": (-1, QUEUES, INT32_MAX + 1, *NO_NUMBERS)}
CLIENT = {"clientID": "one", "producerDataSet": [{"groupName": "makers"}]}
HEARTBEAT = CLIENT | {"consumerDataSet": [{"groupName": GROUP}]}
LOCK = {
    "consumerGroup": GROUP,
    "clientId": "one",
    "mqSet": [{"topic": TOPIC, "brokerName": "b", "queueId": 0}],
}
CHECK = {"group": GROUP, "subscriptionData": {"topic": TOPIC, "subString": "a", "expressionType": "TAG"}}
SHARE = {"topic": TOPIC, "consumerGroup": GROUP, "clientId": "one"}
BITS = base64.b64encode(b"\x01").decode()
ACKS = {"brokerName": "b", "acks": [{"c": GROUP, "t": TOPIC, "so": 0, "q": 0, "rq": 1, "b": BITS}]}
SET_QUEUES = {"topic": TOPIC, "readQueueNums": QUEUES, "writeQueueNums": QUEUES}
NO_COUNTS = (0, -1, TOPIC_QUEUES_MAX + 1, 10_000, *NO_NUMBERS[1:])
RESET = {"topic": TOPIC, "group": GROUP, "timestamp": 0}

SERVED = [
    Asked(
        Call.PULL,
        PULL,
        numbers=NO_QUEUES | {"queueOffset": NO_NUMBERS, "maxMsgNums": NO_NUMBERS[1:], "sysFlag": (-1, "x")},
    ),
    Asked(Call.LITE_PULL, PULL),
    Asked(Call.QUERY_OFFSET, PLACE, numbers=NO_QUEUES),
    Asked(
        Call.UPDATE_OFFSET,
        PLACE | {"commitOffset": 1},
        numbers=NO_QUEUES | {"commitOffset": (-1, 2, (1 << 63) - 1, *NO_NUMBERS)},
    ),
    Asked(Call.MAX_OFFSET, PLACE, group=None, numbers=NO_QUEUES),
    Asked(Call.MIN_OFFSET, PLACE, group=None, numbers=NO_QUEUES),
    Asked(
        Call.SEARCH_OFFSET,
        PLACE | {"timestamp": 0},
        group=None,
        numbers=NO_QUEUES | {"timestamp": NO_NUMBERS},
    ),
    Asked(Call.EARLIEST_STORE_TIME, PLACE, group=None, numbers=NO_QUEUES),
    Asked(
        Call.POP,
        POP,
        numbers={
            "queueId": (-2, QUEUES, *NO_NUMBERS[1:]),
            "maxMsgNums": NO_NUMBERS,
            "invisibleTime": (0, -1, 43_200_001, *NO_NUMBERS),
            "pollTime": (-1, "x"),
        },
    ),
    Asked(Call.NOTIFICATION, PLACE | {"pollTime": 0}, numbers={"pollTime": (-1, "x")}),
    Asked(Call.ACKNOWLEDGE, PLACE | {"offset": 0, "extraInfo": CHECKPOINT}),
    Asked(Call.ACKNOWLEDGE_BATCH, {}, ACKS, group="acks.c", topic="acks.t"),
    Asked(
        Call.CHANGE_INVISIBLE_TIME,
        PLACE | {"offset": 0, "extraInfo": CHECKPOINT, "invisibleTime": 10_000},
        numbers={"invisibleTime": (-1, 43_200_001, *NO_NUMBERS)},
    ),
    Asked(Call.QUERY_ASSIGNMENT, {}, SHARE),
    Asked(Call.SET_REQUEST_MODE, {}, SHARE | {"mode": "PULL"}),
    Asked(Call.CHECK_CLIENT, {}, CHECK, group="group", topic=None),
    Asked(Call.LOCK_QUEUES, {}, LOCK, topic="mqSet.topic"),
    Asked(Call.UNLOCK_QUEUES, {}, LOCK, topic=None),
    Asked(Call.HEARTBEAT, {}, HEARTBEAT, group="consumerDataSet.groupName", topic=None),
    Asked(Call.CONSUMER_LIST, {"consumerGroup": GROUP}, topic=None),
    Asked(Call.CONSUMER_CONNECTIONS, {"consumerGroup": GROUP}, topic=None),
    Asked(
        Call.SEND_BACK,
        {"group": GROUP, "offset": 0},
        group="group",
        topic=None,
        numbers={
            "offset": (-1, *NO_NUMBERS),
            "delayLevel": (1_001, -1_001, "x"),
            "maxReconsumeTimes": (-2, INT32_MAX + 1, "x"),
        },
    ),
    Asked(
        Call.RESET_OFFSETS,
        RESET,
        group="group",
        numbers={
            "timestamp": NO_NUMBERS,
            "queueId": (-2, QUEUES, *NO_NUMBERS[1:]),
            "offset": (-2, 0, *NO_NUMBERS[1:]),  # of which queue?
        },
    ),
    Asked(Call.CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC}, is_of_all=True),
    Asked(Call.GROUPS_OF_TOPIC, {"topic": TOPIC}, group=None),
    Asked(Call.TOPIC_STATS, {"topic": TOPIC}, group=None),
    Asked(Call.ROUTE, {"topic": TOPIC}, group=None),
    Asked(
        Call.UPDATE_TOPIC,
        SET_QUEUES,
        group=None,
        numbers={"readQueueNums": NO_COUNTS, "writeQueueNums": NO_COUNTS},
    ),
    Asked(Call.DELETE_TOPIC, {"topic": "other"}, group=None),
    Asked(Call.UPDATE_GROUP, {}, {"groupName": GROUP}, group="groupName", topic=None),
    Asked(Call.DELETE_GROUP, {"groupName": "others"}, group="groupName", topic=None),
    Asked(
        Call.QUERY_MESSAGE,
        {"topic": TOPIC, "key": "4711", "maxNum": 1},
        group=None,
        numbers={
            "key": ("", "x" * (KEY_CHARACTERS_MAX + 1)),
            "maxNum": (-1, "x"),
            "endTimestamp": ("x", 1 << 63),
        },
    ),
    Asked(Call.VIEW_MESSAGE, ANY_OFFSET, group=None, topic=None, numbers={"offset": (-1, *NO_NUMBERS)}),
    Asked(
        Call.SEND_V2,
        SEND,
        group=None,
        topic="b",
        numbers={
            "e": (QUEUES, INT32_MAX + 1, "x"),
            "f": (-1, INT32_MAX + 1, "x"),
            "g": (-1, 1 << 63, "x"),
            "h": (INT32_MAX + 1, "x"),
            "j": (-1, INT32_MAX + 1, "x"),
        },
    ),
    Asked(
        Call.END_TRANSACTION,
        {"producerGroup": "makers", "commitLogOffset": 0, "commitOrRollback": SYS_COMMIT},
        group=None,
        topic=None,
        numbers={"commitLogOffset": (-1, *NO_NUMBERS), "commitOrRollback": (-1, 1, 4, "x")},
    ),
]
NO_NAMES = {
    Call.ALL_TOPICS,
    Call.BROKER_RUNTIME_INFO,
    Call.CLUSTER,
    Call.DELETE_KV_CONFIG,
    Call.DELETE_TOPIC_ROUTE,
    Call.RECALL,
    Call.SEND,
    Call.SEND_BATCH,
    Call.TOPIC_CONFIG,
    Call.UNREGISTER,
}
"""Calls that look at no name or number, have a test of their own, or only ever give something up."""
FROM_THE_SERVER = {Call.CHECK_TRANSACTION, Call.NOTIFY_CONSUMERS, Call.RESET_CLIENT_OFFSETS}
SERVED_AS = {asked.call: asked for asked in SERVED}

pytestmark = pytest.mark.usefixtures("orders")


@pytest.fixture
async def orders(peer):
    """A topic with a message in its first queue."""
    await peer.ask(Call.UPDATE_TOPIC, SET_QUEUES)
    await peer.send(TOPIC)


def state_of(world, remoting):
    """What a refused request must not change."""
    engine = world.engine
    groups = {
        topic: [info.group for info in engine.groups.all(topic)] for topic in engine.queues.topic_names()
    }
    members = {group: list(remoting.members.of(group)) for group in ILLEGAL_GROUPS}
    return engine.queues.topics(), groups, engine.core.state.until, members


async def refused(world, remoting, peer, call, fields, body):
    before = state_of(world, remoting)
    answer = await peer.ask(call, fields, body)
    assert state_of(world, remoting) == before, fields
    assert answer.remark, fields
    assert "the service failed" not in answer.remark, fields
    return Result(answer.code)


async def test_every_request_code_is_in_the_table():
    assert {*SERVED_AS, *NO_NAMES, *FROM_THE_SERVER} == set(Call)


@pytest.mark.parametrize("call", [asked.call for asked in SERVED if asked.group])
async def test_no_request_takes_an_illegal_name_of_a_group(world, remoting, peer, call):
    asked = SERVED_AS[call]
    for name in ILLEGAL_GROUPS:
        assert (
            await refused(world, remoting, peer, call, *asked.named(asked.group, name)) == Result.SYSTEM_ERROR
        )
    for name in LEGAL_GROUPS:
        answer = await peer.ask(call, *asked.named(asked.group, name))
        assert "not a valid group name" not in (answer.remark or "")


@pytest.mark.parametrize("call", [asked.call for asked in SERVED if asked.topic])
async def test_no_request_takes_an_illegal_topic(world, remoting, peer, call):
    asked = SERVED_AS[call]
    for name in ILLEGAL_TOPICS[asked.is_of_all :]:
        result = await refused(world, remoting, peer, call, *asked.named(asked.topic, name))
        assert result in {Result.TOPIC_NOT_EXIST, Result.MESSAGE_ILLEGAL, Result.NO_PERMISSION}, name


@pytest.mark.parametrize("call", [asked.call for asked in SERVED if asked.numbers])
async def test_no_request_takes_a_number_out_of_its_bounds(world, remoting, peer, call):
    asked = SERVED_AS[call]
    for name, values in asked.numbers.items():
        for value in values:
            fields = asked.fields | {name: value}
            result = await refused(world, remoting, peer, call, fields, asked.content)
            assert result in {Result.SYSTEM_ERROR, Result.TOPIC_NOT_EXIST}, (name, value)


async def test_an_illegal_name_does_not_keep_a_clients_other_groups_out(remoting, peer):
    body = CLIENT | {"consumerDataSet": [{"groupName": "no good"}, {"groupName": "good"}]}
    answer = await peer.ask(Call.HEARTBEAT, body=orjson.dumps(body))
    assert (answer.code, "'no good' is not a valid group name" in answer.remark) == (
        Result.SYSTEM_ERROR,
        True,
    )
    assert (list(remoting.members.of("good")), remoting.members.of("no good")) == (["one"], {})


async def test_a_queue_that_the_topic_does_not_have_cannot_be_locked(peer):
    queues = [{"topic": TOPIC, "brokerName": "b", "queueId": queue} for queue in (-1, 3, 4, 1 << 40)]
    answer = await peer.ask(Call.LOCK_QUEUES, body=orjson.dumps(LOCK | {"mqSet": queues}))
    assert [one["queueId"] for one in orjson.loads(answer.body)["lockOKMQSet"]] == [3]


async def test_offsets_of_a_topic_that_does_not_exist_are_not_reset(peer):
    answer = await peer.ask(Call.RESET_OFFSETS, RESET | {"topic": "nothing"})
    assert answer.code == Result.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("a\x01" + "x" * 32_766 + "\x02", Result.MESSAGE_ILLEGAL),
        ("".join(f"n{number}\x01x\x02" for number in range(129)), Result.MESSAGE_ILLEGAL),
        ("a\nb\x01x\x02", Result.MESSAGE_ILLEGAL),
        ("TIMER_TTL_MS\x01soon\x02", Result.MESSAGE_ILLEGAL),
        ("DELAY\x01soon\x02", Result.MESSAGE_ILLEGAL),
        ("TIMER_DELAY_MS\x01" + "9" * 400 + "\x02", Result.MESSAGE_ILLEGAL),
    ],
)
@pytest.mark.parametrize("is_batch", [False, True])
async def test_properties_that_http_refuses_are_refused(world, remoting, peer, text, result, is_batch):
    fields, body = SEND, b"x"
    if is_batch:
        body, fields = encode_batch([BatchedMessage(0, b"x", text.encode())]), SEND | {"m": "true"}
    else:
        fields = SEND | {"i": text}
    code = Call.SEND_BATCH if is_batch else Call.SEND_V2
    assert await refused(world, remoting, peer, code, fields, body) == result


@pytest.mark.parametrize(
    ("text", "body"),
    [("", b"x" * ((4 << 20) + 1)), ("TIMER_TTL_MS\x01soon\x02", b"x"), ("a\nb\x01x\x02", b"x")],
)
async def test_a_consumer_that_sends_to_its_retry_topic_is_held_to_the_rules(
    world, remoting, peer, text, body
):
    fields = SEND | {"b": "%RETRY%readers", "i": f"RETRY_TOPIC\x01{TOPIC}\x02{text}"}
    assert await refused(world, remoting, peer, Call.SEND_V2, fields, body) == Result.MESSAGE_ILLEGAL


async def test_a_message_that_was_consumed_as_often_as_can_be_said_becomes_a_dead_letter(world, peer):
    sent = await peer.send(j=INT32_MAX)
    offset = int(sent.fields["msgId"][-16:], 16)
    fields = {"group": GROUP, "offset": offset, "maxReconsumeTimes": INT32_MAX}
    assert (await peer.ask(Call.SEND_BACK, fields)).code == Result.SUCCESS
    assert world.engine.queues.topic("%DLQ%readers").visible == 1
    assert (await peer.pull("%DLQ%readers")).code == Result.SUCCESS
