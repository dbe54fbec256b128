import asyncio
import zlib

import orjson
import pytest

from tests.harness.drive import read_all
from tests.harness.remoting import Caller, Callers, Peer, bodies_in, messages_in, properties_of, remoting_of
from tests.harness.stored_messages import BatchedMessage, encode_batch
from timerwheel.model.admission import TRACE_TOPIC
from timerwheel.model.ids import root_of
from timerwheel.model.listing import Listing
from timerwheel.model.messages import Outgoing, State
from timerwheel.rocketmq import properties_text
from timerwheel.rocketmq.codes import SYS_COMPRESSED, SYS_MULTI_TAGS, Call, Result
from timerwheel.rocketmq.message_ids import RecallHandle
from timerwheel.rocketmq.name_server import BROKER, Advertised
from timerwheel.rocketmq.properties_text import TEXT_BYTES_MAX
from timerwheel.rocketmq.repeats import ANSWER_LATE_MS
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.topics import QUEUES_OF_NEW
from timerwheel.rocketmq.translation import OF_THE_BROKER, plain_properties
from timerwheel.runtime.steps import AT_ONCE_MAX
from timerwheel.tokens import Scope


@pytest.fixture
def limits():
    return {"body_bytes_max": 10_000}


async def everything(world, topic="orders"):
    """Bodies of a topic, in all its queues."""
    found = []
    for queue in range(world.engine.topics.queues_of(topic)):
        found += await read_all(world.engine, topic, queue=queue)
    return found


@pytest.mark.parametrize("flag", [64 | 128, 16 | 32, 8, 12, 2**31 - 2**11])
async def test_a_producer_cannot_have_consumers_misread_a_body(peer, flag):
    await peer.send(f=flag | SYS_MULTI_TAGS)
    [message] = messages_in(await peer.pull())
    assert message.sys_flag == SYS_MULTI_TAGS


@pytest.mark.parametrize("form", [0, 1])
async def test_a_send_is_stored_and_answered_with_its_place(world, remoting, form):
    answer = await Peer(remoting, form=form).send(
        body=b"one", properties={"KEYS": "k", "UNIQ_KEY": "7F"}, e=2
    )
    assert answer.code == Result.SUCCESS
    assert answer.form == form
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("2", "0")
    assert answer.fields["transactionId"] == "7F"
    [message] = (await world.engine.queues.read_queue("orders", 2, 0, 9)).messages
    assert (message.body, message.properties) == (b"one", {"KEYS": "k", "UNIQ_KEY": "7F"})
    assert answer.fields["msgId"].endswith(message.id[:16].upper())


async def test_offsets_of_a_queue_count_up(peer):
    answers = [await peer.send(e=1) for _ in range(3)]
    assert [answer.fields["queueOffset"] for answer in answers] == ["0", "1", "2"]


async def test_a_first_send_makes_a_topic_of_several_queues(world, peer):
    assert (await peer.send(e=QUEUES_OF_NEW - 1)).code == Result.SUCCESS
    assert world.engine.topics.queues_of("orders") == QUEUES_OF_NEW


async def test_a_topic_of_http_keeps_its_queues_though_a_client_knows_an_older_route(world, peer):
    route = orjson.loads((await peer.ask(Call.ROUTE, {"topic": "orders"})).body)
    assert route["queueDatas"][0]["writeQueueNums"] == QUEUES_OF_NEW
    await world.engine.sender.send([Outgoing("orders", b"x")])
    answers = [await peer.send(e=queue) for queue in range(QUEUES_OF_NEW)]
    assert [(one.fields["queueId"], one.fields["queueOffset"]) for one in answers] == [
        ("0", str(offset)) for offset in range(1, QUEUES_OF_NEW + 1)
    ]
    assert world.engine.topics.queues_of("orders") == 1
    assert (await peer.send(e=QUEUES_OF_NEW)).code == Result.SYSTEM_ERROR


