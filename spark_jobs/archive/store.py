"""An archive: Parquet files of records, and a manifest for each chunk (`spark_jobs.archive.manifest`).

    URL/_manifest/                 the manifests: what is in the archive
    URL/records/                   Parquet files by date
    URL/date=.../topic=.../        those of format 1
    URL/_lock/                     who writes which log (`spark_jobs.archive.lock`)
    URL/_writing/                  on a local disk, what is being written

Readers go by manifests. They read ordinary files inside the archive only, and refuse a file that has another
name as well: through that one it can be changed from outside the archive.
"""

import hashlib
import itertools
import os
import stat
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fsspec.implementations.local import LocalFileSystem

from timerwheel.spark_jobs.archive.manifest import (
    DELTA_LOG,
    LOG_ID,
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    MANIFESTS,
    RECORDS,
    ArchivedFile,
    Chunk,
    Manifest,
    decode_manifest,
    manifest_path,
)
from timerwheel.spark_jobs.storage import (
    file_system,
    found_below,
    is_local,
    listed,
    make_parents,
    storage_errors,
    url_of,
)
from timerwheel.store.errors import FormatError, StoreError
from timerwheel.store.files import open_ordinary

COPY_BYTES = 8 << 20
MANIFEST_THREADS = 16
"""Manifests read at a time: in a store, each takes a round trip."""


class ArchiveError(StoreError):
    """An archive differs from its manifests or lacks something; the message names the file."""

    code = "archive"


