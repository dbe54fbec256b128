"""This service, as `timerwheel serve` starts it."""

import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from bench.connection import connected
from bench.peers.system import HOST, System, answers, free_port
from bench.wires.wire import Spec

GROUP = "bench"
BROKERS = "TIMERWHEEL_BENCH_KAFKA"
"""Environment variable with the brokers for the log in Kafka, HOST:PORT and more of them."""


class Timerwheel(System):
    """One `serve` process; `flush` is sync or async.

    If `grouped`, consumers belong to a group and acknowledge each message; otherwise they read the queue from
    an offset that they track themselves.
    """

    wire = work_wire = "timerwheel"
    work_max = 1_000

    def __init__(self, directory: Path, flush: str = "sync", *, grouped: bool = False) -> None:
        super().__init__(directory)
        self.name = f"timerwheel {flush}" + (", group" if grouped else "")
        read = "receive and acknowledge, as a group" if grouped else "long polls of the queue"
        self.settings = {
            "flush": flush,
            "consumer": read,
            "in consume": "receive and acknowledge, as a group",
        }
        self.flush = flush
        self.data = directory / "data"
        self.port = free_port()
        self.grouped = grouped

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.processes[0].pid

    @classmethod
    def missing(cls) -> str | None:
        """None: it is this project."""
        return None

    def version(self) -> str:
        """The version of the package."""
        return version("timerwheel")

    async def start(self) -> float:
        """Wait until `/readyz` succeeds: recovery is done and sends are accepted."""
        command = [sys.executable, "-m", "timerwheel.cli.main", "serve", "--host", HOST]
        self.launch(
            [
                *command,
                "--port",
                str(self.port),
                "--data",
                str(self.data),
                *("--flush", self.flush),
                *(("--rocketmq", self.name_server) if self.name_server else ()),
                *(("--rocketmq-grpc", f"{HOST}:{self.grpc_port}") if self.grpc_port else ()),
                *self.flags,
            ]
        )
        asked = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        return await self.ready(lambda: answers(self.port, asked, b"HTTP/1.1 200"))

    def receiver(self, topic: str) -> Spec:
        """See `bench.wires.timerwheel`."""
        return self.member(topic) if self.grouped else self.sender(topic)

    def member(self, topic: str) -> Spec:
        """A receiver that is a member of a group."""
        return self.sender(topic) | {"group": GROUP}

    async def prepare_work(self, topic: str) -> None:
        """Create the group."""
        async with connected(self.port, 1) as [connection]:
            await connection.call("PUT", f"/v1/topics/{topic}/groups/{GROUP}", b'{"start": "head"}')

    def worker(self, topic: str, count_max: int, *, ack_with_next: bool) -> Spec:
        """Return the spec of a worker that is a member of the group."""
        return super().worker(topic, count_max, ack_with_next=ack_with_next) | {"group": GROUP}


class TimerwheelOnKafka(Timerwheel):
    """The service with its log in Kafka: each start has a topic of its own there."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.name = "timerwheel, log in Kafka"
        self.settings = {**self.settings, "log": "in Kafka, a copy on the disk"}
        self.flags += ("--journal", f"kafka://{os.environ[BROKERS]}/bench-{time.time_ns()}")

    @classmethod
    def missing(cls) -> str | None:
        """Brokers are not started here: they may be on other machines."""
        return None if os.environ.get(BROKERS) else f"set {BROKERS} to the HOST:PORT of brokers"
