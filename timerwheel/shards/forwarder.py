"""Sends calls to the processes of shards, and passes their answers on.

1. A call goes to the process that leads its shard, and nowhere from there: the process of a shard forwards
   nothing, so no call can go in circles.
2. A call is repeated once, at the next leader, only if the first has stored nothing of it: no connection was
   made, or the answer is 503 `not_ready`.
3. If the connection breaks after the call was sent, the answer says that the outcome is unknown, unless the
   call may be repeated without harm. So it does if the process stops to answer at all, or was replaced.
4. What has begun to answer ends soon, or is given up: no caller waits for a process that hangs in the middle.
"""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import aiohttp
import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict, MultiMapping

from timerwheel.api.http.problems import end_event, problem
from timerwheel.api.http.responses import REQUEST_ID_HEADER
from timerwheel.api.http.route import EVENTS, Route
from timerwheel.broken_connection import UnsentError
from timerwheel.errors import NotReadyError, OutcomeUnknownError
from timerwheel.shards.connection_pool import ConnectionPool
from timerwheel.shards.leaders import Leaders, Place, ShardNotReadyError
from timerwheel.telemetry.logs import REQUEST_ID
from timerwheel.telemetry.throttled_log import Troubles

CONNECT_S_MAX = 2.0
ANSWER_S_MAX = 90.0
"""How long a shard may say nothing before it answers: longer than any call may wait for messages."""
REST_S_MAX = 10.0
"""How long the rest of an answer may take once it has begun, and a pause within a long one."""
WHOLE_BYTES_MAX = 1 << 16
"""Larger answers are passed on in pieces."""
WRITE_S_MAX = 30.0
"""How long a client may read nothing of a stream."""
OWN_S_MAX = 5.0
"""How long this node's own process may take to give its metrics."""
EVENT_END = b"\n\n"
OK = 200
UNAVAILABLE = 503
UNKNOWN = 401
PROCESSES_MAX = 1_000
"""How many processes are remembered of which something was logged."""
NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
PLAIN = frozenset({"receive", "acknowledge"})
SAFE = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
REPEATABLE = frozenset({"receive", "acknowledge", "extend"})
"""POSTs of consumers that may be repeated: what they miss is delivered again, and what is done stays done."""

logger = logging.getLogger(__name__)

# Of the connection and not of the call (RFC 9110, 7.6.1), or set by each process itself.
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"proxy-authenticate", "proxy-authorization", "proxy-authentication-info"}
)
# The node has judged what a browser says of the page, and read the body.
JUDGED = frozenset({"host", "content-length", "expect", "origin", "referer", "cookie", "x-request-id"})
OWN_OF_ANSWERS = frozenset({"content-length", "date", "server", "x-request-id"})


class Call(NamedTuple):
    """A call as a shard gets it."""

    method: str
    target: str
    """Path and query, as they are on the wire."""
    headers: CIMultiDict[str]
    body: bytes | bytearray | None = None
    may_repeat: bool = False
    """Whether it does no harm to make the call again, though it may have been made."""
    waits: bool = False
    """Whether the answer is a stream that may be silent for any time."""
    is_plain: bool = False
    """Whether the shard may take it on its fast path, which knows no ids of requests."""

    @classmethod
    def of(cls, request: web.Request, route: Route, body: bytes | bytearray | None) -> "Call":
        """Return a client's request as a call to a shard."""
        return cls(
            request.method,
            request.rel_url.raw_path_qs,
            headers_for_shard(request.headers),
            body,
            may_repeat=request.method in SAFE or route.name in REPEATABLE,
            waits=route.answer_kind == EVENTS,
            is_plain=route.name in PLAIN and REQUEST_ID_HEADER not in request.headers,
        )

    def in_json(self, body: bytes | None = None) -> "Call":
        """Return the same call, with this body if one is given, for an answer that is read here."""
        headers = self.headers.copy()
        headers[hdrs.ACCEPT_ENCODING] = "identity"
        method = hdrs.METH_GET if self.method == hdrs.METH_HEAD else self.method
        if body is None:
            return self._replace(headers=headers, method=method)
        headers[hdrs.CONTENT_TYPE] = "application/json"
        return self._replace(headers=headers, method=method, body=body)


class Answer(NamedTuple):
    """A whole answer."""

    shard: int
    status: int
    headers: CIMultiDict[str]
    body: bytes


Failure: TypeAlias = NotReadyError | OutcomeUnknownError
"""Why a call has no answer: nothing was stored, or nobody knows."""


class _Problem(msgspec.Struct):
    code: str = ""
    leader: str | None = None


