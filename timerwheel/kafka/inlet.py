"""The inlet: takes records from its Kafka topic, and sends the messages that they ask for.

    take [own thread] -> wanted_of [own thread] -> Engine.sender, with the next offsets in the same unit

1. The offsets behind the records of a unit are a change of settings in that unit. So a record takes effect
   once, however often it is read: if the unit is there, the next start goes on behind it; if not, with it.
2. A recall is stored in one unit with the offset too.
3. A refused record becomes a message to the topic of rejected records, in the unit that would have had it.
4. Records of one partition take effect in order. While they cannot be stored, the others wait in Kafka.
5. Ends of transactions and aborted records have offsets too. What is stored moves behind them after a while,
   so that what Kafka deletes later does not look like records that nobody took.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException

from timerwheel.engine import Engine
from timerwheel.errors import (
    AdmissionError,
    AlreadyDeliveredError,
    AlreadyRecalledError,
    CongestedError,
    OpenTransactionError,
    RefusedError,
    TimerwheelError,
    UnitTooLargeError,
    UnknownMessageError,
)
from timerwheel.kafka.clients import error_text
from timerwheel.kafka.cluster import REFUSED, Cluster
from timerwheel.kafka.consumer import Batch, InletConsumer
from timerwheel.kafka.outlets import Outlets
from timerwheel.kafka.translation import Recall, Refusal, Taken, Wanted, rejection_of, wanted_of
from timerwheel.model.kafka_counts import BridgeState, KafkaCounts, Lag
from timerwheel.model.messages import Outgoing
from timerwheel.runtime.steps import size_of, sizes_of
from timerwheel.state.config_table import ConfigTable, ControlValueError, Put
from timerwheel.store.errors import CorruptionError, NoSpaceError, StoreError
from timerwheel.telemetry.throttled_log import ThrottledLog

UNIT_BYTES_MAX: Final = 4 << 20
"""Bytes of messages that are stored as one unit, unless one alone has more."""
RETRY_MS: Final = 1_000
NOTE_MS: Final = 10_000
"""How often to store positions behind which no record came."""
_RECALLED: Final = (
    "the same message was sent with this TIMER_KEY before and recalled, and this may be a repeat of that "
    "send; to send it again on purpose, give another TIMER_KEY, or another value, header or delay"
)
_RECALL_REFUSED: Final = (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    OpenTransactionError,
    AdmissionError,
    CorruptionError,  # of the message's record; the records behind this one must not wait for its repair
)
_PLACE: Final = attrgetter("partition", "offset")

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Item(NamedTuple):
    """A record, and what it asks for."""

    taken: Taken
    wanted: Wanted


class Inlet:
    """See the module. Event loop only; the consumer belongs to a thread."""

    def __init__(self, engine: Engine, cluster: Cluster, outlets: Outlets, counts: KafkaCounts) -> None:
        self._engine = engine
        self._cluster = cluster
        self._rules = engine.sender.rules
        self._outlets = outlets
        self._counts = counts
        self._consumer = InletConsumer(cluster, engine.clock)
        self._thread = ThreadPoolExecutor(1, "kafka inlet")
        self._trouble = ThrottledLog(engine.clock)
        self._note_ms = 0

    async def run(self) -> None:
        """Take records until cancelled, whatever happens to Kafka."""
        while True:
            try:
                await self._open()
                await self._take_all()
            except KafkaException as error:
                self._waits(self._why(error))
            except (TimerwheelError, StoreError) as error:
                self._waits(str(error))
            except Exception:  # a fault of ours must not end the bridge for good
                logger.exception("the Kafka inlet failed; restarting it")
                self._counts.inlet_state = BridgeState.WAITING
            await self._engine.clock.sleep_for(RETRY_MS)

    def _stored(self) -> dict[str, int]:
        return dict(self._engine.control.items(ConfigTable.KAFKA_INLET))

    async def _open(self) -> None:
        deleted = await self._call(self._consumer.open, self._stored())
        self._counts.inlet = lags = await self._call(self._consumer.lags)
        self._counts.inlet_lost += deleted
        if deleted:
            await self._note(lags)  # else the next `open` would find it again

    async def _take_all(self) -> None:
        is_whole = False
        while True:
            items, batch = await self._call(self._take)
            for unit in units_of(items):
                await self._store(unit)
            self._counts.inlet = batch.lags
            if batch.is_whole and not is_whole:
                is_whole = True
                self._works()
            if self._engine.clock.monotonic_ms() >= self._note_ms:
                await self._note(batch.lags)

    def _take(self) -> tuple[list[Item], Batch]:
        batch = self._consumer.take()
        topics, rules = self._cluster.topics, self._rules
        return [Item(taken, wanted_of(taken, topics, rules)) for taken in batch.records], batch

    async def _note(self, lags: Mapping[int, Lag]) -> None:
        """Store the positions that are behind those of the last records."""
        self._note_ms = self._engine.clock.monotonic_ms() + NOTE_MS
        stored = self._stored()
        nexts = {self._consumer.position_key(number): lag.next for number, lag in lags.items()}
        puts = [
            Put(ConfigTable.KAFKA_INLET, key, offset)
            for key, offset in nexts.items()
            if offset > stored.get(key, 0)
        ]
        if puts:
            with suppress(NoSpaceError):  # it is noted later
                await self._engine.control.put(puts)

    # ------------------------------------------------------------------ storing

    async def _store(self, items: Sequence[Item]) -> None:
        """Store a unit: messages, or one recall."""
        first = items[0]
        if isinstance(first.wanted, Recall):
            await self._recall(first, first.wanted)
        else:
            await self._send(items)

    async def _recall(self, item: Item, recall: Recall) -> None:
        if self._outlets.kept([recall.topic]):
            await self._send([item._replace(wanted=_kept_here(recall.topic))])
            return
        try:
            await self._engine.recalls.recall_key(recall.topic, recall.key, self._puts([item]))
        except UnknownMessageError as error:
            detail = (
                f"no message of topic {recall.topic!r} has the key {recall.key!r}, or had in the last day"
            )
            await self._send([item._replace(wanted=Refusal(error.code, detail))])
        except _RECALL_REFUSED as error:
            await self._send([item._replace(wanted=Refusal(error.code, str(error)))])
        else:
            self._counts.recalls += 1

    async def _send(self, items: Sequence[Item]) -> None:
        """Store messages, and what is refused as rejected: one unit, or several if one is too large."""
        items = self._allowed(items)
        repeats: int | None = None
        while repeats is None:
            messages = [
                wanted if isinstance(wanted := item.wanted, Outgoing) else self._rejection(item)
                for item in items
            ]
            try:
                repeats = await self._engine.sender.store(messages, self._puts(items, messages))
            except RefusedError as error:
                items = self._without(items, error)
            except (CongestedError, UnitTooLargeError, ControlValueError) as error:
                if len(items) > 1:
                    half = len(items) // 2
                    await self._send(items[:half])
                    await self._send(items[half:])
                    return
                items = [_alone_refused(items[0], error)]
        refused = sum([isinstance(item.wanted, Refusal) for item in items])
        self._counts.rejected += refused
        self._counts.repeated += repeats
        self._counts.scheduled += len(items) - refused - repeats
        self._outlets.notice()

    def _allowed(self, items: Sequence[Item]) -> Sequence[Item]:
        """Refuse messages to topics that shall not go out, and to new ones if there is no room for them."""
        topics = {item.wanted.topic for item in items if isinstance(item.wanted, Outgoing)}
        full = self._engine.sender.topics_without_room(topics)
        kept = self._outlets.kept(topics)
        if not full and not kept:
            return items
        fault = self._engine.sender.too_many_topics(0)
        refusals = dict.fromkeys(full, Refusal(fault.code, fault.detail))
        refusals |= {topic: _kept_here(topic) for topic in kept}
        return [
            item._replace(wanted=refusals[item.wanted.topic])
            if isinstance(item.wanted, Outgoing) and item.wanted.topic in refusals
            else item
            for item in items
        ]

    def _without(self, items: Sequence[Item], error: RefusedError) -> Sequence[Item]:
        """Turn messages that the engine refuses into rejected ones; raises the error if they are already."""
        changed = list(items)
        for fault in error.faults:
            if isinstance(changed[fault.index].wanted, Refusal):
                raise error
            detail = _RECALLED if fault.code == "key_recalled" else fault.detail
            changed[fault.index] = changed[fault.index]._replace(wanted=Refusal(fault.code, detail))
        return changed

    def _rejection(self, item: Item) -> Outgoing:
        assert isinstance(item.wanted, Refusal)
        return rejection_of(item.taken, item.wanted, self._cluster.topics, self._rules)

    def _puts(self, items: Sequence[Item], messages: Sequence[Outgoing] = ()) -> list[Put]:
        """Return the settings that the unit changes: the next offsets, and topics that go out from now on."""
        last = dict(map(_PLACE, [taken for taken, _ in items]))
        key = self._consumer.position_key
        next_offsets = [
            Put(ConfigTable.KAFKA_INLET, key(number), offset + 1) for number, offset in last.items()
        ]
        return next_offsets + self._outlets.puts_of({message.topic for message in messages})

    # ------------------------------------------------------------------ around it

    def _why(self, error: KafkaException) -> str:
        """Return why nothing is taken."""
        cause = error.args[0] if error.args else None
        if isinstance(cause, KafkaError) and cause.code() in REFUSED:
            return (
                f"the brokers refuse the Kafka user of this service, which reads the topic "
                f"{self._cluster.topics.inlet}: {error_text(error)}; doc/kafka.md lists the "
                "rights that it needs"
            )
        return error_text(error)

    def _works(self) -> None:
        self._counts.inlet_state = BridgeState.WORKING
        if (lasted_ms := self._trouble.over()) is not None:
            logger.info("the Kafka inlet works again after %d s", lasted_ms // 1000)

    def _waits(self, reason: str) -> None:
        self._counts.inlet_state = BridgeState.WAITING
        if self._trouble.met():
            logger.warning("the Kafka inlet waits: %s", reason)

    async def _call(self, call: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - passed through
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args))

    def stop(self) -> None:
        """Let a call that waits for Kafka give up."""
        self._consumer.stop()

    async def close(self) -> None:
        """Leave Kafka; `run` was cancelled."""
        await self._call(self._consumer.close)
        self._thread.shutdown()


def _kept_here(topic: str) -> Refusal:
    detail = f"topic {topic!r} of this service does not go to Kafka: its option to_kafka is false"
    return Refusal("forbidden_topic", detail)


def _alone_refused(item: Item, error: CongestedError | UnitTooLargeError | ControlValueError) -> Item:
    """Refuse a record that was refused alone; raises the error if there is nothing left to leave out."""
    if isinstance(item.wanted, Refusal) and item.wanted.bare:
        raise error
    if isinstance(item.wanted, Refusal):  # the rejection is too large too
        return item._replace(wanted=item.wanted._replace(bare=True))
    return item._replace(wanted=Refusal(error.code, str(error), bare=isinstance(error, UnitTooLargeError)))


def units_of(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield what is stored as one unit: messages of UNIT_BYTES_MAX, or one recall."""
    messages = [wanted for _, wanted in items if isinstance(wanted, Outgoing)]
    usual = len(messages) == len(items)
    sizes = sizes_of(messages) if usual else list(map(_size_of, items))
    if items and usual and sum(sizes) <= UNIT_BYTES_MAX:
        yield items
        return
    begin, size_bytes = 0, 0
    for place, item in enumerate(items):
        size_bytes += sizes[place]
        is_recall = isinstance(item.wanted, Recall)
        if place > begin and (is_recall or size_bytes > UNIT_BYTES_MAX):
            yield items[begin:place]
            begin, size_bytes = place, sizes[place]
        if is_recall:
            yield items[place : place + 1]
            begin, size_bytes = place + 1, 0
    if begin < len(items):
        yield items[begin:]


def _size_of(item: Item) -> int:
    """Count the bytes of what is stored for a record; headers and key are much of some."""
    wanted = item.wanted
    return size_of(wanted) if isinstance(wanted, Outgoing) else item.taken.size_bytes
