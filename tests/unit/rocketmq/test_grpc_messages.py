"""What is sent over gRPC comes out again, whatever it is; what other protocols send can be shown."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="needs the extra grpc")

from timerwheel.model.admission import is_sendable
from timerwheel.model.messages import Delivery, MessageView, Outgoing, State
from timerwheel.rocketmq.grpc.codes import CallError, MessageType
from timerwheel.rocketmq.grpc.messages import NOT_OF_USERS, name_of, outgoing, set_ms, shown, to_ms
from timerwheel.rocketmq.grpc.schema import message_class
from timerwheel.rocketmq.stored_message import Host

NOW_MS = 1_800_000_000_000
PEER = Host("127.0.0.1", 1234)
plain = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12).filter(str.strip)
words = plain.filter(lambda text: len(text.split()) == 1 and text.strip() == text)
names = plain.filter(lambda name: name not in NOT_OF_USERS and not name.startswith(("DLQ_", "SCHEDULE_")))


def delivered(sent: Outgoing, problem: str | None = None) -> Delivery:
    view = MessageView(
        id="0123",
        topic=sent.topic,
        queue=0,
        state=State.DELIVERED,
        due_ms=NOW_MS,
        level=0,
        enqueue_ms=NOW_MS,
        properties=sent.properties,
        body=sent.body,
        delivered_ms=NOW_MS,
        queue_offset=7,
        problem=problem,
        envelope=sent.envelope,
    )
    return Delivery(view, "a receipt", 1, NOW_MS)


@given(
    body=st.binary(min_size=1, max_size=100),
    tag=st.none() | plain.filter(lambda text: "|" not in text),
    keys=st.lists(words, max_size=3),
    group=st.none() | plain,
    user=st.dictionaries(names, plain, max_size=4),
    born_ms=st.integers(0, NOW_MS),
)
def test_what_is_sent_comes_out_again(body, tag, keys, group, user, born_ms):
    message = message_class("Message")(body=body)
    message.topic.name = "orders"
    message.user_properties.update(user)
    system = message.system_properties
    system.message_id, system.born_host = "0102", "shop-1"
    system.keys.extend(keys)
    if tag is not None:
        system.tag = tag
    if group is not None:
        system.message_group = group
    set_ms(system.born_timestamp, born_ms)
    found = shown(delivered(outgoing(message, PEER, NOW_MS, 1_000)), message.topic, 1_000, "here:1")
    assert (found.body, found.user_properties) == (body, message.user_properties)
    for name in ("tag", "keys", "message_group", "message_id", "born_host", "born_timestamp"):
        assert getattr(found.system_properties, name) == getattr(system, name)
    assert found.system_properties.HasField("tag") == (tag is not None)
    kind = MessageType.NORMAL if group is None else MessageType.FIFO
    assert found.system_properties.message_type == kind


def test_a_message_that_came_over_http_has_the_id_of_the_service_and_no_born_host():
    topic = message_class("Resource")(name="orders")
    found = shown(delivered(Outgoing("orders", b"hello", {"a": "b", "KEYS": " k1  k2 "})), topic, 1, "here:1")
    system = found.system_properties
    assert (system.message_id, system.born_host, list(system.keys)) == ("0123", "", ["k1", "k2"])
    assert to_ms(system.born_timestamp) == NOW_MS


def test_a_message_that_cannot_be_read_is_shown_as_corrupted():
    topic = message_class("Resource")(name="orders")
    found = shown(delivered(Outgoing("orders", b""), problem="damaged"), topic, 1, "here:1")
    assert found.system_properties.body_digest.checksum == ""


def test_a_namespace_becomes_part_of_the_name():
    resource = message_class("Resource")(name="orders", resource_namespace="shop")
    assert name_of(resource) == "shop%orders"
    assert is_sendable(name_of(resource))


@given(st.binary(max_size=200))
def test_any_bytes_that_decode_are_a_message_or_refused(data):
    try:
        message = message_class("Message").FromString(data)
    except Exception:  # noqa: BLE001 - protobuf's own
        return
    with suppress(CallError):
        assert 0 < len(outgoing(message, PEER, NOW_MS, 100).body) <= 100