async def test_a_queue_beyond_the_number_that_was_set_is_refused(world, peer):
    await world.engine.topics.change("orders", queues=2)
    assert (await peer.send(e=1)).code == Result.SUCCESS
    answer = await peer.send(e=2)
    assert (answer.code, answer.remark) == (Result.SYSTEM_ERROR, "topic 'orders' has no queue 2, only 2")


async def test_a_send_goes_on_though_its_topic_was_made_by_http_in_between(world, peer):
    await world.engine.sender.send([Outgoing("filler", b"x")])
    frame = peer.send_frame(e=3)
    sent = asyncio.ensure_future(world.engine.sender.send([Outgoing("orders", b"x")]))
    peer.put(frame)
    answer = await peer.answer_to(frame)
    await sent
    assert answer.code == Result.SUCCESS


async def test_a_send_with_long_names_is_the_same(world, peer):
    fields = {"producerGroup": "p", "topic": "orders", "queueId": 1, "properties": "A\x01b\x02", "sysFlag": 0}
    answer = await peer.ask(Call.SEND, fields | {"bornTimestamp": 5, "flag": 7}, b"long")
    assert answer.code == Result.SUCCESS
    assert [message.properties for message in await everything(world)] == [{"A": "b"}]


async def test_sends_of_one_read_are_all_answered_though_one_is_refused(world, peer):
    frames = [peer.send_frame(body=b"%d" % n, e=0) for n in range(5)]
    frames[2] = peer.send_frame(body=bytes(10_001))
    await peer.send()  # makes the topic
    peer.put(*frames)
    codes = [(await peer.answer_to(frame)).code for frame in frames]
    assert codes == [0, 0, Result.MESSAGE_ILLEGAL, 0, 0]
    assert [message.body for message in await everything(world)] == [b"x", b"0", b"1", b"3", b"4"]


async def test_a_one_way_send_is_stored_and_never_answered(world, peer):
    await peer.send()
    frame = peer.send_frame(body=b"one way", one_way=True)
    peer.put(frame)
    await peer.send(body=b"after")
    assert peer.answer_now(frame) is None
    assert [message.body for message in await everything(world)] == [b"x", b"one way", b"after"]


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        ("DELAY", "2", 5_000),
        ("TIMER_DELAY_SEC", "3", 3_000),
        ("TIMER_DELAY_MS", "1234", 1_234),
        ("TIMER_DELIVER_MS", "{now+777}", 777),
    ],
)
async def test_each_way_to_say_a_delay_counts(world, peer, name, value, due_ms):
    now_ms = world.clock.now_ms()
    text = str(now_ms + 777) if "now" in value else value
    answer = await peer.send(properties={name: text, "UNIQ_KEY": "7F"})
    assert answer.fields["queueOffset"] == "0"
    handle = RecallHandle.decode(answer.fields["recallHandle"])
    assert (handle.due_ms, handle.uniq_key) == (now_ms + due_ms, "7F")
    await world.advance(due_ms - 1)
    assert await everything(world) == []
    await world.advance(1)
    [message] = await everything(world)
    assert (message.id, message.due_ms) == (handle.message_id, now_ms + due_ms)


async def test_a_delivered_message_shows_its_delay_and_its_envelope(world, peer):
    await peer.send(properties={"DELAY": "1", "KEYS": "k"}, g=1_699_999_999_999, h=-7, f=2, j=3)
    await world.advance(1_000)
    [message] = messages_in(await peer.pull())
    properties = properties_of(message)
    assert properties["DELAY"] == "1"
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("orders", "0")
    assert properties["TIMER_OUT_MS"] == str(world.clock.now_ms())
    assert (message.born_ms, message.flag, message.sys_flag, message.consumed_before) == (
        1_699_999_999_999,
        -7,
        2,
        3,
    )
    assert message.born_host == Host("10.0.0.7", 40_001)
    assert message.store_host == Host("127.0.0.1", 9876)
    [seen] = await everything(world)  # over HTTP the envelope does not show
    assert set(seen.properties) == {"KEYS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"}


