"""Bodies of requests: how they are to be read, and JSON as one of the wire's types."""

from functools import cache
from typing import Literal, TypeVar

import msgspec
from aiohttp import hdrs, web

from api.problems import RequestError

T = TypeVar("T", bound=msgspec.Struct)
JsonForm = Literal["json", "lines"]

# curl -d names its data a form; whoever types it means JSON.
FORMS: dict[str, JsonForm] = {
    "": "json",
    "application/json": "json",
    "application/x-www-form-urlencoded": "json",
    "application/x-ndjson": "lines",
}
UTF8 = frozenset({"", "utf-8", "utf8", "us-ascii"})


def json_form(request: web.Request) -> JsonForm:
    """How the body is to be read; raises `RequestError` for a type or encoding that is not taken."""
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
            f"{kind.strip()!r}: send application/json or application/x-ndjson",
        )
    _, _, charset = parameters.partition("charset=")
    if charset.strip().strip('"').lower() not in UTF8:
        raise RequestError("unsupported_media_type", f"charset {charset!r}: JSON is UTF-8")
    return form


def refuse_encoding(request: web.Request) -> None:
    """A compressed body would be stored or parsed as it is, so it is not taken."""
    encoding = request.headers.get(hdrs.CONTENT_ENCODING)
    if encoding is not None and encoding.lower() != "identity":
        raise RequestError("unsupported_encoding", f"{encoding!r}: send the body as it is")


async def whole(request: web.Request) -> bytes:
    """A body that nobody has read yet; HTTPRequestEntityTooLarge, as of `request.read`.

    Most have arrived with their head, and are taken without the steps of a loop that waits for more.
    """
    content = request.content
    if not content.is_eof():
        return await request.read()
    body = content.read_nowait()
    if len(body) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, len(body))
    return body


async def read_one(request: web.Request) -> bytes:
    """A body that is to be one JSON object; raises `RequestError` for lines and for what is no JSON."""
    if json_form(request) == "lines":
        raise RequestError("unsupported_media_type", "send one JSON object")
    return await request.read()


async def read(request: web.Request, kind: type[T], *, may_be_empty: bool = False) -> T:
    """The body as `kind`; one that is left out is `{}` if it may be. Raises `RequestError`."""
    form_body = b"" if may_be_empty and not request.can_read_body else await read_one(request)
    if may_be_empty and not form_body.strip():
        form_body = b"{}"
    return decode(form_body, kind)


def decode(body: bytes, kind: type[T]) -> T:
    """JSON as `kind`; raises `RequestError`."""
    try:
        found: T = _decoder(kind).decode(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body) from None
    return found


def unreadable(error: Exception, body: bytes) -> RequestError:
    """Why JSON could not be decoded, as the client should read it."""
    if isinstance(error, msgspec.ValidationError):
        return RequestError("invalid_field", str(error))
    if isinstance(error, RecursionError):
        return RequestError("malformed_json", "nested too deep")
    if isinstance(error, UnicodeDecodeError):
        return RequestError("malformed_json", f"a string is not UTF-8: {error.reason}")
    if not body.strip():
        return RequestError("malformed_json", "the request has no body")
    return RequestError("malformed_json", str(error))


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind)
