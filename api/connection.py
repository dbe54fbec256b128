"""One connection: plain sends take the fast path, and what is not HTTP is refused with a problem.

Only what finds its connection idle takes the fast path, and what comes while that send is on its way waits
until it is answered, so answers go out in the order of their requests.

What is not HTTP reaches no middleware, so what they do for every other answer is done here.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader

from timerwheel.api.fast_path.sends import FastPath
from timerwheel.api.http.problems import RequestError, problem
from timerwheel.api.http.responses import SERVER, sign
from timerwheel.api.security.framing import check_framing
from timerwheel.api.security.patience import Departures

LINE_BYTES_MAX: Final = 8_190
"""Of the path and query of a request."""
FIELD_BYTES_MAX: Final = 8_192
"""Of the name or the value of a header. It differs from the other limit so that the parser's error, which has
the limit in it, tells what was too long."""

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

TOO_MANY_HEADERS = "Too many headers received"  # the parser's words

logger = logging.getLogger("timerwheel.api.http")


class Connection(web.RequestHandler):
    """aiohttp's protocol with answers of our own. Event loop only; `fast_path` None: there is none."""

    __slots__ = ("_departures", "_fast_path", "_is_sending")

    _departures: Departures | None
    _fast_path: FastPath | None
    _is_sending: bool

    def __init__(
        self,
        server: web.Server,
        fast_path: FastPath | None,
        departures: Departures | None = None,
        *,
        loop: asyncio.AbstractEventLoop,
        **options: Any,  # noqa: ANN401 - theirs
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self._fast_path = fast_path
        self._departures = departures
        self._is_sending = False

    # ------------------------------------------------------------------ the fast path

    def data_received(self, data: bytes) -> None:
        """Let the parser have the bytes; a plain send is taken here, all else as ever."""
        waiter = self._waiter
        if self._fast_path is None or waiter is None or waiter.done():
            super().data_received(data)  # `start` is at work, and takes what waits by itself
            return
        self._waiter = None  # nobody is woken yet; and what is done here may come back here with no bytes
        try:
            super().data_received(data)
            if self._messages and not self._is_sending:
                self._take()
        finally:
            self._waiter = waiter
        self._go_on()

    def _take(self) -> None:
        """Have the fast path take the one request that waits, if it can."""
        message, payload = self._messages[0]
        if len(self._messages) > 1 or self._paused or self._upgraded or self._fast_path is None:
            return
        if not isinstance(message, RawRequestMessage) or type(payload) is not StreamReader:
            return
        if not payload.is_eof():
            return
        # A look at it: read, it would not be there any more for the ordinary way.
        body = b"".join(payload._buffer)  # noqa: SLF001 - of a release that was looked at (`FastPath.is_for`)
        if self._fast_path.take(message, body, self):
            self._is_sending = True
            self._request_in_progress = True  # a stop waits for it

    def answer(self, data: bytes) -> None:
        """Answer the send that was taken, and let the next request begin."""
        self._messages.popleft()
        self._end()
        if self.transport is None or self.transport.is_closing() or self._parser is None:
            return
        self._parser.message_consumed()
        self.transport.write(data)
        self._keepalive = True
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            closes_s = self._next_keepalive_close_time
            self._keepalive_handle = self._loop.call_at(closes_s, self._process_keepalive)
        self._go_on()

    def decline(self) -> None:
        """Let what was taken go the ordinary way."""
        self._end()
        self._go_on()

    def _end(self) -> None:
        self._is_sending = False
        self._request_in_progress = False
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)

    def _go_on(self) -> None:
        """Have aiohttp take the requests that wait, unless the first of them is a send on its way."""
        waiting = self._messages and not self._is_sending
        if waiting and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _process_keepalive(self) -> None:
        """A connection whose send is on its way is not idle, however long the disk takes."""
        if self._is_sending:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()

    # ------------------------------------------------------------------ clients that do not read

    def pause_writing(self) -> None:
        """What is written waits for the client to read."""
        super().pause_writing()
        if self._departures is not None:
            self._departures.paused(self)

    def resume_writing(self) -> None:
        """It is with the kernel."""
        super().resume_writing()
        if self._departures is not None:
            self._departures.resumed(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is over."""
        if self._departures is not None:
            self._departures.resumed(self)
        super().connection_lost(exc)

    async def _when_read(
        self, handled: Coroutine[Any, Any, tuple[web.StreamResponse, bool]]
    ) -> tuple[web.StreamResponse, bool]:
        """Begin a request when the client has read the answers to those before; else they would pile up."""
        try:
            await self._drain_helper()
        except BaseException:
            handled.close()
            raise
        return await handled

    # ------------------------------------------------------------------ what is not HTTP

    def _handle_request(
        self, request: web.BaseRequest, start_time: float | None, request_handler: Handle
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        """Refuse what is not framed as HTTP/1 before anything else looks at it."""
        try:
            if request_handler is self._request_handler:  # else the parser has refused it
                check_framing(request)
        except RequestError as error:
            request._version = HttpVersion11  # noqa: SLF001 - in which it is answered
            request_handler = self._refuser(error)
        handled = super()._handle_request(request, start_time, request_handler)
        return self._when_read(handled) if self._paused else handled

    def _refuser(self, error: RequestError) -> Handle:
        async def refuse(request: web.BaseRequest) -> web.StreamResponse:
            request_id = secrets.token_hex(8)
            logger.warning("refused %s: %s", request.remote, error, extra={"request": request_id})
            return _refusal(error.code, str(error), request_id)

        return refuse

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that could not be read; it ends the connection."""
        request_id = secrets.token_hex(8)
        if isinstance(exc, UnicodeEncodeError) and hdrs.EXPECT in request.headers:
            # aiohttp's own answer for a path of no call quotes the header, which need not be text.
            return _refusal("expectation_failed", "only 100-continue is understood", request_id)
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            answer = super().handle_error(request, status, exc, message)
            answer.headers[hdrs.SERVER] = SERVER
            return answer
        reason = exc.message.split("\n", 1)[0].removesuffix(":")
        # A first line without a method is of another protocol: probes of ports are no news.
        is_probe = isinstance(exc, BadHttpMethod) and self._request_count == 1
        level = logging.DEBUG if is_probe else logging.WARNING
        logger.log(level, "not HTTP from %s: %s", request.remote, reason, extra={"request": request_id})
        return _refusal(*_told(exc, reason), request_id)


def _told(error: HttpProcessingError, reason: str) -> tuple[str, str]:
    """The code of what the parser refused, and what is said of it."""
    if isinstance(error, LineTooLong) and error.args[1] == LINE_BYTES_MAX:
        return "uri_too_long", f"path and query have more than {LINE_BYTES_MAX} bytes"
    if isinstance(error, LineTooLong):
        return "headers_too_large", f"a header has more than {FIELD_BYTES_MAX} bytes"
    return "headers_too_large" if error.message == TOO_MANY_HEADERS else "malformed_request", reason


def _refusal(code: str, detail: str, request_id: str) -> web.Response:
    answer = problem(code, detail)
    sign(answer, request_id)
    answer.force_close()
    return answer
