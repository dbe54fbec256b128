"""The deletion of topics, in steps that a start goes on with.

    begin   `topic_ending` is stored: nothing can be added any more, and every reader finds the queues empty
    clear   the subscriptions, schedules and groups of the topic are deleted
    drain   its timers and open transactions are ended, each by a CANCEL
    end     `topic_end` is stored, in one unit with the removal of the topic's options

1. The topic is in `TopicOptions.ending` before `topic_ending` is submitted. So once that is stored, all that
   was added before has taken effect, and nothing follows; see rule 5 there.
2. `delete` returns after the second step: no consumer gets a message of the topic from then on. The others
   run in the background, since each timer is a record to write. Each step can be repeated.
3. `topic_end` is submitted in a step of the loop in which the topic has nothing left. It says up to which log
   offset, and up to which offset of each queue, records have taken effect. What a group stores later without
   asking, a dead letter in `%DLQ%group`, thus belongs to the topic that begins again under the name.
4. Queue offsets go on from there, so an id, a receipt or a committed offset of a deleted message never means
   another one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from timerwheel.errors import AdmissionError, NotReadyError, OutcomeUnknownError
from timerwheel.groups.config import UnknownGroupError
from timerwheel.groups.groups import Groups
from timerwheel.model.messages import EndingGroup, TopicDeletion
from timerwheel.model.precondition import ALWAYS, Precondition
from timerwheel.runtime.bulk_recall import BulkRecalls
from timerwheel.runtime.core import Core
from timerwheel.runtime.queue_reader import SYSTEM_TOPICS, QueueReader
from timerwheel.runtime.shielded import finished
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.runtime.transactions import Transactions
from timerwheel.schedules.errors import UnknownScheduleError
from timerwheel.schedules.scheduler import Scheduler
from timerwheel.state.config_table import ConfigTable, Control, Put, TopicEnd
from timerwheel.store.errors import NoSpaceError
from timerwheel.telemetry.throttled_log import ThrottledLog

logger = logging.getLogger("timerwheel")

RETRY_MS = 500


@dataclass(eq=False)
class TopicDeletions:
    """Deletes topics, one after the other. Belongs to the event loop."""

    core: Core
    control: Control
    topics: TopicOptions
    queues: QueueReader
    bulk_recalls: BulkRecalls
    transactions: Transactions
    groups: Groups
    schedules: Scheduler
    on_ending: list[Callable[[str], Awaitable[None]]] = field(default_factory=list)
    """Called with a topic that is being deleted, to delete what the engine does not know how to."""

    def __post_init__(self) -> None:
        self._beginning: set[str] = set()
        self._over: dict[str, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()
        self._trouble = ThrottledLog(self.core.clock)

    def plan(self, topic: str) -> TopicDeletion:
        """Return what a deletion of the topic would delete now. Raises what `delete` does of its name."""
        self._check(topic)
        return self._view(topic)

    async def delete(self, topic: str, wait_ms: int = 0, when: Precondition = ALWAYS) -> TopicDeletion:
        """Delete a topic with all that belongs to it; waits up to `wait_ms` for the last step.

        When this returns, no message of it is delivered any more, and the rest goes on by itself, also after
        a restart. A topic that is being deleted already is waited for. Raises UnknownTopicError,
        AdmissionError (system_topic), NoSpaceError, NotReadyError, OutcomeUnknownError; after an error of the
        disk the topic may be ending. PreconditionFailedError if the topic is not as `when` says.
        """
        self.core.life.check_ready()
        self._check(topic)
        planned = self._view(topic)
        await finished(self._begin(topic, when))
        if topic in self.topics.ending and wait_ms:
            over = self._over.setdefault(topic, asyncio.get_running_loop().create_future())
            await self.core.clock.wait_for(over, wait_ms)
        return msgspec.structs.replace(planned, state="ending" if topic in self.topics.ending else "deleted")

    async def run(self) -> None:
        """Finish deletions, until cancelled."""
        while True:
            self._wake.clear()
            for topic in sorted(self.topics.ending - self._beginning):
                await self._try_to_finish(topic)
            again_ms = self.core.clock.now_ms() + RETRY_MS if self.topics.ending else None
            await self.core.clock.wait_until(again_ms, self._wake)

    # ------------------------------------------------------------------ the steps

    async def _begin(self, topic: str, when: Precondition) -> None:
        async with self.topics.turn(topic):  # a change of the options has ended, or comes too late
            if topic in self.topics.ending:
                return
            self.topics.check_as(when, topic)
            self.topics.ending.add(topic)
            self._beginning.add(topic)
        try:
            await self.control.put([Put(ConfigTable.TOPIC_ENDING, topic, self.core.clock.now_ms())])
            logger.info("topic %s is being deleted", topic)
            await self._clear(topic)
        finally:
            self._beginning.discard(topic)
            if self.control.get(ConfigTable.TOPIC_ENDING, topic) is None:
                self.topics.ending.discard(topic)
            self._wake.set()

    async def _try_to_finish(self, topic: str) -> None:
        try:
            await self._clear(topic)
            if self.core.state.topic(topic).pending:
                await self.bulk_recalls.end_timers(topic, with_transactions=True)
            if self._is_clear(topic) and not self.core.state.topic(topic).pending:
                await self._end(topic)
            self._trouble.over()
        except (NoSpaceError, NotReadyError, OutcomeUnknownError) as error:
            if self._trouble.met():
                logger.warning("topic %s cannot be deleted yet; retrying: %s", topic, error)

    async def _clear(self, topic: str) -> None:
        for delete in self.on_ending:
            await delete(topic)
        puts = [Put(ConfigTable.SUBSCRIPTION, one, None) for one in self._subscriptions(topic)]
        if puts:
            await self.control.put(puts)
        for name in self._schedules_of(topic):
            with contextlib.suppress(UnknownScheduleError):
                await self.schedules.delete(name)
        for group in self._groups_of(topic):
            with contextlib.suppress(UnknownGroupError):
                await self.groups.delete(topic, group)

    async def _end(self, topic: str) -> None:
        found = self.core.state.topic(topic)
        end = TopicEnd(
            self.core.clock.now_ms(),
            self.core.state.until,
            {queue: tail.next_offset for queue, tail in found.queues.items()},
        )
        await self.control.put(
            [
                Put(ConfigTable.TOPIC_END, topic, msgspec.to_builtins(end, str_keys=True)),
                Put(ConfigTable.TOPIC_ENDING, topic, None),
                *self.topics.end_puts(topic),
                Put(ConfigTable.TOPIC_PURGE, topic, None),
            ]
        )
        self.transactions.forget(topic)
        self.topics.ending.discard(topic)
        self.topics.tell_kafka()
        if (over := self._over.pop(topic, None)) is not None:
            over.set_result(None)
        logger.info("topic %s is deleted", topic)

    # ------------------------------------------------------------------ what belongs to a topic

    def _check(self, topic: str) -> None:
        if topic in SYSTEM_TOPICS:
            raise AdmissionError("system_topic", f"topic {topic!r} belongs to the service")
        self.queues.topic(topic)  # raises UnknownTopicError

    def _view(self, topic: str) -> TopicDeletion:
        info = self.queues.topic(topic)
        groups = [EndingGroup(group, self._left(topic, group)) for group in self._groups_of(topic)]
        return TopicDeletion(
            *(topic, "planned", info.pending, info.visible),
            groups,
            self._schedules_of(topic),
            self._subscriptions(topic),
        )

    def _left(self, topic: str, group: str) -> int:
        counts = self.groups.info(topic, group)
        return counts.lag + counts.in_flight + counts.waiting + counts.ready + counts.parked

    def _is_clear(self, topic: str) -> bool:
        return not (self._groups_of(topic) or self._schedules_of(topic) or self._subscriptions(topic))

    def _groups_of(self, topic: str) -> list[str]:
        return sorted(state.group for state in self.core.state.groups.of_topic.get(topic, ()))

    def _schedules_of(self, topic: str) -> list[str]:
        return [name for name in self.schedules.names() if self.schedules.topic_of(name) == topic]

    def _subscriptions(self, topic: str) -> list[str]:
        stored = self.control.items(ConfigTable.SUBSCRIPTION)
        return [name for name, value in stored.items() if value.get("topic") == topic]
