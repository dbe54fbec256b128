"""Spans as tests look at them: kept in memory, or taken in by a collector on loopback."""

import asyncio
from collections.abc import Sequence

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from timerwheel.clock import Clock
from timerwheel.tracing.otel import OtelTraces

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"
STATE = "congo=t61rcWkgMzE"


class Kept:
    """The service's spans, kept in memory."""

    def __init__(self, clock: Clock) -> None:
        self._exporter = InMemorySpanExporter()
        self.traces = OtelTraces(SimpleSpanProcessor(self._exporter), clock)

    def all(self) -> Sequence[ReadableSpan]:
        """Every span that has ended, in that order."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]


def place(context: object) -> str:
    """Where a span context is, as `traceparent` writes it."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class Collector:
    """Takes in spans by OTLP over HTTP; `spans` has them, `resources` the attributes of whoever sent them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._changed = asyncio.Condition()
        self.resources: list[dict[str, str]] = []

    async def __aenter__(self) -> "Collector":
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def arrived(self, count: int) -> None:
        """Wait for so many spans; the limit only keeps a failure from hanging."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: len(self.spans) >= count)

    async def _take(self, request: web.Request) -> web.Response:
        assert request.headers["Content-Type"] == "application/x-protobuf"
        for found in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            told = {one.key: one.value.string_value for one in found.resource.attributes}
            self.resources.append(told)
            self.spans += [span for scope in found.scope_spans for span in scope.spans]
        async with self._changed:
            self._changed.notify_all()
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")
