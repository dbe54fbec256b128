"""Recovery: turns what a crash left into a state and an index that agree with the log.

    open log -> open index (or begin a new one) -> cut the torn tail -> replay from the checkpoint -> commit

The log is the truth. An index that is missing, damaged, of another log, of another format, ahead of the log
or behind its beginning is moved aside and rebuilt from the log. An index that is only behind is brought up to
date.

A rebuild reads the sidecars of sealed segments, so it does not notice damage in the records behind them: they
would be found damaged one by one, when they are due or requested. So `check_log` reads the whole log once
afterwards. It runs beside normal work, in steps, because it takes as long as the disk needs.
"""

import contextlib
import errno
import itertools
import logging
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from timerwheel.errors import ShardMismatchError
from timerwheel.index.swap import STAGING_NAME, aside_path, new_path, swap_in
from timerwheel.index.writer import IndexWriter, new_state, read_kept, read_state
from timerwheel.model.shards import ALONE, Shard, log_id_of, shard_of_log
from timerwheel.runtime.data_directory import is_backup
from timerwheel.runtime.room import SPARE_BYTES
from timerwheel.runtime.threads import Threads
from timerwheel.settings import Settings
from timerwheel.state.config_table import encode_puts
from timerwheel.state.log_manifest import (
    LOG_DIRECTORY,
    UNFINISHED_LOG,
    LogStart,
    begin_state,
    decode_start,
    read_start,
)
from timerwheel.state.memtable import IndexState, Memtable, Snapshot
from timerwheel.state.state import LogState, ReadRecords
from timerwheel.store.errors import (
    NO_SPACE,
    CopyDamagedError,
    CorruptionError,
    FormatError,
    IndexAheadError,
    IndexBusyError,
    IndexDamagedError,
    IndexMapFullError,
    JournalMismatchError,
    LogDamagedError,
    NoSpaceError,
    OffsetError,
)
from timerwheel.store.files import Files, remove
from timerwheel.store.index import INDEX_FORMAT, Index
from timerwheel.store.journal import Extent, Journal, Parts, counts
from timerwheel.store.journaled_log import JournaledLog, read_mark
from timerwheel.store.log import CommitLog, OnDamage, Truncation
from timerwheel.store.record import Kind
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, SIDECAR_SUFFIX, Gap, segment_base, walk
from timerwheel.store.table import ROW_DTYPE, Table
from timerwheel.wheel.geometry import first_horizons

logger = logging.getLogger("timerwheel")

INDEX_DIRECTORY = "index"
REBUILD_MARK = "index-damaged"
MAP_IS_FULL = "MDB_MAP_FULL"  # LMDB's wording
RECORD_BYTES_MIN = 80
INDEX_BYTES_A_RECORD = 128  # including the space in which LMDB copies pages
ROOM_BYTES = 4 << 20


class Recovered(NamedTuple):
    """The result of recovery, and what it had to do."""

    log: CommitLog
    state: LogState
    writer: IndexWriter
    truncation: Truncation | None
    rebuilt: str | None
    replayed_records: int
    end: int
    """Log offset at which the log ended: what is stored from there on is of this run."""


def recover(
    settings: Settings,
    files: Files,
    now_ms: int,
    progress: Callable[[int, int], None] | None = None,
    on_damage: OnDamage = OnDamage.REFUSE,
    shard: Shard | None = None,
) -> Recovered:
    """Recover a data directory; the caller holds its lock. `progress` gets (log offset, log end).

    A new log is that of `shard`, and one that is there must be; None takes any.

    Raises LogDamagedError for damage to the log that no crash can cause, unless `on_damage` says what to do
    with it, and JournalMismatchError for a copy of a journal.
    """
    _prepare(settings)
    directory = settings.data / LOG_DIRECTORY
    files.make_dir(directory)
    if (mark := read_mark(files, directory)) is not None:
        raise JournalMismatchError(
            f"{directory} is a copy of the journal {mark.journal}, which may have messages that it lacks; "
            "start with --journal, or see doc/cluster.md for the way back to the local disk"
        )
    direct_io = settings.direct_io and settings.flush == "sync"
    say = partial(logger.info, "%s %s: each small write takes a page of the disk", directory)
    log = CommitLog(directory, files, settings.segment_size_bytes, direct_io=direct_io, on_no_direct=say)
    found = _open(settings, files, log, now_ms, on_damage, shard)
    try:
        return found.replay(progress)
    except CorruptionError as error:
        raise LogDamagedError(error.path, error.offset, error.reason) from error


