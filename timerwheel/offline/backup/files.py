"""The parts of a backup: its manifest, and functions that copy, link and compare its files.

`timerwheel.offline.backup.backup` creates backups, `timerwheel.offline.backup.restore` restores them. Only
the owner can read a backup, because a log holds messages and secrets. Format: `doc/upgrade.md`.
"""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import msgspec

from timerwheel import tokens
from timerwheel.model.shards import ALONE, shard_of_log
from timerwheel.runtime.archived import MARKER_FILE
from timerwheel.runtime.data_directory import MANIFEST_FILE
from timerwheel.state.log_manifest import LOG_DIRECTORY, SHARD_DIRECTORY, read_start
from timerwheel.store.errors import CorruptionError, FormatError, LockedError, StoreError
from timerwheel.store.files import (
    DiskFiles,
    create_file,
    naming,
    open_binary,
    open_ordinary,
    read_ordinary,
)
from timerwheel.store.log_reader import START_FILE
from timerwheel.store.sealed_json import check_seal, seal
from timerwheel.store.segment import (
    SEGMENT_HEADER_SIZE,
    SIDECAR_SUFFIX,
    Block,
    Damage,
    blocks,
    read_header,
    scan,
    segment_base,
    segment_name,
    walk,
    whole_units,
)

BACKUP_FORMAT = 1
BESIDE = (tokens.FILE, MARKER_FILE)  # files of a data directory outside its log
PART = ".part"
MANIFEST_BYTES_MAX = 256 << 20
BESIDE_BYTES_MAX = 256 << 20
"""Largest tokens file or marker. `start` grows with settings and groups, and has no limit."""
TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999
_CRC_MAX = 0xFFFFFFFF
_LOG_ID = re.compile(r"[0-9a-f]{32}")
_CHUNK_BYTES = 1 << 20
COMPARED_BYTES = 4096
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)

Progress = Callable[[int, int], None]


def are_nested(one: Path, other: Path) -> bool:
    """Whether two directories are the same, or one contains the other."""
    # Not `Path.resolve`: a link to itself must not raise here.
    first, second = Path(os.path.realpath(one)), Path(os.path.realpath(other))
    return first == second or first in second.parents or second in first.parents


def node_of(data: Path, log_id: str) -> Path | None:
    """Return the directory of the node in whose directory a shard's is; None for a service without shards.

    The tokens of a shard are those of its node.
    """
    shard = shard_of_log(bytes.fromhex(log_id))
    # Not `Path.resolve`: the directory of a shard may be a link to another disk.
    own = Path(os.path.abspath(data))  # noqa: PTH100
    is_shard = shard != ALONE and own.name == SHARD_DIRECTORY.format(shard.number)
    return own.parent if is_shard else None


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a backup; `crc` is the CRC-32 of its `size` bytes."""

    name: str
    size: int
    crc: int


class BackupSegment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One segment of a backup; `damage` says what was wrong with it when it was copied."""

    base: int
    size: int
    crc: int
    damage: str | None = None

    @property
    def file(self) -> BackupFile:
        """The segment's file."""
        return BackupFile(segment_name(self.base), self.size, self.crc)


class Manifest(msgspec.Struct, frozen=True):
    """Describes a finished backup: the log `log_id` (hex) from offset `start` to `until`, made at `made_ms`.

    `files` lists the files that are neither segments nor sidecars.
    """

    format: int
    log_id: str
    start: int
    until: int
    made_ms: int
    segments: list[BackupSegment]
    files: list[BackupFile]

    @property
    def has_tokens(self) -> bool:
        """Whether the service had tokens."""
        return any(file.name == tokens.FILE for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)


def _check(manifest: Manifest) -> None:
    """Raise ValueError for a manifest that no run writes: it may name a file elsewhere, or leave one out."""
    if not _LOG_ID.fullmatch(manifest.log_id):
        raise ValueError(f"{manifest.log_id!r} is not the id of a log")
    if not 0 <= manifest.made_ms <= TIME_MS_MAX:
        raise ValueError(f"made_ms = {manifest.made_ms} is not a time")
    _check_files(manifest)
    _check_segments(manifest)


