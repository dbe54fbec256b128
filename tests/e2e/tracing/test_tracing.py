"""Traces through HTTP and the client, and with the real process to a collector."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, StatusCode
from yarl import URL

from tests.e2e.conftest import Service
from tests.harness.apps import app_of
from tests.harness.arrow_rows import MEDIA_TYPE, stream_of, table_of
from tests.harness.processes import serving
from tests.harness.spans import PARENT, SPAN, STATE, UNSAMPLED, Collector, Kept, place
from timerwheel.client import Client, processing
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine
from timerwheel.model.messages import Outgoing
from timerwheel.settings import Settings
from timerwheel.tracing.otel import BREATHE_SPANS

OTHER = PARENT.replace(SPAN, "00000000000000aa")
WAIT_MS = 20_000
SPINS = 100


@pytest.fixture
def kept():
    return Kept(SystemClock())


@asynccontextmanager
async def tracing(tmp_path, kept: Kept) -> AsyncIterator[Service]:
    engine = await Engine.open(Settings(data=tmp_path / "data", disk_reserve_bytes=0))
    # As the service does it: aiohttp's own server for tests cancels the handler of a client that goes.
    runner = web.AppRunner(app_of(engine, traces=kept.traces))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield Service(engine, URL(f"http://127.0.0.1:{runner.addresses[0][1]}"), session)
    await runner.cleanup()
    await engine.close()


@pytest.fixture
async def traced(tmp_path, kept) -> AsyncIterator[Service]:
    """A service that keeps its spans."""
    async with tracing(tmp_path, kept) as service:
        yield service


@pytest.fixture
async def client(traced):
    async with Client(str(traced.url)) as client:
        yield client


async def context_read(service: Service, topic: str = "orders") -> list[dict[str, str]]:
    messages = (await service.read(topic)).content["messages"]
    names = ("traceparent", "tracestate")
    return [
        {name: found["properties"][name] for name in names if name in found["properties"]}
        for found in messages
    ]


# ---------------------------------------------------------------------- over HTTP


async def test_the_headers_of_a_send_travel_with_its_message(service):
    headers = {"traceparent": PARENT, "tracestate": STATE}
    await service.call("POST", "/v1/messages", json={"topic": "orders", "tags": "x"}, headers=headers)
    await service.call("POST", "/v1/topics/orders/messages?TAGS=x", data=b"raw", headers=headers)
    assert await context_read(service) == [headers, headers]


@pytest.mark.parametrize("in_arrow", [False, True])
async def test_of_an_array_each_has_its_own_context_or_else_that_of_the_headers(service, in_arrow):
    items = [
        {"topic": "orders"},
        {"topic": "orders", "properties": {"traceparent": OTHER}},
        {"topic": "orders", "properties": {"traceparent": "nonsense", "tracestate": STATE}},
        {"topic": "orders", "properties": {"tracestate": "of=another"}},
    ]
    headers, sent = {"traceparent": PARENT}, {"json": items}
    if in_arrow:
        headers, sent = headers | {"Content-Type": MEDIA_TYPE}, {"data": stream_of(table_of(items))}
    answer = await service.call("POST", "/v1/messages", headers=headers, **sent)
    assert answer.status == 201
    assert await context_read(service) == [
        {"traceparent": PARENT},
        {"traceparent": OTHER},
        {},
        {"traceparent": PARENT},
    ]


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", "nonsense"), ("tracestate", STATE)],
        [("traceparent", PARENT), ("traceparent", PARENT)],
        [("tracestate", STATE)],
    ],
)
async def test_headers_that_say_nothing_refuse_no_message(service, headers):
    answer = await service.call("POST", "/v1/messages", json={"topic": "orders"}, headers=headers)
    assert answer.status == 201
    assert await context_read(service) == [{}]


async def test_a_tracestate_in_several_headers_is_one_list(service):
    headers = [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2, c=3")]
    await service.call("POST", "/v1/messages", json={"topic": "orders"}, headers=headers)
    assert await context_read(service) == [{"traceparent": PARENT, "tracestate": "a=1,b=2,c=3"}]


async def test_the_same_send_in_another_span_is_answered_with_the_first(service):
    for context, status in ((PARENT, 201), (OTHER, 200)):
        headers = {"traceparent": context, "Idempotency-Key": "order-17"}
        answer = await service.call("POST", "/v1/messages", json={"topic": "orders"}, headers=headers)
        assert answer.status == status
    assert await context_read(service) == [{"traceparent": PARENT}]


async def test_a_send_in_arrow_makes_the_span_of_its_rows(traced, kept):
    headers = {"Content-Type": MEDIA_TYPE, "traceparent": PARENT}
    data = stream_of(table_of([{"topic": "orders"}, {"topic": "orders", "tags": "x"}]))
    answer = await traced.call("POST", "/v1/messages", data=data, headers=headers)
    assert answer.status == 201
    [span] = kept.named("send orders")
    assert span.attributes["messaging.batch.message_count"] == 2


async def test_sends_receives_and_streams_make_spans_of_what_is_recorded(traced, kept):
    for parent in (PARENT, UNSAMPLED):
        await traced.call("POST", "/v1/messages", json={"topic": "orders"}, headers={"traceparent": parent})
    received = await traced.call(
        "POST", "/v1/topics/orders/groups/closers/receive", json={"max": 10, "create": True}
    )
    assert len(received.content["messages"]) == 2
    async with aiohttp.ClientSession() as session:
        url = f"{str(traced.url).rstrip('/')}/v1/topics/orders/groups/watchers/stream?ack=auto&create=true"
        async with session.get(url, headers={"X-Requested-With": "test"}) as stream:
            while not kept.named("deliver orders")[1:]:
                assert await stream.content.readany()
    [sent] = kept.named("send orders")
    assert place(sent.parent) == PARENT
    groups = [span.attributes["messaging.consumer.group.name"] for span in kept.named("deliver orders")]
    assert groups == ["closers", "watchers"]
    assert len(kept.all()) == 3


class LeavingClock(SystemClock):
    """The client leaves when the making of spans lets others run for the first time."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.leave = self.left.set

    async def breathe(self) -> None:
        self.leave()
        for _ in range(SPINS):  # until the service has heard of it
            await asyncio.sleep(0)
        self.left.set()


