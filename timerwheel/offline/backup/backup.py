"""Backup: a copy of a data directory, taken while its service runs or is stopped.

    TARGET/log/        segments, sidecars and `start` as the service has them, the files of BESIDE (for a
                       shard the tokens of its node), and the manifest `backup.json`
    TARGET/log.new/    the copy in progress; one rename puts it in place of `log`

Invariants:
1. TARGET/log is the last finished backup, whole, or it does not exist.
2. The copy is the log from `start` to the end of a whole unit, all of which is on the service's disk too. It
   includes everything that was acknowledged before the run began.
3. Files taken from the last backup are sealed segments, which never change; they are hard links.

The index is left out: the first start rebuilds it from the log. A run locks and changes nothing of the
service. Retention may remove segments during a run. It writes `start` first, so a run that misses a segment
starts over from there. Format and rules: `doc/upgrade.md`.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from timerwheel import tokens
from timerwheel.errors import SettingsError
from timerwheel.index.swap import aside_path, new_path, swap_in
from timerwheel.model.durations import format_ms
from timerwheel.offline.backup.files import (
    BACKUP_FORMAT,
    BESIDE,
    PART,
    BackupFile,
    BackupSegment,
    Manifest,
    Progress,
    are_nested,
    copy,
    copy_small,
    crc_of,
    damage_in,
    is_intact_copy,
    is_same,
    link,
    nobody,
    node_of,
    private,
    read_manifest,
    sealed_manifest,
)
from timerwheel.runtime.archived import MARKER_FILE
from timerwheel.runtime.data_directory import MANIFEST_FILE, is_backup
from timerwheel.state.log_manifest import LOG_DIRECTORY, LOST_AND_FOUND, log_directory, read_start
from timerwheel.store.errors import CorruptionError, FormatError, NotAFileError, OffsetError
from timerwheel.store.files import DiskFiles, make_directory, narrow, open_binary, read_whole, remove
from timerwheel.store.lock import DirectoryLock
from timerwheel.store.log_reader import START_FILE, LogReader
from timerwheel.store.record import UNKNOWN_VERSION
from timerwheel.store.segment import (
    SEGMENT_HEADER_SIZE,
    end_of_writing,
    resume,
    scan,
    segment_base,
    segment_name,
    sidecar_name,
    whole_units,
)

CATCH_UPS_MAX = 8
TRIES_MAX = 5


class BackupReport(msgspec.Struct, frozen=True):
    """The result of a run; `linked_segments` counts those that the last backup already had.

    `restarts` counts how often retention removed a segment before it was copied. `damage` has a line for each
    segment that was found damaged in the log; the backup has the same bytes, or keeps an intact copy.
    """

    log_id: str
    start: int
    until: int
    made_ms: int
    segments: int
    size_bytes: int
    copied_segments: int
    copied_bytes: int
    linked_segments: int
    restarts: int
    damage: list[str]


def back_up(
    data: Path, target: Path, now_ms: int, progress: Progress | None = None, *, salvage: bool = False
) -> BackupReport:
    """Bring the backup in `target` up to date with the log of `data`; it is durable when this returns.

    Raises SettingsError if one directory contains the other, FormatError if `data` has no log or `target` is
    not a backup of it, LockedError if `target` is in use, CorruptionError for a damaged log. With `salvage`,
    a damaged sealed segment is reported, and copied unchanged unless the last backup has it intact. After an
    error `target` still has its previous backup, and the next run reuses what this one copied. `progress`
    gets (bytes done, bytes in all), and may raise.
    """
    if are_nested(data, target):
        raise SettingsError(f"{target}: give a directory outside the data directory {data}")
    if is_backup(data):
        raise FormatError(f"{data} is a backup itself; give the data directory of a service")
    log, _ = _open(data)
    log.close()
    log_id = log.log_id.hex()
    _look_at_target(target, log_id)
    with private(), DirectoryLock(target, purpose="timerwheel backup", now_text=format_ms(now_ms)):
        narrow([target], group=False)
        _mend(target)
        last = _look_at_target(target, log_id)
        return _Run(data, target, last, progress or nobody, salvage=salvage).run(log_id, now_ms)


def _open(data: Path) -> tuple[LogReader, bytes | None]:
    """Open the log, and return it with the bytes of the `start` file that belongs to it."""
    directory = log_directory(data)
    while True:
        raw = read_whole(DiskFiles(), directory / START_FILE)
        start = read_start(DiskFiles(), directory)
        begin = 0 if start is None else start.offset
        log = LogReader(directory, DiskFiles())
        try:
            log.open_readonly(keep_from=begin)
            whole = log.bases[0] == begin
        except OffsetError:
            whole = False
        except BaseException:
            log.close()
            raise
        # Retention writes `start` before it removes the segments before it.
        unchanged = raw == read_whole(DiskFiles(), directory / START_FILE)
        if whole and unchanged:
            return log, raw
        log.close()
        if unchanged:
            raise CorruptionError(directory, begin, "the log must begin there: a segment is missing")


def _look_at_target(target: Path, log_id: str) -> Manifest | None:
    """Return the last finished backup; FormatError if the target is something else, or of another log."""
    try:
        names = {path.name for path in target.iterdir()}
    except FileNotFoundError:
        return None
    log = target / LOG_DIRECTORY
    # An archive run on a backup leaves its marker.
    own = {"lock", MARKER_FILE, log.name, new_path(log).name, aside_path(log).name}
    others = names - own - {LOST_AND_FOUND}
    if others:
        raise FormatError(f"{target} is not empty: it has {min(others)}; give a directory for backups only")
    manifest = read_manifest(target)
    if manifest is None and log.exists():
        raise FormatError(f"{log} is the log of a service, not of a backup; give another directory")
    if manifest is not None and manifest.log_id != log_id:
        raise FormatError(f"{target} holds a backup of the log {manifest.log_id}; give another directory")
    return manifest


def _mend(target: Path) -> None:
    """Finish a swap that a crash cut short between two renames, where names cannot be exchanged at once."""
    log = target / LOG_DIRECTORY
    for whole in (new_path(log), aside_path(log)):
        if not log.exists() and (whole / MANIFEST_FILE).exists():
            whole.rename(log)


class _Run:
    """One run, which holds the lock of its target."""

    def __init__(
        self, data: Path, target: Path, last: Manifest | None, progress: Progress, *, salvage: bool
    ) -> None:
        self._data = data
        self._target = target
        self._old = target / LOG_DIRECTORY
        self._new = new_path(self._old)
        self._known = {} if last is None else {segment.base: segment for segment in last.segments}
        self._report = progress
        self._salvage = salvage
        self._segments: dict[int, BackupSegment] = {}
        self._damage: dict[int, str] = {}  # of segments in the log, by their base
        self._copied = self._copied_bytes = self._linked = self._restarts = 0

    def run(self, log_id: str, now_ms: int) -> BackupReport:
        self._begin()
        # Before the log: the archive marker must not reach further than the copied log.
        home = node_of(self._data, log_id) or self._data
        sources = (home / tokens.FILE, self._data / MARKER_FILE)
        files = [copy_small(source, self._new / source.name) for source in sources]
        start, raw = self._copy_log()
        self._remove_others(start)
        if raw is not None:
            DiskFiles().write_whole(self._new / START_FILE, raw)
            files.append(BackupFile(START_FILE, len(raw), crc_of(self._new / START_FILE)))
        segments = [self._segments[base] for base in sorted(self._segments)]
        until = segments[-1].base + segments[-1].size
        kept = [file for file in files if file is not None]
        manifest = Manifest(BACKUP_FORMAT, log_id, start, until, now_ms, segments, kept)
        self._report(until - start, until - start)
        DiskFiles().write_whole(self._new / MANIFEST_FILE, sealed_manifest(manifest))
        swap_in(self._old)
        remove(aside_path(self._old))
        DiskFiles().sync_dir(self._target.absolute().parent)
        return BackupReport(
            log_id,
            start,
            until,
            now_ms,
            len(segments),
            manifest.size_bytes,
            self._copied,
            self._copied_bytes,
            self._linked,
            self._restarts,
            [self._damage[one.base] for one in segments if one.base in self._damage],
        )

    def _begin(self) -> None:
        """Prepare the directory for the copy; whole files of an interrupted run are kept."""
        remove(aside_path(self._old))
        make_directory(self._new)
        for name in (MANIFEST_FILE, START_FILE):
            (self._new / name).unlink(missing_ok=True)
        for path in self._new.glob("*" + PART):
            path.unlink()

    # ------------------------------------------------------------------ the log

    def _copy_log(self) -> tuple[int, bytes | None]:
        """Copy the log; returns the base at which it begins and the bytes of `start`."""
        catch_ups = tries = 0
        while True:
            log, raw = _open(self._data)
            try:
                self._copy_sealed(log)
                # The copy may have taken long: copy the segments that were sealed during it first.
                if catch_ups < CATCH_UPS_MAX and _last_base(log.directory) > log.bases[-1]:
                    catch_ups += 1
                elif self._copy_last(log, give_up=tries == TRIES_MAX):
                    return log.bases[0], raw
                else:
                    tries += 1
            except FileNotFoundError as error:
                if raw == read_whole(DiskFiles(), log.directory / START_FILE):
                    raise CorruptionError(str(error.filename), log.bases[0], "a segment is missing") from None
                self._restarts += 1  # retention removed it first
            finally:
                log.close()

    def _copy_sealed(self, log: LogReader) -> None:
        begin, total = log.bases[0], log.tail - log.bases[0]
        for base, following in itertools.pairwise(log.bases):
            self._report(base - begin, total)
            size = following - base
            found = log.path(base).stat().st_size
            if found != size:
                reason = f"the segment has {found} bytes, its successor begins after {size}"
                raise CorruptionError(log.path(base), base, reason)
            if base not in self._segments or self._segments[base].size != size:
                report = functools.partial(self._report_part, base - begin, total)
                self._segments[base] = self._segment(log.path(base), base, size, report)
            self._sidecar(log.sidecar_path(base))

    def _segment(self, path: Path, base: int, size: int, report: Callable[[int], None]) -> BackupSegment:
        """Put a sealed segment into the copy: linked, kept from an interrupted run, or copied."""
        to, kept, known = self._new / path.name, self._old / path.name, self._known.get(base)
        if known is not None and known.damage is None and known.size == size and is_same(path, kept, size):
            to.unlink(missing_ok=True)
            if link(kept, to):
                self._linked += 1
                return known
        if is_same(path, to, size):
            crc = crc_of(to)
        else:
            to.unlink(missing_ok=True)
            crc = copy(path, to, size, report)
            self._count(size)
        damage = damage_in(to, base, size)
        if damage is None:
            return BackupSegment(base, size, crc)
        if not self._salvage:
            to.unlink()
            raise CorruptionError(path, damage.offset, damage.reason)
        reason = f"damaged at log offset {damage.offset}: {damage.reason}"
        if known is not None and is_intact_copy(kept, known, to):
            to.unlink()
            if not link(kept, to):
                copy(kept, to, size)
            self._damage[base] = f"{path.name}: {reason}; the backup keeps its intact copy"
            return known
        self._damage[base] = f"{path.name}: {reason}"
        return BackupSegment(base, size, crc, reason)

    def _report_part(self, begin: int, total: int, done: int) -> None:
        self._report(begin + done, total)

    def _count(self, size: int) -> None:
        self._copied += 1
        self._copied_bytes += size

    def _sidecar(self, path: Path) -> None:
        """Link, keep or copy a sidecar, if there is one: a restore rebuilds sidecars."""
        to, kept = self._new / path.name, self._old / path.name
        with contextlib.suppress(FileNotFoundError, NotAFileError, CorruptionError):  # or it was replaced
            with open_binary(path) as file:
                size = os.fstat(file.fileno()).st_size
            if not is_same(path, to, size):
                to.unlink(missing_ok=True)
                if not (is_same(path, kept, size) and link(kept, to)):
                    copy(path, to, size)

    def _copy_last(self, log: LogReader, *, give_up: bool) -> bool:
        """Copy the growing segment up to its last whole unit; returns False if the caller must try again.

        A service without space undoes the write that it refuses. So the copied bytes must be whole, and must
        still be there afterwards. If they are not after some tries, that is damage.
        """
        base = log.bases[-1]
        path, to = log.path(base), self._new / log.path(base).name
        with contextlib.closing(DiskFiles().open_readonly(path)) as file:
            written = end_of_writing(file, base)
            file.sync()  # a power cut must not take from the service what the backup has
            first = base + SEGMENT_HEADER_SIZE
            end, reason = whole_units(scan(file, base, first, written), first)
            if reason is not None and reason.startswith(UNKNOWN_VERSION):
                raise FormatError(f"{path}: at log offset {end}: {reason}; use a newer version")
            whole = reason is None or resume(file, base, end, written) is None
        if whole:
            begin, total = log.bases[0], end - log.bases[0]
            to.unlink(missing_ok=True)
            report = functools.partial(self._report_part, base - begin, total)
            crc = copy(path, to, end - base, report)
            if damage_in(to, base, end - base) is None and is_same(path, to, end - base):
                self._segments[base] = BackupSegment(base, end - base, crc)
                self._count(end - base)
                return True
        if give_up:
            raise CorruptionError(path, end, reason or "the log changed while it was being read")
        return False

    def _remove_others(self, start: int) -> None:
        """Remove files of an earlier run that do not belong to this copy."""
        self._segments = {base: found for base, found in self._segments.items() if base >= start}
        wanted = {segment_name(base) for base in self._segments} | set(BESIDE)
        sealed = sorted(self._segments)[:-1]
        wanted |= {sidecar_name(base) for base in sealed}
        for path in self._new.iterdir():
            if path.name not in wanted:
                path.unlink()


def _last_base(directory: Path) -> int:
    return max(segment_base(path.name) or 0 for path in directory.iterdir())
