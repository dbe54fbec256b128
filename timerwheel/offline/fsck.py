"""The offline check: is the log whole, and do wheel and queues agree with it?

It only reads, and may run while the service runs. The index is one snapshot, copied before the log is
read: while a transaction is open, LMDB uses no freed page again, so the index of a running service would
grow for as long as the scan takes, and never shrink. The log up to the checkpoint is compared with it;
later records are checked by themselves. Settings and groups are compared as of the log's manifest if that
is later, because of what retention dropped it has them as of then. Memory grows with the number of
pending and visible messages, about 80 bytes each.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from timerwheel.index import queues
from timerwheel.index.writer import read_kept, read_state
from timerwheel.offline.snapshot import index_mismatch, manifest_of, open_index, open_together
from timerwheel.runtime.recovery import INDEX_DIRECTORY
from timerwheel.state.batch import tally, visible_rows
from timerwheel.state.config_table import Put
from timerwheel.state.log_manifest import LogStart, begin_state, log_directory
from timerwheel.state.memtable import Kept, SettingsDump
from timerwheel.state.positions import POSITION_DTYPE
from timerwheel.state.register_rows import entries_of
from timerwheel.state.state import LogState, ReadRecords
from timerwheel.store import quarantine, register, sidecar
from timerwheel.store.errors import (
    UNREADABLE,
    CorruptionError,
    ForeignSegmentError,
    IndexDamagedError,
    NotAFileError,
    OffsetError,
)
from timerwheel.store.files import read_whole
from timerwheel.store.index import INDEX_FORMAT, IndexTransaction
from timerwheel.store.journaled_log import read_mark
from timerwheel.store.keys import queue_prefix
from timerwheel.store.log_reader import LogReader
from timerwheel.store.record import FLAG_MORE, NO_OFFSET, Kind
from timerwheel.store.register import Draft
from timerwheel.store.rows import join
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, Gap, walk
from timerwheel.store.table import Table, table_of_block
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import Level

FINDINGS_MAX = 1_000
QUEUE_BITS = 16
_NO_OFFSETS = np.zeros(0, np.uint64)
_PENDING_DTYPE = np.dtype([(name, slot_table.ENTRY_DTYPE[name]) for name in ("offset", "due_ms")])


class Finding(msgspec.Struct, frozen=True):
    """One problem, with its place if it has one.

    Codes: log_damaged, log_torn, log_gap, log_quarantined, sidecar_stale, register_stale, index_missing,
    index_damaged, timer_missing, timer_extra, queue_differs, count_differs, settings_differ, groups_differ.
    """

    code: str
    path: str
    offset: int | None
    detail: str


class FsckReport(msgspec.Struct, frozen=True):
    """The outcome; `ok` is True if the next start repairs everything that was found."""

    ok: bool
    records: int
    segments: int
    pending: int
    visible: int
    checkpoint: int | None
    log_start: int
    log_end: int
    findings: list[Finding]


_HARMLESS = {"log_torn", "log_quarantined", "index_missing", "sidecar_stale", "register_stale"}


def _is_older_than_beginning(log: LogReader, start: LogStart | None, until: int) -> bool:
    """Whether the index of a copy ends before its leader dropped what was before the log.

    The leader moved the timers of that part first, and the index does not know that yet.
    """
    return (
        start is not None and until < start.settings_until and read_mark(log.files, log.directory) is not None
    )


class _Check:
    def __init__(self, data: Path, progress: Callable[[int, int], None] | None) -> None:
        self.data = data
        self.index_path = data / INDEX_DIRECTORY
        self.progress = progress or (lambda _at, _end: None)
        self.findings: list[Finding] = []
        self.records = 0
        self.settings: SettingsDump | None = None
        self.settled = 0  # the log offset up to which settings and groups are compared
        self.start: LogStart | None = None
        self._foreign: set[int] = set()  # bases of segments of another log, whose records do not count
        self._since: list[tuple[Table, ReadRecords]] = []  # what the log has from the checkpoint to there

    def find(self, code: str, path: Path, offset: int | None, detail: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(code, str(path), offset, detail))

    def run(self) -> FsckReport:
        faults: list[CorruptionError] = []
        with open_together(self.data, self._index, faults) as (log, start, index):
            self.start = start
            self._find_in_headers(log, faults)
            until = None if index is None else self._checkpoint(index, log)
            log_state, contents, later = self._replay(log, log.tail if until is None else until)
            if index is not None and until is not None:
                self._compare(index, log_state, contents)
                self._compare_settings(index, log)
                if index.problem is not None:
                    self.find("index_damaged", self.index_path, None, index.problem)
            for rows in later:
                contents.add(rows)
            self._find_quarantined(log)
            return self._report(log, log_state, until, len(contents.pending(hidden=log_state.internal_ids)))

    @contextlib.contextmanager
    def _index(self) -> Iterator["_IndexCopy | None"]:
        self.findings.clear()  # of an index that was looked at too early
        found = None
        try:
            with open_index(self.data) as txn:
                found = None if txn is None else _IndexCopy(txn)
        except IndexDamagedError as error:
            self.find("index_damaged", self.index_path, None, str(error))
        else:
            if found is None:
                self.find("index_missing", self.index_path, None, "the next start rebuilds it from the log")
        yield found

    def _checkpoint(self, index: "_IndexCopy", log: LogReader) -> int | None:
        state = index.state
        if state is None:
            self.find(
                "index_missing", self.index_path, None, "it is empty; the next start fills it from the log"
            )
            return None
        if state.log_id == log.log_id and _is_older_than_beginning(log, self.start, state.until):
            detail = "its leader has dropped a part of the log since; the next start brings it up to date"
            self.find("index_missing", self.index_path, None, detail)
            return None
        problem = index_mismatch(state, log)
        if problem is None:
            return state.until
        code = "index_damaged" if state.format == INDEX_FORMAT else "index_missing"
        self.find(code, self.index_path, None, problem)
        return None

    def _find_in_headers(self, log: LogReader, faults: list[CorruptionError]) -> None:
        self._foreign = {fault.offset for fault in faults if isinstance(fault, ForeignSegmentError)}
        last = log.bases[-1]
        unborn = log.file(last).size() <= SEGMENT_HEADER_SIZE and last not in self._foreign
        for fault in faults:
            code = "log_torn" if unborn and fault.offset == last else "log_damaged"
            self.find(code, log.path(fault.offset), fault.offset, fault.reason)
        try:
            log.check_beginning()
        except CorruptionError as error:
            self.find("log_gap", log.directory, error.offset, error.reason)

    def _report(
        self, log: LogReader, log_state: LogState, checkpoint: int | None, waiting: int
    ) -> FsckReport:
        visible = sum(
            q.next_offset - q.min_offset for t in log_state.topics.values() for q in t.queues.values()
        )
        bad = [finding for finding in self.findings if finding.code not in _HARMLESS]
        return FsckReport(
            not bad,
            self.records,
            len(log.bases),
            waiting,
            visible,
            checkpoint,
            log.start,
            log.tail,
            self.findings,
        )

    def _beginning(self, log: LogReader, until: int) -> LogState:
        """Return the state where the log begins, with settings and groups as of its manifest."""
        log_state = LogState(lambda: log.bases)
        log_state.begin_at(log.start)
        self.settled = until
        if self.start is not None:
            begin_state(log_state, self.start, log.start)
            self.settled = max(until, self.start.settings_until)
        return log_state

    def _replay(self, log: LogReader, until: int) -> tuple[LogState, "_LogContents", list[np.ndarray]]:
        """Scan every record of the log; returns state and contents up to `until`, and the rows after it."""
        log_state = self._beginning(log, until)
        contents = _LogContents()
        later: list[np.ndarray] = []
        self.records = 0
        for place, base in enumerate(log.bases):
            end = log.end_of(base)
            if place:
                self._check_join(log, log.bases[place - 1], base)
            for table in self._scanned(log, base, end):
                self.records += len(table.rows)
                for part in _split(table, until, self.settled):
                    read, first = log.rows_reader(part.rows), int(part.rows["offset"][0])
                    if self.settings is None and first >= self.settled:
                        self.settings = log_state.dump_settings()
                    if until <= first < self.settled:
                        self._since.append((Table(part.rows.copy(), part.topics), read))
                    rows = log_state.apply(part, int(part.rows["offset"][-1]), read).rows
                    contents.add(rows[rows["offset"] < until])
                    later.append(rows[rows["offset"] >= until])
                self.progress(log_state.until, log.tail)
            if base != log.bases[-1]:
                self._check_sidecar(log, base, end)
                self._check_register(log, base, end)
        self.progress(log.tail, log.tail)
        if self.settings is None:
            self.settings = log_state.dump_settings()
        return log_state, contents, later

    def _check_join(self, log: LogReader, before: int, base: int) -> None:
        ends = before + log.file(before).size()
        if ends < base:
            detail = f"the log before it ends at {ends}: a segment, or the end of one, is missing"
            self.find("log_gap", log.path(base), base, detail)
        elif ends > base:
            detail = f"the file goes on up to offset {ends}, and the next segment begins at {base}"
            self.find("log_damaged", log.path(before), base, detail)

    def _find_quarantined(self, log: LogReader) -> None:
        for kept in quarantine.listed(log.files, log.directory):
            found = f"{kept.size} bytes were cut from the log" if kept.size else "it cannot be read"
            detail = f"{found}; `timerwheel log --quarantined` shows more"
            self.find("log_quarantined", kept.path, kept.offset, detail)

    def _scanned(self, log: LogReader, base: int, end: int) -> "list[Table]":
        first = base + SEGMENT_HEADER_SIZE
        last = base == log.bases[-1]
        tables: list[Table] = []
        if base in self._foreign:
            return tables
        for found in walk(log.file(base), base, first, end):
            if isinstance(found, Gap):
                later = None if found.end == end else found.end
                code = "log_torn" if last and later is None else "log_damaged"
                goes_on = "" if later is None else f"; intact records continue at offset {later}"
                self.find(code, log.path(base), found.start, found.reason + goes_on)
            else:
                tables.append(table_of_block(found.data, found.edges, found.offset))
        if last and tables:
            tables[-1] = self._without_torn_unit(log, tables[-1])
        return tables

    def _without_torn_unit(self, log: LogReader, table: Table) -> Table:
        """Return the table without an incomplete last unit, which a start would cut."""
        ends = np.flatnonzero(table.rows["flags"] & FLAG_MORE == 0)
        whole = int(ends[-1]) + 1 if len(ends) else 0
        if whole < len(table.rows):
            offset = int(table.rows["offset"][whole])
            detail = "the last unit of records is not complete"
            self.find("log_torn", log.path(log.bases[-1]), offset, detail)
        return Table(table.rows[:whole], table.topics)

    def _check_sidecar(self, log: LogReader, base: int, end: int) -> None:
        path = log.sidecar_path(base)
        # Retention removes a segment before its sidecar.
        if sidecar.read(log.files, path, base, end) is None and log.path(base).exists():
            self.find("sidecar_stale", path, base, "missing or damaged; it is rebuilt when needed")

    def _check_register(self, log: LogReader, base: int, end: int) -> None:
        """Compare a register, if there is one, with what a scan finds."""
        path = log.register_path(base)
        try:
            data = read_whole(log.files, path)
        except NotAFileError:
            data = b""
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            data = b""
        if data is None:
            return
        draft = Draft(base, end)
        for found in walk(log.file(base), base, base + SEGMENT_HEADER_SIZE, end):
            if not isinstance(found, Gap):
                draft.add(entries_of(found, base), end)
        if data != register.encode(draft):
            self.find("register_stale", path, base, "damaged; it is built again when it is read")

    def _compare(self, index: "_IndexCopy", log_state: LogState, contents: "_LogContents") -> None:
        """Compare what could be read of the index with the log."""
        expected = contents.pending()
        if index.pending is not None:
            self._compare_timers(expected, index.pending)
        if index.topics is not None:
            self._compare_counts(expected, index.topics, log_state)
        if index.topics is not None and index.queues is not None:
            self._compare_queues(index.topics, index.queues, log_state, contents.queues())

    def _compare_timers(self, expected: np.ndarray, actual: np.ndarray) -> None:
        path = self.index_path
        for entry in expected[~np.isin(expected["offset"], actual["offset"])]:
            detail = f"a timer due at {entry['due_ms']} is not in the wheel"
            self.find("timer_missing", path, int(entry["offset"]), detail)
        found, counts = np.unique(actual["offset"], return_counts=True)
        for offset, count in zip(found[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
            self.find("timer_extra", path, offset, f"the wheel holds this timer {count} times")
        for entry in actual[~np.isin(actual["offset"], expected["offset"])]:
            detail = f"the wheel holds a timer due at {entry['due_ms']} that the log does not"
            self.find("timer_extra", path, int(entry["offset"]), detail)

    def _compare_counts(
        self, expected: np.ndarray, topics: dict[str, tuple[int, int]], log_state: LogState
    ) -> None:
        counts_of = dict(tally(expected["topic"]))
        for name, (_, pending) in topics.items():
            stated = counts_of.get(log_state.topics[name].id, 0) if name in log_state.topics else 0
            if pending != stated:
                detail = f"topic {name!r} has {pending} pending in the index and {stated} in the log"
                self.find("count_differs", self.index_path, None, detail)

    def _compare_queues(
        self,
        topics: dict[str, tuple[int, int]],
        queues_of: dict[tuple[int, int], np.ndarray],
        log_state: LogState,
        visible: dict[tuple[int, int], np.ndarray],
    ) -> None:
        for topic in log_state.topics_by_id:
            end = log_state.control.topic_ends.get(topic.name)
            # The index may number topics differently: it may still know topics that retention has removed.
            topic_id, _ = topics.get(topic.name, (-1, 0))
            for number in topic.queues:
                expected = visible.get((topic.id, number), _NO_OFFSETS)
                if end is not None:  # retention may have trimmed what was deleted
                    expected = expected[expected >= end.until]
                if len(expected):
                    actual = queues_of.get((topic_id, number), _NO_OFFSETS)
                    self._compare_queue(expected, actual, (topic_id, number))

    def _compare_settings(self, index: "_IndexCopy", log: LogReader) -> None:
        """Compare settings and groups of the index, brought up to `settled`, with those of the log."""
        if index.kept is None:
            return
        assert index.state is not None
        assert self.settings is not None
        log_state = LogState(lambda: log.bases)
        log_state.restore(index.state, index.kept)
        for part, read in self._since:
            log_state.apply(part, int(part.rows["offset"][-1]), read)
        expected, actual = self.settings, log_state.dump_settings()
        # What either says of messages that retention has removed does not count.
        for name, _, first in () if self.start is None else self.start.queues:
            for dump in (expected, actual):
                if name in dump.dead:
                    dump.dead[name].forget_before(first)
        if set(map(_text, expected.control)) != set(map(_text, actual.control)):
            detail = f"{len(actual.control)} settings differ from the {len(expected.control)} of the log"
            self.find("settings_differ", self.index_path, None, detail)
        for name in sorted(expected.groups.keys() | actual.groups.keys()):
            if not _same_group(expected, actual, name):
                detail = f"the messages held by group {name!r} differ from those of the log"
                self.find("groups_differ", self.index_path, None, detail)
        if expected.dead != actual.dead:
            self.find("groups_differ", self.index_path, None, "dead letters differ from those of the log")

    def _compare_queue(self, expected: np.ndarray, actual: np.ndarray, queue: tuple[int, int]) -> None:
        # Pages are trimmed whole, so the index may keep positions from before the log's start.
        actual = actual[actual >= expected[0]]
        if not np.array_equal(expected, actual):
            detail = (
                f"queue {queue[1]} of topic {queue[0]}: {len(actual)} positions, and the log has "
                f"{len(expected)}, or they differ"
            )
            self.find("queue_differs", self.index_path, None, detail)


def _split(table: Table, *offsets: int) -> list[Table]:
    """Split a table at log offsets, which ascend; empty parts are left out."""
    places = np.searchsorted(table.rows["offset"], offsets)
    return [Table(rows.copy(), table.topics) for rows in np.split(table.rows, places) if len(rows)]


def _text(put: Put) -> bytes:
    return msgspec.json.encode(put, order="deterministic")


def _same_group(expected: SettingsDump, actual: SettingsDump, name: str) -> bool:
    """Whether the index has of a group what the log has."""
    if name not in expected.groups or name not in actual.groups:
        return False
    (passed, items, since), (passed_too, items_too, since_too) = expected.groups[name], actual.groups[name]
    # An index of an earlier version does not have where the group began.
    begun_alike = since_too in {since, 0}
    return begun_alike and passed == passed_too and sorted(items) == sorted(items_too)


class _LogContents:
    """Collects the pending timers and visible messages that follow from the log.

    The counts of the state would be wrong after damage: it would see only the end of a damaged timer.
    """

    def __init__(self) -> None:
        self._adds: list[np.ndarray] = []
        self._ends: list[np.ndarray] = []
        self._visible: list[np.ndarray] = []

    def add(self, rows: np.ndarray) -> None:
        self._adds.append(rows[rows["kind"] == Kind.TIMER][["offset", "due_ms", "topic"]])
        self._ends.append(rows["origin"][rows["origin"] != np.uint64(NO_OFFSET)])
        self._visible.append(visible_rows(rows)[["topic", "queue", "offset"]])

    def pending(self, hidden: Sequence[int] = ()) -> np.ndarray:
        """Return the timers without an end, except those of the topics `hidden`."""
        if not self._adds:
            return np.zeros(0, slot_table.ENTRY_DTYPE)
        adds, ends = np.concatenate(self._adds), np.concatenate(self._ends)
        return adds[~np.isin(adds["offset"], ends) & ~np.isin(adds["topic"], hidden)]

    def queues(self) -> dict[tuple[int, int], np.ndarray]:
        """Return the log offsets of the visible messages of each queue, by topic and number."""
        rows = np.concatenate(self._visible) if self._visible else None
        if rows is None or not len(rows):
            return {}
        keys = rows["topic"].astype(np.int64) << QUEUE_BITS | rows["queue"]
        order = np.argsort(keys, kind="stable")
        found, firsts = np.unique(keys[order], return_index=True)
        parts = np.split(rows["offset"][order], firsts[1:])
        mask = (1 << QUEUE_BITS) - 1
        return {
            (key >> QUEUE_BITS, key & mask): part for key, part in zip(found.tolist(), parts, strict=True)
        }


class _IndexCopy:
    """What an index has that the log must have too, as far as it can be read; `problem` says why no further.

    `topics` has the id and the pending messages of each, `queues` the log offsets of the messages of each, by
    topic and number.
    """

    def __init__(self, txn: IndexTransaction) -> None:
        self.state = read_state(txn)
        self.pending: np.ndarray | None = None
        self.topics: dict[str, tuple[int, int]] | None = None
        self.queues: dict[tuple[int, int], np.ndarray] | None = None
        self.kept: Kept | None = None
        self.problem: str | None = None
        try:
            if self.state is not None:
                self._copy(txn)
        except IndexDamagedError as error:
            self.problem = str(error)

    def _copy(self, txn: IndexTransaction) -> None:
        self.pending = _index_pending(txn)
        self.topics = {}
        places: list[tuple[int, int]] = []
        for key, raw in txn.items("topics"):
            name, pending, numbers = msgspec.msgpack.decode(raw)
            topic_id = int.from_bytes(key, "big")
            self.topics[name] = (topic_id, pending)
            places += [(topic_id, number) for number, _, _ in numbers]
        self.queues = {place: _queue_offsets(txn, place) for place in places}
        self.kept = read_kept(txn)


def _queue_offsets(txn: IndexTransaction, place: tuple[int, int]) -> np.ndarray:
    pages = txn.prefix(queues.TABLE, queue_prefix(*place))
    found = [page.rows(POSITION_DTYPE)["offset"] for _, page in pages]
    return np.concatenate(found) if found else _NO_OFFSETS


def _index_pending(txn: IndexTransaction) -> np.ndarray:
    parts = []
    for level in Level:
        for start_ms, _, _ in slot_table.slot_weights(txn, level, 0, 1 << 62):
            entries = slot_table.slot_entries(txn, level, start_ms)
            parts.append(entries)
    entries = slot_table.net(join(parts, slot_table.ENTRY_DTYPE))
    found = np.zeros(len(entries), _PENDING_DTYPE)  # a copy: entries may lie in the pages of LMDB
    for name in _PENDING_DTYPE.names or ():
        found[name] = entries[name]
    return found


def fsck(data: Path, progress: Callable[[int, int], None] | None = None) -> FsckReport:
    """Check a data directory; raises FormatError if `data` is not one. `progress` gets (offset, end).

    It begins again if retention removes a segment that is not open. The reader keeps up to 256 open.
    """
    directory = log_directory(data)
    while True:
        start = manifest_of(directory)
        try:
            return _Check(data, progress).run()
        except OffsetError:
            if manifest_of(directory) == start:
                raise
