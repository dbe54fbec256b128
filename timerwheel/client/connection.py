"""A connection pool to one service: calls and byte streams, with errors as ClientError."""

import ctypes
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from io import BytesIO
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from msgspec import UNSET
from yarl import URL

from timerwheel import broken_connection
from timerwheel.client.errors import (
    AddressError,
    ClientError,
    ConflictError,
    DeniedError,
    NotFoundError,
    OutcomeUnknownError,
    UnreachableError,
)
from timerwheel.client.retries import AutomaticKeys, Retries, retry_after_ms
from timerwheel.client.tracing import current_context
from timerwheel.clock import Clock
from timerwheel.wire.arrow import MEDIA_TYPE, load
from timerwheel.wire.problem import Problem

_Answer = TypeVar("_Answer")
_LARGE_BYTES = 1 << 16
_NOT_READY = "not_ready"
_CHECK_MS = 2_000
_USER = re.compile(r"(?:(?<=//)|^)[^/@]*@")
_SIGN = {"X-Requested-With": "timerwheel"}
_KINDS: dict[int, type[ClientError]] = {
    401: DeniedError,
    403: DeniedError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
}


class Stream(NamedTuple):
    """The bytes of an Arrow stream, to send as they are."""

    data: bytes


class _Response(NamedTuple):
    """A response that is not a problem; `etag` is empty if it has none."""

    status: int
    body: bytes
    etag: str


