"""A request in progress: who asks, for what, and the one answer that it gets."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import check_group
from timerwheel.rocketmq.codes import FLAG_ONE_WAY, FLAG_RESPONSE, Result
from timerwheel.rocketmq.frame import Frame, FrameError, encode
from timerwheel.rocketmq.stored_message import Host
from timerwheel.tokens import Scope

INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
SMALL_BYTES: Final = 16 << 10
"""Answers and requests of fewer bytes are never too large, whatever is held."""
TOO_MUCH: Final = "too much is in progress; try again"
NO_FIELDS: Final[Mapping[str, str]] = {}


class Caller(Protocol):
    """The rights of one caller."""

    @property
    def name(self) -> str:
        """The name of the caller in logs and refusals."""

    @property
    def has_all_topics(self) -> bool:
        """Whether the caller has access to all topics, the service's own too."""

    def holds(self, scope: Scope) -> bool:
        """Whether the caller has this scope."""

    def may(self, topic: str) -> bool:
        """Whether the caller has access to the topic."""

    def take(self) -> int:
        """Count a call; returns 0 if it may be served, else how many ms to wait."""

    def charge(self, messages: int) -> None:
        """Count the other messages of a batch, whose first was counted as the call."""


class Callers(Protocol):
    """Knows callers by their tokens."""

    def of_key(self, secret: str) -> Caller | None:
        """Return the caller with this token, empty for none; None if nobody has it or it has expired."""

    def is_current(self, caller: Any) -> bool:  # noqa: ANN401 - what `of_key` returned
        """Whether the caller still has the rights with which it was returned."""


class RefusalError(TimerwheelError):
    """A request that is answered with an error."""

    code = "remoting"

    def __init__(self, result: Result, remark: str) -> None:
        super().__init__(remark)
        self.result = result


class Answer(msgspec.Struct, frozen=True):
    """What a request is answered with."""

    result: int = Result.SUCCESS
    fields: Mapping[str, str] = NO_FIELDS
    body: bytes = b""
    remark: str | None = None


_UNREAD: Final = Answer(Result.SYSTEM_BUSY, remark="read the earlier answers first, and try again")


class Link(Protocol):
    """The connection of a request."""

    @property
    def peer(self) -> Host:
        """Address and port of the client."""

    @property
    def local(self) -> Host:
        """Address and port at which the client reached the service."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written any more."""

    @property
    def takes_more(self) -> bool:
        """Whether the client is there, and reads what it is sent."""

    @property
    def has_room(self) -> bool:
        """Whether the client reads fast enough to be sent messages."""

    def write(self, data: bytes) -> None:
        """Write a frame; nothing happens on a closed connection."""

    def held(self, change: int) -> None:
        """Add `change` to the requests that wait for messages; they do not count as in progress."""

    def ended(self, size_bytes: int) -> None:
        """A request of so many bytes was answered, or needs no answer."""

    def count(self, change_bytes: int) -> bool:
        """Add to the bytes of requests in progress; returns False if too many are held in all."""


Answered = Callable[[int, int], None]
"""Counts a request that was answered, one-way ones too, by its code and the result."""


class Request:
    """See the module. Event loop only."""

    __slots__ = ("_answered", "_is_open", "caller", "frame", "link", "size_bytes")

    def __init__(self, link: Link, frame: Frame, caller: Caller, size_bytes: int, answered: Answered) -> None:
        self.link = link
        self.frame = frame
        self.caller = caller
        self.size_bytes = size_bytes
        self._answered = answered
        self._is_open = True

    @property
    def is_one_way(self) -> bool:
        """Whether the client waits for no answer."""
        return bool(self.frame.flag & FLAG_ONE_WAY)

    def answer(self, answer: Answer) -> None:
        """Write the answer, unless the client wants none. Only the first answer counts."""
        if not self._is_open:
            return
        self._is_open = False
        if len(answer.body) > SMALL_BYTES and not self.link.has_room:
            answer = _UNREAD
        if not self.is_one_way:
            self.link.write(_encoded(self.frame, answer))
        self._answered(self.frame.code, answer.result)
        self.link.ended(self.size_bytes)

    def hold(self, more_bytes: int) -> None:
        """Count so many bytes more until it is answered; RefusalError if too many are held in all."""
        self.size_bytes += more_bytes
        if not self.link.count(more_bytes):
            raise RefusalError(Result.SYSTEM_BUSY, TOO_MUCH)

    def forget_content(self, kept_bytes: int = 0) -> None:
        """Keep only what the answer needs, and so many bytes, for a request that may wait for long."""
        frame = self.frame
        self.frame = Frame(frame.code, frame.opaque, flag=frame.flag, form=frame.form)
        self.link.count(kept_bytes - self.size_bytes)
        self.size_bytes = kept_bytes

    def must_have(self, scope: Scope, *topics: str) -> None:
        """RefusalError NO_PERMISSION unless the caller has the scope, and access to these topics."""
        if not self.caller.holds(scope):
            raise RefusalError(Result.NO_PERMISSION, f"token {self.caller.name!r} lacks the scope {scope}")
        for topic in topics:
            if not self.caller.may(topic):
                detail = f"the token {self.caller.name!r} has no access to topic {topic!r}"
                raise RefusalError(Result.NO_PERMISSION, detail)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a field; RefusalError if it is missing and has no default."""
        value = self.frame.fields.get(name, default)
        if value is None:
            raise RefusalError(Result.SYSTEM_ERROR, f"the field {name} is missing")
        return value

    def group(self, name: str = "consumerGroup") -> str:
        """Return a field that names a group; RefusalError if it is missing, IllegalGroupError."""
        return check_group(self.text(name))

    def number(self, name: str, default: int | None = None, *, low: int = 0, high: int = INT64_MAX) -> int:
        """Return a field as a number within bounds; RefusalError."""
        text = self.frame.fields.get(name)
        if text == "0" and low <= 0:  # what most numbers of a send are
            return 0
        if not text:
            if default is None:
                raise RefusalError(Result.SYSTEM_ERROR, f"the field {name} is missing")
            return default
        return number_of(name, text, low, high)


Handler = Callable[[Request], Answer | Awaitable[Answer] | None]
"""Returns the answer, or None if it answers the request itself."""

_DIGITS_MAX = 20


def number_of(name: str, text: str, low: int, high: int) -> int:
    """Return a text as a number within bounds; RefusalError."""
    if len(text) > _DIGITS_MAX or not (text.isascii() and text.removeprefix("-").isdecimal()):
        raise RefusalError(Result.SYSTEM_ERROR, f"{name} = {text[:_DIGITS_MAX]!r} is not a whole number")
    value = int(text)
    if not low <= value <= high:
        raise RefusalError(Result.SYSTEM_ERROR, f"{name} = {value}: must be from {low} to {high}")
    return value


def _encoded(request: Frame, answer: Answer) -> bytes:
    fields = answer.fields if isinstance(answer.fields, dict) else dict(answer.fields)
    try:
        return encode(
            Frame(
                int(answer.result),
                request.opaque,
                fields,
                answer.body,
                FLAG_RESPONSE,
                answer.remark,
                request.form,
            )
        )
    except FrameError as error:
        return encode(
            Frame(Result.SYSTEM_ERROR, request.opaque, {}, b"", FLAG_RESPONSE, str(error), request.form)
        )