class Archive:
    """One archive, by its URL. Plain data: executors get copies of it."""

    def __init__(self, url: str) -> None:
        fs, root = file_system(url)
        self.url = str(root) if isinstance(fs, LocalFileSystem) else url.rstrip("/")  # from any directory

    @property
    def is_open_to_others(self) -> bool:
        """Whether the mode of the archive's directory lets every user of this machine read it."""
        return is_local(self.url) and bool(Path(self.url).stat().st_mode & stat.S_IRWXO)

    def log_ids(self) -> list[str]:
        """The ids of the logs in the archive, in hex."""
        return [name for name in self._names(MANIFESTS) if LOG_ID.fullmatch(name)]

    def bases(self, log_id: str) -> list[int]:
        """The bases of the chunks of a log."""
        found = map(MANIFEST_NAME.fullmatch, self._names(f"{MANIFESTS}/{log_id}"))
        return sorted(int(match[1]) for match in found if match)

    def chunk(self, log_id: str, base: int) -> Chunk:
        """The manifest of a chunk without its files; ArchiveError if it is not valid."""
        found = self.manifest(log_id, base)
        return Chunk(format=found.format, log_id=found.log_id, node=found.node, segments=found.segments)

    def chunks(self, log_id: str, since: int = 0) -> list[Chunk]:
        """The chunks of a log, in order, without those that end at a chunk which begins at or before `since`.

        Raises ArchiveError, also if two hold the same records.
        """
        bases = self.bases(log_id)
        wanted = bases[max(bisect_right(bases, since) - 1, 0) :]
        with ThreadPoolExecutor(MANIFEST_THREADS) as threads:
            found = list(threads.map(lambda base: self.chunk(log_id, base), wanted))
        if twice := overlap(found):
            raise ArchiveError(f"{self.url}: {twice}")
        return found

    def manifest(self, log_id: str, base: int) -> Manifest:
        """The manifest of a chunk; ArchiveError. Its size grows with segments, days and queues."""
        path = manifest_path(log_id, base)
        with self._opened(path, 0, MANIFEST_BYTES_MAX) as file:
            raw = file.read()
        try:
            found = decode_manifest(raw)
        except ValueError as error:
            raise ArchiveError(f"{self.shown(path)} is not a valid manifest: {error}") from None
        if (found.log_id, found.base) != (log_id, base):
            raise ArchiveError(f"{self.shown(path)} belongs to another chunk: {found.log_id}, {found.base}")
        return found

    @contextmanager
    def contents(self, file: ArchivedFile) -> Iterator[IO[bytes]]:
        """An open Parquet file whose bytes are those of its manifest; ArchiveError.

        A remote file is copied to a temporary one, so memory does not grow with its size.
        """
        with self._opened(file.path, file.bytes, file.bytes) as found:
            if sha256_of(found) != file.sha256:
                raise ArchiveError(
                    f"{self.shown(file.path)} is damaged: its {file.bytes} bytes do not match the "
                    "checksum in the manifest"
                )
            yield found

    @contextmanager
    def _opened(self, path: str, size_min: int, size_max: int) -> Iterator[IO[bytes]]:
        """Open an ordinary file of the archive; ArchiveError if it or a directory on its path is a link."""
        fs, root = file_system(self.url)
        try:
            if isinstance(fs, LocalFileSystem):
                refuse_links(Path(root), path)
                with open_ordinary(Path(root, path)) as file:
                    found = os.fstat(file.fileno())
                    refuse_other_names(Path(root, path), found)
                    self._check_size(path, found.st_size, size_min, size_max)
                    yield file
            else:
                with tempfile.TemporaryFile() as copy:
                    with storage_errors(self.shown(path)):
                        self._check_size(path, int(fs.size(f"{root}/{path}")), size_min, size_max)
                        _copy(fs, f"{root}/{path}", copy)
                    yield copy
        except FileNotFoundError:
            raise ArchiveError(f"{self.shown(path)} is missing") from None
        except FormatError as error:
            raise ArchiveError(str(error)) from None

    def _check_size(self, path: str, size: int, size_min: int, size_max: int) -> None:
        if not size_min <= size <= size_max:
            wanted = f"{size_min}" if size_min else f"at most {size_max}"
            raise ArchiveError(f"{self.shown(path)} is damaged: it has {size} bytes and should have {wanted}")

    def files(self, *, old: bool = True) -> Iterator[str]:
        """The paths of all files that readers may take for records, links and misplaced ones among them.

        Without `old`, only those below `records/`. A link is not followed; its own path is listed. The log of
        a Delta table is left out.
        """
        yield from (path for path in self._files(old=old) if not path.startswith(DELTA_LOG))

    def _files(self, *, old: bool) -> Iterator[str]:
        fs, root = file_system(self.url)
        if isinstance(fs, LocalFileSystem):
            yield from _local_files(Path(root), "" if old else RECORDS)
            return
        fs.invalidate_cache()
        top = f"{root}/{RECORDS}" if not old else str(root)
        try:
            with storage_errors(self.url):
                found = found_below(fs, top)
        except FileNotFoundError:
            return
        for name in found:
            path = name[len(str(root)) :].lstrip("/")
            if not path.startswith("_"):
                yield path

    def _names(self, path: str) -> list[str]:
        fs, root = file_system(self.url)
        fs.invalidate_cache()
        try:
            with storage_errors(self.url):
                return listed(fs, f"{root}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            return []

    def shown(self, path: str) -> str:
        """A path within the archive for people."""
        return f"{self.url}/{path}"


def overlap(chunks: list[Chunk]) -> str | None:
    """Which two chunks of a log, in order, hold the same offsets; None if no two do."""
    for one, other in itertools.pairwise(chunks):
        if other.base < one.end:
            return (
                f"{manifest_path(one.log_id, one.base)} and {manifest_path(other.log_id, other.base)} both "
                f"have the offsets from {other.base} on: remove one of the two manifests"
            )
    return None


def refuse_links(root: Path, path: str) -> None:
    """Raise ArchiveError if a directory between the archive's own and a file is a link."""
    place = root
    for name in PurePosixPath(path).parts[:-1]:
        place /= name
        if place.is_symlink():
            raise ArchiveError(f"{place} is a link, which an archive must not contain")


def refuse_other_names(path: Path, found: os.stat_result) -> None:
    """Raise ArchiveError if a file has a second name, which may lie outside the archive."""
    if found.st_nlink > 1:
        raise ArchiveError(
            f"{path} has {found.st_nlink} names (hard links), so it can be changed from outside the archive; "
            "use a copy of the archive (cp -r)"
        )


def _local_files(root: Path, below: str) -> Iterator[str]:
    if below and (root / below).is_symlink():
        yield below
        return
    for directory, names, files in os.walk(root / below):
        here = Path(directory)
        if here == root:
            names[:] = [name for name in names if not name.startswith("_")]
        linked = [name for name in names if (here / name).is_symlink()]
        for name in (*files, *linked):
            path = str((here / name).relative_to(root))
            if not path.startswith("_"):
                yield path


def sha256_of(file: IO[bytes]) -> str:
    """The digest of a whole file, which is then at its beginning."""
    digest = hashlib.sha256()
    file.seek(0)
    while data := file.read(COPY_BYTES):
        digest.update(data)
    file.seek(0)
    return digest.hexdigest()


def put_whole(fs: Any, path: str, file: IO[bytes]) -> None:  # noqa: ANN401 - fsspec has no types
    """Upload a file that may have no name: one object, or nothing if it fails."""
    # s3fs would hold ten parts of 50 MB at a time.
    options = {"max_concurrency": 1} if "s3" in _protocols(fs) else {}
    with storage_errors(url_of(fs, path)):
        make_parents(fs, path)
        fs.put_file(f"/proc/self/fd/{file.fileno()}", path, **options)


def _protocols(fs: Any) -> set[str]:  # noqa: ANN401 - fsspec has no types
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)


def _copy(fs: Any, path: str, to: IO[bytes]) -> None:  # noqa: ANN401 - fsspec has no types
    with fs.open(path, "rb", block_size=COPY_BYTES) as file:
        while data := file.read(COPY_BYTES):
            to.write(data)
    to.seek(0)
