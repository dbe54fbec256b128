"""The loop of workers: service and workers are killed at random moments, then the books are settled.

The service is `timerwheel serve`; workers are processes that use the client over HTTP. What is checked is
said in `tests.torture.worker_books`.
"""

import asyncio
import random
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from tests.harness.ports import reserved_port
from tests.harness.processes import timerwheel
from tests.torture.killing import SEED_VARIABLE
from tests.torture.process import Service
from tests.torture.producer import Producer
from tests.torture.team import Team
from tests.torture.worker_books import WorkerBooks
from tests.torture.worker_loop import GROUP, INVISIBLE_MS, TOPICS
from timerwheel.client import Client, Exponential, GroupConfig
from timerwheel.offline.fsck import fsck

ATTEMPTS_MAX = 3
CONFIG = GroupConfig(
    max_attempts=ATTEMPTS_MAX,
    invisible_ms=INVISIBLE_MS,
    backoff=Exponential(initial_ms=10, factor=2.0, max_ms=80),
)
DRAIN_S_MAX = 120.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class WorkerPlan:
    """How long and how hard. `share` is messages per round, `up_s_max` how long a round lasts."""

    seed: int
    kills: int
    share: int = 120
    up_s_max: float = 1.2


@dataclass
class WorkerLoop:
    """One run; `told` gets a line per kill."""

    plan: WorkerPlan
    directory: Path
    forked: bool = False
    told: Callable[[str], None] = print
    books: WorkerBooks = field(default_factory=lambda: WorkerBooks(ATTEMPTS_MAX))
    counts: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Run it all; raises AssertionError with everything that was wrong."""
        self.told(f"{SEED_VARIABLE}={self.plan.seed}")
        self.dice = random.Random(self.plan.seed)
        self.queue_count = self.dice.choice((1, 3))
        errors = self.directory / "stderr"
        with (
            Service(self.directory / "data", reserved_port(), errors, forked=self.forked) as self.service,
            Team(self.service.url, self.directory, random.Random(self.dice.random())) as self.team,
        ):
            await self._set_up()
            async with self._producing() as self.producer:
                while self.counts["kills"] < self.plan.kills:
                    await self._work()
                    await self._kill()
                    await self._come_back()
                await self._finish()
            await self._settle()
        for text in (errors.read_text(errors="replace"), self.team.errors()):
            assert "Traceback" not in text, text[-6_000:]
            assert " ERROR " not in text, text[-6_000:]
        self.counts["workers replaced"] = self.team.replaced
        self.told(f"{dict(self.counts)}; {len(self.books.entries)} messages, {dict(self.books.counts)}")
        done = {e.topic for e in self.books.entries.values() if any(held.acked for held in e.held)}
        assert done == set(TOPICS), "the run did no work"

    async def _set_up(self) -> None:
        self.service.start(*self._flags())
        await self.service.ready()
        async with Client(self.service.url, retry_ms=0) as client:
            await client.set_ordered("lanes", ordered=True)
            for topic in TOPICS:
                await client.group(topic, GROUP).put(CONFIG)
        self.team.start()

    @asynccontextmanager
    async def _producing(self) -> AsyncIterator[Producer]:
        producer = Producer(self.service.url, self.books, random.Random(self.dice.random()))
        self.sending = asyncio.create_task(producer.run())
        try:
            yield producer
        finally:
            self.sending.cancel()
            await asyncio.gather(self.sending, return_exceptions=True)

    def _flags(self) -> list[object]:
        """Small sizes and short times, so that every part has something to do between two kills."""
        choose = self.dice.choice
        flags: dict[str, object] = {
            "--flush": choose(("sync", "sync", "async")),
            "--segment-size": choose(("64KiB", "256KiB", "4MiB")),
            "--index-interval": choose(("20ms", "100ms", "500ms")),
            "--index-records-max": choose((50, 200_000)),
            "--near": choose(("1s", "3s")),
            "--near-entries-max": choose((20, 250_000)),
            "--fire-records-max": choose((5, 1_000)),
            "--group-items-max": choose((60, 100_000)),
            "--redelivery-delay": choose(("0s", "10ms")),
            "--queues-per-topic": self.queue_count,
        }
        return [part for flag in flags.items() for part in flag]

    # ------------------------------------------------------------------ a round

    async def _work(self) -> None:
        """Let all work for a while, and kill a worker or two meanwhile."""
        self.producer.begin_round(self.plan.share)
        up_s = self.dice.uniform(0.1, self.plan.up_s_max)
        passed_s = 0.0
        for moment_s in sorted(self.dice.uniform(0, up_s) for _ in range(self.dice.randint(1, 2))):
            await self._pass(moment_s - passed_s)
            passed_s = moment_s
            self.team.kill(1)
            self.counts["workers killed"] += 1
        await self._pass(up_s - passed_s)

    async def _pass(self, seconds: float) -> None:
        """Let the service run so long; workers that are gone are replaced."""
        while seconds > 0:
            self.team.replace()
            await self.service.running(min(seconds, _LOOK_S))
            seconds -= _LOOK_S

    async def _kill(self) -> None:
        """The service, sometimes workers with it; then look at what it left."""
        count = self.dice.choice((0, 0, 0, 1, 4))
        self.service.signal(signal.SIGKILL)
        self.team.kill(count)
        await self.service.killed()
        self.counts["kills"] += 1
        self.counts["workers killed"] += count
        report = await asyncio.to_thread(fsck, self.service.data)
        way = f"killed with {count} workers"
        if not report.ok:
            self.books.wrongs.append(f"fsck after it was {way}: {report.findings[:5]}")
        if self.dice.random() < 0.25:
            shutil.rmtree(self.service.data / "index", ignore_errors=True)
            self.counts["index deleted"] += 1
            way += ", index deleted"
        self._check()
        self.told(
            f"{self.counts['kills']:4} {way}: {report.records} records, {len(self.books.entries)} sent, "
            f"{self.books.counts['got']} received, {self.books.counts['acked']} acknowledgements answered"
        )

    async def _come_back(self) -> None:
        """Start the service again; at times it is killed while it starts, too."""
        self.service.start(*self._flags())
        while self.dice.random() < 0.1 and self.counts["kills"] < self.plan.kills:
            await self._pass(self.dice.uniform(0, 0.8))
            await self._kill()
            self.service.start(*self._flags())
        await self.service.ready()

    def _check(self) -> None:
        if self.sending.done() and not self.sending.cancelled():
            self.sending.result()
        self.books.read(self.team.journals)
        self.books.check()
        self._raise_wrongs()

    def _raise_wrongs(self) -> None:
        if self.books.wrongs:
            told = [f"{SEED_VARIABLE}={self.plan.seed}", *self.books.wrongs[:30]]
            raise AssertionError("\n".join([*told, self.service.errors(), self.team.errors()]))

    # ------------------------------------------------------------------ the end

    async def _finish(self) -> None:
        """No more kills but the workers' own: all is sent, answered, and worked off."""
        await self._work()
        self.producer.end()
        begun = monotonic()
        async with Client(self.service.url, retry_ms=0) as client:
            while (left := await self._open(client)) or not self.sending.done():
                assert monotonic() - begun < DRAIN_S_MAX, f"not done: {left} {self.sending}"
                await self._pass(_LOOK_S)
        self.sending.result()
        self.team.end()
        self._check()

    async def _open(self, client: Client) -> list[object]:
        """What is not done: messages that wait, leases, and groups that hold something or lag."""
        wheel = await client.wheel()
        infos = [await client.group(topic, GROUP).info() for topic in TOPICS]
        held = [i for i in infos if i.lag or i.in_flight or i.waiting or i.ready or i.parked]
        return [wheel] * (wheel.pending + wheel.leases > 0) + held

    async def _settle(self) -> None:
        """Look at what there is, stop, look at the files, and see that a start from the log alone agrees."""
        self.books.settle(*await self._look())
        self._raise_wrongs()
        await self._stop()
        shutil.rmtree(self.service.data / "index")
        self.service.start(*self._flags())
        await self.service.ready()
        self.books.settle(*await self._look())
        self._raise_wrongs()
        await self._stop()

    async def _look(self):
        """Every message of the topics, queue by queue, and every dead letter; nothing may be open."""
        async with Client(self.service.url, retry_ms=0) as client:
            assert await self._open(client) == []
            for topic in TOPICS:
                assert await client.group(topic, GROUP).receive(100) == []
            places = [(topic, queue) for topic in TOPICS for queue in range(self.queue_count)]
            stored = [m for place in places async for m in client.receive(*place, follow=False)]
            return stored, [letter async for letter in client.dead_letters(GROUP).all()]

    async def _stop(self) -> None:
        self.service.signal(signal.SIGTERM)
        await self.service.stopped()
        report = (await asyncio.to_thread(timerwheel, "fsck", "--data", self.service.data, "--json")).json
        assert report["ok"], report["findings"][:5]
        assert report["pending"] == 0, report
