"""The life of a topic that is deleted again and again, with clients attached, in a service that is killed.

A producer repeats nothing, a consumer keeps its offsets in memory, and `mqadmin` repeats a deletion until it
is answered. So the books know of each message when it was asked for and answered, and of each deletion when
it began and ended.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.harness.stored_messages import BatchedMessage, decode_all, encode_batch
from timerwheel.rocketmq import properties_text
from timerwheel.rocketmq.codes import PULL_COMMIT, PULL_SUBSCRIPTION, PULL_SUSPEND, SYS_COMMIT, Call, Result
from timerwheel.rocketmq.frame import Frame, FrameReader, encode
from timerwheel.rocketmq.stored_message import StoredMessage

TOPIC, GROUP, RETRIES = "orders", "readers", "%RETRY%readers"
QUEUES = 4
ANSWER_S_MAX = 10
WAIT_MS = 300
PAUSE_S = 0.02


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Wire:
    """A connection to the service, opened again whenever it is needed; requests fail with OSError."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._opaques = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def ask(self, code: int, fields: dict[str, object], body: bytes = b"") -> Frame:
        if self._writer is None:
            reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._reading = asyncio.create_task(self._read(reader))
        texts = {name: str(value) for name, value in fields.items()}
        frame = Frame(code, next(self._opaques), texts, body)
        answered = self._waiting[frame.opaque] = asyncio.get_running_loop().create_future()
        self._writer.write(encode(frame))
        async with asyncio.timeout(ANSWER_S_MAX):
            return await answered

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader()
        try:
            while data := await reader.read(1 << 16):
                for frame in frames.feed(data):
                    if (
                        answered := self._waiting.pop(frame.opaque, None)
                    ) is not None and not answered.done():
                        answered.set_result(frame)
        except OSError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            if not answered.done():
                answered.set_exception(ConnectionResetError("the service has gone"))
                answered.exception()


@dataclass
class Sent:
    """A message: when it was asked for and answered, on the books' own clock; when it is due."""

    asked: int
    due_ms: int = 0
    answered: int | None = None
    settled: int | None = None
    """When its transaction was committed; that of any other message is when it was answered."""


@dataclass
class Deletion:
    """A deletion, which is asked for until it is answered."""

    began: int
    ended: int | None = None


@dataclass
class Books:
    """What was answered, what was seen, and what of it is wrong."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    deletions: list[Deletion] = field(default_factory=list)
    places: dict[tuple[int, int], bytes] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)
    sent_back: set[bytes] = field(default_factory=set)
    retried: set[bytes] = field(default_factory=set)
    wrongs: list[str] = field(default_factory=list)
    ticks: Any = field(default_factory=itertools.count)

    def tick(self) -> int:
        """A moment on the books' own clock."""
        return next(self.ticks)

    def found(self, message: StoredMessage, asked: int) -> None:
        """A consumer got a message in the answer to what it asked at this moment."""
        place, body = (message.queue, message.queue_offset), message.body
        if self.places.setdefault(place, body) != body:
            self.wrongs.append(f"{place} was {self.places[place]!r}, and is {body!r}")
        self.seen.add(body)
        sent = self.sent[body]
        if now_ms() < sent.due_ms:
            self.wrongs.append(f"{body!r} came {sent.due_ms - now_ms()} ms early")
        over = [one for one in self.deletions if one.ended is not None and one.ended < asked]
        if over and sent.answered is not None and sent.answered < over[-1].began:
            self.wrongs.append(f"{body!r} came though its topic was deleted after it was answered")

    def owed(self) -> set[bytes]:
        """The messages that no deletion can have taken."""
        last = max((one.ended or 1 << 60 for one in self.deletions), default=-1)
        return {body for body, sent in self.sent.items() if sent.settled is not None and sent.asked > last}


