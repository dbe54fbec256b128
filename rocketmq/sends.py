"""Sends: one message, a batch, or without an answer; and the recall of a delayed one.

    frame -> a draft -> is it a repeat? -> gathered for this turn of the loop -> group commit -> the answers

1. Messages that arrive in one turn of the loop, over any connections, go to group commit together; one that
   is refused does not hold back the others.
2. The messages of a batch are stored as one unit: all or none.
3. A half message begins a transaction: it is stored, and delivered once it is committed.
4. A topic that does not exist is made with QUEUES_OF_NEW queues before its first message is stored.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Sequence
from itertools import accumulate

import msgspec

from timerwheel.engine import Engine
from timerwheel.model.admission import HALF_PROPERTY, RETRY_PREFIX
from timerwheel.model.ids import root_of
from timerwheel.model.messages import Outgoing, Receipt, State
from timerwheel.rocketmq import properties_text
from timerwheel.rocketmq.codes import (
    SYS_COMPRESSED,
    SYS_COMPRESSION_TYPE,
    SYS_PREPARED,
    SYS_TRANSACTION,
    Call,
    Result,
)
from timerwheel.rocketmq.gathered import Gathered
from timerwheel.rocketmq.message_ids import RecallHandle, offset_id
from timerwheel.rocketmq.name_server import BROKER, NameServer
from timerwheel.rocketmq.properties_text import TEXT_BYTES_MAX, TEXT_CHARACTERS_SHORT
from timerwheel.rocketmq.refusals import answer_of
from timerwheel.rocketmq.repeats import Repeats, Sent
from timerwheel.rocketmq.request import Answer, RefusalError, Request, number_of
from timerwheel.rocketmq.retries import Retries
from timerwheel.rocketmq.stored_message import BatchedMessage, decode_batch
from timerwheel.rocketmq.topics import Topics
from timerwheel.rocketmq.translation import PRODUCER_GROUP, UNIQ_KEY, Envelope, admitted
from timerwheel.runtime.sender import PendingSend
from timerwheel.tokens import Scope

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
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


class Draft(msgspec.Struct, frozen=True):
    """A send that is to be stored. `queue` is the one of all its messages, `keys` their UNIQ_KEYs."""

    request: Request
    sent: Sent
    messages: list[Outgoing]
    queue: int
    keys: list[str]
    is_half: bool = False

    def to(self, queue: int) -> "Draft":
        """Return the send to this queue."""
        if queue == self.queue:
            return self
        messages = [msgspec.structs.replace(message, queue=queue) for message in self.messages]
        return msgspec.structs.replace(self, queue=queue, messages=messages)


class Sends:
    """See the module. Event loop only."""

    def __init__(
        self, engine: Engine, topics: Topics, name_server: NameServer, repeats: Repeats, retries: Retries
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._name_server = name_server
        self._repeats = repeats
        self._retries = retries
        self._arrived: list[Draft] = []  # in this turn of the loop
        self._gathered = Gathered(
            engine,
            lambda draft: draft.messages[0],
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
        properties = _properties(fields.get(names.properties, ""))
        is_half = properties.get(HALF_PROPERTY, "").lower() == "true"
        is_batch = code == Call.SEND_BATCH or fields.get("m", fields.get("batch")) == "true"
        if is_half and is_batch:
            raise RefusalError(Result.MESSAGE_ILLEGAL, "the messages of a transaction are sent one by one")
        if is_half:
            del properties[HALF_PROPERTY]
        batch = self._batch_of(request) if is_batch else []
        first_key = properties_text.decode(batch[0].properties).get(UNIQ_KEY, "") if batch else ""
        uniq_key = first_key or properties.get(UNIQ_KEY, "")
        envelope = Envelope(
            request.number(names.born_ms, self._engine.clock.now_ms()),
            request.link.peer,
            request.number(names.flag, 0, low=_INT32_MIN, high=_INT32_MAX),
            request.number(names.sys_flag, 0, high=_INT32_MAX) & ~SYS_TRANSACTION | is_half * SYS_PREPARED,
            request.number(names.consumed_before, 0, high=_INT32_MAX),
        )
        if topic.startswith(RETRY_PREFIX) and not is_batch:
            body = self._plain(request.frame.body, envelope.sys_flag)
            return self._retries.resend(request, topic, body, admitted(properties), envelope)
        queue = self._queue(topic, fields.get(names.queue, "-1"), properties)
        sent = self._repeats.begin(topic, uniq_key, request)
        if sent is None:
            return None
        try:
            if is_batch:
                messages, keys = _batched(topic, batch, queue, envelope)
                request.caller.charge(len(messages))
            else:
                body = self._plain(request.frame.body, envelope.sys_flag)
                if is_half:
                    properties.setdefault(PRODUCER_GROUP, request.text(names.group))
                stored = admitted(properties)
                messages = [Outgoing(topic, body, stored, queue=queue, envelope=envelope.encode())]
                keys = [properties.get(UNIQ_KEY, "")]
        except BaseException as error:
            self._repeats.end(sent, answer_of(error), is_stored=False)
            raise
        self._send(Draft(request, sent, messages, queue, keys, is_half))
        return None

    def _batch_of(self, request: Request) -> list[BatchedMessage]:
        batch = decode_batch(request.frame.body, self._engine.settings.messages_per_request_max)
        if not batch:
            raise RefusalError(Result.MESSAGE_ILLEGAL, "the batch is empty")
        return batch

    def _queue(self, topic: str, text: str, properties: dict[str, str]) -> int:
        """Return the queue that the client chose, or the one whose turn it is."""
        queue = number_of("queueId", text, _INT32_MIN, _INT32_MAX)
        if queue < 0:
            return self._engine.sender.queue_of(Outgoing(topic, b"", properties))
        return self._topics.queue_to(topic, queue)

    def _plain(self, body: bytes, sys_flag: int) -> bytes:
        """Return the body as the program sent it; RefusalError for one that cannot be inflated here."""
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
        return plain

    # ------------------------------------------------------------------ storing

    def _send(self, draft: Draft) -> None:
        if not self._topics.exists(draft.messages[0].topic):
            self._spawn(self._send_to_new_topic(draft))
        elif draft.is_half:
            self._spawn(self._begin_transaction(draft))
        elif len(draft.messages) == 1:
            self._gather(draft)
        else:
            self._spawn(self._send_unit(draft))

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_to_new_topic(self, draft: Draft) -> None:
        topic = draft.messages[0].topic
        try:
            await self._topics.make(topic)
            draft = draft.to(self._topics.queue_to(topic, draft.queue))  # it may have been made in between
        except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
            self._answer(draft, answer_of(error))
            return
        await (self._begin_transaction(draft) if draft.is_half else self._send_unit(draft))

    async def _begin_transaction(self, draft: Draft) -> None:
        [message] = draft.messages
        try:
            begun = await self._engine.transactions.begin(message)
        except Exception as error:  # noqa: BLE001 - as above
            self._answer(draft, answer_of(error))
        else:
            self._answer(draft, Answer(fields=self._place(draft, [begun.id], 0)), is_stored=True)

    async def _send_unit(self, draft: Draft) -> None:
        try:
            receipts = await self._engine.sender.send(draft.messages)
        except Exception as error:  # noqa: BLE001 - as above
            self._answer(draft, answer_of(error))
        else:
            first = receipts[0]
            found = self._engine.queues.offsets_of(first.topic, draft.queue, [root_of(first.id)])
            self._answer(draft, self._stored(draft, receipts, found[0] if found else 0), is_stored=True)

    def _gather(self, draft: Draft) -> None:
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._begin_arrived)
        self._arrived.append(draft)

    def _begin_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._gathered.send(arrived)

    # ------------------------------------------------------------------ answers

    def _answer_all(self, pending: PendingSend, drafts: list[Draft], receipts: list[Receipt]) -> None:
        places = self._queue_offsets(pending, drafts)
        for draft, receipt, place in zip(drafts, receipts, places, strict=True):
            self._answer(draft, self._stored(draft, [receipt], place), is_stored=True)

    def _queue_offsets(self, pending: PendingSend, drafts: list[Draft]) -> list[int]:
        """Return the queue offset of each message; 0 while it waits, or if it is not in memory any more."""
        roots = accumulate(map(len, pending.records[:-1]), initial=pending.stored.result())
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

    def _answer(self, draft: Draft, answer: Answer, *, is_stored: bool = False) -> None:
        draft.request.answer(answer)
        self._repeats.end(draft.sent, answer, is_stored=is_stored)

    def _stored(self, draft: Draft, receipts: Sequence[Receipt], queue_offset: int) -> Answer:
        """Return what a producer learns of its stored messages."""
        first, key = receipts[0], draft.keys[0]
        fields = self._place(draft, [receipt.id for receipt in receipts], queue_offset)
        if first.state is State.SCHEDULED and key:
            fields["recallHandle"] = RecallHandle(first.topic, BROKER, first.due_ms, key, first.id).encode()
        return Answer(fields=fields)

    def _place(self, draft: Draft, ids: Sequence[str], queue_offset: int) -> dict[str, str]:
        """Return the fields that say where messages are stored, and the key of the first."""
        host = self._name_server.address(draft.request)
        fields = {
            "msgId": ",".join([offset_id(host, root_of(message_id)) for message_id in ids]),
            "queueId": str(draft.queue),
            "queueOffset": str(queue_offset),
        }
        if draft.keys[0]:
            fields["transactionId"] = draft.keys[0]
        return fields

    # ------------------------------------------------------------------ recall

    async def recall(self, request: Request) -> Answer:
        """End a message that waits; refused with the truth if it was delivered or recalled."""
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
    return properties_text.decode(text)


def _batched(
    topic: str, batch: list[BatchedMessage], queue: int, envelope: Envelope
) -> tuple[list[Outgoing], list[str]]:
    messages: list[Outgoing] = []
    keys: list[str] = []
    for flag, body, text in batch:
        properties = properties_text.decode(text)
        own = envelope._replace(flag=flag, sys_flag=0).encode()
        messages.append(Outgoing(topic, body, admitted(properties), queue=queue, envelope=own))
        keys.append(properties.get(UNIQ_KEY, ""))
    return messages, keys
