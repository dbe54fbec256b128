"""`logs`: the cost of whole logs: reading them, replaying them in one process, and the jobs on Spark.

`bench.history` generates the log; half of its records are pending timers. Each job is a separate process, so
its time includes the start of Python, of the JVM and of Spark.
"""

import asyncio
import json
import shutil
import subprocess
import sys
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
PARTS = ["read", "replay", "rebuild", "rebuild --scan", "audit", "forecast", "archive", "restore"]


async def measure(bench: Bench) -> None:
    """A log of `--records` records, and all PARTS or those that `--parts` names."""
    for number in range(1, bench.options.rounds + 1):
        directory = bench.work / NAME
        shutil.rmtree(directory, ignore_errors=True)
        try:
            records = bench.options.records
            figures = parts_of(directory, records, bench.options.parts or PARTS)
            with bench.waiting(f"{NAME}, {records:,} records"):
                while (found := await asyncio.to_thread(next, figures, None)) is not None:
                    case, values = found
                    bench.figure((NAME, f"{case}, {records:,} records", OURS, number), values)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def parts_of(directory: Path, records: int, parts: Sequence[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields each figure when it is known; `directory` needs about 600 bytes per record."""
    data = directory / "data"
    began = time.perf_counter()
    pending = make_log(data, records, time.time_ns() // 1_000_000)
    yield "log made", {"records": records, "pending": pending, "seconds": time.perf_counter() - began}
    for part in parts:
        if part == "read":
            yield from _reading(directory, data, records)
        elif part == "replay":
            yield "replay in one process", _timed(lambda: replay(data))
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
    """The seconds of a command, in total and for each stage."""
    began = time.perf_counter()
    done = subprocess.run((*TIMERWHEEL, *words, "--json"), capture_output=True, text=True, check=True)
    seconds = {"seconds": time.perf_counter() - began}
    answer = json.loads(done.stdout)
    return seconds | (answer.get("seconds") or answer.get("run", {}).get("seconds") or {})


def _timed(act: Callable[[], None]) -> dict[str, float]:
    began, began_cpu = time.perf_counter(), time.process_time()
    act()
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - began_cpu}
