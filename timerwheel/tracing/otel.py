"""OpenTelemetry spans of sends and deliveries. Needs the extra `otel`.

    send <topic>      producer: a child of the sender's span; one for all messages of a call with one context
    deliver <topic>   consumer: begins a trace that links to the sender's, since years may lie between them.
                      A receive of a worker, an attempt of a push, a call of a task or its callback

1. A message without context, or of a trace that is not recorded, costs a check of its properties and no span.
2. Spans hold names, ids, sizes and times: no bodies, no keys, no properties.
3. A collector that is slow or unreachable costs spans, never messages: they wait in a bounded queue, which a
   thread of OpenTelemetry empties.

The destination of spans, and everything else that OpenTelemetry decides, is read from its standard variables
(`OTEL_...`). Belongs to the event loop.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from timerwheel.clock import Clock
from timerwheel.model.messages import Delivery, MessageView, Outgoing, Receipt
from timerwheel.model.trace_context import TRACEPARENT, TRACESTATE, context_of, is_sampled
from timerwheel.push.dispatcher import Calls
from timerwheel.push.endpoint import Reply
from timerwheel.push.flight import Flight
from timerwheel.push.outcome import Outcome
from timerwheel.push.subscription import Subscription
from timerwheel.push.tasks.task import GROUP
from timerwheel.push.traces import Store
from timerwheel.version import version

CLOSE_MS_MAX = 3_000
BREATHE_SPANS = 10  # less than a millisecond of work
NAME = "timerwheel"

_propagator = TraceContextTextMapPropagator()


class OtelTraces:
    """Spans through one processor; see `timerwheel.push.traces.Traces`."""

    def __init__(self, processor: SpanProcessor, clock: Clock) -> None:
        detected = OTELResourceDetector().detect().attributes
        ours = {SERVICE_NAME: NAME, SERVICE_VERSION: version()}
        # Not at exit: an unreachable collector would keep the process from ending.
        self._provider = TracerProvider(
            resource=Resource.create({**ours, **detected}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(NAME)
        self._clock = clock

    async def send(self, messages: Sequence[Outgoing], store: Store) -> list[Receipt]:
        """Store messages, in a span for each recorded context among them."""
        begun = await self._begin_sends(messages)
        try:
            receipts = await store(messages)
            for span, places in begun:
                if len(places) == 1:
                    span.set_attribute("messaging.message.id", receipts[places[0]].id)
        except Exception as error:
            for span, _ in begun:
                _fail(span, str(getattr(error, "code", type(error).__name__)))
            raise
        else:
            return receipts
        finally:
            for span, _ in begun:
                span.end()

    async def _begin_sends(self, messages: Sequence[Outgoing]) -> list[tuple[Span, list[int]]]:
        """Return a span for each recorded context, with the indexes of its messages."""
        places: dict[tuple[str, str | None], list[int]] = {}
        for place, message in enumerate(messages):
            parent = message.properties.get(TRACEPARENT)
            if parent is not None:
                places.setdefault((parent, message.properties.get(TRACESTATE)), []).append(place)
        begun: list[tuple[Span, list[int]]] = []
        for looked_at, found in enumerate(places.values(), start=1):
            if is_sampled(messages[found[0]].properties):
                begun.append((self._begin_send([messages[place] for place in found]), found))
            await self._breathe(looked_at)
        return begun

    def _begin_send(self, messages: Sequence[Outgoing]) -> Span:
        attributes = _attributes("send", "send")
        name = "send"
        topics = {message.topic for message in messages}
        if len(topics) == 1:
            [topic] = topics
            name = f"send {topic}"
            attributes["messaging.destination.name"] = topic
        if len(messages) == 1:
            attributes["messaging.message.body.size"] = len(messages[0].body)
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        parent = _sender(messages[0].properties)
        return self._tracer.start_span(name, parent, SpanKind.PRODUCER, attributes)

    async def leased(self, deliveries: Iterable[Delivery], group: str) -> None:
        """Make spans for messages that a worker is about to receive."""
        made = 0
        for delivery in deliveries:
            span = self.begin_delivery(delivery.message, group, "receive")
            if span is not None:
                span.set_attribute("timerwheel.attempt", delivery.attempt)
                span.end()
                made += 1
                await self._breathe(made)

    def calls(self, calls: Calls) -> Calls:
        """Wrap the calls of push, to trace them."""
        return _TracedCalls(calls, self)

    def begin_delivery(self, message: MessageView, group: str, kind: str) -> Span | None:
        """Return a span for one delivery, None if its trace is not recorded; `kind` is receive or process."""
        properties = message.properties
        if not is_sampled(properties):
            return None
        attributes = _attributes("deliver", kind) | {
            "messaging.destination.name": message.topic,
            "messaging.destination.partition.id": str(message.queue),
            "messaging.consumer.group.name": group,
            "messaging.message.id": message.id,
            "messaging.message.body.size": len(message.body),
            "timerwheel.due_ms": message.due_ms,
        }
        if message.lateness_ms is not None:
            attributes["timerwheel.lateness_ms"] = message.lateness_ms
        sender = Link(get_current_span(_sender(properties)).get_span_context())
        name = f"deliver {message.topic}"
        return self._tracer.start_span(name, Context(), SpanKind.CONSUMER, attributes, [sender])

    async def call(self, message: MessageView, attempt: int, make: Callable[[], Awaitable[Reply]]) -> Reply:
        """Make a call of a task in a span from the call to the answer, unless its trace is not recorded."""
        span = self.begin_delivery(message, GROUP, "process")
        if span is None:
            return await make()
        span.set_attribute("timerwheel.attempt", attempt)
        try:
            reply = await make()
            _note(span, reply.outcome)
            return reply
        finally:
            span.end()

    async def _breathe(self, made: int) -> None:
        """Yield between spans: thousands of them must not delay a due message."""
        if made % BREATHE_SPANS == 0:
            await self._clock.breathe()

    async def close(self) -> None:
        """Export what was made, for CLOSE_MS_MAX at most; the thread for it keeps no process alive."""
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()

        def close() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # nobody waits any more, and the loop is closed
                loop.call_soon_threadsafe(_resolve, closed)

        threading.Thread(target=close, name="traces", daemon=True).start()
        await self._clock.wait_for(closed, CLOSE_MS_MAX)


class _TracedCalls:
    """Attempts of push, each in a span from the call to the answer."""

    def __init__(self, calls: Calls, traces: OtelTraces) -> None:
        self._calls = calls
        self._traces = traces

    async def attempt(
        self, subscription: Subscription, message: MessageView, number: int = 1, flight: Flight | None = None
    ) -> Outcome:
        """Deliver once."""
        span = self._traces.begin_delivery(message, subscription.group, "process")
        if span is None:
            return await self._calls.attempt(subscription, message, number, flight)
        span.set_attribute("timerwheel.subscription", subscription.id)
        try:
            outcome = await self._calls.attempt(subscription, message, number, flight)
            _note(span, outcome)
            return outcome
        finally:
            span.end()


def to_collector(clock: Clock) -> OtelTraces:
    """Spans that go to an OTLP collector by HTTP, in batches."""
    return OtelTraces(BatchSpanProcessor(OTLPSpanExporter()), clock)


def _attributes(operation: str, kind: str) -> dict[str, str | int]:
    return {
        "messaging.system": NAME,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }


def _sender(properties: Mapping[str, str]) -> Context:
    return _propagator.extract(context_of(properties), Context())


def _note(span: Span, outcome: Outcome) -> None:
    """Note what came of a request to an endpoint."""
    if outcome.status is not None:
        span.set_attribute("http.response.status_code", outcome.status)
    if not outcome.is_delivered:
        _fail(span, str(outcome.status or outcome.kind), outcome.reason)


def _fail(span: Span, kind: str, detail: str | None = None) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, detail or kind))


def _resolve(closed: asyncio.Future[None]) -> None:
    if not closed.done():
        closed.set_result(None)
