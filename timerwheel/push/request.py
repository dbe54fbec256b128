"""The headers of a delivery: Standard Webhooks, the sender's trace context, CloudEvents if wanted. Pure."""

import datetime as dt
import re
from urllib.parse import quote

import msgspec

from timerwheel.model.messages import MessageView
from timerwheel.model.trace_context import context_of
from timerwheel.push.signing import signature
from timerwheel.push.subscription import Subscription

USER_AGENT = "timerwheel"
CONTENT_TYPE_PROPERTY = "CONTENT_TYPE"
EVENT_TYPE_PROPERTY = "CE_TYPE"
EVENT_TYPE = "timerwheel.message"
KEYS_PROPERTY = "KEYS"

_JSON, _BYTES = "application/json", "application/octet-stream"
_MEDIA_TYPE = re.compile(r"[!-~]+/[!-~]+(?: ?[!-~]+)*")
_MEDIA_TYPE_CHARACTERS_MAX = 256
_HEADER_CHARACTERS_MAX = 2_048
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# CloudEvents, HTTP binding 3.1.3.2: printable ASCII without space, double quote and percent stays as it is.
_EVENT_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def headers_of(subscription: Subscription, message: MessageView, now_ms: int) -> dict[str, str]:
    """Return the headers of an attempt at `now_ms`; every attempt has the same id, and its own time."""
    timestamp_s = now_ms // 1_000
    headers = {
        "User-Agent": USER_AGENT,
        "Content-Type": content_type(message),
        "Accept-Encoding": "identity",
        "webhook-id": message.id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": signature(subscription.secrets, message.id, timestamp_s, message.body),
        **context_of(message.properties),
    }
    if subscription.cloudevents:
        headers |= _event_headers(message)
    given = {name.lower() for name in subscription.headers}
    return {
        name: value for name, value in headers.items() if name.lower() not in given
    } | subscription.headers


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


def _event_headers(message: MessageView) -> dict[str, str]:
    at_ms = message.due_ms if message.delivered_ms is None else message.delivered_ms
    headers = {
        "ce-specversion": "1.0",
        "ce-id": message.id,
        "ce-source": f"/topics/{quote(message.topic, safe='')}",
        "ce-type": message.properties.get(EVENT_TYPE_PROPERTY) or EVENT_TYPE,
        "ce-time": _rfc3339(at_ms),
    }
    subject = message.properties.get(KEYS_PROPERTY)
    if subject:
        headers["ce-subject"] = subject
    return {name: quote(value, safe=_EVENT_SAFE)[:_HEADER_CHARACTERS_MAX] for name, value in headers.items()}


def _rfc3339(at_ms: int) -> str:
    at = _EPOCH + dt.timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
