"""`limits`: the limits of this machine, for comparison with the figures of the systems.

The disk: small appends each made durable, and one long sequential write. HTTP: a bare aiohttp application
that stores nothing. The load generator: the same loads on a server that does nothing but answer.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from bench.generator.plan import Delays, Load
from bench.peers.system import HOST
from bench.runner import DAY_MS, Bench
from bench.scenarios.schedule import case_name
from timerwheel.store.files import SECTOR_BYTES, DiskFiles
from timerwheel.store.log import PREPARED_BYTES

NAME = "limits"
MACHINE = "this machine"
WRITE_BYTES = 512
APPEND_S = 2.0
CHUNK_BYTES = 1 << 20
SEQUENTIAL_BYTES = 1 << 30
SYNCED_WRITES = (
    ("fdatasync", False, False),
    ("fdatasync, into zeros", True, False),
    ("fdatasync, into zeros, direct", True, True),
)
CASES = ((64, 1), (16, 100), (4, 1000))


async def measure(bench: Bench) -> None:
    """All of them in each round."""
    bench.work.mkdir(parents=True, exist_ok=True)
    for number in range(1, bench.options.rounds + 1):
        with bench.waiting(f"{NAME}, disk"):
            synced = {
                case: await asyncio.to_thread(synced_writes, bench.work / "appended", ahead, direct)
                for case, ahead, direct in SYNCED_WRITES
            }
            written = await asyncio.to_thread(sequential_mib_per_s, bench.work / "written")
        for case, figures in synced.items():
            bench.figure((NAME, case, MACHINE, number), figures)
        bench.figure((NAME, "sequential write", MACHINE, number), {"mib_per_s": written})
        for kind, case in (("aiohttp", "bare aiohttp"), ("stored", "generator alone")):
            async with served(kind) as port:
                for connections, array in CASES:
                    await _http(
                        bench, (f"{case}, {case_name(connections, array)}", number), port, connections, array
                    )


async def _http(bench: Bench, place: tuple[str, int], port: int, connections: int, array: int) -> None:
    load = Load(
        NAME,
        {"wire": "timerwheel", "host": HOST, "port": port, "topic": NAME},
        Delays(DAY_MS, 30 * DAY_MS),
        connections=connections,
        array=array,
        seconds=bench.options.seconds,
        warm_up_s=bench.options.warm_up_s,
    )
    done = await bench.put(f"{NAME}, {place[0]}", load)
    sent = done.loads[0].sent
    figures = {
        "messages_per_s": sent.measured / sent.seconds,
        "generator_busy_share": done.cpu_s / done.wall_s,
        "generator_cpu_us_per_message": done.cpu_s * 1e6 / sent.count,
    }
    bench.figure((NAME, place[0], MACHINE, place[1]), figures, {"latency": sent.latency})


def synced_writes(path: Path, ahead: bool, direct: bool) -> dict[str, float]:  # noqa: FBT001 - a table gives them
    """Writes of WRITE_BYTES, each followed by fdatasync, as the log makes them. Removes the file.

    `ahead`: into zeros that were written before; `direct`: past the page cache. The bytes on the
    device, zeros included, are those of the whole machine; left out where the kernel does not say.
    """
    files, piece, count, prepared = DiskFiles(), b"x" * WRITE_BYTES, 0, 0
    before = device_bytes(path.parent)
    try:
        with closing(files.open(path, create=True, direct=direct)) as file:
            began = time.perf_counter()
            while time.perf_counter() - began < APPEND_S:
                if ahead and count * WRITE_BYTES == prepared:  # no fstat: it makes each sync store the inode
                    file.write(prepared, bytes(PREPARED_BYTES))
                    prepared += PREPARED_BYTES
                file.write(count * WRITE_BYTES, piece)
                file.sync()
                count += 1
            seconds = time.perf_counter() - began
            after = device_bytes(path.parent)
    finally:
        path.unlink(missing_ok=True)
    figures = {"per_s": count / seconds}
    if before is not None and after is not None:
        figures["device_bytes_per_write"] = (after - before) / count
    return figures


def device_bytes(directory: Path) -> int | None:
    """Bytes written to the block device of a directory since the machine started; None if unknown."""
    device = directory.stat().st_dev
    counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(counters.read_text().split()[6]) * SECTOR_BYTES if counters.exists() else None


def sequential_mib_per_s(path: Path) -> float:
    """MiB per second of one long write with one fdatasync at its end. Removes the file."""
    piece = os.urandom(CHUNK_BYTES)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        began = time.perf_counter()
        for _ in range(SEQUENTIAL_BYTES // CHUNK_BYTES):
            os.write(file, piece)
        os.fdatasync(file)
        return SEQUENTIAL_BYTES / 2**20 / (time.perf_counter() - began)
    finally:
        os.close(file)
        path.unlink()


@asynccontextmanager
async def served(kind: str) -> AsyncIterator[int]:
    """Starts a `bench.null_server` and yields its port; stops it afterwards."""
    command = (sys.executable, "-m", "bench.null_server", kind)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()
