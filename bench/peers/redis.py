"""Redis as a delay queue: an append-only file, and a poller that moves due messages.

`bench.wires.resp` documents the keys. In `consume` it is a stream and a group instead:
`bench.wires.redis_stream`.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.redis_poller import BATCH_MAX, PAUSE_MS, polls
from bench.peers.system import HOST, System, answers, free_port
from bench.wires.redis_stream import create_group
from bench.wires.resp import POP_MAX

VERSION_MIN = 7
"""The first with BLMPOP."""

_PROJECT = Path(__file__).resolve().parents[2]


class Redis(System):
    """A server, and one poller for all prepared topics.

    `appendfsync` is `always`, which syncs each write before the answer, or `everysec`.
    """

    wire, work_wire = "resp", "redis_stream"
    work_max = 1_000

    def __init__(self, directory: Path, appendfsync: str = "always") -> None:
        super().__init__(directory)
        self.name = f"Redis AOF {appendfsync}"
        self.settings = {
            "appendonly": "yes",
            "appendfsync": appendfsync,
            "save": "off",
            "schedule": "HSET and ZADD for each message, all of an array in one write",
            "move": f"a Lua script every {PAUSE_MS} ms, up to {BATCH_MAX:,} at once, again if so many",
            "consume": f"BLMPOP, up to {POP_MAX:,} at once",
            "in consume": "a stream and a group: XREADGROUP and XACK, both written to the file",
        }
        self.port = free_port()
        self._topics: list[str] = []

    @classmethod
    def missing(cls) -> str | None:
        """See `System`."""
        if shutil.which("redis-server") and int(_version().partition(".")[0]) >= VERSION_MIN:
            return None
        return f"apt-get install -y redis-server  # {VERSION_MIN}.0 or later"

    def version(self) -> str:
        """The version of the binary."""
        return _version()

    async def start(self) -> float:
        """Wait until it answers, after reading its append-only file."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        flags = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(data),
            "save": "",
            "appendonly": self.settings["appendonly"],
            "appendfsync": self.settings["appendfsync"],
        }
        self.launch(
            ["redis-server", *(word for name, value in flags.items() for word in (f"--{name}", value))]
        )
        took = await self.ready(lambda: answers(self.port, b"PING\r\n", b"+PONG"))
        await self._poll()
        return took

    async def prepare(self, topic: str) -> None:
        """Poll this topic too, with a new poller."""
        if topic not in self._topics:
            self._topics.append(topic)
            for poller in self.processes[1:]:
                poller.terminate()
                poller.wait()
            del self.processes[1:]
            await self._poll()

    async def _poll(self) -> None:
        """Start the poller if there is a topic; returns once it polls."""
        if self._topics:
            command = [sys.executable, "-m", "bench.peers.redis_poller", str(self.port), *self._topics]
            self.launch(command, environment={"PYTHONPATH": str(_PROJECT)})
            await self.ready(self._polls)

    async def _polls(self) -> bool:
        said = (self.directory / "output.txt").read_text(errors="replace")
        return polls(self.processes[-1].pid) in said

    async def prepare_work(self, topic: str) -> None:
        """Create a stream and its group. No poller: messages are visible when they are added."""
        assert await answers(self.port, create_group(topic), b"+OK")


def _version() -> str:
    said = subprocess.run(["redis-server", "-v"], capture_output=True, text=True, check=True).stdout
    return said.partition("v=")[2].partition(" ")[0]
