"""SIGKILL of shards under load: TIMERWHEEL_TORTURE_KILLS kills, 40 unless told."""

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.harness.kafka.broker import Broker, missing
from tests.torture.audited import Auditor
from tests.torture.killing import Plan, seed_given
from tests.torture.sharded import ShardsLoop
from timerwheel.state.log_manifest import shards_in

KILLS = int(os.environ.get("TIMERWHEEL_TORTURE_KILLS") or 40)


@pytest.mark.torture
async def test_after_kills_of_shards_under_load_the_books_are_right(tmp_path):
    plan = Plan(seed_given(), kills=KILLS, flags={"--flush": "sync"})
    await ShardsLoop(plan, tmp_path, noisy=True).run()


@pytest.mark.torture
@pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}")
async def test_after_kills_of_shards_whose_logs_are_in_kafka_the_books_are_right(tmp_path: Path) -> None:
    """Of a killed node, half of the shards lose their disk."""
    pytest.importorskip("confluent_kafka")
    seed = seed_given()
    dice = random.Random(seed)
    broker = Broker(tmp_path / "broker")

    def lose_disks() -> None:
        for data in shards_in(tmp_path / "data"):
            if dice.random() < 0.5:
                shutil.rmtree(data)

    try:
        broker.start()
        journal = f"kafka://{broker.address}/shop"
        flags = {"--flush": "sync", "--journal": journal, "--retention": "3d"}
        plan = Plan(seed, kills=KILLS, flags=flags)
        loop = ShardsLoop(plan, tmp_path, after_kill=lose_disks, noisy=True)
        await loop.run()
        auditor = Auditor(tmp_path, broker.address)
        auditor.balance(loop.books, loop.waiting, is_whole=True)
        auditor.finds_a_forged_delivery()
    finally:
        broker.kill()
