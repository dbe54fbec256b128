"""The header Idempotency-Key: a message's deduplication key, where a request is one message.

In draft-ietf-httpapi-idempotency-key-header the value is a quoted string (RFC 9651). Many clients send it
bare, which is accepted too.
"""

import re

import msgspec
from aiohttp import web
from multidict import istr

from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import Handler
from timerwheel.model.messages import Outgoing

HEADER = istr("Idempotency-Key")
REFUSED = "invalid_field"

_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', re.ASCII)
_ESCAPED = re.compile(r'\\(["\\])', re.ASCII)


def key_of(request: web.Request) -> str | None:
    """Return the key in the header, None without one; raises `RequestError` illegal_key, conflicting_key."""
    if HEADER not in request.headers:
        return None
    given = request.headers.getall(HEADER)
    if len(given) > 1:
        raise RequestError("conflicting_key", f"{HEADER} is given more than once")
    text = given[0].strip(" \t")
    if not text.startswith('"'):
        try:
            # aiohttp passes bytes beyond ASCII as surrogate escapes.
            return text.encode(errors="surrogateescape").decode()
        except UnicodeError:
            raise RequestError("illegal_key", f"{HEADER}: {text!r} is not UTF-8") from None
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        raise RequestError("illegal_key", f"{HEADER}: {text!r} is not a quoted string")
    return _ESCAPED.sub(r"\1", quoted[1])


def keyed(message: Outgoing, key: str | None) -> Outgoing:
    """Return the message with the header's key; raises `RequestError` conflicting_key if it has another."""
    if key is None or message.dedup_key == key:
        return message
    if message.dedup_key is not None:
        raise RequestError("conflicting_key", f"{HEADER} and dedup_key differ; give only one")
    # Its delay becomes a property, so the key covers the same content as a key in the body.
    return msgspec.structs.replace(
        message, properties=message.spelled, dedup_key=key, after_ms=None, at_ms=None
    )


def refuse_for_many(request: web.Request) -> None:
    """Refuse a key for an array; raises `RequestError` invalid_field."""
    if HEADER in request.headers:
        raise RequestError(
            REFUSED,
            (f"{HEADER} works only for a single message; in an array, give each message its own dedup_key"),
        )


def refusing(handler: Handler) -> Handler:
    """Wrap a handler that cannot honour a key: with one it raises `RequestError` invalid_field."""

    async def refuse_or_handle(request: web.Request) -> web.StreamResponse:
        if HEADER in request.headers:
            raise RequestError(
                REFUSED, f"{HEADER} works only for sends of a single message; leave it out here"
            )
        return await handler(request)

    return refuse_or_handle
