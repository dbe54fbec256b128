"""How many connections there may be at once: files are kept back for the log and the index.

Each connection takes a file descriptor, and a log that gets none for its next segment can store nothing more.
So whoever comes when the rest is taken is turned away, by closing the connection at once.
"""

import asyncio
import logging
import resource
from collections.abc import Callable
from typing import Any

from aiohttp import web

from api.connection import Connection
from api.fast_path import FAST_PATH
from api.security.handshakes import Handshakes
from api.security.patience import DEPARTURES

FILES_KEPT = 384
"""For open segments (`store.log_reader.OPEN_SEGMENTS_MAX`), the index, push, and what else there is."""
TOLD_EACH_S = 60

logger = logging.getLogger("timerwheel")


def raise_file_limit() -> int:
    """Let the process have as many files as the system allows it; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def connections_max(files: int) -> int:
    """How many connections leave FILES_KEPT free, or half of the files if there are few."""
    return max(files - FILES_KEPT, files // 2)


class Runner(web.AppRunner):
    """An application's runner that takes no more than `connections` at once; with `handshakes`, over TLS.

    A handler whose client goes away is cancelled: nobody waits any more for what a long poll might find.
    """

    def __init__(
        self,
        app: web.Application,
        connections: int,
        handshakes: Handshakes | None = None,
        **options: Any,  # noqa: ANN401 - theirs
    ) -> None:
        super().__init__(app, handler_cancellation=True, **options)
        self._connections = connections
        self._handshakes = handshakes
        self._arriving = 0  # let in, but not yet among the server's connections
        self._told_s = float("-inf")

    @property
    def server(self) -> Callable[[], asyncio.BaseProtocol] | None:  # type: ignore[override]
        """What makes a protocol for each connection."""
        return None if self._server is None else self._let_in

    def _let_in(self) -> asyncio.BaseProtocol:
        assert self._server is not None
        loop = asyncio.get_running_loop()
        greeted = 0 if self._handshakes is None else len(self._handshakes)
        if len(self._server.connections) + greeted + self._arriving >= self._connections:
            if loop.time() - self._told_s >= TOLD_EACH_S:
                self._told_s = loop.time()
                logger.warning("%d connections are open; more are turned away", self._connections)
            return _Closed()
        # Many are accepted in one turn of the loop; each is among the server's after the next one.
        self._arriving += 1
        loop.call_soon(loop.call_soon, self._arrived)
        return self._connection() if self._handshakes is None else self._handshakes.greeter(self._connection)

    def _connection(self) -> Connection:
        server = self._server
        assert server is not None
        options = server._kwargs  # noqa: SLF001 - as it does
        paths = self.app.get(FAST_PATH), self.app.get(DEPARTURES)
        return Connection(server, *paths, loop=asyncio.get_running_loop(), **options)

    def _arrived(self) -> None:
        self._arriving -= 1

    async def cleanup(self) -> None:
        """Stop; who is still shaking hands is let go."""
        if self._handshakes is not None:
            self._handshakes.close()
        await super().cleanup()


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