class Clients:
    """Producers, consumers and an administrator of the topic, until they are cancelled."""

    def __init__(self, port: int, books: Books, dice: random.Random) -> None:
        self._port = port
        self._books = books
        self._dice = dice
        self._numbers = itertools.count()
        self.may_send = self.may_delete = True

    def all(self) -> list[asyncio.Task[None]]:
        loops = [
            *(self._produce for _ in range(3)),
            *(self._consumer(TOPIC, queue, self._of_topic) for queue in range(QUEUES)),
            self._consumer(RETRIES, 0, self._of_retries),
            self._delete,
        ]
        return [asyncio.create_task(self._kept_up(loop)) for loop in loops]

    async def _kept_up(self, loop: Callable[[Wire], Awaitable[None]]) -> None:
        wire = Wire(self._port)
        while True:
            try:
                await loop(wire)
            except (OSError, TimeoutError):
                wire.close()
            await asyncio.sleep(PAUSE_S)

    # ------------------------------------------------------------------ producers

    async def _produce(self, wire: Wire) -> None:
        if not self.may_send:
            return
        kind = self._dice.choice((self._one, self._one, self._delayed, self._batch, self._transaction))
        await kind(wire)

    def _new(self, count: int = 1, due_ms: int = 0) -> list[bytes]:
        bodies = [b"%d" % next(self._numbers) for _ in range(count)]
        asked = self._books.tick()
        self._books.sent |= {body: Sent(asked, due_ms) for body in bodies}
        return bodies

    def _answered(self, bodies: list[bytes], answer: Frame, *, is_half: bool = False) -> None:
        if answer.code == Result.SUCCESS:
            for body in bodies:
                sent = self._books.sent[body]
                sent.answered = self._books.tick()
                sent.settled = None if is_half else sent.answered
        elif answer.code != Result.TOPIC_NOT_EXIST:  # while it is being deleted
            self._books.wrongs.append(f"a send was answered with {answer.code}: {answer.remark}")

    def _fields(self, **properties: str) -> dict[str, object]:
        text = properties_text.encode(properties)
        queue = self._dice.randrange(QUEUES)
        return {"a": "shop", "b": TOPIC, "e": queue, "f": 0, "g": now_ms(), "h": 0, "i": text, "j": 0}

    async def _one(self, wire: Wire) -> None:
        (body,) = self._new()
        fields = self._fields(UNIQ_KEY=f"7F{body.decode()}", WAIT="true")
        self._answered([body], await wire.ask(Call.SEND_V2, fields, body))

    async def _delayed(self, wire: Wire) -> None:
        due_ms = now_ms() + self._dice.choice((50, 500, 3_000))
        (body,) = self._new(due_ms=due_ms)
        fields = self._fields(UNIQ_KEY=f"7F{body.decode()}", TIMER_DELIVER_MS=str(due_ms))
        self._answered([body], await wire.ask(Call.SEND_V2, fields, body))

    async def _batch(self, wire: Wire) -> None:
        bodies = self._new(8)
        data = encode_batch([BatchedMessage(0, body, b"UNIQ_KEY\x017F%b\x02" % body) for body in bodies])
        self._answered(bodies, await wire.ask(Call.SEND_BATCH, self._fields() | {"m": "true"}, data))

    async def _transaction(self, wire: Wire) -> None:
        (body,) = self._new()
        key = f"7F{body.decode()}"
        answer = await wire.ask(
            Call.SEND_V2, self._fields(UNIQ_KEY=key, TRAN_MSG="true", PGROUP="shop"), body
        )
        self._answered([body], answer, is_half=True)
        if answer.code != Result.SUCCESS:
            return
        await asyncio.sleep(self._dice.choice((0, 0.3)))
        root = int(answer.fields["msgId"][-16:], 16)
        end = {"producerGroup": "shop", "commitOrRollback": SYS_COMMIT, "commitLogOffset": root}
        done = await wire.ask(Call.END_TRANSACTION, end | {"transactionId": key})
        if done.code == Result.SUCCESS:
            self._books.sent[body].settled = self._books.tick()

    # ------------------------------------------------------------------ consumers

    def _consumer(
        self, topic: str, queue: int, took: Callable[[Wire, StoredMessage, int], Awaitable[None]]
    ) -> Callable[[Wire], Awaitable[None]]:
        offset = 0

        async def consume(wire: Wire) -> None:
            nonlocal offset
            fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue, "queueOffset": offset}
            flags = PULL_SUBSCRIPTION | PULL_SUSPEND | PULL_COMMIT
            fields |= {"maxMsgNums": 32, "sysFlag": flags, "commitOffset": offset, "subscription": "*"}
            asked = self._books.tick()
            answer = await wire.ask(Call.PULL, fields | {"suspendTimeoutMillis": WAIT_MS})
            if "nextBeginOffset" not in answer.fields:
                self._books.wrongs.append(f"a pull was answered with {answer.code}: {answer.remark}")
                return
            for message in decode_all(answer.body):
                await took(wire, message, asked)
            following = int(answer.fields["nextBeginOffset"])
            if following < offset:
                self._books.wrongs.append(f"{topic} {queue} went back from {offset} to {following}")
            offset = following

        return consume

    async def _of_topic(self, wire: Wire, message: StoredMessage, asked: int) -> None:
        self._books.found(message, asked)
        if self._dice.random() < 0.05:
            fields = {"group": GROUP, "offset": message.log_offset, "delayLevel": 1}
            answer = await wire.ask(Call.SEND_BACK, fields | {"maxReconsumeTimes": 3})
            if answer.code == Result.SUCCESS:
                self._books.sent_back.add(message.body)

    async def _of_retries(self, _wire: Wire, message: StoredMessage, _asked: int) -> None:
        if message.body not in self._books.sent:
            self._books.wrongs.append(f"a retry of {message.body!r}, which nobody sent")
        self._books.retried.add(message.body)

    # ------------------------------------------------------------------ mqadmin deleteTopic

    async def _delete(self, wire: Wire) -> None:
        books = self._books
        if self.may_delete and not (books.deletions and books.deletions[-1].ended is None):
            await asyncio.sleep(self._dice.uniform(0.1, 1.0))
            books.deletions.append(Deletion(books.tick()))
        if not books.deletions or books.deletions[-1].ended is not None:
            return
        answer = await wire.ask(Call.DELETE_TOPIC, {"topic": TOPIC})
        if answer.code == Result.SUCCESS:
            books.deletions[-1].ended = books.tick()
        else:
            books.wrongs.append(f"a deletion was answered with {answer.code}: {answer.remark}")
