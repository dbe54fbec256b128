"""Requests with any fields and any body: each is answered, with a reason if it is refused."""

import random
from typing import Any

import orjson
import pytest

from tests.harness.remoting import Peer, remoting_of
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq.codes import FLAG_ONE_WAY, Call, Result
from timerwheel.rocketmq.front import Remoting

FROM_CLIENTS = sorted(set(Call) - {Call.CHECK_TRANSACTION, Call.NOTIFY_CONSUMERS, Call.RESET_CLIENT_OFFSETS})
RESULTS = frozenset(Result)
NAMES = (
    *"abcdefghijklmn",
    *("topic", "consumerGroup", "producerGroup", "group", "queueId", "queueOffset", "offset", "maxMsgNums"),
    *("sysFlag", "commitOffset", "suspendTimeoutMillis", "subscription", "expressionType", "timestamp"),
    *("invisibleTime", "pollTime", "initMode", "exp", "expType", "order", "extraInfo", "delayLevel"),
    *("key", "maxNum", "beginTimestamp", "endTimestamp", "_UNIQUE_KEY_QUERY", "recallHandle"),
    *("commitOrRollback", "commitLogOffset", "transactionId", "readQueueNums", "writeQueueNums"),
    *("maxReconsumeTimes", "clientID", "isForce", "properties", "batch"),
)
TEXTS = (
    *("", "0", "1", "-1", "3", "12", "orders", "readers", "%RETRY%readers", "%DLQ%readers", "true", "false"),
    *("9223372036854775807", "-9223372036854775808", "99999999999999999999", "1.5", "0x1", "null", "None"),
    *("a || b", "*", "||", "SQL92", "TAG", "KEYS\x01k\x02", "TRAN_MSG\x01true\x02", "DELAY\x011\x02"),
    *("0 1 2 3 0 b 0 0", "0 1 2 3 0 b 0 0 " + "0" * 60, "\x00", "日本", "x" * 2_000, "٣", "../..", "k"),
)


def body_of(rng: random.Random) -> bytes:
    values: tuple[Any, ...] = (*TEXTS, None, True, 0, -1, 1 << 62, [], {}, [[]], 0.5)
    names = (
        "topic",
        "consumerGroup",
        "clientId",
        "clientID",
        "mode",
        "mqSet",
        "acks",
        "consumerDataSet",
        "c",
    )
    found = {name: rng.choice(values) for name in rng.sample(names, rng.randrange(len(names)))}
    ack = {name: rng.choice(values) for name in ("c", "t", "r", "so", "q", "rq", "pt", "it", "b")}
    bodies = (b"", b"x", rng.randbytes(50), b"[" * 2_000, orjson.dumps(found), orjson.dumps({"acks": [ack]}))
    return rng.choice(bodies)


@pytest.mark.parametrize("seed", range(8))
async def test_any_request_is_answered_and_none_fails_the_service(world, caplog, seed):
    rng = random.Random(seed)
    remoting: Remoting = remoting_of(await world.open(topics_max=50, groups_max=50))
    await world.engine.sender.send([Outgoing("orders", b"x", {"KEYS": "k"}) for _ in range(3)])
    peer = Peer(remoting)
    for _ in range(250):
        fields = {name: rng.choice(TEXTS) for name in rng.sample(NAMES, rng.randrange(len(NAMES)))}
        if rng.random() < 0.8:
            fields |= {"topic": "orders", "consumerGroup": "readers"}
        flag = FLAG_ONE_WAY if rng.random() < 0.05 else 0
        frame = peer.frame(rng.choice(FROM_CLIENTS), fields | {"pollTime": 0}, body_of(rng), flag)
        peer.put(frame)
        await world.advance(20_000)  # beyond the time of every held pull
        if not flag:
            answer = await peer.answer_to(frame)
            assert answer.code in RESULTS, frame
    assert not peer.wire.closing
    assert "a request failed" not in caplog.text
