"""Which trace context is kept by the grammar of W3C, and what becomes of one that has no room."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import AdmissionError
from timerwheel.model.admission import Rules, admit
from timerwheel.model.messages import Outgoing
from timerwheel.model.trace_context import TRACESTATE_BYTES_MAX, context_of, is_sampled, without_context
from timerwheel.settings import Settings
from timerwheel.state.dedup_key import content_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
STATE = "congo=t61rcWkgMzE,rojo@dt=00f067aa0ba902b7"
NOW_MS = 1_800_000_000_000


def state_kept(text: str) -> str:
    return context_of({"traceparent": PARENT, "tracestate": text}).get("tracestate", "")


def admitted(properties: dict[str, str], **limits: int) -> dict[str, str]:
    rules = Rules.of(Settings(data=Path("unused"), **limits))
    return admit(Outgoing("orders", b"body", properties), NOW_MS, rules).properties


# ---------------------------------------------------------------------- traceparent


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (PARENT, PARENT),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-03", f"00-{TRACE}-{SPAN}-03"),
        (f"cc-{TRACE}-{SPAN}-01", PARENT),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", PARENT),
    ],
)
def test_a_well_formed_traceparent_is_kept_as_far_as_it_is_known(given, kept):
    assert context_of({"traceparent": given}) == {"traceparent": kept}


@pytest.mark.parametrize(
    "given",
    [
        "",
        "nonsense",
        PARENT.upper(),
        f" {PARENT}",
        f"{PARENT}\n",
        f"{PARENT}\r\nX-Evil: 1",
        f"{PARENT}-",
        f"{PARENT}-more",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"cc-{TRACE}-{SPAN}-01-\n",
        f"00-{TRACE[:-1]}é-{SPAN}-01",
        f"00-{TRACE[:-1]}\N{ARABIC-INDIC DIGIT ONE}-{SPAN}-01",
    ],
)
def test_a_malformed_traceparent_is_no_context_whatever_the_tracestate(given):
    assert context_of({"traceparent": given, "tracestate": STATE}) == {}


def test_a_tracestate_alone_says_nothing():
    assert context_of({"tracestate": STATE}) == {}


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_a_trace_is_recorded_if_its_flag_says_so(flags, sampled):
    assert is_sampled({"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}) is sampled


@pytest.mark.parametrize("properties", [{}, {"traceparent": "nonsense-01"}, {"tracestate": STATE}])
def test_what_has_no_context_is_not_recorded(properties):
    assert not is_sampled(properties)


# ---------------------------------------------------------------------- tracestate


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (STATE, STATE),
        (" a=1 ,\t,b=2,, ", "a=1,b=2"),
        ("0a_-*/@z=!#~ x", "0a_-*/@z=!#~ x"),
        ("k" * 256 + "=" + "v" * 250, "k" * 256 + "=" + "v" * 250),
        (",".join(f"k{n}=v" for n in range(32)), ",".join(f"k{n}=v" for n in range(32))),
    ],
)
def test_a_well_formed_tracestate_is_kept(given, kept):
    assert state_kept(given) == kept


@pytest.mark.parametrize(
    "given",
    [
        "a",
        "=1",
        "a=",
        "A=1",
        "a=1,a=2",
        "a=1=2",
        "a=é",
        "a=1\r\nX-Evil: 1",
        "_a=1",
        "k" * 257 + "=1",
        "a=" + "v" * 257,
        ",".join(f"k{n}=v" for n in range(33)),
    ],
)
def test_a_malformed_tracestate_is_left_out_and_the_traceparent_stays(given):
    assert context_of({"traceparent": PARENT, "tracestate": given}) == {"traceparent": PARENT}


def test_of_a_tracestate_that_is_too_long_long_members_go_first_and_then_the_last():
    small = [f"k{n}={'v' * 50}" for n in range(12)]
    assert state_kept(",".join(["big=" + "v" * 200, *small[:9]])) == ",".join(small[:9])
    kept = state_kept(",".join(small)).split(",")
    assert kept == small[: len(kept)]
    assert len(kept) == TRACESTATE_BYTES_MAX // (len(small[0]) + 1)


@given(st.text(max_size=80), st.text(max_size=80))
def test_whatever_is_kept_can_stand_in_a_header(parent, state):
    for value in context_of({"traceparent": parent, "tracestate": state}).values():
        assert value.isascii()
        assert value.isprintable()
    kept = state_kept(state)
    assert not kept or (kept.isascii() and kept.isprintable() and state_kept(kept) == kept)


# ---------------------------------------------------------------------- admission


def test_a_context_is_admitted_with_the_other_properties_and_without_the_delay():
    given = {"a": "1", "traceparent": PARENT, "tracestate": STATE, "TIMER_DELAY_MS": "5000"}
    assert admitted(given) == {"a": "1", "traceparent": PARENT, "tracestate": STATE}
    assert "TIMER_DELAY_MS" in given


@pytest.mark.parametrize("parent", ["nonsense", f"ff-{TRACE}-{SPAN}-01", ""])
def test_a_malformed_context_is_left_out_and_the_message_stays(parent):
    assert admitted({"a": "1", "traceparent": parent, "tracestate": STATE}) == {"a": "1"}


def test_a_context_without_room_is_left_out_and_the_message_stays():
    other = {"a": "1", "b": "2"}
    context = {"traceparent": PARENT, "tracestate": STATE}
    size_bytes = sum(len(name) + len(value) for name, value in (other | context).items())
    assert admitted(other | context, properties_max=4) == other | context
    assert admitted(other | context, properties_max=3) == other
    assert admitted(other | context, properties_bytes_max=size_bytes) == other | context
    assert admitted(other | context, properties_bytes_max=size_bytes - 1) == other


def test_other_properties_beyond_the_limit_are_refused_with_or_without_a_context():
    for context in ({}, {"traceparent": PARENT}):
        with pytest.raises(AdmissionError) as caught:
            admitted({"a": "1", "b": "2", **context}, properties_max=1)
        assert caught.value.code == "too_many_properties"


def test_a_property_tracestate_without_traceparent_is_carried_as_any_other():
    assert admitted({"tracestate": "what you like"}) == {"tracestate": "what you like"}


def test_the_same_message_of_another_span_is_the_same_message_under_its_key():
    first = Outgoing("orders", b"x", {"a": "1", "traceparent": PARENT, "tracestate": STATE})
    again = Outgoing("orders", b"x", {"a": "1", "traceparent": PARENT.replace("00f0", "00f1")})
    assert content_of(first) == content_of(again) == content_of(Outgoing("orders", b"x", {"a": "1"}))
    assert without_context(first.properties) == {"a": "1"}
