"""A process of workers: an engine on a real disk and those who consume from it, until it is killed.

    python -m tests.torture.worker_loop DATA SEED FIRST_NUMBER work|drain

Everything that a worker was told it writes to stdout at once, one JSON array per line, before it goes on: so
whoever reads the pipe knows what was answered though the process is gone. With `drain` nothing is sent, all
that comes is acknowledged, and the process ends when its group holds nothing any more.
"""

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

import orjson

from timerwheel.engine import Engine
from timerwheel.groups.config import Exponential, GroupConfig
from timerwheel.message import Delivery, Outgoing
from timerwheel.settings import Settings

TOPICS = ("orders", "lanes")
GROUP = "workers"
WORKERS = 4
ATTEMPTS_MAX = 4
CONFIG = GroupConfig(
    max_attempts=ATTEMPTS_MAX,
    invisible_ms=200,
    backoff=Exponential(initial_ms=10, factor=2.0, max_ms=40),
)


def tell(*facts: Any) -> None:
    os.write(1, orjson.dumps(facts) + b"\n")


class Workers:
    """Senders and consumers of one engine."""

    def __init__(self, engine: Engine, dice: random.Random, number: int) -> None:
        self.engine = engine
        self.dice = dice
        self.number = number

    async def send(self) -> None:
        """Some messages now and then: at once, or after a delay."""
        while True:
            count = self.dice.randint(1, 12)
            numbers = range(self.number, self.number + count)
            self.number += count
            topic = self.dice.choice(TOPICS)
            delay = (
                {"TIMER_DELAY_MS": str(self.dice.choice((1, 30, 400)))} if self.dice.random() < 0.3 else {}
            )
            await self.engine.send(
                [Outgoing(topic, str(n).encode(), {"__SHARDINGKEY": str(n % 7), **delay}) for n in numbers]
            )
            tell("sent", topic, list(numbers))
            await asyncio.sleep(self.dice.uniform(0, 0.01))

    async def consume(self, topic: str) -> None:
        """Receive, and do with each message what consumers do."""
        while True:
            for delivery in await self._receive(topic, self.dice.randint(1, 8)):
                await self._deal(topic, delivery)

    async def _receive(self, topic: str, count_max: int) -> list[Delivery]:
        got = await self.engine.groups.receive(topic, GROUP, count_max=count_max, wait_ms=50)
        if got:
            tell("got", topic, [(int(d.message.body), d.attempt) for d in got])
        return got

    async def _deal(self, topic: str, delivery: Delivery) -> None:
        choice, receipts = self.dice.random(), [delivery.receipt]
        if choice < 0.15:
            return  # forgotten: its lease runs out
        if choice < 0.3:
            await self.engine.groups.nack(topic, GROUP, receipts, 0 if choice < 0.2 else None, "no")
            return
        if choice < 0.4:
            await self.engine.groups.extend(topic, GROUP, receipts, self.dice.randint(1, 300))
        await self._ack(topic, [delivery])

    async def _ack(self, topic: str, deliveries: list[Delivery]) -> None:
        numbers = [int(d.message.body) for d in deliveries]
        tell("acking", topic, numbers)
        results = await self.engine.groups.ack(topic, GROUP, [d.receipt for d in deliveries])
        tell("acked", topic, [n for n, result in zip(numbers, results, strict=True) if result.ok])

    async def drain(self, topic: str) -> None:
        """Acknowledge all there is."""
        while True:
            if got := await self._receive(topic, 100):
                await self._ack(topic, got)
                continue
            info = self.engine.groups.info(topic, GROUP)
            if not (info.lag or info.in_flight or info.waiting or info.ready or info.parked):
                return

    async def tell_dead(self) -> None:
        page = await self.engine.groups.dead.page(GROUP, limit=1_000_000)
        for topic in TOPICS:
            dead = [int(d.message.body) for d in page.letters if d.origin_topic == topic]
            tell("dead", topic, dead)


async def main(data: Path, seed: int, number: int, how: str) -> None:
    settings = Settings(
        data=data,
        segment_size_bytes=64 << 10,
        index_interval_ms=20,
        index_records_max=500,
        near_ms=1_000,
        redelivery_delay_ms=10,
        disk_reserve_bytes=0,
    )
    engine = await Engine.open(settings)
    await engine.groups.set_ordered("lanes", ordered=True)
    for topic in TOPICS:
        await engine.groups.put(topic, GROUP, CONFIG)
    tell("ready", "", [])
    workers = Workers(engine, random.Random(seed), number)
    if how == "work":
        consumers = [workers.consume(topic) for topic in TOPICS for _ in range(WORKERS)]
        await asyncio.gather(workers.send(), *consumers)
    while (await engine.wheel()).pending:
        await asyncio.sleep(0.01)
    await asyncio.gather(*map(workers.drain, TOPICS))
    await workers.tell_dead()
    tell("leases", "", [engine._view.leases])
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
