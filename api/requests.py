"""What is done around every request, whatever answers it: it gets an id, is counted, timed and logged.

All in one middleware, the outermost: each one more costs every request as much as its work. A client may give
an id in `X-Request-Id`, so that its own log and this one can be joined; else one is made. The answer carries
it, and so does what is logged meanwhile.
"""

import itertools
import logging
import re
import secrets
from time import perf_counter

from aiohttp import web

from api.security.framing import end_after_chunks
from api.traffic import ABORTED, UNKNOWN, Handler, Traffic
from timerwheel.logs import REQUEST_ID

HEADER = "X-Request-Id"
REQUEST_ID_BYTES_MAX = 64
_match_given = re.compile(rf"[\x21-\x7e]{{1,{REQUEST_ID_BYTES_MAX}}}").fullmatch

logger = logging.getLogger("api.requests")


class Requests:
    """The requests of one application. Event loop only."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._run = secrets.token_hex(4)  # so that ids differ from those of another run
        self._numbers = itertools.count(1)

    def install(self, app: web.Application) -> None:
        """Be around every request of the application; after all others have put their middlewares in."""
        app.middlewares.insert(0, self._around)
        app.on_response_prepare.append(_name)

    def _id_of(self, request: web.Request) -> str:
        given = request.headers.get(HEADER)
        if given is not None and _match_given(given):
            return given
        return f"{self._run}-{next(self._numbers):x}"

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began_s = perf_counter()
        request_id = self._id_of(request)
        token = REQUEST_ID.set(request_id)
        status = ABORTED  # the client went away, or the connection was dropped
        self._traffic.in_progress += 1
        try:
            response = await handler(request)
            status = str(response.status)
            end_after_chunks(request, response)
            if not response.prepared:
                response.headers[HEADER] = request_id
            return response
        finally:
            self._traffic.in_progress -= 1
            seconds = perf_counter() - began_s
            resource = request.match_info.route.resource
            route = UNKNOWN if resource is None else resource.canonical
            self._traffic.count(route, request.method, status, seconds)
            if logger.isEnabledFor(logging.DEBUG):
                facts: dict[str, object] = {"method": request.method, "route": route, "status": status}
                facts |= {"took_ms": round(seconds * 1000, 1), "remote": request.remote}
                logger.debug("request", extra=facts)
            REQUEST_ID.reset(token)


async def _name(_: web.Request, response: web.StreamResponse) -> None:
    """Put the id on a stream, whose head is sent while its handler runs."""
    if (request_id := REQUEST_ID.get()) is not None:
        response.headers[HEADER] = request_id
