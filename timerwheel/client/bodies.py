"""Bodies of messages: text, bytes, and objects that become JSON.

Objects are msgspec Structs, dataclasses and pydantic models. Pydantic is never imported here: a model is
known by its methods.
"""

import base64
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar, Protocol

import msgspec


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Model(Protocol):
    """A pydantic model."""

    def model_dump_json(self) -> str:
        """Return it as JSON."""


Body = str | bytes | msgspec.Struct | _Dataclass | _Model
"""What a body may be; an object is sent as JSON."""


def body_content(body: Body) -> dict[str, object]:
    """Return a body as text, as base64 if it is bytes, as JSON if it is an object; an empty one is left out.

    Raises `TypeError` for anything else: a dict, list or number is a value for `json`.
    """
    if isinstance(body, str):
        return {"body": body} if body else {}
    if isinstance(body, (bytes, bytearray, memoryview)):
        return {"body_base64": base64.b64encode(body).decode()} if body else {}
    if isinstance(body, type) or not _is_object(body):
        kind = type(body).__name__
        raise TypeError(
            f"the body is a {kind}: give str, bytes or a model, and other JSON values as json=..."
        )
    return {"json": _json(body)}


def content_of(draft: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields for the `body` or the `json` of a draft; raises `TypeError` for both, or no JSON."""
    if "json" not in draft:
        return body_content(draft.get("body", ""))
    if draft.get("body"):
        raise TypeError("a message has either a body or json, not both")
    return {"json": _json(draft["json"])}


def _is_object(value: object) -> bool:
    return isinstance(value, msgspec.Struct) or is_dataclass(value) or _is_model(value)


def _is_model(value: object) -> bool:
    return hasattr(type(value), "model_dump_json")


def _json(value: object) -> msgspec.Raw:
    if isinstance(value, msgspec.Raw):
        return value
    if _is_model(value):
        return msgspec.Raw(value.model_dump_json().encode())  # type: ignore[attr-defined]
    return msgspec.Raw(msgspec.json.encode(value, enc_hook=_plain))


def _plain(value: Any) -> object:  # noqa: ANN401 - whatever is within a value
    """Return a pydantic model within another value as plain values."""
    if _is_model(value):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not a JSON value")