def _prepare(settings: Settings) -> None:
    """Refuse a directory that is not a data directory, and remove what a killed rebuild has left over."""
    if is_backup(settings.data):
        raise FormatError(
            f"{settings.data} is a backup; run `timerwheel backup restore` to make a data directory from it"
        )
    unfinished = settings.data / UNFINISHED_LOG
    if unfinished.exists() and not (settings.data / LOG_DIRECTORY).exists():
        raise FormatError(
            f"{unfinished}: an unfinished restore; run the restore again, or remove this directory"
        )
    for leftover in (new_path(settings.data / INDEX_DIRECTORY), settings.data / STAGING_NAME):
        shutil.rmtree(leftover, ignore_errors=True)


class Replica:
    """A data directory that is a copy of a journal, and its index, as far as the journal goes by now.

    `step` again and again while another process leads; then `lead`. A step begins the index again whenever
    the leader has dropped the beginning of the log, so that there is one way in which a state gets to know of
    it. The caller holds the lock of the directory. All methods belong to one thread.
    """

    def __init__(
        self, settings: Settings, files: Files, journal: Journal, shard: Shard | None = None
    ) -> None:
        _prepare(settings)
        self._shard = shard
        self._settings = settings
        self._files = files
        self._journal = journal
        directory = settings.data / LOG_DIRECTORY
        self._log = JournaledLog(directory, files, settings.segment_size_bytes, journal)
        self._opened: _Opened | None = None
        self._committed_ms = 0

    @property
    def position(self) -> int:
        """Position in the journal up to which it has copied."""
        return self._log.position

    def find_journal(self) -> None:
        """Make the journal if it is missing: who votes about it before it is there hears of it late.

        Raises as `step`.
        """
        with _as_damage_to_copy():
            self._log.extent()

    def step(self, now_ms: int) -> None:
        """Copy and replay what there is now, as far as there is room.

        Raises JournalAwayError, and JournalMismatchError if the directory or the journal must not be used.
        After a NoSpaceError, `close` it: another one goes on with what is there.
        """
        self._log.spare_bytes = SPARE_BYTES
        with _as_damage_to_copy():
            if self._opened is None:
                extent = self._log.extent()
                self._copy(extent)
                if self._log.bases:
                    self._begin(now_ms)
                return
            with self._kept_if_full(self._opened), self._room_wanted():
                is_new = self._log.follow()
            if is_new:
                self._end()
                self._begin(now_ms)
                return
            self._opened.advance()
            self._opened.cascade(now_ms)
            if self._opened.lags and abs(now_ms - self._committed_ms) >= self._settings.index_interval_ms:
                self._opened.commit()
                self._committed_ms = now_ms

    def lead(self, now_ms: int, progress: Callable[[int, int], None] | None = None) -> Recovered:
        """Claim the journal, and finish what the steps began. Raises as `step`, and CopyDamagedError."""
        self._log.spare_bytes = 0
        with _as_damage_to_copy():
            extent = self._log.claim()
            if self._opened is not None and self._log.follows(extent):
                with self._room_wanted():
                    is_new = self._log.catch_up(extent.end, _reported())
                if is_new:
                    self._end()
            else:
                self._end()
                self._copy(extent)
            opened = self._opened or self._open(now_ms)
            self._opened = None
            return opened.replay(progress)

    def _copy(self, extent: Extent) -> None:
        with self._room_wanted():
            if self._log.lacks_dropped(extent):
                self._check_beginning(extent)
            self._log.attach(extent)
            self._log.catch_up(extent.end, _reported())

    def _check_beginning(self, extent: Extent) -> None:
        """Raise JournalMismatchError if more was dropped from the journal than from the log.

        It is called before a copy that lacks what was dropped is removed: that may be the last one of it.
        """
        parts, base, tail = Parts(), None, None
        for _, run in self._journal.read(extent.start, extent.end):
            if counts(run, tail):
                base, tail = run.base if base is None else base, run.end
            raw = parts.add(run)
            if raw is not None and base is not None and decode_start(extent.name, raw).offset >= base:
                return
        raise JournalMismatchError(
            f"the journal {extent.name} begins at log offset {base}; records before that were deleted, but "
            f"not by this service. {self._settings.data} may have them: keep it, and check the brokers"
        )

    @contextlib.contextmanager
    def _kept_if_full(self, opened: "_Opened") -> Iterator[None]:
        """Commit what was copied if a block finds no room for more."""
        try:
            yield
        except NoSpaceError:
            with contextlib.suppress(NoSpaceError):
                opened.advance()
                opened.commit()
            raise

    def _room_wanted(self) -> contextlib.AbstractContextManager[None]:
        return _room_wanted(self._settings, self._files, self._log, 0)

    def _open(self, now_ms: int) -> "_Opened":
        return _open(self._settings, self._files, self._log, now_ms, OnDamage.REFUSE, self._shard)

    def _begin(self, now_ms: int) -> None:
        opened = self._open(now_ms)
        with opened.closed_on_error():
            opened.advance()
            opened.commit()
        self._opened = opened

    def _end(self) -> None:
        """Commit what was replayed, and let go of the index."""
        opened, self._opened = self._opened, None
        if opened is not None:
            with opened.closed_on_error():
                opened.advance()
                opened.commit()
            opened.close()

    def close(self) -> None:
        """Let go of everything; after `lead` has returned, it is the engine's."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        self._log.close()


@dataclass(eq=False)
class _Opened:
    """A log, and an index that has it up to a checkpoint."""

    _settings: Settings
    _files: Files
    _log: CommitLog
    _state: LogState
    _writer: IndexWriter
    _truncation: Truncation | None
    _rebuilt: str | None
    _salvage: bool

    def replay(self, progress: Callable[[int, int], None] | None) -> Recovered:
        """Replay up to the end of the log; the index is closed after an error."""
        with self.closed_on_error():
            replayed = self.advance(progress)
            self.commit()
        return Recovered(
            self._log, self._state, self._writer, self._truncation, self._rebuilt, replayed, self._log.tail
        )

    def advance(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Replay what the state lacks, committing as the memtable fills; returns the number of records.

        While one memtable is being written, the next one fills, as in normal operation: memory holds only
        these two.
        """
        log, log_state, replayed = self._log, self._state, 0
        under_way: Future[None] | None = None
        with (
            _room_wanted(self._settings, self._files, self._log, log_state.until),
            ThreadPoolExecutor(1, "commit") as thread,
        ):
            for table, read in _tables(log, log_state, salvage=self._salvage):
                last = table.rows[-1]
                replayed += len(table.rows)
                log_state.apply(table, int(last["offset"]) + int(last["size"]), read)
                if log_state.memtable.count >= self._settings.index_records_max:
                    _end(under_way, log_state)
                    log.sync()
                    under_way = thread.submit(self._commit_and_merge, *log_state.freeze())
                if progress is not None:
                    progress(log_state.until, log.tail)
            _end(under_way, log_state)
        return replayed

    def _commit_and_merge(self, memtable: Memtable, snapshot: Snapshot) -> None:
        """Commit a memtable, and merge runs of deduplication keys, of which there may be one for each."""
        self._writer.commit(memtable, snapshot)
        while self._writer.merge_keys(0):  # no key has ended by then: none is left out
            pass

    @property
    def lags(self) -> bool:
        """Whether the index has less than was replayed."""
        return self._writer.state.until < self._state.until

    def commit(self) -> None:
        """Commit what was replayed, which must be all of the log."""
        log_state, writer = self._state, self._writer
        with _room_wanted(self._settings, self._files, self._log, log_state.until):
            self._log.sync()
            log_state.memtable.until = self._log.tail
            writer.state = msgspec.structs.replace(writer.state, origin_floor=0, settings_from=0, lost=[])
            writer.commit(*log_state.freeze())
            log_state.committed()
        log_state.end_rebuild()

    def cascade(self, now_ms: int) -> None:
        """Move timers to finer slots and merge runs of keys, so that it need not be done on taking over."""
        now_ms = max(now_ms, self._state.fired_until_ms)  # as the engine does after a clock was set back
        while self._writer.cascade(now_ms, self._settings.cascade_entries_max):
            pass
        while self._writer.merge_keys(now_ms):
            pass

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the index if a block fails: a process cannot open an environment twice, and callers retry."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the index."""
        self._writer.index.close()


