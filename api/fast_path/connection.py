"""Connections that try the fast path first.

This is the one file that uses aiohttp's private parts for it. aiohttp starts a task and makes a request and a
response object for each request; a protocol may see a request before that only between the parser and the
queue of parsed messages, and aiohttp has no public hook there. So `FastConnection` reads that queue, the
waiter that wakes aiohttp's task, and the timer that closes idle connections. `switch_on` therefore checks the
version of aiohttp, and with an unknown one every request goes the ordinary way.

1. Only a request that finds its connection idle takes the fast path. What comes while it is in progress waits
   until it is answered, so answers go out in the order of their requests.
"""

import asyncio
import functools
import logging
from typing import Any, Final

import aiohttp
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader

from timerwheel.api.connection import CONNECT, Connect, Connection
from timerwheel.api.fast_path.fast_path import FAST_PATH, FastPath

AIOHTTP: Final = "3.14."
"""The versions of aiohttp whose connections are known here."""

logger = logging.getLogger(__name__)


def is_known(version: str) -> bool:
    """Whether this version of aiohttp has the internals that `FastConnection` uses."""
    return version.startswith(AIOHTTP)


def switch_on(app: web.Application, fast_path: FastPath) -> None:
    """Make the application's connections try `fast_path` first; logs a warning for an unknown aiohttp."""
    if not is_known(aiohttp.__version__):
        logger.warning("the fast path is off: it does not support aiohttp %s", aiohttp.__version__)
        return
    app[FAST_PATH] = fast_path
    connect: Connect = functools.partial(FastConnection, fast_path=fast_path)
    app[CONNECT] = connect


def _as_last(answer: bytes) -> bytes:
    """Return an answer that says that it is the last one of its connection."""
    status, line_end, rest = answer.partition(b"\r\n")
    return b"".join((status, line_end, b"Connection: close", line_end, rest))


class FastConnection(Connection):
    """A connection with a fast path for plain requests. Event loop only."""

    __slots__ = ("_fast_path", "_is_serving")

    _fast_path: FastPath
    _is_serving: bool

    def __init__(
        self,
        server: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        fast_path: FastPath,
        **options: Any,  # noqa: ANN401 - theirs
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self._fast_path = fast_path
        self._is_serving = False

    @property
    def is_between(self) -> bool:
        """Whether no request was begun that is not answered."""
        return super().is_between and not self._is_serving

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to the parser. Take a plain request here, and leave everything else to aiohttp."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            super().data_received(data)  # `start` is at work, and takes the queued requests by itself
            return
        self._waiter = None  # nobody is woken yet; and what is done here may come back here with no bytes
        try:
            super().data_received(data)
            if self._messages and not self._is_serving:
                self._take()
        finally:
            self._waiter = waiter
        self._go_on()

    def _take(self) -> None:
        """Let the fast path take the one request that is queued, if it can."""
        message, payload = self._messages[0]
        if len(self._messages) > 1 or self._paused or self._upgraded:
            return
        if not isinstance(message, RawRequestMessage) or type(payload) is not StreamReader:
            return
        if not payload.is_eof():
            return
        # A look at it: read, it would not be there any more for the ordinary way.
        body = b"".join(payload._buffer)  # noqa: SLF001 - of a release that was looked at
        if self._fast_path.take(message, body, self):
            self._is_serving = True
            self._request_in_progress = True  # a stop waits for it

    def answer(self, data: bytes) -> None:
        """Answer the request that was taken, and let the next request start."""
        self._messages.popleft()
        self._end()
        if self.transport is None or self.transport.is_closing() or self._parser is None:
            return
        self._parser.message_consumed()
        if self._close:
            data, self._farewell = _as_last(data), b""
        self.transport.write(data)
        self._keepalive = True
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            closes_s = self._next_keepalive_close_time
            self._keepalive_handle = self._loop.call_at(closes_s, self._process_keepalive)
        self._go_on()

    def decline(self) -> None:
        """Return a request that was taken to the ordinary path."""
        self._end()
        self._go_on()

    def _end(self) -> None:
        self._is_serving = False
        self._request_in_progress = False
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)

    def _go_on(self) -> None:
        """Let aiohttp take the queued requests, unless the first is in progress here."""
        waiting = self._messages and not self._is_serving
        if waiting and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _process_keepalive(self) -> None:
        """Report a connection as busy while its request is in progress, however slow the disk is."""
        if self._is_serving:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()
