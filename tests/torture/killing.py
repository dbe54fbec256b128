"""The loop: start, load, kill, look, start again; at the end settle the books."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import orjson

from tests.harness.ports import reserved_port
from tests.harness.processes import COMMAND, environment
from tests.torture.books import Books, now_ms
from tests.torture.load import LEVELS_MS, NEAR_MS_MAX, TOPICS, Reader, Sender, Signals
from tests.torture.process import Service
from timerwheel.client import Client, Message
from timerwheel.offline.fsck import FsckReport, fsck

SEED_VARIABLE = "TIMERWHEEL_TORTURE_SEED"
SETTLE_S_MAX = 120.0


@dataclass(frozen=True)
class Plan:
    """How long and how hard. `share` is messages per sender and round, `up_s_max` how long a round lasts.

    After so many `kills`, and not before `lasts_s` seconds, it ends; `flags` stand for those that are drawn.
    """

    seed: int
    kills: int
    lasts_s: float = 0.0
    flags: Mapping[str, object] = field(default_factory=dict)
    senders: int = 4
    share: int = 300
    up_s_max: float = 1.2


def seed_given() -> int:
    """The seed of the environment, or a new one."""
    return int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))


@dataclass
class Loop:
    """One run; `told` gets a line per round, `after_kill` is called when the service is gone.

    `before_end` is called when the last kill is over. With `noisy`, errors in the service's log are no
    fault, as of brokers that go away; tracebacks always are. On a disk that forgets what was not synced,
    `after_kill` cuts its power; the plan then has `--flush sync`.
    """

    plan: Plan
    directory: Path
    after_kill: Callable[[], None] = lambda: None
    before_end: Callable[[], None] = lambda: None
    noisy: bool = False
    forked: bool = False
    told: Callable[[str], None] = print
    books: Books = field(default_factory=Books)
    counts: Counter[str] = field(default_factory=Counter)
    ready_s: list[float] = field(default_factory=list)
    waiting: list[Message] = field(default_factory=list)
    """What the service has not delivered when it is all over."""

    async def run(self) -> None:
        """Run it all; raises AssertionError with everything that was wrong."""
        self.told(f"{SEED_VARIABLE}={self.plan.seed}")
        self.dice = random.Random(self.plan.seed)
        self.signals = Signals()
        self.queue_count = self.dice.choice((1, 3))
        errors = self.directory / "stderr"
        with Service(self.directory / "data", reserved_port(), errors, forked=self.forked) as self.service:
            async with self._load(), aiohttp.ClientSession() as self.session:
                begun_s = monotonic()
                while self.counts["kills"] < self.plan.kills or monotonic() - begun_s < self.plan.lasts_s:
                    await self._round()
                    self._check()
                await asyncio.to_thread(self.before_end)
                await self.settle()
            self._check()
        text = errors.read_text(errors="replace")
        assert "Traceback" not in text, text[-6_000:]
        assert self.noisy or " ERROR " not in text, text[-6_000:]
        self.told(self._summary())

    @asynccontextmanager
    async def _load(self):
        url, books, signals = self._address(), self.books, self.signals
        dice = [random.Random(self.dice.random()) for _ in range(self.plan.senders)]
        self.senders = [Sender(url, books, signals, d, self.plan.share) for d in dice]
        self.readers = [
            Reader(url, books, signals, (topic, q)) for topic in TOPICS for q in range(self.queue_count)
        ]
        self.sending = [asyncio.create_task(sender.run()) for sender in self.senders]
        reading = [asyncio.create_task(reader.follow()) for reader in self.readers]
        self.tasks = [*self.sending, *reading]
        try:
            yield
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    def _address(self) -> str:
        """Where clients send to and read from."""
        return self.service.url

    # ------------------------------------------------------------------ a round

    async def _round(self) -> None:
        flags = self._flags()
        self.service.start(*flags)
        if self.dice.random() < 0.15:
            # In the middle of a start: importing, recovering, or just ready.
            await self.service.running(self.dice.uniform(0, 0.8))
            number, way = signal.SIGKILL, "killed while starting"
        else:
            await self._up()
            await self._read_again()
            await self.service.running(self.dice.uniform(0.02, self.plan.up_s_max))
            number = signal.SIGTERM if self.dice.random() < 0.1 else signal.SIGKILL
            way = "stopped" if number == signal.SIGTERM else "killed"
        self.service.signal(number)
        self.signals.up.clear()
        if number == signal.SIGTERM:
            await self.service.stopped()
        else:
            await self.service.killed()
            self.after_kill()
            self.counts["kills"] += 1
        self.counts[way] += 1
        await self._while_down(way, flags)

    def _flags(self) -> list[object]:
        """Small sizes and short times, so that every part has something to do between two kills."""
        choose = self.dice.choice
        short = choose((True, False))
        flags: dict[str, object] = {
            "--flush": choose(("sync", "sync", "async")),
            "--segment-size": choose(("64KiB", "256KiB", "4MiB")),
            "--index-interval": choose(("20ms", "100ms", "500ms")),
            "--index-records-max": choose((50, 200_000)),
            "--near": choose(("1s", "3s", "10s")),
            "--near-entries-max": choose((20, 250_000)),
            "--fire-records-max": choose((5, 1_000)),
            "--cascade-entries-max": choose((50, 32_768)),
            "--batch-size-max": choose(("64KiB", "4MiB")),
            "--retention": "4s" if short else "3d",
            "--retention-interval": "200ms" if short else "1m",
            "--levels": " ".join(f"{ms // 1000}s" for ms in LEVELS_MS.values()),
            "--queues-per-topic": self.queue_count,
        }
        return [part for flag in (flags | self.plan.flags).items() for part in flag]

    async def _up(self) -> None:
        self.ready_s.append(await self.service.ready())
        for sender in self.senders:
            sender.begin_round()
        self.signals.up.set()

    async def _read_again(self) -> None:
        """From the beginning, and from somewhere in the middle."""
        for reader in self.readers:
            known = self.books.queues.get(reader.queue, {})
            middle = self.dice.randint(0, max(known, default=0))
            await reader.again(self.session, 0, 100)
            await reader.again(self.session, middle, 100)

    async def _while_down(self, way: str, flags: list[object]) -> None:
        report = await self._fsck(f"after it was {way} with {flags}")
        if self.dice.random() < 0.25:
            shutil.rmtree(self.service.data / "index", ignore_errors=True)
            self.counts["index deleted"] += 1
            way += ", index deleted"
        size = "nothing" if report is None else f"{report.records} records, {report.segments} segments"
        self.told(
            f"{self.counts['kills']:4} {way}: {size}; {len(self.books.entries)} sent, "
            f"{sum(map(len, self.books.queues.values()))} delivered"
        )

    async def _fsck(self, when: str) -> FsckReport | None:
        if not any((self.service.data / "log").glob("*.log")):
            return None  # killed before it made anything, or its disk was lost
        report = await asyncio.to_thread(fsck, self.service.data)
        if not report.ok:
            bad = [one for one in report.findings if one.code != "sidecar_stale"]
            self.books.wrong(f"fsck {when}: {bad[:5]}")
        return report

    def _check(self) -> None:
        for task in self.tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if self.books.wrongs:
            told = "\n".join(self.books.wrongs)
            raise AssertionError(f"{SEED_VARIABLE}={self.plan.seed}\n{told}\n{self.service.errors()}")

    # ------------------------------------------------------------------ the end

    async def settle(self) -> None:
        """No more kills: let everything come out, then compare with what is owed."""
        self.service.start(*self._flags())
        await self._up()
        await self.service.running(self.plan.up_s_max)
        for sender in self.senders:
            sender.end()
        await asyncio.wait_for(asyncio.gather(*self.sending), SETTLE_S_MAX)
        until_ms = now_ms() + NEAR_MS_MAX
        async with Client(self.service.url, retry_ms=0) as client:
            await self._all_out(client, until_ms)
            self.signals.over.set()
            await asyncio.wait_for(asyncio.gather(*self.tasks), SETTLE_S_MAX)
            pending = [message async for message in client.pending()]
            told = (await client.wheel()).pending
        if told != len(pending):
            self.books.wrong(f"the wheel counts {told} pending, listed are {len(pending)}")
        self.counts["pending"] = len(pending)
        await self._stop("at the end")
        self.service.start(*self._flags())
        await self.service.ready()
        for reader in self.readers:
            await reader.again(self.session, 0, 1 << 40)
        async with Client(self.service.url, retry_ms=0) as client:
            after = [message async for message in client.pending()]
        if [m.id for m in after] != [m.id for m in pending]:
            self.books.wrong(f"{len(pending)} waited before an orderly stop, {len(after)} after")
        self.waiting = after
        self.books.settle(pending, until_ms)
        await self._stop("after the last look")

    async def _all_out(self, client: Client, until_ms: int) -> None:
        """Wait until what is due has been delivered and read, or patience ends."""
        deadline_ms = until_ms + int(SETTLE_S_MAX * 1000)
        while now_ms() < deadline_ms:
            await self.service.running(0.05)
            wheel = await client.wheel()
            soon = wheel.next_due_ms is not None and wheel.next_due_ms <= until_ms
            if not soon and len(self.books.outstanding(until_ms)) <= self.books.retired:
                return
        waiting = [entry.key for entry in self.books.outstanding(until_ms)]
        self.books.wrong(f"{len(waiting)} due messages did not come in time: {waiting[:20]}")

    async def _stop(self, when: str) -> None:
        self.service.signal(signal.SIGTERM)
        await self.service.stopped()
        report = await asyncio.to_thread(self._fsck_command)
        if not report["ok"]:
            self.books.wrong(f"fsck {when}: {report['findings'][:5]}")

    def _fsck_command(self) -> dict[str, Any]:
        command = [*COMMAND, "fsck", "--data", str(self.service.data), "--json"]
        done = subprocess.run(command, capture_output=True, env=environment(), timeout=60, check=False)
        report: dict[str, Any] = orjson.loads(done.stdout)
        assert (done.returncode == 0) == report["ok"], done.stderr.decode()
        return report

    def _summary(self) -> str:
        fates = Counter(str(entry.fate) for entry in self.books.entries.values())
        moved = sum(entry.rescheduled for entry in self.books.entries.values())
        delivered = sum(map(len, self.books.queues.values()))
        slowest = max(self.ready_s, default=0.0)
        return (
            f"{dict(self.counts)}; sent {dict(fates)}, rescheduled {moved}, delivered {delivered}, "
            f"unread at retention {self.books.retired}; slowest start {slowest:.2f} s"
        )
