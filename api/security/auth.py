"""Auth: every request passes here before its handler. It is refused, or it gets its `Access`.

    from a foreign page, or a rebound name? -> whose token? -> in its rate? -> scope? -> topic of its path?

1. A call that is not in the table, or does not state what it needs, is for admins.
2. Once tokens are in force they stay so until the service ends, whatever happens to their file. Only a file
   with an empty list opens a service again, and only if the service may be open.
3. A running request is aborted within `LOOK_MS` when its token is revoked, changed or expires.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query
from timerwheel.api.http.cors import Cors
from timerwheel.api.http.problems import RequestError, problem
from timerwheel.api.http.route import EVENTS, SIGN, Handler, Need, Route
from timerwheel.api.security import access, audit
from timerwheel.api.security.access import Access
from timerwheel.api.security.browsers import is_cross_site, is_of_page, is_rebound, may_be_of_any_page
from timerwheel.api.security.keyring import Keyring
from timerwheel.api.security.rates import Rates
from timerwheel.api.security.slow_clients import SlowBodies
from timerwheel.api.security.targets import CHANGING, TARGETS
from timerwheel.clock import Clock
from timerwheel.errors import TimerwheelError
from timerwheel.model.authorization import limited_to
from timerwheel.settings import Serving
from timerwheel.store.errors import StoreError
from timerwheel.telemetry.logs import REQUEST_ID
from timerwheel.tokens import Token, is_secret

Headers = CIMultiDictProxy[str] | CIMultiDict[str]

LOOK_MS = 1_000
BY_NAME = ("/v1/schedules/{name}", "/v1/subscriptions", "/v1/tasks")
"""Paths of calls for which a node in front of shards looks in which shard a name is.

