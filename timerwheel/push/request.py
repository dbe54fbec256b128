"""The headers of a delivery: Standard Webhooks, what is known of the message, CloudEvents if wanted. Pure."""

import datetime as dt
import re
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from timerwheel.model.messages import MessageView
from timerwheel.model.properties import KEYS, TAGS
from timerwheel.model.trace_context import CONTEXT_PROPERTIES, context_of
from timerwheel.push.signing import signature
from timerwheel.push.subscription import Subscription

USER_AGENT = "timerwheel"
CONTENT_TYPE_PROPERTY = "CONTENT_TYPE"
EVENT_TYPE_PROPERTY = "CE_TYPE"
EVENT_TYPE = "timerwheel.message"
PROPERTY_PREFIX = "timerwheel-property-"
PROPERTY_HEADERS_BYTES_MAX = 4_096
"""Bytes of the headers that carry properties: common servers accept 8 KiB of headers in all."""

_JSON, _BYTES = "application/json", "application/octet-stream"
_MEDIA_TYPE = re.compile(r"[!-~]+/[!-~]+(?: ?[!-~]+)*")
_MEDIA_TYPE_CHARACTERS_MAX = 256
_HEADER_CHARACTERS_MAX = 2_048
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_WITH_OWN_HEADER = CONTEXT_PROPERTIES | {TAGS, KEYS, CONTENT_TYPE_PROPERTY}
_NAME_SAFE = "!#$&'*+^`|"  # what may stand in a header's name beside letters, digits and -._~; but for %
# CloudEvents, HTTP binding 3.1.3.2: printable ASCII without space, double quote and percent stays as it is.
_EVENT_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def headers_of(
    subscription: Subscription, message: MessageView, now_ms: int, attempt: int = 1
) -> dict[str, str]:
    """Return the headers of an attempt at `now_ms`; every attempt has the same id, and its own time."""
    headers = {
        **signed_headers(message, subscription.secrets, now_ms),
        "Content-Type": content_type(message),
        **_message_headers(message, attempt),
        **_property_headers(message),
    }
    if subscription.cloudevents:
        headers |= _event_headers(message)
    return with_own(headers, subscription.headers)


def signed_headers(message: MessageView, secrets: Sequence[str], now_ms: int) -> dict[str, str]:
    """Return the headers of every attempt: who calls, the signature at `now_ms`, the sender's context."""
    timestamp_s = now_ms // 1_000
    return {
        "User-Agent": USER_AGENT,
        "Accept-Encoding": "identity",
        "webhook-id": message.id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": signature(secrets, message.id, timestamp_s, message.body),
        **context_of(message.properties),
    }


def with_own(headers: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """Return headers of the service and those of a subscription or task, which come first."""
    given = {name.lower() for name in own}
    return {name: value for name, value in headers.items() if name.lower() not in given} | own


def content_type(message: MessageView) -> str:
    """Return the property CONTENT_TYPE if it is a media type, else the type that the body suggests."""
    given = message.properties.get(CONTENT_TYPE_PROPERTY, "")
    if len(given) <= _MEDIA_TYPE_CHARACTERS_MAX and _MEDIA_TYPE.fullmatch(given):
        return given
    try:
        msgspec.json.decode(message.body, type=msgspec.Raw)
        message.body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _BYTES
    return _JSON


def _message_headers(message: MessageView, attempt: int) -> dict[str, str]:
    headers = {
        "timerwheel-topic": message.topic,
        "timerwheel-attempt": str(attempt),
        "timerwheel-due": rfc3339(message.due_ms),
        "timerwheel-delivered": rfc3339(_delivered_ms(message)),
        "timerwheel-tags": message.properties.get(TAGS),
        "timerwheel-keys": message.properties.get(KEYS),
    }
    return {name: _as_header(value) for name, value in headers.items() if value}


def _property_headers(message: MessageView) -> dict[str, str]:
    """Return a header for each property that fits, and how many do not."""
    headers: dict[str, str] = {}
    left_bytes, left_out = PROPERTY_HEADERS_BYTES_MAX, 0
    for name, value in message.properties.items():
        if name in _WITH_OWN_HEADER:
            continue
        header = PROPERTY_PREFIX + quote(name.lower(), safe=_NAME_SAFE)
        text = quote(value, safe=_EVENT_SAFE)
        size_bytes = len(header) + len(text)
        if size_bytes > left_bytes or header in headers:
            left_out += 1
        else:
            headers[header] = text
            left_bytes -= size_bytes
    return headers | ({"timerwheel-properties-left-out": str(left_out)} if left_out else {})


def _event_headers(message: MessageView) -> dict[str, str]:
    headers = {
        "ce-specversion": "1.0",
        "ce-id": message.id,
        "ce-source": f"/topics/{quote(message.topic, safe='')}",
        "ce-type": message.properties.get(EVENT_TYPE_PROPERTY) or EVENT_TYPE,
        "ce-time": rfc3339(_delivered_ms(message)),
    }
    subject = message.properties.get(KEYS)
    if subject:
        headers["ce-subject"] = subject
    return {name: _as_header(value) for name, value in headers.items()}


def _as_header(value: str) -> str:
    return quote(value, safe=_EVENT_SAFE)[:_HEADER_CHARACTERS_MAX]


def _delivered_ms(message: MessageView) -> int:
    return message.due_ms if message.delivered_ms is None else message.delivered_ms


def rfc3339(at_ms: int) -> str:
    """Return a time as RFC 3339, UTC, with milliseconds."""
    at = _EPOCH + dt.timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
