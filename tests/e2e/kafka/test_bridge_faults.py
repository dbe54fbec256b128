"""What could stop the bridge, or have it send twice: records and topics that nobody should make, but may."""

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.e2e.kafka.test_kafka_bridge import Bridge, bridged, metric, why_rejected
from tests.harness.kafka.clients import Clients
from tests.harness.kafka.raw_headers import send
from tests.harness.processes import serving

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


def test_a_refused_record_holds_up_no_other_though_its_rejection_has_no_room_for_properties(
    kafka: Clients, tmp_path: Path
) -> None:
    with bridged(kafka, tmp_path / "data", "--properties-max", 1) as bridge:
        kafka.transaction([(bridge.inlet, b"odd", [])], commit=True)
        (rejected,) = bridge.rejected()
        bridge.schedule(b"good", ("TIMER_DELAY_MS", "0"))
        assert [got.value for got in bridge.out()] == [b"good"]
    assert (rejected.value, rejected.header("TIMER_REJECTED")) == (b"odd", "no_topic")


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


def test_an_inlet_that_was_made_again_while_the_service_stood_still_is_taken_once(
    kafka: Clients, tmp_path: Path
) -> None:
    with bridged(kafka, tmp_path / "data") as bridge:
        for number in range(3):
            bridge.schedule(b"old%d" % number, ("TIMER_DELAY_MS", "0"))
        bridge.out(3)
        process = bridge.service.process
        process.send_signal(signal.SIGSTOP)
        kafka.delete(bridge.inlet)
        kafka.make(bridge.inlet, partitions=2)
        due = [("TIMER_TOPIC", bridge.target.encode()), ("TIMER_DELAY_MS", b"0")]
        for number in range(40):
            kafka.send(bridge.inlet, b"new%d" % number, due, key=b"%d" % number)
        kafka.flush()
        process.send_signal(signal.SIGCONT)
        bridge.out(43)
        bridge.schedule(b"last", ("TIMER_DELAY_MS", "0"))
        times = Counter(got.value for got in bridge.out(44))
    assert times == dict.fromkeys([b"old%d" % n for n in range(3)] + [b"new%d" % n for n in range(40)], 1) | {
        b"last": 1
    }


def test_a_target_that_was_deleted_does_not_keep_the_others_back(kafka: Clients, tmp_path: Path) -> None:
    with bridged(kafka, tmp_path / "data") as bridge:
        kafka.make(other := f"{bridge.target}-other")
        both = (bridge, bridge._replace(target=other))
        for each in both:
            each.schedule(b"1", ("TIMER_DELAY_MS", "0"))
            each.out(1)
        kafka.delete(bridge.target)
        for each in both:
            each.schedule(b"2", ("TIMER_DELIVER_MS", str(time.time_ns() // 1_000_000 + 300)))
        found = both[1].out(2)
        assert [got.value for got in found] == [b"1", b"2"]
        assert why_rejected(bridge, "unknown_topic", b"2").value == b"2"
        assert metric(bridge.service, 'timerwheel_kafka_working{side="outlet"}') == 1
        assert "the Kafka outlet waits" not in bridge.service.end(15).err


@pytest.mark.parametrize(
    ("limit", "count", "large"),
    [(2_000, 1_000, ()), (2_000, 300, (99, 199)), (100_000, 1_000, (999,)), (100_000, 300, (99, 199, 299))],
)
def test_a_target_with_a_small_limit_gets_what_fits_of_a_large_transaction(
    kafka: Clients, tmp_path: Path, limit: int, count: int, large: tuple[int, ...]
) -> None:
    with bridged(kafka, tmp_path / "data") as bridge:
        kafka.make(target := f"{bridge.target}-small", max_message_bytes=str(limit))
        due = [("TIMER_TOPIC", target.encode()), ("TIMER_DELAY_MS", b"0")]
        values = [b"%d " % n + bytes(limit + 100 if n in large else 500) for n in range(count)]
        kafka.transaction([(bridge.inlet, value, due) for value in values], commit=True)
        sent = [got.value for got in kafka.read_count(target, count - len(large))]
        assert Counter(sent) == Counter(value for n, value in enumerate(values) if n not in large)
        codes = [got.header("TIMER_REJECTED") for got in bridge.rejected(len(large))] if large else []
        assert codes == ["body_too_large"] * len(large)


def test_messages_that_take_longer_than_a_transaction_may_go_out_in_several(
    kafka: Clients, tmp_path: Path
) -> None:
    """Each of them is a batch of its own, and has to arrive before the next one is sent."""
    properties = tmp_path / "kafka.properties"
    properties.write_text("transaction.timeout.ms=1000\n")
    with bridged(kafka, tmp_path / "data", "--kafka-properties", str(properties)) as bridge:
        kafka.make(target := f"{bridge.target}-small", max_message_bytes="700")
        at_once = b"%d" % (time.time_ns() // 1_000_000 + 2_000)
        due = [("TIMER_TOPIC", target.encode()), ("TIMER_DELIVER_MS", at_once)]
        values = [b"%d " % n + bytes(500) for n in range(5_000)]
        kafka.transaction([(bridge.inlet, value, due) for value in values], commit=True)
        assert Counter(got.value for got in kafka.read_count(target, len(values))) == Counter(values)
        err = bridge.service.end(15).err
        assert err.count("FATAL") <= 4, "a transaction of the same size was tried again and again"


def test_another_inlet_goes_on_from_what_was_sent(kafka: Clients, tmp_path: Path) -> None:
    with bridged(kafka, tmp_path / "data") as bridge:
        for number in range(5):
            bridge.schedule(b"%d" % number, ("TIMER_DELAY_MS", "0"))
        bridge.out(5)
        bridge.service.end(9)
        kafka.make(inlet := f"{bridge.inlet}-new")
        for number, used in ((5, inlet), (6, bridge.inlet)):
            with serving(bridge.service.data, "--kafka", kafka.address, "--kafka-inlet", used):
                bridge._replace(inlet=used).schedule(b"%d" % number, ("TIMER_DELAY_MS", "0"))
                found = bridge.out(number + 1)
                assert sorted(got.value or b"" for got in found) == [b"%d" % n for n in range(number + 1)]


def test_positions_that_were_deleted_are_found_in_the_log(kafka: Clients, tmp_path: Path) -> None:
    with bridged(kafka, tmp_path / "data") as bridge:
        bridge.schedule(b"1", ("TIMER_DELAY_MS", "0"))
        bridge.out(1)
        kafka.delete(f"{bridge.inlet}.positions")
        bridge.schedule(b"2", ("TIMER_DELAY_MS", "0"))
        assert [got.value for got in bridge.out(2)] in ([b"1", b"2"], [b"2", b"1"])
        assert metric(bridge.service, 'timerwheel_kafka_outlet_messages_total{result="rejected"}') == 0
        bridge.service.end(9)
        kafka.delete(f"{bridge.inlet}.positions")
        flags = ("--kafka", kafka.address, "--kafka-inlet", bridge.inlet)
        with serving(bridge.service.data, *flags) as service:
            bridge.schedule(b"3", ("TIMER_DELAY_MS", "0"))
            found = kafka.read(bridge.target, lambda found: b"3" in [got.value for got in found])
            assert [got.value for got in found].count(b"1") == 1
            assert "has no positions of this service" in service.end(15).err
