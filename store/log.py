"""The commit log: segments in a directory, appended by one writer (reading: `timerwheel.store.log_reader`).

Invariants:
1. What `append(sync=True)` reported stored is durable; so is everything before it.
2. A segment but the last is complete and was synced before its successor was created.
3. A unit (records that count together) is in one segment, completely or, after recovery, not at all.
4. An append that fails for lack of space leaves the log as it was before the failed unit.
5. After a failed sync nothing more is written: the contents of the disk are unknown (`LogFailedError`).
6. Synced bytes are not written again, nor are their sectors in a direct write.

A write that is synced goes into zeros that were written ahead of it. So a sync need not make the size and
the extents of the file durable, only the bytes. A sealed segment, and the last one after a planned stop, ends
with its records; until then, recovery finds their end in the last segment by scanning it.

Small writes bypass the page cache where the file system allows it, in whole sectors: the last record of a
write is padded to the end of its sector. Otherwise each would write a page of 4 KiB, again and again.

`append`, `sync` and `drop_before` belong to the writer thread.
Format: `doc/log-format.md`.
"""

import contextlib
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from time import perf_counter  # measures syncs; not used for due times
from typing import NamedTuple

from timerwheel.store import quarantine
from timerwheel.store.errors import (
    NO_SPACE,
    UNREADABLE,
    CorruptionError,
    FormatError,
    LogDamagedError,
    LogFailedError,
    NoSpaceError,
)
from timerwheel.store.files import Files, LogFile
from timerwheel.store.log_reader import START_FILE, LogReader
from timerwheel.store.record import FLAG_MORE, FLAGS_AT, RECORD_SIZE_MAX, UNKNOWN_VERSION, padded
from timerwheel.store.segment import (
    SEGMENT_HEADER_SIZE,
    Block,
    Gap,
    SegmentFile,
    blocks,
    encode_header,
    end_of_bytes,
    is_torn,
    is_zeros,
    read_header,
    walk,
)


class Appended(NamedTuple):
    """The offset of each stored unit's first record; fewer than were given if `error` is set."""

    offsets: list[int]
    error: NoSpaceError | None


class Truncation(NamedTuple):
    """The part that recovery cut from the tail of the log, and its quarantine file.

    `later` is where intact records continued in it, if any.
    """

    offset: int
    size: int
    reason: str
    later: int | None
    kept: Path


class OnDamage(Enum):
    """What a start does with a log that has damage no crash can cause."""

    REFUSE = "refuse"
    SALVAGE = "salvage"  # keep every intact record, and leave the damaged bytes in place
    CUT = "cut"  # end the log before the damage, and move the rest into quarantine


PREPARED_BYTES = 1 << 20
"""How far ahead of the records zeros are written."""
AHEAD_BYTES_MAX = 8 * 1024
"""A larger write gets no zeros ahead: they would be more bytes than a sync of size and extents."""
PREPARED_SPACE_MIN = 4 * PREPARED_BYTES
"""With less free space, nothing is written ahead."""


class Survey(NamedTuple):
    """The result of scanning a segment: each gap, with the end of the last complete unit before it.

    `unit_end` is where the last complete unit of the segment ends. `blocks` are ranges [from, to) of intact
    records, each read at once: so memory does not grow with the number of records.
    """

    base: int
    gaps: list[tuple[Gap, int]]
    unit_end: int
    blocks: list[tuple[int, int]]


