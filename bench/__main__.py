"""`python -m bench`: what `doc/performance.md` says, measured again on this machine.

python -m bench schedule            single requests and arrays, flush sync and async
python -m bench backlog 1000000     fill, fire, burst and restart with so many pending
python -m bench logs 20000000       whole logs: reading, replay, the jobs on Spark
python -m bench logs 20000000 read replay rebuild   some of it
python -m bench consume             groups: receive and acknowledge, streams, push, lateness, bulk recall
python -m bench consume push recall some of it: receive, return, stream, push, late, idle, recall
"""

import itertools
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from bench import consume, logs
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


async def run_receive(served: Served) -> None:
    """Workers that receive and acknowledge as fast as they can."""
    await consume.fill_topic(served, "orders", 250_000)
    for connections, count_max in itertools.product((1, 16, 64), (1, 32, 256)):
        name = f"w{connections}-m{count_max}"
        figures = await consume.receive_and_ack(served, "orders", name, connections, count_max, 4)
        say(f"receive+ack c={connections} max={count_max}", figures)


async def run_return(served: Served) -> None:
    """What was given back and comes again."""
    await consume.fill_topic(served, "returns", 20_000)
    say("given back, max=32 c=4", await consume.give_back_and_receive(served, "returns", "g", 20_000))


async def run_stream(served: Served) -> None:
    """Server-sent events."""
    await consume.fill_topic(served, "events", 60_000)
    for connections in (1, 4):
        name = f"stream ack=auto c={connections}"
        say(name, await consume.stream(served, "events", f"s{connections}", connections, 60_000))


async def run_push(served: Served) -> None:
    """Webhooks."""
    for concurrency, count in ((1, 2_000), (16, 8_000), (64, 8_000)):
        topic = f"hooks-{concurrency}"
        await consume.fill_topic(served, topic, count)
        say(f"push concurrency={concurrency}", await consume.push(served, topic, concurrency, count))


async def run_late(served: Served) -> None:
    """What groups do to lateness."""
    for per_second in (1_000, 5_000):
        say(f"fire {per_second:,}/s, long poll", await fire(served, per_second, 10))
        say(f"fire {per_second:,}/s, 4 workers", await consume.fire_to_workers(served, per_second, 10, 4))


async def run_idle(served: Served) -> None:
    """What workers cost that wait."""
    for waiting in (8, 64):
        say(f"500/s, {waiting} waiting workers", await consume.wait_idle(served, waiting, 500, 5))


async def run_recall(served: Served) -> None:
    """Recall in bulk."""
    say("recall 50,000", await consume.recall(served, 50_000))


CONSUME: dict[str, Callable[[Served], Awaitable[None]]] = {
    "receive": run_receive,
    "return": run_return,
    "stream": run_stream,
    "push": run_push,
    "late": run_late,
    "idle": run_idle,
    "recall": run_recall,
}


async def run_consume(directory: Path, names: list[str]) -> None:
    """Consumer groups; each part with a service of its own."""
    for name in names or CONSUME:
        served = Served(directory / name, "--push-private-targets")
        await served.start()
        try:
            await CONSUME[name](served)
        finally:
            served.end()


def main() -> None:
    """Parse two words and run."""
    words = sys.argv[1:] or ["schedule"]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="timerwheel-bench-") as made:
        if words[0] == "backlog":
            uvloop.run(run_backlog(Path(made), int(words[1])))
        elif words[0] == "logs":
            for name, figures in logs.measure(Path(made), int(words[1]), words[2:]):
                say(name, figures)
        elif words[0] == "consume":
            uvloop.run(run_consume(Path(made), words[1:]))
        else:
            uvloop.run(run_schedule(Path(made)))


if __name__ == "__main__":
    main()
