"""One attempt: a signed request to the URL of a subscription or a task, and its outcome.

1. An attempt ends within its `timeout_ms`, whatever the receiver does: look-up, connection,
   request and answer together. An answer that trickles in is cut off like one that never arrives.
2. At most ANSWER_BYTES_MAX of an answer are read; then the connection is closed.
3. Only idle connections outlive an attempt: no cookies, no redirects, no proxies of the environment.

Belongs to the event loop. Any number of attempts run at once; the caller limits them.
"""

import asyncio
import io
import logging
import os
import socket
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver
from aiohttp.http_exceptions import HttpProcessingError

from timerwheel import broken_connection
from timerwheel.broken_connection import BrokenConnectionError
from timerwheel.clock import Clock
from timerwheel.model.messages import MessageView
from timerwheel.push.addresses import NOT_PUBLIC, guarded_sockets
from timerwheel.push.answers import Connector
from timerwheel.push.flight import Flight
from timerwheel.push.outcome import Outcome, classify, failed
from timerwheel.push.request import headers_of
from timerwheel.push.resolver import PooledResolver
from timerwheel.push.subscription import Subscription

ANSWER_BYTES_MAX = 64 << 10
ANSWER_KEPT_BYTES_MAX = 256
CALLS_MAX = 2_048
IDLE_CONNECTION_S = 5.0
_REASON_CHARACTERS_MAX = 200
_BROKEN = (
    BrokenConnectionError,
    aiohttp.ServerDisconnectedError,
    ConnectionResetError,
    aiohttp.ClientOSError,
)
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

