"""`archive --verify`: reads every file of an archive again and compares it with the manifests."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.archive.job import count_queues
from timerwheel.spark_jobs.archive.part import batches_of
from timerwheel.spark_jobs.archive.store import Archive, ArchivedFile, ArchiveError, Manifest
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.tasks import map_numbers
from timerwheel.state.groups import is_internal
from timerwheel.store.segment import SEGMENT_HEADER_SIZE
from timerwheel.wheel.geometry import DAY_MS

_CHECKED = ("node", "offset", "size", "store_ms", "queue", "kind", "flags")


class Checked(NamedTuple):
    """What was checked, and the problems found."""

    segments: int
    records: int
    problems: list[str]


def verify(spark: SparkSession, progress: JobProgress, url: str, log_ids: Sequence[str]) -> Checked:
    """Read every file of these logs again and compare bytes, checksums and rows with the manifests."""
    store = Archive(url)
    segments = [(log_id, base) for log_id in log_ids for base in store.bases(log_id)]
    if not segments:
        return Checked(0, 0, [])

    def check(number: int) -> Iterator[pa.RecordBatch]:
        records, problems = check_segment(store, *segments[number])
        yield pa.record_batch({"records": [records], "problems": pa.array([problems], pa.list_(pa.string()))})

    with progress.stage("verify"):
        schema = "records bigint, problems array<string>"
        rows = map_numbers(spark, len(segments), check, schema).collect()
    return Checked(
        len(segments),
        sum(row.records for row in rows),
        sorted(problem for row in rows for problem in row.problems),
    )


def check_segment(store: Archive, log_id: str, base: int) -> tuple[int, list[str]]:
    """The number of readable records of an archived segment, and the problems with the others."""
    try:
        manifest = store.manifest(log_id, base)
    except ArchiveError as error:
        return 0, [str(error)]
    content = _Content(store, manifest)
    problems: list[str] = []
    for file in manifest.files:
        try:
            content.read(file)
        except ArchiveError as error:
            problems.append(str(error))
    return content.records, problems or content.differences()


class _Content:
    """Totals over the files of one segment, comparable with its manifest."""

    def __init__(self, store: Archive, manifest: Manifest) -> None:
        self._store = store
        self._manifest = manifest
        self.records = 0
        self._bytes = SEGMENT_HEADER_SIZE + sum(lost.end - lost.offset for lost in manifest.lost)
        self._last_store_ms = 0
        self._queues: defaultdict[tuple[str, int], int] = defaultdict(int)

    def read(self, file: ArchivedFile) -> None:
        """Count a file's rows; ArchiveError if one is not of this segment, day and node."""
        place = f"{self._store.url}/{file.path}"
        manifest = self._manifest
        for batch in batches_of(self._store, file, _CHECKED):
            offsets = batch["offset"].to_numpy()
            if offsets.min() < manifest.base or offsets.max() >= manifest.end:
                raise ArchiveError(f"{place} has records of another segment than {manifest.base}")
            if batch["node"].unique().to_pylist() != [manifest.node]:
                raise ArchiveError(f"{place} has records of another node than {manifest.node!r}")
            store_ms = batch["store_ms"].to_numpy()
            days = np.unique(store_ms // DAY_MS).astype("datetime64[D]").astype(str).tolist()
            if days != [file.date]:
                raise ArchiveError(f"{place} has records of {', '.join(days)}")
            self._last_store_ms = max(self._last_store_ms, int(store_ms.max()))
            if not is_internal(file.topic):
                count_queues(self._queues, file.topic, batch)
            self._bytes += int(batch["size"].to_numpy().sum(dtype=np.int64))
            self.records += len(batch)

    def differences(self) -> list[str]:
        """Differences between the files and the manifest."""
        manifest = self._manifest
        queues = [(topic, queue, count) for (topic, queue), count in sorted(self._queues.items())]
        facts = {
            "records": (self.records, manifest.records),
            "bytes": (self._bytes, manifest.end - manifest.base),
            "last_store_ms": (self._last_store_ms, manifest.last_store_ms),
            "queues": (queues, manifest.queues),
        }
        return [
            f"segment {manifest.base} of log {manifest.log_id} has {name} = {found}, its manifest {stated}"
            for name, (found, stated) in facts.items()
            if found != stated
        ]
