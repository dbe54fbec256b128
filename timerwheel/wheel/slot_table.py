"""The wheel in the index: slot pages of entries, added to, taken from and cascaded in bounded steps.

An entry is 40 bytes: due time, log offset of the timer record, root offset (the message), record size, topic,
delay level, operation. A slot is a *counted set*: it holds ADD entries and REMOVE entries, and the pending
timers are the adds whose offset no remove names. Removing is thus an append, like adding, and the two may
arrive in any order and meet at any level on the way down.

Invariants:
1. Each timer record's offset is added once and removed at most once, both taken from the log.
2. An entry is in the slot that `geometry.place` gives for the horizons of the transaction that put it there,
   or in one that this slot cascades into.
3. A second slot whose start is before `loadable_until` is complete: nothing above it can add to it.
4. A slot coarser than a second has at most twice as many removes as pending timers, but for COMPACTED_MIN
   entries, those of the last commits, and slots of more than COMPACTED_MAX entries.
5. A page's weight is its adds less its removes; its mask has bit (level % 32) for each delay level in it.

Called with an index transaction by the index thread (writes) and reader threads (reads). See `doc/wheel.md`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from timerwheel.store import pages
from timerwheel.store.keys import slot_of, slot_prefix
from timerwheel.store.rows import join
from timerwheel.wheel.geometry import SLOT_MS, Horizons, Level, next_cascade, place

if TYPE_CHECKING:
    from timerwheel.store.index import IndexTransaction

ENTRY_DTYPE = np.dtype(
    [
        ("due_ms", "<i8"),
        ("root", "<u8"),
        ("offset", "<u8"),
        ("size", "<u4"),
        ("topic", "<u4"),
        ("queue", "<u2"),
        ("delay_level", "u1"),
        ("op", "u1"),
        ("zero", "<u4"),
    ]
)
ADD = 0
REMOVE = 1
COMPACTED_MIN = pages.PAGE_ROWS_MAX
"""Fewest entries of a slot that is compacted."""
COMPACTED_MAX = 1 << 20
"""Most entries of a slot that is compacted: 40 MiB, for less than a second."""
SORTED_SHARE = 8
"""A slot with more timers than so many times those that are wanted is not sorted whole."""
TABLE = "wheel"

Entries = np.ndarray
Slot: TypeAlias = tuple[Level, int]
"""A slot by its level and first millisecond."""


def entries_of(rows: np.ndarray, *, removed: bool) -> Entries:
    """Return the wheel entries of record rows: for the timers they add, or for the origins they remove."""
    entries = np.zeros(len(rows), ENTRY_DTYPE)
    for name in ("root", "topic", "queue"):
        entries[name] = rows[name]
    entries["delay_level"] = rows["level"]
    entries["offset"] = rows["origin" if removed else "offset"]
    entries["due_ms"] = rows["prior_due_ms" if removed else "due_ms"]
    entries["size"] = rows["size"]
    entries["op"] = REMOVE if removed else ADD
    return entries


def net(entries: Entries) -> Entries:
    """Return the adds that no remove names, in due order and, within one due time, in the order stored."""
    return first(left(entries), len(entries))


def left(entries: Entries) -> Entries:
    """Return the adds that no remove names, as they come."""
    removed = entries["op"] == REMOVE
    adds: Entries = entries[~removed]
    if removed.any():
        adds = adds[~np.isin(adds["offset"], entries["offset"][removed])]
    return adds


def first(adds: Entries, count: int) -> Entries:
    """Return the first of these in due order and, within one due time, in the order stored."""
    if 0 < count < len(adds) // SORTED_SHARE:
        last_ms = np.partition(adds["due_ms"], count - 1)[count - 1]
        adds = adds[adds["due_ms"] <= last_ms]
    found: Entries = adds[np.lexsort((adds["root"], adds["due_ms"]))][:count]
    return found


def cancel_out(entries: Entries) -> Entries:
    """Return the entries without the pairs of add and remove."""
    ends = entries["op"] == REMOVE
    adds, removes = np.flatnonzero(~ends), np.flatnonzero(ends)
    if not len(adds) or not len(removes):
        return entries
    # Each offset occurs once (invariant 1). Adds are mostly in log order, for which a stable sort is fast.
    added = entries["offset"][adds]
    order = np.argsort(added, kind="stable")
    added, adds = added[order], adds[order]
    removed = entries["offset"][removes]
    places = np.searchsorted(added[:-1], removed)
    met = added[places] == removed
    kept = np.ones(len(entries), np.bool_)
    kept[removes[met]] = kept[adds[places[met]]] = False
    return entries.compress(kept)


class SlotPage(NamedTuple):
    """Entries of one slot, as many as fit a page."""

    level: Level
    start_ms: int
    rows: Entries
    removes: int

    @property
    def prefix(self) -> bytes:
        """The key of the page, without its sequence."""
        return slot_prefix(self.level, self.start_ms)

    @property
    def weight(self) -> int:
        """Adds less removes."""
        return len(self.rows) - 2 * self.removes

    @property
    def mask(self) -> int:
        """A bit for each delay level (mod 32)."""
        return int(np.bitwise_or.reduce(1 << (self.rows["delay_level"].astype(np.int64) % 32)))


def slot_pages(entries: Entries, horizons: Horizons) -> Iterator[SlotPage]:
    """Yield the entries as pages of their slots, finest level first."""
    levels, starts = place(entries["due_ms"], horizons)
    order = np.lexsort((entries["root"], starts))  # finer levels end where coarser ones begin
    entries, levels, starts = entries.take(order), levels[order], starts[order]
    edges = np.flatnonzero(np.diff(starts)) + 1
    bounds = [0, *edges.tolist(), len(entries)]
    for low, high in itertools.pairwise(bounds):
        for rows in pages.chunks(entries[low:high]):
            yield SlotPage(Level(levels[low]), int(starts[low]), rows, int(np.count_nonzero(rows["op"])))


def put(txn: IndexTransaction, entries: Entries, horizons: Horizons, sequence: int) -> tuple[int, set[Slot]]:
    """Add entries to their slots; returns the next sequence and the slots that got removes."""
    lost: set[Slot] = set()
    for page in slot_pages(entries, horizons):
        if page.removes:
            lost.add((page.level, page.start_ms))
        txn.put_page(TABLE, page.prefix, sequence, page.rows, weight=page.weight, mask=page.mask)
        sequence += 1
    return sequence, lost


def drop_empty(txn: IndexTransaction, slots: set[Slot], horizons: Horizons) -> None:
    """Delete those of these slots that are second slots and empty, if nothing can still come down to them."""
    until = loadable_until(txn, horizons)
    for level, start_ms in slots:
        if level != Level.SECOND or start_ms >= until:
            continue
        found = list(txn.prefix(TABLE, slot_prefix(Level.SECOND, start_ms)))
        if sum(page.head().weight for _, page in found) == 0:
            txn.remove(TABLE, [key for key, _ in found])


def crowded(txn: IndexTransaction, slots: set[Slot], horizons: Horizons) -> set[Slot]:
    """Return those of these slots that are worth compacting: a third or more of their entries are removes.

    Slots of seconds are not, nor is the slot that is being cascaded: what meets there is dropped soon.
    """
    found: set[Slot] = set()
    for level, start_ms in slots:
        if level == Level.SECOND or start_ms < _horizon_above(level, horizons):
            continue
        count = weight = 0
        for _, page in txn.prefix(TABLE, slot_prefix(level, start_ms)):
            head = page.head()
            count, weight = count + head.rows, weight + head.weight
        if COMPACTED_MIN <= count <= COMPACTED_MAX and count >= 3 * weight:
            found.add((level, start_ms))
    return found


def compact(txn: IndexTransaction, slot: Slot, horizons: Horizons, sequence: int) -> int:
    """Drop the pairs of add and remove in a slot of `crowded`; returns the next sequence.

    A slot is emptied when it cascades. Until then, in a day of next year or in the one of open transactions,
    it would keep all that was ever removed.
    """
    level, start_ms = slot
    if start_ms < _horizon_above(level, horizons):
        return sequence
    kept = cancel_out(_take(txn, slot_prefix(level, start_ms), COMPACTED_MAX))
    return put(txn, kept, horizons, sequence)[0] if len(kept) else sequence


def _horizon_above(level: Level, horizons: Horizons) -> int:
    """Return the horizon from which on due times are in slots of this level; that of seconds is 0."""
    return (0, *horizons)[level]


def first_slot(txn: IndexTransaction, level: Level) -> int | None:
    """Return the start of the first slot in use of a level."""
    key = txn.first_key(TABLE, slot_prefix(level, 0))
    if key is None or slot_of(key)[0] != level:
        return None
    return slot_of(key)[1]


def loadable_until(txn: IndexTransaction, horizons: Horizons) -> int:
    """Second slots that start before this are complete (invariant 3)."""
    until = horizons.second_until
    for level in (Level.MINUTE, Level.HOUR, Level.DAY):
        first = first_slot(txn, level)
        if first is not None:
            until = min(until, first)
    return until


def cascade(
    txn: IndexTransaction, horizons: Horizons, now_ms: int, *, entries_max: int, sequence: int
) -> tuple[Horizons, int, int]:
    """Move at most about `entries_max` entries one level down; returns horizons, sequence, number moved.

    If it moved any there may be more to do. If not, the horizons have at most passed empty slots.

    The horizon moves past a slot in the step that begins to empty it, so new entries for that time go to the
    finer level at once. The rest of the slot follows in the next steps, before anything else.
    """
    leftover = _leftover(txn, horizons)
    while leftover is None:
        step = next_cascade(horizons, now_ms, lambda level: first_slot(txn, level))
        if step is None:
            return horizons, sequence, 0
        if isinstance(step, Horizons):
            horizons = step
        else:
            leftover, horizons = (step.level, step.start_ms), step.after
    entries = _take(txn, slot_prefix(*leftover), entries_max)
    if len(entries):
        sequence, _ = put(txn, cancel_out(entries), horizons, sequence)
    level, start_ms = leftover
    if level == Level.MINUTE and first_slot(txn, level) != start_ms:
        # Adds and removes may have come down in different steps, or met while the slot was not complete.
        weights = slot_weights(txn, Level.SECOND, start_ms, start_ms + SLOT_MS[level])
        drop_empty(txn, {(Level.SECOND, second) for second, weight, _ in weights if weight == 0}, horizons)
    return horizons, sequence, len(entries)


def _leftover(txn: IndexTransaction, horizons: Horizons) -> tuple[Level, int] | None:
    """Return the slot that an earlier step began to empty."""
    for level, until in zip((Level.MINUTE, Level.HOUR, Level.DAY), horizons, strict=True):
        first = first_slot(txn, level)
        if first is not None and first < until:
            return level, first
    return None


def _take(txn: IndexTransaction, prefix: bytes, entries_max: int) -> Entries:
    parts: list[Entries] = []
    keys: list[bytes] = []
    count = 0
    for key, page in txn.prefix(TABLE, prefix):
        rows = page.rows(ENTRY_DTYPE)
        parts.append(rows)
        keys.append(key)
        count += len(rows)
        if count >= entries_max:
            break
    txn.remove(TABLE, keys)
    return join(parts, ENTRY_DTYPE)


def slot_entries(txn: IndexTransaction, level: int, start_ms: int) -> Entries:
    """Return every entry of one slot, adds and removes."""
    parts = [page.rows(ENTRY_DTYPE) for _, page in txn.prefix(TABLE, slot_prefix(level, start_ms))]
    return join(parts, ENTRY_DTYPE)


def entries_between(txn: IndexTransaction, level: int, from_ms: int, to_ms: int) -> Entries:
    """Return every entry, adds and removes, of the slots of a level that start in [from_ms, to_ms)."""
    found = txn.pages(TABLE, slot_prefix(level, from_ms), slot_prefix(level, to_ms))
    return join([page.rows(ENTRY_DTYPE) for _, page in found], ENTRY_DTYPE)


def slot_weights(
    txn: IndexTransaction, level: int, from_ms: int, to_ms: int
) -> Iterator[tuple[int, int, int]]:
    """(slot start, pending count, mask) of the slots in use that start in [from_ms, to_ms), in order."""
    current, weight, mask = -1, 0, 0
    for key, page in txn.pages(TABLE, slot_prefix(level, from_ms), slot_prefix(level, to_ms)):
        start_ms = slot_of(key)[1]
        if start_ms != current and current >= 0:
            yield current, weight, mask
            weight = mask = 0
        current = start_ms
        found = page.head()
        weight += found.weight
        mask |= found.mask
    if current >= 0:
        yield current, weight, mask


def load(txn: IndexTransaction, from_ms: int, to_ms: int, entries_max: int) -> tuple[Entries, int]:
    """Return entries of whole second slots from `from_ms` on, until `to_ms` or `entries_max` is reached.

    Adds and removes are not netted yet. Also returns the time up to which they are complete.
    """
    parts: list[Entries] = []
    count = 0
    current = -1
    for key, page in txn.pages(TABLE, slot_prefix(Level.SECOND, from_ms), slot_prefix(Level.SECOND, to_ms)):
        start_ms = slot_of(key)[1]
        if start_ms != current and count >= entries_max:
            return join(parts, ENTRY_DTYPE), start_ms
        current = start_ms
        rows = page.rows(ENTRY_DTYPE)
        parts.append(rows)
        count += len(rows)
    return join(parts, ENTRY_DTYPE), to_ms
