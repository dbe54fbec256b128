"""Puts a log of its own into a journal that is empty: from then on its directory is a copy.

    the segments -> runs -> Journal.append -> the manifest `start` -> the mark beside the segments

1. The directory does not change before the journal has all of the log: the mark comes last, and is all that
   is written. So a service without the journal can go on with the directory until then.
2. A fill that was cut off is continued by the next one. What the journal has already must be this log, byte
   for byte, and nothing beyond its end: a service that uses the journal would have appended there.
3. Offsets stay as they are, and so do ids, receipts and the index.
4. A copy may be put into another journal, if its own is lost: up to its last whole unit, which may be less
   than its journal had.

The caller holds the lock of the directory, and nothing else writes to the journal.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from timerwheel.store.errors import CorruptionError, JournalMismatchError
from timerwheel.store.files import Files, read_whole
from timerwheel.store.journal import Extent, Journal, Run, RunKind, counts, in_parts
from timerwheel.store.journaled_log import Mark, read_mark, write_mark
from timerwheel.store.log_reader import START_FILE, LogReader
from timerwheel.store.record import FLAG_MORE, FLAGS_AT
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, scan, whole_units

RUN_BYTES = 1 << 20
"""A run is ended once it has so many bytes."""


class Filled(NamedTuple):
    """The log, from its beginning to its end; `appended_bytes` are those that this call stored."""

    start: int
    tail: int
    appended_bytes: int


def fill(
    directory: Path,
    files: Files,
    journal: Journal,
    *,
    keep_from: int = 0,
    from_copy: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Filled:
    """Store a log in a journal, and mark its directory as a copy; `progress` gets (log offset, log end).

    The log begins with the segment at `keep_from`. With `from_copy`, the directory is a copy of a journal
    that is lost. Raises JournalMismatchError if it is a copy and should not be one or the other way round,
    and if the journal has anything else than the beginning of this log; CorruptionError for a damaged or torn
    log; and JournalAwayError.
    """
    mark = read_mark(files, directory)
    if mark is not None and not from_copy:
        raise JournalMismatchError(
            f"{directory} is a copy of the journal {mark.journal}, which has this log; if that is lost, "
            "--from-copy puts the copy into another one, without what it lacks"
        )
    if mark is None and from_copy:
        raise JournalMismatchError(f"{directory} is not a copy of a journal; omit --from-copy")
    log = LogReader(directory, files)
    log.open_readonly(keep_from=keep_from)
    with closing(log):
        log.check_beginning()
        if mark is not None:
            _end_at_whole_unit(log, mark)
        filling = _Filling(log, journal, journal.claim())
        appended = filling.run(progress)
        if (manifest := read_whole(files, directory / START_FILE)) is not None:
            filling.append(in_parts(log.tail, manifest, journal.run_bytes_max))
        _sync(log, files)
        write_mark(files, directory, Mark(filling.name, log.tail, filling.position))
        return Filled(log.bases[0], log.tail, appended)


def _end_at_whole_unit(log: LogReader, mark: Mark) -> None:
    """Leave out how a copy ends: behind its mark it is not synced, so a power cut leaves anything there.

    Raises CorruptionError for a copy that is damaged before the mark, or cannot be read behind it: nothing of
    that is torn.
    """
    base = log.bases[-1]
    first, file = base + SEGMENT_HEADER_SIZE, log.file(base)
    tail, reason = whole_units(scan(file, base, first, log.tail), first)
    reason = file.trouble(tail - base, log.tail - tail) or (reason if tail < mark.offset else None)
    if reason is not None:
        raise CorruptionError(log.path(base), tail, reason)
    log.tail = tail


def _sync(log: LogReader, files: Files) -> None:
    """Make the last segment durable: the mark says that it is."""
    with closing(files.open(log.path(log.bases[-1]))) as last:
        last.sync()


class _Filling:
    """One call: the log, and how much of it the journal has."""

    def __init__(self, log: LogReader, journal: Journal, extent: Extent) -> None:
        self.name = extent.name
        self.position = extent.end
        self._log = log
        self._journal = journal
        self._tail = self._known(extent)

    def _known(self, extent: Extent) -> int | None:
        """Return where the part ends that an earlier call has stored; None for an empty journal."""
        tail: int | None = None
        for _, run in self._journal.read(extent.start, extent.end):
            if not counts(run, tail):
                continue
            is_first_other = tail is None and run.base != self._log.bases[0]
            if is_first_other or run.end > self._log.tail or not self._has(run):
                raise JournalMismatchError(
                    f"the journal {extent.name} has another log than {self._log.directory}, or goes on where "
                    "this one ends: give the name of a journal that does not exist yet"
                )
            tail = run.end
        return tail

    def _has(self, run: Run) -> bool:
        """Whether the log has the bytes of a run; a manifest is none of the log's."""
        return run.kind is RunKind.START or self._log.read_exact(run.base, len(run.data)) == run.data

    def run(self, progress: Callable[[int, int], None] | None) -> int:
        """Store what the journal lacks; returns its bytes."""
        appended = 0
        for run in self._runs():
            self.append([run])
            appended += len(run.data)
            if progress is not None:
                progress(run.end, self._log.tail)
        return appended

    def append(self, runs: list[Run]) -> None:
        """Store runs, and let the journal tidy up."""
        self.position = self._journal.append(runs)[-1] + 1
        self._journal.rest()

    def _runs(self) -> Iterator[Run]:
        for base, end, _ in self._log.spans():
            first = base + SEGMENT_HEADER_SIZE
            if self._tail is None or self._tail <= base:
                yield Run(RunKind.SEGMENT, base, self._log.read_exact(base, SEGMENT_HEADER_SIZE))
            at = max(first, self._tail or 0)
            if at < end:
                yield from self._records(at, end)

    def _records(self, at: int, end: int) -> Iterator[Run]:
        """Runs of the records in [at, end) of one segment, each of whole units."""
        taken: list[bytes] = []
        taken_bytes = unit_bytes = 0
        for _, record in self._log.scan(at, end):
            taken.append(record)
            unit_bytes += len(record)
            if record[FLAGS_AT] & FLAG_MORE:
                continue
            taken_bytes, unit_bytes = taken_bytes + unit_bytes, 0
            if taken_bytes >= min(RUN_BYTES, self._journal.run_bytes_max // 2):
                yield (run := self._records_run(at, taken))
                at, taken, taken_bytes = run.end, [], 0
        if unit_bytes:
            raise CorruptionError(self._log.path(self._log.base_of(at)), end, "it ends within a unit")
        if taken:
            yield self._records_run(at, taken)

    def _records_run(self, at: int, records: list[bytes]) -> Run:
        run = Run(RunKind.RECORDS, at, b"".join(records))
        if len(run.data) > self._journal.run_bytes_max:
            raise JournalMismatchError(
                f"the journal {self.name} takes {self._journal.run_bytes_max:,} bytes at once, and the log "
                f"has a unit of {len(run.data):,} at offset {at}: raise max.message.bytes of its topic"
            )
        return run
