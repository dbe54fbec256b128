"""Runs of deduplication keys: what bulk sends register, in the order of the keys' digests.

A digest is random, so each of ten million keys in a tree would be on a page of its own to copy and to write.
So a commit with many keys writes them as a *run*: sorted arrays, cut into parts by the first bits of the
digest. A look-up is a binary search in one part of each run. Eight runs of a level are merged into one of the
next, in steps, so there are at most about seven of each level.

    part p of a run of 2^bits parts has the digests whose first `bits` bits are p, in the table `key_parts`:
        (run, p, 0)    the first halves of the digests, sorted
        (run, p, 1)    the other fields

Invariants:
1. A key that was registered is found for as long as its message counts, and maybe longer: whether it counts
   is asked of the message. So leaving keys out is only a matter of space.
2. Of several rows of one key the one with the last root counts, whichever run it is in.
3. A row is left out only when all timers of the segment of its root, and of the segment that the root's
   pointer leads to, ended KEY_KEPT_MS ago. Both are read in the transaction that leaves it out.
4. A merge counts only when all of its parts are there; its sources go in the same transaction. A step writes
   about MERGE_ROWS rows.

Belongs to the index thread, except for look-ups.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from timerwheel.index import forwarding
from timerwheel.state.dedup_key import KEY_KEPT_MS, KeyEntry
from timerwheel.state.key_columns import KEY_DTYPE, digests_in, entry_of, halves_of, newest_of
from timerwheel.state.memtable import SegmentCount
from timerwheel.store.errors import IndexDamagedError

if TYPE_CHECKING:
    from timerwheel.store.index import IndexTransaction

TABLE = "key_parts"
RUNS_KEY = b"key_runs"
RUN_KEYS_MIN = 2_000
"""Fewer keys in one commit go to the table `keys`, one by one."""
PART_ROWS = 1 << 16
MERGE_ROWS = 1 << 17
FANOUT = 8
PART_KEY = struct.Struct(">QIB")
HIGH, REST = 0, 1
HIGH_DTYPE = np.dtype("<u8")
_REST = [name for name in KEY_DTYPE.names or () if name != "high"]
REST_DTYPE = np.dtype([(name, KEY_DTYPE[name]) for name in _REST])
_DIGEST_BITS = 64
_NEVER = (1 << 63) - 1


class Run(msgspec.Struct, frozen=True, array_like=True):
    """A run: its number, its 2^bits parts, its level, the range of its roots, and how many keys it has.

    `dead_bytes` is how much of the range had ended when keys were last left out of it.
    """

    number: int
    bits: int
    level: int
    low: int
    high: int
    count: int
    dead_bytes: int = 0


class Merge(msgspec.Struct, frozen=True, array_like=True):
    """A merge under way: what it makes, of which runs, and how many parts there are."""

    run: Run
    sources: list[int]
    parts: int


class Runs(msgspec.Struct, frozen=True, array_like=True):
    """The runs that count, and a merge of some of them."""

    runs: list[Run] = []
    merge: Merge | None = None


def runs_of(txn: IndexTransaction) -> Runs:
    """Return what runs there are."""
    raw = txn.get("meta", RUNS_KEY)
    return Runs() if raw is None else msgspec.msgpack.decode(raw, type=Runs)


def _put_runs(txn: IndexTransaction, runs: Runs) -> None:
    txn.put("meta", RUNS_KEY, msgspec.msgpack.encode(runs))


# ---------------------------------------------------------------------- writing


def put(txn: IndexTransaction, rows: np.ndarray, number: int) -> None:
    """Add a run of keys in the order of their digests, each once (KEY_DTYPE). No run had this number."""
    bits = bits_for(len(rows))
    run = Run(number, bits, 0, int(rows["root"].min()), int(rows["root"].max()), len(rows))
    cuts = _cuts(rows["high"], bits)
    for part, (begin, end) in enumerate(itertools.pairwise(cuts)):
        _put_part(txn, number, part, rows[begin:end])
    runs = runs_of(txn)
    _put_runs(txn, msgspec.structs.replace(runs, runs=[*runs.runs, run]))


def bits_for(count: int) -> int:
    """Return how many bits of a digest choose the part, in a run of so many keys."""
    return max(0, (-(-count // PART_ROWS) - 1).bit_length())


def _cuts(highs: np.ndarray, bits: int) -> list[int]:
    """Return where the parts begin among sorted halves of digests, and the end of the last."""
    if not bits:
        return [0, len(highs)]
    starts = np.arange(1, 1 << bits, dtype=np.uint64) << np.uint64(_DIGEST_BITS - bits)
    return [0, *np.searchsorted(highs, starts).tolist(), len(highs)]


def _put_part(txn: IndexTransaction, number: int, part: int, rows: np.ndarray) -> None:
    rest = np.empty(len(rows), REST_DTYPE)
    for name in _REST:
        rest[name] = rows[name]
    txn.put_column(TABLE, PART_KEY.pack(number, part, HIGH), np.ascontiguousarray(rows["high"]))
    txn.put_column(TABLE, PART_KEY.pack(number, part, REST), rest)


def merge(txn: IndexTransaction, now_ms: int, number: int) -> int:
    """Take a step of a merge, or begin one, which makes the run `number`; returns how many rows it wrote.

    0 if there is nothing to merge.
    """
    runs = runs_of(txn)
    merge = runs.merge or _next_merge(runs.runs, number)
    if merge is None:
        return 0
    sources = [run for run in runs.runs if run.number in merge.sources]
    is_dead = _judge(txn, now_ms)
    run, part, written = merge.run, merge.parts, 0
    while part < 1 << run.bits and written < MERGE_ROWS:
        rows = newest_of(np.concatenate([_rows_within(txn, source, part, run.bits) for source in sources]))
        rows = rows.compress(~is_dead(rows["root"]))
        _put_part(txn, run.number, part, rows)
        run = msgspec.structs.replace(run, count=run.count + len(rows))
        part, written = part + 1, written + len(rows) + 1
    if part < 1 << run.bits:
        _put_runs(txn, Runs(runs.runs, Merge(run, merge.sources, part)))
        return written
    for source in sources:
        _remove(txn, source.number, source.bits)
    kept = [one for one in runs.runs if one.number not in merge.sources]
    if run.count:
        kept.append(run)
    else:
        _remove(txn, run.number, run.bits)
    _put_runs(txn, Runs(kept))
    return written


def _next_merge(runs: Sequence[Run], number: int) -> Merge | None:
    """Return the merge of the lowest level that has enough runs."""
    for level in sorted({run.level for run in runs}):
        sources = [run for run in runs if run.level == level][:FANOUT]
        if len(sources) == FANOUT:
            return _merge_of(sources, level + 1, number)
    return None


def _merge_of(sources: Sequence[Run], level: int, number: int, dead_bytes: int = 0) -> Merge:
    count = sum(run.count for run in sources)
    low, high = min(run.low for run in sources), max(run.high for run in sources)
    run = Run(number, bits_for(count), level, low, high, 0, dead_bytes)
    return Merge(run, [source.number for source in sources], 0)


def _rows_within(txn: IndexTransaction, run: Run, part: int, bits: int) -> np.ndarray:
    """Return the rows of a run that belong to this part of 2^bits."""
    if run.bits >= bits:
        within = run.bits - bits
        first = part << within
        return np.concatenate([_rows(txn, run.number, first + at) for at in range(1 << within)])
    within = bits - run.bits
    rows = _rows(txn, run.number, part >> within)
    starts = np.array([part, part + 1], np.uint64) << np.uint64(_DIGEST_BITS - bits)
    begin = int(np.searchsorted(rows["high"], starts[0]))
    is_last = part + 1 == 1 << bits
    return rows[begin : len(rows) if is_last else int(np.searchsorted(rows["high"], starts[1]))]


def _rows(txn: IndexTransaction, number: int, part: int) -> np.ndarray:
    """Return the rows of a part, copied."""
    highs = txn.column(TABLE, PART_KEY.pack(number, part, HIGH), HIGH_DTYPE)
    rest = txn.column(TABLE, PART_KEY.pack(number, part, REST), REST_DTYPE)
    rows = np.empty(len(highs), KEY_DTYPE)
    rows["high"] = highs
    for name in _REST:
        rows[name] = rest[name]
    return rows


def _remove(txn: IndexTransaction, number: int, bits: int) -> None:
    for part in range(1 << bits):
        txn.remove(TABLE, [PART_KEY.pack(number, part, column) for column in (HIGH, REST)])


# ---------------------------------------------------------------------- keys that have ended


def sweep(txn: IndexTransaction, now_ms: int, number: int) -> bool:
    """Begin to write a run again, as `number`, if half of its keys have ended; returns whether one has."""
    runs = runs_of(txn)
    if runs.merge is not None or not runs.runs:
        return False
    bases, dead = _segments(txn, now_ms)
    for run in runs.runs:
        dead_bytes = _dead_bytes(run, bases, dead)
        new, rest = dead_bytes - run.dead_bytes, run.high + 1 - run.low - run.dead_bytes
        if 2 * new >= rest > 0:
            _put_runs(txn, Runs(runs.runs, _merge_of([run], run.level, number, dead_bytes)))
            return True
    return False


def _dead_bytes(run: Run, bases: np.ndarray, dead: np.ndarray) -> int:
    """Return how much of the log in which the keys of a run were registered has ended."""
    starts = np.concatenate([np.zeros(1, np.uint64), bases])
    ends = np.concatenate([bases, np.full(1, _NEVER, np.uint64)])
    within = np.minimum(ends, np.uint64(run.high + 1)).astype(np.int64)
    within -= np.maximum(starts, np.uint64(run.low)).astype(np.int64)
    return int(np.maximum(within, 0)[dead].sum())


def _segments(txn: IndexTransaction, now_ms: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bases of the segments, and whether all keys before the first, and in each, have ended."""
    bases: list[int] = []
    dead = [True]
    for key, raw in txn.items("segments"):
        one = msgspec.msgpack.decode(raw, type=SegmentCount)
        bases.append(int.from_bytes(key, "big"))
        dead.append(not one.pending and max(one.last_store_ms, one.last_end_ms) + KEY_KEPT_MS <= now_ms)
    return np.array(bases, np.uint64), np.array(dead, bool)


