"""The aiohttp application around one engine: the table of routes, the answers to errors, auth, the limits."""

import asyncio
import functools
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import hdrs, web

from timerwheel.api.aiohttp_private import check_parts
from timerwheel.api.connection import FAREWELL, FIELD_BYTES_MAX, LINE_BYTES_MAX, Farewell
from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.fast_path.connection import switch_on
from timerwheel.api.fast_path.consumes import FastConsumes
from timerwheel.api.fast_path.fast_path import FastPath
from timerwheel.api.fast_path.plain import PlainRequests
from timerwheel.api.fast_path.sends import FastSends
from timerwheel.api.groups.consumer import returning
from timerwheel.api.groups.window import Windows
from timerwheel.api.http import etags, idempotency, openapi, query, responses
from timerwheel.api.http.budget import Budgets
from timerwheel.api.http.compression import Compression
from timerwheel.api.http.cors import Cors
from timerwheel.api.http.problems import problem
from timerwheel.api.http.route import Handler, Need, Route
from timerwheel.api.memory import MemoryKeeper
from timerwheel.api.middleware import Middleware
from timerwheel.api.routes import routes
from timerwheel.api.security.auth import AUTH, Auth
from timerwheel.api.security.keyring import Keyring
from timerwheel.api.security.slow_clients import SLOW_READERS, SlowBodies, SlowReaders, TimeLimits
from timerwheel.api.service.figures import FigureKeeper
from timerwheel.api.service.loop_pauses import LoopPauses
from timerwheel.api.service.metrics import Metrics
from timerwheel.clock import Clock, SystemClock
from timerwheel.settings import Serving
from timerwheel.wire.fields import NoQuery

Expect = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def make_app(
    handle: EngineHandle,
    serving: Serving | None = None,
    limits: TimeLimits | None = None,
    clock: Clock | None = None,
    in_front: Callable[[list[Route], Metrics], list[Route]] | None = None,
) -> web.Application:
    """The API of an engine that may still be opening, guarded by the tokens of its data directory.

    `serving` says where it listens; without it the Host header is not checked. TokensError if the token file
    cannot be read. An application in front of shards has no engine: `in_front` gives its calls other
    handlers, and what needs the engine to decide who may do what is left to the shards.
    """
    check_parts()
    limits, clock = limits or TimeLimits(), clock or SystemClock()
    app = web.Application(
        client_max_size=handle.settings.request_bytes_max,
        # A compressed body could grow past every limit; it is refused instead.
        handler_args={
            "auto_decompress": False,
            "keepalive_timeout": limits.head_ms / 1000,
            "max_line_size": LINE_BYTES_MAX,
            "max_field_size": FIELD_BYTES_MAX,
        },
    )
    origins = frozenset(handle.settings.cors_origins.split())
    cors = Cors(origins) if origins else None
    if cors is not None:
        cors.install(app)
    budgets, pauses = Budgets.of(handle.settings), LoopPauses()
    app.cleanup_ctx.append(pauses.watch)
    slow_readers = app[SLOW_READERS] = SlowReaders(limits, clock)
    auth = Auth(handle, Keyring(handle.home), serving, SlowBodies(limits, clock), clock, cors)
    if in_front is not None:
        auth.stand_in_front()
    auth.looks += (slow_readers.look, MemoryKeeper(budgets).look)
    auth.install(app)
    app[AUTH] = auth
    metrics = Metrics(handle, budgets, pauses, rocketmq=serving is not None and serving.rocketmq_metrics)
    middleware = Middleware(auth, metrics.traffic, budgets)
    middleware.install(app)
    windows = Windows()
    handle.at_each_open(windows.follow)
    figures = FigureKeeper(handle, clock)
    app.cleanup_ctx.append(figures.watch)
    table = routes(handle, metrics, windows, figures)
    if in_front is not None:
        table = in_front(table, metrics)
    expect = functools.partial(_expect, size_max=handle.settings.request_bytes_max, id_of=middleware.id_of)
    added = _add(app, auth, [*table, _document(table)], expect, None if in_front is not None else handle)
    if in_front is None and (serving is None or serving.fast_path):
        requests = PlainRequests(handle, auth, middleware)
        consumes = FastConsumes(requests, windows, added["receive"], added["acknowledge"])
        switch_on(app, FastPath(requests, FastSends(requests, added["sendMessages"]), consumes))

    async def stop_waiting(_: web.Application) -> None:
        handle.stop()

    app.on_shutdown.append(stop_waiting)
    app[FAREWELL] = Farewell.of(after_answers=handle.is_of_node)
    return app


def _add(
    app: web.Application, auth: Auth, table: list[Route], expect: Expect, handle: EngineHandle | None
) -> dict[str, web.AbstractRoute]:
    """Register these routes with the application and with `Auth`; returns them by name.

    With a handle, calls on topics of other shards than its engine's are refused.
    """
    found: dict[str, web.AbstractRoute] = {}
    compression = Compression()
    for route in table:
        pattern = route.pattern or route.path
        handler = idempotency.refusing(route.handler) if route.refuses_key else route.handler
        if route.refuses_condition:
            handler = etags.refusing(handler)
        if (
            handle is not None
            and route.path_type is not None
            and "topic" in route.path_type.__struct_fields__
        ):
            handler = _in_its_shard(handle, handler)
        if route.may_compress:
            handler = compression.around(handler)
        if route.leases_messages:
            handler = returning(handler)  # around all that comes before the answer
        added = app.router.add_route(route.method, pattern, handler, expect_handler=expect)
        auth.register(added, route)
        found[route.name] = added
        if route.method == hdrs.METH_GET:
            auth.register(app.router.add_route(hdrs.METH_HEAD, pattern, route.head or handler), route)
    return found


def _in_its_shard(handle: EngineHandle, handler: Handler) -> Handler:
    """Return the handler for topics of this shard alone."""

    async def answer(request: web.Request) -> web.StreamResponse:
        handle.check_topic(request.match_info["topic"])
        return await handler(request)

    return answer


def _document(table: list[Route]) -> Route:
    """Return the route that serves the OpenAPI document, which the first one who asks waits for."""

    @functools.cache
    def body() -> bytes:
        return orjson.dumps(openapi.document(table))

    async def handler(request: web.Request) -> web.Response:
        query.read(request, NoQuery)
        return responses.json_bytes(await asyncio.to_thread(body))

    return Route(
        method="GET",
        path="/openapi.json",
        name="getDocument",
        summary="This document",
        needs=Need.OPEN,
        handler=handler,
        answer=dict,
        needs_engine=False,
    )


async def _expect(
    request: web.Request, *, size_max: int, id_of: Callable[[web.Request], str]
) -> web.StreamResponse | None:
    """Answer `Expect`: tell a waiting client to send its body, or that the body would be refused."""
    if request.headers[hdrs.EXPECT].lower() != "100-continue":
        refusal = problem("expectation_failed", "only 100-continue is supported")
    elif (request.content_length or 0) > size_max:
        refusal = problem(
            "request_too_large", f"the request is larger than request_size_max = {size_max} bytes"
        )
    else:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None
    responses.sign(refusal, id_of(request))  # it does not pass the middleware, which signs all others
    refusal.force_close()  # the client may send the body anyway
    return refusal
