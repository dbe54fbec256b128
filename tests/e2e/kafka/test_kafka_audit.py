"""`audit --kafka` and `rebuild --kafka` with a real broker, a real service and real Spark."""

import asyncio
import contextlib
import itertools
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.testing import CliRunner, Result

pytest.importorskip("confluent_kafka")
pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from tests.harness.kafka.clients import Clients
from tests.harness.processes import RunningService, serving
from tests.harness.quick_spark import quick_session
from tests.harness.world import World
from timerwheel.cli import audit as audit_command
from timerwheel.cli import rebuild as rebuild_command
from timerwheel.cli.spark_options import Job
from timerwheel.cli.table import typed
from timerwheel.client import Client
from timerwheel.kafka.front import service_name
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.monitoring.job_metrics import JobMetrics
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.session import plain_errors
from timerwheel.state.config_table import ConfigTable, Put
from timerwheel.store.files import DiskFiles

_numbers = itertools.count(1)


def call(service: RunningService, path: str, body: object | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(service.url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with quick_session() as found:
        yield found


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in the session of these tests."""

    @contextlib.contextmanager
    def job(*_: object, **_more: object) -> Iterator[Job]:
        with plain_errors():
            yield Job(spark, JobProgress(spark, show=False), str(tmp_path / "staging"), JobMetrics("job", ""))

    (tmp_path / "staging").mkdir()
    app = typer.Typer()
    for module, name in ((audit_command, "audit"), (rebuild_command, "rebuild")):
        monkeypatch.setattr(module, "spark_job", job)
        app.command(name)(typed(getattr(module, name)))
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


class Shop(NamedTuple):
    """Topics of a test's own, and what it did with them."""

    kafka: Clients
    inlet: str
    target: str

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--kafka", self.kafka.address, "--kafka-inlet", self.inlet)

    def produce(self, value: bytes, **headers: str) -> None:
        """Records of one TIMER_KEY go to one partition, so that a recall comes after what it recalls."""
        key = headers["TIMER_KEY"].encode() if "TIMER_KEY" in headers else None
        self.kafka.send(self.inlet, value, [(name, text.encode()) for name, text in headers.items()], key)

    def work(self) -> None:
        """Messages in several ways, two of one key, a recall, two refused records and an aborted one."""
        for number in range(20):
            self.produce(b"%d" % (number % 15), TIMER_TOPIC=self.target, TIMER_DELAY_MS=str(number * 10))
        for _ in range(2):
            self.produce(b"once", TIMER_TOPIC=self.target, TIMER_DELAY_MS="50", TIMER_KEY="one")
        self.produce(b"never", TIMER_TOPIC=self.target, TIMER_DELAY_SEC="9999", TIMER_KEY="other")
        self.produce(b"later", TIMER_TOPIC=self.target, TIMER_DELAY_SEC="9999")
        self.kafka.flush()
        self.produce(b"", TIMER_TOPIC=self.target, TIMER_KEY="other", TIMER_RECALL="true", TIMER_DELAY_MS="1")
        self.produce(b"no topic", TIMER_DELAY_MS="1")
        self.produce(b"no delay", TIMER_TOPIC=self.target)
        self.kafka.flush()
        header = [("TIMER_TOPIC", self.target.encode()), ("TIMER_DELAY_MS", b"1")]
        self.kafka.transaction([(self.inlet, b"aborted", header)], commit=False)
        self.kafka.read_count(self.target, 21)
        self.kafka.read_count(f"{self.inlet}.rejected", 2)


@pytest.fixture
def shop(kafka: Clients) -> Shop:
    number = f"{next(_numbers)}-{time.time_ns() % 1_000_000_007}"
    made = Shop(kafka, f"timers.{number}", f"orders.{number}")
    kafka.make(made.inlet, made.target, partitions=2)
    return made


def document(result: Result) -> dict:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout)


@pytest.mark.torture
def test_the_books_of_log_inlet_and_targets_balance(
    shop: Shop, run: Callable[..., Result], tmp_path: Path
) -> None:
    """The log is in Kafka, and is copied from there while the service runs."""
    journal = f"kafka://{shop.kafka.address}/shop-{time.time_ns()}"
    with serving(tmp_path / "data", "--journal", journal, *shop.flags) as service:
        shop.work()
        call(service, "/v1/messages", {"topic": shop.target.replace(".", "%2E"), "body": "over HTTP"})
        shop.kafka.read_count(shop.target, 22)
        words = ("--kafka", journal, "--kafka-inlet", shop.inlet, "--data", tmp_path / "copy")
        result = run("audit", *words, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stdout
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert found["balanced"], found["kafka"]
    outlets = {one["topic"]: one for one in found["kafka"]["outlets"]}
    assert outlets[shop.target]["owed"] == outlets[shop.target]["found"] == 22
    assert outlets[f"{shop.inlet}.rejected"]["found"] == 2
    inlet = found["kafka"]["inlet"]
    assert (inlet["messages"], inlet["recalls"], inlet["rejected"]) == (24, 1, 2)
    assert "the books balance" in result.stdout
    assert "22 of 22 that went out" in result.stdout
    assert "<h2>Kafka</h2>" in (tmp_path / "out" / "report.html").read_text()


def test_all_shards_of_a_journal_are_audited_and_rebuilt_by_one_call(
    kafka: Clients, run: Callable[..., Result], tmp_path: Path
) -> None:
    """Without a bridge, too; and what is rebuilt is the directory of a node."""
    journal = f"kafka://{kafka.address}/shop-{time.time_ns()}"
    flags = ("--journal", journal, "--shards", 2)
    with serving(tmp_path / "data", *flags) as service:
        sent = [
            call(service, "/v1/messages", {"topic": topic, "delay": "1h", "body": topic})
            for topic in ("a", "d")
        ]
        result = run(
            "audit", "--kafka", journal, "--data", tmp_path / "copy", "--out", tmp_path / "out", "--json"
        )
        assert result.exit_code == 0, result.stdout
        found = document(result)
        assert found["balanced"]
        assert sorted(node["node"] for node in found["nodes"]) == ["shard-0", "shard-1"]
        result = run("rebuild", "--kafka", journal, "--data", tmp_path / "node", "--json")
        assert [node["pending"] for node in document(result)["nodes"]] == [1, 1]
    with serving(tmp_path / "node", *flags) as service:
        assert [call(service, f"/v1/messages/{one['id']}")["body"] for one in sent] == ["a", "d"]
    result = run("rebuild", "--kafka", f"{journal}-1", "--data", tmp_path / "one")
    assert result.exit_code == 0, result.stdout
    assert (tmp_path / "one" / "log").is_dir()


def test_what_kafka_has_twice_lacks_or_made_up_is_found(
    shop: Shop, run: Callable[..., Result], tmp_path: Path
) -> None:
    data, topic = tmp_path / "data", shop.target.replace(".", "%2E")
    stopped = f"stopped-{time.time_ns()}"
    shop.kafka.make(stopped)
    with serving(data, *shop.flags) as service:
        keyed = {"topic": topic, "body": "H", "delay_ms": 3_600_000, "dedup_key": "k-h"}
        call(service, "/v1/messages", keyed)
        due = [("TIMER_TOPIC", shop.target.encode()), ("TIMER_DELAY_MS", b"3600000"), ("TIMER_KEY", b"k-h")]
        for hidden in ([], [("not shown", None)]):  # the same send, for this service
            shop.kafka.send(shop.inlet, b"H", [*due, *hidden])
        shop.produce(b"goes", TIMER_TOPIC=stopped, TIMER_DELAY_MS="1")
        shop.work()
        shop.kafka.read_count(stopped, 1)
        asyncio.run(_stop(service, stopped))
        call(service, "/v1/messages", {"topic": stopped, "body": "stays"})
    with serving(data) as service:  # delivered, but not to Kafka
        call(service, "/v1/messages", {"topic": topic, "body": "lost"})
    first, *_ = shop.kafka.read_count(shop.target, 21)
    shop.kafka.send(shop.target, b"again", first.headers)
    made_up = [("TIMER_ID", b"7" * 24), ("TIMER_DUE_MS", b"1")]
    shop.kafka.send(shop.target, b"made up", made_up)
    shop.kafka.send(shop.target, b"of another program")
    log = find_logs([str(data)])[0]
    service_id = service_name(log.log_id)
    position = json.dumps({"0": 22}).encode()
    shop.kafka.send(f"{shop.inlet}.positions", position, key=f"{service_id} {topic}".encode())
    shop.produce(b"skipped", TIMER_TOPIC=shop.target, TIMER_DELAY_MS="1")
    shop.kafka.flush()
    asyncio.run(_claim_all(data, shop.kafka.ends(shop.inlet)))
    words = ("--kafka", f"kafka://{shop.kafka.address}", "--kafka-inlet", shop.inlet, "--data", data)
    result = run("audit", *words, "--out", tmp_path / "out", "--json")
    found = document(result)
    assert result.exit_code == 1
    assert found["kafka"]["rules"] == {
        "twice_in_kafka": 1,
        "unknown_in_kafka": 1,
        "missing_in_kafka": 1,
        "not_taken": 1,
    }
    named = {one["rule"]: one["what"] for one in found["kafka"]["findings"]}
    assert named["twice_in_kafka"] == first.header("TIMER_ID")
    assert named["not_taken"].startswith(f"{shop.inlet}/")
    assert next(one for one in found["kafka"]["outlets"] if one["topic"] == shop.target)["others"] == 1


async def _stop(service: RunningService, topic: str) -> None:
    async with Client(service.url) as client:
        await client.change_topic(topic, to_kafka=False)


async def _claim_all(data: Path, ends: dict[int, int]) -> None:
    """Have the log say that it has taken every record of the inlet."""
    world = World(data)
    world.files = DiskFiles()
    engine = await world.open()
    keys = engine.control.items(ConfigTable.KAFKA_INLET)
    await engine.control.put([Put(ConfigTable.KAFKA_INLET, key, ends[int(key[-1])]) for key in keys])
    await engine.close()


@pytest.mark.torture
def test_what_kafka_has_deleted_is_told_apart_from_what_is_missing(
    shop: Shop, run: Callable[..., Result], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with serving(data, *shop.flags):
        shop.work()
    newest = [(shop.target, b"keeps a time", ())]
    shop.kafka.transaction(newest, commit=True)
    shop.kafka.delete_records(shop.target)
    shop.kafka.send(shop.target, b"later")
    shop.kafka.flush()
    words = ("--kafka", f"kafka://{shop.kafka.address}", "--kafka-inlet", shop.inlet, "--data", data)
    found = document(run("audit", *words, "--out", tmp_path / "out", "--json"))
    assert found["balanced"], found["kafka"]
    outlet = next(one for one in found["kafka"]["outlets"] if one["topic"] == shop.target)
    assert (outlet["owed"], outlet["found"], outlet["deleted"]) == (21, 0, 21)


def test_a_lost_node_is_rebuilt_from_kafka(
    kafka: Clients, run: Callable[..., Result], tmp_path: Path
) -> None:
    journal = f"kafka://{kafka.address}/shop-{time.time_ns()}"
    node = ("--journal", journal, "--node-url", "http://shop.example")
    with serving(tmp_path / "lost", *node) as service:
        sent = [{"topic": "orders", "body": str(number), "delay": "1h"} for number in range(50)]
        call(service, "/v1/messages", sent)
    made = run("rebuild", "--kafka", journal, "--data", tmp_path / "new", "--json")
    assert document(made)["nodes"][0]["pending"] == 50
    with serving(tmp_path / "new", *node) as service:
        assert _pending(service) == 50
    refused = run("rebuild", "--kafka", f"kafka://{kafka.address}/nobody", "--data", tmp_path / "other")
    assert "no Kafka topic nobody-log" in str(refused.exception)
    assert not (tmp_path / "other" / "log").exists()
    unnamed = run("rebuild", "--kafka", f"kafka://{kafka.address}", "--data", tmp_path / "other")
    assert "kafka://HOST:PORT/CLUSTER" in str(unnamed.exception)


def _pending(service: RunningService) -> int:
    return call(service, "/v1/wheel")["pending"]
