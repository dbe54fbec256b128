"""The purge of a topic: its scheduled messages end, its delivered ones are hidden, and all else stays.

    note    the log offset at which it begins, and the ends of the queues: later sends are not purged
    recall  the timers that were stored before, each by a CANCEL
    hide    `topic_purge` is stored: the queues begin behind what was delivered, for every reader
    finish  the groups are done with what they hold of it

1. Messages that fall due while timers are recalled go too: a queue is hidden up to the first message that was
   sent since the purge began. What fell due behind such a message is delivered, and counted as missed.
2. A purge that is broken off leaves what it has done, and can be repeated. Once the queues are hidden, nobody
   gets a message from before, also after a crash: the rest only frees what groups hold.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from timerwheel.errors import AdmissionError
from timerwheel.groups.groups import Groups
from timerwheel.model.messages import PurgedGroup, TopicPurged
from timerwheel.runtime.bulk_recall import BulkRecalls
from timerwheel.runtime.core import Core
from timerwheel.runtime.queue_reader import SYSTEM_TOPICS, QueueReader
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.state.config_table import ConfigTable, Control, Put, TopicPurge

logger = logging.getLogger("timerwheel")

STEP_MESSAGES = 10_000


@dataclass(eq=False)
class TopicPurges:
    """Purges topics. Belongs to the event loop."""

    core: Core
    control: Control
    topics: TopicOptions
    queues: QueueReader
    bulk_recalls: BulkRecalls
    groups: Groups
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def purge(
        self, topic: str, *, scheduled: bool, delivered: bool, dry_run: bool = False
    ) -> TopicPurged:
        """Purge a topic of what was sent before; a dry run only counts. One call at a time for each topic.

        Open transactions stay; another counts as sent when it was begun. A caller that goes away breaks it
        off. Raises UnknownTopicError,
        AdmissionError (system_topic), TopicEndingError, NoSpaceError, NotReadyError, OutcomeUnknownError;
        after an error a part may have been purged.
        """
        self.core.life.check_ready()
        if topic in SYSTEM_TOPICS:
            raise AdmissionError("system_topic", f"topic {topic!r} belongs to the service")
        self.queues.topic(topic)  # raises UnknownTopicError
        turn = self._turns.setdefault(topic, asyncio.Lock())
        async with turn:
            self.topics.check_open([topic])
            since, ends, missed = self.core.state.until, self._ends(topic), 0
            done = TopicPurged(topic, dry_run)
            if scheduled:
                count = await self.bulk_recalls.end_timers(topic, dry_run=dry_run)
                ended = count.matched if dry_run else count.recalled
                done, missed = msgspec.structs.replace(done, scheduled=ended), count.missed
            if delivered and scheduled and not dry_run:
                ends, missed = await self._ends_since(topic, ends, since)
            if delivered:
                done = self._count(done, ends)
            if delivered and not dry_run:
                await self._hide(topic, ends)
            done = msgspec.structs.replace(done, missed=missed)
        if not dry_run:
            logger.info(
                "topic %s was purged of %d scheduled and %d delivered messages",
                *(topic, done.scheduled, done.delivered),
            )
        return done

    def _ends(self, topic: str) -> dict[int, int]:
        """Return the end of each queue now."""
        return {queue: end for queue, (_, end) in enumerate(self.queues.bounds_of(topic))}

    async def _ends_since(self, topic: str, ends: dict[int, int], since: int) -> tuple[dict[int, int], int]:
        """Return the first offset of each queue, from these on, whose message was sent since a log offset.

        Also how many messages from before lie behind it.
        """
        found: dict[int, int] = {}
        missed = 0
        for queue in range(self.queues.queues_of(topic)):
            at = ends.get(queue, 0)
            while True:
                at, positions = await self.queues.positions(topic, queue, at, STEP_MESSAGES)
                if not len(positions):
                    break
                is_new = positions["root"] >= since
                if queue not in found and is_new.any():
                    found[queue] = at + int(np.argmax(is_new))
                    is_new = is_new[found[queue] - at :]
                if queue in found:
                    missed += int(np.count_nonzero(~is_new))
                at += len(positions)
                await self.core.clock.breathe()
            found.setdefault(queue, at)
        return found, missed

    def _count(self, done: TopicPurged, ends: dict[int, int]) -> TopicPurged:
        bounds = self.queues.bounds_of(done.topic)
        delivered = sum(max(ends.get(queue, 0) - low, 0) for queue, (low, _) in enumerate(bounds))
        groups = [PurgedGroup(*one) for one in self.groups.left_before(done.topic, ends)]
        return msgspec.structs.replace(done, delivered=delivered, groups=groups)

    async def _hide(self, topic: str, ends: dict[int, int]) -> None:
        self.topics.check_open([topic])
        if any(ends.get(queue, 0) > low for queue, (low, _) in enumerate(self.queues.bounds_of(topic))):
            purge = TopicPurge(self.core.clock.now_ms(), ends)
            value = msgspec.to_builtins(purge, str_keys=True)
            await self.control.put([Put(ConfigTable.TOPIC_PURGE, topic, value)])
        await self.groups.end_before(topic, ends)