async def test_messages_whose_client_goes_while_their_spans_are_made_are_given_back(tmp_path):
    clock = LeavingClock()
    async with tracing(tmp_path, Kept(clock)) as service:
        message = Outgoing("orders", b"", {"traceparent": PARENT})
        await service.engine.sender.send([message] * BREATHE_SPANS)
        _, writer = await asyncio.open_connection(service.url.host, service.url.port)
        clock.leave = writer.transport.abort
        head = "POST /v1/topics/orders/groups/closers/receive HTTP/1.1"
        body = '{"max": 100, "create": true}'
        writer.write(f"{head}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        async with asyncio.timeout(WAIT_MS / 1000):
            await clock.left.wait()
            while service.engine.groups.info("orders", "closers").in_flight:
                await asyncio.sleep(0)


async def test_a_send_that_is_refused_is_a_failed_span(traced, kept):
    headers = {"traceparent": PARENT}
    answer = await traced.call("POST", "/v1/messages", json={"topic": "no good"}, headers=headers)
    assert answer.code == "illegal_topic"
    [span] = kept.all()
    assert span.status.status_code is StatusCode.ERROR


# ---------------------------------------------------------------------- the client


async def test_the_client_sends_in_the_current_span_and_processes_in_one_that_links_to_it(client):
    tracer = (provider := TracerProvider()).get_tracer("test")
    with tracer.start_as_current_span("order") as order:
        await client.send("orders", "close order 17")
        await client.send_many([{"topic": "orders", "body": "close order 18"}])
    await client.send("orders", "on its own")
    received = await client.group("orders", "closers").receive(3)
    asked = order.get_span_context()
    found = [message.properties.get("traceparent") for message in received]
    assert found == [place(asked), place(asked), None]
    with processing(received[0], group="closers", provider=provider) as span:
        await client.send("receipts", "closed order 17")
    assert (span.name, span.kind, span.parent) == ("process orders", SpanKind.CONSUMER, None)
    assert [link.context.span_id for link in span.links] == [asked.span_id]
    assert span.attributes["messaging.consumer.group.name"] == "closers"
    [receipt] = await client.group("receipts", "g").receive(1)
    assert receipt.properties["traceparent"] == place(span.get_span_context())
    with processing(received[2], provider=provider) as span:
        pass
    assert span.links == ()


async def test_work_that_fails_is_a_failed_span_and_fails_as_before(client):
    await client.send("orders", "x")
    [received] = await client.group("orders", "closers").receive(1)
    with (
        pytest.raises(RuntimeError, match="no such order"),
        processing(received, provider=TracerProvider()) as span,
    ):
        raise RuntimeError("no such order")
    assert span.status.status_code is StatusCode.ERROR


# ---------------------------------------------------------------------- the real process


async def test_a_trace_goes_from_the_client_through_the_service_to_a_collector(tmp_path, monkeypatch):
    async with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with serving(tmp_path / "data", "--traces", "otlp") as service:
            async with Client(service.url) as client:
                with TracerProvider().get_tracer("test").start_as_current_span("order") as order:
                    await client.send("orders", "close order 17", delay_ms=10)
                [received] = await client.group("orders", "closers").receive(wait_ms=WAIT_MS)
            await collector.arrived(2)
            ended = await asyncio.to_thread(service.end, signal.SIGTERM)
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err
    asked = order.get_span_context()
    assert received.properties["traceparent"] == place(asked)
    spans = {span.name: span for span in collector.spans}
    assert spans.keys() == {"send orders", "deliver orders"}
    sent, delivered = spans["send orders"], spans["deliver orders"]
    assert [sent.trace_id.hex(), sent.parent_span_id.hex()] == place(asked).split("-")[1:3]
    assert [link.span_id.hex() for link in delivered.links] == [place(asked).split("-")[2]]
    assert delivered.trace_id != sent.trace_id
    ids = {
        one.value.string_value
        for span in (sent, delivered)
        for one in span.attributes
        if one.key == "messaging.message.id"
    }
    assert ids == {received.id}
    assert {told["service.name"] for told in collector.resources} == {"timerwheel"}
    assert b"close order" not in b"".join(span.SerializeToString() for span in collector.spans)
