"""Recovery: from whatever a crash left to a view and an index that agree with the log.

    open log -> open index (or begin a new one) -> cut the torn tail -> replay from the checkpoint -> commit

The log is the truth. An index that is missing, damaged, of another log, of another format, ahead of the log
or behind its beginning is moved aside and made anew from the log; one that is merely behind is brought up.
"""

import contextlib
import errno
import logging
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from store.errors import NO_SPACE, FormatError, IndexDamagedError, NoSpaceError
from store.files import Files
from store.index import INDEX_FORMAT, Index
from store.log import CommitLog, Truncation
from store.segment import SIDECAR_SUFFIX, segment_base
from store.table import ROW_DTYPE
from timerwheel.backup.files import is_backup
from timerwheel.geometry import first_horizons
from timerwheel.index_swap import STAGING_NAME, aside_path, new_path, remove_index
from timerwheel.indexer import IndexWriter, new_state, read_kept, read_state
from timerwheel.log_start import LOG_DIRECTORY, UNFINISHED_LOG, LogStart, begin_view, read_start
from timerwheel.settings import Settings
from timerwheel.stage import IndexState
from timerwheel.view import View

logger = logging.getLogger("timerwheel")

INDEX_DIRECTORY = "index"
REBUILD_MARK = "index-damaged"
MAP_IS_FULL = "MDB_MAP_FULL"  # as LMDB says it
RECORD_BYTES_MIN = 80
INDEX_BYTES_A_RECORD = 128  # with the room in which LMDB copies pages
ROOM_BYTES = 4 << 20


class Recovered(NamedTuple):
    """What recovery made, and what it had to do."""

    log: CommitLog
    view: View
    writer: IndexWriter
    truncation: Truncation | None
    rebuilt: str | None
    replayed_records: int


def recover(
    settings: Settings, files: Files, now_ms: int, progress: Callable[[int, int], None] | None = None
) -> Recovered:
    """Bring a data directory up; the caller holds its lock. `progress` gets (log offset, log end)."""
    if is_backup(settings.data):
        raise FormatError(
            f"{settings.data} is a backup: `timerwheel backup restore` makes a data directory of it"
        )
    unfinished = settings.data / UNFINISHED_LOG
    if unfinished.exists() and not (settings.data / LOG_DIRECTORY).exists():
        raise FormatError(f"{unfinished}: a restore was not finished: run it again, or remove this directory")
    for leftover in (new_path(settings.data / INDEX_DIRECTORY), settings.data / STAGING_NAME):
        shutil.rmtree(leftover, ignore_errors=True)  # of a rebuild by Spark that was killed
    log = CommitLog(settings.data / LOG_DIRECTORY, files, settings.segment_size_bytes)
    with _room_wanted(settings, files, 0):
        files.make_dir(log.directory)
        start = read_start(files, log.directory)
        log.open(new_log_id=uuid.uuid4().bytes, now_ms=now_ms, keep_from=0 if start is None else start.offset)
        index, state, rebuilt = _open_index(settings, log)
    with contextlib.ExitStack() as undone:
        undone.callback(index.close)  # LMDB lets no process open it twice, and the caller may try again
        view, state = _begin(log, start, index, state, now_ms)
        writer = IndexWriter(index, state)
        with _room_wanted(settings, files, state.until):
            truncation = log.recover_tail(state.until)
            if truncation is not None:
                _tell_cut(truncation)
            replayed = _replay(log, view, writer, settings.index_records_max, progress)
        undone.pop_all()
    view.origin_floor = view.settings_from = 0
    return Recovered(log, view, writer, truncation, rebuilt, replayed)


def _tell_cut(cut: Truncation) -> None:
    """A torn tail is usual after a crash; whole records behind the tear are so after a power cut at most."""
    told = (cut.size, cut.offset, cut.reason)
    if cut.later is None:
        logger.warning("cut %d bytes from the tail of the log at offset %d: %s", *told)
        return
    logger.error(
        "cut %d bytes from the tail of the log at offset %d: %s; whole records from offset %d on were cut, "
        "too. After a power cut nobody was told that they are stored; if there was none, look at the disk, "
        "and at a backup",
        *told,
        cut.later,
    )


@contextlib.contextmanager
def _room_wanted(settings: Settings, files: Files, until: int) -> Iterator[None]:
    """Have what fails for want of room say where it is wanted, and how much, with an index up to `until`."""
    try:
        yield
    except (NoSpaceError, OSError) as error:
        failed = error if isinstance(error, OSError) else error.__cause__
        number = getattr(failed, "errno", errno.ENOSPC)
        if number not in NO_SPACE or number in (errno.EMFILE, errno.ENFILE):
            raise
        if MAP_IS_FULL in str(error):
            raise NoSpaceError(f"{error}; start with a larger index_map_size") from error
        free, wanted = files.free_bytes(settings.data) >> 20, -(-_room_bytes(settings, until) >> 20)
        aside = aside_path(settings.data / INDEX_DIRECTORY)
        spare = f"; {aside} may be deleted" if aside.exists() else ""
        raise NoSpaceError(
            f"there is no room to start: {error}. Nothing is lost. Make up to {wanted} MiB free on the disk "
            f"of {settings.data}, which has {free} MiB, and start again{spare}"
        ) from error


