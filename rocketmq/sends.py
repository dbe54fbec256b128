"""Sends: one message, a batch, or without an answer; and the recall of a delayed one.

    frame -> a draft -> is it a repeat? -> gathered for this turn of the loop -> group commit -> the answers

1. Messages that arrive in one turn of the loop, over any connections, go to group commit together; one that
   is refused does not hold back the others.
2. The messages of a batch are stored as one unit: all or none.
3. A half message begins a transaction: it is stored, and delivered once it is committed.
4. A topic that does not exist is made with QUEUES_OF_NEW queues before its first message is stored.
5. If sends are exact, the UNIQ_KEY of a message is its deduplication key too; half messages take none.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

import msgspec

from timerwheel.engine import Engine
from timerwheel.errors import TopicEndingError
from timerwheel.model.admission import DELAY_PROPERTIES, HALF_PROPERTY, RETRY_PREFIX, TRACE_TOPIC
from timerwheel.model.ids import root_of
from timerwheel.model.messages import Alike, Outgoing, State
from timerwheel.rocketmq import properties_text
from timerwheel.rocketmq.codes import (
    SYS_COMPRESSED,
    SYS_COMPRESSION_TYPE,
    SYS_MULTI_TAGS,
    SYS_PREPARED,
    Call,
    Result,
)
from timerwheel.rocketmq.gathered import Gathered
from timerwheel.rocketmq.message_ids import RecallHandle, offset_ids
from timerwheel.rocketmq.name_server import BROKER, NameServer
from timerwheel.rocketmq.properties_text import TEXT_BYTES_MAX, TEXT_CHARACTERS_SHORT
from timerwheel.rocketmq.refusals import answer_of
from timerwheel.rocketmq.repeats import Repeats, Sent, is_key_of_client
from timerwheel.rocketmq.request import INT32_MAX, INT32_MIN, Answer, RefusalError, Request, number_of
from timerwheel.rocketmq.retries import Retries
from timerwheel.rocketmq.stored_message import Batched, decode_batch
from timerwheel.rocketmq.topics import Topics
from timerwheel.rocketmq.translation import (
    PRODUCER_GROUP,
    UNIQ_KEY,
    Envelope,
    Plain,
    admitted,
    plain_properties,
)
from timerwheel.runtime.sender import PendingSend
from timerwheel.runtime.steps import is_one_step
from timerwheel.store.record import crc_of
from timerwheel.tokens import Scope

_TRUE = frozenset({"true", "1"})
"""How the clients in Java and in C++ say that it is a batch."""
CANCEL_PROPERTY: Final = "TIMER_DEL_UNIQKEY"
"""With a delay, it makes a message one that cancels another in RocketMQ's own timer."""
_SYS_OF_CLIENTS: Final = SYS_COMPRESSED | SYS_COMPRESSION_TYPE | SYS_MULTI_TAGS
"""What producers may say in a system flag. With the other bits, consumers would misread the body."""
_ZLIB = frozenset({0, 3 << 8})
_COMPRESSIONS = {1 << 8: "LZ4", 2 << 8: "Zstandard"}


class Names(msgspec.Struct, frozen=True):
    """The names of the fields that are read of a send."""

    group: str
    topic: str
    queue: str
    sys_flag: str
    born_ms: str
    flag: str
    properties: str
    consumed_before: str


SHORT_NAMES = Names("a", "b", "e", "f", "g", "h", "i", "j")
LONG_NAMES = Names(
    "producerGroup", "topic", "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes"
)


class Waiting(NamedTuple):
    """What a recall handle says of a scheduled message."""

    due_ms: int
    message_id: str


class Draft(msgspec.Struct, frozen=True):
    """A send to store. `topic` and `queue` are those of all its messages, `key` the UNIQ_KEY of the first."""

    request: Request
    sent: Sent
    topic: str
    messages: list[Outgoing] | Alike
    queue: int
    key: str
    is_half: bool = False

    def to(self, queue: int) -> "Draft":
        """Return the send to this queue."""
        if queue == self.queue:
            return self
        messages = self.messages
        if isinstance(messages, Alike):
            messages = msgspec.structs.replace(messages, queue=queue)
        else:
            messages = [msgspec.structs.replace(message, queue=queue) for message in messages]
        return msgspec.structs.replace(self, queue=queue, messages=messages)

    def separate(self) -> list[Outgoing]:
        """Return its messages one by one."""
        return self.messages.separate() if isinstance(self.messages, Alike) else self.messages


