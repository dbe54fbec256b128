from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import AdmissionError
from timerwheel.model.admission import ENVELOPE_PROPERTY, HALF_DUE_MS, Rules, admit
from timerwheel.model.messages import Outgoing
from timerwheel.rocketmq import properties_text
from timerwheel.rocketmq.codes import SYS_COMMIT, SYS_PREPARED
from timerwheel.rocketmq.stored_message import Host, packed
from timerwheel.rocketmq.translation import (
    BORN_MS_MAX,
    UNIQ_KEY,
    Envelope,
    admitted,
    plain_form,
    plain_forms,
    plain_properties,
    restored,
    stored_form,
)
from timerwheel.settings import Settings
from timerwheel.store.record import NO_OFFSET, Kind, decode, encode

ID = "00000000000000409868ecfc"
BORN = Host("10.1.2.3", 4567)


def header(*, level=0, prior_level=0, origin=NO_OFFSET, kind=Kind.MESSAGE, due_ms=2_000, prior_due_ms=0):
    data = encode(
        kind, b"orders", b"", b"x", 3_000, due_ms, 1_000, level=level, queue=2, origin=origin,
        prior_level=prior_level, prior_due_ms=prior_due_ms,
    )  # fmt: skip
    return decode(data).header


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ({"KEYS": "k", "TAGS": "a"}, {"KEYS": "k", "TAGS": "a"}),
        ({"UNIQ_KEY": "7F0"}, {"UNIQ_KEY": "7F0"}),
        ({"DELAY": "3"}, {"DELAY": "3"}),  # admission takes the delays off
        ({"DELAY": "-1", "KEYS": "k"}, {"KEYS": "k"}),
        ({"DELAY": "-1", "TIMER_DELAY_MS": "5"}, {"TIMER_DELAY_MS": "5"}),
        ({"DELAY": "-x"}, {"DELAY": "-x"}),  # which admission refuses
        ({"TIMER_DELIVER_MS": "5"}, {"TIMER_DELIVER_MS": "5"}),
        ({"REAL_TOPIC": "t", "REAL_QID": "1", "A": "b"}, {"A": "b"}),
        (
            {"TIMER_OUT_MS": "5", "TIMER_ENQUEUE_MS": "4", "TIMER_DEQUEUE_MS": "6", "TIMER_ROLL_TIMES": "1"},
            {},
        ),
        ({"DLQ_REASON": "x", "SCHEDULE_NAME": "y", "DEDUP_KEY": "z"}, {}),
        ({ENVELOPE_PROPERTY: "forged"}, {}),
        (
            {"WAIT": "true", "MIN_OFFSET": "0", "MAX_OFFSET": "9", "CONSUME_START_TIME": "1", "POP_CK": "c"},
            {},
        ),
        ({"MSG_REGION": "r", "TRACE_ON": "false", "A": "b"}, {"A": "b"}),
        ({"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "m"}, {"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "m"}),
    ],
)
def test_what_of_a_send_is_stored(sent, stored):
    assert admitted(dict(sent)) == stored


@pytest.mark.parametrize(
    ("found", "stored", "shown"),
    [
        (header(), {"KEYS": "k"}, {"KEYS": "k", "UNIQ_KEY": ID}),
        (header(), {"UNIQ_KEY": "7F0"}, {"UNIQ_KEY": "7F0"}),
        (
            header(origin=64),
            {"UNIQ_KEY": "7F0"},
            {"UNIQ_KEY": "7F0", "TIMER_OUT_MS": "2000", "REAL_TOPIC": "orders", "REAL_QID": "2"},
        ),
        (
            header(origin=64, prior_level=3),
            {"UNIQ_KEY": "7F0"},
            {
                "UNIQ_KEY": "7F0",
                "DELAY": "3",
                "TIMER_OUT_MS": "2000",
                "REAL_TOPIC": "orders",
                "REAL_QID": "2",
            },
        ),
        (
            header(),
            {"DEDUP_KEY": "k", "DEDUP_HASH": "h", "DEDUP_DOMAIN": "d"},
            {"DEDUP_KEY": "k", "UNIQ_KEY": ID},
        ),
    ],
)
def test_what_a_consumer_sees(found, stored, shown):
    assert restored(found, "orders", stored, ID).properties == shown


