"""What could stop the bridge, or have it send twice: records and topics that nobody should make, but may."""

import time
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.e2e.kafka.test_kafka_bridge import Bridge, why_rejected, bridged
from tests.harness.kafka.clients import Clients
from tests.harness.kafka.raw_headers import send

NODE_URL = "http://shop.example"


def test_a_record_whose_headers_cannot_be_read_is_rejected_and_holds_up_no_other(
    kafka: Clients, tmp_path: Path
) -> None:
    with bridged(kafka, tmp_path / "data") as bridge:
        named = [(b"TIMER_TOPIC", bridge.target.encode()), (b"TIMER_DELAY_MS", b"0"), (b"\xff\xfe", b"x")]
        send(kafka.address, bridge.inlet, b"odd", named)
        bridge.schedule(b"good", ("TIMER_DELAY_MS", "0"))
        assert [got.value for got in bridge.out()] == [b"good"]
        (rejected,) = bridge.rejected()
    assert (rejected.value, rejected.header("TIMER_REJECTED")) == (b"odd", "illegal_header")
    assert "not UTF-8" in rejected.header("TIMER_REASON")


@pytest.mark.parametrize("target", ["__consumer_offsets", "__transaction_state"])
def test_no_message_goes_to_a_topic_of_the_brokers(kafka: Clients, tmp_path: Path, target: str) -> None:
    kafka.transaction([], commit=True)  # so that both are there
    with bridged(kafka, tmp_path / "data") as bridge:
        bridge._replace(target=target).schedule(b"v", ("TIMER_DELAY_MS", "0"))
        (rejected,) = bridge.rejected()
    assert rejected.header("TIMER_REJECTED") in {"system_topic", "unknown_topic"}


def test_with_the_log_in_kafka_none_of_its_units_is_too_large_and_no_message_goes_to_its_topic(
    kafka: Clients, tmp_path: Path
) -> None:
    name = f"shop{time.time_ns()}"
    kafka.make(f"{name}-log", retention_ms="-1", retention_bytes="-1", max_message_bytes="200000")
    journal = ("--journal", f"kafka://{kafka.address}/{name}", "--node-url", NODE_URL)
    with bridged(kafka, tmp_path / "data", *journal) as bridge:
        due = [("TIMER_TOPIC", bridge.target.encode()), ("TIMER_DELAY_MS", b"0")]
        kafka.transaction(
            [(bridge.inlet, b"v" * size, due) for size in (90_000, 90_000, 400_000, 90_000)], commit=True
        )
        assert [len(got.value or b"") for got in bridge.out(3)] == [90_000] * 3
        _is_refused(bridge, "request_too_large")
        bridge._replace(target=f"{name}-log").schedule(b"v", ("TIMER_DELAY_MS", "0"))
        assert why_rejected(bridge, "system_topic", b"v").value == b"v"


def _is_refused(bridge: Bridge, code: str) -> None:
    """Such a rejection has nothing of the record but where it is."""
    (rejected,) = bridge.rejected()
    assert rejected.header("TIMER_REJECTED") == code
    assert (rejected.key, rejected.value) == (None, None)
    assert rejected.header("TIMER_FROM").startswith(f"{bridge.inlet}/")