def _room_bytes(settings: Settings, until: int) -> int:
    """What an index up to `until` takes at most when it is brought up to the log, and some more to work with.

    Of sealed segments the sidecars tell by their size how many records that are.
    """
    records = 0
    for path in (settings.data / LOG_DIRECTORY).glob("*"):
        base, size = segment_base(path.name), path.stat().st_size
        if base is not None and base + size > until:
            side = path.with_suffix(SIDECAR_SUFFIX)
            unknown = (base + size - max(base, until)) // RECORD_BYTES_MIN
            records += min(unknown, side.stat().st_size // ROW_DTYPE.itemsize) if side.exists() else unknown
    return ROOM_BYTES + records * INDEX_BYTES_A_RECORD


def _begin(
    log: CommitLog, start: LogStart | None, index: Index, state: IndexState | None, now_ms: int
) -> tuple[View, IndexState]:
    """The view at the checkpoint of the index; at the beginning of the log if the index is new."""
    view = View(lambda: log.bases)
    if state is None:
        state = new_state(log.log_id, first_horizons(now_ms), log.start)
        view.stage.start = view.stage.until = log.start
        if start is not None:
            begin_view(view, start, log.start)
            state = msgspec.structs.replace(
                state, origin_floor=view.origin_floor, settings_from=view.settings_from
            )
        return view, state
    _restore(view, index, state)
    # A rebuild that was cut short goes on as it began.
    view.origin_floor, view.settings_from = state.origin_floor, state.settings_from
    for name, queue, first in () if start is None else start.queues:
        found = view.queue(view.topic(name), queue)
        found.min_offset = max(found.min_offset, first)
        view.forget_dead(view.topic(name).id, first)
    return view, state


def _open_index(settings: Settings, log: CommitLog) -> tuple[Index, IndexState | None, str | None]:
    """The index and its state, or a new index, no state and why the old one was not used."""
    path = settings.data / INDEX_DIRECTORY
    if not path.exists():
        (settings.data / REBUILD_MARK).unlink(missing_ok=True)
        why = "the index was missing" if log.tail > log.start else None
        if why is not None:
            logger.warning("rebuilding the index from the log: %s", why)
        return Index(path, settings.index_map_size_bytes), None, why
    index = None
    try:
        _refuse_marked(settings)
        index = Index(path, settings.index_map_size_bytes)
        with index.read() as txn:
            state = read_state(txn)
        if state is not None:
            _check_state(state, log)
            return index, state, None
        why = "the index was empty"
        if log.tail <= log.start:
            return index, None, None
    except (IndexDamagedError, msgspec.MsgspecError) as error:
        why = str(error)
    if index is not None:
        index.close()
    aside = _move_aside(path)
    (settings.data / REBUILD_MARK).unlink(missing_ok=True)
    logger.warning("rebuilding the index from the log: %s; the old one is kept as %s", why, aside.name)
    return Index(path, settings.index_map_size_bytes), None, why


def _refuse_marked(settings: Settings) -> None:
    if (settings.data / REBUILD_MARK).exists():
        raise IndexDamagedError("damage was found while it was in use")


def _check_state(state: IndexState, log: CommitLog) -> None:
    if state.format != INDEX_FORMAT:
        raise IndexDamagedError(f"index format {state.format}; this program writes {INDEX_FORMAT}")
    if state.log_id != log.log_id:
        raise IndexDamagedError("the index belongs to another log")
    if state.until > log.tail:
        raise IndexDamagedError(f"the index is at {state.until}, past the end of the log at {log.tail}")
    if state.until < log.bases[0]:
        raise IndexDamagedError(f"the index is at {state.until}, the log begins at {log.start}")


def _move_aside(path: Path) -> Path:
    """Keep one set-aside index, the newest: the older ones tell nothing more."""
    aside = aside_path(path)
    remove_index(aside)
    path.rename(aside)
    return aside


def _restore(view: View, index: Index, state: IndexState) -> None:
    with index.read() as txn:
        kept = read_kept(txn)
    view.restore(state, kept)


def _replay(
    log: CommitLog,
    view: View,
    writer: IndexWriter,
    records_max: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Apply the log from the checkpoint on, committing the index as it fills.

    While one stage is written the next one gathers, as in live work: memory holds these two and no more.
    """
    replayed = 0
    under_way: Future[None] | None = None
    with ThreadPoolExecutor(1, "commit") as thread:
        for table in log.tables(view.until):
            last = table.rows[-1]
            replayed += len(table.rows)
            view.apply(table, int(last["offset"]) + int(last["size"]), log.rows_reader(table.rows))
            if view.stage.count >= records_max:
                _end(under_way, view)
                under_way = thread.submit(writer.commit, *view.seal())
            if progress is not None:
                progress(view.until, log.tail)
        _end(under_way, view)
    view.stage.until = log.tail
    writer.state = msgspec.structs.replace(writer.state, origin_floor=0, settings_from=0)
    writer.commit(*view.seal())
    view.committed()
    return replayed


def _end(commit: Future[None] | None, view: View) -> None:
    """Wait for a commit under way; raises what it raised."""
    if commit is not None:
        commit.result()
        view.committed()
