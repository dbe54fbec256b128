"""Lookups in the index: pending timers in due order, slots, levels. Reads only.

`IndexReader` completes an index transaction with the rows that the index lacks, so an answer reflects the log
at one moment. The engine calls it in a reader thread, the offline snapshot directly.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from timerwheel.index.writer import memtable_entries, read_state
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.messages import SlotInfo, WheelLevelInfo
from timerwheel.store.index import IndexTransaction
from timerwheel.store.keys import slot_of, slot_prefix
from timerwheel.store.rows import join
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import LEVEL_NAMES, SLOT_MS, Horizons, Level, place
from timerwheel.wheel.slot_table import Entries

FAR_MS = 1 << 62


class Place(NamedTuple):
    """The position of a walk: in a range of time, before the page `key` of a level; -1 is past the finest."""

    from_ms: int
    until_ms: int
    level: int
    key: bytes


class Window(NamedTuple):
    """Selects pending timers: after a position, before a time, and optionally of one topic or kind."""

    after_due_ms: int
    after_root: int
    to_ms: int
    topic_id: int | None = None
    levels_only: bool | None = None
    hidden: tuple[int, ...] = ()


class IndexReader:
    """An index transaction, completed by the wheel entries of the rows that the index lacks."""

    def __init__(self, txn: IndexTransaction, unindexed: Entries, horizons: Horizons) -> None:
        self._txn = txn
        self._unindexed = unindexed
        self._horizons = horizons

    @classmethod
    def of(cls, txn: IndexTransaction, rows: list[np.ndarray]) -> "IndexReader":
        """Return a reader of the index and of the rows, in log order, that the index lacks."""
        state = read_state(txn)
        assert state is not None
        lacking = [part[part["offset"] >= state.until] for part in rows]
        return cls(txn, memtable_entries(lacking), state.horizons)

    def slots(self, level: str | None, from_ms: int, to_ms: int) -> list[SlotInfo]:
        """Return the slots in use that start in [from, to), of one level or of all, finest first."""
        levels = list(Level) if level is None else [Level(LEVEL_NAMES.index(level))]
        return [slot for one in levels for slot in self.slots_of(one, (from_ms, to_ms))]

    def next_due_ms(self, hidden: tuple[int, ...]) -> int | None:
        """Return the earliest due time of the timers, except those of the hidden topics.

        Open transactions have none.
        """
        first = self.pending(Window(-1, -1, HALF_DUE_MS, hidden=hidden), 1)
        return int(first["due_ms"][0]) if len(first) else None

    def pending(self, window: Window, limit: int) -> Entries:
        """Return the first `limit` pending timers of a window in (due, root) order."""
        found: list[Entries] = []
        count = 0
        for slots in _slots_in_order(self._txn, self._unindexed, self._horizons, window):
            pending = chosen(slot_table.left(slots), window)
            found.append(slot_table.first(pending, limit - count))
            count += len(found[-1])
            if count >= limit:
                break
        return join(found, slot_table.ENTRY_DTYPE)

    def slots_of(self, level: Level, span: tuple[int, int]) -> list[SlotInfo]:
        """Return the slots of one level that start in the span [from, to), with the pending count of each."""
        from_ms, to_ms = span
        width = SLOT_MS[level]
        counts = {
            start: weight
            for start, weight, _ in slot_table.slot_weights(self._txn, level, max(from_ms, 0), to_ms)
        }
        levels, starts = place(self._unindexed["due_ms"], self._horizons)
        own = (levels == level) & (starts >= from_ms) & (starts < to_ms)
        for start, op in zip(starts[own].tolist(), self._unindexed["op"][own].tolist(), strict=True):
            counts[start] = counts.get(start, 0) + (1 if op == slot_table.ADD else -1)
        return [
            SlotInfo(LEVEL_NAMES[level], start, start + width, count)
            for start, count in sorted(counts.items())
            if count > 0
        ]

    def levels(self) -> list[WheelLevelInfo]:
        """Return the four levels with their slots in use and counts."""
        found = []
        for level in Level:
            used = self.slots_of(level, (0, FAR_MS))
            found.append(
                WheelLevelInfo(
                    LEVEL_NAMES[level],
                    SLOT_MS[level],
                    len(used),
                    sum(slot.count for slot in used),
                    used[0].start_ms if used else None,
                    used[-1].end_ms if used else None,
                )
            )
        return found

    def count_before(self, now_ms: int) -> int:
        """Count the pending timers that are due before now."""
        own = self._unindexed[self._unindexed["due_ms"] < now_ms]
        count = len(own) - 2 * int(np.count_nonzero(own["op"]))
        for level in Level:
            width = SLOT_MS[level]
            full_until = now_ms // width * width
            count += sum(weight for _, weight, _ in slot_table.slot_weights(self._txn, level, 0, full_until))
            entries = slot_table.slot_entries(self._txn, level, full_until)
            entries = entries[entries["due_ms"] < now_ms]
            count += len(entries) - 2 * int(np.count_nonzero(entries["op"]))
        return max(count, 0)

    def next_due_of_levels(self, wanted: set[int]) -> dict[int, int]:
        """Return the earliest pending due time of each wanted delay level that has one."""
        found: dict[int, int] = {}
        window = Window(0, 0, FAR_MS)
        for entries in _slots_in_order(self._txn, self._unindexed, self._horizons, window):
            pending = slot_table.net(entries)
            for level in wanted - found.keys():
                dues = pending["due_ms"][pending["delay_level"] == level]
                if len(dues):
                    found[level] = int(dues[0])
            if found.keys() >= wanted:
                break
        return found

    def overlong(self, now_ms: int, delay_ms: Callable[[int], int]) -> Entries:
        """Return the level timers that are due later than now + their level's delay; see `level_guard`."""
        parts: list[Entries] = []
        for entries in _slots_in_order(self._txn, self._unindexed, self._horizons, Window(now_ms, 0, FAR_MS)):
            pending = slot_table.net(entries)
            levelled = pending[pending["delay_level"] > 0]
            if len(levelled):
                limits = np.array([now_ms + delay_ms(level) for level in levelled["delay_level"].tolist()])
                late = levelled[levelled["due_ms"] > limits]
                if len(late):
                    parts.append(late)
        joined = join(parts, slot_table.ENTRY_DTYPE)
        return joined[np.argsort(joined["root"], kind="stable")]


