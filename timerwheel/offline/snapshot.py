"""A read-only view of a data directory, whether its service runs, is stopped or was killed.

The index gives a snapshot at its checkpoint. The log after it is read and applied in memory, so the view
shows what a start would find. It writes nothing and takes no lock.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import orjson

from timerwheel.index import lookups
from timerwheel.index.writer import memtable_entries, read_kept, read_state
from timerwheel.model.admission import SYSTEM_TOPIC_LEVELS, SYSTEM_TOPIC_TIMER
from timerwheel.model.ids import Ids
from timerwheel.model.messages import MessageView, State, WheelInfo
from timerwheel.runtime.message_views import id_of, message_view
from timerwheel.runtime.recovery import INDEX_DIRECTORY
from timerwheel.state.log_manifest import LogStart, begin_state, decode_start, log_directory
from timerwheel.state.memtable import IndexState
from timerwheel.state.state import LogState
from timerwheel.store import quarantine
from timerwheel.store.errors import CorruptionError, IndexDamagedError, OffsetError
from timerwheel.store.files import DiskFiles, read_whole
from timerwheel.store.index import DATA_FILE, INDEX_FORMAT, Index, IndexTransaction
from timerwheel.store.lock import is_locked
from timerwheel.store.log_reader import START_FILE, LogReader
from timerwheel.store.record import NO_OFFSET, Kind, decode
from timerwheel.store.segment import Gap, Scanned, resume
from timerwheel.wheel.geometry import Horizons, first_horizons

MAP_SIZE_BYTES = 1 << 38
TRIES_MAX = 10
PAUSE_S = 0.05


class LogRecord(msgspec.Struct, frozen=True):
    """One record of the log, in the form that `timerwheel log` shows."""

    offset: int
    size: int
    kind: str
    topic: str
    queue: int
    id: str
    store_ms: int
    due_ms: int | None  # of the kinds that are about a due time
    origin: int | None
    level: int
    properties: dict[str, str]
    body: bytes


T = TypeVar("T")


class Opened(NamedTuple, Generic[T]):
    """A log with the manifest that says where it begins, and what was read of the index before."""

    log: LogReader
    start: LogStart | None
    found: T


class Snapshot:
    """The contents of a data directory at the moment it was opened."""

    def __init__(self, opened: "Opened[IndexTransaction | None]", now_ms: int) -> None:
        log, start, txn = opened
        self.log = log
        self._ids = Ids(log.log_id)
        self.txn = txn
        self._now_ms = now_ms
        self.log_state = LogState(lambda: log.bases)
        self.horizons: Horizons = first_horizons(now_ms)
        self.checkpoint: int | None = None
        state = None if txn is None else read_state(txn)
        if txn is not None and state is not None:
            problem = index_mismatch(state, log)
            if problem is not None:
                raise IndexDamagedError(f"{problem}; start the service once to rebuild it")
            self.horizons, self.checkpoint = state.horizons, state.until
            self.log_state.restore(state, read_kept(txn))
        else:
            self.log_state.memtable.until = log.start
            self.log_state.begin_at(log.start)
            if start is not None:
                begin_state(self.log_state, start, log.start)
        self.torn: CorruptionError | None = None
        try:
            for table in log.tables(self.log_state.until):
                last = table.rows[-1]
                self.log_state.apply(
                    table, int(last["offset"]) + int(last["size"]), log.rows_reader(table.rows)
                )
        except CorruptionError as error:
            self.torn = error  # a tail that is being written, or was torn: what a start would cut
        self._staged = memtable_entries(self.log_state.memtable.rows)

    @property
    def reader(self) -> lookups.IndexReader:
        """Return a reader of the wheel as of the end of the log; IndexDamagedError if there is no index."""
        if self.txn is None:
            raise IndexDamagedError("there is no index; start the service once to rebuild it from the log")
        return lookups.IndexReader(self.txn, self._staged, self.horizons)

    def wheel(self) -> WheelInfo:
        """Return the counts per level, the next due time, and the number of overdue timers."""
        reader = self.reader
        return WheelInfo(
            self._now_ms,
            self.log_state.pending,
            reader.count_before(self._now_ms),
            reader.next_due_ms(self.log_state.internal_ids),
            reader.levels(),
            [],
            self.log_state.leases,
        )

    def pending(
        self, topic: str | None, due_from_ms: int | None, due_to_ms: int | None, limit: int
    ) -> list[MessageView]:
        """Return at most `limit` pending messages with due_from_ms ≤ due < due_to_ms, in due order."""
        window = lookups.Window(
            -1 if due_from_ms is None else due_from_ms,
            -1,
            lookups.FAR_MS if due_to_ms is None else due_to_ms,
            hidden=self.log_state.internal_ids,
        )
        if topic in (SYSTEM_TOPIC_LEVELS, SYSTEM_TOPIC_TIMER):
            window = window._replace(levels_only=topic == SYSTEM_TOPIC_LEVELS)
        elif topic is not None:
            if topic not in self.log_state.topics:
                return []
            window = window._replace(topic_id=self.log_state.topics[topic].id)
        entries = self.reader.pending(window, limit)
        found = []
        records = self.log.read_many(entries["offset"], entries["size"])
        for entry, data in zip(entries, records, strict=True):
            if isinstance(data, bytes):
                record = decode(data)
                found.append(
                    message_view(record, id_of(self._ids, record, int(entry["root"])), State.SCHEDULED)
                )
            else:
                found.append(_unreadable(self._ids, entry, data))
        return found

    def records(self, from_offset: int | None = None, limit: int | None = None) -> Iterator[LogRecord]:
        """Yield the records of the log in order, up to a torn tail; CorruptionError for other damage."""
        return itertools.islice(read_records(self.log, from_offset), limit)


@contextlib.contextmanager
def open_snapshot(data: Path) -> Iterator[Snapshot]:
    """Open a snapshot of a data directory, for a block.

    Raises FormatError if `data` is not one, IndexDamagedError if the index must be rebuilt.
    """
    now_ms = time.time_ns() // 1_000_000
    with open_together(data, partial(open_index, data)) as opened:
        yield Snapshot(opened, now_ms)


def index_mismatch(state: IndexState, log: LogReader) -> str | None:
    """Why an index does not fit a log, None if it does."""
    if state.format != INDEX_FORMAT:
        return f"index format {state.format}; this program reads {INDEX_FORMAT}"
    if state.log_id != log.log_id:
        return "the index belongs to another log"
    if state.until > log.tail:
        return (
            f"the index was written up to log offset {state.until}, and the log ends at {log.tail}: "
            "the end of the log is missing"
        )
    return None


@contextlib.contextmanager
def open_together(
    data: Path,
    index: Callable[[], contextlib.AbstractContextManager[T]],
    faults: list[CorruptionError] | None = None,
) -> Iterator[Opened[T]]:
    """Open an index by `index`, and the log, both as of one manifest, for a block. FormatError as above.

    What is wrong with headers of segments is an error, or with `faults` is there.

    Retention commits the timers that it moved, then writes the manifest, then removes segments. So an index
    from before a manifest may still have timers in segments that are gone.
    """
    directory = log_directory(data)
    while True:
        with contextlib.ExitStack() as stack:
            raw = manifest_of(directory)
            # Before the log, which is never behind it then.
            found = stack.enter_context(index())
            try:
                log = stack.enter_context(contextlib.closing(_open_log(directory, raw, faults)))
            except OffsetError:
                if raw == manifest_of(directory):
                    raise
                continue
            if raw == manifest_of(directory):
                yield Opened(log, _decoded(directory, raw), found)
                return


@contextlib.contextmanager
def open_index(data: Path) -> Iterator[IndexTransaction | None]:
    """Open the index of a data directory for reading, for a block, whether its service runs or not.

    Yields None if there is no index. Raises IndexDamagedError.
    """
    index = index_of(data)
    if index is None:
        yield None
        return
    with contextlib.closing(index), index.read() as txn:
        yield txn


def index_of(data: Path) -> Index | None:
    """Open the index of a data directory, None if there is none; IndexDamagedError. The caller closes it.

    What changes while it is verified only looks damaged. That happens when a service starts, and once its
    lock can be seen, its index is not verified any more; where locks cannot be seen, this gives up.
    A service that is writing also leaves the file shorter than it should be for a moment
    (`Index._cover_last_page`). So the index of a running service is looked at again for half a second.
    """
    path = data / INDEX_DIRECTORY
    for again in reversed(range(TRIES_MAX)):
        if not path.exists():
            break
        before, in_use = _change(path), is_locked(data)
        try:
            return Index(path, MAP_SIZE_BYTES, readonly=True, in_use=in_use)
        except IndexDamagedError as error:
            running = is_locked(data)
            if not again or not (running or _change(path) != before):
                raise IndexDamagedError(f"{error}; start the service once to rebuild it") from error
            if running and in_use:
                time.sleep(PAUSE_S)
    return None


def _change(index: Path) -> tuple[int, ...] | None:
    """What differs once an index has been written to or replaced."""
    try:
        found = (index / DATA_FILE).stat()
    except OSError:  # opening it says why
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def open_log(data: Path) -> LogReader:
    """Open the commit log of a data directory, read-only; FormatError if `data` is not one."""
    directory = log_directory(data)
    while True:
        raw = manifest_of(directory)
        try:
            log = _open_log(directory, raw)
        except OffsetError:
            if raw == manifest_of(directory):  # else retention has removed a segment that was just listed
                raise
            continue
        if raw == manifest_of(directory):
            return log
        log.close()


def manifest_of(directory: Path) -> bytes | None:
    """The bytes of a log's manifest, None while retention has dropped nothing."""
    return read_whole(DiskFiles(), directory / START_FILE)


