"""`python -m bench.archive_files`: the files of an archive, their sizes, and the memory of a task.

The log has topics of very different sizes and several days, so that files by day, topic or segment differ.
"""

import json
import multiprocessing
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from timerwheel.spark_jobs.archive.job import Work, archive_chunk
from timerwheel.spark_jobs.archive.lock import ArchiveLock
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.store.files import DiskFiles
from timerwheel.store.log import CommitLog
from timerwheel.store.record import Kind, encode

DAY_MS = 86_400_000
BEGIN_MS = 1_800_000_000_000
BATCH = 1_000
LOG_ID = bytes(range(16))


def make_log(data: Path, records: int, topics: int, days: int, segment_mib: int) -> None:
    """A log of records with bodies of about 300 bytes that shrink to half."""
    chance = random.Random(17)
    names = [f"topic-{number:04d}" for number in range(topics)]
    weights = [1 / (number + 1) for number in range(topics)]
    log = CommitLog(data / "log", DiskFiles(), segment_mib << 20)
    log.open(new_log_id=LOG_ID, now_ms=BEGIN_MS, keep_from=0)
    for begin in range(0, records, BATCH):
        now_ms = BEGIN_MS + begin * days * DAY_MS // records
        units = [
            [
                encode(
                    Kind.TIMER,
                    name.encode(),
                    b"",
                    chance.randbytes(150).hex().encode(),
                    store_ms=now_ms,
                    enqueue_ms=now_ms,
                    due_ms=now_ms + chance.randrange(30 * DAY_MS),
                )
            ]
            for name in chance.choices(names, weights, k=BATCH)
        ]
        _, error = log.append(units, sync=False, now_ms=now_ms)
        if error is not None:
            raise error
    log.sync()
    log.close()


def task_mb_max(data: Path, to: Path) -> float:
    """The most memory that a process takes that archives all segments as one chunk, as a task does."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_task, (str(data), str(to)))


def _task(data: str, to: str) -> float:
    [log] = find_logs([data])
    segments = tuple(segment for segment in log.segments if segment.end is not None)
    with ArchiveLock(to, log.log_id.hex(), "now") as lock:
        archive_chunk(Work(lock.run, segments, (None,) * len(segments)), salvage=False)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main(
    records: Annotated[int, typer.Option(help="Records of the log.")] = 200_000,
    topics: Annotated[int, typer.Option(help="Topics; the n-th has 1/n of the records of the first.")] = 30,
    days: Annotated[int, typer.Option(help="Days over which the records were stored.")] = 2,
    segment_mib: Annotated[int, typer.Option(help="Size of a segment in MiB.")] = 8,
    work: Annotated[Path | None, typer.Option(help="Where the log and the archive are made.")] = None,
) -> None:
    """Make a log, archive and verify it, and print one JSON document."""
    directory = Path(tempfile.mkdtemp(dir=work))
    try:
        make_log(directory / "data", records, topics, days, segment_mib)
        words = ("--data", str(directory / "data"), "--to", str(directory / "archive"), "--verify", "--json")
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "timerwheel.cli.main", "archive", *words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        seconds = time.perf_counter() - began
        answer = json.loads(done.stdout)
        sizes = [path.stat().st_size for path in (directory / "archive").rglob("*.parquet")]
        manifests = [path.stat().st_size for path in (directory / "archive").rglob("_manifest/*/*.json")]
        [log] = answer["logs"]
        found = {
            "log_mb": sum(path.stat().st_size for path in (directory / "data" / "log").glob("*.log")) / 1e6,
            "segments": log["archived"],
            "records": log["records"],
            "files": len(sizes),
            "file_kb_median": statistics.median(sizes) / 1e3,
            "archive_mb": sum(sizes) / 1e6,
            "manifests": len(manifests),
            "manifests_kb": sum(manifests) / 1e3,
            "problems": len(answer["verified"]["problems"]),
            "seconds": seconds,
            "stages": answer["seconds"],
            "task_mb_max": task_mb_max(directory / "data", directory / "task"),
        }
        print(json.dumps(found, indent=1))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    typer.run(main)