def _check_files(manifest: Manifest) -> None:
    names = [file.name for file in manifest.files]
    for file in manifest.files:
        if file.name not in (START_FILE, *BESIDE):
            raise ValueError(f"{file.name!r} is not the name of a file of a backup")
        if names.count(file.name) > 1:
            raise ValueError(f"it lists {file.name} twice")
        too_large = file.name != START_FILE and file.size > BESIDE_BYTES_MAX
        if file.size < 0 or too_large or not 0 <= file.crc <= _CRC_MAX:
            raise ValueError(f"{file.name} cannot have {file.size} bytes with the CRC {file.crc}")
    if manifest.start and START_FILE not in names:
        raise ValueError(
            f"the log begins at {manifest.start}, but {START_FILE}, which records that, is not listed"
        )


def _check_segments(manifest: Manifest) -> None:
    at = manifest.start
    if at < 0 or not manifest.segments:
        raise ValueError(f"it lists no segment, or one that begins at {at}")
    for segment in manifest.segments:
        if segment.base != at:
            raise ValueError(f"the segment that begins at {at} is missing; the next begins at {segment.base}")
        if segment.size < SEGMENT_HEADER_SIZE or not 0 <= segment.crc <= _CRC_MAX:
            raise ValueError(f"segment {at} cannot have {segment.size} bytes with the CRC {segment.crc}")
        at += segment.size
    if manifest.until != at:
        raise ValueError(f"the log ends at {manifest.until}, its last segment at {at}")


