"""What an outlet says of itself while it cannot reach Kafka."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.harness.kafka.bridged import Bridged, names, send
from tests.harness.kafka.clients import Clients
from tests.harness.ports import HOST, reserved_port
from timerwheel.model.kafka_counts import BridgeState


async def test_what_has_not_gone_out_is_counted_while_brokers_are_away(
    kafka: Clients, tmp_path: Path
) -> None:
    bridged = Bridged(kafka, tmp_path)
    bridged.address = f"{HOST}:{reserved_port()}"
    async with bridged.engine() as engine, bridged.outlet(engine, bridged.target):
        await send(engine, bridged.target, names("waiting", 5))
        while bridged.counts.outlet_state is not BridgeState.WAITING:
            await asyncio.sleep(0.01)
        assert bridged.counts.behind == 5