def _open(
    settings: Settings, files: Files, log: CommitLog, now_ms: int, on_damage: OnDamage, shard: Shard | None
) -> _Opened:
    """Open the log, cut its torn tail, and open an index that agrees with it or begin a new one."""
    with _room_wanted(settings, files, log, 0):
        start = read_start(files, log.directory)
        keep_from = 0 if start is None else start.offset
        new_log_id = log_id_of(shard or ALONE, uuid.uuid4().bytes)
        log.open(new_log_id=new_log_id, now_ms=now_ms, keep_from=keep_from)
        _check_shard(log, shard)
        index, found, rebuilt = _open_index(settings, log)
    with contextlib.ExitStack() as undone:
        undone.callback(index.close)  # a process cannot open an environment twice, and callers retry
        log_state, state = _begin(log, start, found, now_ms)
        verified = 0 if found is None else state.until
        with _room_wanted(settings, files, log, verified):
            truncation = log.recover_tail(verified, now_ms=now_ms, on_damage=on_damage)
            if truncation is not None:
                _log_cut(truncation)
            if on_damage is OnDamage.CUT:
                _cut_damage(log, log_state.until, now_ms)
            if on_damage is OnDamage.SALVAGE:
                state = _pass_over_damage(log, log_state, state)
        undone.pop_all()
    salvage = on_damage is OnDamage.SALVAGE
    writer = IndexWriter(index, state)
    return _Opened(settings, files, log, log_state, writer, truncation, rebuilt, salvage)