def test_the_envelope_is_taken_from_the_properties():
    sent = Envelope(5_000, BORN, flag=7, sys_flag=2, consumed_before=3)
    found = restored(header(), "orders", {ENVELOPE_PROPERTY: sent.encode()}, ID)
    assert found.envelope == sent
    assert ENVELOPE_PROPERTY not in found.properties


def test_a_message_without_envelope_was_born_when_it_was_accepted():
    assert restored(header(), "orders", {}, ID).envelope.born_ms == 1_000


@given(
    st.integers(0, BORN_MS_MAX),
    st.ip_addresses().map(str),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 2]),
    st.integers(0, 99),
)
def test_an_envelope_comes_back(born_ms, address, flag, sys_flag, consumed_before):
    envelope = Envelope(born_ms, Host(address, 9), flag, sys_flag, consumed_before)
    assert Envelope.decode(envelope.encode()) == envelope


@pytest.mark.parametrize("born_ms", [BORN_MS_MAX + 1, 2**63 - 1, 2**63])
def test_no_born_time_is_later_than_grpc_can_say(born_ms):
    assert Envelope.decode(Envelope(born_ms, BORN).encode()).born_ms == BORN_MS_MAX


def test_an_envelope_without_flags_is_short():
    assert Envelope(1_800_000_000_000, BORN).encode() == "1800000000000 10.1.2.3 4567"


@pytest.mark.parametrize(
    ("found", "sys_flag", "was_delayed"),
    [
        (header(kind=Kind.TIMER, due_ms=HALF_DUE_MS), SYS_PREPARED, False),
        (header(kind=Kind.TIMER, due_ms=HALF_DUE_MS, origin=64), SYS_PREPARED, False),  # moved by retention
        (header(origin=64, prior_due_ms=HALF_DUE_MS), SYS_COMMIT, False),
        (header(kind=Kind.TIMER, origin=64, prior_due_ms=HALF_DUE_MS), SYS_COMMIT, True),
        (header(origin=64, prior_due_ms=2_000), SYS_COMMIT, True),
    ],
)
def test_a_message_of_a_transaction_says_how_far_that_is(found, sys_flag, was_delayed):
    envelope = Envelope(5, BORN, sys_flag=SYS_PREPARED | 2)
    shown = restored(found, "orders", {ENVELOPE_PROPERTY: envelope.encode()}, ID)
    assert shown.envelope.sys_flag == sys_flag | 2
    assert shown.properties["TRAN_MSG"] == "true"
    assert ("TIMER_OUT_MS" in shown.properties) == was_delayed


PROPERTIES = st.dictionaries(
    st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "DEDUP_HASH", "MSG_REGION", "TRACE_ON", ":", "é"]),
    st.text(st.sampled_from('a:,"\\ é\x01'), max_size=4),
    max_size=4,
)
HOSTS = st.sampled_from([Host("10.0.0.7", 40_001), Host("::1", 1)])
ENVELOPES = st.builds(
    Envelope,
    st.integers(0, 1 << 40),
    HOSTS,
    st.integers(0, 1),
    st.sampled_from([0, SYS_PREPARED]),
    st.integers(0, 1),
)


HEADERS = st.fixed_dictionaries(
    {
        "origin": st.sampled_from([64, NO_OFFSET]),
        "due_ms": st.sampled_from([2_000, HALF_DUE_MS]),
        "prior_due_ms": st.sampled_from([0, 1_000, HALF_DUE_MS]),
        "prior_level": st.sampled_from([0, 3]),
    }
)


