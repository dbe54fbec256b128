"""Spans of the service, and what is loaded for them."""

import asyncio
import sys
import threading

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.harness.clock import ManualClock
from tests.harness.spans import PARENT, SPAN, STATE, TRACE, UNSAMPLED, Kept, place
from tests.unit.project.test_imports import modules_after_importing
from timerwheel.clock import SystemClock
from timerwheel.errors import NotReadyError, SettingsError
from timerwheel.model.messages import Delivery, MessageView, Outgoing, Receipt, State
from timerwheel.push.outcome import Outcome
from timerwheel.push.subscription import Subscription
from timerwheel.tracing.collector import open_traces
from timerwheel.tracing.otel import CLOSE_MS_MAX, OtelTraces

OTHER = PARENT.replace(SPAN, "00000000000000aa")
SUBSCRIPTION = Subscription(id="s-1", topic="orders", url="http://a/", secrets=["whsec_x"])


@pytest.fixture
def kept():
    return Kept(ManualClock())


def outgoing(parent: str | None = None, topic: str = "orders", body: bytes = b"body") -> Outgoing:
    return Outgoing(topic, body, {} if parent is None else {"traceparent": parent, "tracestate": STATE})


async def store(messages) -> list[Receipt]:
    return [Receipt(f"id-{place}", one.topic, 0, State.DELIVERED) for place, one in enumerate(messages)]


def view(parent: str | None) -> MessageView:
    properties = {} if parent is None else {"traceparent": parent, "tracestate": STATE}
    return MessageView("m-1", "orders", 3, State.DELIVERED, 1_000, 0, 0, properties, b"body", 1_007)


def delivery(parent: str | None, attempt: int = 1) -> Delivery:
    return Delivery(view(parent), "receipt", attempt, 0)


