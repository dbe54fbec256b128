"""The one middleware: every request gets an id, passes auth, and is counted, timed and logged.

There is only one, because each additional middleware costs every request as much as its work. A client may
set the id in `X-Request-Id`, to join its own log with this one; otherwise the service generates one. The id
is in the answer and in the log lines of the request.
"""

import itertools
import logging
import re
import secrets
from time import perf_counter

from aiohttp import web

from timerwheel.api.http import budget, responses
from timerwheel.api.http.budget import Budgets, Charge
from timerwheel.api.http.problems import answer_to
from timerwheel.api.http.responses import REQUEST_ID_HEADER, InPieces
from timerwheel.api.http.route import Handler
from timerwheel.api.http.traffic import ABORTED, Traffic, template
from timerwheel.api.security.auth import Auth
from timerwheel.api.security.framing import end_after_chunks
from timerwheel.runtime.outcome import one_call
from timerwheel.telemetry.logs import REQUEST_ID

REQUEST_ID_BYTES_MAX = 64
_match_given = re.compile(rf"[\x21-\x7e]{{1,{REQUEST_ID_BYTES_MAX}}}").fullmatch

logger = logging.getLogger("timerwheel.api.requests")


class Middleware:
    """The middleware of one application. Event loop only."""

    def __init__(self, auth: Auth, traffic: Traffic, budgets: Budgets) -> None:
        self._auth = auth
        self.traffic = traffic
        self.budgets = budgets
        self._run = secrets.token_hex(4)  # so that ids differ from those of another run
        self._numbers = itertools.count(1)

    def install(self, app: web.Application) -> None:
        """Wrap every request of the application; call it before the start."""
        app.middlewares.append(self._around)

    def id_of(self, request: web.Request) -> str:
        """Return the id that the client gave, or a new one."""
        given = request.headers.get(REQUEST_ID_HEADER)
        if given is not None and _match_given(given):
            return given
        return self.new_id()

    def new_id(self) -> str:
        """Return an id for a request whose client gave none."""
        return f"{self._run}-{next(self._numbers):x}"

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began_s = perf_counter()
        request_id = self.id_of(request)
        token = REQUEST_ID.set(request_id)
        charge = request[budget.KEY] = Charge(self.budgets)
        status = None  # the client went away, or the connection was dropped
        self.traffic.in_progress += 1
        try:
            response: web.StreamResponse
            try:
                with one_call():
                    response = await self._auth.answer(request, handler)
            except Exception as error:  # noqa: BLE001 - tracebacks are logged, never sent
                response = answer_to(error, request)
            status = response.status
            if not response.prepared:
                responses.sign(response, request_id)
                end_after_chunks(request, response)
            if isinstance(response, InPieces):  # it stays charged while it is written
                await response.prepare(request)
                await response.write_eof()
            return response
        finally:
            self.traffic.in_progress -= 1
            charge.give_all()
            seconds = perf_counter() - began_s
            route = request.match_info.route
            self.traffic.count(route, request.method, status, seconds)
            if logger.isEnabledFor(logging.DEBUG):
                facts: dict[str, object] = {"method": request.method, "route": template(route)}
                facts |= {"status": status or ABORTED, "took_ms": round(seconds * 1000, 1)}
                facts["remote"] = request.remote
                logger.debug("request", extra=facts)
            REQUEST_ID.reset(token)
