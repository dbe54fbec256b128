"""Sends over gRPC: all messages of a request are stored, as one unit, or none; a repeated one only once.

    request -> messages -> is it a repeat? -> gathered with others -> group commit -> the answer

1. Requests of one message that arrive together go to group commit together: see `Sends._gather`. One that is
   refused does not hold back the others.
2. A half message is the only one of its request, and begins a transaction.
3. Sends in progress have at most `bytes_max` bytes, of which a compressed body has those that it inflates to.
4. If sends are exact, the id of a message is its deduplication key too; half messages take none.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from timerwheel.engine import Engine
from timerwheel.errors import RefusedError
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.messages import Outgoing, Receipt, State
from timerwheel.model.properties import SHARDING_KEY
from timerwheel.rocketmq.gathered import Gathered
from timerwheel.rocketmq.grpc.call import Call
from timerwheel.rocketmq.grpc.codes import OK, CallError, Code, MessageType
from timerwheel.rocketmq.grpc.messages import name_of, outgoing
from timerwheel.rocketmq.grpc.producers import Producers
from timerwheel.rocketmq.grpc.recent_sends import Outcome, RecentSends
from timerwheel.rocketmq.message_ids import RecallHandle
from timerwheel.rocketmq.name_server import BROKER
from timerwheel.rocketmq.topics import Topics
from timerwheel.rocketmq.translation import UNIQ_KEY
from timerwheel.runtime.sender import PendingSend
from timerwheel.runtime.steps import AT_ONCE_MAX
from timerwheel.tokens import Scope

MESSAGES_MAX: Final = 500
"""Most messages of one send, and most entries of one acknowledgement."""
INFLATED_BYTES: Final = 1 << 20
"""How much of the bodies of a request is inflated without a pause."""
GATHER_TURNS: Final = 8
"""After how many turns of the loop without a further message those that arrived are stored."""

_TRANSACTION: Final = int(MessageType.TRANSACTION)


class Arrived(NamedTuple):
    """A message that is stored beside others, and the future of its receipt."""

    message: Outgoing
    outcome: Outcome


class Sends:
    """See the module. Event loop only."""

    def __init__(
        self, engine: Engine, producers: Producers, bytes_max: int, *, is_exact: bool = False
    ) -> None:
        self._engine = engine
        self._is_exact = is_exact
        self._topics = Topics(engine)
        self._producers = producers
        self._recent = RecentSends(engine.clock.monotonic_ms)
        self._bytes = 0
        self._bytes_max = bytes_max
        self._count = 0  # of requests in progress
        self._arrived: list[Arrived] = []
        self._gathered = Gathered(
            engine,
            lambda one: one.message,
            engine.sender.receipts,
            _set_receipts,
            lambda one, error: one.outcome.set_exception(error),
        )

    async def send(self, call: Call, request: Any, answer: Any) -> None:
        """SendMessage: the answer has an entry for each message."""
        given = request.messages
        if not 0 < len(given) <= MESSAGES_MAX:
            raise CallError(Code.BAD_REQUEST, f"{len(given)} messages; send 1 to {MESSAGES_MAX} in a request")
        caller = call.caller_for(Scope.SEND, *{name_of(one.topic) for one in given})
        caller.charge(len(given))
        size_bytes = request.ByteSize()
        self._hold(size_bytes)
        self._count += 1
        try:
            peer, now_ms = call.peer, self._engine.clock.now_ms()
            messages: list[Outgoing] = []
            inflated_bytes = 0
            for one in given:
                messages.append(outgoing(one, peer, now_ms, self._engine.settings.body_bytes_max))
                more_bytes = max(len(messages[-1].body) - len(one.body), 0)
                self._hold(more_bytes)
                size_bytes += more_bytes
                inflated_bytes += more_bytes
                if inflated_bytes >= INFLATED_BYTES:
                    await self._engine.clock.breathe()
                    inflated_bytes = 0
            await self._send(call, given, messages, answer)
        finally:
            self._bytes -= size_bytes
            self._count -= 1

    def _hold(self, size_bytes: int) -> None:
        if self._bytes + size_bytes > self._bytes_max:
            raise CallError(Code.TOO_MANY_REQUESTS, "the sends in progress are too large; try again")
        self._bytes += size_bytes

    async def _send(self, call: Call, given: Any, messages: list[Outgoing], answer: Any) -> None:
        is_half = any([one.system_properties.message_type == _TRANSACTION for one in given])  # noqa: C419
        if is_half and len(given) > 1:
            raise CallError(Code.BAD_REQUEST, "a transactional message must be the only one of its request")
        await self._make_topics(messages)
        names = [(one.topic, one.properties[UNIQ_KEY]) for one in messages]
        begin = self._begin_transaction if is_half else self._begin
        receipts = await self._recent.once(names, lambda places: begin([messages[place] for place in places]))
        if is_half:
            self._producers.sent_half(call.client, given[0].topic)
        for (topic, uniq_key), receipt in zip(names, receipts, strict=True):
            entry = answer.entries.add(message_id=uniq_key)
            entry.status.code, entry.status.message = OK
            if receipt.due_ms == HALF_DUE_MS:
                entry.transaction_id = receipt.id
            elif receipt.state is State.SCHEDULED:
                entry.recall_handle = RecallHandle(
                    topic, BROKER, receipt.due_ms, uniq_key, receipt.id
                ).encode()

    async def _make_topics(self, messages: list[Outgoing]) -> None:
        """Give new topics their queues, and have those with message groups deliver each group in order."""
        new = {one.topic for one in messages if not self._topics.exists(one.topic)}
        grouped = {one.topic for one in messages if SHARDING_KEY in one.properties}
        unordered = [topic for topic in grouped if not self._engine.topics.ordered(topic)]
        if not new and not unordered:
            return
        if faults := self._engine.sender.check(messages):
            raise RefusedError(faults)
        for topic in new:
            await self._topics.make(topic)
        for topic in unordered:
            await self._engine.topics.change(topic, ordered=True)

    # ------------------------------------------------------------------ storing

    def _begin_transaction(self, messages: list[Outgoing]) -> Outcome:
        async def begun() -> Sequence[Receipt]:
            (message,) = messages
            half = await self._engine.transactions.begin(message)
            return [Receipt(half.id, half.topic, HALF_DUE_MS, State.SCHEDULED)]

        return asyncio.create_task(begun())

    def _begin(self, messages: list[Outgoing]) -> Outcome:
        """Begin to store the messages of a request; of several, raises what `Sender.begin` raises."""
        if self._is_exact:
            keyed = [replace(one, dedup_key=one.properties[UNIQ_KEY]) for one in messages]
            return asyncio.create_task(self._stored(keyed))
        loop = asyncio.get_running_loop()
        outcome: Outcome = loop.create_future()
        if len(messages) > 1:
            pending = self._engine.sender.begin(messages)
            pending.stored.add_done_callback(lambda _: self._unit_stored(pending, outcome))
        else:
            if not self._arrived:
                turns = 0 if self._count == 1 else GATHER_TURNS
                loop.call_soon(self._gather, turns, turns, 1)
            self._arrived.append(Arrived(messages[0], outcome))
        return outcome

    async def _stored(self, messages: list[Outgoing]) -> Sequence[Receipt]:
        return await self._engine.sender.send(messages)

    def _unit_stored(self, pending: PendingSend, outcome: Outcome) -> None:
        try:
            outcome.set_result(self._engine.sender.receipts(pending))
        except Exception as error:  # noqa: BLE001 - those who wait raise it
            outcome.set_exception(error)

    def _gather(self, turns: int, left: int, known: int) -> None:
        """Wait until so many turns of the loop bring no further message, then send those that arrived.

        gRPC hands over one call at a time, some turns after the previous one. A write for each message would
        cost as much as its call. A request that is alone in progress does not wait.
        """
        count = len(self._arrived)
        if count > known:
            left = turns
        if left and count < AT_ONCE_MAX:
            asyncio.get_running_loop().call_soon(self._gather, turns, left - 1, count)
        else:
            arrived, self._arrived = self._arrived, []
            self._gathered.send(arrived)


def _set_receipts(_pending: PendingSend, part: list[Arrived], receipts: list[Receipt]) -> None:
    for one, receipt in zip(part, receipts, strict=True):
        one.outcome.set_result([receipt])
