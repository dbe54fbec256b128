"""Kafka's own clients against the real process: what goes into the inlet comes out of topics when due."""

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from urllib.request import urlopen

import orjson
import pytest

from tests.harness.kafka.broker import GIVEN
from tests.harness.kafka.clients import Clients, Got, Headers
from tests.harness.processes import PATIENCE_S, ROOT, WITHOUT, RunningService, python, serving, timerwheel

HOUR_MS = 3_600_000
_numbers = itertools.count(1)


class Bridge(NamedTuple):
    """A service with topics of its own on the broker that all tests share."""

    service: RunningService
    kafka: Clients
    inlet: str
    target: str

    def schedule(self, value: bytes | None, *headers: tuple[str, str], key: bytes | None = None) -> None:
        """Produce a record to the inlet for the target."""
        named = [("TIMER_TOPIC", self.target), *headers]
        self.produce(value, [(name, text.encode()) for name, text in named], key)

    def produce(self, value: bytes | None, headers: Headers, key: bytes | None = None) -> None:
        self.kafka.send(self.inlet, value, headers, key)
        self.kafka.flush()

    def out(self, count: int = 1) -> list[Got]:
        """What a reader of committed records has from the target."""
        return self.kafka.read_count(self.target, count)

    def rejected(self, count: int = 1) -> list[Got]:
        return self.kafka.read_count(f"{self.inlet}.rejected", count)


@contextmanager
def bridged(kafka: Clients, data: Path, *flags: object, **config: str) -> Iterator[Bridge]:
    number = f"{next(_numbers)}-{time.time_ns() % 1_000_000_007}"
    inlet, target = f"timers.{number}", f"orders.{number}"
    kafka.make(inlet, target, partitions=2, **config)
    with serving(data, "--kafka", kafka.address, "--kafka-inlet", inlet, *flags) as service:
        yield Bridge(service, kafka, inlet, target)


@pytest.fixture(scope="module")
def bridge(kafka: Clients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    """One service for the tests that only produce and read; each has a target of its own."""
    with bridged(kafka, tmp_path_factory.mktemp("data") / "data") as made:
        yield made


@pytest.fixture
def fresh(bridge: Bridge) -> Bridge:
    """The service with a new target."""
    target = f"orders.{next(_numbers)}-{time.time_ns() % 1_000_000_007}"
    bridge.kafka.make(target, partitions=2)
    return bridge._replace(target=target)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_each_delay_header_sets_the_time_and_nothing_comes_early(fresh: Bridge) -> None:
    sent_ms = now_ms()
    fresh.schedule(b"a", ("TIMER_DELAY_MS", "700"))
    fresh.schedule(b"b", ("TIMER_DELAY_SEC", "1"))
    fresh.schedule(b"c", ("TIMER_DELIVER_MS", str(sent_ms + 900)))
    fresh.schedule(b"d", ("DELAY", "1"))
    fresh.schedule(b"e", ("TIMER_DELAY_MS", "0"))
    found = {got.value: got for got in fresh.out(5)}
    assert found.keys() == {b"a", b"b", b"c", b"d", b"e"}
    assert all(got.read_ms >= int(got.header("TIMER_DUE_MS")) for got in found.values())
    for value, least_ms in ((b"a", 700), (b"b", 1_000), (b"c", 900), (b"d", 1_000)):
        assert int(found[value].header("TIMER_DUE_MS")) >= sent_ms + least_ms


def test_keys_values_and_headers_come_back_byte_for_byte(fresh: Bridge) -> None:
    odd: Headers = [
        ("text", b"plain"),
        ("twice", b"1"),
        ("bytes", b"\x00\xff\xfe"),
        ("twice", b"2"),
        ("null", None),
        ("empty", b""),
        ("", b"no name"),
        ("with space: and = signs", "größe ✓".encode()),
        ("REAL_TOPIC", b"of the service, elsewhere"),
        ("TRAN_MSG", b"true"),
        ("traceparent", b"not a trace"),
    ]
    cases = [
        (b"key", b"value"),
        (None, b"\x00\xff binary"),
        (b"", b""),
        (b"\xff\x00", None),
        ("schlüssel".encode(), None),
        (None, None),
    ]
    own = [("TIMER_TOPIC", fresh.target.encode()), ("TIMER_DELAY_MS", b"1")]
    for key, value in cases:
        fresh.produce(value, [*own, *odd], key)
    found = fresh.out(len(cases))
    assert {(got.key, got.value) for got in found} == set(cases)
    for got in found:
        *headers, due, number = got.headers
        assert headers == odd
        assert (due[0], number[0]) == ("TIMER_DUE_MS", "TIMER_ID")


def test_a_key_goes_to_the_partition_that_javas_producer_gives_it(fresh: Bridge) -> None:
    # Kafka's Utils.murmur2, of which the sign is dropped, modulo 2: computed by Apache's own class.
    for key in (b"21", b"foobar", b"a-little-bit-long-string", b"abc"):
        fresh.schedule(b"x", ("TIMER_DELAY_MS", "0"), key=key)
    found = {got.key: got.partition for got in fresh.out(4)}
    numbers = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"abc": 479470107,
    }
    assert found == {key: (number & 0x7FFFFFFF) % 2 for key, number in numbers.items()}


