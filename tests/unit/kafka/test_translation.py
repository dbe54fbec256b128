from pathlib import Path

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import AdmissionError
from timerwheel.kafka.envelope import Envelope
from timerwheel.kafka.names import OWN_HEADERS, KafkaTopics
from timerwheel.kafka.translation import (
    Produced,
    Recall,
    Refusal,
    Taken,
    in_full,
    produced_of,
    rejected,
    rejection_of,
    usual_message,
    wanted_of,
)
from timerwheel.model.admission import ENVELOPE_PROPERTY, Rules, admit
from timerwheel.model.messages import Outgoing
from timerwheel.settings import Settings
from timerwheel.store.record import Kind, encode, unpack_header

RULES = Rules.of(Settings(data=Path("data")))
TOPICS = KafkaTopics("timers")
NOW_MS = 1_795_000_000_000
DUE = (("TIMER_TOPIC", b"orders.new"), ("TIMER_DELAY_MS", b"500"))
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=8).map(
    lambda headers: [header for header in headers if header[0] not in OWN_HEADERS]
)


def taken(*headers, key=None, value=b"v", stored_ms=None):
    return Taken("timers", 0, 17, key, value, headers, stored_ms)


def wanted(*headers, **more):
    return wanted_of(taken(*headers, **more), TOPICS, RULES)


def stored(message, now_ms=NOW_MS):
    """The record of a message, as the sender encodes it."""
    plan = admit(message, now_ms, RULES)
    properties = plan.properties | {ENVELOPE_PROPERTY: message.envelope}
    return encode(
        Kind.MESSAGE,
        message.topic.encode(),
        message.plain or orjson.dumps(properties),
        message.body,
        now_ms,
        plan.due_ms,
        now_ms,
    )


@given(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20), HEADERS)
def test_key_value_and_headers_come_back_whatever_they_are(key, value, headers):
    message = wanted(*DUE, *headers, key=key, value=value)
    assert isinstance(message, Outgoing)
    found = produced_of(data := stored(message), unpack_header(data), "id")
    *back, due, message_id = found.headers
    assert (found.topic, found.key, found.value, back) == ("orders.new", key, value, headers)
    assert (due, message_id) == (("TIMER_DUE_MS", str(NOW_MS + 500).encode()), ("TIMER_ID", b"id"))


def test_text_headers_and_the_key_are_shown_as_properties():
    headers = [("a", b"1"), ("a", b"2"), ("b", b"\xff"), ("c", None), ("REAL_TOPIC", b"x"), ("d\n", b"y")]
    message = wanted(*DUE, *headers, key=b"k")
    assert message.properties == {"a": "2", "__SHARDINGKEY": "k", "TIMER_DELAY_MS": "500"}
    assert wanted(*DUE, key=b"\xff").properties["__SHARDINGKEY"] == "/w=="
    assert "__SHARDINGKEY" not in wanted(*DUE).properties


@pytest.mark.parametrize(
    ("headers", "stored_ms", "due_ms"),
    [
        ([("TIMER_DELAY_MS", b"500")], None, NOW_MS + 500),
        ([("TIMER_DELAY_SEC", b"2")], None, NOW_MS + 2_000),
        ([("DELAY", b"2")], None, NOW_MS + 5_000),
        ([("TIMER_DELIVER_MS", str(NOW_MS + 7).encode())], None, NOW_MS + 7),
        ([("TIMER_DELAY_SEC", b"2"), ("DELAY", b"1")], None, NOW_MS + 1_000),
        ([("TIMER_DELAY_MS", b"1"), ("TIMER_DELAY_MS", b"9")], None, NOW_MS + 9),
        ([("TIMER_DELAY_MS", b"500")], NOW_MS - 100, NOW_MS + 400),
        ([("TIMER_DELAY_MS", b"500")], NOW_MS - 900, NOW_MS),
        ([("TIMER_DELAY_MS", b"500")], NOW_MS + 900, NOW_MS + 500),
        ([("DELAY", b"2")], NOW_MS - 1_000, NOW_MS + 4_000),
        ([("TIMER_DELIVER_MS", str(NOW_MS + 7).encode())], NOW_MS - 900, NOW_MS + 7),
    ],
)
def test_a_delay_counts_from_when_kafka_stored_the_record_or_from_now(headers, stored_ms, due_ms):
    message = wanted(("TIMER_TOPIC", b"t"), *headers, stored_ms=stored_ms)
    assert admit(message, NOW_MS, RULES).due_ms == due_ms


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], "no_topic"),
        ([("TIMER_TOPIC", b"t")], "no_delay"),
        ([("TIMER_TOPIC", b"t"), ("__STARTDELIVERTIME", b"1")], "no_delay"),  # a name of RocketMQ alone
        ([("TIMER_TOPIC", b"a b"), ("DELAY", b"1")], "illegal_topic"),
        ([("TIMER_TOPIC", None), ("DELAY", b"1")], "illegal_header"),
        ([("TIMER_TOPIC", b"t"), ("DELAY", b"\xff")], "illegal_header"),
        ([("TIMER_TOPIC", b"timers"), ("DELAY", b"1")], "system_topic"),
        ([("TIMER_TOPIC", b"timers.rejected"), ("DELAY", b"1")], "system_topic"),
        ([("TIMER_TOPIC", b"t"), ("TIMER_RECALL", b"true")], "no_key"),
        ([("TIMER_TOPIC", b"t"), ("TIMER_RECALL", b"maybe")], "illegal_header"),
        ([*DUE, *[("h", b"")] * 129], "too_many_properties"),
        ([*DUE, ("h", bytes(1 << 15))], "properties_too_large"),
    ],
)
def test_what_is_wrong_is_refused_with_a_code(headers, code):
    refusal = wanted(*headers)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code