class CommitLog(LogReader):
    """The log of one data directory, for its owner."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        segment_size_bytes: int,
        *,
        direct_io: bool = False,
        on_no_direct: Callable[[str], None] | None = None,
    ) -> None:
        """Call `open` next.

        `on_no_direct` is called when direct writes are turned off, with the reason, which goes on after the
        name of the directory.
        """
        super().__init__(directory, files)
        self.segment_size_bytes = segment_size_bytes
        self.synced = 0
        self.unit_bytes_max = 1 << 62
        """The largest unit that `append` takes."""
        self._on_sync: Callable[[float], None] | None = None
        self.direct_io = direct_io
        """Whether small writes bypass the page cache; it is turned off where that does not work."""
        self._on_no_direct = on_no_direct
        self._failed: str | None = None
        self._prepared = 0  # log offset up to which zeros were written ahead in the last segment
        self._prepare_from = 0  # log offset before which no more are, since there was no space
        self._survey_of_last: Survey | None = None

    def time_syncs(self, observe: Callable[[float], None]) -> None:
        """Have this called with the seconds that each sync takes, on the thread that syncs."""
        self._on_sync = observe

    def _open(self, path: Path) -> LogFile:
        return self.files.open(path, direct=self.direct_io and path == self.path(self.bases[-1]))

    # ------------------------------------------------------------------ opening

    def open(self, *, new_log_id: bytes, now_ms: int, keep_from: int = 0) -> None:
        """Find the segments and check their headers; without any, create the first one at `keep_from`.

        Retention has already dropped the segments before `keep_from`; any that a crash left are removed now.
        """
        self.files.make_dir(self.directory)
        if self.direct_io and (fault := self.files.direct_fault(self.directory)) is not None:
            self._no_direct_writes(fault)
        self.bases = self._found_bases()
        self.drop_before(keep_from)
        self._drop_unborn_segment()
        self.keep_from = keep_from
        self.log_id = self._log_id_of(self.bases) if self.bases else new_log_id
        if not self.bases:
            self._begin_segment(keep_from, now_ms)
        self.check_beginning()
        self._check_gaps()
        last = self.bases[-1]
        self.tail = last + self.file(last).size()
        self._survey_of_last = self._without_zeros_ahead(self.survey(last))
        self.synced = self._prepared = 0

    def _drop_unborn_segment(self) -> None:
        """Remove a last segment whose header never reached the disk: a crash while it was created."""
        if not self.bases:
            return
        last = self.bases[-1]
        try:
            read_header(self.file(last), self.path(last), last)
        except CorruptionError:
            if self.file(last).size() > SEGMENT_HEADER_SIZE:
                raise
            self.file(last).close()
            del self.open_segments[last]
            self.files.unlink(self.path(last))
            self.files.sync_dir(self.directory)
            self.bases = self.bases[:-1]

    def _check_gaps(self) -> None:
        for base, following in zip(self.bases, self.bases[1:], strict=False):
            size = self.file(base).size()
            if base + size != following:
                reason = f"the segment has {size} bytes, its successor begins after {following - base}"
                raise CorruptionError(self.path(base), base, reason)

    def survey(self, base: int) -> Survey:
        """Scan a segment from its header, at about 0.3 µs per record."""
        if base == self.bases[-1] and self._survey_of_last is not None:
            return self._survey_of_last
        first, file = base + SEGMENT_HEADER_SIZE, self.file(base)
        gaps: list[tuple[Gap, int]] = []
        intact: list[tuple[int, int]] = []
        unit_end = first
        for found in walk(file, base, first, self.end_of(base)):
            if isinstance(found, Gap):
                gaps.append((found, unit_end))
                continue
            begin, data, edges = found
            intact.append((begin, begin + edges[-1]))
            last = len(edges) - 1
            while last and data[edges[last - 1] + FLAGS_AT] & FLAG_MORE:
                last -= 1
            if last:
                unit_end = begin + edges[last]
        return Survey(base, gaps, unit_end, intact)

    def splits(self, base: int, offset: int) -> bool:
        """Whether a log offset is inside a record or the header of a segment, where no record can begin."""
        if base < offset < base + SEGMENT_HEADER_SIZE:
            return True
        for begin, end in self.survey(base).blocks:
            if begin < offset < end:
                found = blocks(self.file(base), base, begin, end)
                return not any(isinstance(one, Block) and offset - one.offset in one.edges for one in found)
        return False

    def _without_zeros_ahead(self, survey: Survey) -> Survey:
        """End the log where the zeros begin that a crash left after the records of the last segment."""
        gap = survey.gaps[-1][0] if survey.gaps else None
        if gap is None or gap.end < self.tail or not is_zeros(self.file(survey.base), survey.base, gap):
            return survey
        self.tail = gap.start
        return survey._replace(gaps=survey.gaps[:-1])

    def recover_tail(
        self,
        verified: int,
        *,
        now_ms: int,
        on_damage: OnDamage = OnDamage.REFUSE,
    ) -> Truncation | None:
        """Cut a tail torn by a crash from the last segment; bytes before `verified` are known to be intact.

        The cut part is copied into quarantine first. Raises LogDamagedError, and changes nothing, if intact
        records follow damage that a crash cannot cause: with `flush = sync` a crash tears at most the last
        append, and its sectors that did not reach the disk are zeros. A damaged record before `verified`
        stays in place; reading it reports the damage.
        """
        base, end = self.bases[-1], self.tail
        start = max(verified, base + SEGMENT_HEADER_SIZE)
        file = self.file(base)
        if start > end:
            raise CorruptionError(self.path(base), end, f"the log ends before offset {start}")
        survey = self.survey(base)
        self._survey_of_last = None  # from here on the segment changes
        gaps = [(gap, unit_end) for gap, unit_end in survey.gaps if gap.start >= start]
        for gap, _ in gaps:
            if gap.reason.startswith(UNKNOWN_VERSION):
                raise FormatError(
                    f"{self.path(base)}: at log offset {gap.start}: {gap.reason}; use a newer version"
                )
        inner = [gap for gap, _ in gaps if gap.end < end]
        if on_damage is OnDamage.SALVAGE and inner:
            gaps = [(gap, unit_end) for gap, unit_end in gaps if gap.end == end]
        elif on_damage is OnDamage.REFUSE:
            for gap in inner:
                if not is_torn(file, base, gap):
                    raise LogDamagedError(self.path(base), gap.start, gap.reason, gap.end)
        unit_end = max(gaps[0][1] if gaps else survey.unit_end, start)
        cut = self._cut_tail(unit_end, survey, gaps[0][0] if gaps else None, now_ms)
        if self.tail - base < file.size():
            file.truncate(self.tail - base)
        file.sync()
        self.synced = self.tail
        return cut

    def _cut_tail(self, unit_end: int, survey: Survey, gap: Gap | None, now_ms: int) -> Truncation | None:
        """End the log at `unit_end`, because of a gap or an incomplete unit.

        What follows goes into quarantine, but for the zeros at its end.
        """
        base, end = self.bases[-1], self.tail
        used = end
        if survey.gaps and survey.gaps[-1][0].end == end:
            torn = survey.gaps[-1][0]
            used = end_of_bytes(self.file(base), base, torn._replace(start=max(torn.start, unit_end)))
        if used <= unit_end:
            self.tail = min(unit_end, end)
            return None
        reason = "the last unit of records is not complete" if gap is None else gap.reason
        later = gap.end if gap is not None and gap.end < end else None
        kept = self._quarantine(unit_end, used, now_ms)
        self.tail = unit_end
        return Truncation(unit_end, used - unit_end, reason, later, kept)

    def cut_before(self, damaged: int, verified: int, *, now_ms: int) -> list[Path]:
        """End the log before the unit of a damaged record, but not before `verified`.

        Returns the quarantine files. Later segments are removed last to first, each after copying it, so that
        a crash leaves a log without gaps, which the next start cuts again.
        """
        base = self.base_of(damaged)
        survey = self.survey(base)
        offset = next((unit_end for gap, unit_end in survey.gaps if gap.end > damaged), survey.unit_end)
        offset = max(offset, verified)
        kept: list[Path] = []
        for base_after in reversed([later for later in self.bases if later > base]):
            first, end = base_after + SEGMENT_HEADER_SIZE, self.end_of(base_after)
            if first < end:
                kept.append(self._quarantine(first, end, now_ms))
            self._forget(base_after)
            self.bases = self.bases[:-1]
            self.tail = base_after
        end = self.tail
        if offset < end:
            kept.append(self._quarantine(offset, end, now_ms))
            file = self.file(base)
            file.truncate(offset - base)
            file.sync()
            self.tail = offset
        self._unlink_derived(base)
        self.files.sync_dir(self.directory)
        return kept[::-1]

    def _forget(self, base: int) -> None:
        """Remove the file of a segment, and what was derived from it; durable on return."""
        self.file(base).close()
        self.open_segments.pop(base, None)
        self.files.unlink(self.path(base))
        self._unlink_derived(base)
        self.files.sync_dir(self.directory)

    def _unlink_derived(self, base: int) -> None:
        """Remove what was derived from a segment."""
        self.files.unlink(self.sidecar_path(base))
        self.files.unlink(self.register_path(base))

    def _quarantine(self, start: int, end: int, now_ms: int) -> Path:
        """Keep the bytes [start, end) of one segment in a quarantine file."""
        base = self.base_of(start)
        try:
            data = self.file(base).exact(start - base, end - start)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            reason = f"the disk cannot read it: {error.strerror}; so it has no copy, and the log is not cut"
            raise CorruptionError(self.path(base), start, reason) from error
        try:
            return quarantine.keep(self.files, self.directory, self.log_id, start, data, now_ms)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise NoSpaceError(
                    f"{self.directory}: no space to quarantine {end - start} bytes: {error.strerror}"
                ) from error
            raise

    # ------------------------------------------------------------------ writing

    def append(self, units: Sequence[list[bytes]], *, sync: bool, now_ms: int) -> Appended:
        """Store units in order, rolling segments as needed; with `sync`, return when all are durable.

        With `sync`, the last record of the last unit is replaced by the padded record that was stored.
        """
        if self._failed is not None:
            raise LogFailedError(self._failed)
        offsets: list[int] = []
        pending: list[bytes] = []
        pending_bytes = 0
        try:
            for unit in units:
                size = sum(map(len, unit))
                used = self.tail + pending_bytes - self.bases[-1]
                if used > SEGMENT_HEADER_SIZE and used + size > self.segment_size_bytes:
                    self._write(b"".join(pending), ahead=False)
                    pending.clear()
                    pending_bytes = 0
                    self._roll(now_ms)
                offsets.append(self.tail + pending_bytes)
                pending.extend(unit)
                pending_bytes += size
            if sync and pending and (padding := self._padding(pending_bytes, len(pending[-1]))):
                units[-1][-1] = pending[-1] = padded(pending[-1], padding)
            self._write(b"".join(pending), ahead=sync)
        except NoSpaceError as error:
            if sync:
                self.sync()
            return Appended([o for o in offsets if o < self.tail], error)
        if sync:
            self.sync()
        return Appended(offsets, None)

    def _padding(self, pending_bytes: int, last_bytes: int) -> int:
        """How many zeros end the last sector of a write, within the size of a segment and of a record."""
        base = self.bases[-1]
        sector = self.file(base).sector_bytes
        if not sector:
            return 0
        end = self.tail + pending_bytes - base
        padding = -end % sector
        fits = end + padding <= self.segment_size_bytes and last_bytes + padding <= RECORD_SIZE_MAX
        return padding if fits else 0

    def _write(self, data: bytes, *, ahead: bool) -> None:
        if not data:
            return
        base = self.bases[-1]
        file = self.file(base)
        try:
            if ahead and len(data) <= AHEAD_BYTES_MAX:
                self._prepare(file, self.tail + len(data))
            file.write(self.tail - base, data)
        except OSError as error:
            self._undo(file, error)
        self.tail += len(data)
        if file.refuses_direct and self.direct_io:
            self._no_direct_writes("takes no direct writes any more")

    def _no_direct_writes(self, fault: str) -> None:
        self.direct_io = False
        if self._on_no_direct is not None:
            self._on_no_direct(fault)

    def _prepare(self, file: LogFile, end: int) -> None:
        """Write zeros ahead if records up to the log offset `end` need more, and there is space for them.

        A quota shows in the write alone: after one without space, the next try is as far on as zeros reach.
        """
        if end <= max(self._prepared, self._prepare_from):
            return
        base = self.bases[-1]
        start = max(self._prepared, self.tail)
        until = min(end + PREPARED_BYTES, base + self.segment_size_bytes & ~7)
        if until <= end or self.files.free_bytes(self.directory) < PREPARED_SPACE_MIN:
            return
        try:
            file.write(start - base, bytes(until - start))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            file.truncate(self.tail - base)
            self._prepared, self._prepare_from = 0, self.tail + PREPARED_BYTES
        else:
            self._prepared = until

    def _undo(self, file: LogFile, error: OSError) -> None:
        """Cut the rest of a failed write, durably, so that a refused unit can never reappear."""
        try:
            file.truncate(self.tail - self.bases[-1])
            self._prepared = 0
            self._datasync(file)
        except OSError as second:
            self._failed = f"a failed write could not be rolled back: {second}"
            raise LogFailedError(self._failed) from error
        if error.errno in NO_SPACE:
            raise NoSpaceError(f"{self.path(self.bases[-1])}: {error.strerror}") from error
        self._failed = f"writing the log failed: {error}"
        raise LogFailedError(self._failed) from error

    def _datasync(self, file: LogFile) -> None:
        began_s = perf_counter()
        try:
            file.sync()
        except OSError as error:
            self._failed = f"syncing the log failed: {error}; the disk contents are unknown"
            raise LogFailedError(self._failed) from error
        if self._on_sync is not None:
            self._on_sync(perf_counter() - began_s)

    def sync(self) -> None:
        """Make everything appended so far durable."""
        if self._failed is not None:
            raise LogFailedError(self._failed)
        if self.synced < self.tail:
            tail = self.tail
            self._datasync(self.file(self.bases[-1]))
            self.synced = tail

    def _roll(self, now_ms: int) -> None:
        """Seal the last segment and start the next one.

        The old one is synced first: a crash in between must not leave a gap before its successor.
        """
        self._end_segment()
        sealed = self.file(self.bases[-1])
        self._begin_segment(self.tail, now_ms)
        sealed.end_writing()

    def _end_segment(self) -> None:
        """Make the last segment end with its records, durably."""
        if self._prepared > self.tail:
            try:
                self.file(self.bases[-1]).truncate(self.tail - self.bases[-1])
            except OSError as error:
                self._failed = f"a segment could not be cut to its size: {error}"
                raise LogFailedError(self._failed) from error
            self._datasync(self.file(self.bases[-1]))
            self.synced = self.tail
        self._prepared = 0
        self.sync()

    def finish(self) -> None:
        """End the last segment with its records, durably: for a planned stop."""
        if self._failed is not None:
            raise LogFailedError(self._failed)
        self._end_segment()

    def _begin_segment(self, base: int, now_ms: int) -> None:
        self._create(base, encode_header(base, self.log_id, now_ms))

    def _create(self, base: int, header: bytes) -> None:
        path = self.path(base)
        try:
            file = self.files.open(path, create=True, direct=self.direct_io)
            file.write(0, header)
            file.sync()
            self.files.sync_dir(self.directory)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.files.unlink(path)
                self.files.sync_dir(self.directory)
                if error.errno in NO_SPACE:
                    raise NoSpaceError(f"{path}: {error.strerror}") from error
            self._failed = f"{path}: cannot create a new segment: {error}"
            raise LogFailedError(self._failed) from error
        # In this order for readers: none may open the segment twice, or miss it at the tail.
        bases = (*self.bases, base)
        with self.files_lock:
            self.bases = bases
            self._keep(base, SegmentFile(file))
        self.tail = self.synced = base + SEGMENT_HEADER_SIZE

    def write_start(self, raw: bytes) -> None:
        """Write the manifest that says where the log begins; durable on return."""
        self.files.write_whole(self.directory / START_FILE, raw)

    def drop_before(self, offset: int) -> list[int]:
        """Remove the sealed segments that end at or before `offset`; returns their bases.

        The caller has durably recorded that the log begins at `offset`: a crash may undo any of the removals,
        not just the last.
        """
        bases = self.bases
        count = sum(following <= offset for following in bases[1:])
        dropped = list(bases[:count])
        if not dropped:
            return []
        # Hidden from readers first, then unlinked: a reader that opens one in between does not keep it.
        self.bases = bases[count:]
        for base in dropped:
            self.files.unlink(self.path(base))
            self._unlink_derived(base)
        self.files.sync_dir(self.directory)
        with self.files_lock:
            for base in dropped:
                self.open_segments.pop(base, None)  # closed when the last reader drops it
        return dropped