def _decoded(directory: Path, raw: bytes | None) -> LogStart | None:
    return None if raw is None else decode_start(directory / START_FILE, raw)


def _open_log(directory: Path, raw: bytes | None, faults: list[CorruptionError] | None = None) -> LogReader:
    """Open the log as of a manifest; OffsetError if a segment goes at the same time."""
    if faults is not None:
        faults.clear()  # of an earlier try
    start = _decoded(directory, raw)
    log = LogReader(directory, DiskFiles())
    try:
        log.open_readonly(keep_from=0 if start is None else start.offset, faults=faults)
    except BaseException:
        log.close()
        raise
    return log


def read_records(log: LogReader, from_offset: int | None = None) -> Iterator[LogRecord]:
    """Yield every record from an offset on, in order.

    Ends at a record that is being written or was torn. Raises CorruptionError if whole records follow it,
    and without an offset if the segment is missing with which the log must begin.
    """
    if from_offset is None:
        log.check_beginning()
    start = log.start if from_offset is None else max(from_offset, log.start)
    ids = Ids(log.log_id)
    for item in _until_torn(log, start):
        yield _shown(item, ids)


def read_past_retention(
    data: Path, from_offset: int | None, removed: Callable[[int, int], None]
) -> Iterator[LogRecord]:
    """Yield the records as above, and go on where the log begins if retention overtakes the reader.

    A reader keeps up to 256 segments open; `removed` gets the range [from, to) that it could not read.
    """
    at, missing = from_offset, None
    while True:
        with contextlib.closing(open_log(data)) as log:
            if at is None:
                log.check_beginning()
                at = log.start
            if missing is not None:
                if log.bases[0] <= at:
                    raise missing
                removed(at, log.bases[0])
            try:
                for record in read_records(log, at):
                    at = record.offset + record.size
                    yield record
            except OffsetError as error:
                missing = error
            else:
                return


