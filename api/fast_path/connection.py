"""Connections that try the fast path first.

aiohttp starts a task and makes a request and a response object for each request. A `FastConnection` sees a
request before that (`timerwheel.api.aiohttp_private`). `switch_on` checks the version of aiohttp, and with an
unknown one every request goes the ordinary way.

1. Only a request that finds its connection idle takes the fast path. What comes while it is in progress waits
   until it is answered, so answers go out in the order of their requests.
"""

import asyncio
import functools
import logging
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.http import RawRequestMessage

from timerwheel.api.aiohttp_private import QueueJumper, is_known
from timerwheel.api.connection import CONNECT, Connect, Connection
from timerwheel.api.fast_path.fast_path import FAST_PATH, FastPath

logger = logging.getLogger(__name__)


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


class FastConnection(QueueJumper, Connection):
    """A connection with a fast path for plain requests. Event loop only."""

    __slots__ = ("_fast_path",)

    _fast_path: FastPath

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

    @property
    def is_between(self) -> bool:
        """Whether no request was begun that is not answered."""
        return super().is_between and not self.is_serving

    def offer(self, message: RawRequestMessage, body: bytes) -> bool:
        """Return whether the fast path takes the request."""
        return self._fast_path.take(message, body, self)

    def answer(self, data: bytes) -> None:
        """Answer the request that was taken, and let the next request start."""
        transport = self.end_taken()
        if transport is None:
            return
        if self.is_closing_down:
            data, self._farewell = _as_last(data), None
        transport.write(data)
        self.keep_open()
