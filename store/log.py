"""The commit log: segments in a directory, appended by one writer (reading: `store.log_reader`).

Invariants:
1. What `append(sync=True)` reported stored is durable; so is everything before it.
2. A segment but the last is complete and was synced before its successor was created.
3. A unit (records that count together) lies in one segment, whole or, after recovery, not at all.
4. An append that fails for want of space leaves the log as it was before the unit that failed.
5. After a failed sync nothing more is written: what the disk holds is unknown (`LogFailedError`).

`append`, `sync` and `drop_before` belong to the writer thread.
Format: `doc/log-format.md`.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter  # how long a sync takes; nothing is due by this
from typing import NamedTuple

from store.errors import NO_SPACE, CorruptionError, FormatError, LogFailedError, NoSpaceError
from store.files import AppendFile, Files
from store.log_reader import LogReader
from store.record import UNKNOWN_VERSION
from store.segment import SEGMENT_HEADER_SIZE, encode_header, read_header, resume, scan, whole_units


class Appended(NamedTuple):
    """The offset of each stored unit's first record; fewer than were given if `error` is set."""

    offsets: list[int]
    error: NoSpaceError | None


class Truncation(NamedTuple):
    """What recovery cut from the tail of the log; `later` is where whole records went on in it, if any."""

    offset: int
    size: int
    reason: str
    later: int | None


