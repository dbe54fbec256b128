"""The interface of the systems that the benchmark measures."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.wires.wire import Spec

HOST = "127.0.0.1"
READY_TIMEOUT_S = 300


class Usage(NamedTuple):
    """Resources used by the processes of a system since they started, from /proc."""

    cpu_s: float
    written_bytes: int
    anonymous_bytes: int
    """Current memory except file pages."""
    resident_bytes: int


class System(ABC):
    """One system with one setting, in its own directory, on free loopback ports.

    `start` may be called again after `stop` or `kill`: the data stays.
    """

    name: str
    """The name in tables: `beanstalkd -f 0`."""
    settings: Mapping[str, str]
    """The settings, for the results."""
    absolute_dues: bool = True
    """Whether messages sent at different times can have the same due time, to the millisecond."""
    wire: str
    """The module in `bench.wires` that schedules and receives."""
    work_wire: str
    """The one for messages that are visible at once, and their workers."""
    port: int
    max_delay_ms: int = 30 * 86_400_000
    work_max: int = 1
    """How many messages a worker can take at once."""
    warm_up_s: float = 0.0
    """How long it needs load after its start to reach full speed, for JIT compilers."""

    name_server: str = ""
    """The address at which RocketMQ's own clients find it; without one it serves none of them."""
    grpc_port: int = 0
    """Where it serves those that speak gRPC, if it does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.flags: tuple[str, ...] = ()
        """Extra arguments for the command that starts it; some systems ignore them."""
        self.processes: list[subprocess.Popen[bytes]] = []

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """None if it can start here, otherwise the command that installs it."""

    @abstractmethod
    def version(self) -> str:
        """The version of the system."""

    @abstractmethod
    async def start(self) -> float:
        """Start it; returns the seconds from starting its first process until it answers."""

    async def prepare(self, topic: str) -> None:  # noqa: B027 - most systems need nothing
        """Prepare a topic before a load."""

    def sender(self, topic: str) -> Spec:
        """The spec of the wire that sends."""
        return {"wire": self.wire, "host": HOST, "port": self.port, "topic": topic}

    def receiver(self, topic: str) -> Spec:
        """The spec of the wire that receives."""
        return self.sender(topic)

    async def prepare_work(self, topic: str) -> None:  # noqa: B027 - as above
        """Prepare a topic for messages that are visible at once, and its group of workers."""

    def work_sender(self, topic: str) -> Spec:
        """The spec of the wire that sends messages visible at once."""
        return self.sender(topic) | {"wire": self.work_wire}

    def worker(self, topic: str, count_max: int, *, ack_with_next: bool) -> Spec:
        """The spec of the wire that receives and acknowledges; see `bench.wires.wire.WorkWire`."""
        return self.work_sender(topic) | {"count_max": count_max, "ack_with_next": ack_with_next}

    def launch(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Start one of its processes, whose output goes to `output.txt` in its directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "output.txt").open("ab") as output:
            self.processes.append(
                subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.directory,
                    env={**os.environ, **(environment or {})},
                )
            )

    async def ready(self, ask: Callable[[], Awaitable[bool]]) -> float:
        """Seconds until `ask` returns true, polled a hundred times a second; OSError counts as false."""
        began = time.perf_counter()
        while time.perf_counter() - began < READY_TIMEOUT_S:
            with contextlib.suppress(OSError):
                if await ask():
                    return time.perf_counter() - began
            for process in self.processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{self.name} ended with {process.returncode}: {self._tail()}")
            await asyncio.sleep(0.01)
        raise TimeoutError(f"{self.name} was not ready after {READY_TIMEOUT_S} s: {self._tail()}")

    def _tail(self) -> str:
        return (self.directory / "output.txt").read_text(errors="replace")[-2000:]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End its processes by their ids, the last started first, and wait for them."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(how)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.processes.clear()

    def usage(self) -> Usage:
        """The sum over all its processes."""
        parts = [_usage(process.pid) for process in self.processes]
        return Usage(
            sum(part.cpu_s for part in parts),
            sum(part.written_bytes for part in parts),
            sum(part.anonymous_bytes for part in parts),
            sum(part.resident_bytes for part in parts),
        )


def _usage(pid: int) -> Usage:
    proc = Path(f"/proc/{pid}")
    fields = (proc / "stat").read_text().rsplit(")", 1)[1].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    status = _fields(proc / "status")
    written = int(_fields(proc / "io")["write_bytes"])
    # A process that has just died has none; `ready` and the load will fail.
    anonymous, resident = (int(status.get(name, "0 kB").split()[0]) * 1024 for name in ("RssAnon", "VmRSS"))
    return Usage(cpu_s, written, anonymous, resident)


def _fields(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    return {name: rest.strip() for name, _, rest in pairs}


def free_port() -> int:
    """A free loopback port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


async def answers(port: int, said: bytes = b"", expected: bytes = b"") -> bool:
    """Whether a server there answers this request with the expected bytes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(said)
        return not expected or (await asyncio.wait_for(reader.read(4096), 2)).startswith(expected)
    except TimeoutError:
        return False
    finally:
        writer.close()
