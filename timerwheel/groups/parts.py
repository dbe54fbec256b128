"""What the groups work with, besides their own state."""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from timerwheel.errors import NotReadyError
from timerwheel.groups.config import (
    OFFSETS,
    GroupConfig,
    GroupFieldError,
    Start,
    UnknownGroupError,
    config_of,
)
from timerwheel.model.delay_levels import LevelTable
from timerwheel.runtime.ages import Ages
from timerwheel.runtime.core import Core
from timerwheel.runtime.in_flight import Taken
from timerwheel.runtime.message_views import PAGE_BYTES_MAX, rows_within
from timerwheel.runtime.outcome import failure_of
from timerwheel.runtime.queue_reader import QueueReader
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.state.config_table import ConfigTable, Control
from timerwheel.state.groups import DEAD_QUEUE, GroupState, GroupTables, Item, dead_topic, group_topic
from timerwheel.state.lease_records import timer_size
from timerwheel.store.errors import CorruptionError, LogFailedError
from timerwheel.store.record import unit_of
from timerwheel.wheel.slot_table import ENTRY_DTYPE, Entries

ACKNOWLEDGED_MAX = 100_000


class Acknowledged:
    """The leases that were acknowledged last, over all groups: so that acknowledging twice is not an error.

    At least ACKNOWLEDGED_MAX of them, at most twice as many: of two sets the older is dropped when the newer
    is full.
    """

    def __init__(self) -> None:
        self._newer: set[int] = set()
        self._older: set[int] = set()

    def add(self, identities: Iterable[int]) -> None:
        """Remember these."""
        self._newer.update(identities)
        if len(self._newer) >= ACKNOWLEDGED_MAX:
            self._older, self._newer = self._newer, set()

    def __contains__(self, identity: int) -> bool:
        """Whether this lease was acknowledged not long ago."""
        return identity in self._newer or identity in self._older


