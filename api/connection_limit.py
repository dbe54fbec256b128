"""Connection limit. Reserves file descriptors for the log, the index and push.

Each connection takes a descriptor, and a log that gets none for its next segment cannot store anything more.
So the log has its descriptors reserved (`timerwheel.store.file_reserve`), push has at most its share in use,
and a connection beyond the rest is refused at once.
"""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

from aiohttp import web

from timerwheel.api.aiohttp_private import listening_descriptors, options_of
from timerwheel.api.connection import CONNECT, FAREWELL, Connection
from timerwheel.api.http.problems import last_response
from timerwheel.api.security.handshakes import Handshakes
from timerwheel.api.security.slow_clients import SLOW_READERS
from timerwheel.errors import TimerwheelError
from timerwheel.listening import drop_handshakes, waiting_connections
from timerwheel.store.log_reader import open_segments_max

FILES_MIN = 64
OWN_FILES = 32
"""Streams, the event loop, the lock, the index, timers, and what is open for a moment only."""
LOG_FILES = 5
"""For the log, besides its segments: direct writes to the last one; sidecars and directories, briefly."""
PUSH_SHARE = 16
PUSH_CALLS_MAX = 2_048
FILES_PER_CALL = 2  # a push connection stays open for some seconds after its call
WARN_EACH_S = 60

logger = logging.getLogger("timerwheel")


def raise_file_limit() -> int:
    """Raise the process's file limit as far as the system allows; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


class FileLimitError(TimerwheelError):
    """The process's file limit is too low to run the service."""

    code = "file_limit"


class Shares(NamedTuple):
    """How the descriptors are divided: log files, push calls in progress, connections."""

    log_files: int
    push_calls: int
    connections: int

    @classmethod
    def of(cls, files: int) -> "Shares":
        """Divide this many descriptors; raises FileLimitError if they are too few."""
        if files < FILES_MIN:
            raise FileLimitError(
                f"this process may open only {files} files and needs at least {FILES_MIN}; raise "
                "the limit (ulimit -n, or LimitNOFILE= in systemd)"
            )
        log_files = open_segments_max(files) + LOG_FILES
        push_calls = max(min(files // PUSH_SHARE, PUSH_CALLS_MAX), 1)
        rest = files - OWN_FILES - log_files - FILES_PER_CALL * push_calls
        return cls(log_files, push_calls, max(rest, 1))


def connections_in_front(files: int) -> int:
    """Return how many connections a process may take that makes a call of its own for each.

    Raises FileLimitError.
    """
    Shares.of(files)
    return max((files - OWN_FILES) // 2, 1)


class Runner(web.AppRunner):
    """An application's runner that takes no more than `connections` at once; with `handshakes`, over TLS.

    A handler whose client goes away is cancelled: nobody waits any more for what a long poll might find.
    At the stop, handshakes under way have `handshake_s` to end, and no connection that a client has by then
    is dropped unread (`timerwheel.listening`).
    """

    def __init__(
        self,
        app: web.Application,
        connections: int,
        handshakes: Handshakes | None = None,
        handshake_s: float = 0,
        **options: Any,  # noqa: ANN401 - theirs
    ) -> None:
        super().__init__(app, handler_cancellation=True, **options)
        self._connections = connections
        self._handshakes = handshakes
        self._handshake_s = handshake_s
        self._arriving = 0  # let in, but not yet among the server's connections
        self._warned_s = float("-inf")

    @property
    def server(self) -> Callable[[], asyncio.BaseProtocol] | None:  # type: ignore[override]
        """Creates the protocol of each connection."""
        return None if self._server is None else self._let_in

    def _let_in(self) -> asyncio.BaseProtocol:
        assert self._server is not None
        loop = asyncio.get_running_loop()
        greeted = 0 if self._handshakes is None else len(self._handshakes)
        if len(self._server.connections) + greeted + self._arriving >= self._connections:
            if loop.time() - self._warned_s >= WARN_EACH_S:
                self._warned_s = loop.time()
                logger.warning(
                    "connection limit reached: %d connections are open; refusing new ones", self._connections
                )
            return _Full(answers=self._handshakes is None)
        # Many are accepted in one turn of the loop; each is among the server's after the next one.
        self._arriving += 1
        loop.call_soon(loop.call_soon, self._arrived)
        return self._connection() if self._handshakes is None else self._handshakes.greeter(self._connection)

    def _connection(self) -> Connection:
        server = self._server
        assert server is not None
        return self.app.get(CONNECT, Connection)(
            server,
            loop=asyncio.get_running_loop(),
            slow_readers=self.app.get(SLOW_READERS),
            farewell=self.app.get(FAREWELL),
            **options_of(server),
        )

    def _arrived(self) -> None:
        self._arriving -= 1

    async def stop_listening(self) -> None:
        """Take no connection any more, but those that clients have already. A second call does nothing."""
        loop, sites = asyncio.get_running_loop(), list(self.sites)
        with ExitStack() as stack:
            listening = [
                stack.enter_context(socket.socket(fileno=os.dup(number)))
                for site in sites
                for number in listening_descriptors(site)
            ]
            for one in listening:
                drop_handshakes(one)
            for site in sites:
                await site.stop()
            if listening and self._handshake_s:
                await asyncio.sleep(self._handshake_s)  # noqa: TID251 - of the network, not of the service
            server = self.server
            for one in listening:
                # Each is handed over, or refused, before the next takes a descriptor.
                for connection in waiting_connections(one):
                    assert server is not None
                    try:
                        await loop.connect_accepted_socket(server, connection)
                    except OSError:  # its client has gone
                        connection.close()

    async def cleanup(self) -> None:
        """Stop. A client whose TLS handshake is under way may have sent a request with its end."""
        await self.stop_listening()
        if self._handshakes is not None:
            await self._handshakes.finish()
        await super().cleanup()


class _Full(asyncio.Protocol):
    """Closes a connection; one that needs no TLS handshake gets the reason, and may try again."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._answers:
            cast("asyncio.Transport", transport).write(
                last_response("overloaded", "the service has as many connections as it may have")
            )
        transport.close()
