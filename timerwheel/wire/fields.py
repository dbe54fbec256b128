"""Fields and bases that many shapes share."""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

T = TypeVar("T")

INT64_MAX = 2**63 - 1
Int64 = Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Json = Annotated[
    Any, Meta(description="Any JSON value: the body is this value as compact JSON", examples=[{"order": 17}])
]
Natural = Annotated[int, Meta(ge=0, le=INT64_MAX)]


def text_or_bytes(body: bytes) -> tuple[str | None, bytes | None]:
    """Split a body for JSON: text if it is UTF-8, else bytes, which become base64."""
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, body


def given(value: T | UnsetType) -> T | None:
    """Return the value of a field, None if it was left out."""
    return None if value is UNSET else value


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of answers with fields that may not apply. Such a field has a default and is left out of the JSON.

    So a field with the default None is never null on the wire, and the OpenAPI document says so.
    """


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No query parameters are taken."""
