"""The aiohttp application: the table of routes, the error border and the limits, around one engine."""

import functools
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import hdrs, web

from api import answers, openapi, query
from api.cors import Cors
from api.gate import Gate
from api.problems import answer_errors, problem
from api.routes.route import Route
from api.routes.table import routes
from api.wire import NoQuery
from timerwheel.engine import Engine
from timerwheel.push.push import Push


def make_app(engine: Engine) -> web.Application:
    """The API of an open engine, with push as long as it runs. The caller closes the engine after it."""
    gate = Gate(engine.settings)
    push = Push(engine, allow_private=engine.settings.push_private_targets)
    gate.open(engine, push)
    app = make_app_behind(gate)
    app.on_startup.append(lambda _: push.start())
    app.on_cleanup.append(lambda _: push.close())
    return app


def make_app_behind(gate: Gate) -> web.Application:
    """The API of an engine that may still be opening."""
    app = web.Application(
        client_max_size=gate.settings.request_bytes_max,
        middlewares=[answer_errors],
        # A compressed body could grow past every limit; it is refused instead.
        handler_args={"auto_decompress": False},
    )
    origins = frozenset(gate.settings.cors_origins.split())
    if origins:
        Cors(origins).install(app)
    table = routes(gate)
    size_max = gate.settings.request_bytes_max
    for route in table:
        pattern = route.pattern or route.path
        app.router.add_route(
            route.method,
            pattern,
            route.handler,
            expect_handler=functools.partial(_expect, size_max=size_max),
        )
        if route.method == "GET" and route.head:
            app.router.add_route("HEAD", pattern, route.handler)
    app.router.add_route("GET", "/openapi.json", _document(table))

    async def stop_waiting(_: web.Application) -> None:
        gate.stopping = True

    app.on_shutdown.append(stop_waiting)
    return app


def _document(table: list[Route]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    body = orjson.dumps(openapi.document(table))

    async def handler(request: web.Request) -> web.Response:
        query.read(request, NoQuery)
        return answers.json_bytes(body)

    return handler


async def _expect(request: web.Request, *, size_max: int) -> web.StreamResponse | None:
    """Answer `Expect`: tell a client that waits to go on, or that its body would be refused."""
    if request.headers[hdrs.EXPECT].lower() != "100-continue":
        return problem("expectation_failed", "only 100-continue is understood")
    if (request.content_length or 0) > size_max:
        return problem("request_too_large", f"more than request_bytes_max = {size_max} bytes")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return None
