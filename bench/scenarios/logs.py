"""`logs`: the cost of whole logs: reading them, replaying them in one process, and the jobs on Spark.

`bench.history` generates the log; half of its records are pending timers. Each job is a separate process, so
its time includes the start of Python, of the JVM and of Spark: `start_s` is what is left of it without the
stages of the job. `driver_mib` is the most memory that Python and Java had, with the tasks that run in them.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.history import make_log
from bench.peers.registry import OURS
from bench.runner import Bench
from timerwheel.offline.snapshot import open_log
from timerwheel.runtime.recovery import recover
from timerwheel.settings import Settings
from timerwheel.store.files import DiskFiles

NAME = "logs"
TIMERWHEEL = (sys.executable, "-m", "timerwheel.cli.main")
PARTS = [
    "read",
    "replay",
    "rebuild",
    "rebuild --scan",
    "audit",
    "audit --checkpoint",
    "forecast",
    "archive",
    "restore",
]
NEW_SHARE = 0.01
"""The part of the log that is new to the second audit with a checkpoint; at least one segment."""
POLL_S = 0.1


async def measure(bench: Bench) -> None:
    """A log of `--records` records, and all PARTS or those that `--parts` names."""
    for number in range(1, bench.options.rounds + 1):
        directory = bench.work / NAME
        shutil.rmtree(directory, ignore_errors=True)
        try:
            records = bench.options.records
            segments = bench.options.segments or None
            log = f"{records:,} records" + (f" in {segments:,} segments" if segments else "")
            figures = parts_of(directory, records, bench.options.parts or PARTS, segments)
            with bench.waiting(f"{NAME}, {log}"):
                while (found := await asyncio.to_thread(next, figures, None)) is not None:
                    case, values = found
                    bench.figure((NAME, f"{case}, {log}", OURS, number), values)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def parts_of(
    directory: Path, records: int, parts: Sequence[str], segments: int | None = None
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields each figure when it is known; `directory` needs about 600 bytes per record."""
    data = directory / "data"
    began = time.perf_counter()
    pending = make_log(data, records, time.time_ns() // 1_000_000, segments=segments)
    yield "log made", {"records": records, "pending": pending, "seconds": time.perf_counter() - began}
    for part in parts:
        if part == "read":
            yield from _reading(directory, data, records)
        elif part == "replay":
            yield "replay in one process", _timed(lambda: replay(data))
        elif part == "audit --checkpoint":
            yield from _incremental(directory, data)
        elif part == "restore":
            archive = str(directory / "archive")
            run("archive", "--data", str(data), "--to", archive)
            yield part, run(part, "--from", archive, "--data", str(directory / "restored"))
        else:
            words = {
                "audit": ("--out", str(directory / "audit")),
                "archive": ("--to", str(directory / "archived")),
            }
            yield part, run(*part.split(), "--data", str(data), *words.get(part, ()))


def _incremental(directory: Path, data: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """An audit of a log and then of what has come since, which is its last part."""
    before = directory / "before" / data.name  # a log is known by its id and its name
    (before / "log").mkdir(parents=True)
    names = sorted(path.name for path in (data / "log").iterdir())
    bases = sorted({name.partition(".")[0] for name in names})
    kept = set(bases[: len(bases) - max(round(NEW_SHARE * len(bases)), 1)])
    for name in names:
        if name.partition(".")[0] in kept:
            os.link(data / "log" / name, before / "log" / name)
    checkpoint = ("--checkpoint", str(directory / "checkpoint"))
    for case, place in (("the first", before), (f"the last {NEW_SHARE:.0%}", data)):
        out = ("--out", str(directory / f"audit of {case}"))
        yield f"audit --checkpoint, {case}", run("audit", "--data", str(place), *checkpoint, *out)


def _reading(directory: Path, data: Path, records: int) -> Iterator[tuple[str, dict[str, float]]]:
    found = _timed(lambda: read(data))
    yield "read, sidecars", found | {"records_per_s": records / found["seconds"]}
    kept = directory / "sidecars"
    kept.mkdir()
    for path in (data / "log").glob("*.side"):
        path.rename(kept / path.name)
    found = _timed(lambda: read(data))
    yield "read, scanned", found | {"records_per_s": records / found["seconds"]}
    for path in kept.iterdir():
        path.rename(data / "log" / path.name)


def read(data: Path) -> None:
    """Every record's row, one after the other."""
    log = open_log(data)
    for _ in log.tables(log.start):
        pass
    log.close()


def replay(data: Path) -> None:
    """Build the index as a start of the service does."""
    shutil.rmtree(data / "index", ignore_errors=True)
    made = recover(Settings(data=data), DiskFiles(), time.time_ns() // 1_000_000)
    made.writer.index.close()
    made.log.close()


def run(*words: str) -> dict[str, float]:
    """The seconds of a command, in total and for each stage, and the memory of its driver."""
    began = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as out,
        subprocess.Popen((*TIMERWHEEL, *words, "--json"), stdout=out) as process,
    ):
        driver_kib: dict[int, int] = {}
        while process.poll() is None:
            driver_kib |= peaks_kib(process.pid)
            time.sleep(POLL_S)
        seconds = time.perf_counter() - began
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words)
        out.seek(0)
        answer = json.load(out)
    places = (answer.get("seconds"), answer.get("stage_seconds"), answer.get("run", {}).get("seconds"))
    stages: dict[str, float] = next((one for one in places if one), {})
    start_s = seconds - sum(stages.values())
    return {"seconds": seconds, "start_s": start_s, "driver_mib": sum(driver_kib.values()) / 1024} | stages


def peaks_kib(driver: int) -> dict[int, int]:
    """The peaks of the resident memory of a driver and of its Java process, by process."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
        for pid in (driver, *map(int, children)):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            facts = dict(line.split(":", 1) for line in lines)
            is_counted = pid == driver or facts["Name"].strip() == "java"
            if is_counted and "VmHWM" in facts:  # a process that has just ended has no memory
                found[pid] = int(facts["VmHWM"].split()[0])
    return found


def _timed(act: Callable[[], None]) -> dict[str, float]:
    began, began_cpu = time.perf_counter(), time.process_time()
    act()
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - began_cpu}
