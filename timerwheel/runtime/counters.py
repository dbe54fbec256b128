"""Counts and histograms of what an engine has done since it started. Knows nothing of Prometheus.

One call records a whole batch when it takes effect. So only stored records are counted, and counting costs
almost nothing per message. Counts begin at 0 with each start of the service.

Each number has one writer: the event loop, or the log thread for syncs of the log. Any thread may read,
because each number is one object and never decreases.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from operator import add, sub
from time import perf_counter  # the clock's milliseconds are too coarse for an fsync; not used for due times

import numpy as np

from timerwheel.clock import Clock
from timerwheel.model.figures import Totals, quantile
from timerwheel.model.kafka_counts import KafkaCounts
from timerwheel.state.batch import Batch
from timerwheel.store.record import FLAG_EARLY, FLAG_LEASE, Kind
from timerwheel.store.table import Rows

LATENESS_BOUNDS_MS = (
    *(0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700),
    *(1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 20_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000),
)
DELAY_BOUNDS_S = (1, 10, 60, 600, 3_600, 43_200, 86_400, 259_200, 604_800, 2_592_000, 31_536_000)
BATCH_BOUNDS_RECORDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
BATCH_BOUNDS_BYTES = tuple(1 << power for power in range(8, 25, 2))
TIME_BOUNDS_S = (
    *(0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
RECENT_PART_MS = 5_000
RECENT_PARTS = 12

_TIMER, _MESSAGE = int(Kind.TIMER), int(Kind.MESSAGE)
_FEW = 8  # up to so many values, counting one by one is faster


class Histogram:
    """Counts of values per bucket: at most each bound, and in the last one above all bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # a list: counting one value is faster than in an array
        self.sum = 0.0
        self._edges = np.array(self.bounds)

    def observe(self, value: float) -> None:
        """Count one value, in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_many(self, values: np.ndarray) -> None:
        """Count the values of an array of any length. Costs about 10 µs, plus 20 ns per value."""
        if len(values) <= _FEW:
            for value in values.tolist():
                self.observe(value)
            return
        places = np.searchsorted(self._edges, values)
        found = np.bincount(places, minlength=len(self.counts)).tolist()
        self.counts[:] = map(add, self.counts, found)
        self.sum += float(values.sum())

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time the block, and count the seconds unless it raises."""
        began_s = perf_counter()
        yield
        self.observe(perf_counter() - began_s)

    def cumulative(self) -> list[int]:
        """Return the number of values up to each bound, and last the number of all values."""
        return list(accumulate(self.counts))


