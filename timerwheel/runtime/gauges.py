"""The contents of an engine at one moment, in numbers. Reads only.

The event loop reads the numbers that it has in memory. The *survey* counts over groups, in steps of the loop,
and over topics and slots, in a reader thread, from memory and from the heads of index pages: it reads no
entry, and no slot that begins a day ahead or later. A survey that took long, as with hundreds of thousands of
small pages, serves for REST_TIMES its duration. It also serves while the next one is being made, unless it is
older than STALE_MS by then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from heapq import nlargest
from typing import NamedTuple

import numpy as np

from timerwheel.index.writer import read_state
from timerwheel.model.admission import DEAD_PREFIX
from timerwheel.model.messages import GroupCounts
from timerwheel.runtime.core import Core
from timerwheel.runtime.firing import Firing
from timerwheel.state.config_table import ConfigTable
from timerwheel.state.groups import DeadLetters, dead_topic
from timerwheel.state.memtable import Topic
from timerwheel.store.errors import StoreError
from timerwheel.store.index import IndexTransaction
from timerwheel.store.record import NO_OFFSET, Kind
from timerwheel.store.rows import join
from timerwheel.store.table import ROW_DTYPE
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import SLOT_MS, Horizons, Level, place

logger = logging.getLogger("timerwheel")

NAMED_MAX = 100
BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
QUICK_MS = 20
REST_TIMES = 20
STALE_MS = 60_000

_NONE = np.uint64(NO_OFFSET)
_TIMER = int(Kind.TIMER)


class Survey(NamedTuple):
    """The counts at `now_ms`. The NAMED_MAX largest have names; the rest is summed under the name ""."""

    now_ms: int
    pending: list[tuple[str, int]]
    visible: list[tuple[str, int]]
    dead: list[tuple[str, int]]
    groups: list[GroupCounts]
    within: list[int]  # messages due within each of BOUNDS_S, overdue ones included
    pending_all: int
    overdue: int

    def seen_by(self, may: Callable[[str], bool]) -> "Survey":
        """Return the survey for a caller who may know some topics only: the others lose their names."""
        return self._replace(
            pending=_some(self.pending, may),
            visible=_some(self.visible, may),
            dead=_some(self.dead, lambda group: may(dead_topic(group))),
            groups=_some_groups(self.groups, may),
        )


class GaugeValues(NamedTuple):
    """The numbers of an engine; `survey` is None if the index cannot be read."""

    leases: int
    topics: int
    groups: int
    schedules: int
    subscriptions: int
    log_start: int
    log_tail: int
    log_synced: int
    segments: int
    index_behind_bytes: int
    index_behind_records: int
    index_behind_ms: int
    near_timers: int
    overdue_ms: int
    quarantined: int
    retries: int
    disk_free_bytes: int
    survey_age_ms: int
    survey: Survey | None


class Gauges:
    """Counts the contents of one engine. Belongs to the event loop."""

    def __init__(
        self, core: Core, firing: Firing, groups: Callable[[], Awaitable[list[GroupCounts]]]
    ) -> None:
        self._groups = groups
        self._state = core.state
        self._near = core.near
        self._log = core.log
        self._index = core.index
        self._threads = core.threads
        self._clock = core.clock
        self._disk = core.disk
        self._firing = firing
        self._last: Survey | None = None
        self._took_ms = 0
        self._good_until_ms = 0  # monotonic
        self._next: asyncio.Task[Survey] | None = None

    async def take(self) -> GaugeValues:
        """Return the numbers now; the survey may be older if making one takes long."""
        survey = await self._survey()
        state, log, now_ms = self._state, self._log, self._clock.now_ms()
        memtables = [memtable for memtable in (state.immutable, state.memtable) if memtable is not None]
        oldest_ms = next(
            (int(part["store_ms"][0]) for memtable in memtables for part in memtable.rows), now_ms
        )
        next_due_ms = self._near.next_due_ms()
        return GaugeValues(
            leases=state.leases,
            topics=state.client_topics,
            groups=len(state.groups.by_name),
            schedules=len(state.control.items(ConfigTable.SCHEDULE)),
            subscriptions=len(state.control.items(ConfigTable.SUBSCRIPTION)),
            log_start=log.start,
            log_tail=log.tail,
            log_synced=log.synced,
            segments=len(log.bases),
            index_behind_bytes=max(log.tail - self._index.state.until, 0),
            index_behind_records=sum(memtable.count for memtable in memtables),
            index_behind_ms=max(now_ms - oldest_ms, 0),
            near_timers=len(self._near),
            overdue_ms=0 if next_due_ms is None else max(now_ms - next_due_ms, 0),
            quarantined=len(self._firing.quarantined),
            retries=self._firing.retries,
            disk_free_bytes=self._disk.free_bytes,
            survey_age_ms=0 if survey is None else max(now_ms - survey.now_ms, 0),
            survey=survey,
        )

    async def _survey(self) -> Survey | None:
        over_ms = self._clock.monotonic_ms() - self._good_until_ms
        if self._next is None and (self._last is None or over_ms >= 0):
            self._next = asyncio.create_task(self._count())
            self._next.add_done_callback(self._counted)
        awaited = self._last is None or self._took_ms <= QUICK_MS or over_ms > STALE_MS
        if self._next is not None and awaited:
            await asyncio.wait((self._next,))  # it continues if the caller goes away
        return self._last

    def _counted(self, task: "asyncio.Task[Survey]") -> None:
        self._next = None
        error = None if task.cancelled() else task.exception()
        self._last = None if task.cancelled() or error is not None else task.result()
        if error is not None and not isinstance(error, StoreError):  # those the engine reports
            logger.error("counting for the gauges failed", exc_info=error)
        self._good_until_ms = self._clock.monotonic_ms()
        if self._took_ms > QUICK_MS:
            self._good_until_ms += REST_TIMES * self._took_ms

    async def _count(self) -> Survey:
        began_ms = self._clock.monotonic_ms()
        groups = await self._groups()
        now_ms, pending, staged = self._clock.now_ms(), self._state.pending, self._state.unindexed_rows(0)
        survey = await self._threads.read(self._count_all, now_ms, pending, staged, groups)
        self._took_ms = self._clock.monotonic_ms() - began_ms
        return survey

    # ------------------------------------------------------------------ in a reader thread

    def _count_all(
        self, now_ms: int, pending: int, staged: list[np.ndarray], groups: list[GroupCounts]
    ) -> Survey:
        """Count everything in a reader thread; the loop goes on, so containers are copied before a walk."""
        state = self._state
        starts, ends, weights = self._slots(now_ms + BOUNDS_S[-1] * 1_000, staged)
        within = [int(weights[starts < now_ms + bound_s * 1_000].sum()) for bound_s in BOUNDS_S]
        topics = [topic for topic in list(state.topics_by_id) if not topic.internal]
        dead = [topic for topic in topics if topic.name.startswith(DEAD_PREFIX)]
        return Survey(
            now_ms=now_ms,
            pending=_most((topic.name, topic.pending) for topic in topics),
            visible=_most((topic.name, _visible(topic)) for topic in topics),
            dead=_most(
                (topic.name.removeprefix(DEAD_PREFIX), _letters(topic, state.groups.dead.get(topic.id)))
                for topic in dead
            ),
            groups=_most_behind(groups),
            within=[min(max(count, 0), pending) for count in within],
            pending_all=pending,
            overdue=min(max(int(weights[ends <= now_ms].sum()), 0), pending),
        )

    def _slots(self, until_ms: int, staged: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return start, end and count of the slots that start before `until_ms`; a slot may occur twice."""
        with self._index.read() as txn:
            state = read_state(txn)
            assert state is not None
            found = list(_slots_of(txn, until_ms))
            horizons, checkpoint = state.horizons, state.until
        parts = [np.array(found, np.int64).reshape(-1, 3)]
        rows = join(staged, ROW_DTYPE)
        rows = rows.compress(rows["offset"] >= checkpoint)  # the rows that are not in the index yet
        parts.append(_placed(rows["due_ms"][rows["kind"] == _TIMER], horizons, 1))
        parts.append(_placed(rows["prior_due_ms"][rows["origin"] != _NONE], horizons, -1))
        # Leases are timers in the wheel too, but not messages of clients.
        held = [item for group in self._state.groups for item in list(group.items.values())]
        leases = np.array([item.due_ms for item in held if item.timed], np.int64)
        parts.append(_placed(leases, horizons, -1))
        slots = np.concatenate(parts)
        slots = slots[slots[:, 0] < until_ms]
        return slots[:, 0], slots[:, 1], slots[:, 2]