def test_http_lists_and_recalls_what_kafka_scheduled(fresh: Bridge) -> None:
    due_ms = now_ms() + HOUR_MS
    due = ("TIMER_DELIVER_MS", str(due_ms))
    fresh.schedule(b"body", due, ("TIMER_KEY", "k1"), ("shop", "7"), key=b"order 7")
    (message,) = listed(fresh.service, fresh.target, 1)
    assert message["topic"] == fresh.target.replace(".", "%2E")
    assert (message["body"], message["due_ms"]) == ("body", due_ms)
    shown = message["properties"]
    assert (shown["shop"], shown["__SHARDINGKEY"], shown["DEDUP_KEY"]) == ("7", "order 7", "k1")
    assert "__ENVELOPE" not in shown
    assert timerwheel("recall", message["id"], "--url", fresh.service.url).code == 0


def listed(service: RunningService, target: str, count: int) -> list[dict[str, object]]:
    """What the service has scheduled for a target, once it has so many."""
    found: list[dict[str, object]] = []

    def enough() -> bool:
        query = quote(target.replace(".", "%2E"), safe="")
        with urlopen(f"{service.url}/v1/messages?topic={query}", timeout=PATIENCE_S) as answer:
            found[:] = orjson.loads(answer.read())["messages"]
        return len(found) == count

    wait_until(enough)
    return found


def test_what_http_sends_goes_to_kafka_with_its_properties(fresh: Bridge) -> None:
    fresh.schedule(b"first", ("TIMER_DELAY_MS", "0"))  # from now on the topic goes out
    fresh.out(1)
    topic = fresh.target.replace(".", "%2E")
    options = ("--property", "__SHARDINGKEY=k", "--property", "shop=7", "--delay", "300ms", "--url")
    sent = timerwheel("send", topic, "by http", *options, fresh.service.url, "--json").json
    got = next(got for got in fresh.out(2) if got.value == b"by http")
    assert got.key == b"k"
    assert got.header("shop") == "7"
    assert got.header("TIMER_ID") == sent["id"]
    assert got.header("TIMER_DUE_MS") == str(sent["due_ms"])


def test_of_a_clients_transaction_all_is_scheduled_or_nothing(fresh: Bridge) -> None:
    headers = [("TIMER_TOPIC", fresh.target.encode()), ("TIMER_DELAY_MS", b"1")]
    fresh.kafka.transaction([(fresh.inlet, b"aborted", headers)] * 3, commit=False)
    fresh.kafka.transaction([(fresh.inlet, b"committed", headers)] * 3, commit=True)
    fresh.schedule(b"last", ("TIMER_DELAY_MS", "1"))
    found = sorted(got.value for got in fresh.out(4))
    assert found == [b"committed", b"committed", b"committed", b"last"]


def test_a_key_is_scheduled_once_and_a_recall_is_final_or_rejected(fresh: Bridge) -> None:
    for _ in range(2):
        fresh.schedule(b"once", ("TIMER_DELAY_MS", "500"), ("TIMER_KEY", "a"), key=b"p")
    fresh.schedule(b"never", ("TIMER_DELAY_SEC", "3600"), ("TIMER_KEY", "b"), key=b"p")
    fresh.schedule(None, ("TIMER_RECALL", "true"), ("TIMER_KEY", "b"), key=b"p")
    fresh.schedule(None, ("TIMER_RECALL", "true"), ("TIMER_KEY", "unknown"), key=b"p")
    fresh.schedule(b"last", ("TIMER_DELAY_SEC", "1"), key=b"p")
    assert [got.value for got in fresh.out(2)] == [b"once", b"last"]
    assert listed(fresh.service, fresh.target, 0) == []
    assert "has the key 'unknown'" in why_rejected(fresh, "unknown_message").header("TIMER_REASON")
    fresh.schedule(b"never", ("TIMER_DELAY_SEC", "3600"), ("TIMER_KEY", "b"), key=b"p")
    assert "another TIMER_KEY" in why_rejected(fresh, "key_recalled").header("TIMER_REASON")


