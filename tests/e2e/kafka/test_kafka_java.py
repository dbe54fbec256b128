"""Kafka's own Java client, unmodified, schedules and reads: see `tests/clients/kafka-java`."""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.e2e.kafka.test_kafka_bridge import bridged
from tests.harness.kafka.broker import LIBRARIES, missing
from tests.harness.kafka.clients import PATIENCE_S, Clients
from tests.harness.processes import QUICK_JAVA_FLAGS, ROOT

SOURCE = ROOT / "tests" / "clients" / "kafka-java" / "Delayed.java"

pytestmark = [
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka's jars: {missing(own=True)}"),
    pytest.mark.skipif(
        shutil.which("javac") is None, reason="needs Java's compiler: apt-get install openjdk-17-jdk-headless"
    ),
]


def test_what_a_java_client_schedules_in_transactions_comes_once_and_where_it_would_put_it(
    kafka: Clients, tmp_path: Path
) -> None:
    with bridged(kafka, tmp_path / "data") as bridge:
        program = ("-cp", f"{LIBRARIES}/*", str(SOURCE))
        arguments = (kafka.address, bridge.inlet, bridge.target, "15")
        ran = subprocess.run(
            ["java", *QUICK_JAVA_FLAGS, *program, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    came = [line.split() for line in ran.stdout.splitlines()]
    keys = [f"key-{number}" for number in range(5)]
    values = ("direct", "value-0", "value-2")
    assert Counter((key, value) for key, value, _ in came) == {
        (key, value): 1 for key in keys for value in values
    }
    partitions = {(key, partition) for key, _, partition in came}
    assert len(partitions) == len(keys), "each key is in one partition"
    assert len({partition for _, partition in partitions}) == 2
