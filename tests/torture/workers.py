"""Kills processes of workers and keeps the books of what they were told; see `tests.torture.worker_loop`.

Every message comes at least once or is a dead letter; what was acknowledged never comes again; an
attempt that was handed out is never handed out a second time; a dead letter is one message, once.
"""

import asyncio
import random
import shutil
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from tests.e2e.test_cli_serve import environment
from tests.torture.worker_loop import ATTEMPTS_MAX, TOPICS

NUMBERS_A_ROUND = 1_000_000
READY_S_MAX = 60.0
DRAIN_S_MAX = 120.0
ROOT = Path(__file__).parents[2]


@dataclass
class WorkerBooks:
    """What workers were told, by topic and number."""

    sent: set[tuple[str, int]] = field(default_factory=set)
    got: set[tuple[str, int]] = field(default_factory=set)
    attempts: set[tuple[str, int, int]] = field(default_factory=set)
    acking: set[tuple[str, int]] = field(default_factory=set)
    acked: set[tuple[str, int]] = field(default_factory=set)
    dead: list[tuple[str, int]] = field(default_factory=list)
    leases: int | None = None
    wrongs: list[str] = field(default_factory=list)

    def enter(self, what: str, topic: str, facts: list) -> None:
        """One line of a process."""
        if what == "got":
            for number, attempt in facts:
                self._came(topic, number, attempt)
        elif what == "leases":
            self.leases = facts[0]
        elif what == "dead":
            self.dead += [(topic, number) for number in facts]
        elif what != "ready":
            getattr(self, what).update((topic, number) for number in facts)

    def _came(self, topic: str, number: int, attempt: int) -> None:
        if (topic, number) in self.acked:
            self.wrongs.append(f"{topic} {number} was acknowledged and came again, attempt {attempt}")
        if (topic, number, attempt) in self.attempts:
            self.wrongs.append(f"{topic} {number}: attempt {attempt} was handed out twice")
        if not 1 <= attempt <= ATTEMPTS_MAX:
            self.wrongs.append(f"{topic} {number}: attempt {attempt} of {ATTEMPTS_MAX}")
        self.attempts.add((topic, number, attempt))
        self.got.add((topic, number))

    def settle(self) -> None:
        """After everything was drained."""
        dead = set(self.dead)
        twice = [place for place, count in Counter(self.dead).items() if count > 1]
        lost = self.sent - self.acking - dead
        for wrong, what in (
            (twice, "dead letters that are there twice"),
            (lost, "messages that neither came to be acknowledged nor are dead"),
            (dead & self.acked, "messages that were acknowledged and are dead"),
            (self.sent - self.got - dead, "messages that never came"),
        ):
            if wrong:
                self.wrongs.append(f"{len(wrong)} {what}: {sorted(wrong)[:10]}")
        if self.leases != 0:
            self.wrongs.append(f"{self.leases} timers are left behind")


@dataclass
class WorkerKills:
    """One run: so many kills, then everything is drained and the books are settled."""

    directory: Path
    seed: int
    kills: int
    up_s_max: float = 0.8
    books: WorkerBooks = field(default_factory=WorkerBooks)

    async def run(self) -> None:
        """Raises AssertionError with everything that was wrong."""
        dice = random.Random(self.seed)
        print(f"TIMERWHEEL_TORTURE_SEED={self.seed}")
        for number in range(1, self.kills + 1):
            await self._round(dice, number)
            if dice.random() < 0.25:
                shutil.rmtree(self.directory / "data" / "index", ignore_errors=True)
            assert not self.books.wrongs, self._told()
        await self._drain(dice)
        self.books.settle()
        assert not self.books.wrongs, self._told()
        assert {topic for topic, _ in self.books.acked} == set(TOPICS), "the run did no work"
        books = self.books
        print(f"sent {len(books.sent)}, acknowledged {len(books.acked)}, dead {len(books.dead)}")

    async def _start(self, seed: int, first: int, how: str) -> asyncio.subprocess.Process:
        command = (
            "-m",
            "tests.torture.worker_loop",
            str(self.directory / "data"),
            str(seed),
            str(first),
            how,
        )
        with (self.directory / "stderr").open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                cwd=ROOT,
                env=environment(),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=1 << 24,
            )

    async def _round(self, dice: random.Random, number: int) -> None:
        process = await self._start(dice.getrandbits(32), number * NUMBERS_A_ROUND, "work")
        ready = asyncio.Event()
        reading = asyncio.create_task(self._read(process, ready))
        try:
            async with asyncio.timeout(READY_S_MAX):
                await asyncio.wait(
                    (reading, asyncio.ensure_future(ready.wait())), return_when=asyncio.FIRST_COMPLETED
                )
            await asyncio.wait((reading,), timeout=dice.uniform(0.05, self.up_s_max))
            assert process.returncode is None, f"the process ended by itself: {self._told()}"
        finally:
            if process.returncode is None:
                process.kill()
            ready.set()
            await reading
            await process.wait()

    async def _drain(self, dice: random.Random) -> None:
        process = await self._start(dice.getrandbits(32), 0, "drain")
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                await self._read(process, asyncio.Event())
                assert await process.wait() == 0, self._told()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _read(self, process: asyncio.subprocess.Process, ready: asyncio.Event) -> None:
        """Enter every whole line; the last may be cut by the kill."""
        assert process.stdout is not None
        while (line := await process.stdout.readline()).endswith(b"\n"):
            what, topic, facts = orjson.loads(line)
            if what == "ready":
                ready.set()
            self.books.enter(what, topic, facts)

    def _told(self) -> str:
        errors = (self.directory / "stderr").read_text(errors="replace")[-4_000:]
        return "\n".join([f"TIMERWHEEL_TORTURE_SEED={self.seed}", *self.books.wrongs[:20], errors])