class Answering:
    """A receiver of pushes with one answer."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    async def attempt(self, *_: object) -> Outcome:
        return self._outcome


# ---------------------------------------------------------------------- send


async def test_a_send_is_a_child_of_its_senders_span(kept):
    [receipt] = await kept.traces.send([outgoing(PARENT)], store)
    [span] = kept.all()
    assert receipt.id == "id-0"
    assert (span.name, span.kind) == ("send orders", SpanKind.PRODUCER)
    assert place(span.parent) == PARENT
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.context.trace_state.to_header() == STATE
    assert dict(span.attributes) == {
        "messaging.system": "timerwheel",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": "id-0",
        "messaging.message.body.size": 4,
    }


@pytest.mark.parametrize("parent", [None, UNSAMPLED, "nonsense"])
async def test_what_nobody_records_makes_no_span(kept, parent):
    assert len(await kept.traces.send([outgoing(parent)] * 2, store)) == 2
    await kept.traces.leased([delivery(parent)], "closers")
    outcome = Outcome("delivered", "HTTP 200", 200)
    assert await kept.traces.calls(Answering(outcome)).attempt(SUBSCRIPTION, view(parent)) == outcome
    assert kept.all() == ()


async def test_an_array_has_one_span_for_each_context(kept):
    array = [outgoing(PARENT), outgoing(), outgoing(OTHER, "tickets"), outgoing(PARENT, "tickets")]
    receipts = await kept.traces.send(array, store)
    assert [receipt.id for receipt in receipts] == ["id-0", "id-1", "id-2", "id-3"]
    both, one = kept.all()
    assert (both.name, place(both.parent)) == ("send", PARENT)
    assert both.attributes["messaging.batch.message_count"] == 2
    assert "messaging.destination.name" not in both.attributes
    assert (one.name, place(one.parent)) == ("send tickets", OTHER)
    assert one.attributes["messaging.message.id"] == "id-2"


async def test_a_send_that_fails_says_why_and_fails_as_before(kept):
    async def refuse(_) -> list[Receipt]:
        raise NotReadyError("the service is stopping")

    with pytest.raises(NotReadyError):
        await kept.traces.send([outgoing(PARENT)], refuse)
    [span] = kept.all()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "not_ready"


# ---------------------------------------------------------------------- deliver


async def test_a_delivery_begins_a_trace_that_links_to_the_senders_span(kept):
    await kept.traces.leased([delivery(PARENT, attempt=2), delivery(None)], "closers")
    [span] = kept.all()
    assert (span.name, span.kind, span.parent) == ("deliver orders", SpanKind.CONSUMER, None)
    assert f"{span.context.trace_id:032x}" != TRACE
    [link] = span.links
    assert place(link.context) == PARENT
    assert link.context.trace_state.to_header() == STATE
    assert dict(span.attributes) == {
        "messaging.system": "timerwheel",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "closers",
        "messaging.message.id": "m-1",
        "messaging.message.body.size": 4,
        "timerwheel.due_ms": 1_000,
        "timerwheel.lateness_ms": 7,
        "timerwheel.attempt": 2,
    }


@pytest.mark.parametrize(
    ("outcome", "status", "error"),
    [
        (Outcome("delivered", "HTTP 204", 204), 204, None),
        (Outcome("failed", "HTTP 500", 500), 500, "500"),
        (Outcome("gone", "HTTP 410", 410), 410, "410"),
        (Outcome("failed", "no connection"), None, "failed"),
    ],
)
async def test_a_push_is_a_span_from_call_to_answer(kept, outcome, status, error):
    assert await kept.traces.calls(Answering(outcome)).attempt(SUBSCRIPTION, view(PARENT)) == outcome
    [span] = kept.all()
    assert (span.name, [place(link.context) for link in span.links]) == ("deliver orders", [PARENT])
    assert span.attributes["messaging.operation.type"] == "process"
    assert span.attributes["timerwheel.subscription"] == "s-1"
    assert span.attributes.get("http.response.status_code") == status
    assert span.attributes.get("error.type") == error
    assert span.status.description == (outcome.reason if error else None)


async def test_spans_by_the_thousand_let_others_run(kept):
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await kept.traces.leased([delivery(PARENT)] * 1_000, "closers")
    counting.cancel()
    await asyncio.gather(counting, return_exceptions=True)
    assert turns >= 20
    assert len(kept.all()) == 1_000


# ---------------------------------------------------------------------- opening and closing


async def test_the_environment_names_the_service_and_else_it_has_its_own_name(monkeypatch):
    named = await resource_of_a_span()
    assert named["service.name"] == "timerwheel"
    assert named["telemetry.sdk.name"] == "opentelemetry"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "reminders")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    told = await resource_of_a_span()
    assert (told["service.name"], told["deployment.environment.name"]) == ("reminders", "test")


async def resource_of_a_span() -> dict[str, object]:
    kept = Kept(ManualClock())
    await kept.traces.send([outgoing(PARENT)], store)
    return dict(kept.all()[0].resource.attributes)


async def test_what_was_made_is_passed_on_at_the_end():
    exporter = InMemorySpanExporter()
    traces = OtelTraces(BatchSpanProcessor(exporter), SystemClock())
    await traces.send([outgoing(PARENT)], store)
    await traces.close()
    assert [span.name for span in exporter.get_finished_spans()] == ["send orders"]


class Stuck(SpanProcessor):
    """Cannot pass on what it has."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def shutdown(self) -> None:
        self.free.wait()


async def test_a_collector_that_is_away_holds_up_the_end_for_a_bounded_time():
    clock, stuck = ManualClock(), Stuck()
    closing = asyncio.create_task(OtelTraces(stuck, clock).close())
    try:
        for _ in range(10):
            await asyncio.sleep(0)
        clock.advance(CLOSE_MS_MAX - 1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        clock.advance(1)
        await closing
    finally:
        stuck.free.set()


def test_off_opens_nothing():
    assert open_traces("off", ManualClock()) is None


def test_without_the_extra_the_setting_is_refused_and_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "timerwheel.tracing.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsError, match=r"traces: .*pip install 'timerwheel\[otel\]'"):
        open_traces("otlp", ManualClock())


def test_unless_it_is_asked_for_nothing_of_opentelemetry_is_loaded():
    assert "opentelemetry" not in modules_after_importing(
        "timerwheel.api.server, timerwheel.client, timerwheel.cli.main"
    )
