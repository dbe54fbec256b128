"""Finds where the messages of a topic ended, in the order of the log: delivered, or recalled.

Deliveries come from the consume queues, recalls from the registers. An end never moves, so a walk along the
log meets each once, whatever happens in the meantime.

Belongs to reader threads: what it works on was copied on the event loop, or never changes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from timerwheel.index import queues
from timerwheel.index.writer import IndexWriter
from timerwheel.model.listing import Times
from timerwheel.state.positions import POSITION_DTYPE, Positions
from timerwheel.store.index import IndexTransaction
from timerwheel.store.register import Lookup, Source
from timerwheel.store.rows import join

SOURCES_MAX = 64
"""Registers that one step looks into."""
SPARE_ROWS = 16
READ_ROWS = 2_048

END_DTYPE = np.dtype(
    [
        ("offset", "<u8"),  # of the record that ended it
        ("record", "<u8"),  # of the record that has its content: the MESSAGE, or the timer that was recalled
        ("root", "<u8"),  # 0 for a recall
        ("at_ms", "<i8"),
        ("queue_offset", "<u8"),
        ("size", "<u4"),  # 0 for a recall
        ("queue", "<u2"),
        ("recalled", "u1"),
        ("zero", "u1"),
    ]
)
Ends: TypeAlias = np.ndarray


class Range(NamedTuple):
    """Log offsets [low, high), walked through upwards, or downwards if `newest`."""

    low: int
    high: int
    newest: bool

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of it."""
        return self.low >= self.high

    @property
    def edge(self) -> int:
        """Where the walk through it begins."""
        return self.high if self.newest else self.low

    def after(self, offset: int) -> "Range":
        """Return what is left of it behind a log offset that was walked through."""
        return self._replace(high=offset) if self.newest else self._replace(low=offset + 1)

    def cut(self, offset: int) -> "Range":
        """Return the part of it that is walked through first, up to a log offset."""
        return self._replace(low=offset) if self.newest else self._replace(high=offset)

    def rest(self, done: "Range") -> "Range":
        """Return what is left when its first part is done."""
        return self._replace(high=done.low) if self.newest else self._replace(low=done.high)


class QueueState(NamedTuple):
    """A queue of a topic: which offsets readers may see, and the positions that the index may lack."""

    topic_id: int
    queue: int
    min_offset: int
    next_offset: int
    tail: list[tuple[int, Positions]]

    @property
    def indexed_until(self) -> int:
        """The queue offset up to which the index has positions."""
        return self.tail[0][0] if self.tail else self.next_offset


def deliveries(
    index: IndexWriter, states: Sequence[QueueState], wanted: Range, count: int
) -> tuple[Ends, Range]:
    """Return about `count` deliveries at the beginning of a range, and the part of it that they cover."""
    parts: list[Ends] = []
    each = count // max(len(states), 1) + SPARE_ROWS
    with index.read() as txn:
        for state in states:
            first = max(queues.first_at(txn, *state[:2], state.indexed_until, wanted.low), state.min_offset)
            last = queues.first_at(txn, *state[:2], state.indexed_until, wanted.high)
            low, high = (max(first, last - each), last) if wanted.newest else (first, min(last, first + each))
            indexed = queues.read(txn, *state[:2], low, high - low) if low < high else _NO_POSITIONS
            found = [_ends_of(state.queue, low, indexed), *_tail_of(state)]
            rows = _within(join(found, END_DTYPE), wanted)
            if len(rows) and (len(rows) > each or (low, high) != (first, last)):
                rows = rows[-each:] if wanted.newest else rows[:each]
                edge = int(rows["offset"][0]) if wanted.newest else int(rows["offset"][-1]) + 1
                wanted = wanted.cut(edge)
            parts.append(rows)
    return _within(join(parts, END_DTYPE), wanted), wanted


def recalls(sources: Sequence[Source], topic_hash: int, wanted: Range, count: int) -> tuple[Ends, Range]:
    """Return at most `count` recalls at the beginning of a range, and the part of it that they cover."""
    parts: list[Ends] = []
    within = [one for one in sources if one.base < wanted.high and one.end > wanted.low]
    for number, source in enumerate(reversed(within) if wanted.newest else within):
        if number == SOURCES_MAX or count <= 0:
            edge = source.end if wanted.newest else source.base
            wanted = wanted.cut(min(max(edge, wanted.low), wanted.high))
            break
        rows = source.find_recalls(Lookup(topic_hash, wanted.low, wanted.high, count, wanted.newest))
        if len(rows) == count:
            wanted = wanted.cut(int(rows["order"][0]) if wanted.newest else int(rows["order"][-1]) + 1)
        count -= len(rows)
        ends = np.zeros(len(rows), END_DTYPE)
        ends["offset"], ends["record"], ends["at_ms"] = rows["order"], rows["origin"], rows["at_ms"]
        ends["recalled"] = 1
        parts.append(ends)
    return _within(join(parts, END_DTYPE), wanted), wanted


def next_range(sources: Sequence[Source], wanted: Range, at: Times) -> Range:
    """Return the first part of a range in which something may have been stored in these times.

    It is empty, and lies at the end of the range, if there is none.
    """
    order = list(reversed(sources)) if wanted.newest else list(sources)
    within = [one for one in order if one.base < wanted.high and one.end > wanted.low]
    fits = [at.overlaps(one.first_ms, one.last_ms) for one in within]
    if not any(fits):
        return wanted._replace(high=wanted.low) if wanted.newest else wanted._replace(low=wanted.high)
    first = fits.index(True)
    after = fits.index(False, first) if False in fits[first:] else len(fits)
    run = within[first:after]
    return wanted._replace(
        low=max(wanted.low, min(one.base for one in run)), high=min(wanted.high, max(one.end for one in run))
    )


def of_queue(txn: IndexTransaction, state: QueueState, wanted: Range) -> Iterator[Ends]:
    """Yield the deliveries of one queue in a range of the log, upwards."""
    first = max(queues.first_at(txn, *state[:2], state.indexed_until, wanted.low), state.min_offset)
    last = queues.first_at(txn, *state[:2], state.indexed_until, wanted.high)
    while first < last:
        positions = queues.read(txn, *state[:2], first, min(last - first, READ_ROWS))
        if not len(positions):
            break
        yield _ends_of(state.queue, first, positions)
        first += len(positions)
    for ends in _tail_of(state):
        yield _within(ends, wanted)


_NO_POSITIONS: Positions = np.zeros(0, POSITION_DTYPE)


def _tail_of(state: QueueState) -> list[Ends]:
    """Return the positions in memory that readers may see."""
    found = []
    for first, positions in state.tail:
        hidden = max(state.min_offset - first, 0)
        found.append(_ends_of(state.queue, first + hidden, positions[hidden:]))
    return found


def _ends_of(queue: int, first: int, positions: Positions) -> Ends:
    ends = np.zeros(len(positions), END_DTYPE)
    for name in ("offset", "root", "size"):
        ends[name] = positions[name]
    ends["record"], ends["at_ms"] = positions["offset"], positions["store_ms"]
    ends["queue"] = queue
    ends["queue_offset"] = np.arange(first, first + len(positions))
    return ends


def _within(ends: Ends, wanted: Range) -> Ends:
    found: Ends = ends[(ends["offset"] >= wanted.low) & (ends["offset"] < wanted.high)]
    return found