def _judge(txn: IndexTransaction, now_ms: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return what says of which roots the keys have ended for certain."""
    bases, dead = _segments(txn, now_ms)

    def is_dead(roots: np.ndarray) -> np.ndarray:
        found: np.ndarray = dead[np.searchsorted(bases, roots, side="right")]
        places = np.flatnonzero(found)
        if len(places):
            targets = forwarding.find_many(txn, roots[places])
            now = np.array([targets.get(root, root) for root in roots[places].tolist()], np.uint64)
            found[places] = dead[np.searchsorted(bases, now, side="right")]
        return found

    return is_dead


# ---------------------------------------------------------------------- looking up


def find(txn: IndexTransaction, digests: Sequence[bytes]) -> dict[bytes, KeyEntry]:
    """Return the entries of those of these keys that are in runs."""
    found: dict[bytes, KeyEntry] = {}
    if not digests:
        return found
    first, lows = halves_of(digests)
    order = np.argsort(first)
    needles = first[order]
    for run in runs_of(txn).runs:
        for part, highs, needle_and_row in _hits(txn, run, needles):
            rest = txn.column(TABLE, PART_KEY.pack(run.number, part, REST), REST_DTYPE)
            for needle, at in needle_and_row:
                place = int(order[needle])
                row = _row_with(highs, rest, at, lows[place])
                if row is None:
                    continue
                entry, before = entry_of(row), found.get(digests[place])
                if before is None or before.root < entry.root:
                    found[digests[place]] = entry
    return found


def digests(txn: IndexTransaction, run: Run) -> Iterator[bytes]:
    """Yield the digests of the keys of a run."""
    for part in range(1 << run.bits):
        yield from digests_in(_rows(txn, run.number, part))


def proved_count(txn: IndexTransaction) -> int:
    """Return how many rows all runs have, all of which are read; IndexDamagedError if a run has others."""
    found = 0
    for run in runs_of(txn).runs:
        count = sum(len(_rows(txn, run.number, part)) for part in range(1 << run.bits))
        if count != run.count:
            raise IndexDamagedError(f"run {run.number} of keys has {count} rows, not {run.count}")
        found += count
    return found


def has_any(txn: IndexTransaction, digests: Sequence[bytes]) -> bool:
    """Whether any of these keys is in a run."""
    return bool(find(txn, digests)) if runs_of(txn).runs else False


def _hits(
    txn: IndexTransaction, run: Run, needles: np.ndarray
) -> Iterator[tuple[int, np.ndarray, list[tuple[int, int]]]]:
    """Yield the parts of a run that have some of these halves, which are in order.

    Each as its number, its halves, and pairs of places: in `needles` and in the part.
    """
    if len(needles) == 1:  # as most senders look up a key; arrays of one take three times as long
        part = int(needles[0]) >> (_DIGEST_BITS - run.bits)
        highs = txn.column(TABLE, PART_KEY.pack(run.number, part, HIGH), HIGH_DTYPE)
        at = int(highs.searchsorted(needles[0]))
        if at < len(highs) and highs[at] == needles[0]:
            yield part, highs, [(0, at)]
        return
    part_of = needles >> np.uint64(_DIGEST_BITS - run.bits) if run.bits else np.zeros(len(needles), np.uint64)
    cuts = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(needles)]
    for begin, end in itertools.pairwise(cuts):
        part = int(part_of[begin])
        highs = txn.column(TABLE, PART_KEY.pack(run.number, part, HIGH), HIGH_DTYPE)
        if not len(highs):
            continue
        wanted = needles[begin:end]
        places = np.minimum(highs.searchsorted(wanted), len(highs) - 1)
        hits = np.flatnonzero(highs[places] == wanted)
        if len(hits):
            yield part, highs, list(zip((hits + begin).tolist(), places[hits].tolist(), strict=True))


def _row_with(highs: np.ndarray, rest: np.ndarray, at: int, low: np.uint64) -> np.void | None:
    """Return the row with both halves; rows with the same first half follow each other."""
    first = highs[at]
    while at < len(highs) and highs[at] == first:
        if rest[at]["low"] == low:
            row: np.void = rest[at]
            return row
        at += 1
    return None
