"""The calls over gRPC: what each answers, refuses and limits; with a plain client and a clock by hand."""

import asyncio
import gzip
import hashlib
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")

from grpc import RpcError, StatusCode

from tests.harness.clock import ManualClock
from tests.harness.drive import settle
from tests.harness.grpc_calls import GrpcCaller, grpc_served, message
from tests.harness.remoting import open_to_all
from timerwheel.engine import Engine
from timerwheel.rocketmq.grpc.call import SLOW_READER_MS, Call
from timerwheel.rocketmq.grpc.clients import RENEW_EACH_MS
from timerwheel.rocketmq.grpc.codes import ClientType, Code, DigestType, Encoding, FilterType, MessageType
from timerwheel.rocketmq.grpc.producers import Producers, Stream
from timerwheel.rocketmq.grpc.schema import SERVICE, message_class
from timerwheel.rocketmq.grpc.service import INVISIBLE_MS_MIN, MESSAGES_MAX, RECEIVE_REQUEST_BYTES_MAX
from timerwheel.rocketmq.grpc.settings import BATCH_MAX
from timerwheel.settings import Serving, Settings

NOW_MS = 1_800_000_000_000
BODY_BYTES_MAX = 100_000
DAY_MS = 86_400_000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
UNARY = (
    *("QueryRoute", "QueryAssignment", "Heartbeat", "NotifyClientTermination", "SendMessage"),
    *(
        "EndTransaction",
        "RecallMessage",
        "AckMessage",
        "ChangeInvisibleDuration",
        "ForwardMessageToDeadLetterQueue",
    ),
)


class Front:
    def __init__(self, engine: Engine, clock: ManualClock, caller: GrpcCaller) -> None:
        self.engine, self.clock, self.caller = engine, clock, caller
        self.call, self.send, self.receive, self.ack = caller.call, caller.send, caller.receive, caller.ack

    async def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        await settle(self.engine)

    def stored(self, topic: str = "orders") -> int:
        if self.engine.queues.topic_id(topic) < 0:
            return 0
        found = self.engine.queues.topic(topic)
        return found.visible + found.pending


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    clock = ManualClock(NOW_MS)
    settings = Settings(
        data=tmp_path, disk_reserve_bytes=0, body_bytes_max=BODY_BYTES_MAX, max_delay_ms=DAY_MS
    )
    engine = await Engine.open(settings, clock, threads=False)
    async with grpc_served(engine) as caller:
        yield Front(engine, clock, caller)
    await engine.close()


