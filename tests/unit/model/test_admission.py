import gc
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import AdmissionError, SettingsError
from timerwheel.model.admission import (
    DELAY_PROPERTIES,
    FIELD_PROPERTIES,
    RESERVED_PROPERTIES,
    SYSTEM_TOPIC_LEVELS,
    SYSTEM_TOPIC_TIMER,
    TIMER_PROPERTIES,
    Plan,
    Rules,
    admit,
    admit_delay,
)
from timerwheel.model.messages import Outgoing
from timerwheel.settings import DAY_MS, YEAR_MS, Settings

NOW_MS = 1_798_131_600_123
MAX_DELAY_MS = 10 * YEAR_MS
INT64_MAX = 2**63 - 1


def rules_of(**changes) -> Rules:
    return Rules.of(Settings(data=Path("unused"), **changes))


RULES = rules_of()


def plan_of(properties, rules=RULES) -> Plan:
    return admit(Outgoing("orders", b"body", properties), NOW_MS, rules)


def refusal_of(properties, rules=RULES, topic="orders", body=b"body") -> AdmissionError:
    with pytest.raises(AdmissionError) as caught:
        admit(Outgoing(topic, body, properties), NOW_MS, rules)
    caught.value.detail.encode()  # every detail can go into a response
    assert len(caught.value.detail) < 400
    return caught.value


def delay_refusal_of(properties) -> AdmissionError:
    with pytest.raises(AdmissionError) as caught:
        admit_delay(properties, NOW_MS, RULES)
    return caught.value


# -------------------------------------------------------------------------------------------- topic


@pytest.mark.parametrize("topic", ["a", "A-Z_09%|", "%RETRY", "rmq_sys", "TBW102x", "x" * 127])
def test_topic_of_1_to_127_allowed_characters_is_admitted(topic):
    assert not admit(Outgoing(topic, b""), NOW_MS, RULES).waits


@pytest.mark.parametrize(
    "topic",
    ["", "x" * 128, "a b", "a.b", "a/b", "ä", "a\n", "a\x00", "\ud800", pytest.param("x" * 10**6, id="long")],
)
def test_any_other_topic_is_illegal(topic):
    assert refusal_of({}, topic=topic).code == "illegal_topic"


@pytest.mark.parametrize("topic", [SYSTEM_TOPIC_TIMER, SYSTEM_TOPIC_LEVELS])
def test_topics_where_messages_wait_cannot_be_written(topic):
    assert refusal_of({}, topic=topic).code == "system_topic"
    assert refusal_of({"TIMER_DELAY_MS": "5"}, topic=topic).code == "system_topic"


# -------------------------------------------------------------------------------------------- limits


def test_body_at_the_limit_is_admitted_and_one_byte_more_is_not():
    rules = rules_of(body_bytes_max=10)
    admit(Outgoing("orders", b"x" * 10), NOW_MS, rules)
    error = refusal_of({}, rules, body=b"x" * 11)
    assert (error.code, "body_size_max = 10" in error.detail) == ("body_too_large", True)


def test_default_limits_are_4_mib_128_properties_and_16_kib():
    limits = (RULES.body_bytes_max, RULES.properties_max, RULES.properties_bytes_max)
    assert limits == (4 << 20, 128, 32 << 10)


def test_properties_that_are_fields_for_rocketmq_count_towards_the_size_only():
    fields = dict.fromkeys(FIELD_PROPERTIES, "v")
    assert plan_of({"A": "", **fields}, rules_of(properties_max=1)).properties == {"A": "", **fields}
    assert refusal_of({"A": "", "B": "", **fields}, rules_of(properties_max=1)).code == "too_many_properties"
    assert refusal_of(fields, rules_of(properties_bytes_max=10)).code == "properties_too_large"


def test_a_delay_counts_towards_no_limit_of_properties_however_it_is_written():
    for name in DELAY_PROPERTIES:
        for rules in (rules_of(properties_max=2), rules_of(properties_bytes_max=2)):
            assert plan_of({"A": "", "B": "", name: "5"}, rules).properties == {"A": "", "B": ""}
        assert plan_of({name: "5"}, rules_of(properties_max=0, properties_bytes_max=0)).properties == {}
    number = Outgoing("orders", b"", {}, None, after_ms=5)
    assert admit(number, 0, rules_of(properties_max=0, properties_bytes_max=0)).waits
    both = {"A": "", "B": "", "C": "", "TIMER_DELAY_MS": "5"}
    assert refusal_of(both, rules_of(properties_max=2)).code == "too_many_properties"
    assert refusal_of(both, rules_of(properties_bytes_max=2)).code == "properties_too_large"