@given(PROPERTIES, st.none() | ENVELOPES, HOSTS, HEADERS, st.booleans())
def test_the_short_way_to_a_stored_form_gives_the_same_bytes(
    properties, envelope, host, fields, is_envelope_last
):
    if envelope is not None:
        hidden = {ENVELOPE_PROPERTY: envelope.encode()}
        properties = properties | hidden if is_envelope_last else hidden | properties
    root = NO_OFFSET if fields["origin"] == NO_OFFSET else 0
    text, times = orjson.dumps(properties), {"store_ms": 3_000, "enqueue_ms": 1_000}
    data = encode(Kind.MESSAGE, b"orders", text, b"body", queue=2, root=root, **times, **fields)
    quick = plain_form(data, 128, 7, packed(host))
    assert quick is None or quick == stored_form(decode(data), 128, 7, ID, host)


def test_messages_are_translated_together_as_one_by_one():
    plain = [plain_record(f"7F{number}", b"body" * number) for number in range(5)]
    other = encode(Kind.MESSAGE, b"orders", b'{"KEYS":"k"}', b"x", 3_000, 2_000, 1_000)
    for records in ([], plain, [*plain, other], [other, *plain], [other]):
        offsets = [128 * number for number, _ in enumerate(records)]
        found = plain_forms(records, offsets, range(len(records)), packed(BORN))
        assert found == [
            plain_form(data, offset, place, packed(BORN))
            for place, (data, offset) in enumerate(zip(records, offsets, strict=True))
        ]
        assert [form is None for form in found] == [data is other for data in records]


def plain_record(key, body):
    properties = {"UNIQ_KEY": key, "KEYS": "k", ENVELOPE_PROPERTY: Envelope(5, BORN).encode()}
    return encode(Kind.MESSAGE, b"orders", orjson.dumps(properties), body, 3_000, 2_000, 1_000)


@pytest.mark.parametrize("origin", [64, NO_OFFSET])
def test_an_ordinary_message_takes_the_short_way(origin):
    properties = {"UNIQ_KEY": "7F0", "KEYS": "k", ENVELOPE_PROPERTY: Envelope(5, BORN).encode()}
    data = encode(
        Kind.MESSAGE, b"orders", orjson.dumps(properties), b"body", 3_000, 2_000, 1_000, origin=origin, root=0
    )
    assert plain_form(data, 128, 7, packed(BORN)) is not None


@pytest.mark.parametrize("value", ["b 127.0.0.1 1", "1 nohost 1", "7 10.9.9.9 5", "x"])
@pytest.mark.parametrize("has_envelope", [False, True])
def test_a_property_whose_name_ends_like_that_of_the_envelope_is_not_the_envelope(value, has_envelope):
    own = {ENVELOPE_PROPERTY: Envelope(5, BORN).encode()} if has_envelope else {}
    properties = {"UNIQ_KEY": "7F0", f"a{ENVELOPE_PROPERTY}": value} | own
    data = encode(Kind.MESSAGE, b"orders", orjson.dumps(properties), b"body", 3_000, 2_000, 1_000)
    short = plain_form(data, 128, 7, packed(BORN))
    assert (short is not None) == has_envelope
    assert short in {None, stored_form(decode(data), 128, 7, ID, BORN)}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ({}, {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}),
        ({"MSG_REGION": "north"}, {"MSG_REGION": "north"}),  # of a message over HTTP
        ({"KEYS": "k" * (properties_text.TEXT_BYTES_MAX - 60)}, {}),  # without room for more
    ],
)
def test_a_message_shows_the_properties_of_a_broker_where_it_can(stored, shown):
    data = encode(Kind.MESSAGE, b"orders", orjson.dumps(stored), b"body", 3_000, 2_000, 1_000)
    form = stored_form(decode(data), 128, 7, ID, BORN)
    text = form[form.index(b"\x06orders") + 9 :].decode()
    assert properties_text.decode(text) == {**stored, "UNIQ_KEY": ID, **shown}


