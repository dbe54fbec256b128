"""Reads topics and their consume queues: delivered messages by offset, with long polls."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from timerwheel.errors import OffsetOutOfRangeError, UnknownQueueError, UnknownTopicError
from timerwheel.index import queues
from timerwheel.model.admission import SYSTEM_TOPIC_LEVELS, SYSTEM_TOPIC_TIMER
from timerwheel.model.messages import MessageView, QueueInfo, QueuePage, State, TopicInfo
from timerwheel.runtime.core import Core
from timerwheel.runtime.message_views import PAGE_BYTES_MAX, damaged_view, delivered_views, rows_within
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.state.config_table import ConfigTable
from timerwheel.state.groups import is_internal
from timerwheel.state.memtable import QueueTail
from timerwheel.state.positions import POSITION_DTYPE, Positions
from timerwheel.store.errors import CorruptionError

SYSTEM_TOPICS = {SYSTEM_TOPIC_TIMER: False, SYSTEM_TOPIC_LEVELS: True}  # name -> holds level messages


class RecordPage(NamedTuple):
    """Records of a queue from the offset `first` on, with their positions; an error for a damaged one."""

    first: int
    positions: Positions
    records: list[bytes | CorruptionError]
    min_offset: int
    max_offset: int


class QueueReader:
    """Reads topics and their queues for consumers. Belongs to the event loop."""

    def __init__(self, core: Core, options: TopicOptions) -> None:
        self._clock = core.clock
        self._options = options
        self._threads = core.threads
        self._record_cache = core.record_cache
        self._state = core.state
        self._log = core.log
        self._ids = core.ids
        self._index = core.index
        self._life = core.life
        self._readers: defaultdict[tuple[str, int], set[asyncio.Future[None]]] = defaultdict(set)

    def topic_names(self) -> list[str]:
        """Return the names of all topics, the two system topics last."""
        sent = {name for name, topic in self._state.topics.items() if not topic.internal}
        sent.difference_update([name for name in self._state.control.topic_ends if not self.exists(name)])
        return [*sorted(sent.union(self._options.named())), *SYSTEM_TOPICS]

    def topics(self) -> list[TopicInfo]:
        """Return every topic with its counts; 9 µs each, all in one step of the event loop."""
        return [self.topic(name) for name in self.topic_names()]

    def topic(self, name: str) -> TopicInfo:
        """Return one topic; UnknownTopicError."""
        if name in SYSTEM_TOPICS:
            return self._system_topic(name)
        ordered, paused = self._options.ordered(name), self._options.paused(name)
        queue_count, to_kafka = self.queues_of(name), self._options.to_kafka(name)
        topic, ending = self._state.topics.get(name), name in self._options.ending
        if topic is None or not (ending or self.exists(name)):
            if not self._options.has(name):
                raise UnknownTopicError(self._why_unknown(name))
            return TopicInfo(
                *(name, [], 0, 0), ordered=ordered, queue_count=queue_count, paused=paused, to_kafka=to_kafka
            )
        if topic.internal:
            raise UnknownTopicError(self._why_unknown(name))
        queues = [
            (queue, self._queue_tail(name, queue))
            for queue in sorted(topic.queues)
            if ending or self._state.is_used(topic, queue)
        ]
        found = [QueueInfo(queue, tail.min_offset, tail.next_offset) for queue, tail in queues]
        visible = sum(queue.max_offset - queue.min_offset for queue in found)
        return TopicInfo(
            *(name, found, visible, topic.pending),
            ordered=ordered,
            queue_count=queue_count,
            ending=ending,
            paused=paused,
            to_kafka=to_kafka,
        )

    def find_topic(self, name: str) -> TopicInfo | None:
        """Return one topic; None if it is not there any more."""
        try:
            return self.topic(name)
        except UnknownTopicError:
            return None

    def exists(self, name: str) -> bool:
        """Whether a topic of clients or a group's own has or had messages, and was not deleted since."""
        return self._state.exists(name)

    def _why_unknown(self, name: str) -> str:
        end = self._state.control.topic_ends.get(name)
        why = "does not exist" if end is None else f"was deleted at {end.at_ms}"
        return f"topic {name!r} {why}; sending a message creates it"

    def _system_topic(self, name: str) -> TopicInfo:
        levelled = sum(self._state.level_pending.values())
        pending = levelled if SYSTEM_TOPICS[name] else self._state.pending - levelled
        return TopicInfo(name, [], 0, pending, system=True)

    async def read_queue(
        self, topic: str, queue: int, offset: int, count_max: int, wait_ms: int = 0
    ) -> QueuePage:
        """Return delivered messages from a queue offset on; waits up to `wait_ms` if there are none yet.

        An offset before the first kept one reads from there; -1 means the current end. A queue without
        messages may be waited on. Raises UnknownQueueError for a queue that cannot exist, and
        OffsetOutOfRangeError or UnknownTopicError for an offset beyond the end.
        """
        if topic in SYSTEM_TOPICS or is_internal(topic) or queue < 0 or queue >= self.queues_of(topic):
            raise UnknownQueueError(f"topic {topic!r} has no queue {queue}")
        end = self._queue_tail(topic, queue).next_offset
        if offset < 0:
            offset = end
        if offset > end:
            self.topic(topic)
            raise OffsetOutOfRangeError(topic, queue, offset, end)
        if wait_ms and offset >= self._queue_tail(topic, queue).next_offset:
            await self.wait_for(topic, queue, offset, wait_ms)
        page = await self.records(topic, queue, offset, count_max)
        places = range(page.first, page.first + len(page.records))
        messages = self.delivered_views(page.records, page.positions["root"].tolist(), places)
        return QueuePage(messages, page.first + len(places), page.min_offset, page.max_offset)

    async def newest_of(
        self, topic: str, queue: int, roots: Collection[int], since_ms: int
    ) -> dict[int, bytes | CorruptionError]:
        """Return the newest record of each root among the messages of a queue stored since then, if any."""
        found = self._state.topics.get(topic)
        if found is None or not roots:
            return {}
        bounds = found.queues.get(queue, QueueTail())
        tail = list(bounds.tail)
        span = (bounds.min_offset, tail[0][0] if tail else bounds.next_offset)
        places = await self._threads.read(self._places_of, (found.id, queue), span, tail, roots, since_ms)
        if not places:
            return {}
        offsets, sizes = (np.array(column) for column in zip(*places.values(), strict=True))
        order = np.argsort(offsets)
        data = await self._record_cache.read(offsets[order].astype(np.uint64), sizes[order].astype(np.uint32))
        return dict(zip([list(places)[at] for at in order.tolist()], data, strict=True))

    def _places_of(
        self,
        queue: tuple[int, int],
        span: tuple[int, int],
        tail: list[tuple[int, Positions]],
        roots: Collection[int],
        since_ms: int,
    ) -> dict[int, tuple[int, int]]:
        """Return log offset and size of the newest record of each root."""
        wanted, places = np.array(sorted(roots), np.uint64), dict[int, tuple[int, int]]()
        with self._index.read() as txn:
            kept = queues.since(txn, *queue, span, since_ms)
            for positions in itertools.chain(kept, (part for _, part in tail)):
                rows = positions[np.isin(positions["root"], wanted)]
                for root, offset, size in zip(
                    *(rows[name].tolist() for name in ("root", "offset", "size")), strict=True
                ):
                    places[root] = (offset, size)
        return places

    async def records(
        self, topic: str, queue: int, offset: int, count_max: int, bytes_max: int = PAGE_BYTES_MAX
    ) -> RecordPage:
        """Return the records from a queue offset or the first kept one on, at least one if any."""
        while True:
            offset, positions = await self.positions(topic, queue, offset, count_max)
            positions = positions[: rows_within(positions["size"], bytes_max)]
            tail = self._queue_tail(topic, queue)
            if not len(positions):
                return RecordPage(offset, positions, [], tail.min_offset, tail.next_offset)
            records = await self._record_cache.read(positions["offset"], positions["size"])
            # Retention may have dropped segments in between: their records are gone, not damaged. Or it is
            # about to, or the topic is being deleted, and `min_offset` was raised: a page that began before
            # that would contradict itself.
            tail = self._queue_tail(topic, queue)
            gone = int(np.searchsorted(positions["offset"], self._log.bases[0]))
            gone = max(gone, tail.min_offset - offset)
            offset, positions, records = offset + gone, positions[gone:], records[gone:]
            if len(positions):
                return RecordPage(offset, positions, records, tail.min_offset, tail.next_offset)

    def records_in_memory(self, topic: str, queue: int, offset: int, count_max: int) -> RecordPage | None:
        """Return what `records` would, if all of it is in memory; None if it must be read."""
        tail = self._queue_tail(topic, queue)
        offset = max(offset, tail.min_offset)
        if offset >= tail.next_offset:
            nothing = np.zeros(0, POSITION_DTYPE)
            return RecordPage(offset, nothing, [], tail.min_offset, tail.next_offset)
        positions = self._state.queue_tail(tail, offset, count_max)
        if positions is None:
            return None
        positions = positions[: rows_within(positions["size"])]
        records = self._record_cache.kept(positions["offset"])
        if records is None:
            return None
        return RecordPage(offset, positions, records, tail.min_offset, tail.next_offset)

    async def first_from(self, topic: str, queue: int, time_ms: int) -> int:
        """Return the queue offset of the first message that was delivered at or after a time."""
        low, high = self.queue_bounds(topic, queue)
        while low < high:
            middle = (low + high) // 2
            at, positions = await self.positions(topic, queue, middle, 1)
            if at != middle or not len(positions) or int(positions["store_ms"][0]) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def positions(self, topic: str, queue: int, offset: int, count_max: int) -> tuple[int, Positions]:
        """Return the positions of messages in the log, from a queue offset or the first kept one.

        Returns the queue offset of the first position, and at most one page of them; none at the end of the
        queue.
        """
        while True:
            tail = self._queue_tail(topic, queue)
            offset = max(offset, tail.min_offset)
            found = self._state.topics.get(topic)
            if found is None or offset >= tail.next_offset:
                return offset, np.zeros(0, POSITION_DTYPE)
            positions = self._state.queue_tail(tail, offset, count_max)
            if positions is None:
                positions = await self._threads.read(self._read_positions, found.id, queue, offset, count_max)
            if len(positions):
                return offset, positions[: rows_within(positions["size"])]
            # Retention removed them during the read, or they are missing.
            if offset >= self._queue_tail(topic, queue).min_offset:
                self._index.index.report_damage(f"queue {queue} of {topic!r} has a gap at {offset}")

    def delivered_views(
        self,
        records: Sequence[bytes | CorruptionError],
        roots: Sequence[int],
        queue_offsets: Sequence[int],
    ) -> list[MessageView]:
        """Return messages of a queue; a damaged one keeps its place and says so."""
        whole = [data for data in records if isinstance(data, bytes)]
        if len(whole) == len(records):
            return delivered_views(self._ids, whole, roots, queue_offsets)
        return [
            self._damaged_view(data, root, queue_offset)
            if isinstance(data, CorruptionError)
            else delivered_views(self._ids, [data], [root], [queue_offset])[0]
            for data, root, queue_offset in zip(records, roots, queue_offsets, strict=True)
        ]

    def delivered_view(self, data: bytes | CorruptionError, root: int, queue_offset: int) -> MessageView:
        """Return one message of a queue, as `delivered_views` does."""
        return self.delivered_views([data], [root], [queue_offset])[0]

    def _damaged_view(self, error: CorruptionError, root: int, queue_offset: int) -> MessageView:
        view = damaged_view(self._ids, root, error)
        return msgspec.structs.replace(view, state=State.DELIVERED, queue_offset=queue_offset)

    def queues_of(self, topic: str) -> int:
        """Return the number of queues of a topic, numbered from 0."""
        return self._options.queues_of(topic)

    def topic_name(self, topic_id: int) -> str:
        """Return the name of a topic by its id."""
        return self._state.topics_by_id[topic_id].name

    def topic_id(self, name: str) -> int:
        """Return a topic's id, -1 for a topic that never got a message."""
        topic = self._state.topics.get(name)
        return -1 if topic is None else topic.id

    def queue_bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the first kept offset of a queue and the offset after its last message."""
        tail = self._queue_tail(topic, queue)
        return tail.min_offset, tail.next_offset

    def first_of(self, topic: str, queue: int) -> int:
        """Return the offset at which a queue began: 0, or where it went on when its topic was deleted."""
        end = self._state.control.topic_ends.get(topic)
        return 0 if end is None else end.queues.get(queue, 0)

    def taken_before(self, topic: str, queue: int) -> int:
        """Return the offset of a queue before which a purge or a deletion has taken all messages away."""
        purge = self._state.control.get(ConfigTable.TOPIC_PURGE, topic) or {"queues": {}}
        purged = int(purge["queues"].get(str(queue), 0))
        ended = self._queue_tail(topic, queue).next_offset if topic in self._options.ending else 0
        return max(purged, ended, self.first_of(topic, queue))

    def bounds_of(self, topic: str) -> list[tuple[int, int]]:
        """Return the bounds of every queue of a topic, as `queue_bounds` does, in the order of the queues."""
        found = self._state.topics.get(topic)
        tails, none = {} if found is None else found.queues, QueueTail()
        every = [tails.get(queue, none) for queue in range(self.queues_of(topic))]
        if topic in self._options.ending:
            return [(tail.next_offset, tail.next_offset) for tail in every]
        return [(tail.min_offset, tail.next_offset) for tail in every]

    def offsets_of(self, topic: str, queue: int, log_offsets: Sequence[int]) -> list[int] | None:
        """Return the queue offsets of messages that were stored together a moment ago; `log_offsets` ascend.

        None if they are not in memory any more.
        """
        for first, positions in reversed(self._queue_tail(topic, queue).tail):
            known = positions["offset"]
            if len(known) and known[0] <= log_offsets[0]:
                places = np.searchsorted(known, log_offsets)
                is_there = places[-1] < len(known) and (known[places] == log_offsets).all()
                return (first + places).tolist() if is_there else None
        return None

    def _queue_tail(self, topic: str, queue: int) -> QueueTail:
        """Return a queue; that of a topic which is being deleted is empty for all readers."""
        found = self._state.topics.get(topic)
        tail = QueueTail() if found is None else found.queues.get(queue, QueueTail())
        if topic in self._options.ending:
            return QueueTail(tail.next_offset, tail.next_offset)
        return tail

    def _read_positions(self, topic_id: int, queue: int, offset: int, count_max: int) -> Positions:
        with self._index.read() as txn:
            return queues.read(txn, topic_id, queue, offset, count_max)

    async def wait_for(self, topic: str, queue: int, offset: int, wait_ms: int) -> None:
        """Return when a queue has a message at this offset, after `wait_ms`, or when the engine stops."""
        until_ms = self._clock.monotonic_ms() + wait_ms
        while offset >= self._queue_tail(topic, queue).next_offset and self._life.ready:
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            arrived = self.arrival(topic, queue)
            try:
                await self._clock.wait_for(arrived, left_ms)
            finally:
                arrived.cancel()

    def arrival(self, topic: str, queue: int) -> "asyncio.Future[None]":
        """Return a future that is done at the next message of a queue, or when the engine stops.

        Cancel it when it is not needed any more.
        """
        key = (topic, queue)
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._readers[key]
        waiting.add(arrived)

        def forget(_: object) -> None:
            waiting.discard(arrived)
            if not waiting and self._readers.get(key) is waiting:
                del self._readers[key]

        arrived.add_done_callback(forget)
        return arrived

    def resume(self, topic: str) -> None:
        """Have those who wait for messages of a topic look again: it is not paused any more."""
        self.wake([key for key in self._readers if key[0] == topic])

    @property
    def has_waiting(self) -> bool:
        """Whether anyone waits for a message."""
        return bool(self._readers)

    def wake(self, keys: list[tuple[str, int]] | None = None) -> None:
        """Wake the readers that wait on these queues, or all."""
        for key in list(self._readers) if keys is None else keys:
            for arrived in self._readers.get(key, ()):
                if not arrived.done():
                    arrived.set_result(None)
