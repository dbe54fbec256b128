"""Reads request bodies: whole, or as JSON of one of the wire's types."""

from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from aiohttp import hdrs, web

from timerwheel.api.http import budget
from timerwheel.api.http.field_hints import with_hint
from timerwheel.api.http.json_steps import DIRECT_BYTES, Text, check_values
from timerwheel.api.http.json_value import exact_number
from timerwheel.api.http.problems import RequestError
from timerwheel.clock import SystemClock
from timerwheel.wire.arrow import MEDIA_TYPE

JSON_BYTES_MAX = 4 << 20
"""Limit on the JSON of a call that does not take an array of messages."""
JSON_VALUES_MAX = 20_000
JSON_BODY_VALUES_MAX = 100_000
"""Limit on the values in the JSON of a message whose body is JSON, if that has more than DIRECT_BYTES."""

_KEPT: web.RequestKey[Text] = web.RequestKey("body")
_breathe = SystemClock().breathe

T = TypeVar("T", bound=msgspec.Struct)
JsonForm = Literal["json", "lines"]

# curl -d labels its data a form, although it is JSON.
FORMS: dict[str, JsonForm] = {
    "": "json",
    "application/json": "json",
    "application/x-www-form-urlencoded": "json",
    "application/x-ndjson": "lines",
}
UTF8 = frozenset({"", "utf-8", "utf8", "us-ascii"})


def form_of_messages(request: web.Request) -> JsonForm | Literal["arrow"]:
    """Return the form of a body of messages, as `json_form` does, and Arrow besides."""
    given = request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0]
    if given.strip().lower() != MEDIA_TYPE:
        return json_form(request)
    refuse_encoding(request)
    return "arrow"


def json_form(request: web.Request) -> JsonForm:
    """Return the form of the body; raises `RequestError` for an unsupported type or encoding."""
    refuse_encoding(request)
    given = request.headers.get(hdrs.CONTENT_TYPE, "")
    form = FORMS.get(given)
    if form is not None:
        return form
    kind, _, parameters = given.partition(";")
    form = FORMS.get(kind.strip().lower())
    if form is None:
        raise RequestError(
            "unsupported_media_type",
            (
                f"content type {kind.strip()!r} is not supported; send application/json or "
                "application/x-ndjson"
            ),
        )
    for one in parameters.split(";"):
        name, _, value = one.partition("=")
        charset = value.strip().strip('"')
        if name.strip().lower() == "charset" and charset.lower() not in UTF8:
            raise RequestError(
                "unsupported_media_type", f"charset {charset!r} is not supported; send JSON as UTF-8"
            )
    return form


def refuse_encoding(request: web.Request) -> None:
    """Refuse a compressed body, which would otherwise be stored or parsed compressed."""
    encoding = request.headers.get(hdrs.CONTENT_ENCODING)
    if encoding is not None and encoding.lower() != "identity":
        raise RequestError(
            "unsupported_encoding",
            f"content encoding {encoding!r} is not supported; send the body without one",
        )


async def whole(request: web.Request, *, message_bytes_max: int | None = None, bytes_max: int = 0) -> Text:
    """Read the whole body; HTTPRequestEntityTooLarge if it is over `bytes_max` or the limit of requests.

    With `message_bytes_max` the body is that of a message: raises `RequestError` body_too_large. A body that
    is too large is refused without reading it. A body over DIRECT_BYTES is not copied: it is a bytearray.
    """
    kept: Text | None = request.get(_KEPT)
    if kept is not None:
        return kept
    limit = _Limit(min(bytes_max or request.client_max_size, request.client_max_size), message_bytes_max)
    limit.check(request.content_length or 0)
    content = request.content
    charge = request[budget.KEY]
    if content.is_eof():  # most bodies arrive with their head
        body: Text = content.read_nowait()
        limit.check(len(body))
        charge.take(len(body))
    else:
        body = bytearray()
        while not content.is_eof():
            part = await content.readany()
            limit.check(len(body) + len(part))
            charge.take(len(part))
            body += part
        body = body if len(body) > DIRECT_BYTES else bytes(body)
    request[_KEPT] = body
    return body


class _Limit(NamedTuple):
    request_bytes_max: int
    message_bytes_max: int | None

    def check(self, size_bytes: int) -> None:
        """Raise the error for a body that is too large."""
        if size_bytes > self.request_bytes_max:
            raise web.HTTPRequestEntityTooLarge(self.request_bytes_max, size_bytes)
        if self.message_bytes_max is not None and size_bytes > self.message_bytes_max:
            detail = f"the body is larger than body_size_max = {self.message_bytes_max} bytes"
            raise RequestError("body_too_large", detail)


async def read_one(request: web.Request, bytes_max: int = JSON_BYTES_MAX) -> Text:
    """Read a body that must be one JSON object; raises `RequestError` for lines."""
    if json_form(request) == "lines":
        raise RequestError("unsupported_media_type", "send one JSON object")
    return await whole(request, bytes_max=bytes_max)


async def read(
    request: web.Request,
    kind: type[T],
    *,
    may_be_empty: bool = False,
    values_max: int = JSON_VALUES_MAX,
) -> T:
    """Read the body as `kind`; with `may_be_empty`, an empty one is `{}`. Raises `RequestError`."""
    body: Text = b"" if may_be_empty and not request.can_read_body else await read_one(request)
    if may_be_empty and not body.strip():
        body = b"{}"
    return await decode(body, kind, values_max)


async def decode(body: Text, kind: type[T], values_max: int = JSON_VALUES_MAX) -> T:
    """Decode JSON as `kind`; raises `RequestError`, too_many_values before any value is created."""
    if len(body) > DIRECT_BYTES:
        await check_values(body, values_max, _breathe)
    try:
        found: T = _decoder(kind).decode(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body, kind) from None
    return found


def unreadable(error: Exception, body: Text, kind: Any) -> RequestError:  # noqa: ANN401 - a type
    """Return why JSON could not be decoded as `kind`, or as an array of them, worded for the client."""
    if isinstance(error, msgspec.ValidationError):
        return RequestError("invalid_field", with_hint(str(error), kind))
    if isinstance(error, RecursionError):
        return RequestError("malformed_json", "the JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return RequestError("malformed_json", f"a string is not valid UTF-8: {error.reason}")
    if not body.strip():
        return RequestError("malformed_json", "the request has no body")
    return RequestError("malformed_json", str(error))


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind, float_hook=exact_number)