def test_a_record_recalls_what_http_sent_with_a_key_of_any_letters(fresh: Bridge) -> None:
    topic, at, key = fresh.target.replace(".", "%2E"), ("--url", fresh.service.url), "bestellung-ä"
    timerwheel("send", topic, "x", "--delay", "1h", "--dedup-key", key, *at)
    assert len(listed(fresh.service, fresh.target, 1)) == 1
    fresh.schedule(None, ("TIMER_RECALL", "true"), ("TIMER_KEY", key))
    assert listed(fresh.service, fresh.target, 0) == []


def why_rejected(bridge: Bridge, code: str, value: bytes | None = None) -> Got:
    """The one rejected record with this code that has this value, or else this target."""

    def of_it(found: list[Got]) -> list[Got]:
        target = ("TIMER_TOPIC", bridge.target.encode())
        own = [got for got in found if (target in got.headers if value is None else got.value == value)]
        return [got for got in own if got.header("TIMER_REJECTED") == code]

    topic = f"{bridge.inlet}.rejected"
    (got,) = of_it(bridge.kafka.read(topic, lambda found: bool(of_it(found))))
    return got


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], "no_delay"),
        ([("TIMER_DELAY_MS", b"soon")], "illegal_delay"),
        ([("TIMER_DELAY_MS", b"\x00\x00\x00\x00\x00\x00\x03\xe8")], "illegal_header"),
        ([("TIMER_DELAY_MS", b"9223372036854775807")], "delay_too_long"),
        ([("TIMER_DELAY_MS", b"1"), ("TIMER_KEY", b"")], "illegal_key"),
        ([("TIMER_RECALL", b"true")], "no_key"),
        ([("TIMER_DELAY_MS", b"1"), ("long", b"x" * 40_000)], "properties_too_large"),
    ],
)
def test_what_is_refused_comes_back_whole_with_the_reason(
    fresh: Bridge, headers: list[tuple[str, bytes]], code: str
) -> None:
    sent = [("TIMER_TOPIC", fresh.target.encode()), *headers]
    value = fresh.target.encode()
    fresh.produce(value, sent, b"k")
    got = why_rejected(fresh, code, value)
    if code != "properties_too_large":  # with which there is no room for them
        assert (got.key, got.headers[: len(sent)]) == (b"k", sent)
    assert got.header("TIMER_REASON")
    assert got.header("TIMER_FROM").startswith(f"{fresh.inlet}/")


def test_a_target_that_refuses_does_not_keep_the_others_back(fresh: Bridge) -> None:
    small, unknown = f"{fresh.target}-small", f"{fresh.target}-unknown"
    fresh.kafka.make(small, max_message_bytes="2000")
    for target, value in ((unknown, b"u"), (small, b"x" * 5_000), (small, b"fits"), (fresh.target, b"other")):
        headers = [("TIMER_TOPIC", target.encode()), ("TIMER_DELIVER_MS", str(now_ms() + 500).encode())]
        fresh.produce(value, headers)
    (other,) = fresh.out()
    assert [got.value for got in fresh.kafka.read_count(small, 1)] == [b"fits"]
    assert why_rejected(fresh._replace(target=unknown), "unknown_topic").value == b"u"
    assert why_rejected(fresh._replace(target=small), "body_too_large").value == b"x" * 5_000
    assert other.value == b"other"


def test_a_relative_delay_counts_from_when_kafka_stored_the_record_if_the_topic_says_when(
    kafka: Clients, tmp_path: Path
) -> None:
    with bridged(kafka, tmp_path / "data", message_timestamp_type="LogAppendTime") as bridge:
        bridge.schedule(b"first", ("TIMER_DELAY_MS", "0"))
        bridge.out(1)
        bridge.service.end(15)
        sent_ms = now_ms()
        bridge.schedule(b"while it was down", ("TIMER_DELAY_MS", str(HOUR_MS)))
        bridge.schedule(b"overdue", ("TIMER_DELAY_MS", "1"))
        stored_ms = now_ms()
        with serving(bridge.service.data, "--kafka", kafka.address, "--kafka-inlet", bridge.inlet) as service:
            (message,) = listed(service, bridge.target, 1)
            got = {record.value: record for record in bridge.out(2)}  # of two partitions, in either order
    assert message["body"] == "while it was down"
    assert sent_ms + HOUR_MS <= message["due_ms"] <= stored_ms + HOUR_MS
    # What is overdue when it is taken is sent at once, as a message without delay.
    assert got.keys() == {b"first", b"overdue"}
    assert stored_ms < int(got[b"overdue"].header("TIMER_DUE_MS")) <= got[b"overdue"].read_ms


