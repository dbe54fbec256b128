"""The shapes of the API: what is left out, and what a client of another version may read."""

import msgspec
import pytest

from tests.harness.route_table import route_table
from timerwheel.api.http import openapi
from timerwheel.model.messages import MessageView, State
from timerwheel.wire.fields import Answer
from timerwheel.wire.messages import Message
from timerwheel.wire.schedules import Schedule


def view(**more):
    return MessageView("id", "orders", 0, State.SCHEDULED, 5, 0, 1, more.pop("properties", {}), **more)


def test_fields_that_do_not_apply_are_left_out():
    found = msgspec.to_builtins(Message.of(view(body=b"pay")))
    assert found == {
        "id": "id",
        "topic": "orders",
        "queue": 0,
        "state": "scheduled",
        "due_ms": 5,
        "enqueue_ms": 1,
        "properties": {},
        "body": "pay",
    }


@pytest.mark.parametrize("body", [b"", b"pay", "grün".encode(), b"\xff\x00"])
def test_a_client_reads_the_body_that_the_server_wrote(body):
    message = Message.of(view(body=body, properties={"TAGS": "t", "KEYS": "a b"}))
    again = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    assert again == message
    assert (again.body, again.tags, again.keys, again.offset) == (body, "t", ["a", "b"], None)


def test_a_client_reads_answers_with_fields_that_it_does_not_know(tmp_path):
    answers = [kind for call in route_table(tmp_path) for kind in (call.answer, *_parts(call.answer))]
    structs = {kind for kind in answers if getattr(kind, "__struct_config__", None)}
    assert structs >= {Message, Schedule}
    assert not {kind for kind in structs if kind.__struct_config__.forbid_unknown_fields}


def _parts(answer):
    return answer if isinstance(answer, tuple) else ()


def kinds(kind=Answer):
    return [one for child in kind.__subclasses__() for one in (child, *kinds(child))]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_the_document_says_that_such_a_field_is_never_null(kind, tmp_path):
    schemas = openapi.document(route_table(tmp_path))["components"]["schemas"]
    if kind.__name__ not in schemas:
        return
    optional = {field.encode_name for field in msgspec.structs.fields(kind) if not field.required}
    assert optional
    for name in optional:
        assert "null" not in str(schemas[kind.__name__]["properties"][name])