def test_as_many_and_as_large_headers_as_allowed_are_taken():
    assert isinstance(wanted(*DUE, *[("h", b"")] * 128), Outgoing)
    assert isinstance(wanted(*DUE, ("h", bytes((1 << 15) - 1))), Outgoing)


def test_a_recall_names_topic_and_key():
    headers = [("TIMER_TOPIC", b"orders.new"), ("TIMER_RECALL", b"true"), ("TIMER_KEY", b"k")]
    assert wanted(*headers) == Recall("orders%2Enew", "k")


def test_a_key_has_any_letters_and_of_headers_with_one_name_only_the_last_is_looked_at():
    key = "bestellung-ä"
    named = [*DUE, ("TIMER_KEY", b"\xff"), ("TIMER_KEY", key.encode())]
    assert wanted(*named).dedup_key == key
    assert wanted(*named, ("TIMER_RECALL", b"true")) == Recall("orders%2Enew", key)
    assert wanted(("TIMER_TOPIC", None), *DUE).topic == "orders%2Enew"
    for last in (("TIMER_TOPIC", None), ("TIMER_KEY", b"\xff"), ("TIMER_DELAY_MS", "٣".encode())):
        assert wanted(*DUE, last).code == "illegal_header"


def test_a_key_with_a_delay_is_a_deduplication_key():
    message = wanted(*DUE, ("TIMER_KEY", b"k"), ("TIMER_RECALL", b"false"))
    assert message.dedup_key == "k"


def test_a_rejected_record_keeps_what_is_not_too_large():
    refusal = Refusal("no_delay", "why")
    message = rejection_of(taken(*DUE, key=b"k"), refusal, TOPICS, RULES)
    assert message.topic == "timers%2Erejected"
    assert message.body == b"v"
    why = [("TIMER_REJECTED", b"no_delay"), ("TIMER_REASON", b"why"), ("TIMER_FROM", b"timers/0@17")]
    assert Envelope.decode(message.envelope) == Envelope(b"k", [*DUE, *why])
    large = taken(*DUE, key=bytes(1 << 15), value=bytes(RULES.body_bytes_max + 1))
    message = rejection_of(large, refusal, TOPICS, RULES)
    assert message.body == b""
    assert Envelope.decode(message.envelope) == Envelope(None, why, is_null=True)
    assert admit(message, NOW_MS, RULES).due_ms == NOW_MS


@pytest.mark.parametrize("limits", [
    {"properties_max": 2},
    {"properties_bytes_max": 60},
    {"properties_max": 0, "properties_bytes_max": 0, "body_bytes_max": 0},
])  # fmt: skip
def test_no_limit_refuses_a_rejection(limits):
    rules = msgspec.structs.replace(RULES, **limits)
    message = rejection_of(taken(key=b"k"), Refusal("no_topic", "x" * 80), TOPICS, rules)
    assert admit(message, NOW_MS, rules).due_ms == NOW_MS
    names = [name for name, _ in Envelope.decode(message.envelope).headers]
    assert names == ["TIMER_REJECTED", "TIMER_REASON", "TIMER_FROM"]


def test_what_the_target_refuses_says_why_and_where_it_was_to_go():
    record = Produced("orders", b"k", b"v", [("a", b"1"), ("TIMER_DUE_MS", b"2"), ("TIMER_ID", b"3")])
    why = [("TIMER_TOPIC", b"orders"), ("TIMER_REJECTED", b"unknown_topic"), ("TIMER_REASON", b"why")]
    refusal = Refusal("unknown_topic", "why")
    assert rejected(record, refusal, TOPICS) == Produced(
        "timers.rejected", b"k", b"v", [*record.headers, *why]
    )
    bare = rejected(record, refusal, TOPICS, whole=False)
    assert bare == Produced("timers.rejected", None, None, [*record.headers[1:], *why])