def test_a_topic_is_kept_from_kafka_until_it_is_let_out_or_deleted(fresh: Bridge) -> None:
    topic, at = fresh.target.replace(".", "%2E"), ("--url", fresh.service.url)

    def goes() -> object:
        (found,) = [
            one for one in timerwheel("topics", "list", "--json", *at).json["topics"] if one["topic"] == topic
        ]
        return found["to_kafka"]

    far = ("TIMER_DELAY_SEC", "3600")
    fresh.schedule(b"years ahead", far, ("TIMER_KEY", "k"))
    listed(fresh.service, fresh.target, 1)
    assert goes() is True
    assert timerwheel("topics", "set", topic, "--not-to-kafka", *at).code == 0
    assert goes() is False
    timerwheel("send", topic, "private", *at)
    fresh.schedule(b"refused", far)
    assert "to_kafka" in why_rejected(fresh, "forbidden_topic", b"refused").header("TIMER_REASON")
    fresh.schedule(b"not recalled", ("TIMER_RECALL", "true"), ("TIMER_KEY", "k"))
    why_rejected(fresh, "forbidden_topic", b"not recalled")
    timerwheel("topics", "set", topic, "--to-kafka", *at)
    fresh.schedule(b"let out", ("TIMER_DELAY_MS", "0"))
    fresh.out(1)
    timerwheel("topics", "delete", topic, "--yes", *at)
    timerwheel("send", topic, "private again", *at)
    assert goes() is None
    fresh.schedule(b"named again", ("TIMER_DELAY_MS", "0"))
    assert sorted(got.value for got in fresh.out(2)) == [b"let out", b"named again"]
    own = f"{fresh.inlet}.rejected".replace(".", "%2E")
    assert "kafka_outlets" in timerwheel("topics", "set", own, "--not-to-kafka", *at).err


def test_messages_of_a_named_topic_go_to_kafka_though_no_record_named_it(
    kafka: Clients, tmp_path: Path
) -> None:
    topic = f"named-{time.time_ns()}"
    kafka.make(topic)
    with bridged(kafka, tmp_path / "data", "--kafka-outlets", topic) as bridge:
        timerwheel("send", topic, "hello", "--url", bridge.service.url)
        assert [got.value for got in kafka.read_count(topic, 1)] == [b"hello"]


def test_messages_of_a_paused_topic_go_to_kafka_after_the_resume(kafka: Clients, tmp_path: Path) -> None:
    halted, other = f"halted-{time.time_ns()}", f"other-{time.time_ns()}"
    for topic in (halted, other):
        kafka.make(topic)
    with bridged(kafka, tmp_path / "data", "--kafka-outlets", f"{halted},{other}") as bridge:
        at = ("--url", bridge.service.url)
        timerwheel("topics", "pause", halted, *at)
        timerwheel("send", halted, "first", *at)
        timerwheel("send", other, "second", *at)
        assert [got.value for got in kafka.read_count(other, 1)] == [b"second"]
        assert metric(bridge.service, 'timerwheel_kafka_outlet_messages_total{result="sent"}') == 1
        timerwheel("topics", "resume", halted, *at)
        assert [got.value for got in kafka.read_count(halted, 1)] == [b"first"]


def test_the_example_balances_its_books(bridge: Bridge) -> None:
    example = ROOT / "examples" / "kafka_delay.py"
    assert "import timerwheel" not in (text := example.read_text())
    assert "from timerwheel" not in text, "any Kafka client will do"
    flags = ("--brokers", bridge.kafka.address, "--inlet", bridge.inlet, "--orders", 60)
    done = python(example, *flags)
    assert done.code == 0, done.out + done.err
    assert "paid and closed: 0, closed twice: 0, neither: 0" in done.out


