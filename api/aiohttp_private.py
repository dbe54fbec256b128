"""The private parts of aiohttp that this service uses. No other module uses any.

aiohttp has no public hook between the parser and the queue of parsed requests, where the fast path looks, nor
one for what a connection does with bytes that are not HTTP. `Protocol` has what connections need of the state
of aiohttp's own protocol, and `QueueJumper` answers a request before aiohttp makes a task and objects for it.

These are the parts of the versions in AIOHTTP. With another version the fast path is off (`is_known`). What
`Protocol` needs is old and changes rarely, so a version that still has it will do; `check_parts` refuses one
that has not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import aiohttp
from aiohttp import web
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import StreamReader

AIOHTTP: Final = "3.14."
"""The versions of aiohttp whose parts are known here."""

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_PARTS: Final = (
    *("_close", "_drain_helper", "_force_close", "_handle_request", "_paused"),
    *("_request_count", "_request_handler", "_request_in_progress"),
)


def is_known(version: str) -> bool:
    """Whether this version of aiohttp has the parts that `QueueJumper` uses."""
    return version.startswith(AIOHTTP)


def check_parts(protocol: type = web.RequestHandler) -> None:
    """Raise ImportError if the aiohttp that is installed lacks what `Protocol` uses."""
    missing = [name for name in _PARTS if not hasattr(protocol, name)]
    if missing:
        raise ImportError(
            f"aiohttp {aiohttp.__version__} is not supported: its connections have no {missing[0]}; "
            f"install aiohttp {AIOHTTP}*"
        )


def options_of(server: web.Server) -> dict[str, Any]:
    """Return the options with which a server makes its connections."""
    options: dict[str, Any] = server._kwargs  # noqa: SLF001 - as it does
    return options


def listening_descriptors(site: web.BaseSite) -> list[int]:
    """Return the descriptors of the sockets on which a site listens."""
    server = site._server  # noqa: SLF001 - as its `stop` does
    return [] if server is None else [one.fileno() for one in server.sockets]  # type: ignore[attr-defined]


def answer_as_http11(request: web.BaseRequest) -> None:
    """Have a request answered in HTTP/1.1, whatever it said."""
    request._version = HttpVersion11  # noqa: SLF001 - the version of the answer


class Protocol(web.RequestHandler):
    """aiohttp's protocol of a connection, with names for the state that others look at. Event loop only."""

    __slots__ = ("_is_serving",)

    def __init__(
        self,
        server: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        **options: Any,  # noqa: ANN401 - theirs
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self._is_serving = False  # a `QueueJumper`, a request that it took

    @property
    def is_closing_down(self) -> bool:
        """Whether the answer in progress is the last one of the connection."""
        return self._close

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to the parser: also those of a request in progress on a connection that is to close.

        aiohttp drops those, so that its handler would wait for the rest of the body in vain.
        """
        if not self._request_in_progress:
            super().data_received(data)
            return
        closes, closes_by_force = self._close, self._force_close
        self._close = self._force_close = False
        try:
            super().data_received(data)
        finally:
            self._close |= closes
            self._force_close |= closes_by_force

    @property
    def is_paused(self) -> bool:
        """Whether the client has not read what was written to it."""
        return self._paused

    @property
    def requests(self) -> int:
        """The number of requests of this connection."""
        return self._request_count

    def is_for_application(self, handle: object) -> bool:
        """Whether aiohttp passes a request to the application; False if its parser has refused it."""
        return handle is self._request_handler

    def begin(
        self, request: web.BaseRequest, start_time: float | None, request_handler: Handle
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        """Handle a request that was read, by the application, or by what answers for the parser."""
        return super()._handle_request(request, start_time, request_handler)

    def _handle_request(
        self, request: web.BaseRequest, start_time: float | None, request_handler: Handle
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        return self.begin(request, start_time, request_handler)

    async def drained(self) -> None:
        """Return once the client has read what was written to it."""
        await self._drain_helper()


class QueueJumper(Protocol):
    """Offers a request that finds its connection idle to `offer`, before aiohttp sees it. Event loop only.

    What comes while one is in progress waits until it is answered, so answers go out in the order of their
    requests.
    """

    __slots__ = ()

    def offer(self, message: RawRequestMessage, body: bytes) -> bool:
        """Return whether the request is taken, to be answered by `end_taken` and what follows."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to the parser. Offer a plain request, and leave everything else to aiohttp."""
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
        if self.offer(message, body):
            self._is_serving = True
            self._request_in_progress = True  # a stop waits for it

    @property
    def is_serving(self) -> bool:
        """Whether a request that was taken is in progress."""
        return self._is_serving

    def end_taken(self) -> asyncio.Transport | None:
        """Take the offered request off the queue; return where to write its answer, None if nowhere."""
        self._messages.popleft()
        self._end()
        transport = self.transport
        if transport is None or transport.is_closing() or self._parser is None:
            return None
        self._parser.message_consumed()
        return transport

    def keep_open(self) -> None:
        """Wait for the next request, as after every answer, and let it start if it is there."""
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