def read_quarantined(log: LogReader) -> Iterator[LogRecord | Gap]:
    """Yield every whole record that was cut from the log, file by file, and each gap between them."""
    ids = Ids(log.log_id)
    for kept in quarantine.listed(log.files, log.directory):
        with contextlib.suppress(FileNotFoundError):  # retention has just removed it
            file = log.files.open_readonly(kept.path)
            with contextlib.closing(file):
                for found in quarantine.records(file, kept):
                    yield found if isinstance(found, Gap) else _shown(found, ids)


def _shown(item: Scanned, ids: Ids) -> LogRecord:
    record = decode(item.data)
    header = record.header
    return LogRecord(
        item.offset,
        header.size,
        Kind(header.kind).name.lower(),
        record.topic,
        header.queue,
        ids.encode(*header.identity(item.offset)),
        header.store_ms,
        header.due_time_ms,
        None if header.origin == NO_OFFSET else header.origin,
        header.level,
        orjson.loads(record.properties) if record.properties else {},
        record.body,
    )


def _until_torn(log: LogReader, start: int) -> Iterator[Scanned]:
    try:
        yield from log.scan(start)
    except CorruptionError as error:
        last = log.bases[-1]
        if error.offset < last or resume(log.file(last), last, error.offset, log.tail) is not None:
            raise


def _unreadable(ids: Ids, entry: np.void, error: CorruptionError) -> MessageView:
    return MessageView(
        ids.encode(int(entry["root"]), 0),
        "",
        0,
        State.SCHEDULED,
        int(entry["due_ms"]),
        0,
        0,
        {},
        b"",
        problem=str(error),
    )
