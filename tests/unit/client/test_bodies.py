"""What a body may be, how it is sent, and how it is read again."""

import datetime as dt
import sys
from dataclasses import dataclass

import msgspec
import pydantic
import pytest

from timerwheel.client.bodies import body_content, content_of
from timerwheel.model.messages import State
from timerwheel.wire.messages import Message


class Order(msgspec.Struct):
    id: int
    at: dt.datetime


@dataclass
class Point:
    x: int
    y: int


class Customer(pydantic.BaseModel):
    name: str
    since: dt.date


AT = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
OBJECTS = [Order(17, AT), Point(1, 2), Customer(name="Zoe", since=AT.date())]


def message(body: str) -> Message:
    return Message("id", "t", 0, State.DELIVERED, 1_893_456_000_001, 0, {}, body_text=body, delivered_ms=5)


def test_text_goes_as_text_bytes_as_base64_and_nothing_is_left_out():
    assert body_content("é") == {"body": "é"}
    assert body_content(b"\xff") == body_content(memoryview(b"\xff")) == {"body_base64": "/w=="}
    assert body_content("") == body_content(b"") == {}


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_an_object_goes_as_json_and_is_read_as_the_same(value):
    raw = body_content(value)["json"]
    assert content_of({"json": value})["json"] == raw
    assert message(bytes(raw).decode()).as_(type(value)) == value


def test_a_model_within_other_values_goes_as_json_too():
    raw = content_of({"json": {"customers": [Customer(name="Zoe", since=AT.date())], "at": AT}})["json"]
    assert message(bytes(raw).decode()).json() == {
        "customers": [{"name": "Zoe", "since": "2030-01-01"}],
        "at": "2030-01-01T00:00:00Z",
    }


@pytest.mark.parametrize("value", [{"a": 1}, [1], 17, None, Order, object()])
def test_any_other_value_is_refused_with_the_parameter_that_takes_it(value):
    with pytest.raises(TypeError, match="json="):
        body_content(value)


def test_what_is_not_json_is_refused_before_it_is_sent():
    with pytest.raises(TypeError, match="object is not a JSON value"):
        content_of({"json": {"a": object()}})
    with pytest.raises(TypeError, match="not both"):
        content_of({"body": "x", "json": 1})


@pytest.mark.parametrize(("body", "kind"), [("no", Order), ('{"id": "x"}', Order), ("{}", Customer)])
def test_a_body_of_another_shape_is_a_value_error(body, kind):
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec's and pydantic's have no words in common
        message(body).as_(kind)


def test_any_type_of_the_standard_library_may_be_asked_for():
    assert message("[1, 2]").as_(list[int]) == [1, 2]
    assert message('{"x": 1, "y": 2}').as_(dict[str, int]) == {"x": 1, "y": 2}


def test_times_are_aware_datetimes_to_the_millisecond():
    found = message("x")
    assert found.due == AT + dt.timedelta(milliseconds=1)
    assert found.due.tzinfo is dt.UTC
    assert found.delivered == dt.datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=dt.UTC)
    assert found.recalled is None


def test_models_are_known_without_an_import_of_pydantic():
    assert "pydantic" not in vars(sys.modules["timerwheel.client.bodies"])
