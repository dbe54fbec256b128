"""Errors about unknown fields name the field that may be meant."""

import pytest

from timerwheel.api.http.field_hints import OTHER_NAMES, with_hint
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.groups import Receive
from timerwheel.wire.messages import NewMessage
from timerwheel.wire.schedules import NewSchedule
from timerwheel.wire.tasks import NewTask


@pytest.mark.parametrize(
    ("name", "kind", "meant"),
    [
        ("wait", Receive, "wait_ms"),
        ("visibility_timeout", Receive, "invisible_ms"),
        ("timezone", NewSchedule, "zone"),
        ("delai_ms", NewMessage, "delay_ms"),
        ("notBefore", NewTask, "deliver_at"),
        ("max_attempt", NewTask, "max_attempts"),
    ],
)
def test_the_field_that_may_be_meant_is_named(name, kind, meant):
    detail = f"Object contains unknown field `{name}`"
    assert with_hint(detail, kind) == f"{detail}; did you mean `{meant}`?"
    in_array = f"{detail} - at `$[...]`"
    assert with_hint(in_array, kind) == f"{in_array}; did you mean `{meant}`?"


def test_without_a_name_that_is_close_all_are_listed():
    found = with_hint("Object contains unknown field `xyzzy`", NewTask)
    assert found.startswith("Object contains unknown field `xyzzy`; it has delay_ms, ")


def test_where_nothing_may_be_given_it_says_so():
    found = with_hint("Object contains unknown field `x`", NoQuery)
    assert found == "Object contains unknown field `x`; it has none"


def test_a_number_for_a_length_is_answered_with_how_to_write_it():
    detail = "Expected `str`, got `int` - at `$.delay`"
    assert with_hint(detail, NewMessage) == f'{detail}; write "5s", or give milliseconds as delay_ms'


@pytest.mark.parametrize(
    ("detail", "kind", "words"),
    [
        ("Invalid enum value 'get' - at `$.method`", NewTask, "DELETE, GET, HEAD, PATCH, POST or PUT"),
        ("Invalid enum value 'never' - at `$[...].on_duplicate`", NewMessage, "replace or return"),
        ("Invalid enum value 'none' - at `$.missed`", NewSchedule, "all, once or skip"),
    ],
)
def test_a_word_that_is_none_of_a_few_is_answered_with_these(detail, kind, words):
    found = with_hint(detail, kind)
    *others, last = found.removeprefix(f"{detail}; give ").replace(" or ", ", ").split(", ")
    *wanted, wanted_last = words.replace(" or ", ", ").split(", ")
    assert sorted([*others, last]) == sorted([*wanted, wanted_last])


@pytest.mark.parametrize(
    "detail",
    [
        "Expected `int`, got `str` - at `$.max`",
        "Object contains unknown field `wait` - at `$.backoff`",
        "Object contains unknown field `" + "x" * 1_000 + "`",
    ],
)
def test_other_errors_stay_as_they_are(detail):
    assert with_hint(detail, Receive) == detail


def test_names_of_other_services_stand_for_fields_that_there_are():
    known = {
        one for kind in (NewMessage, NewTask, NewSchedule, Receive) for one in kind.__struct_encode_fields__
    }
    assert known >= set(OTHER_NAMES.values())
    assert not known & OTHER_NAMES.keys()