A task with `cron` names a schedule.
"""
LOOK_UPS = frozenset({"getSchedule", "getSubscription"})
"""The calls by which it looks."""
SAFE_METHODS = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
CHALLENGE = 'Bearer realm="timerwheel"'
INVALID = CHALLENGE + ', error="invalid_token"'

AUTH: "web.AppKey[Auth]" = web.AppKey("auth")
logger = logging.getLogger(__name__)


class Running(Protocol):
    """A request in progress, or its connection."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """None once it is closed."""


class Auth:
    """Checks every request. Event loop only. With `serving` None, the service's address is unknown."""

    def __init__(
        self,
        handle: EngineHandle,
        keyring: Keyring,
        serving: Serving | None,
        slow_bodies: SlowBodies,
        clock: Clock,
        cors: Cors | None = None,
    ) -> None:
        self._handle = handle
        self._keyring = keyring
        self._clock = clock
        self._slow_bodies = slow_bodies
        self._cors = cors
        self._rates = Rates(clock)
        self._origins = frozenset(handle.settings.cors_origins.split())
        self._may_be_open = serving is None or serving.is_local or serving.open_to_all
        self._is_loopback = serving is not None and serving.is_loopback
        self._calls: dict[web.AbstractRoute, Route] = {}
        self._is_in_front = False
        self.looks: tuple[Callable[[], None], ...] = (slow_bodies.look,)
        """Further checks that run each second."""
        # By identity, because requests cannot be hashed. Without a token: admitted to an open service.
        self._running: dict[int, tuple[Running, Token | None]] = {}

    def install(self, app: web.Application) -> None:
        """Watch the tokens while the application runs; call it before the start."""
        app.cleanup_ctx.append(self._watch)

    def stand_in_front(self) -> None:
        """Leave it to the shards behind it to count the calls of a token, and to check its topics."""
        self._is_in_front = True

    def register(self, route: web.AbstractRoute, call: Route) -> None:
        """Register the route of this entry of the router."""
        self._calls[route] = call

    # ------------------------------------------------------------------ while it runs

    async def _watch(self, _: web.Application) -> AsyncIterator[None]:
        """Reload the tokens and check slow bodies, as long as the application runs."""
        task = asyncio.create_task(self._keep_looking())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _keep_looking(self) -> None:
        while True:
            await self._clock.sleep_for(LOOK_MS)
            try:
                self.look()
            except Exception:  # access must not stay as it is because of one bad look
                logger.exception("reloading the tokens failed; trying again")

    def look(self) -> None:
        """Reload the tokens if their file has changed, and abort requests that lost their access."""
        for look in self.looks:
            look()
        if self._keyring.look():
            self._rates.keep(self._keyring.tokens)
        now_ms = self._clock.now_ms()
        for request, token in list(self._running.values()):
            good = self._is_good(token, now_ms)
            if not good and request.transport is not None:
                request.transport.abort()

    def _is_good(self, token: Token | None, now_ms: int) -> bool:
        if token is None:
            return not self._keyring.tokens and self._may_be_open
        return not token.expired(now_ms) and self._keyring.tokens.named(token.name) == token

    # ------------------------------------------------------------------ a request

    def began(self, running: Running, found: Access) -> None:
        """Add a request, to abort it when its access ends."""
        self._running[id(running)] = (running, found.token)

    def ended(self, running: Running) -> None:
        """Remove a request that was answered or given up."""
        self._running.pop(id(running), None)

    def of_program(self, headers: Headers, need: Need) -> Access | None:
        """Return the access of a program's request by its headers; None if the full check is needed."""
        if self._cors is not None or self._names_another(headers):
            return None
        found = self._identify(headers)
        if found is access.OPEN:
            return found
        return found if isinstance(found, Access) and found.has_scope(need) else None

    def of_key(self, secret: str) -> Access | None:
        """Return the access of a caller by its token, for a front without headers; None to refuse it.

        An empty secret is not a token: enough as long as the service is open.
        """
        tokens = self._keyring.tokens
        if not tokens and self._may_be_open:
            return access.OPEN
        token = tokens.of_secret(secret)
        if token is None or token.expired(self._clock.now_ms()):
            return None
        return Access(token, self._rates)

    def is_current(self, caller: Access) -> bool:
        """Whether the token of a caller was neither revoked nor changed, and has not expired."""
        return self._is_good(caller.token, self._clock.now_ms())

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the handler's response if the request may pass, else the refusal."""
        match = request.match_info
        call = self._calls.get(match.route)
        if (refusal := self._misplaced(request, call)) is not None:
            return refusal
        if match.http_exception is not None:
            asked = None if self._cors is None else self._cors.preflight(request)
            return await handler(request) if asked is None else asked  # the handler raises 404 or 405
        if not (whole := request.content.is_eof()) and (refusal := self._oversize(request)) is not None:
            return refusal
        needs = Need.ADMIN if call is None else call.needs or Need.ADMIN
        found = access.OPEN if needs is Need.OPEN else self._identify(request.headers)
        if not isinstance(found, Access):
            self._audit(request, call, audit.NOBODY, str(found.status))
            return found
        request[access.KEY] = found
        if needs is not Need.OPEN:
            self.began(request, found)
        try:
            if call is not None and call.needs_engine and not self._handle.has_lead:
                await self._handle.assure_lead()  # before anything is read: what is found then is not old
            if whole:
                plain = found.token is None and call is not None and not call.audited  # the common way
                return await (
                    handler(request) if plain else self._passed(request, handler, call, needs, found)
                )
            with self._slow_bodies.watching(request):
                return await self._passed(request, handler, call, needs, found)
        finally:
            self.ended(request)

    def _oversize(self, request: web.Request) -> web.Response | None:
        size_max = self._handle.settings.request_bytes_max
        if (request.content_length or 0) <= size_max:
            return None
        return problem("request_too_large", f"the request is larger than request_size_max = {size_max} bytes")

    def _misplaced(self, request: web.Request, call: Route | None) -> web.Response | None:
        """Return the response to a request that a page made a browser send."""
        if self._names_another(request.headers):
            return problem(
                "wrong_host",
                (
                    "the Host header names another machine: use localhost or this machine's address; "
                    "to serve other host names, create a token (timerwheel tokens create)"
                ),
            )
        if (
            call is not None
            and call.changes_state
            and not self._keyring.tokens
            and may_be_of_any_page(request)
        ):
            return problem(
                "header_required", f"this GET takes messages; send the header {SIGN}, with any value"
            )
        if not is_of_page(request) or request.method == hdrs.METH_OPTIONS:
            return None
        safe = request.method in SAFE_METHODS and (call is None or call.answer_kind != EVENTS)
        if safe or not is_cross_site(request, self._origins):
            return None
        return problem("cross_site", "sent by a page whose origin is not in cors_origins")

    def _names_another(self, headers: Headers) -> bool:
        # With tokens, DNS rebinding gains nothing: the page has no token. And a proxy may pass any name.
        return self._is_loopback and not self._keyring.tokens and is_rebound(headers.get(hdrs.HOST, ""))

    def _passed(
        self, request: web.Request, handler: Handler, call: Route | None, needs: Need, caller: Access
    ) -> Awaitable[web.StreamResponse]:
        """Return the response to a request of a known sender."""
        answer = handler(request) if caller.token is None else self._checked(request, handler, call, needs)
        if call is None or not call.audited:
            return answer
        return self._audited(request, call, caller, answer)

    def _identify(self, headers: Headers) -> Access | web.Response:
        """Return the sender's access, or the refusal of an unknown sender."""
        tokens = self._keyring.tokens
        if not tokens and self._may_be_open:
            return access.OPEN
        given = headers.getall(hdrs.AUTHORIZATION, [])
        if not given:
            return _unauthenticated(
                "this call needs a token; send it in the header Authorization: Bearer tw_...", CHALLENGE
            )
        scheme, _, secret = given[0].partition(" ")
        secret = secret.strip(" ")
        token = None
        if len(given) == 1 and scheme.lower() == "bearer":
            token = tokens.of_secret(secret)
        if token is None:
            whole = len(given) == 1 and is_secret(secret)
            detail = (
                "the token does not exist, or was revoked"
                if whole
                else "the Authorization header does not contain a complete token"
            )
            return _unauthenticated(detail, INVALID)
        if token.expired(self._clock.now_ms()):
            return _unauthenticated(f"the token {token.name!r} has expired", INVALID)
        return Access(token, self._rates)

    async def _checked(
        self, request: web.Request, handler: Handler, call: Route | None, needs: Need
    ) -> web.StreamResponse:
        """Return the response to a token's request, after checking its rate, scope and topic."""
        caller = access.of(request)
        if not self._is_in_front and (wait_ms := self._counted(caller, call)):
            detail = f"the token {caller.name!r} has exceeded its rate limit"
            return problem("rate_limited", detail, headers={"Retry-After": str(-(-wait_ms // 1000))})
        await self._check(request, call, needs, caller)
        if call is None or call.path_type not in CHANGING:
            return await handler(request)
        with limited_to(caller.may):
            return await handler(request)

    def _counted(self, caller: Access, call: Route | None) -> int:
        """Count a call; returns 0 if it may be served, else how many ms to wait."""
        request_id = REQUEST_ID.get()
        if not self._handle.is_of_node or call is None or request_id is None:
            return caller.take()
        if call.path.startswith(BY_NAME):
            return caller.take_by_name(request_id, is_look_up=call.name in LOOK_UPS)
        return caller.take()

    async def _check(self, request: web.Request, call: Route | None, needs: Need, caller: Access) -> None:
        """Raise `RequestError` forbidden if the caller lacks the scope or access to the topic."""
        if not caller.has_scope(needs):
            raise RequestError("forbidden", f"token {caller.name!r} lacks the scope {needs.value}")
        if call is None or call.path_type is None or caller.has_all_topics or self._is_in_front:
            return
        target = TARGETS.get(call.path_type)
        if target is None:
            raise RequestError(
                "forbidden",
                (
                    f"this call needs access to all topics, and the token {caller.name!r} has access to "
                    "only some"
                ),
            )
        if call.path_type in CHANGING and request.can_read_body:
            await bodies.whole(
                request, bytes_max=bodies.JSON_BYTES_MAX
            )  # otherwise the resource could change hands while the body arrives slowly
        topic = await target(self._handle, query.path(request, call.path_type))
        if topic is not None and not caller.may(topic):
            # Without the topic's name: the caller may know the id of a message but not where it belongs.
            raise RequestError(
                "forbidden", f"the token {caller.name!r} has no access to the topic of this resource"
            )

    # ------------------------------------------------------------------ the audit

    async def _audited(
        self, request: web.Request, call: Route | None, caller: Access, answer: Awaitable[web.StreamResponse]
    ) -> web.StreamResponse:
        """Return the response, and write its outcome to the audit log."""
        try:
            response = await answer
        except BaseException as error:
            self._audit(request, call, caller.name, _outcome(error))
            raise
        self._audit(request, call, caller.name, str(response.status))
        return response

    def _audit(self, request: web.Request, call: Route | None, who: str, outcome: str) -> None:
        if call is not None and call.audited:
            audit.act(request, who, call.name, outcome)


def _unauthenticated(detail: str, challenge: str) -> web.Response:
    return problem("unauthenticated", detail, headers={hdrs.WWW_AUTHENTICATE: challenge})


def _outcome(error: BaseException) -> str:
    if isinstance(error, (TimerwheelError, StoreError)):
        return error.code
    return str(error.status) if isinstance(error, web.HTTPException) else type(error).__name__
