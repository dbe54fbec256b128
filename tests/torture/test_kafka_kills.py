"""The real service and a real broker, killed thirty times under load."""

import os
from pathlib import Path

import pytest

from tests.harness.kafka.broker import missing
from tests.harness.kafka.kills import survive

pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
]


def test_after_thirty_kills_each_message_came_once(tmp_path: Path) -> None:
    survive(tmp_path, kills=30, seed=int(os.environ.get("SEED", "1")), rate=1_650)


def test_after_a_minute_without_brokers_everything_goes_on_by_itself(tmp_path: Path) -> None:
    survive(tmp_path, kills=1, seed=1, away_s=65)
