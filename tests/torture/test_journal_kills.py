"""The log in Kafka under load: service, disk and brokers are lost, and a replaced leader wakes."""

import asyncio
import os
import random
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.harness.kafka.broker import Broker, Brokers, missing
from tests.harness.ports import reserved_port
from tests.torture.audited import Auditor
from tests.torture.killing import Loop, Plan, seed_given
from tests.torture.process import Service
from tests.torture.taking_over import PairLoop
from timerwheel.client import Client

pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
]

KILLS = int(os.environ.get("TIMERWHEEL_TORTURE_KILLS") or 30)
BROKER_KILLS = max(KILLS // 3, 1)
KEPT = {"--retention": "3d"}
"""Then the log has all that was ever sent, and an audit can count it."""
ZOMBIE_CALLS = 1_000
READS = 400


async def test_after_kills_that_take_the_disk_along_the_books_are_right(tmp_path: Path) -> None:
    seed = seed_given()
    dice = random.Random(seed)
    broker = Broker(tmp_path / "broker")

    def lose_the_disk() -> None:
        if dice.random() < 0.5:
            shutil.rmtree(tmp_path / "data", ignore_errors=True)  # killed early, it has none

    try:
        broker.start()
        plan = Plan(seed, KILLS, flags=journal_of(broker.address))
        loop = Loop(plan, tmp_path, after_kill=lose_the_disk)
        await loop.run()
        Auditor(tmp_path, broker.address).balance(loop.books, loop.waiting, is_whole=False)
    finally:
        broker.kill()


async def test_after_kills_of_leaders_and_standbys_the_books_are_right(tmp_path: Path) -> None:
    """Half of them lose their disk; some leaders sleep until they are replaced."""
    seed = seed_given()
    dice = random.Random(seed)
    broker = Broker(tmp_path / "broker")
    try:
        broker.start()
        plan = Plan(seed, KILLS, flags=journal_of(broker.address) | KEPT)
        loop = PairLoop(plan, tmp_path, noisy=True)

        def lose_the_disk() -> None:
            if dice.random() < 0.5:
                shutil.rmtree(loop.service.data, ignore_errors=True)

        loop.after_kill = lose_the_disk
        await loop.run()
        auditor = Auditor(tmp_path, broker.address)
        auditor.balance(loop.books, loop.waiting, is_whole=True)
        auditor.finds_a_forged_delivery()
    finally:
        broker.kill()


async def test_after_kills_of_brokers_and_services_the_books_are_right(tmp_path: Path) -> None:
    """Of three brokers, never more than one is gone."""
    seed = seed_given()
    brokers = Brokers(tmp_path / "brokers")
    killer = Killer(brokers, BROKER_KILLS, random.Random(seed))
    try:
        brokers.start()
        killer.start()
        plan = Plan(seed, BROKER_KILLS, up_s_max=8, flags=journal_of(brokers.address) | KEPT)
        loop = Loop(plan, tmp_path, before_end=killer.join, noisy=True)
        await loop.run()
        assert killer.kills == BROKER_KILLS
        Auditor(tmp_path, brokers.address).balance(loop.books, loop.waiting, is_whole=True)
    finally:
        killer.over.set()
        brokers.kill()


def journal_of(address: str) -> dict[str, object]:
    return {"--flush": "sync", "--journal": f"kafka://{address}/shop"}


class Killer(threading.Thread):
    """Kills one broker after the other, and starts it again."""

    def __init__(self, brokers: Brokers, kills: int, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.kills = 0
        self._brokers = brokers
        self._wanted = kills
        self._dice = dice

    def run(self) -> None:
        while self.kills < self._wanted and not self.over.wait(self._dice.uniform(2, 6)):
            broker = self._dice.choice(self._brokers.each)
            broker.kill()
            self.kills += 1
            self.over.wait(self._dice.uniform(0, 12))
            if not self.over.is_set():
                broker.start()


async def test_a_woken_leader_answers_no_call_with_success(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    flags = [part for flag in journal_of(broker.address).items() for part in flag]
    answers: Counter[int] = Counter()
    with (
        Service(tmp_path / "first", reserved_port(), tmp_path / "stderr-1") as first,
        Service(tmp_path / "second", reserved_port(), tmp_path / "stderr-2") as second,
    ):
        try:
            broker.start()
            first.start(*flags)
            await first.ready()
            async with Client(first.url, retry_ms=0) as client:
                pending = [await client.send("t", str(number), delay="1h") for number in range(50)]
            first.signal(signal.SIGSTOP)
            second.start(*flags)
            await second.ready()
            async with Client(second.url, retry_ms=0) as client:
                for one in pending[:10]:
                    await client.recall(one.id)
            calls = [write_to(first.url, number, pending[number % 50].id) for number in range(ZOMBIE_CALLS)]
            reads = [read_from(first.url, number, pending[number % 10].id) for number in range(READS)]
            asking = asyncio.gather(*calls, *reads)
            await asyncio.sleep(0.5)  # so that many wait in the sockets of the one that sleeps
            first.signal(signal.SIGCONT)
            answers.update(await asking)
            print(sorted(answers.items()))
            assert not [status for status in answers if 200 <= status < 300], answers
            async with Client(second.url, retry_ms=0) as client:
                waiting = {message.id async for message in client.pending()}
            assert waiting == {one.id for one in pending[10:]}
        finally:
            broker.kill()


async def read_from(url: str, number: int, message_id: str) -> int:
    """Ask for what the successor has changed; returns the status, 0 without an answer."""
    path = (f"/v1/messages/{message_id}", "/v1/messages", "/v1/wheel", "/v1/topics/t")[number % 4]
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
            session.get(url + path) as response,
        ):
            return response.status
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0


async def write_to(url: str, number: int, message_id: str) -> int:
    """Send, recall or reschedule; returns the status, 0 without an answer."""
    where = f"{url}/v1/messages/{message_id}"
    timeout = aiohttp.ClientTimeout(total=60)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            if number % 3 == 0:
                call = session.post(f"{url}/v1/messages", json={"topic": "t", "body": "never"})
            elif number % 3 == 1:
                call = session.delete(where)
            else:
                call = session.patch(where, json={"delay": "2h"})
            async with call as response:
                return response.status
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0