def test_a_message_of_another_protocol_has_its_properties_as_headers():
    message = Outgoing("orders", b"v", {"shop": "7", "__SHARDINGKEY": "k"})
    found = produced_of(data := stored(message), unpack_header(data), "id")
    assert (found.key, found.value, found.headers[0]) == (b"k", b"v", ("shop", b"7"))
    assert len(found.headers) == 3


NUMBERS = st.one_of(
    st.integers(-5, 40 * 86_400_000),
    st.integers(NOW_MS - 5, NOW_MS + RULES.max_delay_ms + 5),
    st.integers(-(2**70), 2**70),
)
TARGETS = st.sampled_from(
    [b"orders", b"orders.new", b"timers", b"timers.rejected", b"..", b"a b", b"\xff", None]
)
NAMES = st.sampled_from(["a", "b", "", "TAGS", "KEYS", "__SHARDINGKEY", "REAL_TOPIC", "DLQ_X", "traceparent",
                         "TIMER_TTL_MS", "TIMER_ID", "\n", "\u00e9"])  # fmt: skip
TEXTS = st.none() | st.binary(max_size=4) | st.text(max_size=4).map(str.encode)
OWN = st.one_of(
    st.tuples(st.just("TIMER_TOPIC"), TARGETS),
    st.tuples(
        st.sampled_from(["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"]),
        NUMBERS.map(lambda number: str(number).encode()) | st.sampled_from([None, b"", b"007", b"x"]),
    ),
    st.tuples(st.sampled_from(["TIMER_KEY", "TIMER_RECALL"]), st.sampled_from([b"true", b"k", None])),
)
RECORDS = st.builds(
    lambda headers, key, value, stored_ms: taken(*headers, key=key, value=value, stored_ms=stored_ms),
    st.lists(st.tuples(NAMES, TEXTS) | OWN, max_size=4).flatmap(
        lambda more: (
            st.permutations([*more, ("TIMER_TOPIC", b"orders"), ("TIMER_DELIVER_MS", b"1")])
            | st.permutations([*more, *DUE])
            | st.just(more)
        )
    ),
    TEXTS,
    st.none() | st.binary(max_size=4),
    st.none() | st.integers(NOW_MS - 1000, NOW_MS + 5),
)


def outcome(message):
    """What becomes of a message: its record and due time, or the fault."""
    try:
        plan = admit(message, NOW_MS, RULES)
    except AdmissionError as error:
        return error.code
    return stored(message), plan.due_ms, plan.level, plan.waits


@given(RECORDS)
def test_a_usual_record_is_stored_as_the_rules_for_all_say(record):
    quick = usual_message(record, TOPICS, RULES)
    if quick is not None:
        whole = in_full(record, TOPICS, RULES)
        assert isinstance(whole, Outgoing)
        assert outcome(quick) == outcome(whole)


@pytest.mark.parametrize("record", [
    taken(*DUE),
    taken(*DUE, key=b"17", value=None),
    taken(*DUE, ("source", b"web"), ("TAGS", b"new"), key="é".encode(), stored_ms=NOW_MS),
    taken(("TIMER_DELIVER_MS", b"1795000000500"), ("TIMER_TOPIC", b"orders")),
])  # fmt: skip
def test_what_most_clients_send_is_usual(record):
    message = usual_message(record, TOPICS, RULES)
    assert message is not None
    assert outcome(message) == outcome(in_full(record, TOPICS, RULES))


@pytest.mark.parametrize("record", [
    taken(*DUE, ("TIMER_KEY", b"k")),
    taken(*DUE, ("a", None)),
    taken(*DUE, ("a", b"1"), ("a", b"2")),
    taken(*DUE, key=b"\xff"),
    taken(*DUE, ("n" * 1_025, b"")),
    taken(*DUE, ("a", bytes(RULES.properties_bytes_max))),
    taken(*DUE, *((str(number), b"") for number in range(31))),
    taken(("TIMER_TOPIC", b"t" * 250), ("TIMER_DELAY_MS", b"500")),
    taken(("TIMER_TOPIC", b"orders"), ("TIMER_DELAY_MS", b"1" * 19)),
])  # fmt: skip
def test_what_is_rare_goes_the_whole_way(record):
    assert usual_message(record, TOPICS, RULES) is None