@pytest.mark.parametrize(
    "properties", [{"n": "123456789"}, {"n": "äöüß9"}, {"é": "12345678"}, {"🙂": "123456"}]
)
def test_property_bytes_are_utf8_bytes_of_names_and_values(properties):
    plan_of(properties, rules_of(properties_bytes_max=10))
    assert refusal_of(properties, rules_of(properties_bytes_max=9)).code == "properties_too_large"


def test_empty_property_name_is_illegal():
    assert refusal_of({"": "x"}).code == "illegal_property"


@pytest.mark.parametrize("control", ["\0", "\1", "\2", "\t", "\n", "\x1f", "\x7f", "\x85", "\x9f"])
def test_a_control_character_in_the_name_of_a_property_is_refused(control):
    for name in (control, f"a{control}b"):
        error = refusal_of({"ok": "x", name: "x"})
        assert error.code == "illegal_property"
        assert "control character" in error.detail


def test_names_of_properties_may_hold_spaces_and_any_script_and_values_anything():
    plan = plan_of({"a b": "\n\1", "größe": "x", "\u00a0": "x", "\u2028": "x"})
    assert len(plan.properties) == 4


@pytest.mark.parametrize(
    "properties",
    [{"a": "\ud800"}, {"\udc00": "b"}, {"a": "\ud83d", "b": "\ude42"}, {"x" * 1000 + "\ud800": ""}],
)
def test_lone_surrogate_is_illegal(properties):
    assert refusal_of(properties).code == "illegal_property"


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_property_of_the_service_is_refused_and_named(name):
    error = refusal_of({name: "1", "TIMER_DELAY_MS": "5"})
    assert (error.code, name in error.detail) == ("reserved_property", True)


def test_ten_properties_belong_to_the_service():
    names = "REAL_TOPIC REAL_QID TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES"
    names += " DEDUP_KEY DEDUP_HASH DEDUP_DOMAIN __ENVELOPE"
    assert set(names.split()) == RESERVED_PROPERTIES


# ------------------------------------------------------------------------- rule 1, half messages


@pytest.mark.parametrize("value", ["true", "TRUE", "True"])
def test_half_message_is_refused_before_its_delay_is_read(value):
    assert refusal_of({"TRAN_MSG": value, "TIMER_DELAY_MS": "bad"}).code == "transactional"


@pytest.mark.parametrize("value", ["false", "", "1"])
def test_message_marked_as_not_half_is_ordinary(value):
    assert plan_of({"TRAN_MSG": value}) == Plan(NOW_MS, 0, False, {"TRAN_MSG": value})


# ------------------------------------------------------------------------- rule 2, levels


def test_level_is_due_its_delay_after_now():
    assert plan_of({"DELAY": "3"}) == Plan(NOW_MS + 10_000, 3, True, {})


@pytest.mark.parametrize("name", TIMER_PROPERTIES)
@pytest.mark.parametrize("value", ["1", "bad", str(INT64_MAX)])
def test_level_above_zero_wins_over_every_timer_property_even_a_bad_one(name, value):
    assert plan_of({name: value, "DELAY": "1"}) == Plan(NOW_MS + 1_000, 1, True, {})


@pytest.mark.parametrize("level", [18, 19, INT64_MAX])
def test_level_above_the_highest_is_the_highest(level):
    assert plan_of({"DELAY": str(level)}) == Plan(NOW_MS + 7_200_000, 18, True, {})


@pytest.mark.parametrize("zero", ["0", "-0", "00"])
def test_level_zero_is_no_level(zero):
    assert plan_of({"DELAY": zero}) == Plan(NOW_MS, 0, False, {})
    assert plan_of({"DELAY": zero, "TIMER_DELAY_SEC": "2"}) == Plan(NOW_MS + 2_000, 0, True, {})


