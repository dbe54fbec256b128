"""Writes the Parquet files of one chunk, then its manifest. Runs in executors; an attempt owns its writer.

1. Memory: at most ROW_GROUPS_MAX of records and one that is being encoded, however large the chunk. The
   files grow on disk: below `_writing/` of a local archive, else in a temporary file without a name, which is
   gone with the process.
2. A file appears under its final name whole, in one rename or one upload. Its name has the hash of its bytes,
   so two attempts never overwrite each other's file with different bytes.
3. The manifest comes last, if the run still has its lock, and only if the chunk has none yet. So the first of
   several attempts counts, and the others return what it wrote.
4. On a local disk every file is durable before the manifest that names it.
"""

import contextlib
import os
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from timerwheel.spark_jobs.archive.lock import Run
from timerwheel.spark_jobs.archive.manifest import (
    FORMAT,
    ArchivedFile,
    ArchivedSegment,
    Manifest,
    decode_manifest,
    encode_manifest,
    file_path,
    manifest_path,
)
from timerwheel.spark_jobs.archive.store import (
    Archive,
    ArchiveError,
    put_whole,
    refuse_links,
    sha256_of,
)
from timerwheel.spark_jobs.storage import file_system, named, put_new, storage_errors, url_of
from timerwheel.store.files import DIRECTORY_MODE, DiskFiles, create_file, make_directory
from timerwheel.wheel.geometry import DAY_MS

ROW_GROUP_BYTES = 64 << 20
"""Records of a row group, in bytes of the log."""
ROW_GROUPS_MAX = 2
"""Records of all days in memory, in row groups; the day with the most is written when there are more."""
COMPRESSION = "zstd"
ORDER = ("topic", "offset")
"""The order of rows in a row group: a reader of one topic skips the pages of the others."""


class _Growing(NamedTuple):
    """A file that is being written."""

    file: IO[bytes]
    path: Path | None  # None: it has no name
    parquet: pq.ParquetWriter


