"""An archive: Parquet files by date and topic, and a manifest for each complete segment.

    URL/date=2026-12-24/topic=orders/<log id>-<base>.parquet   the records of one segment
    URL/_manifest/<log id>/<base>.json                         written when all files of the segment are there
    URL/_writing/<log id>-<base>/                              leftovers of a killed task

A segment counts once its manifest exists. A name says what is in a file, not when it was written, so
archiving a segment again writes the same files. On a local disk every file is durable before the manifest
that names it.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import uuid
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec
from fsspec.implementations.local import LocalFileSystem

from timerwheel.spark_jobs.storage import file_system, is_local
from timerwheel.state.config_table import Put
from timerwheel.store.errors import FormatError, StoreError
from timerwheel.store.files import DiskFiles, create_file, make_directory, open_ordinary
from timerwheel.store.record import HEADER_SIZE
from timerwheel.store.sealed_json import check_seal, seal

FORMAT = 1
MANIFESTS = "_manifest"
WRITING = "_writing"
NAME_BYTES_MAX = 255
MANIFEST_BYTES_MAX = 1 << 30
FILE_BYTES_MAX = 1 << 40  # as large as a segment can be set
TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999
OFFSET_MAX = (1 << 63) - 1
QUEUE_MAX = 0xFFFF

_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_LOG_ID = re.compile(r"[0-9a-f]{32}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MANIFEST = re.compile(r"([0-9]{20})\.json")


class ArchiveError(StoreError):
    """An archive differs from its manifests or lacks something; the message names the file."""

    code = "archive"


class ArchivedFile(msgspec.Struct, frozen=True):
    """One Parquet file; `path` is within the archive."""

    path: str
    date: str
    topic: str
    rows: int
    bytes: int
    sha256: str


class Lost(msgspec.Struct, frozen=True):
    """A region [offset, end) of the segment without an intact record when it was archived."""

    offset: int
    end: int
    reason: str


class Beginning(msgspec.Struct, frozen=True):
    """State of earlier, removed segments, from the log's manifest `start`: see `LogStart`."""

    queues: list[tuple[str, int, int]]
    settings_until: int
    settings: list[Put]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest without its files.

    `queues` lists topic, queue and the number of messages that became visible; `made_ms` is from the header.
    """

    format: int
    log_id: str
    node: str
    base: int
    end: int
    made_ms: int
    records: int
    last_store_ms: int
    queues: list[tuple[str, int, int]]
    lost: list[Lost]
    beginning: Beginning | None


class Manifest(Head, frozen=True, kw_only=True):
    """The manifest of one segment."""

    files: list[ArchivedFile]


def _check_head(head: Head) -> None:
    """Raise ValueError for a manifest that no run writes."""
    if not 0 <= head.base < head.end <= OFFSET_MAX:
        raise ValueError(f"a segment cannot reach from {head.base} to {head.end}")
    for name in ("made_ms", "last_store_ms"):
        if not 0 <= getattr(head, name) <= TIME_MS_MAX:
            raise ValueError(f"{name} = {getattr(head, name)} is not a time")
    if not 0 <= head.records <= (head.end - head.base) // HEADER_SIZE:
        raise ValueError(f"a segment of {head.end - head.base} bytes cannot have {head.records} records")
    beginning = head.beginning.queues if head.beginning is not None else []
    for topic, queue, count in (*head.queues, *beginning):
        if not topic or not 0 <= queue <= QUEUE_MAX or not 0 <= count <= OFFSET_MAX:
            raise ValueError(f"queue {queue} of {topic!r} cannot have {count} messages")
    at = head.base
    for lost in head.lost:
        if not at <= lost.offset < lost.end <= head.end:
            raise ValueError(f"the region from {lost.offset} to {lost.end} cannot have been lost")
        at = lost.end
    if head.beginning is not None and not 0 <= head.beginning.settings_until <= OFFSET_MAX:
        raise ValueError(f"settings_until = {head.beginning.settings_until} is not an offset")


def _check_files(manifest: Manifest) -> None:
    """Raise ValueError for a file outside the place of this segment's files, maybe outside the archive."""
    seen: set[str] = set()
    for file in manifest.files:
        if not _DATE.fullmatch(file.date) or not file.topic:
            raise ValueError(f"{file.date!r} and {file.topic!r} are not a date and a topic")
        place = file_path(manifest.log_id, manifest.base, file.date, file.topic)
        if file.path != place or place in seen:
            raise ValueError(f"it must list {place!r} exactly once, and lists {file.path!r}")
        seen.add(place)
        if file.rows < 1 or not 0 < file.bytes <= FILE_BYTES_MAX or not _SHA256.fullmatch(file.sha256):
            raise ValueError(f"{file.path} cannot have {file.rows} rows in {file.bytes} bytes")
    if manifest.records != sum(file.rows for file in manifest.files):
        raise ValueError(
            f"its files have {sum(file.rows for file in manifest.files)} rows, not {manifest.records}"
        )


