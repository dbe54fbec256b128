"""A small async client of the HTTP API.

    async with Client("http://127.0.0.1:8686") as client:
        await client.send("orders", "close order 17", delay="30m")
        async for message in client.receive("orders"):
            print(message.text)

Every call raises a `ClientError` that carries the service's stable `code`: `NotFoundError` for an unknown
message, topic or queue, `ConflictError` for a message that was delivered or recalled before,
`UnreachableError` when no answer came. After an `UnreachableError` a send may or may not have been stored.
"""

import base64
import datetime as dt
import os
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Any, NoReturn, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from timerwheel.message import LevelInfo, Receipt, SlotInfo, State, TopicInfo, WheelInfo

DEFAULT_URL = "http://127.0.0.1:8686"
BEGINNING = 0
END = -1
_PAGE_MESSAGES = 1_000
_READ_MESSAGES = 500
_POLL_MS = 20_000
_MS = dt.timedelta(milliseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_Answer = TypeVar("_Answer")

Sent = Receipt


class When(TypedDict, total=False):
    """When to deliver; at most one. None of them is at once."""

    delay: str | dt.timedelta
    """`"90s"`, `"1h30m"`, `"PT90S"` or a timedelta."""
    delay_ms: int
    deliver_at: dt.datetime | str
    """An aware datetime, or RFC 3339 with zone."""
    deliver_at_ms: int
    delay_level: int


class SendOptions(When, total=False):
    """What a message may have besides topic and body; `properties` go by RocketMQ's names."""

    properties: dict[str, str]
    tags: str
    keys: str | list[str]


class _Addressed(TypedDict):
    topic: str
    body: str | bytes


class Draft(_Addressed, SendOptions, total=False):
    """One message of `send_many`."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it stands, in the shape of the API's JSON; what does not apply is None or empty."""

    id: str
    topic: str
    queue: int
    state: State
    due_ms: int
    enqueue_ms: int
    properties: dict[str, str]
    level: int = 0
    tags: str | None = None
    keys: list[str] = []
    body_text: str | None = msgspec.field(default=None, name="body")
    body_base64: bytes | None = None
    delivered_ms: int | None = None
    lateness_ms: int | None = None
    offset: int | None = None
    recalled_ms: int | None = None
    problem: str | None = None

    @property
    def body(self) -> bytes:
        """The body's bytes."""
        return (self.body_text or "").encode() if self.body_base64 is None else self.body_base64

    @property
    def text(self) -> str:
        """The body as UTF-8; raises UnicodeDecodeError if it is not."""
        return self.body.decode()


class ItemFault(msgspec.Struct, frozen=True):
    """What is wrong with one message of `send_many`; `index` is its place."""

    index: int
    code: str
    detail: str


class ClientError(Exception):
    """The call failed. `status` is None if there was no HTTP answer; `code` is stable."""

    def __init__(
        self, status: int | None, code: str, detail: str, errors: list[ItemFault] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors or []


class NotFoundError(ClientError):
    """No such message, topic or queue."""


class ConflictError(ClientError):
    """The message was delivered or recalled before: `already_delivered`, `already_recalled`."""


class UnreachableError(ClientError):
    """No answer: refused, broken off, or timed out. What a send stored, if anything, is not known."""


class _Pending(msgspec.Struct):
    messages: list[Message]
    cursor: str | None


class _Delivered(msgspec.Struct):
    messages: list[Message]
    next_offset: int


class _Topics(msgspec.Struct):
    topics: list[TopicInfo]


class _Slots(msgspec.Struct):
    slots: list[SlotInfo]


class _Levels(msgspec.Struct):
    levels: list[LevelInfo]


class _Problem(msgspec.Struct):
    code: str
    detail: str
    errors: list[ItemFault] = []


class Client:
    """One connection pool to one service; safe to share between the tasks of an event loop."""

    def __init__(self, url: str = DEFAULT_URL, *, timeout_ms: int = 30_000) -> None:
        """`timeout_ms` is for each call; a long poll may take its waiting time on top."""
        self.url = url.rstrip("/")
        self._timeout_ms = timeout_ms
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the pool; the service is not called yet."""
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the pool."""
        await self.close()

    async def close(self) -> None:
        """Close every connection; calls that run fail with `UnreachableError`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, topic: str, body: str | bytes, **options: Unpack[SendOptions]) -> Sent:
        """Store one message; it is durable when this returns (as the service's `flush` setting says)."""
        draft: Draft = {"topic": topic, "body": body, **options}
        return await self._call("POST", "/v1/messages", Receipt, content=_content(draft))

    async def send_many(self, drafts: Iterable[Draft]) -> list[Sent]:
        """Store messages as one durable unit: all, or none with every fault in `ClientError.errors`."""
        content = [_content(draft) for draft in drafts]
        return await self._call("POST", "/v1/messages", list[Receipt], content=content)

    async def get(self, message_id: str) -> Message:
        """The message as it stands now."""
        return await self._call("GET", _message_path(message_id), Message)

    async def recall(self, message_id: str) -> Message:
        """End a waiting message: it will not be delivered. `ConflictError` if it is too late."""
        return await self._call("DELETE", _message_path(message_id), Message)

    async def reschedule(
        self, message_id: str, *, properties: dict[str, str] | None = None, **when: Unpack[When]
    ) -> Sent:
        """Give a waiting message another due time, by one of `When` or a delay property; the id stays."""
        content = _when_content(when)
        if properties is not None:
            content["properties"] = properties
        return await self._call("PATCH", _message_path(message_id), Receipt, content=content)

    async def pending(
        self, topic: str | None = None, *, due_from_ms: int | None = None, due_to_ms: int | None = None
    ) -> AsyncIterator[Message]:
        """Waiting messages with `due_from_ms` ≤ due < `due_to_ms`, in due order, page by page."""
        query = {"topic": topic, "due_from_ms": due_from_ms, "due_to_ms": due_to_ms}
        cursor: str | None = None
        while True:
            path = _with_query("/v1/messages", {**query, "limit": _PAGE_MESSAGES, "cursor": cursor})
            page = await self._call("GET", path, _Pending)
            for message in page.messages:
                yield message
            cursor = page.cursor
            if cursor is None:
                return

    async def receive(
        self, topic: str, queue: int = 0, *, offset: int = BEGINNING, follow: bool = True
    ) -> AsyncIterator[Message]:
        """Delivered messages of one queue from `offset` on, as they come; `END` is what comes from now on.

        Waits for ever by long polls, also for a topic that nothing was sent to yet; without `follow` it
        stops at the end. To go on later, begin at the last message's `offset` + 1.
        """
        path = f"/v1/topics/{quote(topic, safe='')}/queues/{queue}/messages"
        wait_ms = _POLL_MS if follow else 0
        while True:
            wanted = _with_query(path, {"offset": offset, "max": _READ_MESSAGES, "wait_ms": wait_ms})
            page = await self._call("GET", wanted, _Delivered, wait_ms=wait_ms)
            for message in page.messages:
                yield message
            offset = page.next_offset
            if not page.messages and not follow:
                return

    async def wheel(self) -> WheelInfo:
        """The wheel at a glance: counts per level, next due, overdue."""
        return await self._call("GET", "/v1/wheel", WheelInfo)

    async def slots(
        self, level: str | None = None, *, from_ms: int | None = None, to_ms: int | None = None
    ) -> list[SlotInfo]:
        """Slots in use with their counts; `level` is second, minute, hour or day."""
        query = {"level": level, "from_ms": from_ms, "to_ms": to_ms}
        return (await self._call("GET", _with_query("/v1/wheel/slots", query), _Slots)).slots

    async def levels(self) -> list[LevelInfo]:
        """The legacy delay levels with what waits in each."""
        return (await self._call("GET", "/v1/levels", _Levels)).levels

    async def topics(self) -> list[TopicInfo]:
        """Every topic with its queues and counts."""
        return (await self._call("GET", "/v1/topics", _Topics)).topics

    async def topic(self, name: str) -> TopicInfo:
        """One topic."""
        return await self._call("GET", f"/v1/topics/{quote(name, safe='')}", TopicInfo)

    async def _call(
        self,
        method: str,
        path: str,
        answer: type[_Answer],
        *,
        content: object = None,
        wait_ms: int = 0,
    ) -> _Answer:
        if self._session is None:
            raise RuntimeError("the client is not open: use `async with Client(...) as client`")
        try:
            async with self._session.request(
                method,
                URL(self.url + path, encoded=True),
                data=None if content is None else msgspec.json.encode(content),
                headers=None if content is None else {"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=(self._timeout_ms + wait_ms) / 1000),
                allow_redirects=False,
            ) as response:
                body = await response.read()
        except TimeoutError as error:
            detail = f"{self.url} did not answer within {self._timeout_ms + wait_ms} ms"
            raise UnreachableError(None, "timeout", detail) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            detail = f"cannot reach {self.url}: {_reason(error)}"
            raise UnreachableError(None, "unreachable", detail) from error
        if not response.ok:
            _raise_problem(response.status, body)
        try:
            return msgspec.json.decode(body, type=answer)
        except msgspec.DecodeError as error:
            raise ClientError(
                response.status, "illegal_answer", f"{self.url} is no timerwheel service: {error}"
            ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        return os.strerror(error.os_error.errno) if error.os_error.errno else error.os_error.strerror
    return str(error) or type(error).__name__


def _raise_problem(status: int, body: bytes) -> NoReturn:
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem("illegal_answer", f"an answer with status {status} that no timerwheel gives")
    kind = {404: NotFoundError, 409: ConflictError}.get(status, ClientError)
    raise kind(status, problem.code, problem.detail, problem.errors)


def _message_path(message_id: str) -> str:
    return f"/v1/messages/{quote(message_id, safe='')}"


def _with_query(path: str, query: dict[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _content(draft: Draft) -> dict[str, object]:
    content: dict[str, object] = {"topic": draft["topic"], **_when_content(draft)}
    body = draft["body"]
    if isinstance(body, bytes):
        content["body_base64"] = base64.b64encode(body).decode()
    else:
        content["body"] = body
    for name in ("properties", "tags", "keys"):
        if name in draft:
            content[name] = draft[name]
    return content


def _when_content(when: When | Draft) -> dict[str, object]:
    content: dict[str, object] = {}
    for name in ("delay", "delay_ms", "deliver_at", "deliver_at_ms", "delay_level"):
        if name not in when:
            continue
        value = when[name]
        if isinstance(value, dt.timedelta):
            content["delay_ms"] = -(-value // _MS)
        elif isinstance(value, dt.datetime):
            if value.tzinfo is None:
                raise ValueError("deliver_at needs a zone: datetime(..., tzinfo=...) or .astimezone()")
            content["deliver_at_ms"] = -((_EPOCH - value) // _MS)
        else:
            content[name] = value
    return content