def _check_shard(log: CommitLog, shard: Shard | None) -> None:
    """Raise ShardMismatchError if the log is not that of this shard."""
    found = shard_of_log(log.log_id)
    if shard is None or shard == found:
        return
    holds = "the log of a service without shards" if found == ALONE else f"shard {found.number} of {found.of}"
    wanted = "a service without shards" if shard == ALONE else f"shard {shard.number} of {shard.of}"
    raise ShardMismatchError(
        f"{log.directory} holds {holds}, not of {wanted}: the number of shards never changes; start with the "
        "number that it was made with, or with another directory"
    )


@contextlib.contextmanager
def _as_damage_to_copy() -> Iterator[None]:
    """Say of damage to the copy of a journal that it can be copied again."""
    try:
        yield
    except CorruptionError as error:
        raise CopyDamagedError(error.path, error.offset, error.reason) from error


def _reported() -> Callable[[int, int], None]:
    """Return what logs how far a copy is, at each tenth of it."""
    logged = 0

    def report(at: int, end: int) -> None:
        nonlocal logged
        tenth = 10 * at // end
        if tenth > logged:
            logged = tenth
            logger.info("copied the journal up to position %d of %d", at, end)

    return report


def _cut_damage(log: CommitLog, until: int, now_ms: int) -> None:
    """End the log before the damage at which the replay from `until` on would fail."""
    damaged = _first_damage(log, until)
    if damaged is not None:
        for path in log.cut_before(damaged, until, now_ms=now_ms):
            logger.error("cut the log before the damage at offset %d; the rest is in %s", damaged, path)


