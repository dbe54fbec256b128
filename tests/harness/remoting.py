"""A client of the remoting protocol in the process of the service: a real connection without a socket."""

import asyncio
import itertools
from typing import Any

from tests.harness.stored_messages import decode_all
from timerwheel.engine import Engine
from timerwheel.rocketmq import properties_text
from timerwheel.rocketmq.codes import FLAG_ONE_WAY, PULL_SUBSCRIPTION, PULL_SUSPEND, Call
from timerwheel.rocketmq.frame import Frame, FrameReader, encode
from timerwheel.rocketmq.front import Remoting
from timerwheel.rocketmq.name_server import Advertised
from timerwheel.rocketmq.stored_message import StoredMessage
from timerwheel.tokens import Scope

TURNS_MAX = 2_000
PEER, LOCAL = ("10.0.0.7", 40_001), ("127.0.0.1", 9876)


class Caller:
    """Somebody with these rights; `waits_ms` is what the rate limit says."""

    def __init__(self, *scopes: Scope, topics: tuple[str, ...] = ()) -> None:
        self.name = ""
        self.scopes = scopes
        self.topics = topics
        self.waits_ms = 0
        self.charged = 0

    @property
    def has_all_topics(self) -> bool:
        return not self.topics

    def holds(self, scope: Scope) -> bool:
        return Scope.ADMIN in self.scopes or scope in self.scopes

    def may(self, topic: str) -> bool:
        return not self.topics or topic in self.topics

    def take(self) -> int:
        return self.waits_ms

    def charge(self, messages: int) -> None:
        self.charged += messages


class Callers:
    """The callers of a service by their tokens, which are their names."""

    def __init__(self, **known: Caller) -> None:
        self.known = known
        for name, caller in known.items():
            caller.name = name

    def of_key(self, secret: str) -> Caller | None:
        return self.known.get(secret or "nobody")

    def is_current(self, caller: Caller) -> bool:
        return caller in self.known.values()


def open_to_all() -> Callers:
    return Callers(nobody=Caller(*Scope))


def remoting_of(
    engine: Engine,
    callers: Callers | None = None,
    *,
    repeats_max: int = 1_000,
    advertised: Advertised | None = None,
    is_exact: bool = False,
) -> Remoting:
    return Remoting(engine, callers or open_to_all(), advertised, repeats_max, is_exact=is_exact)


class Wire(asyncio.Transport):
    """A transport whose other end is a `Peer`."""

    def __init__(self) -> None:
        super().__init__({"peername": PEER, "sockname": LOCAL})
        self.written = bytearray()
        self.unread_bytes = 0  # of what was written before
        self.reading = True
        self.closing = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close


class Peer:
    """A client."""

    def __init__(self, remoting: Remoting, token: str = "", form: int = 0) -> None:
        self.connection = remoting.connection()
        self.wire = Wire()
        self.wire.protocol = self.connection
        self.told: list[Frame] = []
        self._answers: dict[int, Frame] = {}
        self._reader = FrameReader()
        self._opaques = itertools.count(1)
        self._token = token
        self._form = form
        self.connection.connection_made(self.wire)

    def frame(self, code: int, fields: dict[str, Any], body: bytes = b"", flag: int = 0) -> Frame:
        texts = {name: str(value) for name, value in fields.items()}
        if self._token:
            texts["AccessKey"] = self._token
        return Frame(code, next(self._opaques), texts, body, flag, None, self._form)

    def put(self, *frames: Frame) -> None:
        """Let these frames arrive in one read."""
        self.connection.data_received(b"".join(map(encode, frames)))

    async def ask(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Frame:
        frame = self.frame(code, fields or {}, body)
        self.put(frame)
        return await self.answer_to(frame)

    async def answer_to(self, frame: Frame) -> Frame:
        for _ in range(TURNS_MAX):
            if (answer := self.answer_now(frame)) is not None:
                return answer
            await asyncio.sleep(0)
        raise AssertionError(f"no answer to {frame}")

    def answer_now(self, frame: Frame) -> Frame | None:
        """The answer if it is there."""
        written = bytes(self.wire.written)
        self.wire.written.clear()
        for found in self._reader.feed(written):
            if found.is_response:
                self._answers[found.opaque] = found
            else:
                self.told.append(found)
        return self._answers.get(frame.opaque)

    # ------------------------------------------------------------------ the usual requests

    def send_frame(
        self,
        topic: str = "orders",
        body: bytes = b"x",
        properties: dict[str, str] | None = None,
        *,
        code: int = Call.SEND_V2,
        one_way: bool = False,
        **fields: Any,
    ) -> Frame:
        found = {
            "a": "producers",
            "b": topic,
            "e": 0,
            "f": 0,
            "g": 1_700_000_000_000,
            "h": 0,
            "i": properties_text.encode(properties or {}),
            "j": 0,
        }
        return self.frame(code, found | fields, body, FLAG_ONE_WAY if one_way else 0)

    async def send(self, *args: Any, **named: Any) -> Frame:
        frame = self.send_frame(*args, **named)
        self.put(frame)
        return await self.answer_to(frame)

    def pull_frame(self, topic: str = "orders", offset: int = 0, **fields: Any) -> Frame:
        found = {
            "consumerGroup": "readers",
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": PULL_SUBSCRIPTION,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
        }
        return self.frame(Call.PULL, found | fields)

    def held_pull_frame(self, topic: str = "orders", offset: int = 0, wait_ms: int = 15_000) -> Frame:
        flags = PULL_SUBSCRIPTION | PULL_SUSPEND
        return self.pull_frame(topic, offset, sysFlag=flags, suspendTimeoutMillis=wait_ms)

    async def pull(self, *args: Any, **named: Any) -> Frame:
        frame = self.pull_frame(*args, **named)
        self.put(frame)
        return await self.answer_to(frame)


def messages_in(answer: Frame) -> list[StoredMessage]:
    return decode_all(answer.body)


def bodies_in(answer: Frame) -> list[bytes]:
    return [message.body for message in messages_in(answer)]


def properties_of(message: StoredMessage) -> dict[str, str]:
    return properties_text.decode(message.properties)
