"""The real service and a real broker, killed under load: a committed reader gets each message once."""

from pathlib import Path

import pytest

from tests.harness.kafka.broker import missing
from tests.harness.kafka.kills import survived

pytest.importorskip("confluent_kafka")
pytestmark = pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}")


@pytest.mark.torture
def test_after_three_kills_each_message_came_once(tmp_path: Path) -> None:
    with survived(tmp_path, kills=3, seed=1):
        pass
