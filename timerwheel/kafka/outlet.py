"""The outlet: sends delivered messages of its topics to the Kafka topics of the same names, each once.

    queue -> records -> produced_of [own thread] -> one transaction with the positions behind them

1. The positions in Kafka are the truth: after each start and each failure the outlet goes on from them. So a
   message is neither left out nor sent in two transactions that count.
2. Messages of one queue go out in its order. Each transaction takes what is there: while one is committed,
   the next collects.
3. After one that failed, transactions are smaller, and grow again while they are quick
   (`timerwheel.kafka.transaction_size`).
4. No transaction begins with messages of a topic that is paused, or does not go out any more. One that goes
   out again does from the offsets that it had then, which are behind every position of before.
5. With the log in a journal, it opens the producer only as long as the journal confirms that this process
   leads: that fences the producer of any other. One that was replaced while it opened, and goes on with that
   when it wakes, fences the next leader, which is confirmed and opens again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from confluent_kafka import KafkaException

from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.kafka.clients import error_text
from timerwheel.kafka.cluster import Cluster
from timerwheel.kafka.hanging import Hanging, Place
from timerwheel.kafka.names import ID, kafka_topic_of
from timerwheel.kafka.outlets import Outlets
from timerwheel.kafka.positions import Repeats, Run, joined
from timerwheel.kafka.producer import FencedError, Opened, TransactionalProducer
from timerwheel.kafka.transaction_size import RECORDS_MAX, TransactionSize
from timerwheel.kafka.translation import Produced, produced_of
from timerwheel.model.ids import Ids, root_in
from timerwheel.model.kafka_counts import BridgeState, KafkaCounts
from timerwheel.runtime.message_views import id_of, ids_of
from timerwheel.store.errors import CorruptionError, NoSpaceError, StoreError
from timerwheel.store.record import decode, unpack_header
from timerwheel.telemetry.background import in_background
from timerwheel.telemetry.throttled_log import ThrottledLog

TRANSACTION_BYTES_MAX: Final = 16 << 20
"""Size of a transaction from which on no further queue joins it."""
RETRY_MS: Final = 1_000
LOOK_MS: Final = 5_000
"""How often to look for queues that a topic did not have."""
LATE_MS: Final = 5_000
"""After how long it is reported that Kafka has not taken a transaction."""
NOTE_MS: Final = 10_000
"""How often to note in the log how far topics have gone out."""

TOPICS_SHOWN_MAX: Final = 5

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Queue:
    """A queue that goes out, and the offset of the next message of it."""

    def __init__(self, topic: str, number: int, next_offset: int) -> None:
        self.topic = topic
        self.number = number
        self.next_offset = next_offset
        self.read = asyncio.Event()


class Part(NamedTuple):
    """Records of one queue in a transaction, and the offset behind them."""

    queue: Queue
    until: int
    roots: list[int]
    records: list[bytes | CorruptionError]


class Outlet:
    """See the module. Event loop only; the producer belongs to a thread."""

    def __init__(
        self, engine: Engine, cluster: Cluster, outlets: Outlets, counts: KafkaCounts, run: Run
    ) -> None:
        self._engine = engine
        self._outlets = outlets
        self._counts = counts
        self._place = cluster.topics.positions
        self._producer = TransactionalProducer(cluster, engine.clock, run)
        self._thread = ThreadPoolExecutor(1, "kafka outlet")
        self._trouble = ThrottledLog(engine.clock)
        self._positions: dict[str, dict[int, int]] | None = None  # while it is not open
        self._queues: dict[str, dict[int, Queue]] = {}
        self._watches: dict[str, list[asyncio.Task[None]]] = {}
        self._ready: dict[Queue, None] = {}
        self._out = dict(outlets.noted().sent)  # how far topics have gone out, as far as is known
        self._unnoted: dict[str, dict[int, int]] = {}
        self._note_ms = 0
        self._size = TransactionSize(cluster.transaction_ms)
        self._wake = asyncio.Event()
        outlets.watch(self._follow)

    async def run(self) -> None:
        """Send messages until cancelled, or until another process does."""
        while True:
            try:
                await self._engine.lead.confirm()
                opened = await self._call(
                    self._producer.open, self._outlets.noted(), [*self._outlets.topics()]
                )
                await self._outlets.note_place(self._place)
                positions = await self._checked(opened.offsets)
                await self._repeat(opened, positions)
                self._begin(positions)
                self._works()
                await self._send_all()
            except FencedError as error:
                self._counts.outlet_state = BridgeState.FENCED
                logger.error("the Kafka outlet ends: %s", error)  # noqa: TRY400 - the message says it all
                return
            except KafkaException as error:
                self._waits(error_text(error))
            except (TimerwheelError, StoreError) as error:
                self._waits(str(error))
            except Exception:  # a fault of ours must not end the bridge for good
                logger.exception("the Kafka outlet failed; restarting it")
                self._counts.outlet_state = BridgeState.WAITING
            finally:
                self._end()
            await self._engine.clock.sleep_for(RETRY_MS)

    # ------------------------------------------------------------------ what is there

    async def _checked(self, positions: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
        """Return the positions that this data has reached, and have Kafka note those that it has not.

        After a restore the data is older than what was sent: messages that come from now on would be taken
        for those. So positions beyond what the log held when nothing had gone out yet do not count; a topic
        that did not go out then has none. Kafka notes it, then the log, and then messages are sent.
        """
        began = self._outlets.unchecked()
        if began is None:
            return positions
        going_out = self._outlets.topics()
        wrong: dict[str, dict[int, int]] = {}
        for topic, offsets in positions.items():
            reached = (
                {queue: await self._reached(topic, queue, offset, began) for queue, offset in offsets.items()}
                if topic in going_out
                else {}
            )
            if reached != offsets:
                wrong[topic] = reached
        if wrong:
            topic, reached = next(iter(wrong.items()))
            logger.error(
                "Kafka is ahead of this data, as after a restore; resuming %d topics where the data ends: "
                "%s from %s, instead of %s",
                len(wrong), topic, reached or "the start", positions[topic],
            )  # fmt: skip
            await self._call(self._producer.send, [], wrong)
        await self._outlets.note_checked()
        return positions | wrong

    async def _reached(self, topic: str, number: int, position: int, began: int) -> int:
        """Return a position, or the first one of a record from the log offset `began` on if that is less."""
        queues = self._engine.queues
        low, high = queues.queue_bounds(topic, number)
        if position <= low:
            return position
        high = min(position, high)
        while low < high:
            middle = high - 1 if high == position else (low + high) // 2
            _, found = await queues.positions(topic, number, middle, 1)
            if len(found) and found["offset"][0] < began:
                low = middle + 1
            else:
                high = middle
        return low

    async def _repeat(self, opened: Opened, positions: Mapping[str, dict[int, int]]) -> None:
        """Send again what had counted, and hangs; end what hangs of this service.

        Kafka notes first which messages these are, and forgets it in the transaction that has them.
        """
        own: dict[Place, Repeats] = {}
        for one in opened.hanging:
            if (counted := await self._counted(one, positions)) is not None:
                own[one.place] = counted
        again = joined([opened.again, *own.values()], positions)
        if not own and not again:
            return
        await self._engine.lead.confirm()  # one that was replaced knows too little of its queues
        hanging = [one for one in opened.hanging if one.place in own]
        hung = await self._call(self._producer.repeat, hanging, positions, again)
        repeats = joined([opened.again, *(own[place] for place in hung)], positions)
        parts = [
            part
            for topic, queues in repeats.items()
            for queue, places in queues.items()
            for part in await self._parts_of(topic, queue, places)
        ]
        if again:
            await self._committed(parts, {topic: positions[topic] for topic in again})
        if hung or opened.again:  # else it had ended after all
            logger.warning(
                "brokers lost how a transaction ended in %s; aborted it and resent %d messages",
                ", ".join(map(str, sorted(hung))) or "a partition", len(parts),
            )  # fmt: skip

    async def _counted(self, hanging: Hanging, positions: Mapping[str, dict[int, int]]) -> Repeats | None:
        """Return the messages that hang there and count as sent, by their queues.

        None if what hangs begins with no message that this service has just sent, or would send next.
        """
        found: Repeats = {}
        seen: set[str] = set()
        for topic, offsets in positions.items():
            ids = {one for target, one in hanging.ids if target == kafka_topic_of(topic)}
            for queue, position in offsets.items():
                for place, one in await self._near(topic, queue, position, ids):
                    seen.add(one)
                    if place < position:
                        found.setdefault(topic, {}).setdefault(queue, []).append(place)
        first = dict(hanging.first.headers).get(ID) or b""
        return found if first.decode(errors="replace") in seen else None

    async def _near(
        self, topic: str, number: int, position: int, ids: Collection[str]
    ) -> list[tuple[int, str]]:
        """Return queue offset and id of these messages, if the last transaction or the next may have them."""
        queues = self._engine.queues
        roots = np.array([root for one in ids if (root := root_in(one)) is not None], np.uint64)
        found: list[tuple[int, str]] = []
        at, end = position - RECORDS_MAX, position + RECORDS_MAX
        while len(roots) and at < end:
            at, rows = await queues.positions(topic, number, max(at, 0), end - at)
            if not len(rows):
                break
            places = at + np.flatnonzero(np.isin(rows["root"], roots))
            for part in await self._parts_of(topic, number, places.tolist()):
                for data, root in zip(part.records, part.roots, strict=True):
                    one = "" if isinstance(data, CorruptionError) else self._id_of(data, root)
                    if one in ids:
                        found.append((part.until - 1, one))
            at += len(rows)
        return found

    def _id_of(self, data: bytes, root: int) -> str:
        return id_of(self._engine.core.ids, decode(data), root)

    async def _parts_of(self, topic: str, number: int, places: Sequence[int]) -> list[Part]:
        """Read single messages of a queue; those that retention has removed are lost."""
        parts: list[Part] = []
        for place in places:
            page = await self._engine.queues.records(topic, number, place, 1)
            if page.first == place and page.records:
                roots = page.positions["root"].tolist()
                parts.append(Part(Queue(topic, number, place), place + 1, roots, page.records))
            else:
                logger.error("retention removed message %d of %s before it was sent to Kafka", place, topic)
                self._counts.lost += 1
        return parts

    def _begin(self, positions: dict[str, dict[int, int]]) -> None:
        self._positions = positions
        self._out = dict(positions)
        self._follow()

    def _follow(self) -> None:
        """Watch the topics that go out, and no others."""
        if self._positions is None:
            return
        going_out = self._outlets.topics()
        for topic in self._queues.keys() - going_out.keys():
            self._drop(topic)
        for topic, starts in going_out.items():
            self._add(topic, starts)

    def _drop(self, topic: str) -> None:
        """Forget a topic that does not go out any more. A transaction that has messages of it goes on."""
        for watch in self._watches.pop(topic, ()):
            watch.cancel()
        for queue in self._queues.pop(topic).values():
            self._ready.pop(queue, None)

    def _add(self, topic: str, starts: dict[int, int]) -> None:
        """Watch the queues of a topic that are new."""
        assert self._positions is not None
        positions = self._positions.get(topic, {})
        known = self._queues.setdefault(topic, {})
        watches = self._watches.setdefault(topic, [])
        for number in range(self._engine.queues.queues_of(topic)):
            if number not in known:
                next_offset = max(positions.get(number, 0), starts.get(number, 0))
                queue = known[number] = Queue(topic, number, next_offset)
                watches.append(in_background(self._watch(queue), f"watching {topic} for Kafka"))

    def _is_watched(self, queue: Queue) -> bool:
        return self._queues.get(queue.topic, {}).get(queue.number) is queue

    async def _watch(self, queue: Queue) -> None:
        """Have a queue read when it has messages."""
        queues = self._engine.queues
        while self._engine.ready:
            await queues.wait_for(queue.topic, queue.number, queue.next_offset, LOOK_MS)
            if queue.number == 0:  # also while it always has messages, or is paused
                self._add(queue.topic, {})
            if self._engine.topics.paused(queue.topic):
                await self._wait_for_resume(queue)
            elif queues.queue_bounds(queue.topic, queue.number)[1] > queue.next_offset:
                queue.read.clear()
                self._ready[queue] = None
                self._wake.set()
                await queue.read.wait()

    async def _wait_for_resume(self, queue: Queue) -> None:
        """Return when a topic that is paused may have been resumed."""
        resumed = self._engine.queues.arrival(queue.topic, queue.number)
        try:
            await self._engine.clock.wait_for(resumed, LOOK_MS)
        finally:
            resumed.cancel()

    def _end(self) -> None:
        """Forget the queues: how far they are out is known again after the next `open`."""
        self._positions = None
        for topic in [*self._queues]:
            self._drop(topic)

    # ------------------------------------------------------------------ sending

    async def _send_all(self) -> None:
        while True:
            self._wake.clear()
            if not self._ready:
                self._counts.behind = 0
                await self._wait_for_messages()
            parts = await self._next_parts()
            if parts:
                await self._send(parts)
            self._count_behind()

    async def _wait_for_messages(self) -> None:
        """Return once there are some; what was sent last is noted before long."""
        waiting: asyncio.Future[Any] = asyncio.ensure_future(self._wake.wait())
        try:
            while self._unnoted and not waiting.done():
                left_ms = self._note_ms - self._engine.clock.monotonic_ms()
                if left_ms > 0:
                    await self._engine.clock.wait_for(waiting, left_ms)
                else:
                    await self._note({})
            await waiting
        finally:
            waiting.cancel()

    async def _next_parts(self) -> list[Part]:
        """Read a part of each queue that has messages; the first ones go to the end of the line."""
        records_max = self._size.records_max
        chosen = list(self._ready)[:records_max]
        count_max = max(records_max // len(chosen), 1)
        parts: list[Part] = []
        size_bytes = 0
        for queue in chosen:
            if size_bytes >= TRANSACTION_BYTES_MAX:
                break
            if queue not in self._ready:  # its topic was dropped
                continue
            del self._ready[queue]
            page = await self._engine.queues.records(queue.topic, queue.number, queue.next_offset, count_max)
            self._count_lost(queue, page.first)
            if page.records:
                roots = page.positions["root"].tolist()
                size_bytes += int(page.positions["size"].sum())
                parts.append(Part(queue, page.first + len(page.records), roots, page.records))
            else:
                queue.next_offset = page.first
                queue.read.set()
        for part in parts:
            if self._engine.topics.paused(part.queue.topic):
                part.queue.read.set()
        return [part for part in parts if not part.queue.read.is_set() and self._is_watched(part.queue)]

    def _count_lost(self, queue: Queue, first: int) -> None:
        """Count the messages of a queue before the first one that is there; what was purged is not lost."""
        taken = self._engine.queues.taken_before(queue.topic, queue.number)
        if (lost := first - max(queue.next_offset, taken)) > 0:
            logger.error(
                "retention removed %d messages of %s before they went to Kafka; they are lost",
                lost, queue.topic,
            )  # fmt: skip
            self._counts.lost += lost

    async def _send(self, parts: Sequence[Part]) -> None:
        reached = {topic: self._known(topic) for topic in {part.queue.topic for part in parts}}
        for queue, until, *_ in parts:
            reached[queue.topic][queue.number] = until
        began_ms = self._engine.clock.monotonic_ms()
        try:
            refused, sent = await self._committed(parts, reached)
        except Exception:
            self._size.failed()
            raise
        self._size.ended(self._engine.clock.monotonic_ms() - began_ms)
        self._out |= reached
        self._counts.transactions += 1
        self._counts.sent += sent - refused
        self._counts.not_sent += refused
        for queue, until, *_ in parts:
            queue.next_offset = until
            if not self._is_watched(queue):
                continue
            if self._engine.queues.queue_bounds(queue.topic, queue.number)[1] > until:
                self._ready[queue] = None
            else:
                queue.read.set()
        await self._note(reached)

    async def _committed(self, parts: Sequence[Part], reached: dict[str, dict[int, int]]) -> tuple[int, int]:
        """Commit a transaction, and report it while Kafka does not take it."""
        call: asyncio.Future[Any] = asyncio.ensure_future(self._call(self._send_records, parts, reached))
        topics = ", ".join(sorted({kafka_topic_of(part.queue.topic) for part in parts})[:TOPICS_SHOWN_MAX])
        try:
            await self._engine.clock.wait_for(call, LATE_MS)
            while not call.done():
                self._waits(
                    f"Kafka has not taken a transaction with messages for {topics} yet; do their partitions "
                    "have a leader, and enough replicas in sync?"
                )
                await self._engine.clock.wait_for(call, LATE_MS)
            refused, sent = call.result()
            return refused, sent
        finally:
            call.cancel()

    async def _note(self, reached: dict[str, dict[int, int]]) -> None:
        """Note in the log how far topics have gone out, now and then."""
        self._works()
        self._unnoted |= reached
        now_ms = self._engine.clock.monotonic_ms()
        if now_ms >= self._note_ms:
            self._note_ms = now_ms + NOTE_MS
            with suppress(NoSpaceError):  # what is there falls due all the same; it is noted later
                await self._outlets.note_sent(self._unnoted)
                self._unnoted = {}

    def _known(self, topic: str) -> dict[int, int]:
        return {number: queue.next_offset for number, queue in self._queues[topic].items()}

    def _send_records(self, parts: Sequence[Part], reached: dict[str, dict[int, int]]) -> tuple[int, int]:
        records = [record for part in parts for record in _produced(self._engine.core.ids, part)]
        refused = self._producer.send(records, reached)
        for refusal in refused[:1]:
            logger.warning(
                "%d messages went to the topic of rejected records, the first because: %s",
                len(refused), refusal.detail,
            )  # fmt: skip
        return len(refused), len(records)

    def _count_behind(self) -> None:
        """Count what is to go out next."""
        ends = self._engine.queues.queue_bounds
        self._counts.behind = sum(
            ends(queue.topic, queue.number)[1] - queue.next_offset for queue in self._ready
        )

    def _count_waiting(self) -> None:
        """Count what has not gone out while nothing goes."""
        ends, count = self._engine.queues.queue_bounds, 0
        for topic, starts in self._outlets.topics().items():
            out = self._out.get(topic, {})
            for number in range(self._engine.queues.queues_of(topic)):
                reached = max(out.get(number, 0), starts.get(number, 0))
                count += max(ends(topic, number)[1] - reached, 0)
        self._counts.behind = count

    # ------------------------------------------------------------------ around it

    def _works(self) -> None:
        self._counts.outlet_state = BridgeState.WORKING
        if (lasted_ms := self._trouble.over()) is not None:
            logger.info("the Kafka outlet works again after %d s", lasted_ms // 1000)

    def _waits(self, reason: str) -> None:
        self._counts.outlet_state = BridgeState.WAITING
        self._count_waiting()
        if self._trouble.met():
            logger.warning("the Kafka outlet waits: %s", reason)

    async def _call(self, call: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - passed through
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args))

    def stop(self) -> None:
        """Let a call that waits for Kafka give up."""
        self._producer.stop()

    async def close(self) -> None:
        """Leave Kafka; `run` was cancelled."""
        await self._call(self._producer.close)
        self._thread.shutdown()


def _produced(ids: Ids, part: Part) -> list[Produced]:
    """Return what records become, without damaged ones, which readers by offset see as such."""
    records: list[bytes] = []
    roots: list[int] = []
    for data, root in zip(part.records, part.roots, strict=True):
        if isinstance(data, CorruptionError):
            logger.error("not sending a message to Kafka: its record is damaged: %s", data)
        else:
            records.append(data)
            roots.append(root)
    headers = list(map(unpack_header, records))
    return list(map(produced_of, records, headers, ids_of(ids, headers, roots)))