class Sends:
    """See the module. Event loop only."""

    def __init__(
        self,
        engine: Engine,
        topics: Topics,
        name_server: NameServer,
        repeats: Repeats,
        retries: Retries,
        *,
        is_exact: bool = False,
    ) -> None:
        self._engine = engine
        self._is_exact = is_exact
        self._topics = topics
        self._name_server = name_server
        self._repeats = repeats
        self._retries = retries
        self._arrived: list[Draft] = []  # in this turn of the loop
        self._gathered = Gathered(
            engine,
            lambda draft: draft.separate()[0],
            engine.sender.offsets,
            self._answer_all,
            lambda draft, error: self._answer(draft, answer_of(error)),
        )
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ from a frame to messages

    def take(self, request: Request) -> Awaitable[Answer] | None:
        """Store the messages of a send, then answer it; RefusalError."""
        code, fields = request.frame.code, request.frame.fields
        names = LONG_NAMES if code == Call.SEND and "topic" in fields else SHORT_NAMES
        topic = request.text(names.topic)
        if not topic.startswith(RETRY_PREFIX):
            request.must_have(Scope.SEND, topic)
        envelope = Envelope(
            request.number(names.born_ms, self._engine.clock.now_ms()),
            request.link.peer,
            request.number(names.flag, 0, low=INT32_MIN, high=INT32_MAX),
            request.number(names.sys_flag, 0, high=INT32_MAX) & _SYS_OF_CLIENTS,
            request.number(names.consumed_before, 0, high=INT32_MAX),
        )
        if code == Call.SEND_BATCH or fields.get("m", fields.get("batch")) in _TRUE:
            self._take_batch(request, names, topic, envelope)
            return None
        if topic.startswith(RETRY_PREFIX):
            properties, envelope = _with_half(fields.get(names.properties, ""), envelope)
            body = self._plain(request, envelope.sys_flag)
            return self._retries.resend(request, topic, body, admitted(properties), envelope)
        if not self._take_plain(request, names, topic, envelope):
            self._take_one(request, names, topic, envelope)
        return None

    def _take_plain(self, request: Request, names: Names, topic: str, envelope: Envelope) -> bool:
        """Store a message whose properties are plain and whose queue is chosen; returns False for others."""
        fields = request.frame.fields
        text, queue_text = fields.get(names.properties, ""), fields.get(names.queue, "-1")
        if not text.isascii() or queue_text.startswith("-"):
            return False
        plain = self._plain_properties([text.encode()], envelope.encode())
        if plain is None:
            return False
        queue = self._queue(topic, queue_text, {})
        sent = self._repeats.begin(topic, plain.uniq_key, request)
        if sent is not None:
            with self._beginning(sent):
                body = self._plain(request, envelope.sys_flag)
            is_trace = topic == TRACE_TOPIC
            message = Outgoing(topic, body, queue=queue, plain=plain.stored[0], to_reserved=is_trace)
            self._send(Draft(request, sent, topic, [message], queue, plain.uniq_key))
        return True

    def _take_one(self, request: Request, names: Names, topic: str, envelope: Envelope) -> None:
        """Store any message, or begin a transaction with it."""
        fields = request.frame.fields
        properties, envelope = _with_half(fields.get(names.properties, ""), envelope)
        key, is_half = properties.get(UNIQ_KEY, ""), bool(envelope.sys_flag & SYS_PREPARED)
        queue = self._queue(topic, fields.get(names.queue, "-1"), properties)
        sent = self._repeats.begin(topic, key, request)
        if sent is None:
            return
        with self._beginning(sent):
            body = self._plain(request, envelope.sys_flag)
            if is_half:
                properties.setdefault(PRODUCER_GROUP, request.text(names.group))
        message = Outgoing(
            topic,
            body,
            admitted(properties),
            None if is_half else self._dedup_key(topic, key),
            queue=queue,
            envelope=envelope.encode(),
            to_reserved=topic == TRACE_TOPIC,
        )
        self._send(Draft(request, sent, topic, [message], queue, key, is_half))

    def _take_batch(self, request: Request, names: Names, topic: str, envelope: Envelope) -> None:
        fields = request.frame.fields
        properties = _properties(fields.get(names.properties, ""))
        if _is_half(properties):
            raise RefusalError(Result.MESSAGE_ILLEGAL, "the messages of a transaction are sent one by one")
        if envelope.sys_flag & SYS_COMPRESSED:
            raise RefusalError(Result.MESSAGE_ILLEGAL, "the messages of a batch are sent uncompressed")
        batch = self._batch_of(request)
        key = properties_text.decode(batch.properties[0].decode()).get(UNIQ_KEY, "")
        queue = self._queue(topic, fields.get(names.queue, "-1"), properties)
        sent = self._repeats.begin(topic, key or properties.get(UNIQ_KEY, ""), request)
        if sent is not None:
            with self._beginning(sent):
                messages = self._batched(topic, batch, queue, envelope)
                request.caller.charge(len(batch.bodies))
            self._send(Draft(request, sent, topic, messages, queue, key))

    def _batched(self, topic: str, batch: Batched, queue: int, envelope: Envelope) -> list[Outgoing] | Alike:
        flags, bodies, texts = batch
        is_trace = topic == TRACE_TOPIC
        if len(set(flags)) == 1 and not is_trace:
            own = envelope._replace(flag=flags[0], sys_flag=0).encode()
            plain = self._plain_properties(texts, own)
            if plain is not None:
                return Alike(topic, queue, bodies, plain.stored)
        messages: list[Outgoing] = []
        for flag, body, text in zip(flags, bodies, texts, strict=True):
            own = envelope._replace(flag=flag, sys_flag=0).encode()
            plain = self._plain_properties([text], own)
            if plain is not None:
                messages.append(
                    Outgoing(topic, body, queue=queue, plain=plain.stored[0], to_reserved=is_trace)
                )
            else:
                properties = admitted(_properties(text.decode()))
                key = self._dedup_key(topic, properties.get(UNIQ_KEY, ""))
                messages.append(
                    Outgoing(topic, body, properties, key, queue=queue, envelope=own, to_reserved=is_trace)
                )
        return messages

    def _plain_properties(self, texts: Sequence[bytes], envelope: str) -> Plain | None:
        """Return what `plain_properties` does; None if sends are exact, as a plain message has no key."""
        return None if self._is_exact else plain_properties(texts, envelope, self._engine.sender.rules)

    def _dedup_key(self, topic: str, uniq_key: str) -> str | None:
        is_key = self._is_exact and topic != TRACE_TOPIC and is_key_of_client(uniq_key)
        return uniq_key if is_key else None

    @contextmanager
    def _beginning(self, sent: Sent) -> Iterator[None]:
        """Have a send that is refused not be remembered."""
        try:
            yield
        except BaseException as error:
            self._repeats.end(sent, answer_of(error), is_stored=False)
            raise

    def _batch_of(self, request: Request) -> Batched:
        batch = decode_batch(request.frame.body, self._engine.settings.messages_per_request_max)
        if not batch.bodies:
            raise RefusalError(Result.MESSAGE_ILLEGAL, "the batch is empty")
        return batch

    def _queue(self, topic: str, text: str, properties: dict[str, str]) -> int:
        """Return the queue that the client chose, or the one whose turn it is."""
        queue = number_of("queueId", text, INT32_MIN, INT32_MAX)
        if queue < 0:
            return self._engine.sender.queue_of(Outgoing(topic, b"", properties))
        return self._topics.queue_to(topic, queue)

    def _plain(self, request: Request, sys_flag: int) -> bytes:
        """Return the body as the program sent it; RefusalError for one that cannot be inflated here."""
        body = request.frame.body
        if not sys_flag & SYS_COMPRESSED:
            return body
        kind = sys_flag & SYS_COMPRESSION_TYPE
        if kind not in _ZLIB:
            name = _COMPRESSIONS.get(kind, "an unknown method")
            raise RefusalError(Result.MESSAGE_ILLEGAL, f"the body is compressed with {name}; use zlib")
        size_max = self._engine.settings.body_bytes_max
        inflater = zlib.decompressobj()
        try:
            plain = inflater.decompress(body, size_max + 1)
        except zlib.error as error:
            raise RefusalError(Result.MESSAGE_ILLEGAL, f"the compressed body is damaged: {error}") from None
        if len(plain) > size_max:
            raise RefusalError(
                Result.MESSAGE_ILLEGAL, f"inflated, the body has more than body_size_max = {size_max} bytes"
            )
        if not inflater.eof:
            raise RefusalError(Result.MESSAGE_ILLEGAL, "the compressed body ends too early")
        request.hold(max(len(plain) - len(body), 0))
        return plain

    # ------------------------------------------------------------------ storing

    def _send(self, draft: Draft) -> None:
        topic = draft.topic
        if topic in self._engine.topics.ending:  # when that is over, it would have no number of queues
            self._answer(draft, answer_of(TopicEndingError(topic)))
        elif not self._topics.exists(topic):
            self._spawn(self._send_to_new_topic(draft))
        elif draft.is_half:
            self._spawn(self._begin_transaction(draft))
        elif len(draft.messages) == 1 and not self._is_exact:
            self._gather(draft)
        else:
            asyncio.get_running_loop().call_soon(self._send_unit, draft)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_to_new_topic(self, draft: Draft) -> None:
        try:
            await self._topics.make(draft.topic)
            # The topic may have been made in between, with other queues.
            draft = draft.to(self._topics.queue_to(draft.topic, draft.queue))
        except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
            self._answer(draft, answer_of(error))
            return
        if draft.is_half:
            await self._begin_transaction(draft)
        else:
            self._send_unit(draft)

    async def _begin_transaction(self, draft: Draft) -> None:
        [message] = draft.separate()
        try:
            begun = await self._engine.transactions.begin(message)
            self._answer(draft, Answer(fields=self._place(draft, [root_of(begun.id)], 0)), is_stored=True)
        except Exception as error:  # noqa: BLE001 - as above
            self._answer(draft, answer_of(error))

    def _send_unit(self, draft: Draft) -> None:
        messages, sender = draft.messages, self._engine.sender
        try:
            pending = sender.begin_alike(messages) if isinstance(messages, Alike) else None
            if pending is None:
                messages = draft.separate()
                if self._is_exact or not is_one_step(messages):
                    self._spawn(self._send_in_steps(draft, messages))
                    return
                pending = sender.begin(messages)
        except Exception as error:  # noqa: BLE001 - as above
            self._answer(draft, answer_of(error))
        else:
            pending.stored.add_done_callback(partial(self._unit_stored, pending, draft))

    def _unit_stored(self, pending: PendingSend, draft: Draft, _: asyncio.Future[int]) -> None:
        try:
            roots = self._engine.sender.offsets(pending)
            self._answer_stored(draft, roots, self._waiting(pending, 0, roots[0]))
        except Exception as error:  # noqa: BLE001 - as above
            self._answer(draft, answer_of(error))

    async def _send_in_steps(self, draft: Draft, messages: list[Outgoing]) -> None:
        try:
            receipts = await self._engine.sender.send(messages)
            first = receipts[0]
            waiting = Waiting(first.due_ms, first.id) if first.state is State.SCHEDULED else None
            self._answer_stored(draft, [root_of(receipt.id) for receipt in receipts], waiting)
        except Exception as error:  # noqa: BLE001 - as above
            self._answer(draft, answer_of(error))

    def _gather(self, draft: Draft) -> None:
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._begin_arrived)
        self._arrived.append(draft)

    def _begin_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._gathered.send(arrived)

    # ------------------------------------------------------------------ answers

    def _answer_all(self, pending: PendingSend, drafts: list[Draft], roots: list[int]) -> None:
        offsets = self._queue_offsets(pending, drafts, roots)
        for place, (draft, root, offset) in enumerate(zip(drafts, roots, offsets, strict=True)):
            try:
                answer = self._stored(draft, [root], offset, self._waiting(pending, place, root))
            except Exception as error:  # noqa: BLE001 - as above
                answer = answer_of(error)
            self._answer(draft, answer, is_stored=True)

    def _queue_offsets(self, pending: PendingSend, drafts: list[Draft], roots: list[int]) -> list[int]:
        """Return the queue offset of each message; 0 while it waits, or if it is not in memory any more."""
        queues: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for place, (draft, plan, root) in enumerate(zip(drafts, pending.plans, roots, strict=True)):
            if not plan.waits:
                queues.setdefault((draft.sent.key[0], draft.queue), []).append((place, root))
        offsets = [0] * len(drafts)
        for (topic, queue), stored in queues.items():
            found = self._engine.queues.offsets_of(topic, queue, [root for _, root in stored])
            for (place, _), offset in zip(stored, found or (), strict=False):
                offsets[place] = offset
        return offsets

    def _waiting(self, pending: PendingSend, place: int, root: int) -> Waiting | None:
        if not pending.plans or not (plan := pending.plans[place]).waits:
            return None
        return Waiting(plan.due_ms, self._engine.core.ids.encode(root, crc_of(pending.records[place])))

    def _answer_stored(self, draft: Draft, roots: Sequence[int], waiting: Waiting | None) -> None:
        """Answer the send of a unit."""
        found = None if waiting else self._engine.queues.offsets_of(draft.topic, draft.queue, roots[:1])
        self._answer(draft, self._stored(draft, roots, found[0] if found else 0, waiting), is_stored=True)

    def _answer(self, draft: Draft, answer: Answer, *, is_stored: bool = False) -> None:
        draft.request.answer(answer)
        self._repeats.end(draft.sent, answer, is_stored=is_stored)

    def _stored(
        self, draft: Draft, roots: Sequence[int], queue_offset: int, waiting: Waiting | None
    ) -> Answer:
        """Return what a producer learns of its stored messages."""
        fields = self._place(draft, roots, queue_offset)
        if waiting is not None and draft.key:
            handle = RecallHandle(draft.topic, BROKER, waiting.due_ms, draft.key, waiting.message_id)
            fields["recallHandle"] = handle.encode()
        return Answer(fields=fields)

    def _place(self, draft: Draft, roots: Sequence[int], queue_offset: int) -> dict[str, str]:
        """Return the fields that say where messages are stored, and the key of the first."""
        fields = {
            "msgId": offset_ids(self._name_server.address(draft.request), roots),
            "queueId": str(draft.queue),
            "queueOffset": str(queue_offset),
        }
        if draft.key:
            fields["transactionId"] = draft.key
        return fields

    # ------------------------------------------------------------------ recall

    async def recall(self, request: Request) -> Answer:
        """End a scheduled message; refused with the truth if it was delivered or recalled."""
        handle = RecallHandle.decode(request.text("recallHandle"))
        topic = request.text("topic", handle.topic)
        request.must_have(Scope.SEND, handle.topic, topic)
        view = await self._engine.messages.get(handle.message_id)
        if view.topic != handle.topic or topic != handle.topic:
            raise RefusalError(
                Result.ILLEGAL_OPERATION, "the recall handle names another topic than its message"
            )
        await self._engine.recalls.recall(handle.message_id)
        return Answer(fields={"msgId": handle.uniq_key})


def _properties(text: str) -> dict[str, str]:
    size_bytes = len(text.encode()) if len(text) > TEXT_CHARACTERS_SHORT else 0
    if size_bytes > TEXT_BYTES_MAX:
        detail = f"the properties have {size_bytes} bytes; the protocol allows {TEXT_BYTES_MAX}"
        raise RefusalError(Result.MESSAGE_ILLEGAL, detail)
    properties = properties_text.decode(text)
    if CANCEL_PROPERTY in properties and not DELAY_PROPERTIES.isdisjoint(properties):
        detail = f"{CANCEL_PROPERTY}: cancel messages are not supported; recall by handle"
        raise RefusalError(Result.MESSAGE_ILLEGAL, detail)
    return properties


def _is_half(properties: Mapping[str, str]) -> bool:
    return properties.get(HALF_PROPERTY, "").lower() == "true"


def _with_half(text: str, envelope: Envelope) -> tuple[dict[str, str], Envelope]:
    """Return the properties, and whether they say that it is a half message in the envelope instead."""
    properties = _properties(text)
    if _is_half(properties):
        del properties[HALF_PROPERTY]
        envelope = envelope._replace(sys_flag=envelope.sys_flag | SYS_PREPARED)
    return properties, envelope
