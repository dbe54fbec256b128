"""An application behind the service's own doors, on a free port of the loopback."""

from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.web_runner import BaseRunner

from timerwheel.api.connection_limit import Runner

CONNECTIONS = 10_000


class Served(TestServer):
    """aiohttp's test server, but connections are made as `timerwheel.api.server` makes them."""

    __test__ = False

    def __init__(self, app: web.Application, connections: int = CONNECTIONS, **options: Any) -> None:
        super().__init__(app, **options)
        self._connections = connections

    async def _make_runner(self, **options: Any) -> BaseRunner:
        del options["handler_cancellation"]  # the runner's own to say
        return Runner(self.app, self._connections, **options)