class CommitLog(LogReader):
    """The log of one data directory, for its owner."""

    def __init__(self, directory: Path, files: Files, segment_size_bytes: int) -> None:
        super().__init__(directory, files)
        self.segment_size_bytes = segment_size_bytes
        self.synced = 0
        self.on_sync: Callable[[float], None] | None = None  # told the seconds that each sync took
        self._failed: str | None = None

    def _open(self, path: Path) -> AppendFile:
        return self.files.open(path)

    # ------------------------------------------------------------------ opening

    def open(self, *, new_log_id: bytes, now_ms: int, keep_from: int = 0) -> None:
        """Find the segments and check their headers; make the first one, at `keep_from`, if there is none.

        Segments before `keep_from` were given up by retention: what a crash left of them, in whatever
        order the disk forgot them, is removed now.
        """
        self.files.make_dir(self.directory)
        self.bases = self._found_bases()
        self.drop_before(keep_from)
        self._drop_unborn_segment()
        self.log_id = new_log_id
        for base in self.bases:
            self.log_id = read_header(self.file(base), self.path(base), base)
        if not self.bases:
            self._create(keep_from, now_ms)
        self._check_gaps(keep_from)
        self.tail = self.bases[-1] + self.file(self.bases[-1]).size()
        self.synced = 0

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
            del self._segments[last]
            self.files.unlink(self.path(last))
            self.files.sync_dir(self.directory)
            self.bases = self.bases[:-1]

    def _check_gaps(self, keep_from: int) -> None:
        if self.bases[0] != keep_from:
            reason = f"the log must begin at {keep_from}: a segment is missing"
            raise CorruptionError(self.directory, keep_from, reason)
        for base, following in zip(self.bases, self.bases[1:], strict=False):
            size = self.file(base).size()
            if base + size != following:
                reason = f"the segment has {size} bytes, its successor begins after {following - base}"
                raise CorruptionError(self.path(base), base, reason)

    def recover_tail(self, verified: int) -> Truncation | None:
        """Cut the last segment at its last whole unit; bytes before `verified` are known to be whole.

        A damaged record before `verified` is not a torn tail but corruption, and is found when read.
        """
        base = self.bases[-1]
        start = max(verified, base + SEGMENT_HEADER_SIZE)
        file = self.file(base)
        end = self.tail
        if start > end:
            raise CorruptionError(self.path(base), end, f"the log ends before offset {start}")
        unit_end, reason = whole_units(scan(file, base, start, end), start)
        cut = None
        if reason is not None:
            if reason.startswith(UNKNOWN_VERSION):
                raise FormatError(
                    f"{self.path(base)}: at log offset {unit_end}: {reason}; use a newer program"
                )
            later = resume(file, base, unit_end, end)
            file.truncate(unit_end - base)
            self.tail = unit_end
            cut = Truncation(unit_end, end - unit_end, reason, later)
        file.sync()
        self.synced = self.tail
        return cut

    # ------------------------------------------------------------------ writing

    def append(self, units: Sequence[Sequence[bytes]], *, sync: bool, now_ms: int) -> Appended:
        """Store units in order, rolling segments as needed; with `sync`, return when all are durable."""
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
                    self._write(b"".join(pending))
                    pending.clear()
                    pending_bytes = 0
                    self._roll(now_ms)
                offsets.append(self.tail + pending_bytes)
                pending.extend(unit)
                pending_bytes += size
            self._write(b"".join(pending))
        except NoSpaceError as error:
            if sync:
                self.sync()
            return Appended([o for o in offsets if o < self.tail], error)
        if sync:
            self.sync()
        return Appended(offsets, None)

    def _write(self, data: bytes) -> None:
        file = self.file(self.bases[-1])
        try:
            file.append(data)
        except OSError as error:
            self._undo(file, error)
        self.tail += len(data)

    def _undo(self, file: AppendFile, error: OSError) -> None:
        """Cut what a failed write left, durably, so that a refused unit can never come back."""
        try:
            file.truncate(self.tail - self.bases[-1])
            self._datasync(file)
        except OSError as second:
            self._failed = f"a failed write could not be undone: {second}"
            raise LogFailedError(self._failed) from error
        if error.errno in NO_SPACE:
            raise NoSpaceError(f"{self.path(self.bases[-1])}: {error.strerror}") from error
        self._failed = f"writing the log failed: {error}"
        raise LogFailedError(self._failed) from error

    def _datasync(self, file: AppendFile) -> None:
        began_s = perf_counter()
        try:
            file.sync()
        except OSError as error:
            self._failed = f"syncing the log failed: {error}; what the disk holds is unknown"
            raise LogFailedError(self._failed) from error
        if self.on_sync is not None:
            self.on_sync(perf_counter() - began_s)

    def sync(self) -> None:
        """Make everything appended so far durable."""
        if self._failed is not None:
            raise LogFailedError(self._failed)
        if self.synced < self.tail:
            tail = self.tail
            self._datasync(self.file(self.bases[-1]))
            self.synced = tail

    def _roll(self, now_ms: int) -> None:
        """Seal the last segment and begin the next.

        The old one is synced first: a crash in between must not leave a successor behind a gap.
        """
        self.sync()
        self._create(self.tail, now_ms)

    def _create(self, base: int, now_ms: int) -> None:
        path = self.path(base)
        try:
            file = self.files.open(path, create=True)
            file.append(encode_header(base, self.log_id, now_ms))
            file.sync()
            self.files.sync_dir(self.directory)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.files.unlink(path)
                self.files.sync_dir(self.directory)
                if error.errno in NO_SPACE:
                    raise NoSpaceError(f"{path}: {error.strerror}") from error
            self._failed = f"{path}: a new segment could not be made: {error}"
            raise LogFailedError(self._failed) from error
        # In this order for the readers: nobody may open the segment a second time, nor miss it at the tail.
        bases = (*self.bases, base)
        with self._files_lock:
            self.bases = bases
            self._keep(base, file)
        self.tail = self.synced = base + SEGMENT_HEADER_SIZE

    def drop_before(self, offset: int) -> list[int]:
        """Remove the sealed segments that end at or before `offset`; returns their bases.

        The caller has put down durably that the log begins at `offset`: a crash may undo any of the
        removals, not just the last.
        """
        bases = self.bases
        count = sum(following <= offset for following in bases[1:])
        dropped = list(bases[:count])
        if not dropped:
            return []
        # First hidden from readers, then unlinked: a reader that opens one meanwhile does not keep it.
        self.bases = bases[count:]
        for base in dropped:
            self.files.unlink(self.path(base))
            self.files.unlink(self.sidecar_path(base))
        self.files.sync_dir(self.directory)
        with self._files_lock:
            for base in dropped:
                self._segments.pop(base, None)  # closed when the last reader lets go of it
        return dropped