class ChunkWriter:
    """Takes rows in any order, then commits. Use it as a context: what was not committed goes with it."""

    def __init__(self, run: Run, *, row_group_bytes: int = ROW_GROUP_BYTES) -> None:
        self._run = run
        self._row_group_bytes = row_group_bytes
        self._fs, self._root = file_system(run.url)
        self._attempt = run.directory / uuid.uuid4().hex if isinstance(self._fs, LocalFileSystem) else None
        self._rows: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes: defaultdict[int, int] = defaultdict(int)
        self._growing: dict[int, _Growing] = {}
        self._counts: defaultdict[int, int] = defaultdict(int)
        self._directories: set[Path] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the columns `store_ms`, `size`, `topic`, `offset` and any others."""
        days = batch["store_ms"].to_numpy() // DAY_MS
        found = np.unique(days).tolist()
        for day in found:
            rows = batch if len(found) == 1 else batch.filter(pa.array(days == day))
            self._rows[day].append(rows)
            self._bytes[day] += int(rows["size"].to_numpy().sum(dtype=np.int64))
            if self._bytes[day] >= self._row_group_bytes:
                self._write(day)
        while sum(self._bytes.values()) >= ROW_GROUPS_MAX * self._row_group_bytes:
            self._write(max(self._bytes, key=lambda day: self._bytes[day]))

    def _write(self, day: int) -> None:
        """Write a row group of the rows of this day."""
        rows = pa.Table.from_batches(self._rows.pop(day)).sort_by([(name, "ascending") for name in ORDER])
        del self._bytes[day]
        if day not in self._growing:
            self._growing[day] = self._begin(rows.schema)
        with self._named():
            self._growing[day].parquet.write_table(rows, row_group_size=len(rows))
        self._counts[day] += len(rows)

    def _named(self) -> contextlib.AbstractContextManager[None]:
        """Says of a full disk which one it is."""
        return named(tempfile.gettempdir() if self._attempt is None else self._root)

    def _begin(self, schema: pa.Schema) -> _Growing:
        if self._attempt is None:
            path, file = None, tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        else:
            if not self._attempt.exists():
                self._confirmed_directory()
            path = self._attempt / uuid.uuid4().hex
            file = open(create_file(path), "w+b")  # noqa: PTH123, SIM115 - a descriptor; closed by `close`
        order = [pq.SortingColumn(schema.get_field_index(name)) for name in ORDER]
        parquet = pq.ParquetWriter(
            file, schema, compression=COMPRESSION, sorting_columns=order, write_page_index=True
        )
        return _Growing(file, path, parquet)

    def _confirmed_directory(self) -> None:
        """Make the directory of this attempt, in that of its run: not again after the run has ended."""
        assert self._attempt is not None
        self._run.confirm()
        with contextlib.suppress(FileExistsError):
            self._attempt.mkdir(mode=DIRECTORY_MODE)

    def commit(self, node: str, segments: Sequence[ArchivedSegment], *, replaces: bool = False) -> Manifest:
        """Publish the files and the manifest; returns the manifest that counts, maybe another attempt's.

        With `replaces`, an existing manifest of these segments is replaced. Raises ArchiveError.
        """
        for day in sorted(self._rows):
            self._write(day)
        files = [self._publish(day, segments[0].base) for day in sorted(self._growing)]
        manifest = Manifest(
            format=FORMAT, log_id=self._run.log_id, node=node, segments=list(segments), files=files
        )
        encoded = encode_manifest(manifest)
        try:
            decode_manifest(encoded)
        except ValueError as error:  # a reader would not take it either
            raise ArchiveError(
                f"log {manifest.log_id} cannot be archived from {manifest.base} to {manifest.end}: {error}"
            ) from None
        self._sync()
        self._run.confirm()
        path = manifest_path(manifest.log_id, manifest.base)
        try:
            self._put_manifest(path, encoded, replaces=replaces)
        except FileExistsError:
            return self._committed(manifest)
        self._sync()
        return manifest

    def _publish(self, day: int, base: int) -> ArchivedFile:
        """Give the file of a day its final name."""
        growing = self._growing[day]
        file = growing.file
        with self._named():
            growing.parquet.close()
            file.flush()
        size = file.seek(0, os.SEEK_END)
        digest = sha256_of(file)
        date = str(np.datetime64(day, "D"))
        path = file_path(self._run.log_id, base, date, digest)
        if growing.path is None:
            put_whole(self._fs, f"{self._root}/{path}", file)
        else:
            os.fsync(file.fileno())
            self._move(growing.path, path)
        return ArchivedFile(path, date, self._counts[day], size, digest)

    def _move(self, source: Path, path: str) -> None:
        target = Path(self._root, path)
        refuse_links(Path(self._root), path)  # a reader would refuse it, too
        make_directory(target.parent)
        source.replace(target)
        # Up to the parent of the archive's own directory, which may be new, too.
        self._directories.update(list(target.parents)[: path.count("/") + 2])

    def _put_manifest(self, path: str, data: bytes, *, replaces: bool) -> None:
        target = f"{self._root}/{path}"
        if self._attempt is None:
            if replaces:
                with storage_errors(url_of(self._fs, target)):
                    self._fs.pipe_file(target, data)
            else:
                put_new(self._fs, target, data)
            return
        if not replaces and Path(target).exists():
            raise FileExistsError(target)
        if not self._attempt.exists():  # a chunk without records has no file
            self._confirmed_directory()
        temporary = self._attempt / uuid.uuid4().hex
        with self._named(), open(create_file(temporary), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._move(temporary, path)

    def _committed(self, manifest: Manifest) -> Manifest:
        """The manifest that another attempt has written."""
        found = Archive(self._run.url).manifest(manifest.log_id, manifest.base)
        if found.segments != manifest.segments:
            raise ArchiveError(
                f"{self._run.url}: another run has archived log {manifest.log_id} from {found.base} to "
                f"{found.end}, this one from {manifest.base} to {manifest.end}; run archive again"
            )
        return found

    def _sync(self) -> None:
        """Make the names durable, too: the files in a manifest must be there after a crash."""
        for directory in self._directories:
            with contextlib.suppress(PermissionError):  # another user's directory existed before
                DiskFiles().sync_dir(directory)
        self._directories.clear()

    def close(self) -> None:
        """Remove what was not published."""
        for growing in self._growing.values():
            with contextlib.suppress(OSError, ValueError):
                growing.parquet.close()
            growing.file.close()
        self._growing.clear()
        if self._attempt is not None:
            shutil.rmtree(self._attempt, ignore_errors=True)

    def __enter__(self) -> "ChunkWriter":
        """Use it for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was not published."""
        self.close()
