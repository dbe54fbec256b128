"""Workers as processes: each one's journal is its own, and whoever is killed has a successor."""

import random
import subprocess
import sys
from pathlib import Path

from tests.harness.processes import ROOT, environment
from tests.torture.worker_loop import WAYS

_KILLED = -9


class Team:
    """One worker for each way to get messages. `with` kills those that still run."""

    def __init__(self, url: str, directory: Path, dice: random.Random) -> None:
        self.journals = directory / "journals"
        self.journals.mkdir()
        self.replaced = 0
        self._url = url
        self._errors = directory / "stderr-workers"
        self._dice = dice
        self._started = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """The first of each."""
        for way in WAYS:
            self._start(way)

    def _start(self, way: str) -> None:
        self._started += 1
        journal = self.journals / f"{self._started:05}-{way}"
        command = ("-m", "tests.torture.worker_loop", self._url, journal, self._dice.getrandbits(32), way)
        with self._errors.open("ab") as errors:
            self._processes[way] = subprocess.Popen(
                [sys.executable, *map(str, command)],
                cwd=ROOT,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def kill(self, count: int) -> None:
        """SIGKILL so many, whatever they are at."""
        for way in self._dice.sample(WAYS, count):
            self._processes[way].kill()

    def replace(self) -> None:
        """Successors for those who were killed, or killed themselves; nobody may end in another way."""
        for way, process in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                assert code == _KILLED, f"the worker {way} ended with {code}: {self.errors()}"
                self.replaced += 1
                self._start(way)

    def end(self) -> None:
        """SIGKILL all."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def errors(self) -> str:
        """What all workers so far wrote to stderr, its end."""
        return self._errors.read_text(errors="replace")[-6_000:]
