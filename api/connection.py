"""One connection: refuses what is not HTTP with a problem, and notices a client that does not read.

What is not HTTP reaches no middleware, so this module does for it what the middleware does for other answers.

When a service stops, a request may be under way to it on a connection that is just being closed. Its client
could not know whether it was carried out. So a connection may have a *farewell*, which it writes before it is
closed, unless its last answer said that it was the last: to such a client it is the answer, and to any other
the last word of a connection that it does not use. A client connects because it has a request, so at a stop
every new connection gets a farewell. One that a pool keeps is most often idle, and some clients log bytes
that they did not ask for: there only nodes in front of shards get it, which know what it is.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong

from timerwheel.api.aiohttp_private import Handle, Protocol, answer_as_http11
from timerwheel.api.http.problems import RequestError, last_response, problem
from timerwheel.api.http.responses import SERVER, sign
from timerwheel.api.security.framing import check_framing
from timerwheel.api.security.slow_clients import SlowReaders
from timerwheel.errors import NotReadyError

LINE_BYTES_MAX: Final = 8_190
"""Limit on the path and query of a request."""
FIELD_BYTES_MAX: Final = 8_192
"""Limit on the name or the value of a header. It differs from the other limit, so the parser's error, which
has the limit in it, shows what was too long."""

Connect = Callable[..., "Connection"]
"""Creates a connection from a server and the options of aiohttp's own protocol."""

CONNECT: web.AppKey[Connect] = web.AppKey("connect")
"""How an application creates its connections."""


class Farewell(NamedTuple):
    """What connections write before they are closed between two answers, as a response."""

    response: bytes
    after_answers: bool
    """Whether those write it that have answered a request, too."""

    @classmethod
    def of(cls, *, after_answers: bool) -> "Farewell":
        """Return the usual one."""
        detail = "this connection is being closed, and no request on it is read"
        return cls(last_response(NotReadyError.code, detail), after_answers)


FAREWELL: web.AppKey[Farewell] = web.AppKey("farewell")

TOO_MANY_HEADERS = "Too many headers received"  # the parser's words

logger = logging.getLogger("timerwheel.api.http")


class Connection(Protocol):
    """aiohttp's protocol with answers of our own. Event loop only."""

    __slots__ = ("_farewell", "_is_answering", "_slow_readers")

    _slow_readers: SlowReaders | None
    _farewell: Farewell | None
    _is_answering: bool

    def __init__(
        self,
        server: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        slow_readers: SlowReaders | None = None,
        farewell: Farewell | None = None,
        **options: Any,  # noqa: ANN401 - theirs
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self._slow_readers = slow_readers
        self._farewell = farewell
        self._is_answering = False

    # ------------------------------------------------------------------ clients that do not read

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than we write."""
        super().pause_writing()
        if self._slow_readers is not None:
            self._slow_readers.paused(self)

    def resume_writing(self) -> None:
        """Note that all data has reached the kernel."""
        super().resume_writing()
        if self._slow_readers is not None:
            self._slow_readers.resumed(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note that the connection is closed."""
        if self._slow_readers is not None:
            self._slow_readers.resumed(self)
        super().connection_lost(exc)

    async def _when_read(
        self, handled: Coroutine[Any, Any, tuple[web.StreamResponse, bool]]
    ) -> tuple[web.StreamResponse, bool]:
        """Start a request once the client has read the earlier responses, so that they cannot pile up."""
        try:
            await self.drained()
        except BaseException:
            handled.close()
            raise
        return await handled

    # ------------------------------------------------------------------ the farewell

    @property
    def is_between(self) -> bool:
        """Whether no request was begun that is not answered."""
        return not self._is_answering

    def force_close(self) -> None:
        """Close the connection."""
        self._part()
        super().force_close()

    def _part(self) -> None:
        """Write the farewell if nothing else may be written: no request is read from now on."""
        transport, farewell = self.transport, self._farewell
        if farewell is None or not self.is_between or transport is None or transport.is_closing():
            return
        if farewell.after_answers or (self.is_closing_down and not self.requests):
            transport.write(farewell.response)
            self._farewell = None

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write a response to its end. After an error nothing else may follow what was written of it.

        The last one of a connection says so, so that its client makes the next request on another.
        """
        if self.is_closing_down and not resp.prepared:
            resp.force_close()
        answer, is_broken = await super().finish_response(request, resp, start_time)
        self._is_answering = is_broken
        if not answer.keep_alive:
            self._farewell = None  # parsers refuse what comes behind such an answer
        elif self.is_closing_down:  # aiohttp reads no further request, and closes the connection by itself
            self._part()
        return answer, is_broken

    # ------------------------------------------------------------------ what is not HTTP

    def begin(
        self, request: web.BaseRequest, start_time: float | None, request_handler: Handle
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        """Refuse data that is not framed as HTTP/1 before anything else sees it."""
        try:
            if self.is_for_application(request_handler):  # else the parser has refused it
                check_framing(request)
        except RequestError as error:
            answer_as_http11(request)
            request_handler = self._refuser(error)
        self._is_answering = True
        handled = super().begin(request, start_time, request_handler)
        return self._when_read(handled) if self.is_paused else handled

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
        """Return the response to a request that could not be read; it closes the connection."""
        request_id = secrets.token_hex(8)
        if isinstance(exc, UnicodeEncodeError) and hdrs.EXPECT in request.headers:
            # aiohttp's own answer for an unknown path quotes the header, which may not be text.
            return _refusal("expectation_failed", "only 100-continue is supported", request_id)
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            answer = super().handle_error(request, status, exc, message)
            answer.headers[hdrs.SERVER] = SERVER
            return answer
        reason = exc.message.split("\n", 1)[0].removesuffix(":")
        # A first line without a method is another protocol, usually a port scan: not worth a warning.
        is_probe = isinstance(exc, BadHttpMethod) and self.requests == 1
        level = logging.DEBUG if is_probe else logging.WARNING
        logger.log(level, "not HTTP from %s: %s", request.remote, reason, extra={"request": request_id})
        return _refusal(*_code_and_detail(exc, reason), request_id)


def _code_and_detail(error: HttpProcessingError, reason: str) -> tuple[str, str]:
    """Return the problem code and the detail for an error of the parser."""
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
