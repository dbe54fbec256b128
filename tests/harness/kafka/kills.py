"""Kill the service and its broker again and again under load, and count what a committed reader gets."""

import contextlib
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from tests.harness.kafka.broker import Broker
from tests.harness.kafka.clients import Clients, Got
from tests.harness.processes import serving

INLET, TARGET, JOURNAL = "timers", "orders", "shop"
NODE_URL = "http://shop.example"  # so that it is known as the one that led before
LOST_DISKS = 0.5
DELAY_MS_MAX = 2_000
PAUSE_S_MAX = 1.0


class Load(threading.Thread):
    """Schedules numbered messages at a steady rate; each is in the inlet once, whatever is killed."""

    def __init__(self, address: str, count: int, rate: int, seed: int) -> None:
        super().__init__(daemon=True)  # a test that has failed does not wait for it
        self._count = count
        self._rate = rate
        self._random = random.Random(seed)
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer(settings | {"message.timeout.ms": 600_000})
        self.left = count

    def run(self) -> None:
        began = time.monotonic()
        for number in range(self._count):
            delay_ms = self._random.randrange(DELAY_MS_MAX)
            headers = {"TIMER_TOPIC": TARGET, "TIMER_DELAY_MS": str(delay_ms)}
            key = str(number % 97).encode()
            self._producer.produce(INLET, str(number).encode(), key, headers=headers)
            self._producer.poll(0)
            time.sleep(max(began + number / self._rate - time.monotonic(), 0))
        self.left = self._producer.flush(300)


class Survivors(NamedTuple):
    """What is left when nothing is killed any more. The broker still runs; the service was ended."""

    clients: Clients
    data: Path
    count: int
    found: list[Got]


@contextlib.contextmanager
def survived(
    directory: Path, *, kills: int, seed: int, rate: int = 1_000, away_s: float = 0, in_kafka: bool = False
) -> Iterator[Survivors]:
    """Every third kill hits the broker, or all with `away_s`, so long it is away then.

    In the end, each message is in the target once, and none is early. With `in_kafka`, the service's log is
    there too, as JOURNAL, and half of the killed services lose their disk.
    """
    print("seed", seed)
    chance = random.Random(seed)
    broker = Broker(directory / "kafka")
    broker.start()
    try:
        clients = Clients(broker.address)
        clients.wait()
        clients.make(INLET, TARGET, partitions=3)
        count = rate * (2 + 2 * kills)
        load = Load(broker.address, count, rate, seed)
        load.start()
        for kill in range(kills):
            with _service(directory / "data", broker, in_kafka=in_kafka) as kill_service:
                time.sleep(1 + chance.uniform(0, PAUSE_S_MAX))
                if kill % 3 == 1 or away_s:
                    broker.kill()
                    time.sleep(away_s or chance.uniform(0, PAUSE_S_MAX))
                    broker.start()
                else:
                    kill_service()
            if in_kafka and chance.random() < LOST_DISKS:
                shutil.rmtree(directory / "data")
        load.join()
        assert load.left == 0
        with _service(directory / "data", broker, in_kafka=in_kafka) as kill_service:
            try:
                found = clients.read_count(TARGET, count)
            except AssertionError:
                print(kill_service())
                raise
        times = Counter(int(got.value or b"") for got in found)
        assert not [number for number in range(count) if times[number] == 0], "missing"
        assert not [number for number in times if times[number] > 1], "twice"
        assert not [got for got in found if got.stored_ms < int(got.header("TIMER_DUE_MS"))], "early"
        yield Survivors(clients, directory / "data", count, found)
    finally:
        broker.kill()


@contextlib.contextmanager
def _service(data: Path, broker: Broker, *, in_kafka: bool) -> Iterator[Callable[[], object]]:
    flags = ["--kafka", broker.address, "--kafka-inlet", INLET]
    if in_kafka:
        flags += ["--journal", f"kafka://{broker.address}/{JOURNAL}", "--node-url", NODE_URL]
    with serving(data, *flags) as service:
        yield lambda: service.end(9)