class Connection:
    """A connection pool. Safe to share between tasks of an event loop. AddressError for an invalid URL."""

    def __init__(
        self,
        url: str,
        timeout_ms: int,
        clock: Clock,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        *,
        retry_ms: int = 0,
    ) -> None:
        self.url = _checked(url).rstrip("/")
        self._leader_url: str | None = None
        self._retries = Retries(clock, retry_ms)
        self.clock = clock
        # Compression makes pages of messages slower, except over slow networks.
        self._headers = {"Accept-Encoding": "identity"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._ssl_context = ssl_context
        self._timeout_ms = timeout_ms
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Open the connection pool; does not call the service yet."""
        connector = None if self._ssl_context is None else aiohttp.TCPConnector(ssl=self._ssl_context)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            middlewares=(broken_connection.reported_unless_reading,),
        )

    def forget(self) -> None:
        """Drop the pool without closing it, which would end connections that a forked parent still uses."""
        if self._session is not None:
            keep_forever(self._session)
            self._session = None

    async def close(self) -> None:
        """Close every connection; running calls fail with `UnreachableError`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(
        self, messages: Sequence[dict[str, object]], answer: type[_Answer], *, one: bool = False
    ) -> _Answer:
        """Store messages as an array, or `one`; repeats a call that failed, as `Client` says."""
        keys = AutomaticKeys(messages, wanted=self._retries.window_ms > 0)
        content = keys.messages[0] if one else keys.messages

        async def attempt(limit_ms: int) -> _Answer:
            return await self.call("POST", "/v1/messages", answer, content=content, limit_ms=limit_ms)

        return await self._retries.run(attempt, self._timeout_ms, is_keyed=keys.given)

    async def call(
        self,
        method: str,
        path: str,
        answer: type[_Answer],
        *,
        content: object = None,
        wait_ms: int = 0,
        limit_ms: int | None = None,
        if_match: str | None = None,
        if_new: bool = False,
    ) -> _Answer:
        """Return the service's response; a long poll may take `wait_ms` on top of each call's timeout.

        `limit_ms` replaces both. With `if_match`, an ETag, only what still has it is changed; with `if_new`,
        only what does not exist is made.
        """
        limit_ms = self._timeout_ms + wait_ms if limit_ms is None else limit_ms
        condition = {} if if_match is None else {"If-Match": if_match if if_match == "*" else f'"{if_match}"'}
        if if_new:
            condition["If-None-Match"] = "*"
        return self._decoded(await self._sent(method, path, content, limit_ms, condition), answer)

    async def etag(self, path: str) -> str:
        """Return the ETag of what is at this path, without its quotes."""
        return (await self._sent("GET", path, None, self._timeout_ms)).etag.strip('"')

    async def _sent(
        self,
        method: str,
        path: str,
        content: object,
        limit_ms: int,
        condition: Mapping[str, str] = MappingProxyType({}),
    ) -> "_Response":
        return await self._following(partial(self._call, method, path, content, limit_ms, condition))

    async def _following(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Return the answer of the service, or of the leader that it names."""
        while True:
            try:
                return await call()
            except ClientError as error:
                if not self._follows(error):
                    raise

    async def _call(
        self,
        method: str,
        path: str,
        content: object,
        limit_ms: int,
        condition: Mapping[str, str] = MappingProxyType({}),
    ) -> "_Response":
        limit = aiohttp.ClientTimeout(total=limit_ms / 1000)
        async with self._request(method, path, limit, limit_ms, content, condition) as response:
            body = await response.read()
            if not response.ok:
                raise_problem(response.status, body, response.headers.get("Retry-After"))
            return _Response(response.status, body, response.headers.get("ETag", ""))

    def _decoded(self, found: "_Response", answer: type[_Answer]) -> _Answer:
        try:
            return msgspec.json.decode(found.body or b"null", type=answer)
        except msgspec.DecodeError as error:
            self._leader_url = None  # what answers there is something else
            detail = f"{without_user(self.url)} is not a timerwheel service: {error}"
            raise ClientError(found.status, "illegal_answer", detail) from error

    async def call_arrow(self, method: str, path: str, *, content: object = None, wait_ms: int = 0) -> Any:  # noqa: ANN401 - a pyarrow Table
        """Return the response as a pyarrow Table; `content` may be a `Stream`, and is JSON otherwise."""
        call = partial(self._call_arrow, method, path, content, self._timeout_ms + wait_ms)
        body = await self._following(call)
        return load().ipc.open_stream(body).read_all()

    async def _call_arrow(self, method: str, path: str, content: object, limit_ms: int) -> bytes:
        load()  # without pyarrow, nothing is called
        limit = aiohttp.ClientTimeout(total=limit_ms / 1000)
        async with self._request(method, path, limit, limit_ms, content, {"Accept": MEDIA_TYPE}) as response:
            body = await response.read()
            if not response.ok:
                raise_problem(response.status, body, response.headers.get("Retry-After"))
            if response.content_type != MEDIA_TYPE:
                here = without_user(self.url)
                detail = f"{here} answered {response.content_type}, not Arrow; is it an older service?"
                raise ClientError(response.status, "illegal_answer", detail)
            return body

    async def stream(self, path: str, silence_ms: int) -> AsyncIterator[bytes]:
        """Yield the bytes of an endless response as they arrive; `silence_ms` without any is a failure.

        DeniedError if the token was revoked or has expired by now: the service just breaks off then.
        """
        limit = aiohttp.ClientTimeout(
            total=None, connect=self._timeout_ms / 1000, sock_read=silence_ms / 1000
        )
        began = False
        while True:
            try:
                async with self._request("GET", path, limit, silence_ms, None) as response:
                    if not response.ok:
                        problem = await response.read()
                        raise_problem(response.status, problem, response.headers.get("Retry-After"))
                    began = True
                    async for part in response.content.iter_any():
                        yield part
                    return
            except ClientError as error:
                if began and isinstance(error, UnreachableError):
                    await self._check_admitted(error)
                if not self._follows(error) or began:
                    raise

    async def _check_admitted(self, broken: UnreachableError) -> None:
        """Raise DeniedError if that is why a response broke off."""
        try:
            await self._call("GET", "/v1/token", None, min(self._timeout_ms, _CHECK_MS))
        except DeniedError as error:
            raise error from broken
        except ClientError:
            return  # the service is away, or older than this call

    def _follows(self, error: ClientError) -> bool:
        """Whether the call should be made again at the leader, which this error names.

        A service that is reached by TLS cannot send the client, with its token, to one that is not. A leader
        that fails, or does not lead any more, is forgotten: the next call begins at the client's own URL.
        """
        came_from, self._leader_url = self._leader_url, None
        if isinstance(error, UnreachableError) or error.code == _NOT_READY:
            leader = error.leader
            secure = self.url.lower().startswith("https:")
            if leader is None or _wrong(leader) or (secure and not leader.lower().startswith("https:")):
                return False
            self._leader_url = leader.rstrip("/")
            return came_from is None and self._leader_url != self.url
        self._leader_url = came_from
        return False

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        limit: aiohttp.ClientTimeout,
        limit_ms: int,
        content: object,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the client is not open: use `async with Client(...) as client`")
        # What has no content may be a GET that takes messages, for which an open service asks for the sign.
        kind = MEDIA_TYPE if isinstance(content, Stream) else "application/json"
        headers = _SIGN if content is None else {"Content-Type": kind} | current_context()
        headers = {**headers, **more}
        data = None if content is None else _data(content)  # raises UnicodeEncodeError for lone surrogates
        url = self._leader_url or self.url
        try:
            async with self._session.request(
                method,
                URL(url + path, encoded=True),
                data=data,
                headers=headers,
                timeout=limit,
                allow_redirects=False,
            ) as response:
                yield response
        except TimeoutError as error:
            detail = f"{without_user(url)} did not answer within {limit_ms} ms"
            raise UnreachableError(None, "timeout", detail) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            unsent = isinstance(error, aiohttp.ClientConnectorError | broken_connection.UnsentError)
            began = not unsent and isinstance(error, broken_connection.BrokenConnectionError)
            shown = without_user(url)
            what = f"{shown} broke off the call" if began else f"cannot reach {shown}"
            detail = f"{what}: {_reason(error)}"
            if isinstance(error, aiohttp.ClientPayloadError):
                detail = f"{shown} broke off its answer"
            unreachable = UnreachableError(None, "unreachable", detail)
            unreachable.connected = not unsent
            unreachable.final = isinstance(error, aiohttp.ClientSSLError)
            raise unreachable from error


def keep_forever(thing: object) -> None:
    """Never finalize this: a finalizer would act on what a forked parent still uses."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def without_user(url: str) -> str:
    """Return a URL as messages show it: without a user name and a password, as for a proxy."""
    return _USER.sub("", url, count=1)


def _checked(url: str) -> str:
    """Check a service's URL: with an invalid one, each call would fail as if the service were down."""
    wrong = _wrong(url)
    if wrong:
        meant = "://" not in url and not _wrong(f"http://{url}")
        url = without_user(url)
        advice = f"did you mean http://{url}?" if meant else "write one like http://127.0.0.1:8686"
        raise AddressError(f"{url!r} is not the address of a service, {wrong}; {advice}")
    return url


def _wrong(url: str) -> str:
    """Return what is wrong with a service's URL; empty if nothing is."""
    if " " in url or not url.isprintable():
        return "which has no spaces"
    if not url.lower().startswith(("http://", "https://")):
        return "which begins with http:// or https://"
    try:
        parsed = URL(url)
    except ValueError as error:
        return str(error)
    if not parsed.raw_host:
        return "which names a host"
    if parsed.port == 0:
        return "whose port is from 1 to 65535"
    return "which ends with its path" if parsed.raw_query_string or parsed.raw_fragment else ""


def part(text: str) -> str:
    """Return a name encoded as one part of a path."""
    return quote(text, safe="")


def with_query(path: str, query: dict[str, Any]) -> str:
    """Return the path with the given parameters."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def said(reason: str | None) -> str | None:
    """Return a reason without lone surrogates, which UTF-8 cannot have, and texts of errors may."""
    return None if reason is None else reason.encode(errors="replace").decode()


def given(**values: object) -> dict[str, object]:
    """Return the fields that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def arguments(values: Mapping[str, object], *nullable: str) -> dict[str, object]:
    """Return the arguments that a method was given: `arguments(locals())` is its first line.

    UNSET was not given, and nor was None, unless the parameter is `nullable`: then None is a value.
    """
    return {
        name: value
        for name, value in values.items()
        if name != "self" and value is not UNSET and (value is not None or name in nullable)
    }


def _data(content: object) -> bytes | BytesIO:
    data = content.data if isinstance(content, Stream) else msgspec.json.encode(content)
    return data if len(data) <= _LARGE_BYTES else BytesIO(data)  # large ones are then sent in parts


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"TLS failed: {error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        if isinstance(error.os_error, socket.gaierror):  # numbers of its own, which are not errnos
            return error.os_error.strerror
        return os.strerror(error.os_error.errno) if error.os_error.errno else error.os_error.strerror
    return str(error) or type(error).__name__


class _Problem(Problem, frozen=True, kw_only=True):
    """A problem, with what a standby adds."""

    leader: str | None = None


def raise_problem(status: int | None, body: bytes, retry_after: str | None = None) -> NoReturn:
    """Raise the problem in a body; `status` is None if it did not come with a response."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        detail = f"the response, with status {status}, is not one of timerwheel"
        error = _KINDS.get(status or 0, ClientError)(status, "illegal_answer", detail)
        error.retry_after_ms = retry_after_ms(retry_after)
        raise error from None
    unknown = problem.code == "outcome_unknown"
    kind = OutcomeUnknownError if unknown else _KINDS.get(status or 0, ClientError)
    error = kind(status, problem.code, problem.detail, problem.errors)
    error.leader, error.retry_after_ms = problem.leader, retry_after_ms(retry_after)
    raise error