def _first_damage(log: CommitLog, until: int) -> int | None:
    """Return the offset of the first damage from `until` on that a replay meets, else None.

    A replay reads the record tables, and of the records only the settings. Other damage in a segment with a
    sidecar does not prevent a start, and is reported when it is read.
    """
    try:
        for table in log.tables(until):
            places = np.flatnonzero(table.rows["kind"] == int(Kind.CONTROL))
            for record in log.rows_reader(table.rows)(places):
                if isinstance(record, CorruptionError):
                    return record.offset
    except CorruptionError as error:
        return error.offset
    return None


def _pass_over_damage(log: CommitLog, log_state: LogState, state: IndexState) -> IndexState:
    """Make the replay skip the damage in the part of the log that it reads."""
    lost: list[tuple[int, int]] = []
    for _ in log.tables(log_state.until, lost=lost):
        pass
    for start, end in lost:
        logger.error("skipped %d damaged bytes of the log from offset %d", end - start, start)
    log_state.lost = [*state.lost, *lost]
    return msgspec.structs.replace(state, lost=log_state.lost)


def _log_cut(cut: Truncation) -> None:
    """Log the cut: a torn tail is normal after a crash, whole records behind it only after a power cut."""
    facts = (cut.size, cut.offset, cut.reason)
    if cut.later is None:
        logger.warning(
            "cut %d bytes from the tail of the log at offset %d: %s; they are kept in %s",
            *facts,
            cut.kept.name,
        )
        return
    logger.error(
        "cut %d bytes from the tail of the log at offset %d: %s; intact records from offset %d "
        "were cut as well. After a power failure that is normal: no client had a response for "
        "them. Otherwise check the disk, and whether a backup has these records. They are kept in "
        "%s",
        *facts,
        cut.later,
        cut.kept.name,
    )


@contextlib.contextmanager
def _room_wanted(settings: Settings, files: Files, log: CommitLog, until: int) -> Iterator[None]:
    """Explain an error for lack of space: where space is needed, and how much, for an index up to `until`."""
    try:
        yield
    except (NoSpaceError, OSError) as error:
        failed = error if isinstance(error, OSError) else error.__cause__
        number = getattr(failed, "errno", errno.ENOSPC)
        if number not in NO_SPACE or number in (errno.EMFILE, errno.ENFILE):
            raise
        if MAP_IS_FULL in str(error):
            raise IndexMapFullError(f"{error}; start with a larger index_map_size") from error
        aside = aside_path(settings.data / INDEX_DIRECTORY)
        spare = f"; {aside} may be deleted" if aside.exists() else ""
        if isinstance(log, JournaledLog):
            raise NoSpaceError(
                f"the copy of the log cannot be written: {error}. Nothing is lost, and it goes on by itself "
                f"once there is room{spare}"
            ) from error
        free, wanted = files.free_bytes(settings.data) >> 20, -(-room_bytes(settings, until) >> 20)
        raise NoSpaceError(
            f"no room to start: {error}. Nothing is lost. The disk of {settings.data} has {free} MiB "
            f"free and needs up to {wanted} MiB; free some space and start again{spare}"
        ) from error


