"""The requests that push sends, as OpenAPI's `webhooks` describe them; see `doc/push.md`."""

from typing import Any

from timerwheel.model.trace_context import TRACEPARENT, TRACESTATE

Json = dict[str, Any]

MESSAGE = "message"

_HEADERS = (
    ("webhook-id", True, "The message's id, the same for every attempt"),
    ("webhook-timestamp", True, "Time of this attempt, in seconds since the epoch"),
    (
        "webhook-signature",
        True,
        "v1, and the base64 HMAC-SHA256 of id.timestamp.body; two signatures during a rotation",
    ),
    ("timerwheel-topic", True, "The message's topic"),
    ("timerwheel-attempt", True, "Which attempt this is, from 1"),
    ("timerwheel-due", True, "When the message was due, RFC 3339"),
    ("timerwheel-delivered", True, "When it was delivered to its topic, RFC 3339"),
    ("timerwheel-tags", False, "The property TAGS"),
    ("timerwheel-keys", False, "The property KEYS"),
    ("timerwheel-property-{name}", False, "Any other property, its name in lower case"),
    ("timerwheel-properties-left-out", False, "How many properties do not fit into 4,096 bytes of headers"),
    (TRACEPARENT, False, "The sender's trace context, if the message has one"),
    (TRACESTATE, False, "Sent together with traceparent"),
    ("ce-specversion", False, "1.0; CloudEvents headers are sent if the subscription enables them"),
    ("ce-id", False, "The message's id"),
    ("ce-source", False, "/topics/ followed by the topic"),
    ("ce-type", False, "The property CE_TYPE, or timerwheel.message"),
    ("ce-time", False, "Time of delivery, RFC 3339"),
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
            "description": "The message's body, byte for byte; the property CONTENT_TYPE sets its media type",
            "content": {"application/json": {"schema": {}}, "application/octet-stream": {"schema": {}}},
        },
        "responses": {
            "2XX": {"description": "The message is acknowledged"},
            "410": {
                "description": "The subscription is disabled until it is resumed; the group keeps the message"
            },
            "default": {
                "description": "The attempt failed; it is retried, after Retry-After if that is given"
            },
        },
    }
    return {MESSAGE: {"post": operation}}