NOT_NUMBERS = [
    "",
    " ",
    "x",
    " 1",
    "1 ",
    "+1",
    "1.0",
    "1e3",
    "0x1",
    "1_000",
    "--1",
    "-",
    "NaN",
    "\u0661",
    "²",
    "1\n",
]
TOO_LARGE = [str(2**63), str(-(2**63) - 1), "9" * 20, "0" * 20, pytest.param("9" * 10_000, id="long")]


@pytest.mark.parametrize("value", ["-1", *NOT_NUMBERS, *TOO_LARGE])
def test_level_negative_or_not_a_number_is_illegal(value):
    assert refusal_of({"DELAY": value}).code == "illegal_delay"
    assert refusal_of({"DELAY": value, "TIMER_DELAY_MS": "5"}).code == "illegal_delay"


def test_levels_follow_the_operators_table():
    assert plan_of({"DELAY": "9"}, rules_of(levels="3s 1d")) == Plan(NOW_MS + DAY_MS, 2, True, {})


def test_bad_level_table_stops_the_making_of_rules():
    with pytest.raises(SettingsError, match="'5x'"):
        rules_of(levels="1s 5x")


# ------------------------------------------------------------------------- rule 3, TIMER_* in order


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        ("TIMER_DELAY_SEC", "7", NOW_MS + 7_000),
        ("TIMER_DELAY_MS", "7", NOW_MS + 7),
        ("TIMER_DELIVER_MS", str(NOW_MS + 7), NOW_MS + 7),
        ("__STARTDELIVERTIME", str(NOW_MS + 7), NOW_MS + 7),
    ],
)
def test_each_timer_property_has_its_unit_and_origin(name, value, due_ms):
    assert plan_of({name: value}) == Plan(due_ms, 0, True, {})
    assert plan_of({name: value, "TAGS": "t"}) == Plan(due_ms, 0, True, {"TAGS": "t"})


@pytest.mark.parametrize("first", range(4))
def test_first_timer_property_present_counts_whatever_the_order_sent(first):
    sent = {
        "__STARTDELIVERTIME": str(NOW_MS + 4),
        "TIMER_DELIVER_MS": str(NOW_MS + 3),
        "TIMER_DELAY_MS": "2",
        "TIMER_DELAY_SEC": "1",
    }
    present = {name: sent[name] for name in reversed(TIMER_PROPERTIES[first:])}
    assert plan_of(present).due_ms == NOW_MS + (1_000, 2, 3, 4)[first]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, *TOO_LARGE])
@pytest.mark.parametrize("name", TIMER_PROPERTIES)
def test_bad_value_is_an_error_and_does_not_fall_through(name, value):
    later = TIMER_PROPERTIES[TIMER_PROPERTIES.index(name) + 1 :]
    error = refusal_of({name: value, **dict.fromkeys(later, "5")})
    assert (error.code, name in error.detail) == ("illegal_delay", True)
    assert refusal_of({name: value}).code == "illegal_delay"