async def test_a_message_of_http_has_its_id_as_message_id(world, peer):
    [receipt] = await world.engine.sender.send([Outgoing("orders", b"http", {"TAGS": "a"})])
    [message] = messages_in(await peer.pull())
    assert properties_of(message) == {"TAGS": "a", "UNIQ_KEY": receipt.id, **OF_THE_BROKER}
    assert message.born_ms == world.clock.now_ms()


async def test_a_message_that_is_sent_on_has_the_region_of_the_broker_and_not_a_stored_one(world, peer):
    await peer.send(properties={"UNIQ_KEY": "7F", "MSG_REGION": "elsewhere", "TRACE_ON": "false"})
    [message] = messages_in(await peer.pull())
    assert properties_of(message) == {"UNIQ_KEY": "7F", **OF_THE_BROKER}
    [seen] = await everything(world)
    assert set(seen.properties) == {"UNIQ_KEY"}


async def test_a_batch_is_one_unit(peer):
    batch = [BatchedMessage(n, b"%d" % n, b"UNIQ_KEY\x01%d\x02" % n) for n in range(4)]
    answer = await peer.send(body=encode_batch(batch), code=Call.SEND_BATCH, e=1)
    assert len(answer.fields["msgId"].split(",")) == 4
    assert answer.fields["queueOffset"] == "0"
    found = messages_in(await peer.pull(queueId=1))
    assert [(one.body, one.flag) for one in found] == [(b"0", 0), (b"1", 1), (b"2", 2), (b"3", 3)]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Call.SEND_V2, {"m": "true"}),
        (Call.SEND, {"batch": "true"}),
        (Call.SEND, {"batch": "1"}),  # of the C++ client
    ],
)
async def test_a_send_may_say_that_it_is_a_batch(peer, code, fields):
    batch = encode_batch([BatchedMessage(0, b"%d" % n, b"") for n in range(2)])
    long = {"producerGroup": "p", "topic": "orders", "queueId": 0, "a": "p", "b": "orders", "e": 0}
    assert (await peer.ask(code, long | fields, batch)).code == Result.SUCCESS
    assert bodies_in(await peer.pull()) == [b"0", b"1"]


async def test_plain_properties_make_the_same_record_as_the_long_way(world, limits):
    sender = (await world.open(**limits)).sender
    await world.engine.topics.change("orders", queues=2)
    envelope = "5 10.0.0.7 40001"
    plain = plain_properties([b"UNIQ_KEY\x017F\x02WAIT\x01true\x02A\x01%b\x02"], envelope, sender.rules)
    quick = Outgoing("orders", b"x", queue=1, plain=plain.stored[0])
    long = Outgoing("orders", b"x", {"UNIQ_KEY": "7F", "A": "%b"}, queue=1, envelope=envelope)
    pending = sender.begin([quick, long, quick], separate=True)  # the last one is padded
    await pending.stored
    assert pending.records[0] == pending.records[1]
    assert sender.offsets(pending) == [root_of(receipt.id) for receipt in sender.receipts(pending)]


async def test_a_batch_of_plain_and_other_messages_keeps_their_order_and_properties(world, peer):
    texts = [b"A\x01plain\x02WAIT\x01true\x02", "A\x01é\x02".encode(), b"", b'A\x01"\x02REAL_TOPIC\x01t\x02']
    batch = [BatchedMessage(0, b"%d" % n, text) for n, text in enumerate(texts)]
    assert (await peer.send(body=encode_batch(batch), code=Call.SEND_BATCH, e=1)).code == Result.SUCCESS
    found = (await world.engine.queues.read_queue("orders", 1, 0, 9)).messages
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3"]
    assert [message.properties for message in found] == [{"A": "plain"}, {"A": "é"}, {}, {"A": '"'}]