logger = logging.getLogger(__name__)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to make: `headers` returns those of a request at a time, since they are signed with it.

    `name` says in logs whose it is. Of the answer's body the first `kept_bytes` are kept. `flight` notes
    when it is sent.
    """

    name: str
    url: str
    headers: Callable[[int], dict[str, str]]
    body: bytes
    timeout_ms: int
    method: str = "POST"
    kept_bytes: int = 0
    flight: Flight | None = None


class Reply(msgspec.Struct, frozen=True):
    """The outcome of a call, and the answer that there was: its headers and the beginning of its body."""

    outcome: Outcome
    headers: Mapping[str, str] = {}
    body: bytes = b""
    truncated: bool = False


class Caller:
    """Makes attempts. One caller serves all subscriptions and tasks."""

    def __init__(
        self,
        clock: Clock,
        *,
        allow_private: bool,
        calls_max: int = CALLS_MAX,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._clock = clock
        self._places = asyncio.Semaphore(calls_max)
        self._resolver = resolver or PooledResolver(clock)
        connector = Connector(
            limit=0,
            resolver=self._resolver,
            keepalive_timeout=IDLE_CONNECTION_S,
            socket_factory=guarded_sockets(allow_private=allow_private),
        )
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        trace.on_request_headers_sent.append(_note_sent)
        trace.on_request_chunk_sent.append(_note_sent)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `attempt` keeps the time
            auto_decompress=False,
            trust_env=False,
            trace_configs=[trace],
            middlewares=(broken_connection.reported,),
        )

    async def attempt(
        self, subscription: Subscription, message: MessageView, number: int = 1, flight: Flight | None = None
    ) -> Outcome:
        """Deliver once; `number` counts the attempts from 1, `flight` notes when it is sent.

        Every failure is an outcome; only a cancellation raises, and ends the request.
        While `calls_max` are in progress the next one waits; its time begins after that.
        """
        call = Call(
            name=f"subscription {subscription.id}",
            url=subscription.url,
            headers=lambda now_ms: headers_of(subscription, message, now_ms, number),
            body=message.body,
            timeout_ms=subscription.timeout_ms,
            kept_bytes=ANSWER_KEPT_BYTES_MAX,
            flight=flight,
        )
        reply = await self.call(call)
        return msgspec.structs.replace(reply.outcome, answer=reply.body.decode(errors="replace"))

    async def call(self, call: Call) -> Reply:
        """Make one call; every failure is an outcome, as in `attempt`."""
        async with self._places:
            return await self._call(call)

    async def _call(self, call: Call) -> Reply:
        began_ms = self._clock.monotonic_ms()
        replies: list[Reply] = []
        task = asyncio.create_task(self._exchange(call, replies))
        try:
            await self._clock.wait_for(task, call.timeout_ms)
        finally:
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        late = Reply(failed(f"no complete response within {call.timeout_ms} ms"))
        reply = replies[0] if replies else late
        outcome = msgspec.structs.replace(reply.outcome, latency_ms=self._clock.monotonic_ms() - began_ms)
        return msgspec.structs.replace(reply, outcome=outcome)

    async def _exchange(self, call: Call, replies: list[Reply]) -> None:
        trace = SimpleNamespace(reused=False, flight=call.flight)
        try:
            try:
                reply = await self._request(call, trace)
            except _BROKEN:
                if not trace.reused:
                    raise
                # The receiver closed an idle connection as we took it: not its fault, and not an attempt.
                if call.flight is not None:
                    await call.flight.repeat()
                reply = await self._request(call, SimpleNamespace(reused=False, flight=call.flight))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reply = Reply(failed(_reason(error)))
        except Exception as error:  # whatever it is, the attempt must end, or its lease is kept
            logger.exception("an attempt to call for %s failed unexpectedly", call.name)
            reply = Reply(failed(f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS_MAX]))
        replies.append(reply)

    async def _request(self, call: Call, trace: SimpleNamespace) -> Reply:
        async with self._session.request(
            call.method,
            call.url,
            data=io.BytesIO(call.body) if call.body or call.method in _WITH_BODY else None,
            headers=call.headers(self._clock.now_ms()),
            allow_redirects=False,
            trace_request_ctx=trace,
        ) as answer:
            left_bytes, kept = ANSWER_BYTES_MAX, bytearray()
            while left_bytes > 0 and (part := await answer.content.read(left_bytes)):
                left_bytes -= len(part)
                kept += part[: max(call.kept_bytes - len(kept), 0)]
            if left_bytes <= 0:
                answer.close()
            outcome = classify(answer.status, answer.headers, self._clock.now_ms())
            truncated = ANSWER_BYTES_MAX - left_bytes > len(kept)
            return Reply(outcome, answer.headers, bytes(kept), truncated)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._resolver.close()


async def _note_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _parameters: Any) -> None:  # noqa: ANN401
    context.trace_request_ctx.reused = True


async def _note_sent(_session: aiohttp.ClientSession, context: SimpleNamespace, _parameters: Any) -> None:  # noqa: ANN401
    flight: Flight | None = context.trace_request_ctx.flight
    if flight is not None:
        flight.sent()


def _reason(error: Exception) -> str:
    """Describe the failure for a person, in one line."""
    if isinstance(error, BrokenConnectionError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        text = f"{error.host} has no address: {_os_reason(error.os_error)}"
    elif isinstance(error, aiohttp.ClientSSLError):
        text = f"TLS: {error}"
    elif isinstance(error, aiohttp.ClientConnectorError):
        text = f"no connection: {_os_reason(error.os_error)}"
    elif isinstance(error, aiohttp.ServerDisconnectedError):
        text = "the receiver closed the connection without a response"
    elif isinstance(error, aiohttp.ClientResponseError):
        text = f"not a valid HTTP response: {error.message}"
    elif isinstance(error, aiohttp.ClientPayloadError):
        cause = error.__cause__
        why = cause.message if isinstance(cause, HttpProcessingError) else error
        text = f"not a complete HTTP response: {why}"
    elif isinstance(error, OSError):
        text = f"the connection broke: {_os_reason(error)}"
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_REASON_CHARACTERS_MAX]


def _os_reason(error: OSError) -> str:
    """Return the system's text for the error. Python's names the address, which callers may not see."""
    if isinstance(error, socket.gaierror):
        return error.strerror or "the lookup failed"
    if NOT_PUBLIC in str(error):  # of one address or of several
        return NOT_PUBLIC
    return os.strerror(error.errno) if error.errno else "unknown reason"
