"""Tracing in the client: passes on the caller's trace context, and opens a span for each message.

This is for programs that use OpenTelemetry themselves. One that has not imported `opentelemetry.trace` has no
span that could be carried, so nothing of it is imported here before that.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from timerwheel.model.trace_context import context_of
from timerwheel.wire.messages import Message

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

_API = "opentelemetry.trace"


def current_context() -> dict[str, str]:
    """Return the headers of the current span, empty without one."""
    if _API not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - see the module
        TraceContextTextMapPropagator,
    )

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


@contextmanager
def processing(
    message: Message, *, group: str | None = None, provider: "TracerProvider | None" = None
) -> Iterator["Span | None"]:
    """A current span `process <topic>` for the work on a message, in a trace that links to its sender's.

    An exception that ends the block marks the span as failed, and goes on. `provider` is the global one
    unless it is given. Where OpenTelemetry is not installed this does nothing, and there is no span.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415 - see the module
        from opentelemetry.context import Context  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )
    except ImportError:
        yield None
        return
    attributes: dict[str, str | int] = {
        "messaging.system": "timerwheel",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.topic,
        "messaging.message.id": message.id,
        "messaging.message.body.size": len(message.body),
    }
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    sender = TraceContextTextMapPropagator().extract(context_of(message.properties), Context())
    found = trace.get_current_span(sender).get_span_context()
    with trace.get_tracer("timerwheel", tracer_provider=provider).start_as_current_span(
        f"process {message.topic}",
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=[trace.Link(found)] if found.is_valid else None,
    ) as span:
        yield span