def _refuse_links(root: Path, path: str) -> None:
    """Raise ArchiveError if a directory between the archive's own and a file is a link."""
    place = root
    for name in PurePosixPath(path).parts[:-1]:
        place /= name
        if place.is_symlink():
            raise ArchiveError(f"{place} is a link, which an archive must not contain")


HeadT = TypeVar("HeadT", bound=Head)


class Archive:
    """One archive, by its URL. Plain data: executors get copies of it."""

    def __init__(self, url: str) -> None:
        fs, root = file_system(url)
        self.url = str(root) if isinstance(fs, LocalFileSystem) else url.rstrip("/")  # from any directory

    @property
    def is_open_to_others(self) -> bool:
        """Whether the mode of the archive's directory lets every user of this machine read it."""
        return is_local(self.url) and bool(Path(self.url).stat().st_mode & stat.S_IRWXO)

    # ------------------------------------------------------------------ reading

    def log_ids(self) -> list[str]:
        """The ids of the logs in the archive, in hex."""
        return [name for name in self._names(MANIFESTS) if _LOG_ID.fullmatch(name)]

    def bases(self, log_id: str) -> list[int]:
        """The bases of the complete segments of a log."""
        found = map(_MANIFEST.fullmatch, self._names(f"{MANIFESTS}/{log_id}"))
        return sorted(int(match[1]) for match in found if match)

    def head(self, log_id: str, base: int) -> Head:
        """The manifest of a segment without its files."""
        return self._decode(log_id, base, Head)

    def manifest(self, log_id: str, base: int) -> Manifest:
        """The whole manifest of a segment; its size grows with the segment's days and topics."""
        return self._decode(log_id, base, Manifest)

    def _decode(self, log_id: str, base: int, kind: type[HeadT]) -> HeadT:
        path = manifest_path(log_id, base)
        raw = self._read(path, 0, MANIFEST_BYTES_MAX)
        try:
            check_seal(raw)
            found = msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ArchiveError(f"{self._shown(path)} is not a manifest: {error}") from None
        if found.format != FORMAT:
            raise ArchiveError(f"{self._shown(path)} has format {found.format}; this program reads {FORMAT}")
        if (found.log_id, found.base) != (log_id, base):
            raise ArchiveError(
                f"{self._shown(path)} belongs to another segment: {found.log_id}, {found.base}"
            )
        try:
            _check_head(found)
            if isinstance(found, Manifest):
                _check_files(found)
        except ValueError as error:
            raise ArchiveError(f"{self._shown(path)} is not a valid manifest: {error}") from None
        return found

    def contents(self, file: ArchivedFile) -> bytes:
        """The bytes of a Parquet file, checked against its manifest; ArchiveError."""
        data = self._read(file.path, file.bytes, file.bytes)
        if len(data) != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
            raise ArchiveError(
                f"{self._shown(file.path)} is damaged: its {len(data)} bytes do not match the "
                "checksum in the manifest"
            )
        return data

    def _read(self, path: str, size_min: int, size_max: int) -> bytes:
        """Read a file of the archive; ArchiveError if it or a directory on its path is a link."""
        fs, root = file_system(self.url)
        try:
            if isinstance(fs, LocalFileSystem):
                _refuse_links(Path(root), path)
                with open_ordinary(Path(root, path)) as file:
                    self._check_size(path, os.fstat(file.fileno()).st_size, size_min, size_max)
                    return file.read(size_max)
            self._check_size(path, int(fs.size(f"{root}/{path}")), size_min, size_max)
            return bytes(fs.cat_file(f"{root}/{path}"))
        except FileNotFoundError:
            raise ArchiveError(f"{self._shown(path)} is missing") from None
        except FormatError as error:
            raise ArchiveError(str(error)) from None

    def _check_size(self, path: str, size: int, size_min: int, size_max: int) -> None:
        if not size_min <= size <= size_max:
            wanted = f"{size_min}" if size_min else f"at most {size_max}"
            raise ArchiveError(
                f"{self._shown(path)} is damaged: it has {size} bytes and should have {wanted}"
            )

    def _names(self, path: str) -> list[str]:
        fs, root = file_system(self.url)
        fs.invalidate_cache()
        try:
            found = fs.ls(f"{root}/{path}", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(PurePosixPath(str(name)).name for name in found)

    def _shown(self, path: str) -> str:
        return f"{self.url}/{path}"


class SegmentWriter:
    """Writes the files of one segment, then its manifest; begins by removing the leftovers of an earlier run.

    A segment has one writer at a time.
    """

    def __init__(self, url: str, log_id: str, base: int) -> None:
        self.files: list[ArchivedFile] = []
        self._log_id, self._base = log_id, base
        self._manifest_path = manifest_path(log_id, base)
        self._fs, self._root = file_system(url)
        self._is_local = isinstance(self._fs, LocalFileSystem)
        self._writing = f"{self._root}/{WRITING}/{log_id}-{base:020d}"
        self._directories: set[Path] = set()
        self._clear()

    def put(self, date: str, topic: str, rows: int, data: bytes) -> None:
        """Store the Parquet file of a day and topic."""
        path = file_path(self._log_id, self._base, date, topic)
        self._put(path, data)
        digest = hashlib.sha256(data).hexdigest()
        self.files.append(ArchivedFile(path, date, topic, rows, len(data), digest))

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, which makes the segment count."""
        self._sync()
        self._put(self._manifest_path, seal(msgspec.json.encode(manifest)))
        self._sync()
        self._clear()

    def _put(self, path: str, data: bytes) -> None:
        """Write a file so that readers find either all of it or nothing."""
        temporary, target = f"{self._writing}/{uuid.uuid4().hex}", f"{self._root}/{path}"
        if not self._is_local:
            for name in (temporary, target):
                self._fs.makedirs(name.rpartition("/")[0], exist_ok=True)
            with self._fs.open(temporary, "wb") as file:
                file.write(data)
            self._fs.mv(temporary, target)
            return
        for name in (temporary, target):
            make_directory(Path(name).parent)
        with open(create_file(Path(temporary)), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
        # Up to the parent of the archive's own directory, which may be new, too.
        self._directories.update(list(Path(target).parents)[: path.count("/") + 2])

    def _sync(self) -> None:
        """Make the names durable, too: the files in a manifest must be there after a crash."""
        for directory in self._directories:
            with contextlib.suppress(PermissionError):  # another user's directory existed before
                DiskFiles().sync_dir(directory)
        self._directories.clear()

    def _clear(self) -> None:
        if self._is_local:
            shutil.rmtree(self._writing, ignore_errors=True)
        elif self._fs.exists(self._writing):
            self._fs.rm(self._writing, recursive=True)


def manifest_path(log_id: str, base: int) -> str:
    """The path of a segment's manifest in an archive."""
    return f"{MANIFESTS}/{log_id}/{base:020d}.json"


def file_path(log_id: str, base: int, date: str, topic: str) -> str:
    """The path of the Parquet file of one segment, day and topic in an archive."""
    return f"date={date}/topic={partition_value(topic)}/{log_id}-{base:020d}.parquet"


def partition_value(topic: str) -> str:
    """A topic's name as Hive and Spark write it in the name of a directory.

    A name too long for a directory is cut and gets a hash; the manifest has all of it.
    """
    escaped = _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", topic)
    room = NAME_BYTES_MAX - len("topic=")
    if len(escaped.encode()) <= room:
        return escaped
    tail = "~" + hashlib.sha256(topic.encode()).hexdigest()[:16]
    cut = re.sub(r"%[0-9A-F]?$", "", escaped.encode()[: room - len(tail)].decode(errors="ignore"))
    return cut + tail
