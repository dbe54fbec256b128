"""`archive --verify`: reads every file of an archive again and compares it with the manifests.

It also names every file that no manifest names, since a reader of the directory takes it for records.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.archive.job import QueueCounts, count_queues, queues_of
from timerwheel.spark_jobs.archive.manifest import ArchivedFile, ArchivedSegment, Manifest, owner_of
from timerwheel.spark_jobs.archive.part import batches_of
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError, overlap
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.run_lock import is_held
from timerwheel.spark_jobs.tasks import map_numbers
from timerwheel.store.segment import SEGMENT_HEADER_SIZE
from timerwheel.wheel.geometry import DAY_MS

CHECKED = ("node", "segment", "offset", "size", "store_ms", "topic", "queue", "kind", "flags", "root")


class Checked(NamedTuple):
    """What was checked, and the problems found."""

    segments: int
    records: int
    problems: list[str]


def verify(spark: SparkSession, progress: JobProgress, url: str, log_ids: Sequence[str]) -> Checked:
    """Read every file of these logs again and compare bytes, checksums and rows with the manifests.

    Of other logs in the archive it reads the manifests only, to name files that none of them names.
    """
    store = Archive(url)
    chunks = [(log_id, base) for log_id in log_ids for base in store.bases(log_id)]
    with progress.stage("verify"):
        problems = unnamed_files(store) + overlaps(store, log_ids)
        if not chunks:
            return Checked(0, 0, problems)

        def check(number: int) -> Iterator[pa.RecordBatch]:
            segments, records, found = check_chunk(store, *chunks[number])
            row = {
                "segments": [segments],
                "records": [records],
                "problems": pa.array([found], pa.list_(pa.string())),
            }
            yield pa.record_batch(row)

        schema = "segments bigint, records bigint, problems array<string>"
        rows = map_numbers(spark, len(chunks), check, schema).collect()
    problems += [problem for row in rows for problem in row.problems]
    return Checked(sum(row.segments for row in rows), sum(row.records for row in rows), sorted(set(problems)))


def unnamed_files(store: Archive) -> list[str]:
    """Files and links in the archive that no manifest names, except those of a run that is at work.

    Names the manifests that cannot be read, too: files that only they name count as unnamed.
    """
    # In this order: a run that ends in between has written its manifests by then.
    unnamed = set(store.files())
    busy = {owner[0] for owner in map(owner_of, unnamed) if owner and is_held(store.url, owner[0])}
    problems: list[str] = []
    for log_id in store.log_ids():
        for base in store.bases(log_id):
            try:
                unnamed.difference_update(file.path for file in store.manifest(log_id, base).files)
            except ArchiveError as error:
                problems.append(str(error))
                unnamed = {path for path in unnamed if owner_of(path) != (log_id, base)}
    for path in unnamed:
        owner = owner_of(path)
        if owner is None or owner[0] not in busy:
            problems.append(
                f"{store.shown(path)} is named by no manifest: "
                "it is not part of the archive; move it elsewhere"
            )
    return problems


def overlaps(store: Archive, log_ids: Sequence[str]) -> list[str]:
    """Chunks that hold the same records twice."""
    found = []
    for log_id in log_ids:
        chunks = []
        for base in store.bases(log_id):
            try:
                chunks.append(store.chunk(log_id, base))
            except ArchiveError:
                continue  # `check_chunk` names it
        if twice := overlap(chunks):
            found.append(f"{store.url}: {twice}")
    return found


def check_chunk(store: Archive, log_id: str, base: int) -> tuple[int, int, list[str]]:
    """The number of segments and of readable records of a chunk, and the problems with the others."""
    try:
        check = ChunkCheck(store, store.manifest(log_id, base))
    except ArchiveError as error:
        return 0, 0, [str(error)]
    problems: list[str] = []
    for file in check.manifest.files:
        try:
            for _ in check.batches(file):
                pass
        except ArchiveError as error:
            problems.append(str(error))
    return len(check.manifest.segments), check.records, problems or check.differences()


class ChunkCheck:
    """Reads the files of a chunk, once each, and compares what was read with the manifest."""

    def __init__(self, store: Archive, manifest: Manifest) -> None:
        self.manifest = manifest
        self._store = store
        self._totals = {segment.base: _Totals(manifest, segment) for segment in manifest.segments}

    @property
    def records(self) -> int:
        """How many records were read."""
        return sum(one.records for one in self._totals.values())

    def differences(self) -> list[str]:
        """Differences between the files, which were all read, and the manifest."""
        return [difference for one in self._totals.values() for difference in one.differences()]

    def batches(self, file: ArchivedFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file, with the columns CHECKED.

        Raises ArchiveError if one is not of its segment, day and node.
        """
        place = self._store.shown(file.path)
        for batch in batches_of(self._store, self.manifest, file, CHECKED):
            if batch["node"].unique().to_pylist() != [self.manifest.node]:
                raise ArchiveError(f"{place} has records of another node than {self.manifest.node!r}")
            days = np.unique(batch["store_ms"].to_numpy() // DAY_MS).astype("datetime64[D]").astype(str)
            if days.tolist() != [file.date]:
                raise ArchiveError(f"{place} has records of {', '.join(days.tolist())}")
            segments = batch["segment"].to_numpy()
            for base in np.unique(segments).tolist():
                rows = batch.filter(pa.array(segments == base))
                offsets = rows["offset"].to_numpy()
                if offsets.min() < base or offsets.max() >= self._totals[base].segment.end:
                    raise ArchiveError(f"{place} has records of another segment than {base}")
                self._totals[base].add(rows)
            yield batch


class _Totals:
    """Totals over the rows of one segment, comparable with its manifest."""

    def __init__(self, manifest: Manifest, segment: ArchivedSegment) -> None:
        self.segment = segment
        self.records = 0
        self._log_id = manifest.log_id
        self._bytes = SEGMENT_HEADER_SIZE + sum(lost.end - lost.offset for lost in segment.lost)
        self._last_store_ms = 0
        self._queues: QueueCounts = Counter()

    def add(self, rows: pa.RecordBatch) -> None:
        """Count these rows."""
        self._last_store_ms = max(self._last_store_ms, int(rows["store_ms"].to_numpy().max()))
        self._queues.update(count_queues(rows))
        self._bytes += int(rows["size"].to_numpy().sum(dtype=np.int64))
        self.records += len(rows)

    def differences(self) -> list[str]:
        """Differences between the rows and the manifest."""
        segment = self.segment
        facts = {
            "records": (self.records, segment.records),
            "bytes": (self._bytes, segment.end - segment.base),
            "last_store_ms": (self._last_store_ms, segment.last_store_ms),
            "queues": (queues_of(self._queues), segment.queues),
        }
        return [
            f"segment {segment.base} of log {self._log_id} has {name} = {found}, its manifest {stated}"
            for name, (found, stated) in facts.items()
            if found != stated
        ]
