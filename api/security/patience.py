"""How long a client may take to say what it wants: a slow one holds a connection, and a thousand a thousand.

A head that is not whole in time, and a connection that is idle for as long, is closed. A body must come at a
least rate, not within a total: a large one over a slow line is no attack. Both are closed without a word,
since nothing that was read so far is a request to answer.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from aiohttp import web

from timerwheel.clock import Clock

logger = logging.getLogger(__name__)


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """`head_ms`: from the opening of a connection, or its last answer, until the next head is whole.

    `body_ms`: in each such time a body must grow by `body_bytes_min`, or be whole.
    """

    head_ms: int = 75_000
    body_ms: int = 20_000
    body_bytes_min: int = 16 * 1024


class _Seen(NamedTuple):
    request: web.Request
    at_ms: int
    size_bytes: int


class Arrivals:
    """The bodies that are on their way. Belongs to the event loop."""

    def __init__(self, patience: Patience, clock: Clock) -> None:
        self._patience = patience
        self._clock = clock
        self._on_their_way: dict[int, _Seen] = {}  # by identity: requests cannot be hashed

    @contextmanager
    def watching(self, request: web.Request) -> Iterator[None]:
        """Inside of the block `look` looks at the body of this request, too."""
        self._note(request)
        try:
            yield
        finally:
            del self._on_their_way[id(request)]

    def _note(self, request: web.Request) -> None:
        seen = _Seen(request, self._clock.monotonic_ms(), request.content.total_bytes)
        self._on_their_way[id(request)] = seen

    def look(self) -> None:
        """Close the connections whose body came too slowly."""
        late_ms = self._clock.monotonic_ms() - self._patience.body_ms
        for seen in list(self._on_their_way.values()):
            request, content = seen.request, seen.request.content
            if seen.at_ms > late_ms or content.is_eof():
                continue
            if content.total_bytes - seen.size_bytes >= self._patience.body_bytes_min:
                self._note(request)
            elif request.transport is not None:
                logger.info("closed a connection from %s: its body came too slowly", request.remote)
                request.transport.abort()