@dataclass
class GroupParts:
    """What groups work with. Belongs to the event loop."""

    core: Core
    queues: QueueReader
    topics: TopicOptions
    control: Control
    levels: LevelTable
    secret: bytes
    """Keys the receipts: the log's id."""
    run: int
    """Tells the receipts of this run of the service from those of every other."""
    numbers: Iterator[int] = field(default_factory=lambda: (n & 0xFFFF_FFFF for n in itertools.count()))
    """Numbers of leases, over all groups."""
    configs: WeakKeyDictionary[GroupState, tuple[object, GroupConfig]] = field(
        default_factory=WeakKeyDictionary
    )
    """The configuration of each group, with the stored value that it was read from."""
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    letters_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while dead letters are redriven, dropped or drained: each is dealt with once."""

    @property
    def ages(self) -> Ages:
        """How old messages are."""
        return self.core.ages

    @property
    def tables(self) -> GroupTables:
        """All groups and dead-letter queues."""
        return self.core.state.groups

    def state(self, topic: str, group: str) -> GroupState:
        """A group of a topic; UnknownGroupError."""
        state = self.tables.by_name.get(group_topic(topic, group))
        if state is None:
            raise UnknownGroupError(f"topic {topic!r} has no group {group!r}")
        return state

    def check_ready(self) -> None:
        """Raise NotReadyError unless the service takes work."""
        if not self.core.life.ready:
            raise NotReadyError("the service is starting or stopping")

    def keeps_offsets(self, group: GroupState) -> bool:
        """Whether the consumers of a group commit offsets, so that it has nothing else."""
        return self.config(group).kind == OFFSETS

    def config(self, group: GroupState) -> GroupConfig:
        """A group's configuration now."""
        stored = self.control.get(ConfigTable.GROUP, group.name)
        known = self.configs.get(group)
        if known is None or known[0] is not stored:  # a change of settings stores another value
            known = self.configs[group] = (stored, config_of(stored))
        return known[1]

    def backoff_ms(self, config: GroupConfig, attempt: int) -> int:
        """How long after a failed attempt the next one comes, at least the minimum."""
        delay_ms = config.backoff.delay_ms(attempt, self.levels)
        return max(delay_ms, self.core.settings.redelivery_delay_ms)

    def comes_back_ms(self, config: GroupConfig, attempt: int, invisible_ms: int, now_ms: int) -> int:
        """When a message comes back that an earlier version leased, if it is not acknowledged.

        After its last attempt it only leaves for the dead letters, which need not wait.
        """
        last = attempt >= config.max_attempts
        return now_ms + invisible_ms + (0 if last else self.backoff_ms(config, attempt))

    def is_kept(self, group: GroupState) -> bool:
        """Whether a group is still there: it may have been deleted, and made again, while a caller waited."""
        return self.tables.by_name.get(group.name) is group

    def dead_count(self, topic: str) -> int:
        """How many dead letters a dead-letter topic has that are still kept."""
        low, high = self.queues.queue_bounds(topic, 0)
        letters = self.tables.dead.get(self.queues.topic_id(topic))
        if letters is None:
            return high - low
        low = max(low, letters.low)
        return high - low - sum(low <= offset < high for offset in letters.removed)

    def drains(self, group: GroupState) -> bool:
        """Whether a group reads its own dead letters: what it acknowledges there is a dead letter no more."""
        return group.topic == dead_topic(group.group)

    def is_dead(self, topic: str, queue_offset: int) -> bool:
        """Whether the message of a dead-letter topic was neither redriven nor dropped nor drained."""
        letters = self.tables.dead.get(self.queues.topic_id(topic))
        return letters is None or letters.has(queue_offset)

    def place_of(self, group: GroupState, queue: int) -> tuple[str, int]:
        """Topic and queue in which messages lie that a group has under this number."""
        if queue == DEAD_QUEUE:
            return dead_topic(group.group), 0
        return group.topic, queue

    def entries(self, group: GroupState, items: Sequence[Item]) -> Entries:
        """The timers of those items that have one, as the wheel has them."""
        size = timer_size(group.name.encode())
        timed = [(item.due_ms, item.root, item.offset, item.queue) for item in items if item.timed]
        found = np.zeros(len(timed), ENTRY_DTYPE)
        if timed:
            found["due_ms"], found["root"], found["offset"], found["queue"] = zip(*timed, strict=True)
            found["size"], found["topic"] = size, group.topic_id
        return found

    async def read(
        self, topic: str, queue: int, first: int, count_max: int, bytes_max: int = PAGE_BYTES_MAX
    ) -> "Found":
        """Messages of a queue, those that are still kept; no more than `bytes_max`, but at least one."""
        offset, positions = await self.queues.positions(topic, queue, first, count_max)
        if not len(positions):
            return Found(offset, [], [])
        positions = positions[: rows_within(positions["size"], bytes_max)]
        data = await self.core.record_cache.read(positions["offset"], positions["size"])
        # Retention may have dropped segments since: their records are gone, not damaged.
        gone = int(np.searchsorted(positions["offset"], self.core.log.bases[0]))
        return Found(offset + gone, positions["root"][gone:].tolist(), data[gone:])

    async def cursors_for(
        self,
        topic: str,
        *,
        to: Start | None = None,
        time_ms: int | None = None,
        offsets: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """Return where a group is to begin in each queue of a topic, or with `offsets` in those.

        Offsets are kept within the queues. Raises GroupFieldError for a queue that the topic does not have.
        """
        found: dict[int, int] = {}
        offsets = offsets or {}
        count = self.queues.queues_of(topic)
        unknown = sorted(queue for queue in offsets if not 0 <= queue < count)
        if unknown:
            raise GroupFieldError(f"offsets: topic {topic!r} has no queue {unknown[0]}")
        for queue in range(count):
            low, high = self.queues.queue_bounds(topic, queue)
            if to is not None:
                found[queue] = low if to == "head" else high
            elif time_ms is not None:
                found[queue] = await self.queues.first_from(topic, queue, time_ms)
            elif queue in offsets:
                found[queue] = min(max(offsets[queue], low), high)
        return found

    async def submit(self, records: list[bytes], topics: list[str], taken: Taken | None = None) -> None:
        """Store records as one unit; NoSpaceError, NotReadyError, OutcomeUnknownError."""
        unit = unit_of(records)
        stored = self.core.commit.submit(unit, topics) if taken is None else taken.submit(unit, topics)
        await stored_offset(stored)


@dataclass
class Found:
    """Messages of a queue: offset of the first, roots, records or why they cannot be read."""

    first: int
    roots: list[int]
    data: list[bytes | CorruptionError]
    bounded: bool = False
    """Whether it was cut to what may be kept for the next receive."""

    def has(self, offset: int) -> bool:
        """Whether the message at this queue offset is one of them."""
        return 0 <= offset - self.first < len(self.data)

    def since(self, offset: int) -> "Found":
        """Those from an offset on, which is not before the first."""
        skipped = max(offset - self.first, 0)
        return Found(self.first + skipped, self.roots[skipped:], self.data[skipped:], self.bounded)


async def stored_offset(stored: asyncio.Future[int]) -> int:
    """The offset at which a unit was stored; NoSpaceError, NotReadyError, OutcomeUnknownError."""
    try:
        return await asyncio.shield(stored)
    except LogFailedError as error:
        raise failure_of(error) from error