class Recent:
    """A histogram of all time that also gives quantiles of the last minute, to within five seconds."""

    def __init__(self, bounds: Sequence[float], clock: Clock) -> None:
        self.all = Histogram(bounds)
        self._clock = clock
        self._before: deque[tuple[int, list[int]]] = deque()  # (five-second part, counts before it)

    def observe_many(self, values: np.ndarray) -> None:
        """Count the values of an array."""
        part = self._clock.monotonic_ms() // RECENT_PART_MS
        if not self._before or self._before[-1][0] != part:
            self._forget(part)
            self._before.append((part, self.all.counts.copy()))
        self.all.observe_many(values)

    def quantile(self, share: float) -> float:
        """Return the quantile of the last minute's values, in the unit of the bounds; 0 without values."""
        self._forget(self._clock.monotonic_ms() // RECENT_PART_MS)
        if not self._before:
            return 0.0
        return quantile(self.all.bounds, list(map(sub, self.all.counts, self._before[0][1])), share)

    def _forget(self, part: int) -> None:
        """Drop the parts older than the last RECENT_PARTS, of which `part` is the newest."""
        while self._before and self._before[0][0] <= part - RECENT_PARTS:
            self._before.popleft()


class Counters:
    """The counts of one engine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.accepted_waiting = 0
        self.accepted_at_once = 0
        self.fired_due = 0
        self.fired_early = 0
        self.recalled = 0
        self.rescheduled = 0
        self.moved = 0
        self.leased = 0
        self.leases_back = 0
        self.expired = 0
        self.cascaded = 0
        self.push_attempts = {"delivered": 0, "failed": 0, "gone": 0}
        self.task_calls = {"delivered": 0, "failed": 0, "gone": 0}
        self.task_ends = {"succeeded": 0, "failed": 0, "cancelled": 0}
        self.kafka: KafkaCounts | None = None
        self.front_calls: Counter[tuple[str, str, str]] = Counter()  # by protocol, call and status
        self.lateness_ms = Recent(LATENESS_BOUNDS_MS, clock)
        self.delay_s = Histogram(DELAY_BOUNDS_S)
        self.batch_records = Histogram(BATCH_BOUNDS_RECORDS)
        self.batch_bytes = Histogram(BATCH_BOUNDS_BYTES)
        self.append_s = Histogram(TIME_BOUNDS_S)
        self.sync_s = Histogram(TIME_BOUNDS_S)
        self.index_commit_s = Histogram(TIME_BOUNDS_S)
        self.cascade_s = Histogram(TIME_BOUNDS_S)
        self.push_s = Histogram(TIME_BOUNDS_S)
        self.task_s = Histogram(TIME_BOUNDS_S)

    def begin_kafka(self) -> KafkaCounts:
        """Return the counts of the bridge to Kafka, which is there from now on."""
        self.kafka = KafkaCounts()
        return self.kafka

    def applied(self, batch: Batch) -> None:
        """Count the records of a batch that has just taken effect."""
        if not batch.flags & FLAG_LEASE:
            self._count(batch)
            return
        if batch.shared_flags & FLAG_LEASE:
            self.leases_back += int(np.count_nonzero(batch.messages)) if batch.has_messages else 0
            return
        leases = batch.rows["flags"] & FLAG_LEASE != 0
        self.leases_back += int(np.count_nonzero(leases & batch.messages))
        self._count(Batch(batch.rows[~leases]))

    def _count(self, batch: Batch) -> None:
        rows = batch.rows
        if not batch.has_ends:
            if batch.has_timers:
                self._count_waiting(rows if batch.all_timers else rows[batch.timers])
            if batch.has_messages:
                self.accepted_at_once += int(np.count_nonzero(batch.messages))
            return
        if batch.all_messages and batch.all_ends:
            self._count_fired(rows, batch.flags)
            return
        fresh = ~batch.ends
        self._count_waiting(rows[batch.timers & fresh])
        self.accepted_at_once += int(np.count_nonzero(batch.messages & fresh))
        self._count_fired(rows[batch.messages & batch.ends], batch.flags)
        again = rows[batch.timers & batch.ends]
        # A move by retention keeps the due time and raises `rolls`; a client may keep the due time too.
        # If the timer was moved before, that counts as another move: the row lacks the origin's count.
        same_time = again["due_ms"] == again["prior_due_ms"]
        moved = int(np.count_nonzero(same_time & (again["rolls"] > 0)))
        self.moved += moved
        self.rescheduled += len(again) - moved
        self.recalled += int(np.count_nonzero(rows["kind"] == int(Kind.CANCEL)))

    def _count_waiting(self, rows: Rows) -> None:
        self.accepted_waiting += len(rows)
        self.delay_s.observe_many((rows["due_ms"] - rows["store_ms"]) / 1_000)

    def _count_fired(self, rows: Rows, flags: int) -> None:
        if flags & FLAG_EARLY:
            early = rows["flags"] & FLAG_EARLY != 0
            self.fired_early += int(np.count_nonzero(early))
            rows = rows[~early]
        if len(rows):
            self.fired_due += len(rows)
            # Not the record's time: that is from before the fsync, and nobody sees the message sooner.
            self.lateness_ms.observe_many(np.maximum(self._clock.now_ms() - rows["due_ms"], 0))

    def attempted(self, outcome: str, latency_ms: int) -> None:
        """Count a finished push attempt by its outcome: delivered, failed or gone."""
        self.push_attempts[outcome] += 1
        self.push_s.observe(latency_ms / 1_000)

    def totals(self) -> Totals:
        """Return what the history of the figures is made of."""
        return Totals(
            accepted=self.accepted_waiting + self.accepted_at_once,
            fired=self.fired_due + self.fired_early,
            recalled=self.recalled,
            lateness=self.lateness_ms.all.counts.copy(),
        )

    def called(self, outcome: str, latency_ms: int) -> None:
        """Count a finished call of a task by its outcome: delivered, failed or gone."""
        self.task_calls[outcome] += 1
        self.task_s.observe(latency_ms / 1_000)

    def task_ended(self, state: str) -> None:
        """Count a task that ended: succeeded, failed or cancelled."""
        self.task_ends[state] += 1

    def snapshot(self) -> dict[str, float]:
        """Return the numbers for a live view: integers, and two lateness quantiles in milliseconds as floats.

        Keys that end in `_total` count since the start and only grow. The lateness covers the messages of the
        last minute that fired when they were due, and is 0.0 if there were none.
        """
        return {
            "accepted_total": self.accepted_waiting + self.accepted_at_once,
            "scheduled_total": self.accepted_waiting,
            "fired_total": self.fired_due + self.fired_early,
            "recalled_total": self.recalled,
            "rescheduled_total": self.rescheduled,
            "leased_total": self.leased,
            "push_attempts_total": sum(self.push_attempts.values()),
            "lateness_ms_p50": self.lateness_ms.quantile(0.5),
            "lateness_ms_p99": self.lateness_ms.quantile(0.99),
        }
