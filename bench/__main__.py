"""`python -m bench`: what `doc/performance.md` says, measured again on this machine.

python -m bench schedule            single requests and arrays, flush sync and async
python -m bench backlog 1000000     fill, fire, burst and restart with so many pending
"""

import os
import platform
import signal
import sys
import tempfile
from pathlib import Path

import uvloop

from bench.load import Served, burst, fill, fire, schedule


def say(name: str, figures: dict[str, float] | str) -> None:
    """One line a scenario."""
    if isinstance(figures, dict):
        figures = "  ".join(f"{key} {value:,.1f}" for key, value in figures.items())
    print(f"{name:<34} {figures}", flush=True)


async def run_schedule(directory: Path) -> None:
    """Throughput of sends."""
    for flush in ("sync", "async"):
        served = Served(directory / flush, "--flush", flush)
        await served.start()
        try:
            for connections, array in ((1, 1), (16, 1), (64, 1), (8, 100), (4, 1000)):
                figures = await schedule(served, connections, array, 5)
                say(f"schedule {flush} c={connections} array={array}", figures)
        finally:
            served.end()


async def run_backlog(directory: Path, count: int) -> None:
    """Lateness, bursts, memory and restart with a backlog."""
    served = Served(directory / "backlog")
    await served.start()
    try:
        if count:
            took = await fill(served, count, lambda text: say("  filled", text))
            say(f"fill {count:,}", {"seconds": took, "messages_per_s": count / took})
        say("memory", {name: size / 2**20 for name, size in served.memory().items()})
        say("disk MiB", {name: size / 2**20 for name, size in served.disk_bytes().items()})
        for per_second, seconds in ((1_000, 10), (5_000, 10), (20_000, 5), (100_000, 1)):
            say(f"fire {per_second:,}/s", await fire(served, per_second, seconds))
        say("burst 100,000, nobody reading", await burst(served, 100_000, reading=False))
        say("burst 100,000, being read", await burst(served, 100_000, reading=True))
        say("schedule c=64 with backlog", await schedule(served, 64, 1, 5))
        say("memory", {name: size / 2**20 for name, size in served.memory().items()})
        served.end(signal.SIGKILL)
        say("ready after SIGKILL", {"seconds": await served.start()})
    finally:
        served.end()


def main() -> None:
    """Parse two words and run."""
    words = sys.argv[1:] or ["schedule"]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="timerwheel-bench-") as made:
        if words[0] == "backlog":
            uvloop.run(run_backlog(Path(made), int(words[1])))
        else:
            uvloop.run(run_schedule(Path(made)))


if __name__ == "__main__":
    main()