def headers_for_shard(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """Return the headers of a client's request that concern its call."""
    dropped = HOP_BY_HOP | JUDGED | _named_by_connection(headers)
    kept = CIMultiDict[str]()
    for name, value in headers.items():
        lower = name.lower()
        if lower not in dropped and not lower.startswith(("sec-fetch-", "access-control-")):
            kept.add(name, value)
    return kept


def headers_for_client(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """Return the headers of a shard's answer that concern its content."""
    dropped = HOP_BY_HOP | OWN_OF_ANSWERS | _named_by_connection(headers)
    kept = CIMultiDict[str]()
    for name, value in headers.items():
        if name.lower() not in dropped:
            kept.add(name, value)
    return kept


def _named_by_connection(headers: MultiMapping[str]) -> frozenset[str]:
    named = headers.getall(hdrs.CONNECTION, ())
    return frozenset(one.strip().lower() for value in named for one in value.split(","))


class Forwarder:
    """See the module. Belongs to the event loop."""

    def __init__(self, leaders: Leaders, pool: ConnectionPool, rest_s_max: float = REST_S_MAX) -> None:
        self.leaders = leaders
        self._pool = pool
        self._rest_s_max = rest_s_max
        self._strangers = Troubles(leaders.clock, PROCESSES_MAX)
        self._breaks = Troubles(leaders.clock, PROCESSES_MAX)
        self.forwarded = 0
        self.repeated = 0
        self.interrupted = 0

    async def open(self, shard: int, call: Call) -> aiohttp.ClientResponse:
        """Make a call, and return its answer with the body still to come.

        Raises ShardNotReadyError if nothing was stored, and OutcomeUnknownError.
        """
        url = await self.leaders.found(shard)
        try:
            response = await self._made(shard, url, call)
            if response.status != UNAVAILABLE or not await self._has_refused(shard, url, call, response):
                return response
            response.release()
        except ShardNotReadyError:
            logger.debug("shard %d is not at %s", shard, url)
        again = await self.leaders.found(shard)
        self.repeated += 1
        return await self._made(shard, again, call)

    async def _made(self, shard: int, url: str, call: Call) -> aiohttp.ClientResponse:
        headers = CIMultiDict(call.headers)
        if (request_id := REQUEST_ID.get()) is not None and not call.is_plain:
            headers[REQUEST_ID_HEADER] = request_id
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_S_MAX, sock_read=None if call.waits else ANSWER_S_MAX
        )
        self.forwarded += 1
        try:
            async with self.leaders.serving(shard, url):
                response = await self._pool.request(
                    call.method,
                    url + call.target,
                    headers=headers,
                    data=call.body,
                    timeout=timeout,
                )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if error.errno in NO_FILES:  # says nothing about the shard
                raise ShardNotReadyError(shard, "this node has no file descriptor left to call it") from error
            self.leaders.gone(shard, url)
            raise ShardNotReadyError(shard, f"{url} cannot be reached") from error
        except UnsentError as error:
            raise ShardNotReadyError(shard, f"{url} closed the connection") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._broken(shard, url, call, error) from error
        if response.status == UNKNOWN:
            self._warn_of_tokens(shard, url)
        return response

    def _warn_of_tokens(self, shard: int, url: str) -> None:
        """Warn that a process rejected a token that this node accepts."""
        if self._strangers.met(url):
            logger.warning(
                "shard %d at %s rejected a token that this node accepts; give all nodes the same tokens.json",
                shard, url,
            )  # fmt: skip

    def _broken(
        self, shard: int, url: str, call: Call, error: Exception
    ) -> NotReadyError | OutcomeUnknownError:
        self.interrupted += 1
        if self._breaks.met(url):
            logger.warning("the connection to shard %d at %s broke before the answer: %r", shard, url, error)
        if call.may_repeat:
            return NotReadyError(f"the connection to shard {shard} at {url} broke; make the call again")
        return OutcomeUnknownError(
            f"the connection to shard {shard} at {url} broke before the answer: the call may have been "
            "carried out"
        )

    async def _has_refused(self, shard: int, url: str, call: Call, response: aiohttp.ClientResponse) -> bool:
        """Whether a process refused a call because it does not serve the shard, and stored nothing."""
        try:
            refusal = msgspec.json.decode(await self._rest(shard, call, response), type=_Problem)
        except msgspec.DecodeError:
            return False
        if refusal.code != NotReadyError.code:
            return False
        self.leaders.heard(shard, url, refusal.leader)
        return True

    async def _rest(self, shard: int, call: Call, response: aiohttp.ClientResponse) -> bytes:
        """Return the body of an answer that has begun. Raises as `open`."""
        try:
            async with (
                self.leaders.serving(shard, str(response.url)),
                asyncio.timeout(self._rest_s_max),
            ):
                return await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            response.close()
            raise self._broken(shard, str(response.url.origin()), call, error) from error

    async def ask(self, shard: int, call: Call) -> Answer:
        """Make a call and return its whole answer. Raises as `open`."""
        response = await self.open(shard, call)
        async with response:
            body = await self._rest(shard, call, response)
            return Answer(shard, response.status, headers_for_client(response.headers), body)

    async def of_own(self, place: Place, path: str, headers: Mapping[str, str]) -> bytes | None:
        """Return what this node's process of a shard has at a path; None if it does not give it."""
        timeout = aiohttp.ClientTimeout(total=OWN_S_MAX)
        try:
            async with await self._pool.request(
                hdrs.METH_GET, place.own_url + path, headers=headers, timeout=timeout
            ) as response:
                body = await response.read()
                return body if response.status == OK else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    async def ask_each(self, calls: Iterable[tuple[int, Call]]) -> list[Answer]:
        """Make calls at the same time; returns their answers in the same order. Raises as `open`."""
        found: list[Answer] = []
        for one in await self.try_each(calls):
            if not isinstance(one, Answer):
                raise one
            found.append(one)
        return found

    async def try_each(self, calls: Iterable[tuple[int, Call]]) -> list[Answer | Failure]:
        """Make calls at the same time; returns each answer, or why there is none, in the same order."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._unraised(shard, call)) for shard, call in calls]
        return [task.result() for task in tasks]

    async def _unraised(self, shard: int, call: Call) -> Answer | Failure:
        """Return the answer to a call, or its error: other calls are not cancelled for it."""
        try:
            return await self.ask(shard, call)
        except (NotReadyError, OutcomeUnknownError) as error:
            return error

    async def pass_on(self, request: web.Request, shard: int, call: Call) -> web.StreamResponse:
        """Make a call for a client, and give it the answer. Raises as `open`."""
        upstream = await self.open(shard, call)
        async with upstream:
            headers = headers_for_client(upstream.headers)
            length = upstream.content_length
            if request.method == hdrs.METH_HEAD:
                return _of_head(upstream, headers)
            if length is not None and length <= WHOLE_BYTES_MAX:
                body = await self._rest(shard, call, upstream)
                return web.Response(body=body, status=upstream.status, headers=headers)
            pause_s_max = None if call.waits else self._rest_s_max
            return await self._stream(request, shard, upstream, headers, pause_s_max)

    async def _stream(
        self,
        request: web.Request,
        shard: int,
        upstream: aiohttp.ClientResponse,
        headers: CIMultiDict[str],
        pause_s_max: float | None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, headers=headers)
        if (request_id := REQUEST_ID.get()) is not None:
            response.headers[REQUEST_ID_HEADER] = request_id
        response.headers[hdrs.SERVER] = "timerwheel"
        if upstream.content_length is not None:
            response.content_length = upstream.content_length
        if upstream.content_type == EVENTS:
            response.force_close()
        await response.prepare(request)
        is_between = upstream.content_type == EVENTS  # whether a client has whole events, and nothing else
        try:
            async with self.leaders.serving(shard, str(upstream.url)):
                async for part in _parts(upstream, pause_s_max):
                    is_between = False
                    await _write(response, part)
                    is_between = upstream.content_type == EVENTS and part.endswith(EVENT_END)
        except (aiohttp.ClientError, OSError, TimeoutError):
            if not is_between or not await _has_written_end(response, shard):
                if request.transport is not None:
                    request.transport.abort()  # what was written is not all, and must not look so
                return response
        await response.write_eof()
        return response


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write; raises TimeoutError if the client reads nothing."""
    async with asyncio.timeout(WRITE_S_MAX):
        await response.write(data)


async def _has_written_end(response: web.StreamResponse, shard: int) -> bool:
    """End a stream of events whose process does not go on; whether the client took that."""
    end = problem(NotReadyError.code, f"the connection to shard {shard} broke; ask for the stream again")
    try:
        await _write(response, end_event(end))
    except (OSError, TimeoutError):
        return False
    return True


async def _parts(upstream: aiohttp.ClientResponse, pause_s_max: float | None) -> AsyncIterator[bytes]:
    """Yield the body of an answer as it comes; TimeoutError after a pause that is too long."""
    while True:
        async with asyncio.timeout(pause_s_max):
            part = await upstream.content.readany()
        if not part:
            return
        yield part


def _of_head(upstream: aiohttp.ClientResponse, headers: CIMultiDict[str]) -> web.StreamResponse:
    response = web.Response(status=upstream.status, headers=headers)
    if (length := upstream.headers.get(hdrs.CONTENT_LENGTH)) is not None:
        response.headers[hdrs.CONTENT_LENGTH] = length
    return response


def to_client(answer: Answer) -> web.Response:
    """Return a whole answer as it came."""
    return web.Response(body=answer.body, status=answer.status, headers=answer.headers)