REFUSED_SENDS = {
    "no topic": (message(topic=""), Code.ILLEGAL_TOPIC),
    "a bad topic": (message(topic="a topic"), Code.ILLEGAL_TOPIC),
    "a topic of the service": (message(topic="rmq_sys_wheel_timer"), Code.ILLEGAL_TOPIC),
    "an empty body": (message(body=b""), Code.MESSAGE_BODY_EMPTY),
    "a large body": (message(body=b"x" * (BODY_BYTES_MAX + 1)), Code.MESSAGE_BODY_TOO_LARGE),
    "no id": (message(message_id=""), Code.ILLEGAL_MESSAGE_ID),
    "an id with a space": (message(message_id="a b"), Code.ILLEGAL_MESSAGE_ID),
    "a blank tag": (message(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
    "a tag that is two": (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
    "a key with a control character": (message(keys=["a", "\x01"]), Code.ILLEGAL_MESSAGE_KEY),
    "a blank group": (message(message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
    "a long group": (message(message_group="g" * 65), Code.ILLEGAL_MESSAGE_GROUP),
    "a reserved property": (message(user={"TAGS": "a"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a delay as a property": (message(user={"DELAY": "3"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a property of dead letters": (message(user={"DLQ_REASON": "a"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a control character": (message(user={"a": "\x02"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "too many properties": (
        message(user={f"p{number}": "v" for number in range(200)}),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    "large properties": (message(user={"a": "v" * 40_000}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    "a delay that is too long": (message(delivery_ms=NOW_MS + DAY_MS + 1), Code.ILLEGAL_DELIVERY_TIME),
    "a time before 1970": (message(delivery_ms=-1), Code.ILLEGAL_DELIVERY_TIME),
    "a delay and a group": (
        message(delivery_ms=NOW_MS + 1, message_group="g"),
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a delay without a time": (
        message(message_type=MessageType.DELAY),
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a normal one with a group": (
        message(message_type=MessageType.NORMAL, message_group="g"),
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a transaction beside another message": (message(message_type=MessageType.TRANSACTION), Code.BAD_REQUEST),
    "a transaction with a delay": (
        message(message_type=MessageType.TRANSACTION, delivery_ms=NOW_MS + 1),
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a transaction with a group": (
        message(message_type=MessageType.TRANSACTION, message_group="g"),
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a half message as a property": (message(user={"TRAN_MSG": "true"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a producer group as a property": (message(user={"PGROUP": "p"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a priority": (message(message_type=MessageType.PRIORITY), Code.UNSUPPORTED),
    "an unknown encoding": (message(body_encoding=7), Code.UNSUPPORTED),
    "what is not gzip": (message(body_encoding=Encoding.GZIP), Code.MESSAGE_CORRUPTED),
    "a gzip body cut short": (
        message(body=gzip.compress(b"hello" * 99)[:-9], body_encoding=Encoding.GZIP),
        Code.MESSAGE_CORRUPTED,
    ),
}


@pytest.mark.parametrize("case", REFUSED_SENDS)
async def test_a_bad_message_is_refused_with_its_code_and_nothing_is_stored(front, case):
    await assert_refused(front, *REFUSED_SENDS[case])


async def test_a_body_that_grows_is_refused_with_its_code_and_nothing_is_stored(front):
    body = gzip.compress(bytes(1 << 27))[: BODY_BYTES_MAX - 1]
    assert len(body) == BODY_BYTES_MAX - 1
    bad = message(body=body, body_encoding=Encoding.GZIP)
    await assert_refused(front, bad, Code.MESSAGE_BODY_TOO_LARGE)


async def assert_refused(front, bad, code):
    answer = await front.send(message(message_id="good"), bad)
    assert Code(answer.status.code) is code
    assert answer.status.message
    assert not answer.entries
    assert front.stored() == 0
    assert front.engine.queues.topic_names() == front.engine.queues.topic_names()[-2:]


async def test_a_request_has_at_least_one_message_and_not_too_many(front):
    assert (await front.send()).status.code == Code.BAD_REQUEST
    assert (await front.send(*[message()] * (MESSAGES_MAX + 1))).status.code == Code.BAD_REQUEST


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
async def test_a_compressed_body_is_stored_plain(front, compress):
    body = b"hello" * 500
    assert (
        await front.send(message(body=compress(body), body_encoding=Encoding.GZIP))
    ).status.code == Code.OK
    _, (found,) = await front.receive()
    assert (found.body, found.system_properties.body_encoding) == (body, Encoding.IDENTITY)


DIGESTS = {
    DigestType.CRC32: f"{zlib.crc32(b'hello'):x}",
    DigestType.MD5: hashlib.md5(b"hello", usedforsecurity=False).hexdigest().upper(),
    DigestType.SHA1: hashlib.sha1(b"hello", usedforsecurity=False).hexdigest().upper(),
}


@pytest.mark.parametrize("kind", DIGESTS)
async def test_the_digest_of_a_body_is_checked(front, kind):
    sound = message()
    sound.system_properties.body_digest.type = kind
    sound.system_properties.body_digest.checksum = DIGESTS[kind]
    assert (await front.send(sound)).status.code == Code.OK
    sound.body = b"hallo"
    assert (await front.send(sound)).status.code == Code.MESSAGE_CORRUPTED


async def test_a_message_comes_back_with_all_that_was_sent(front):
    sent = message(tag="paid", keys=["k1", "k2"], born_host="shop-1", user={"a": "b"}, trace_context="x")
    sent.system_properties.born_timestamp.FromMilliseconds(NOW_MS - 5)
    await front.send(sent)
    front.clock.advance(7)
    code, (found,) = await front.receive()
    system = found.system_properties
    assert code is Code.OK
    assert (found.topic.name, found.body, dict(found.user_properties)) == ("orders", b"hello", {"a": "b"})
    assert (system.tag, list(system.keys), system.message_id) == ("paid", ["k1", "k2"], "0102FC00")
    assert (system.born_host, system.born_timestamp.ToMilliseconds()) == ("shop-1", NOW_MS - 5)
    assert system.store_timestamp.ToMilliseconds() == NOW_MS
    assert system.body_digest.checksum == DIGESTS[DigestType.MD5]
    assert (system.message_type, system.delivery_attempt) == (MessageType.NORMAL, 1)
    assert not system.HasField("trace_context")  # it was no trace context


async def test_a_delayed_message_says_so_and_when_it_was_due(front):
    answer = await front.send(message(delivery_ms=NOW_MS + 1_000, message_type=MessageType.DELAY))
    assert answer.entries[0].recall_handle
    assert (await front.receive())[0] is Code.MESSAGE_NOT_FOUND
    await front.advance(1_000)
    _, (found,) = await front.receive()
    assert found.system_properties.message_type == MessageType.DELAY
    assert found.system_properties.delivery_timestamp.ToMilliseconds() == NOW_MS + 1_000


async def test_a_repeated_send_is_stored_once_and_answered_alike(front):
    later = message(delivery_ms=NOW_MS + 1_000)
    first, second = await asyncio.gather(front.send(later), front.send(later))
    third = await front.send(later, message(message_id="new"))
    assert first.entries == second.entries == third.entries[:1]
    assert front.stored() == 2


async def test_an_exact_send_under_a_used_or_too_long_id_is_refused_for_good(tmp_path):
    engine = await Engine.open(
        Settings(data=tmp_path, disk_reserve_bytes=0), ManualClock(NOW_MS), threads=False
    )
    refused = {}
    for body in (b"one", b"two"):
        async with grpc_served(engine, Serving(rocketmq_exact=True)) as caller:
            refused[body] = (await caller.send(message(body=body))).status.code
            if body == b"two":
                refused["long"] = (await caller.send(message(message_id="i" * 300))).status.code
    await engine.close()
    assert refused == {b"one": Code.OK, b"two": Code.BAD_REQUEST, "long": Code.ILLEGAL_MESSAGE_ID}


async def test_an_exact_send_that_is_repeated_after_a_crash_is_stored_once(tmp_path):
    entries = []
    for _ in range(2):
        settings = Settings(data=tmp_path, disk_reserve_bytes=0)
        engine = await Engine.open(settings, ManualClock(NOW_MS), threads=False)
        async with grpc_served(engine, Serving(rocketmq_exact=True)) as caller:
            answer = await caller.send(message(delivery_ms=NOW_MS + 1_000), message(message_id="b"))
            entries.append(list(answer.entries))
        await engine.abandon()
    assert entries[0] == entries[1]
    engine = await Engine.open(settings, ManualClock(NOW_MS), threads=False)
    found = engine.queues.topic("orders")
    assert (found.visible, found.pending) == (1, 1)
    await engine.close()


async def test_a_receive_has_its_limits(front):
    for number in range(BATCH_MAX + 8):
        await front.send(message(message_id=str(number)))
    for invisible_ms in (0, INVISIBLE_MS_MIN - 1, 12 * 3_600_000 + 1):
        code, _ = await front.receive(invisible_ms=invisible_ms)
        assert code is Code.ILLEGAL_INVISIBLE_TIME
    assert (await front.receive(count=0))[0] is Code.BAD_REQUEST
    assert (await front.receive(expression="a > 1", filter_type=FilterType.SQL))[0] is (
        Code.ILLEGAL_FILTER_EXPRESSION
    )
    assert (await front.receive(expression="a b"))[0] is Code.ILLEGAL_FILTER_EXPRESSION
    assert (await front.receive("orders", "a group"))[0] is Code.ILLEGAL_CONSUMER_GROUP
    assert (await front.receive("a topic", "closers"))[0] is Code.ILLEGAL_TOPIC
    assert len((await front.receive(count=1_000))[1]) == BATCH_MAX
    assert len((await front.receive(count=1_000))[1]) == 8


async def test_each_entry_of_an_acknowledgement_has_its_result(front):
    await front.send(message(message_id="a"), message(message_id="b"))
    _, (first, second) = await front.receive()
    forged = message_class("Message").FromString(second.SerializeToString())
    forged.system_properties.receipt_handle = "forged"
    answer = await front.ack(first, forged)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [one.status.code for one in answer.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
    assert (await front.ack(forged)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await front.ack(second)).status.code == Code.OK
    unknown = await front.ack(second, group="others")
    assert unknown.status.code == Code.CONSUMER_GROUP_NOT_FOUND


async def change(front: Front, found: object, duration_ms: int) -> Code:
    answer = await front.call(
        "ChangeInvisibleDuration",
        topic="orders",
        group="closers",
        receipt_handle=found.system_properties.receipt_handle,
        duration_ms=duration_ms,
    )
    assert not answer.receipt_handle or answer.status.code == Code.OK
    return Code(answer.status.code)


@pytest.mark.parametrize("kind", [ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER])
async def test_no_message_comes_again_before_the_minimum_delay(front, kind):
    await front.call("Heartbeat", client_type=kind)
    await front.send(message())
    _, (found,) = await front.receive()
    assert await change(front, found, 12 * 3_600_000 + 1) is Code.ILLEGAL_INVISIBLE_TIME
    assert await change(front, found, 0) is Code.OK
    await front.advance(999)
    assert (await front.receive())[0] is Code.MESSAGE_NOT_FOUND
    await front.advance(1_001)
    _, (again,) = await front.receive()
    assert again.system_properties.delivery_attempt == 2
    assert await change(front, found, 0) is Code.INVALID_RECEIPT_HANDLE


async def test_a_failed_push_consumer_waits_as_long_as_it_said_even_over_a_restart(front):
    await front.call("Heartbeat", client_type=ClientType.PUSH_CONSUMER)
    await front.send(message())
    _, (found,) = await front.receive(auto_renew=True, invisible_ms=None)
    assert await change(front, found, 30_000) is Code.OK
    assert front.engine.groups.info("orders", "closers").waiting == 1  # stored, not only in memory


async def test_leases_of_a_push_consumer_are_renewed_as_long_as_it_is_heard_of(front):
    await front.call("Heartbeat", client_type=ClientType.PUSH_CONSUMER)
    await front.send(message())
    _, (found,) = await front.receive(auto_renew=True, invisible_ms=None)
    for _ in range(6):
        await front.call("Heartbeat")
        await front.advance(RENEW_EACH_MS)
    assert (await front.receive())[0] is Code.MESSAGE_NOT_FOUND
    front.caller.client_id = "another"
    for _ in range(6):
        await front.advance(RENEW_EACH_MS)
    _, (again,) = await front.receive()
    assert again.system_properties.message_id == found.system_properties.message_id


async def test_what_a_client_held_that_leaves_comes_to_another(front):
    await front.send(message())
    await front.receive(auto_renew=True, invisible_ms=None)
    assert (await front.call("NotifyClientTermination")).status.code == Code.OK
    await front.advance(1_001)
    assert len((await front.receive())[1]) == 1


async def test_a_client_that_leaves_a_deleted_group_gives_back_what_others_can_have(front):
    await front.send(message())
    for group in ("deleted", "closers"):
        await front.receive("orders", group, auto_renew=True, invisible_ms=None)
    await front.engine.groups.delete("orders", "deleted")
    assert (await front.call("NotifyClientTermination")).status.code == Code.OK
    await front.advance(1_001)
    assert len((await front.receive())[1]) == 1


async def test_a_receive_that_is_large_is_not_kept_while_it_waits(front):
    code, _ = await front.receive(attempt_id="x" * RECEIVE_REQUEST_BYTES_MAX, wait_ms=10_000)
    assert code is Code.PAYLOAD_TOO_LARGE


class Context:
    """What a call needs to know its client."""

    def invocation_metadata(self):
        return (("x-mq-client-id", "a-client"),)


async def test_of_what_a_producer_says_only_topics_are_kept(front):
    producers = Producers(front.engine, "here:1", 1 << 20)
    stream = Stream(Call(Context(), open_to_all()), front.engine)
    resource = message_class("Resource")
    producers.publishes(stream, [resource(name=name) for name in ("orders", "x" * 100_000, "no topic")])
    assert [*stream.topics] == ["orders"]
    given = message_class("SendMessageRequest")(messages=[message("orders", bytes(50_000))])
    topic = given.messages[0].topic
    producers.sent_half(stream.call.client, topic)
    assert stream.topics["orders"] == topic
    assert stream.topics["orders"] is not topic


async def test_a_message_that_a_consumer_forwards_is_a_dead_letter_with_its_origin(front):
    await front.send(message())
    _, (found,) = await front.receive()
    given = {"topic": "orders", "group": "closers"}
    handle = found.system_properties.receipt_handle
    answer = await front.call("ForwardMessageToDeadLetterQueue", receipt_handle=handle, **given)
    assert answer.status.code == Code.OK
    _, (dead,) = await front.receive("%DLQ%closers", "undertakers")
    assert (dead.body, dead.system_properties.dead_letter_queue.topic) == (b"hello", "orders")
    assert not dead.user_properties
    answer = await front.call("ForwardMessageToDeadLetterQueue", receipt_handle=handle, **given)
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_recall_tells_the_truth(front):
    sent = (await front.send(message(delivery_ms=NOW_MS + 1_000))).entries[0]
    other = await front.call("RecallMessage", topic="others", recall_handle=sent.recall_handle)
    assert other.status.code == Code.BAD_REQUEST
    bad = await front.call("RecallMessage", topic="orders", recall_handle="no handle")
    assert bad.status.code == Code.BAD_REQUEST
    done = await front.call("RecallMessage", topic="orders", recall_handle=sent.recall_handle)
    assert (done.status.code, done.message_id) == (Code.OK, "0102FC00")
    again = await front.call("RecallMessage", topic="orders", recall_handle=sent.recall_handle)
    assert "already been recalled" in again.status.message


async def test_every_legal_topic_has_a_route_to_where_its_client_asked(front):
    request = message_class("QueryRouteRequest")()
    request.endpoints.addresses.add(host="example", port=1)
    route = await front.call("QueryRoute", request, topic="not-there-yet")
    (queue,) = route.message_queues
    assert queue.broker.endpoints == request.endpoints
    assert list(queue.accept_message_types) == [1, 2, 3, 4]
    assert (await front.call("QueryRoute", topic="a topic")).status.code == Code.ILLEGAL_TOPIC
    assert "not-there-yet" not in front.engine.queues.topic_names()


async def settings(front: Front, **fields: object) -> object:
    command = message_class("TelemetryCommand")()
    for name, value in fields.items():
        setattr(command.settings, name, value)
    if fields["client_type"] == ClientType.PRODUCER:
        command.settings.publishing.SetInParent()
    else:
        command.settings.subscription.group.name = "closers"
        command.settings.subscription.subscriptions.add().topic.name = "orders"
    stream = front.caller.telemetry()
    await stream.write(command)
    answer = await stream.read()
    await stream.done_writing()
    assert answer.status.code == Code.OK
    return answer.settings


async def test_clients_learn_how_to_poll_and_when_to_try_again(front):
    producer = await settings(front, client_type=ClientType.PRODUCER)
    assert producer.publishing.max_body_size == BODY_BYTES_MAX
    assert producer.backoff_policy.exponential_backoff.initial.ToMilliseconds() > 0
    consumer = await settings(front, client_type=ClientType.PUSH_CONSUMER)
    assert consumer.subscription.receive_batch_size == BATCH_MAX
    assert not consumer.subscription.fifo
    assert consumer.backoff_policy.max_attempts == 16
    first = consumer.backoff_policy.customized_backoff.next[0]
    assert first.ToSeconds() == 10
    await front.send(message(message_group="g"))
    assert (await settings(front, client_type=ClientType.PUSH_CONSUMER)).subscription.fifo


async def test_bytes_that_are_no_message_and_calls_that_are_not_served_are_refused(front):
    for name in UNARY:
        for garbage in (b"\x0a\xff\xff\xff\xff\x0fx", b"\x0a\x05ab", b"\xff" * 1_000):
            answer = await front.caller.call_bytes(name, garbage)
            assert answer.status.code == Code.BAD_REQUEST
            assert "not a message" in answer.status.message
    with pytest.raises(RpcError) as refused:
        await front.caller.call_bytes("SendMessage", bytes(BODY_BYTES_MAX + (2 << 20)))
    assert refused.value.code() is StatusCode.RESOURCE_EXHAUSTED
    unserved = front.caller.channel.unary_unary(f"/{SERVICE}/PullMessage")
    with pytest.raises(RpcError) as refused:
        await unserved(b"")
    assert refused.value.code() is StatusCode.UNIMPLEMENTED
    assert (await front.send(message())).status.code == Code.OK


async def test_a_client_that_does_not_read_holds_up_no_other_and_loses_its_messages(front):
    for number in range(BATCH_MAX):
        await front.send(message(message_id=str(number), body=bytes(BODY_BYTES_MAX)))
    unread = front.caller.receiving(invisible_ms=3_600_000)
    assert [(await unread.read()).WhichOneof("content") for _ in range(2)] == ["status", "message"]
    _, (found,) = await front.receive("orders", "others", count=1)
    assert found.system_properties.message_id == "0"
    await front.advance(SLOW_READER_MS)
    while not (left := (await front.receive(invisible_ms=3_600_000))[1]):
        pass
    assert 0 < len(left) < BATCH_MAX  # what it had not been sent
    assert {one.system_properties.delivery_attempt for one in left} == {1}
    unread.cancel()


async def test_what_a_consumer_that_went_away_waited_for_comes_to_another(front):
    gone = front.caller.receiving(wait_ms=40_000)
    reading = asyncio.create_task(gone.read())
    await front.send(message(topic="others"))  # the receive has begun
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await front.send(message())
    while not (found := (await front.receive())[1]):
        pass
    assert found[0].system_properties.delivery_attempt == 1


async def test_a_stop_ends_streams_and_receives_that_wait(front):
    stream = front.caller.telemetry()
    await stream.write(message_class("TelemetryCommand")())
    waiting = asyncio.create_task(front.receive(wait_ms=40_000))
    await front.send(message(topic="others"))  # the receive has begun
    closing = asyncio.create_task(front.caller.front.close())
    while not waiting.done():
        await front.advance(500)
    assert (await waiting)[0] is Code.MESSAGE_NOT_FOUND
    assert not await stream.read()
    await closing


async def test_only_user_properties_count_towards_their_number(front):
    fields = {"tag": "t", "keys": ["k"], "message_group": "g", "born_host": "h"}
    for count, code in ((128, Code.OK), (129, Code.MESSAGE_PROPERTIES_TOO_LARGE)):
        user = {f"p{number}": "v" for number in range(count)}
        sent = await front.send(message(message_id=f"m{count}", user=user, **fields))
        assert sent.status.code == code


async def test_empty_tags_of_a_filter_are_left_out(front):
    for tag in ("a", "b", "c"):
        await front.send(message(message_id=tag, tag=tag))
    _, found = await front.receive(expression="a||||b || ")
    assert [one.system_properties.tag for one in found] == ["a", "b"]


async def test_calls_are_counted_by_name_and_by_how_they_ended(front):
    await front.send(message())
    await front.send(message(topic=""))
    await front.caller.call_bytes("SendMessage", b"\xff")
    await front.receive()
    await front.receive()
    assert front.engine.counters.front_calls == {
        ("grpc", "SendMessage", "OK"): 1,
        ("grpc", "SendMessage", "ILLEGAL_TOPIC"): 1,
        ("grpc", "SendMessage", "BAD_REQUEST"): 1,
        ("grpc", "ReceiveMessage", "OK"): 1,
        ("grpc", "ReceiveMessage", "MESSAGE_NOT_FOUND"): 1,
    }


async def test_a_send_that_is_cancelled_and_repeated_is_stored_once(front):
    await front.send(message(message_id="first"))
    sending = [asyncio.create_task(front.send(message(message_id=str(number)))) for number in range(20)]
    await front.call("Heartbeat")  # the sends are on their way
    for one in sending:
        one.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    answers = [await front.send(message(message_id=str(number))) for number in range(20)]
    assert {one.status.code for one in answers} == {Code.OK}
    assert front.stored() == 21


async def test_sends_that_come_together_are_stored_together_and_a_refused_one_holds_back_no_other(front):
    await front.send(message(message_id="first"))
    refused = message(message_id="late", delivery_ms=NOW_MS + DAY_MS + 1)
    many = [message(message_id=str(number)) for number in range(40)]
    writes = sum(front.engine.counters.batch_records.counts)
    answers = await asyncio.gather(*[front.send(one) for one in (*many, refused)])
    assert [one.status.code for one in answers] == [Code.OK] * 40 + [Code.ILLEGAL_DELIVERY_TIME]
    assert front.stored() == 41
    assert sum(front.engine.counters.batch_records.counts) - writes < 40


async def test_sends_in_progress_hold_only_so_much(tmp_path):
    settings = Settings(data=tmp_path, disk_reserve_bytes=0, in_progress_bytes_max=2_000)
    engine = await Engine.open(settings, ManualClock(NOW_MS), threads=False)
    async with grpc_served(engine) as caller:
        refused = await caller.send(message(body=bytes(1_000)))
        assert refused.status.code == Code.TOO_MANY_REQUESTS
        for number in range(5):  # what was answered no longer counts
            sent = await caller.send(message(message_id=str(number), body=bytes(500)))
            assert sent.status.code == Code.OK
    await engine.close()


async def test_compressed_bodies_count_as_what_they_inflate_to(tmp_path):
    settings = Settings(data=tmp_path, disk_reserve_bytes=0, in_progress_bytes_max=200_000)
    engine = await Engine.open(settings, ManualClock(NOW_MS), threads=False)
    body = gzip.compress(bytes(30_000))
    bodies = [message(message_id=str(at), body=body, body_encoding=Encoding.GZIP) for at in range(8)]
    async with grpc_served(engine) as caller:
        for count, code in ((8, Code.TOO_MANY_REQUESTS), (3, Code.OK), (8, Code.TOO_MANY_REQUESTS)):
            assert (await caller.send(*bodies[:count])).status.code == code
    assert engine.queues.topic("orders").visible == 3
    await engine.close()


@pytest.mark.parametrize(
    "sent", [b"", b"\xff" * 1_000, b"GET / HTTP/1.1\r\n\r\n", PREFACE, PREFACE + b"\0\xff"]
)
async def test_bytes_that_are_no_http2_and_connections_that_stay_half_open_harm_nobody(front, sent):
    _, writer = await asyncio.open_connection("127.0.0.1", front.caller.front.address.port)
    writer.write(sent)
    await writer.drain()
    assert (await front.send(message())).status.code == Code.OK
    writer.close()


async def test_a_call_without_a_client_id_is_refused(front):
    front.caller.client_id = ""
    assert (await front.call("Heartbeat")).status.code == Code.CLIENT_ID_REQUIRED


async def test_a_receive_has_no_message_whose_ttl_is_over(front):
    short = {"TIMER_TTL_MS": "10000"}
    await front.send(message(message_id="a", body=b"a", user=short), message(message_id="b", user=short))
    await front.send(message(message_id="c", body=b"c"))
    await front.advance(9_999)
    _, (first,) = await front.receive(count=1)
    await front.advance(1)
    _, (second,) = await front.receive()
    assert (first.body, second.body) == (b"a", b"c")
    assert (await front.receive())[0] is Code.MESSAGE_NOT_FOUND
