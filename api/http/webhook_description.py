"""The requests that push sends, as OpenAPI's `webhooks` describe them; see `doc/push.md`."""

from typing import Any

from timerwheel.model.trace_context import TRACEPARENT, TRACESTATE

Json = dict[str, Any]

MESSAGE = "message"

_HEADERS = (
    ("webhook-id", True, "The message's id, the same for every attempt"),
    ("webhook-timestamp", True, "Seconds since the epoch, of this attempt"),
    (
        "webhook-signature",
        True,
        "v1, and the base64 HMAC-SHA256 of id.timestamp.body; two in a rotation",
    ),
    (TRACEPARENT, False, "The trace context of the sender, if the message has one"),
    (TRACESTATE, False, "The same"),
    ("ce-specversion", False, "1.0; this and the others of CloudEvents come if the subscription wants them"),
    ("ce-id", False, "The message's id"),
    ("ce-source", False, "/topics/ and the topic"),
    ("ce-type", False, "The property CE_TYPE, else timerwheel.message"),
    ("ce-time", False, "When the message was delivered, RFC 3339"),
    ("ce-subject", False, "The property KEYS"),
)


def webhooks(tag: str) -> Json:
    """One webhook: a message of a subscription."""
    operation: Json = {
        "operationId": "receiveMessage",
        "summary": "A message of a subscription, signed as a Standard Webhook",
        "tags": [tag],
        "parameters": [
            {
                "name": name,
                "in": "header",
                "required": required,
                "description": text,
                "schema": {"type": "string"},
            }
            for name, required, text in _HEADERS
        ],
        "requestBody": {
            "required": True,
            "description": "The message's body byte for byte; the property CONTENT_TYPE is its media type",
            "content": {"application/json": {"schema": {}}, "application/octet-stream": {"schema": {}}},
        },
        "responses": {
            "2XX": {"description": "The message is acknowledged"},
            "410": {"description": "The subscription is disabled until it is resumed; the message waits"},
            "default": {"description": "Failed: the message is retried, after Retry-After if it is given"},
        },
    }
    return {MESSAGE: {"post": operation}}