def test_a_second_process_on_a_copy_of_the_data_fences_the_first(kafka: Clients, tmp_path: Path) -> None:
    with bridged(kafka, tmp_path / "data") as first:
        first.schedule(b"1", ("TIMER_DELAY_MS", "0"))
        first.out(1)
        assert metric(first.service, 'timerwheel_kafka_working{side="outlet"}') == 1
        copy = shutil.copytree(first.service.data, tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
        with serving(copy, "--kafka", kafka.address, "--kafka-inlet", first.inlet) as second:
            wait_until(lambda: metric(second, 'timerwheel_kafka_working{side="outlet"}') == 1)
            first.schedule(b"2", ("TIMER_DELAY_MS", "0"))
            first.out(2)
            wait_until(lambda: metric(first.service, "timerwheel_kafka_fenced ") == 1)
            first.schedule(b"3", ("TIMER_DELAY_MS", "0"))
            assert sorted(got.value for got in first.out(3)) == [b"1", b"2", b"3"]
        assert "another process produces to Kafka" in first.service.end(15).err


def metric(service: RunningService, name: str) -> float:
    with urlopen(f"{service.url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), -1)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_service_starts_without_kafka_and_stops_at_once(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    with serving(tmp_path / "data", "--kafka", "127.0.0.1:1") as service:
        assert metric(service, 'timerwheel_kafka_working{side="inlet"}') == 0
        assert timerwheel("send", "topic", "body", "--url", service.url).code == 0
        assert service.end(15).code == 0


def test_without_the_package_the_start_says_what_to_install(tmp_path: Path) -> None:
    done = python(
        "-c", WITHOUT.format("confluent_kafka"), "serve", "--data", tmp_path / "d", "--kafka", "127.0.0.1:1"
    )
    assert done.code != 0
    assert "pip install 'timerwheel[kafka]'" in done.err


def test_a_full_second_rejects_some_records_and_takes_the_others(kafka: Clients, tmp_path: Path) -> None:
    with bridged(kafka, tmp_path / "data", "--slot-messages-max", 2) as bridge:
        due_ms = now_ms() + HOUR_MS
        headers = [("TIMER_TOPIC", bridge.target.encode()), ("TIMER_DELIVER_MS", str(due_ms).encode())]
        bridge.kafka.transaction([(bridge.inlet, str(n).encode(), headers) for n in range(5)], commit=True)
        assert [got.header("TIMER_REJECTED") for got in bridge.rejected(3)] == ["slot_congested"] * 3
        assert len(listed(bridge.service, bridge.target, 2)) == 2


def test_without_room_for_a_topic_its_records_are_rejected(kafka: Clients, tmp_path: Path) -> None:
    with bridged(kafka, tmp_path / "data", "--topics-max", 2) as bridge:
        bridge.schedule(None, ("TIMER_DELAY_MS", "soon"))
        bridge.schedule(b"v", ("TIMER_DELAY_MS", "0"))
        bridge.out(1)
        bridge._replace(target="another").schedule(b"v", ("TIMER_DELAY_MS", "0"))
        codes = [got.header("TIMER_REJECTED") for got in bridge.rejected(2)]
    assert sorted(codes) == ["illegal_delay", "too_many_topics"]


def test_the_metrics_say_what_was_done(kafka: Clients, tmp_path: Path) -> None:
    with bridged(kafka, tmp_path / "data") as bridge:
        bridge.schedule(b"v", ("TIMER_DELAY_MS", "0"), ("TIMER_KEY", "k"))
        bridge.schedule(b"v", ("TIMER_DELAY_MS", "0"), ("TIMER_KEY", "k"))
        bridge.schedule(b"v")
        bridge.out(1)
        bridge.rejected(1)

        def counted(name: str) -> float:
            return metric(bridge.service, f"timerwheel_kafka_{name}")

        def at_rest() -> bool:
            positions = sum(counted(f'inlet_position{{partition="{number}"}}') for number in (0, 1))
            return positions == 3 and counted("outlet_behind_messages") == 0

        wait_until(at_rest)
        wait_until(lambda: counted('outlet_messages_total{result="sent"}') == 2)
        for result in ("scheduled", "repeated", "rejected"):
            assert counted(f'inlet_records_total{{result="{result}"}}') == 1
        assert counted('working{side="inlet"}') == counted('working{side="outlet"}') == 1
        assert counted("fenced") == 0
        assert all(counted(f'inlet_lag{{partition="{number}"}}') == 0 for number in (0, 1))


def test_a_forbidden_target_does_not_keep_the_others_back(fresh: Bridge) -> None:
    if os.environ.get(GIVEN):
        pytest.skip("only a broker of our own has an authorizer for sure")
    forbidden = f"{fresh.target}-forbidden"
    fresh.kafka.make(forbidden)
    fresh.kafka.forbid(forbidden)
    due = [("TIMER_DELIVER_MS", str(now_ms() + 500).encode())]
    for target in (forbidden, fresh.target, forbidden):
        fresh.produce(b"v", [("TIMER_TOPIC", target.encode()), *due])
    assert len(fresh.out(1)) == 1
    of_it = [("TIMER_TOPIC", forbidden.encode()), ("TIMER_REJECTED", b"forbidden_topic")]
    topic = f"{fresh.inlet}.rejected"
    fresh.kafka.read(topic, lambda found: sum(set(of_it) <= {*got.headers} for got in found) == 2)
