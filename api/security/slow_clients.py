"""Time limits for slow clients: each one holds a connection, and a thousand hold a thousand.

A head that is not whole in time, and a connection that is idle for as long, is closed. A body must come at a
least rate, not within a total: a large one over a slow line is not an attack. Both are closed without a word,
since nothing that was read so far is a request to answer. So is a connection whose client does not read.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec
from aiohttp import web

from timerwheel.clock import Clock

logger = logging.getLogger(__name__)


class TimeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`head_ms`: from the opening of a connection, or its last answer, until the next head is whole.

    `body_ms`: in each such time a body must grow by `body_bytes_min`, or be whole.
    `answer_ms`: in each such time the client must read some of the bytes that wait for it.
    """

    head_ms: int = 75_000
    body_ms: int = 20_000
    body_bytes_min: int = 16 * 1024
    answer_ms: int = 120_000


class _Seen(NamedTuple):
    request: web.Request
    at_ms: int
    size_bytes: int


class SlowBodies:
    """The request bodies being received. Belongs to the event loop."""

    def __init__(self, limits: TimeLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._on_their_way: dict[int, _Seen] = {}  # by identity: requests cannot be hashed

    @contextmanager
    def watching(self, request: web.Request) -> Iterator[None]:
        """Watch the body of this request inside the block."""
        self._note(request)
        try:
            yield
        finally:
            del self._on_their_way[id(request)]

    def _note(self, request: web.Request) -> None:
        seen = _Seen(request, self._clock.monotonic_ms(), request.content.total_bytes)
        self._on_their_way[id(request)] = seen

    def look(self) -> None:
        """Close the connections whose bodies arrive too slowly."""
        late_ms = self._clock.monotonic_ms() - self._limits.body_ms
        for seen in list(self._on_their_way.values()):
            request, content = seen.request, seen.request.content
            if seen.at_ms > late_ms or content.is_eof():
                continue
            if content.total_bytes - seen.size_bytes >= self._limits.body_bytes_min:
                self._note(request)
            elif request.transport is not None:
                logger.info(
                    "closed a connection from %s: its request body arrived too slowly", request.remote
                )
                request.transport.abort()


class Writing(Protocol):
    """A connection whose client reads more slowly than we write."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """None once it is closed."""


class _Left(NamedTuple):
    connection: Writing
    at_ms: int
    size_bytes: int


class SlowReaders:
    """The connections whose clients do not read their responses. Event loop only."""

    def __init__(self, limits: TimeLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._waiting: dict[int, _Left] = {}

    def paused(self, connection: Writing) -> None:
        """Add a connection with unread data."""
        self._waiting[id(connection)] = _Left(connection, self._clock.monotonic_ms(), _left_bytes(connection))

    def resumed(self, connection: Writing) -> None:
        """Remove a connection that was read or closed."""
        self._waiting.pop(id(connection), None)

    def look(self) -> None:
        """Close the connections whose client has read nothing for too long."""
        late_ms = self._clock.monotonic_ms() - self._limits.answer_ms
        for left in list(self._waiting.values()):
            if (size_bytes := _left_bytes(left.connection)) != left.size_bytes:
                self._waiting[id(left.connection)] = _Left(
                    left.connection, self._clock.monotonic_ms(), size_bytes
                )
            elif left.at_ms <= late_ms and left.connection.transport is not None:
                logger.info("closed a connection: the client did not read the response")
                left.connection.transport.abort()


def _left_bytes(connection: Writing) -> int:
    return 0 if connection.transport is None else connection.transport.get_write_buffer_size()


SLOW_READERS = web.AppKey("slow_readers", SlowReaders)
