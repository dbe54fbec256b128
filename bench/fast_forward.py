"""`python -m bench.fast_forward DIRECTORY MESSAGES DAYS`: a whole life of the wheel on a fast clock.

Messages are sent at a steady rate, due DAYS later. The clock runs through these days in half a minute, then
in real time until the last has fired. So each message moves down through every level of the wheel, and as
many fall due per millisecond, and share a write, as in a busy service. The engine runs as in the service, in
its own process, since its writes are read from /proc/self/io.
"""

import asyncio
import json
import shutil
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import uvloop

from bench.body import body
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine
from timerwheel.model.messages import Outgoing
from timerwheel.settings import Settings
from timerwheel.state.log_manifest import LOG_DIRECTORY
from timerwheel.store.files import DiskFiles
from timerwheel.store.log_reader import LogReader
from timerwheel.store.record import NO_OFFSET, decode_header

TOPIC = "life"
ARRAY = 1_000
DAY_MS = 86_400_000
PER_S = 8_000
DAYS_TAKE_S = 20
HOURS_MS, HOURS_TAKE_S = 3 * 3_600_000, 15
REAL_MS = 75_000


class FastClock(SystemClock):
    """A clock whose wall time runs `speed` times as fast; durations stay the same."""

    def __init__(self) -> None:
        self.speed = 1.0
        self._began_ns = self._wall_ns = time.time_ns()

    def hasten(self, speed: float) -> None:
        """Continue from the current time at this speed."""
        self._wall_ns, self._began_ns = int(self._now_ns()), time.time_ns()
        self.speed = speed

    async def hasten_to(self, wall_ms: int, take_s: float) -> None:
        """Reach `wall_ms` after `take_s` real seconds."""
        self.hasten((wall_ms - self.now_ms()) / 1000 / take_s)
        await asyncio.sleep(take_s)

    def _now_ns(self) -> float:
        return self._wall_ns + (time.time_ns() - self._began_ns) * self.speed

    def now_ms(self) -> int:
        """Wall milliseconds of this clock."""
        return int(self._now_ns()) // 1_000_000

    async def wait_until(self, due_ms: int | None, wake: asyncio.Event) -> None:
        """Sleep as the machine's clock does, but for a shorter time."""
        real_ms = None
        if due_ms is not None:
            real_ms = super().now_ms() + int((due_ms - self.now_ms()) / self.speed)
        await super().wait_until(real_ms, wake)


def written_bytes() -> int:
    """Bytes that this process had the kernel write to the device."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("write_bytes")).split()[1])


def stored_bytes(data: Path) -> int:
    """Bytes of the records of a data directory with which messages were sent, without padding."""
    log = LogReader(data / LOG_DIRECTORY, DiskFiles())
    log.open_readonly()
    with closing(log):
        sent = (decode_header(raw) for _, raw in log.scan(log.start))
        return sum(one.size_without_padding() for one in sent if one.root == NO_OFFSET)


async def live(data: Path, messages: int, days: int) -> dict[str, float]:
    """Send the messages, let the time pass, and check that each is delivered."""
    clock = FastClock()
    engine = await Engine.open(Settings(data=data), clock)
    first_ms = clock.now_ms() + days * DAY_MS
    dues_ms = first_ms + np.random.default_rng(5).integers(0, messages * 1000 // PER_S, messages)
    for at in range(0, messages, ARRAY):
        part = dues_ms[at : at + ARRAY].tolist()
        await engine.sender.send(
            [
                Outgoing(TOPIC, body(at + place, 0), {"TIMER_DELIVER_MS": str(due_ms)})
                for place, due_ms in enumerate(part)
            ]
        )
    filled = written_bytes()
    stored = await asyncio.to_thread(stored_bytes, data)
    await clock.hasten_to(first_ms - HOURS_MS, DAYS_TAKE_S)
    await clock.hasten_to(first_ms - REAL_MS, HOURS_TAKE_S)
    clock.hasten(1)
    while engine.queues.topic(TOPIC).visible < messages:
        await asyncio.sleep(0.1)
    await engine.close()
    return {
        "messages": messages,
        "stored_mib": stored / 2**20,
        "written_mib": written_bytes() / 2**20,
        "write_amplification_filled": filled / stored,
        "write_amplification": written_bytes() / stored,
    }


def main() -> None:
    """Run and print the result as JSON."""
    data, messages, days = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    shutil.rmtree(data, ignore_errors=True)
    print(json.dumps(uvloop.run(live(data, messages, days))))
    shutil.rmtree(data)


if __name__ == "__main__":
    main()
