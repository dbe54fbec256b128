"""One broker for all tests of this folder, made when the first one asks for it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.broker import GIVEN, Broker, missing
from tests.harness.kafka.clients import Clients


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """Clients of a broker that no test kills."""
    pytest.importorskip("confluent_kafka")
    if (command := missing()) is not None:
        pytest.skip(f"needs Kafka: {command}")
    if given := os.environ.get(GIVEN):
        yield Clients(given)
        return
    broker = Broker(Path(tmp_path_factory.mktemp("kafka")))
    try:
        broker.start()
        clients = Clients(broker.address)
        clients.wait()
        yield clients
    finally:
        broker.kill()
