"""This service, as `timerwheel serve` starts it."""

import sys
from importlib.metadata import version
from pathlib import Path

from bench.peers.system import HOST, System, answers, free_port
from bench.wires.wire import Spec


class Timerwheel(System):
    """One `serve` process; `flush` is sync or async.

    If `grouped`, consumers are members of a group that acknowledge each message; else they read the queue
    from an offset that they keep themselves.
    """

    def __init__(self, directory: Path, flush: str = "sync", *, grouped: bool = False) -> None:
        super().__init__(directory)
        self.name = f"timerwheel {flush}" + (", group" if grouped else "")
        read = "receive and acknowledge, as a group" if grouped else "long polls of the queue"
        self.settings = {"flush": flush, "consumer": read}
        self.flush = flush
        self.data = directory / "data"
        self.port = free_port()
        self.grouped = grouped

    @property
    def url(self) -> str:
        """Where it is served."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Of its process."""
        return self.processes[0].pid

    @classmethod
    def missing(cls) -> str | None:
        """Always there: it is this project."""
        return None

    def version(self) -> str:
        """Of the package."""
        return version("timerwheel")

    async def start(self) -> float:
        """Until `/readyz` says yes: the log and the index are whole again, and sends are taken."""
        command = [sys.executable, "-m", "timerwheel.cli.main", "serve", "--host", HOST]
        self.launch(
            [
                *command,
                "--port",
                str(self.port),
                "--data",
                str(self.data),
                *("--flush", self.flush),
                *self.flags,
            ]
        )
        asked = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        return await self.ready(lambda: answers(self.port, asked, b"HTTP/1.1 200"))

    async def prepare(self, topic: str) -> None:
        """Topics are made by the first send, and groups by the first receive."""

    def sender(self, topic: str) -> Spec:
        """See `bench.wires.timerwheel`."""
        return {"wire": "timerwheel", "host": HOST, "port": self.port, "topic": topic}

    def receiver(self, topic: str) -> Spec:
        """See `bench.wires.timerwheel`."""
        return self.sender(topic) | ({"group": "bench"} if self.grouped else {})