def sealed_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest; FormatError if `read_manifest` would refuse them.

    A backup that nobody can read must not take the place of one that can be.
    """
    raw = seal(msgspec.json.encode(manifest))
    try:
        _check(manifest)
    except ValueError as error:
        raise FormatError(f"this backup could not be restored: {error}; the previous one stays") from None
    if len(raw) > MANIFEST_BYTES_MAX:
        raise FormatError(
            f"this backup could not be restored: its manifest has {len(raw)} bytes, at most "
            f"{MANIFEST_BYTES_MAX} are allowed; the previous one stays"
        )
    return raw


class BackupDamagedError(StoreError):
    """A file of a backup differs from what was backed up."""

    code = "backup_damaged"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is not what was backed up: {reason}. Delete that file and run `timerwheel "
            "backup create` again to copy it; if the data directory is lost, use another "
            "backup"
        )
        self.path = path
        self.reason = reason


class _Version(msgspec.Struct):
    format: int


def read_manifest(backup: Path) -> Manifest | None:
    """Return the manifest of a finished backup, None if there is none; FormatError if it cannot be read."""
    path = backup / LOG_DIRECTORY / MANIFEST_FILE
    if path.parent.is_symlink():
        raise FormatError(f"{path.parent} is a link; give the directory that it leads to")
    try:
        raw = read_ordinary(path, MANIFEST_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        version = msgspec.json.decode(raw, type=_Version).format
        if version == BACKUP_FORMAT:
            check_seal(raw)
            manifest = msgspec.json.decode(raw, type=Manifest)
            _check(manifest)
            return manifest
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise FormatError(
            f"{path} is not a manifest of a backup: {error}; back up into a new directory"
        ) from None
    raise FormatError(f"{path}: backup format {version}; this program reads {BACKUP_FORMAT}")


def finished_manifest(backup: Path) -> Manifest:
    """Return the manifest of a finished backup; FormatError if it cannot be read or no run has finished."""
    manifest = read_manifest(backup)
    if manifest is None:
        raise FormatError(
            f"{backup} does not contain a finished backup; let `timerwheel backup create` finish first"
        )
    return manifest


@contextlib.contextmanager
def reading(backup: Path) -> Iterator[Manifest]:
    """Yield the manifest of a finished backup, for a block that reads its files; FormatError as above.

    Raises LockedError for what the block takes for damage if a run has put another backup in its place.
    """
    manifest = finished_manifest(backup)
    try:
        yield manifest
    except (BackupDamagedError, FileNotFoundError):
        with contextlib.suppress(FormatError):
            if read_manifest(backup) not in (manifest, None):
                raise LockedError(
                    f"{backup} was replaced by a run of `timerwheel backup create` while it was read; try "
                    "again when none is running"
                ) from None
        raise


# ---------------------------------------------------------------------- checking


def verify_files(backup: Path, progress: Progress | None = None) -> Manifest:
    """Compare every file of a backup with its manifest; BackupDamagedError names the first that differs.

    Raises LockedError if a run replaces the backup at the same time.
    """
    with reading(backup) as manifest:
        check_listed(backup, manifest)
        for file in manifest.files:
            path = backup / LOG_DIRECTORY / file.name
            check_file(path, file, crc_of)
            check_start(path, path, manifest)
        for path, segment in listed(backup, manifest, progress or nobody):
            check_file(path, segment.file, crc_of)
            check_segment(path, path, segment, manifest)
    return manifest


def check_listed(backup: Path, manifest: Manifest) -> None:
    """Check that the manifest lists every file that a restore needs.

    Raises BackupDamagedError for an unlisted file, FormatError for a sidecar that is not an ordinary file.
    """
    named = {file.name for file in manifest.files} | {segment.file.name for segment in manifest.segments}
    for path in (backup / LOG_DIRECTORY).iterdir():
        if path.name in (START_FILE, *BESIDE) or segment_base(path.name) is not None:
            if path.name not in named:
                raise BackupDamagedError(path, "the manifest does not list it")
        elif path.suffix == SIDECAR_SUFFIX:
            open_ordinary(path).close()


def listed(backup: Path, manifest: Manifest, progress: Progress) -> Iterator[tuple[Path, BackupSegment]]:
    """Yield the segment files of a backup one by one, and report progress."""
    total, done = manifest.size_bytes, 0
    for segment in manifest.segments:
        progress(done, total)
        yield backup / LOG_DIRECTORY / segment.file.name, segment
        done += segment.size
    progress(done, total)


def check_file(path: Path, file: BackupFile, crc: Callable[[Path], int]) -> None:
    """Check that a file has the size and CRC-32 of the manifest; `crc` computes the CRC-32.

    Raises BackupDamagedError if not, FormatError if it is not an ordinary file.
    """
    try:
        with open_ordinary(path) as opened:
            size = os.fstat(opened.fileno()).st_size
    except FileNotFoundError:
        raise BackupDamagedError(path, "it is missing") from None
    if size != file.size:
        raise BackupDamagedError(path, f"it has {size} bytes and should have {file.size}")
    if crc(path) != file.crc:
        raise BackupDamagedError(path, "its size is right, but some of its bytes have changed")


def check_segment(path: Path, shown: Path, segment: BackupSegment, manifest: Manifest) -> None:
    """Raise BackupDamagedError about `shown` unless the file is the segment that the manifest lists."""
    base, end = segment.base, segment.base + segment.size
    try:
        with contextlib.closing(DiskFiles().open_readonly(path)) as file:
            log_id = read_header(file, shown, base).hex()
            first = base + SEGMENT_HEADER_SIZE
            whole, reason = whole_units(scan(file, base, first, end), first)
    except CorruptionError as error:
        raise BackupDamagedError(shown, error.reason) from None
    if log_id != manifest.log_id:
        raise BackupDamagedError(shown, f"it belongs to log {log_id}, the manifest to log {manifest.log_id}")
    if (reason is None) != (segment.damage is None):
        stated = segment.damage or "no damage"
        raise BackupDamagedError(
            shown, f"the manifest states {stated}; the file is intact up to {whole}, then {reason}"
        )


def check_start(path: Path, shown: Path, manifest: Manifest) -> None:
    """Raise BackupDamagedError about `shown` if it is `start` and disagrees on where the log begins."""
    if shown.name != START_FILE:
        return
    start = read_start(DiskFiles(), path.parent)
    if start is None or start.offset != manifest.start:
        stated = "no beginning" if start is None else f"that the log begins at {start.offset}"
        raise BackupDamagedError(shown, f"it says {stated}, the manifest says {manifest.start}")


def damage_in(path: Path, base: int, size: int) -> Damage | None:
    """Return the first damage in a segment file, None if all records are whole. Costs 0.3 µs a record."""
    with contextlib.closing(DiskFiles().open_readonly(path)) as file:
        for found in blocks(file, base, base + SEGMENT_HEADER_SIZE, base + size):
            if isinstance(found, Damage):
                return found
    return None


def nobody(_done: int, _total: int) -> None:
    """Ignore the progress."""


# ---------------------------------------------------------------------- files


@contextlib.contextmanager
def private() -> Iterator[None]:
    """Make everything that the block creates private to its owner: files 0600, directories 0700."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def copy(source: Path, to: Path, size: int, report: Callable[[int], None] = lambda _: None) -> int:
    """Copy the first `size` bytes; `to` appears once they are durable. Returns their CRC-32."""
    part = to.with_name(to.name + PART)
    crc = done = 0
    part.unlink(missing_ok=True)
    with (
        open_binary(source) as file,
        naming(part),  # its end too: that writes what is left
        open(create_file(part), "wb") as target,  # noqa: PTH123 - a descriptor
    ):
        while done < size:
            with naming(source):
                data = file.read(min(_CHUNK_BYTES, size - done))
            if not data:
                raise CorruptionError(source, done, f"the file ends {size - done} bytes too early")
            target.write(data)
            crc = crc32(data, crc)
            done += len(data)
            report(done)
        target.flush()
        os.fsync(target.fileno())
    part.replace(to)
    return crc


