"""How late messages of the bridge to Kafka are at a steady rate: from an inlet to a `read_committed` reader.

A broker that has just started compiles its code for some seconds: the first ones are shown apart. Figures are
printed (`-s`), not judged: they depend on the machine. doc/kafka.md has those of one.
"""

import os
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.harness.kafka.broker import AS_SHIPPED, Broker, missing
from tests.harness.kafka.clients import Clients
from tests.harness.processes import serving

confluent_kafka = pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
]

SECONDS = {1_000: 40, 20_000: int(os.environ.get("TIMERWHEEL_TORTURE_RATE_S") or 60)}
DELAY_MS = 3_000
WARM_S = 10
INLET, TARGET = "timers", "orders"
TURN_S = 0.01
PATIENCE_S = 120.0


class Reader(threading.Thread):
    """Reads the target as committed; notes how late each message is, and which it is."""

    def __init__(self, address: str, count: int) -> None:
        super().__init__(daemon=True)
        self.dues_ms: list[int] = []
        self.late_ms: list[int] = []
        self.times: Counter[int] = Counter()
        self.ended_s = 0.0
        self._count = count
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "reader",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([TARGET])

    def run(self) -> None:
        until = time.monotonic() + PATIENCE_S + SECONDS[20_000]
        while len(self.late_ms) < self._count and time.monotonic() < until:
            first = self._consumer.poll(0.5)
            found = [] if first is None else [first, *self._consumer.consume(5_000, 0)]
            now_ms = time.time_ns() // 1_000_000
            for message in found:
                if message.error() is None:
                    number, due_ms = map(int, message.value().split())
                    self.dues_ms.append(due_ms)
                    self.late_ms.append(now_ms - due_ms)  # not its TIMER_DUE_MS: it may be taken too late
                    self.times[number] += 1
        self.ended_s = time.monotonic()
        self._consumer.close()


@pytest.mark.parametrize("rate", SECONDS)
def test_each_message_at_a_steady_rate_comes_once_and_none_early(tmp_path: Path, rate: int) -> None:
    broker = Broker(tmp_path / "kafka")
    count = rate * SECONDS[rate]
    try:
        broker.start(*AS_SHIPPED)
        clients = Clients(broker.address)
        clients.wait()
        clients.make(INLET, TARGET, partitions=4)
        with serving(tmp_path / "data", "--kafka", broker.address, "--kafka-inlet", INLET) as service:
            reader = Reader(broker.address, count)
            reader.start()
            began_s = time.monotonic()
            produce(broker.address, rate, count)
            sent_s = time.monotonic() - began_s
            reader.join()
            assert service.process.poll() is None
            cpu_us = cpu_s(service.process.pid) * 1e6 / count
    finally:
        broker.kill()
    took_s = reader.ended_s - began_s - DELAY_MS / 1000
    print(f"\n{count:,} sent in {sent_s:.1f} s, read {count / took_s:,.0f}/s;", end=" ")
    print(f"{cpu_us:.0f} µs of the service's processor each; due to read in ms:")
    dues_ms, late_ms = np.array(reader.dues_ms), np.array(reader.late_ms)
    is_warm = dues_ms >= dues_ms.min() + WARM_S * 1000
    print(f"  the first {WARM_S} s: {percentiles(late_ms[~is_warm])}")
    print(f"  then: {percentiles(late_ms[is_warm])}")
    assert len(reader.times) == count
    assert set(reader.times.values()) == {1}
    assert min(reader.late_ms) >= 0


def cpu_s(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentiles(late_ms: np.ndarray) -> str:
    values = np.percentile(late_ms, [50, 90, 99, 100])
    return ", ".join(
        f"{name} {value:.0f}" for name, value in zip(("p50", "p90", "p99", "max"), values, strict=True)
    )


def produce(address: str, rate: int, count: int) -> None:
    """Send at a steady rate."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
    )
    began_s, sent = time.monotonic(), 0
    while sent < count:
        wanted = min(int((time.monotonic() - began_s) * rate) + 1, count)
        due_ms = str(time.time_ns() // 1_000_000 + DELAY_MS)
        headers = [("TIMER_TOPIC", TARGET), ("TIMER_DELIVER_MS", due_ms)]
        for number in range(sent, wanted):
            producer.produce(
                INLET, f"{number} {due_ms}".encode(), str(number % 997).encode(), headers=headers
            )
        sent = wanted
        producer.poll(0)
        time.sleep(TURN_S)
    assert producer.flush(60) == 0