def _slots_in_order(
    txn: IndexTransaction, staged: Entries, horizons: Horizons, window: Window
) -> Iterator[Entries]:
    """Yield entries by ranges of time that do not overlap, earliest first.

    A range is one slot of the coarsest level in use there: while a slot is being cascaded, its entries are
    on two levels, and a remove may be ahead of its add. Each is searched for when it is wanted, so the first
    ones cost nothing of what lies behind them.
    """
    staged = staged[np.argsort(staged["due_ms"], kind="stable")]
    dues = np.ascontiguousarray(staged["due_ms"])
    from_ms = until_ms = max(window.after_due_ms, 0)
    while True:
        slots = _coarsest_slot(txn, until_ms, window.to_ms), _staged_slot(dues, horizons, until_ms)
        start_ms, level = min(filter(None, slots), default=(window.to_ms, 0))
        if start_ms >= window.to_ms:
            return
        coarsest = -level
        until_ms = start_ms + SLOT_MS[coarsest]
        low, high = np.searchsorted(dues, (start_ms, until_ms)).tolist()
        parts = [staged[low:high]]
        stop_ms = min(until_ms, window.to_ms)
        for finer in range(coarsest, -1, -1):
            first_ms = max(start_ms, from_ms // SLOT_MS[finer] * SLOT_MS[finer])
            parts.append(slot_table.entries_between(txn, finer, first_ms, stop_ms))
        yield join(parts, slot_table.ENTRY_DTYPE)


def _staged_slot(dues: np.ndarray, horizons: Horizons, from_ms: int) -> tuple[int, int] | None:
    """Return the slot of the first of these due times from `from_ms` on, as `_coarsest_slot` does."""
    at = int(np.searchsorted(dues, from_ms))
    if at == len(dues):
        return None
    levels, starts = place(dues[at : at + 1], horizons)
    return int(starts[0]), -int(levels[0])


def _coarsest_slot(txn: IndexTransaction, from_ms: int, to_ms: int) -> tuple[int, int] | None:
    """Return start and negative level of the coarsest slot with the earliest time in use since `from_ms`."""
    found: list[tuple[int, int]] = []
    for level in Level:
        key = txn.first_key(slot_table.TABLE, slot_prefix(level, from_ms // SLOT_MS[level] * SLOT_MS[level]))
        if key is None:
            continue
        number, start_ms = slot_of(key)
        if number == level and start_ms < to_ms:
            found.append((start_ms, -level))
    return min(found, default=None)


def chosen(entries: Entries, window: Window) -> Entries:
    """Return the entries that lie in the window."""
    due, root = entries["due_ms"], entries["root"]
    later = (root > window.after_root) if window.after_root >= 0 else np.ones(len(root), bool)
    keep = (due > window.after_due_ms) | ((due == window.after_due_ms) & later)
    keep &= due < window.to_ms
    if window.topic_id is not None:
        keep &= entries["topic"] == window.topic_id
    if window.levels_only is not None:
        keep &= (entries["delay_level"] > 0) == window.levels_only
    if window.hidden:
        keep &= ~np.isin(entries["topic"], window.hidden)
    found: Entries = entries[keep]
    return found


def walk_from(window: Window) -> Place:
    """Return the place at which the walk through a window begins."""
    from_ms = max(window.after_due_ms, 0)
    return Place(from_ms, from_ms, -1, b"")


def walk(txn: IndexTransaction, at: Place, window: Window, rows_max: int) -> tuple[Entries, Place | None]:
    """Return the window's adds in about `rows_max` rows from a place on, and the next place or None.

    Removes are not netted: some may have ended. Memory and time are bounded however large a slot is, and the
    next step may use another transaction: the walk goes through stretches of time in due order, and within
    one from the coarsest level to the finest. As entries only ever move down, or to the end of their slot,
    none that was in the index when the walk began is missed, but one that moves in between may be met twice.
    """
    found: list[Entries] = []
    count = 0
    while True:
        if at.level < 0:
            following = _next_stretch(txn, at.until_ms, window.to_ms)
            if following is None:
                return chosen(join(found, slot_table.ENTRY_DTYPE), window), None
            at = following
        stop = slot_prefix(at.level, at.until_ms)
        for key, page in txn.pages(slot_table.TABLE, at.key, stop):
            rows = page.rows(slot_table.ENTRY_DTYPE)
            found.append(rows[rows["op"] == slot_table.ADD])
            count += len(rows)
            if count >= rows_max:
                return chosen(join(found, slot_table.ENTRY_DTYPE), window), at._replace(key=key + b"\0")
        at = _finer(at)


def _next_stretch(txn: IndexTransaction, from_ms: int, to_ms: int) -> Place | None:
    """Return the coarsest slot that holds the earliest time in use from `from_ms` on."""
    slot = _coarsest_slot(txn, from_ms, to_ms)
    if slot is None:
        return None
    start_ms, level = slot[0], -slot[1]
    until_ms = start_ms + SLOT_MS[level]
    return Place(max(start_ms, from_ms), until_ms, level, slot_prefix(level, start_ms))


def _finer(at: Place) -> Place:
    level = at.level - 1
    if level < 0:
        return at._replace(level=level)
    return at._replace(level=level, key=slot_prefix(level, at.from_ms // SLOT_MS[level] * SLOT_MS[level]))