async def test_a_batch_of_more_than_one_step_is_one_unit(peer):
    await peer.send()
    batch = [BatchedMessage(0, b"%d" % n, b"UNIQ_KEY\x01%d\x02" % n) for n in range(AT_ONCE_MAX + 1)]
    answer = await peer.send(body=encode_batch(batch), code=Call.SEND_BATCH, e=1)
    assert (answer.code, answer.fields["queueOffset"]) == (Result.SUCCESS, "0")
    assert len(answer.fields["msgId"].split(",")) == AT_ONCE_MAX + 1


async def test_a_batch_with_one_bad_message_stores_nothing(world, peer):
    batch = [BatchedMessage(0, b"good", b""), BatchedMessage(0, bytes(10_001), b"")]
    answer = await peer.send(body=encode_batch(batch), code=Call.SEND_BATCH)
    assert answer.code == Result.MESSAGE_ILLEGAL
    assert await everything(world) == []


@pytest.mark.parametrize("text", [b"KEYS\x01k\x02", "KEYS\x01é\x02".encode()])
async def test_traces_come_in_batches_too(peer, text):
    batch = encode_batch([BatchedMessage(0, b"%d" % n, text) for n in range(2)])
    assert (await peer.send(TRACE_TOPIC, batch, code=Call.SEND_BATCH)).code == Result.SUCCESS
    assert bodies_in(await peer.pull(TRACE_TOPIC)) == [b"0", b"1"]
    for name in (TRACE_TOPIC.lower(), "RMQ_SYS_OTHER"):
        assert (await peer.send(name, batch, code=Call.SEND_BATCH)).code == Result.NO_PERMISSION


@pytest.mark.parametrize("body", [b"", b"\0\0\0\x07", encode_batch([BatchedMessage(0, b"x", b"")])[:-1]])
async def test_a_batch_that_cannot_be_read_is_illegal(peer, body):
    assert (await peer.send(body=body, code=Call.SEND_BATCH)).code == Result.MESSAGE_ILLEGAL


@pytest.mark.parametrize("kind", [0, 3 << 8])
async def test_a_body_compressed_with_zlib_is_stored_plain(world, peer, kind):
    await peer.send(body=zlib.compress(b"plain" * 100), f=SYS_COMPRESSED | kind)
    assert [message.body for message in await everything(world)] == [b"plain" * 100]
    [message] = messages_in(await peer.pull())
    assert (message.body, message.sys_flag) == (b"plain" * 100, 0)


@pytest.mark.parametrize(
    ("body", "flag", "reason"),
    [
        (zlib.compress(bytes(10_001)), SYS_COMPRESSED, "more than body_size_max = 10000 bytes"),
        (zlib.compress(b"cut" * 50)[:-3], SYS_COMPRESSED, "ends too early"),
        (b"no zlib", SYS_COMPRESSED, "damaged"),
        (b"lz4", SYS_COMPRESSED | 1 << 8, "compressed with LZ4; use zlib"),
        (b"zstd", SYS_COMPRESSED | 2 << 8, "compressed with Zstandard; use zlib"),
        (b"what", SYS_COMPRESSED | 7 << 8, "an unknown method"),
    ],
)
async def test_a_body_that_cannot_be_inflated_is_illegal(world, peer, body, flag, reason):
    answer = await peer.send(body=body, f=flag)
    assert answer.code == Result.MESSAGE_ILLEGAL
    assert reason in answer.remark
    assert world.engine.queues.topic_id("orders") < 0