def room_bytes(settings: Settings, until: int) -> int:
    """Return the most space that the index takes once it covers the log after `until`, plus a reserve.

    The sizes of sidecars give the number of records in sealed segments.
    """
    records = 0
    for path in (settings.data / LOG_DIRECTORY).glob("*"):
        base, size = segment_base(path.name), path.stat().st_size
        if base is not None and base + size > until:
            side = path.with_suffix(SIDECAR_SUFFIX)
            unknown = (base + size - max(base, until)) // RECORD_BYTES_MIN
            records += min(unknown, side.stat().st_size // ROW_DTYPE.itemsize) if side.exists() else unknown
    return ROOM_BYTES + records * INDEX_BYTES_A_RECORD


class _Found(NamedTuple):
    """An index that agrees with the log."""

    index_state: IndexState
    state: LogState


def _begin(
    log: CommitLog, start: LogStart | None, found: _Found | None, now_ms: int
) -> tuple[LogState, IndexState]:
    """Return the state at the checkpoint of the index; at the beginning of the log if the index is new."""
    if found is None:
        log_state = LogState(lambda: log.bases)
        state = new_state(log.log_id, first_horizons(now_ms), log.start)
        log_state.memtable.start = log_state.memtable.until = log.start
        if start is not None:
            begin_state(log_state, start, log.start)
            state = msgspec.structs.replace(
                state, origin_floor=log_state.origin_floor, settings_from=log_state.settings_from
            )
        return log_state, state
    state, log_state = found.index_state, found.state
    log_state.continue_rebuild(state)
    for name, queue, first in () if start is None else start.queues:
        tail = log_state.queue(log_state.topic(name), queue)
        tail.min_offset = max(tail.min_offset, first)
        log_state.forget_dead(log_state.topic(name).id, first)
    return log_state, state


def _open_index(settings: Settings, log: CommitLog) -> tuple[Index, _Found | None, str | None]:
    """Open the index; returns (index, contents, None), or (new index, None, why the old one is unused)."""
    path = settings.data / INDEX_DIRECTORY
    if not path.exists():
        (settings.data / REBUILD_MARK).unlink(missing_ok=True)
        why = "the index was missing" if log.tail > log.start else None
        if why is not None:
            logger.warning("rebuilding the index from the log: %s", why)
        return _new_index(settings), None, why
    index = None
    try:
        _refuse_marked(settings)
        index = Index(path, settings.index_map_size_bytes)
        found = _read_index(index, log)
        if found is not None or log.tail <= log.start:
            return index, found, None
        why, is_lost = "the index was empty", False
    except (NoSpaceError, IndexBusyError, OSError, MemoryError):
        if index is not None:
            index.close()
        raise  # lack of space or permissions says nothing about the index
    except Exception as error:  # noqa: BLE001 - what else keeps it from being read is damage, and a rebuild mends it
        why = str(error) if isinstance(error, IndexDamagedError) else f"{type(error).__name__}: {error}"
        is_lost = isinstance(error, IndexAheadError) and not isinstance(log, JournaledLog)
    if index is not None:
        index.close()
    if is_lost:
        logger.error("records that were on the disk are gone: %s; compare with a backup now", why)
    aside = _move_aside(path)
    (settings.data / REBUILD_MARK).unlink(missing_ok=True)
    logger.warning("rebuilding the index from the log: %s; the old one is kept as %s", why, aside.name)
    return _new_index(settings), None, why


def _new_index(settings: Settings) -> Index:
    """Make an empty index: under another name first, so that no reader finds one without all its tables."""
    path = settings.data / INDEX_DIRECTORY
    remove(new_path(path))
    Index(new_path(path), settings.index_map_size_bytes).close()
    swap_in(path)
    return Index(path, settings.index_map_size_bytes)


def _read_index(index: Index, log: CommitLog) -> _Found | None:
    """Read and verify an index as far as that is cheap; None if it is new. Raises IndexDamagedError."""
    with index.read() as txn:
        state = read_state(txn)
        if state is None:
            return None
        _check_state(state, log)
        weights = txn.prove()
        kept = read_kept(txn)
    waiting = sum(msgspec.msgpack.decode(raw)[1] for raw in kept.topics)
    if weights["wheel"] != waiting:
        raise IndexDamagedError(f"the wheel holds {weights['wheel']} timers, the topics count {waiting}")
    log_state = LogState(lambda: log.bases)
    log_state.restore(state, kept)
    _prove_checkpoint(log, state.until)
    return _Found(state, log_state)


def _prove_checkpoint(log: CommitLog, until: int) -> None:
    """Scan the segment that holds the checkpoint; IndexDamagedError if no record can begin there."""
    base = log.bases[-1] if until >= log.bases[-1] else log.base_of(until)
    if log.splits(base, until):
        raise IndexDamagedError(f"the checkpoint {until} lies inside a record of the log")


def _refuse_marked(settings: Settings) -> None:
    if (settings.data / REBUILD_MARK).exists():
        raise IndexDamagedError("damage was found while it was in use")


def _check_state(state: IndexState, log: CommitLog) -> None:
    if state.format != INDEX_FORMAT:
        raise IndexDamagedError(f"index format {state.format}; this program writes {INDEX_FORMAT}")
    if state.log_id != log.log_id:
        raise IndexDamagedError("the index belongs to another log")
    if state.until > log.tail:
        raise IndexAheadError(f"the index is at {state.until}, past the end of the log at {log.tail}")
    if state.until < log.bases[0]:
        raise IndexDamagedError(f"the index is at {state.until}, the log begins at {log.start}")


def _move_aside(path: Path) -> Path:
    """Move the index aside; only the newest one is kept, because older ones show nothing more."""
    aside = aside_path(path)
    remove(aside)
    path.rename(aside)
    return aside


def _tables(log: CommitLog, log_state: LogState, *, salvage: bool) -> Iterator[tuple[Table, ReadRecords]]:
    """The log from where the state ends, with what reads its records.

    Raises CorruptionError at damage; with `salvage` leaves it out.
    """
    for table in log.tables(log_state.until, lost=[] if salvage else None):
        read = log.rows_reader(table.rows)
        yield table, _without_damaged_settings(table, read) if salvage else read


def _without_damaged_settings(table: Table, read: ReadRecords) -> ReadRecords:
    """Wrap a reader: a damaged CONTROL record is replaced by one that changes nothing."""

    def read_all(places: np.ndarray) -> list[bytes | CorruptionError]:
        found = list(read(places))
        for number, kind in enumerate(table.rows["kind"][places].tolist()):
            if kind == Kind.CONTROL and isinstance(found[number], CorruptionError):
                logger.error("settings are lost: %s", found[number])
                found[number] = encode_puts([], 0)
        return found

    return read_all


def _end(commit: Future[None] | None, log_state: LogState) -> None:
    """Wait for a commit in progress; raises what it raised."""
    if commit is not None:
        commit.result()
        log_state.committed()


# ---------------------------------------------------------------------- the check after a rebuild


Place: TypeAlias = tuple[Gap, int]

BLOCKS_AT_ONCE = 4  # each of about a mebibyte
PLACES_LOGGED_MAX = 20


async def check_log(log: CommitLog, threads: Threads) -> None:
    """Read every sealed segment and log each damaged place; the start has already read the last one."""
    places = 0
    for base in log.bases[:-1]:
        found = _damages(log, base)
        while step := await threads.read(_step, found):
            for gap, end in filter(None, step):
                places += 1
                if places <= PLACES_LOGGED_MAX:
                    _log_damage(log, base, gap, end)
    if places:
        logger.error(
            "the log is damaged in %d place(s); the records there cannot be read. Delete nothing. "
            "`timerwheel fsck` lists the damage; check whether a backup has these records",
            places,
        )
    else:
        logger.info("checked the log after the index rebuild: no sealed segment is damaged")


def _step(found: Iterator[Place | None]) -> list[Place | None]:
    return list(itertools.islice(found, BLOCKS_AT_ONCE))


def _damages(log: CommitLog, base: int) -> Iterator[Place | None]:
    """Yield None for each intact part of the segment, and (gap, end of the segment) for each damaged one."""
    at = end = base + SEGMENT_HEADER_SIZE
    try:
        end = log.end_of(base)
        for found in walk(log.file(base), base, at, end):
            if isinstance(found, Gap):
                at = found.end
                yield found, end
            else:
                at = found.offset
                yield None
    except OffsetError:
        return  # retention has just removed it
    except OSError as error:
        yield Gap(at, end, f"it cannot be read: {error}"), end


def _log_damage(log: CommitLog, base: int, gap: Gap, end: int) -> None:
    goes_on = (
        f"intact records continue at offset {gap.end}"
        if gap.end < end
        else "no intact record follows in this file"
    )
    logger.error("%s: damaged at log offset %d: %s; %s", log.path(base), gap.start, gap.reason, goes_on)
