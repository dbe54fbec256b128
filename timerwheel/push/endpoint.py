"""One attempt: a signed POST to a subscription's URL, and its outcome.

1. An attempt ends within the subscription's `timeout_ms`, whatever the receiver does: look-up, connection,
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
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver

from timerwheel.clock import Clock
from timerwheel.model.messages import MessageView
from timerwheel.push.addresses import NOT_PUBLIC, guarded_sockets
from timerwheel.push.outcome import Outcome, classify, failed
from timerwheel.push.request import headers_of
from timerwheel.push.resolver import PooledResolver
from timerwheel.push.subscription import Subscription

ANSWER_BYTES_MAX = 64 << 10
CALLS_MAX = 2_048
IDLE_CONNECTION_S = 5.0
_REASON_CHARACTERS_MAX = 200

logger = logging.getLogger(__name__)


class Caller:
    """Makes attempts. One caller serves all subscriptions."""

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
        connector = aiohttp.TCPConnector(
            limit=0,
            resolver=self._resolver,
            keepalive_timeout=IDLE_CONNECTION_S,
            socket_factory=guarded_sockets(allow_private=allow_private),
        )
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `attempt` keeps the time
            auto_decompress=False,
            trust_env=False,
            trace_configs=[trace],
        )

    async def attempt(self, subscription: Subscription, message: MessageView, number: int = 1) -> Outcome:
        """Deliver once; `number` counts the attempts from 1.

        Every failure is an outcome; only a cancellation raises, and ends the request.
        While `calls_max` are in progress the next one waits; its time begins after that.
        """
        async with self._places:
            return await self._attempt(subscription, message, number)

    async def _attempt(self, subscription: Subscription, message: MessageView, number: int) -> Outcome:
        began_ms = self._clock.monotonic_ms()
        outcomes: list[Outcome] = []
        task = asyncio.create_task(self._exchange(subscription, message, number, outcomes))
        try:
            await self._clock.wait_for(task, subscription.timeout_ms)
        finally:
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        outcome = (
            outcomes[0] if outcomes else failed(f"no complete response within {subscription.timeout_ms} ms")
        )
        return msgspec.structs.replace(outcome, latency_ms=self._clock.monotonic_ms() - began_ms)

    async def _exchange(
        self, subscription: Subscription, message: MessageView, number: int, outcomes: list[Outcome]
    ) -> None:
        trace = SimpleNamespace(reused=False)
        try:
            try:
                outcome = await self._post(subscription, message, number, trace)
            except (aiohttp.ServerDisconnectedError, ConnectionResetError, aiohttp.ClientOSError):
                if not trace.reused:
                    raise
                # The receiver closed an idle connection as we took it: not its fault, and not an attempt.
                outcome = await self._post(subscription, message, number, SimpleNamespace(reused=False))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            outcome = failed(_reason(error))
        except Exception as error:
            logger.exception("an attempt to deliver to subscription %s failed unexpectedly", subscription.id)
            outcome = failed(f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS_MAX])
        outcomes.append(outcome)

    async def _post(
        self, subscription: Subscription, message: MessageView, number: int, trace: SimpleNamespace
    ) -> Outcome:
        now_ms = self._clock.now_ms()
        async with self._session.post(
            subscription.url,
            data=io.BytesIO(message.body),
            headers=headers_of(subscription, message, now_ms, number),
            allow_redirects=False,
            trace_request_ctx=trace,
        ) as answer:
            left_bytes = ANSWER_BYTES_MAX
            while left_bytes > 0 and (part := await answer.content.read(left_bytes)):
                left_bytes -= len(part)
            if left_bytes <= 0:
                answer.close()
            return classify(answer.status, answer.headers, self._clock.now_ms())

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._resolver.close()


async def _note_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _parameters: Any) -> None:  # noqa: ANN401
    context.trace_request_ctx.reused = True


def _reason(error: Exception) -> str:
    """Describe the failure for a person, in one line."""
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