def copy_small(source: Path, to: Path) -> BackupFile | None:
    """Copy a small file through memory, as of one moment; without a source, returns None."""
    try:
        data = read_ordinary(source, BESIDE_BYTES_MAX)
    except FileNotFoundError:
        to.unlink(missing_ok=True)
        return None
    DiskFiles().write_whole(to, data)
    return BackupFile(to.name, len(data), crc32(data))


def crc_of(path: Path) -> int:
    """Return the CRC-32 of a whole file; FormatError if it is not an ordinary file."""
    crc = 0
    with naming(path), open_ordinary(path) as file:
        while data := file.read(_CHUNK_BYTES):
            crc = crc32(data, crc)
    return crc


def is_same(source: Path, kept: Path, size: int) -> bool:
    """Whether `kept` equals the first `size` bytes of `source`, judged by size, header and end.

    Segments of two logs that were once the same log may share name and size, but not the last record, because
    that contains a time. Raises FileNotFoundError if there is no `source`.
    """
    with naming(source), open_binary(source) as one:
        try:
            with naming(kept), open_binary(kept) as other:
                if os.fstat(other.fileno()).st_size != size:
                    return False
                places = {0, max(size - COMPARED_BYTES, 0)}
                return all(
                    _piece(one.fileno(), at, size) == _piece(other.fileno(), at, size) for at in places
                )
        except (FileNotFoundError, NotADirectoryError):
            return False


def is_intact_copy(kept: Path, known: BackupSegment, damaged: Path) -> bool:
    """Whether `kept` is the segment `known` without damage, and has every intact record of `damaged`."""
    if known.damage is not None or known.size != damaged.stat().st_size:
        return False
    try:
        if crc_of(kept) != known.crc:
            return False
    except FileNotFoundError:
        return False
    files, base = DiskFiles(), known.base
    with (
        contextlib.closing(files.open_readonly(damaged)) as file,
        contextlib.closing(files.open_readonly(kept)) as other,
    ):
        return all(
            other.read(found.offset - base, len(found.data)) == found.data
            for found in walk(file, base, base + SEGMENT_HEADER_SIZE, base + known.size)
            if isinstance(found, Block)
        )


def _piece(fd: int, at: int, end: int) -> bytes:
    return os.pread(fd, min(COMPARED_BYTES, end - at), at)


def link(kept: Path, to: Path) -> bool:
    """Hard-link `to` to the file `kept`; returns False if the file system has no links."""
    try:
        os.link(kept, to)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True