RULES = Rules.of(Settings(data=Path("unused"), properties_max=3, properties_bytes_max=60))
SENT_NAMES = st.sampled_from(
    [
        *("UNIQ_KEY", "KEYS", "TAGS", "100%", "%b", "é", 'a"', "a\\", "", "\t", "\x7f"),
        *("WAIT", "CLUSTER", "REAL_TOPIC", "DLQ_A", "SCHEDULE_A", "DEDUP_KEY", ENVELOPE_PROPERTY),
        *(
            "TRAN_MSG",
            "DELAY",
            "TIMER_DELAY_MS",
            "__STARTDELIVERTIME",
            "TIMER_TTL_MS",
            "traceparent",
            "tracestate",
        ),
    ]
)
SENT_VALUES = st.sampled_from(
    ["", "0", "1", "true", "plain", "%b", "a,b:c", '"', "\\", "é", "\n", "\x7f", "x" * 40]
)
ENVELOPE = "5 10.1.2.3 4567"
SENT_TEXTS = st.one_of(
    st.lists(st.tuples(SENT_NAMES, SENT_VALUES).map("\x01".join), max_size=5).map("\x02".join),
    st.lists(st.tuples(SENT_NAMES, SENT_VALUES).map(lambda pair: f"{pair[0]}\x01{pair[1]}\x02")).map("".join),
    st.text(st.sampled_from("\x01\x02ab"), max_size=12),
)


@given(SENT_TEXTS)
def test_plain_properties_are_what_the_long_way_stores(text):
    envelope = Envelope(5, BORN).encode()
    quick = plain_properties([text.encode()], envelope, RULES)
    if quick is not None:
        sent = properties_text.decode(text)
        plan = admit(Outgoing("orders", b"x", admitted(dict(sent))), 1_000, RULES)
        assert not plan.waits
        assert quick.stored == [orjson.dumps(plan.properties | {ENVELOPE_PROPERTY: envelope})]
        assert quick.uniq_key == sent.get(UNIQ_KEY, "")


@given(st.lists(SENT_TEXTS, min_size=1, max_size=4), st.booleans(), st.sampled_from([ENVELOPE, "5 %d 1"]))
def test_texts_that_are_alike_are_read_together_as_one_by_one(texts, is_same, envelope):
    each = [text.encode() for text in (texts[:1] * len(texts) if is_same else texts)]
    alike = plain_properties(each, envelope, RULES)
    alone = [plain_properties([text], envelope, RULES) for text in each]
    if alike is not None:
        assert alike.stored == [text for one in alone for text in one.stored]
        assert alike.uniq_key == alone[0].uniq_key
    assert alike is not None or not is_same or None in alone


@pytest.mark.parametrize(
    "texts",
    [
        ("A\x011\x02B\x012\x02A\x013", "B\x014"),  # two pairs each, if one does not look where a text ends
        ("A\x011", "B\x012"),
        ("A\x011\x03A\x012", "A\x013"),
        ("A\x011\x02", ""),
    ],
)
def test_texts_that_differ_are_not_read_together(texts):
    assert plain_properties([text.encode() for text in texts], ENVELOPE, RULES) is None


@pytest.mark.parametrize(
    "text", ["UNIQ_KEY\x017F\x02WAIT\x01true\x02", "KEYS\x01a b\x02UNIQ_KEY\x017F", "%b\x01100%\x02"]
)
def test_what_producers_usually_send_is_plain(text):
    assert plain_properties([text.encode()], ENVELOPE, RULES) is not None


@pytest.mark.parametrize("text", ["A\x01a\x02B\x01b\x02C\x01c\x02D\x01d\x02", "A\x01" + "x" * 60])
def test_properties_beyond_a_limit_go_the_long_way_which_refuses_them(text):
    assert plain_properties([text.encode()], "", RULES) is None
    with pytest.raises(AdmissionError):
        admit(Outgoing("orders", b"x", properties_text.decode(text)), 1_000, RULES)