def test_bad_value_behind_the_first_is_not_read():
    assert plan_of({"TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "bad"}) == Plan(NOW_MS + 1_000, 0, True, {})


# ------------------------------------------------------------------------- rule 4, due now or before

PAST = [
    ("TIMER_DELAY_SEC", 0),
    ("TIMER_DELAY_SEC", -1),
    ("TIMER_DELAY_SEC", -(2**63)),
    ("TIMER_DELAY_MS", 0),
    ("TIMER_DELAY_MS", -1),
    ("TIMER_DELAY_MS", -(2**63)),
    ("TIMER_DELIVER_MS", NOW_MS),
    ("TIMER_DELIVER_MS", NOW_MS - 1),
    ("TIMER_DELIVER_MS", 0),
    ("TIMER_DELIVER_MS", -(2**63)),
    ("__STARTDELIVERTIME", NOW_MS),
]


@pytest.mark.parametrize(("name", "value"), PAST)
def test_due_now_or_in_the_past_is_an_ordinary_message_of_now(name, value):
    assert plan_of({name: str(value), "K": "v"}) == Plan(NOW_MS, 0, False, {"K": "v"})
    assert plan_of({name: str(value)}) == Plan(NOW_MS, 0, False, {})


def test_due_one_millisecond_after_now_waits():
    assert plan_of({"TIMER_DELIVER_MS": str(NOW_MS + 1)}).waits
    assert plan_of({"TIMER_DELAY_MS": "1"}).waits


def test_message_without_a_delay_is_ordinary():
    assert plan_of({}) == Plan(NOW_MS, 0, False, {})
    assert plan_of({"TAGS": "a", "KEYS": "k"}) == Plan(NOW_MS, 0, False, {"TAGS": "a", "KEYS": "k"})


# ------------------------------------------------------------------------- rule 5, max_delay


@pytest.mark.parametrize(
    ("name", "equal"),
    [
        ("TIMER_DELAY_SEC", MAX_DELAY_MS // 1000),
        ("TIMER_DELAY_MS", MAX_DELAY_MS),
        ("TIMER_DELIVER_MS", NOW_MS + MAX_DELAY_MS),
        ("__STARTDELIVERTIME", NOW_MS + MAX_DELAY_MS),
    ],
)
def test_max_delay_is_allowed_and_one_more_is_too_long(name, equal):
    assert plan_of({name: str(equal)}) == Plan(NOW_MS + MAX_DELAY_MS, 0, True, {})
    assert refusal_of({name: str(equal + 1)}).code == "delay_too_long"


@pytest.mark.parametrize("name", TIMER_PROPERTIES)
def test_delay_of_2_to_the_63_less_1_is_too_long_and_never_in_the_past(name):
    assert refusal_of({name: str(INT64_MAX)}).code == "delay_too_long"


def test_level_longer_than_max_delay_is_too_long():
    rules = rules_of(levels="1s 2s", max_delay_ms=1_000)
    assert plan_of({"DELAY": "1"}, rules).waits
    assert refusal_of({"DELAY": "2"}, rules).code == "delay_too_long"


def test_max_delay_of_zero_allows_only_messages_due_now():
    rules = rules_of(max_delay_ms=0)
    assert not plan_of({"TIMER_DELAY_MS": "0"}, rules).waits
    assert refusal_of({"TIMER_DELAY_MS": "1"}, rules).code == "delay_too_long"


# ------------------------------------------------------------------------- what is carried


def test_delay_properties_are_cleared_also_when_another_one_won():
    sent = {"DELAY": "1", **dict.fromkeys(TIMER_PROPERTIES, "5"), "TAGS": "t", "other": "o"}
    assert plan_of(sent).properties == {"TAGS": "t", "other": "o"}
    assert plan_of({"DELAY": "0", "TAGS": "t"}).properties == {"TAGS": "t"}


def test_properties_of_the_client_are_left_as_they_were():
    for sent in ({}, {"TIMER_DELAY_MS": "5"}, {"TIMER_DELAY_MS": "5", "TAGS": "t"}, {"TAGS": "t"}):
        before = dict(sent)
        plan_of(sent).properties["added"] = "later"
        assert sent == before
        assert "added" not in plan_of(sent).properties


@given(
    st.dictionaries(
        st.sampled_from(sorted(DELAY_PROPERTIES)) | st.text(max_size=5),
        st.integers(-(2**64), 2**64).map(str) | st.integers(-20, 20).map(str) | st.text(max_size=5),
        max_size=6,
    )
)
def test_any_properties_are_either_refused_or_due_from_now_to_max_delay(properties):
    try:
        plan = plan_of(properties)
    except AdmissionError as error:
        error.detail.encode()
        return
    assert NOW_MS <= plan.due_ms <= NOW_MS + MAX_DELAY_MS
    assert plan.waits == (plan.due_ms > NOW_MS)
    assert plan.properties.items() == {item for item in properties.items() if item[0] not in DELAY_PROPERTIES}


@given(st.text("0123456789-+ ²", max_size=21) | st.integers(-(2**64), 2**64).map(str))
def test_lone_timer_delay_ms_is_planned_like_one_among_others(value):
    def outcome(properties):
        try:
            plan = plan_of(properties)
        except AdmissionError as error:
            return error.code, error.detail
        return plan.due_ms, plan.level, plan.waits

    assert outcome({"TIMER_DELAY_MS": value}) == outcome({"TIMER_DELAY_MS": value, "K": "v"})


# ------------------------------------------------------------------------- reschedule


def test_reschedule_follows_the_rules_of_a_send():
    assert admit_delay({"TIMER_DELAY_MS": "5"}, NOW_MS, RULES) == Plan(NOW_MS + 5, 0, True, {})
    assert admit_delay({"DELAY": "99", "TIMER_DELAY_MS": "5"}, NOW_MS, RULES).level == 18
    assert admit_delay({"DELAY": "0", "TIMER_DELAY_MS": "5"}, NOW_MS, RULES).due_ms == NOW_MS + 5
    assert admit_delay({"TIMER_DELIVER_MS": "1"}, NOW_MS, RULES) == Plan(NOW_MS, 0, False, {})
    assert delay_refusal_of({"TIMER_DELAY_MS": str(MAX_DELAY_MS + 1)}).code == "delay_too_long"
    assert delay_refusal_of({"DELAY": "-1", "TIMER_DELAY_MS": "5"}).code == "illegal_delay"


@pytest.mark.parametrize("properties", [{}, {"DELAY": "0"}, {"DELAY": "x"}])
def test_reschedule_that_names_no_time_is_illegal(properties):
    assert delay_refusal_of(properties).code == "illegal_delay"


def test_reschedule_can_change_nothing_but_the_time():
    assert delay_refusal_of({"TIMER_DELAY_MS": "5", "TAGS": "t"}).code == "illegal_property"
    assert delay_refusal_of({"TIMER_DELAY_MS": "5", "\ud800": "t"}).code == "illegal_property"
    assert delay_refusal_of({"TIMER_DELAY_MS": "5", "REAL_TOPIC": "t"}).code == "reserved_property"


DELAYS_MS = st.sampled_from(
    [-(2**63), -1, 0, 1, 1_000, NOW_MS, NOW_MS + 1, MAX_DELAY_MS, MAX_DELAY_MS + 1, INT64_MAX]
)
FEW = st.dictionaries(
    st.sampled_from(["A", "TAGS", "DELAY", "TIMER_DELAY_SEC", "REAL_QID", ""]), st.just("1"), max_size=2
)


@given(DELAYS_MS | st.integers(-(2**63), INT64_MAX), st.booleans(), FEW, st.sampled_from([0, 1, 2, 128]))
def test_a_time_as_a_number_means_what_it_means_as_a_property(time_ms, after, properties, properties_max):
    rules = rules_of(properties_max=properties_max) if properties_max else RULES
    number, name = ("after_ms", "TIMER_DELAY_MS") if after else ("at_ms", "TIMER_DELIVER_MS")
    forms = [
        Outgoing("orders", b"body", dict(properties), **{number: time_ms}),
        Outgoing("orders", b"body", {**properties, name: str(time_ms)}),
    ]
    assert forms[0].spelled == forms[1].properties
    results = []
    for form in forms:
        try:
            results.append(admit(form, NOW_MS, rules))
        except AdmissionError as error:
            results.append((error.code, error.detail))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_DELAY_MS": "500"}, NOW_MS + 400),
        ({"TIMER_DELAY_SEC": "1"}, NOW_MS + 900),
        ({"DELAY": "1"}, NOW_MS + 900),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 5)}, NOW_MS + 5),
        ({"TIMER_DELAY_MS": "99"}, NOW_MS),
        ({}, NOW_MS),
    ],
)
def test_a_delay_counts_from_the_time_that_is_given_if_it_has_passed(properties, due_ms):
    assert admit(Outgoing("t", b"", properties, from_ms=NOW_MS - 100), NOW_MS, RULES).due_ms == due_ms
    later = admit(Outgoing("t", b"", properties, from_ms=NOW_MS + 100), NOW_MS, RULES)
    assert later == admit(Outgoing("t", b"", properties), NOW_MS, RULES)


def test_names_that_are_too_long_are_not_kept_in_memory():
    """Thousands of refused sends with a topic of a megabyte each would take gigabytes."""
    tracemalloc.start()
    try:
        for number in range(50):
            assert refusal_of({}, topic=f"{number}" + "x" * 100_000).code == "illegal_topic"
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