@pytest.mark.parametrize(
    ("topic", "properties", "fields", "code"),
    [
        ("orders", {"TRAN_MSG": "true"}, {"m": "true"}, Result.MESSAGE_ILLEGAL),
        ("orders", {"TIMER_DEL_UNIQKEY": "7F", "TIMER_DELIVER_MS": "1"}, {}, Result.MESSAGE_ILLEGAL),
        ("orders", {"TIMER_DEL_UNIQKEY": "7F", "TIMER_DELAY_MS": "9000"}, {}, Result.MESSAGE_ILLEGAL),
        ("orders", {}, {"i": "A\x01" + "ä" * (TEXT_BYTES_MAX // 2) + "\x02"}, Result.MESSAGE_ILLEGAL),
        ("orders", {"DELAY": "x"}, {}, Result.MESSAGE_ILLEGAL),
        ("orders", {"TIMER_DELAY_MS": "soon"}, {}, Result.MESSAGE_ILLEGAL),
        ("orders", {"TIMER_DELAY_MS": str(2**62)}, {}, Result.MESSAGE_ILLEGAL),
        ("no/topic", {}, {}, Result.MESSAGE_ILLEGAL),
        ("%DLQ%group", {}, {}, Result.NO_PERMISSION),
        ("SCHEDULE_TOPIC_XXXX", {}, {}, Result.NO_PERMISSION),
        ("orders", {}, {"e": 4}, Result.SYSTEM_ERROR),
        ("orders", {}, {"e": "one"}, Result.SYSTEM_ERROR),
        ("orders", {}, {"g": "9" * 30}, Result.SYSTEM_ERROR),
        ("orders", {}, {"h": 1 << 31}, Result.SYSTEM_ERROR),
    ],
)
async def test_refused_sends_get_rocketmqs_codes(world, peer, topic, properties, fields, code):
    answer = await peer.send(topic, properties=properties, **fields)
    assert answer.code == code
    assert answer.remark
    assert world.engine.queues.topic_id(topic) < 0


async def test_a_message_that_would_cancel_another_one_in_rocketmq_says_what_to_do(world, peer):
    cancel = {"TIMER_DEL_UNIQKEY": "7F", "TIMER_DELIVER_MS": str(world.clock.now_ms() + 5_000)}
    assert "recall" in (await peer.send(properties=cancel)).remark
    batch = encode_batch([BatchedMessage(0, b"x", properties_text.encode(cancel).encode())])
    answer = await peer.send(body=batch, code=Call.SEND_BATCH)
    assert (answer.code, "recall" in answer.remark) == (Result.MESSAGE_ILLEGAL, True)
    assert (await peer.send(properties={"TIMER_DEL_UNIQKEY": "7F"})).code == Result.SUCCESS


async def test_a_batch_that_says_that_it_is_compressed_is_illegal(world, peer):
    batch = encode_batch([BatchedMessage(0, zlib.compress(b"x" * 99), b"")])
    answer = await peer.send(body=batch, code=Call.SEND_BATCH, f=SYS_COMPRESSED)
    assert (answer.code, "uncompressed" in answer.remark) == (Result.MESSAGE_ILLEGAL, True)
    assert world.engine.queues.topic_id("orders") < 0


async def test_a_delay_level_below_zero_is_none(world, peer):
    assert (await peer.send(body=b"now", properties={"DELAY": "-1", "UNIQ_KEY": "7F"})).code == Result.SUCCESS
    assert (await peer.send(body=b"later", properties={"DELAY": "-1", "TIMER_DELAY_MS": "5000"})).code == 0
    assert [message.body for message in await world.delivered()] == [b"now"]
    await world.advance(5_000)
    assert [message.body for message in await world.delivered()] == [b"now", b"later"]


async def test_properties_of_any_size_that_the_protocol_allows_come_back(peer):
    value = "a" * (TEXT_BYTES_MAX - len("A\x01\x02B\x01\x02UNIQ_KEY\x017F\x02") - 16_384)
    sent = {"A": value, "B": "b" * 16_384, "UNIQ_KEY": "7F"}
    assert (await peer.send(properties=sent)).code == Result.SUCCESS
    [message] = messages_in(await peer.pull())
    assert properties_of(message) == sent


async def test_a_full_second_is_refused_with_a_code_that_clients_try_again(world):
    peer = Peer(remoting_of(await world.open(slot_messages_max=1)))
    await peer.send(properties={"TIMER_DELAY_MS": "5000"})
    assert (await peer.send(properties={"TIMER_DELAY_MS": "5000"})).code == Result.SYSTEM_BUSY


async def test_a_full_disk_is_refused_with_a_code_that_clients_try_again(world):
    peer = Peer(remoting_of(await world.open(disk_reserve_bytes=1 << 20)))
    await peer.send()
    world.files.space_bytes = 1
    await world.engine.watch_once()
    assert (await peer.send()).code == Result.NOT_AVAILABLE


async def test_unknown_codes_are_answered_at_once(peer):
    answer = await peer.ask(324)
    assert (answer.code, answer.remark) == (Result.NOT_SUPPORTED, "request code 324 is not supported")


# ---------------------------------------------------------------------- repeats


async def test_a_repeat_of_a_send_in_progress_is_stored_once(world, peer):
    await peer.send()
    frames = [peer.send_frame(body=b"once", properties={"UNIQ_KEY": "7F"}) for _ in range(3)]
    peer.put(*frames)
    ids = {(await peer.answer_to(frame)).fields["msgId"] for frame in frames}
    assert len(ids) == 1
    assert [message.body for message in await everything(world)] == [b"x", b"once"]


async def test_a_repeat_over_a_new_connection_gets_the_first_answer(world, remoting, peer):
    first = await peer.send(body=b"once", properties={"UNIQ_KEY": "7F"})
    peer.wire.close()
    second = await Peer(remoting).send(body=b"once", properties={"UNIQ_KEY": "7F"})
    assert second.fields == first.fields
    assert len(await everything(world)) == 1


async def test_a_program_may_send_the_same_message_twice(world, peer):
    first = await peer.send(body=b"twice", properties={"UNIQ_KEY": "7F"})
    second = await peer.send(body=b"twice", properties={"UNIQ_KEY": "7F"})
    assert first.fields["msgId"] != second.fields["msgId"]
    assert len(await everything(world)) == 2


async def test_a_send_after_a_late_answer_counts_as_a_repeat(world, peer):
    frame = peer.send_frame(body=b"late", properties={"UNIQ_KEY": "7F"})
    peer.put(frame)
    world.clock.mono_ms += ANSWER_LATE_MS
    first = await peer.answer_to(frame)
    assert (await peer.send(body=b"late", properties={"UNIQ_KEY": "7F"})).fields == first.fields
    assert (await peer.send(body=b"other", properties={"UNIQ_KEY": "7F"})).fields != first.fields


async def test_only_the_latest_sends_are_remembered(world):
    remoting = remoting_of(await world.open(), repeats_max=2)
    for key in "abc":
        peer = Peer(remoting)
        await peer.send(properties={"UNIQ_KEY": key})
        peer.wire.close()
    peer = Peer(remoting)
    for key in "ca":
        await peer.send(properties={"UNIQ_KEY": key})
    assert len(await everything(world)) == 4


async def test_a_refused_send_is_not_remembered(remoting, peer):
    refused = await peer.send(properties={"UNIQ_KEY": "7F", "DELAY": "x"})
    peer.wire.close()
    assert refused.code == Result.MESSAGE_ILLEGAL
    again = await Peer(remoting).send(properties={"UNIQ_KEY": "7F", "DELAY": "x"})
    assert again.code == Result.MESSAGE_ILLEGAL


# ---------------------------------------------------------------------- exact sends


async def test_an_exact_send_is_stored_once_after_a_crash_too(world):
    properties = {"UNIQ_KEY": "7F", "TIMER_DELAY_MS": "60000"}
    peer = Peer(remoting_of(await world.open(), is_exact=True))
    first = await peer.send(body=b"once", properties=properties)
    batch = [BatchedMessage(0, b"%d" % n, b"UNIQ_KEY\x01%d\x02" % n) for n in range(3)]
    both = await peer.send(body=encode_batch(batch), code=Call.SEND_BATCH)
    peer = Peer(remoting_of(await world.crash(), repeats_max=0, is_exact=True))
    assert (await peer.send(body=b"once", properties=properties)).fields == first.fields
    again = await peer.send(body=encode_batch([*batch, BatchedMessage(0, b"3", b"")]), code=Call.SEND_BATCH)
    assert again.fields["msgId"].split(",")[:3] == both.fields["msgId"].split(",")
    await world.advance(60_001)
    assert sorted(message.body for message in await everything(world)) == [b"0", b"1", b"2", b"3", b"once"]


@pytest.mark.parametrize("kind", ["one", "batch", "half"])
async def test_a_fault_after_a_message_is_stored_is_answered(world, kind):
    named = Host("a name, which has no room in an id", 9876)
    peer = Peer(remoting_of(await world.open(), advertised=Advertised(named, named)))
    half = {"TRAN_MSG": "true", "PGROUP": "producers"} if kind == "half" else {}
    batch = encode_batch([BatchedMessage(0, b"%d" % n, b"") for n in range(2)])
    code, body = (Call.SEND_BATCH, batch) if kind == "batch" else (Call.SEND_V2, b"x")
    for _ in range(2):  # in the first turn the topic is new
        assert (await peer.send(body=body, properties=half, code=code)).code == Result.SYSTEM_ERROR


async def test_of_exact_sends_another_message_under_the_same_key_is_refused(world):
    peer = Peer(remoting_of(await world.open(), repeats_max=0, is_exact=True))
    await peer.send(body=b"one", properties={"UNIQ_KEY": "7F"})
    refused = await peer.send(body=b"two", properties={"UNIQ_KEY": "7F"})
    assert refused.code == Result.MESSAGE_ILLEGAL
    assert (await peer.send(body=b"no key")).code == Result.SUCCESS
    await peer.send(TRACE_TOPIC, b"trace", properties={"UNIQ_KEY": "8F"})
    assert (await peer.send(TRACE_TOPIC, b"more", properties={"UNIQ_KEY": "8F"})).code == Result.SUCCESS


async def test_of_exact_sends_a_half_message_takes_no_key(world):
    peer = Peer(remoting_of(await world.open(), repeats_max=0, is_exact=True))
    half = {"UNIQ_KEY": "7F", "TRAN_MSG": "true", "PGROUP": "producers"}
    first, second = [await peer.send(body=b"half", properties=half) for _ in range(2)]
    assert first.code == second.code == Result.SUCCESS
    assert first.fields["msgId"] != second.fields["msgId"]


# ---------------------------------------------------------------------- recall


async def recalled(peer, handle, topic="orders"):
    return await peer.ask(Call.RECALL, {"producerGroup": "p", "topic": topic, "recallHandle": handle})


async def test_recall_tells_the_truth(world, peer):
    sent = [await peer.send(properties={"TIMER_DELAY_MS": "1000", "UNIQ_KEY": key}) for key in ("A", "B")]
    handles = [answer.fields["recallHandle"] for answer in sent]
    answer = await recalled(peer, handles[0])
    assert (answer.code, answer.fields) == (Result.SUCCESS, {"msgId": "A"})
    again = await recalled(peer, handles[0])
    assert again.code == Result.ILLEGAL_OPERATION
    assert "already been recalled" in again.remark
    await world.advance(1_000)
    late = await recalled(peer, handles[1])
    assert late.code == Result.ILLEGAL_OPERATION
    assert "has been delivered" in late.remark
    assert [message.properties["UNIQ_KEY"] for message in await everything(world)] == ["B"]


async def test_a_half_message_is_not_recalled_by_a_handle(world, peer):
    await peer.send(properties={"TRAN_MSG": "true", "UNIQ_KEY": "7F"})
    [opened] = world.engine.transactions.page().transactions
    handle = RecallHandle("orders", BROKER, 0, "7F", opened.id)
    answer = await recalled(peer, handle.encode())
    assert (answer.code, "open transaction" in answer.remark) == (Result.ILLEGAL_OPERATION, True)


async def test_a_handle_that_lies_about_its_topic_recalls_nothing(world, peer):
    sent = await peer.send(properties={"TIMER_DELAY_MS": "1000", "UNIQ_KEY": "A"})
    handle = RecallHandle.decode(sent.fields["recallHandle"])
    for forged in (handle._replace(topic="other"), handle._replace(message_id="0" * 24)):
        assert (await recalled(peer, forged.encode(), forged.topic)).code == Result.ILLEGAL_OPERATION
    assert (await recalled(peer, "nonsense")).code == Result.ILLEGAL_OPERATION
    assert len(await world.pending_ids()) == 1


# ---------------------------------------------------------------------- rights


async def test_a_sender_needs_its_scope_and_its_topic(world):
    callers = Callers(
        sender=Caller(Scope.SEND, topics=("orders",)), reader=Caller(Scope.RECEIVE), admin=Caller(Scope.ADMIN)
    )
    remoting = remoting_of(await world.open(), callers)
    codes = {
        (token, topic): (await Peer(remoting, token).send(topic)).code
        for token in ("sender", "reader", "admin", "unknown", "")
        for topic in ("orders", "bills")
    }
    allowed = {("sender", "orders"), ("admin", "orders"), ("admin", "bills")}
    assert {place for place, code in codes.items() if code == Result.SUCCESS} == allowed
    assert {code for place, code in codes.items() if place not in allowed} == {Result.NO_PERMISSION}


async def test_a_batch_counts_each_message_against_the_rate(world):
    caller = Caller(Scope.SEND)
    peer = Peer(remoting_of(await world.open(), Callers(sender=caller)), "sender")
    batch = encode_batch([BatchedMessage(0, b"x", b"")] * 5)
    assert (await peer.send(body=batch, code=Call.SEND_BATCH)).code == Result.SUCCESS
    assert caller.charged == 5
    caller.waits_ms = 100
    assert (await peer.send()).code == Result.SYSTEM_BUSY


async def test_a_recall_needs_the_topic_of_its_message(world):
    callers = Callers(
        owner=Caller(Scope.SEND), other=Caller(Scope.SEND, topics=("bills",)), reader=Caller(Scope.RECEIVE)
    )
    remoting = remoting_of(await world.open(), callers)
    sent = await Peer(remoting, "owner").send(properties={"TIMER_DELAY_MS": "1000", "UNIQ_KEY": "A"})
    for token in ("other", "reader"):
        answer = await recalled(Peer(remoting, token), sent.fields["recallHandle"])
        assert answer.code == Result.NO_PERMISSION
    assert bodies_in(await Peer(remoting, "reader").pull()) == []


async def test_traces_are_stored_and_read_and_no_list_has_them_unasked(world, peer):
    sent = await peer.send(TRACE_TOPIC, b"Pub", {"KEYS": "id-1 id-2"})
    assert (sent.code, sent.fields["queueId"]) == (Result.SUCCESS, "0")
    assert (await peer.send(TRACE_TOPIC, b"late", {"TIMER_DELAY_MS": "60000"})).code == Result.SUCCESS
    assert bodies_in(await peer.pull(TRACE_TOPIC)) == [b"Pub"]
    found = await peer.ask(Call.QUERY_MESSAGE, {"topic": TRACE_TOPIC, "key": "id-2", "maxNum": 32})
    assert bodies_in(found) == [b"Pub"]
    route = orjson.loads((await peer.ask(Call.ROUTE, {"topic": TRACE_TOPIC})).body)
    assert route["queueDatas"][0]["readQueueNums"] == 1
    scheduled = Listing(states=frozenset({State.SCHEDULED}))
    assert not (await world.engine.listings.page(scheduled)).messages
    for name in (TRACE_TOPIC.lower(), "RMQ_SYS_OTHER"):
        assert (await peer.send(name)).code == Result.NO_PERMISSION
