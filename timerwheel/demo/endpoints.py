"""The two endpoints that the demo's subscriptions post to: one that answers, and one that refuses."""

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

from aiohttp import web

from timerwheel.demo.service import HOST


class Endpoints(NamedTuple):
    """The URLs of the endpoints."""

    alive: str
    dead: str


@contextlib.asynccontextmanager
async def endpoints() -> AsyncIterator[Endpoints]:
    """Keep both endpoints until the end of the block."""
    application = web.Application()
    application.router.add_post("/{any:.*}", _accept)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        alive = runner.addresses[0][1]
        # Bound but not listening: connections are refused, and no other program gets the port.
        with socket.socket() as refusing:
            refusing.bind((HOST, 0))
            dead = refusing.getsockname()[1]
            yield Endpoints(f"http://{HOST}:{alive}/warehouse", f"http://{HOST}:{dead}/crm")
    finally:
        await runner.cleanup()


async def _accept(request: web.Request) -> web.Response:
    await request.read()
    return web.Response()