def _slots_of(txn: IndexTransaction, until_ms: int) -> Iterator[tuple[int, int, int]]:
    for level in Level:
        for start_ms, weight, _ in slot_table.slot_weights(txn, level, 0, until_ms):
            yield start_ms, start_ms + SLOT_MS[level], weight


def _placed(dues_ms: np.ndarray, horizons: Horizons, weight: int) -> np.ndarray:
    """Return due times as slots of `weight` messages each."""
    levels, starts = place(dues_ms, horizons)
    ends = starts + np.array(SLOT_MS, np.int64)[levels]
    return np.column_stack((starts, ends, np.full(len(starts), weight, np.int64)))


def _visible(topic: Topic) -> int:
    return sum(tail.next_offset - tail.min_offset for tail in list(topic.queues.values()))


def _letters(topic: Topic, letters: DeadLetters | None) -> int:
    """Count the dead letters of a group, as `GroupParts.dead_count` does."""
    tail = topic.queues.get(0)
    if tail is None:
        return 0
    low, high = tail.min_offset, tail.next_offset
    if letters is None:
        return high - low
    low = max(low, letters.low)
    return high - low - sum(low <= offset < high for offset in letters.removed.copy())


def _most(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    every = list(counts)
    if len(every) <= NAMED_MAX:
        return every
    return _with_rest(nlargest(NAMED_MAX, every, key=lambda one: one[1]), every)


def _some(counts: list[tuple[str, int]], may: Callable[[str], bool]) -> list[tuple[str, int]]:
    known = [(name, count) for name, count in counts if name and may(name)]
    return counts if len(known) == len(counts) else _with_rest(known, counts)


def _with_rest(named: list[tuple[str, int]], every: list[tuple[str, int]]) -> list[tuple[str, int]]:
    rest = sum(count for _, count in every) - sum(count for _, count in named)
    return [*named, ("", rest)]


def _most_behind(groups: Iterable[GroupCounts]) -> list[GroupCounts]:
    every = sorted(groups, key=lambda group: (group.lag, group.in_flight), reverse=True)
    return _with_rest_of(every[:NAMED_MAX], every[NAMED_MAX:])


def _some_groups(groups: list[GroupCounts], may: Callable[[str], bool]) -> list[GroupCounts]:
    known = [group for group in groups if group.topic and may(group.topic)]
    return _with_rest_of(known, [group for group in groups if group not in known])


def _with_rest_of(named: list[GroupCounts], others: list[GroupCounts]) -> list[GroupCounts]:
    if not others:
        return named
    return [*named, GroupCounts("", "", *map(sum, zip(*(group[2:] for group in others), strict=True)))]
