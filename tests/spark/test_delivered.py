"""Batches of delivered messages: the rows are what the HTTP API answers, from the log and from an archive."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from tests.harness.archiving import run_archive
from tests.harness.delivered import FORMAT, answers, deliver, node_at, rows_of, union
from tests.harness.sample_log import write_sidecars
from tests.integration.runtime.test_retention import RETENTION_MS, age
from timerwheel.spark_jobs.delivered.nodes import find_nodes
from timerwheel.spark_jobs.delivered.options import read_options
from timerwheel.spark_jobs.delivered.position import digest_of
from timerwheel.spark_jobs.delivered.rows import COLUMNS, Selection
from timerwheel.spark_jobs.delivered.source import DeliveredReader, arrow_schema_of
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.progress import JobProgress

IN_TABLES = "node,topic,queue,offset,log_offset,due_ms,delivered_ms,lateness_ms,level"


class Lived(NamedTuple):
    """A data directory with sealed segments and an open one, and what its service answered.

    Its older copy has what retention has removed since; the archive has all that is sealed.
    """

    data: Path
    answers: list[dict[str, Any]]
    older: Path
    older_answers: list[dict[str, Any]]
    archive: Path


@pytest.fixture(scope="module")
def lived(spark, tmp_path_factory) -> Lived:
    room = tmp_path_factory.mktemp("delivered")

    async def live() -> Lived:
        world = node_at(room / "node-1")
        await world.open(retention_ms=RETENTION_MS, retention_archived_only=True)
        for first in (0, 20, 40):
            await deliver(world, first)
            await world.send(900_000, topic="orders")
        found = await answers(world, "node-1")
        await world.engine.close()
        (room / "older").mkdir()
        older = shutil.copytree(world.directory, room / "older" / "node-1")
        write_sidecars(older)
        await world.open()
        await world.roll()
        run_archive(spark, JobProgress(spark, show=False), world.directory, room / "archive")
        assert await age(world) > 0
        await deliver(world, 60)
        now = await answers(world, "node-1")
        await world.engine.close()
        write_sidecars(world.directory)
        return Lived(world.directory, now, older, found, room / "archive")

    return asyncio.run(live())


def read(spark, path, **options):
    frame = spark.read.format(FORMAT).options(**options)
    return frame.load() if path is None else frame.load(str(path))


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_log_that_ends_before_a_position_that_names_no_record_is_refused(spark, lived, is_sealed):
    """As that of a node which was restored, when what was read before it came from the archive."""
    [log] = find_logs([str(lived.data)])
    sealed = f"{is_sealed}".lower()
    end = log.segments[-1].base if is_sealed else log.segments[-1].base + (1 << 20)
    for at in (end + 8, end + (1 << 30)):
        place = {"at": at, "last": None, "log": digest_of(log.log_id), "queues": {}}
        offsets = json.dumps({"format": 1, "nodes": {"node-1": place}})
        with pytest.raises(PySparkException, match="is not the one that this query has read"):
            read(spark, lived.data, startingOffsets=offsets, sealed=sealed).count()


def test_rows_are_what_the_service_answers(spark, lived):
    assert len(find_logs([str(lived.older)])[0].segments) > 3
    assert rows_of(read(spark, lived.older).collect()) == lived.older_answers
    assert rows_of(read(spark, lived.data).collect()) == lived.answers
    assert min(row["offset"] for row in lived.answers if row["topic"] == "orders") > 0


def test_the_archive_gives_what_retention_has_removed(spark, lived):
    everything = union(lived.older_answers, lived.answers)
    both = rows_of(read(spark, lived.data, archive=str(lived.archive)).collect())
    assert [row for row in both if row["topic"] != "filler"] == [
        row for row in everything if row["topic"] != "filler"
    ]
    fillers = [row["offset"] for row in both if row["topic"] == "filler"]
    assert fillers == list(range(len(fillers)))
    alone = rows_of(read(spark, None, archive=str(lived.archive)).collect())
    assert 0 < len(alone) < len(both)
    assert alone == [row for row in both if row in alone]


def test_a_topic_and_a_range_of_its_offsets_can_be_asked_for(spark, lived):
    orders = [row for row in lived.older_answers if row["topic"] == "orders"]
    assert rows_of(read(spark, lived.older, topic="orders").collect()) == orders
    found = read(spark, lived.older, **{"topic": "orders,tickets", "from": '{"orders": 5}', "to": "9"})
    expected = [
        row
        for row in lived.older_answers
        if row["topic"] in ("orders", "tickets") and row["offset"] < 9
        if row["topic"] == "tickets" or row["offset"] >= 5
    ]
    assert rows_of(found.collect()) == expected
    by_queue = read(spark, lived.older, topic="tickets", **{"from": json.dumps({"tickets": {"0": 3}})})
    assert by_queue.selectExpr("min(offset)").first()[0] == 3


def test_an_offset_that_is_gone_is_named_or_left_out(spark, lived):
    with pytest.raises(PySparkException, match=r"node-1: queue 0 of \w+ begins at offset \d+, and not at 1"):
        read(spark, lived.data, **{"from": "1"}).count()
    start = json.dumps({"format": 1, "nodes": {"node-1": beginning_of(lived)}})
    with pytest.raises(PySparkException, match="node-1: log offsets 0 to"):
        read(spark, lived.data, startingOffsets=start).count()
    kept = read(spark, lived.data, failOnDataLoss="false", **{"from": "1"})
    assert rows_of(kept.collect()) == lived.answers


def beginning_of(lived):
    [node] = find_nodes(read_options({"path": str(lived.older)}, stream=False), Selection(), {}, {}).values()
    at = node.at("earliest")
    return {"at": at.at, "last": at.last, "log": at.log, "queues": at.queues}


def test_columns_that_need_no_record_are_read_from_sidecars_alone(spark, lived, tmp_path):
    shutil.copytree(lived.older, tmp_path / "node-1")
    [log] = find_logs([str(tmp_path / "node-1")])
    for segment in log.segments[:-1]:
        path = tmp_path / "node-1" / "log" / f"{segment.base:020d}.log"
        path.write_bytes(path.read_bytes()[:64] + b"\xff" * (segment.end - segment.base - 64))
    for columns in (IN_TABLES, IN_TABLES.replace("offset,", "", 1)):
        rows = [row.asDict() for row in read(spark, tmp_path / "node-1", columns=columns).collect()]
        for row in rows:
            row.pop("log_offset")
        names = set(columns.split(",")) - {"log_offset"}
        expected = [{name: row[name] for name in names} for row in lived.older_answers]
        assert sorted(map(sorted_items, rows)) == sorted(map(sorted_items, expected))
    with pytest.raises(PySparkException, match="size 4294967295 is not a record size; failOnDataLoss=false"):
        read(spark, tmp_path / "node-1").count()
    last = log.segments[-1]
    assert read(spark, tmp_path / "node-1").where(f"log_offset > {last.base}").count() > 0
    assert read(spark, tmp_path / "node-1", failOnDataLoss="false").count() > 0
    assert read(spark, tmp_path / "node-1").where("topic = 'nothing'").count() == 0


def test_without_offsets_the_driver_counts_nothing_and_the_last_segment_is_read_to_its_end(spark, lived):
    options = read_options({"path": str(lived.older)}, stream=False)
    schema = read(spark, lived.older, columns="topic,id,body").schema
    planned = DeliveredReader(options, arrow_schema_of(schema)).partitions()
    assert [part.value.numbers for part in planned] == [None] * len(planned)
    assert planned[-1].value.hi is None
    found = read(spark, lived.older, columns="topic,id,body").collect()
    expected = sorted((row["topic"], row["id"], row["body"]) for row in lived.older_answers)
    assert sorted((row.topic, row.id, bytes(row.body)) for row in found) == expected


def sorted_items(row):
    return sorted(row.items())


def test_a_condition_on_the_node_leaves_other_logs_unread(spark, lived, tmp_path):
    shutil.copytree(lived.older, tmp_path / "node-1")

    async def other():
        world = node_at(tmp_path / "node-2")
        await world.open()
        await deliver(world, 0)
        found = await answers(world, "node-2")
        await world.engine.close()
        return found

    expected = asyncio.run(other())
    assert rows_of(read(spark, tmp_path / "node-*").where("node = 'node-2'").collect()) == expected
    assert read(spark, tmp_path / "node-*").count() == len(expected) + len(lived.older_answers)
    [log] = find_logs([str(tmp_path / "node-1")])
    path = tmp_path / "node-1" / "log" / f"{log.segments[0].base:020d}.log"
    path.write_bytes(path.read_bytes()[:64] + b"\xff" * (log.segments[0].end - 64))
    assert read(spark, tmp_path / "node-*").where("node = 'node-2'").count() == len(expected)


CONDITIONS = [
    "topic = 'orders'",
    "topic in ('tickets', 'reports', 'none')",
    "topic <> 'filler'",
    "topic like 'r%'",
    "queue = 0",
    "offset >= 4",
    "offset < 7",
    "offset in (1, 5, 9)",
    "level > 0",
    "node = 'node-1'",
    "lateness_ms >= 0",
    "tags = 'blue'",
    "properties['user'] = 'ä'",
]


@pytest.mark.parametrize("place", ["log", pytest.param("archive", marks=pytest.mark.torture)])
def test_rows_are_those_of_the_same_conditions_without_push_down(spark, lived, place):
    options = {"archive": str(lived.archive)} if place == "archive" else {}
    path = lived.data if place == "archive" else lived.older
    found = read(spark, path, **options)
    held = spark.createDataFrame(found.collect(), found.schema).cache()
    times = sorted({row.delivered_ms for row in held.select("delivered_ms").collect()})
    log_offsets = sorted(row.log_offset for row in held.select("log_offset").collect())
    bounds = [f"delivered_ms {order} {ms}" for ms in times[:: len(times) // 3] for order in ("<", ">=")]
    bounds += [f"due_ms {order} {ms}" for ms in times[:: len(times) // 3] for order in (">", "<=")]
    bounds += [f"log_offset {order} {at}" for at in log_offsets[:: len(log_offsets) // 3] for order in "<>"]

    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(st.sampled_from(CONDITIONS + bounds), min_size=1, max_size=3).map(" and ".join))
    def agree(condition):
        assert rows_of(found.where(condition).collect()) == rows_of(held.where(condition).collect()), (
            condition
        )

    agree()


def test_a_task_reads_the_archive_if_its_segment_has_gone_since_it_was_planned(spark, lived, tmp_path):
    shutil.copytree(lived.older, tmp_path / "node-1")
    options = read_options({"path": str(tmp_path / "node-1"), "archive": str(lived.archive)}, stream=False)
    schema = read(spark, lived.older).schema
    reader = DeliveredReader(options, arrow_schema_of(schema))
    planned = reader.partitions()
    expected = [row for part in planned for batch in reader.read(part) for row in batch.to_pylist()]
    for path in sorted((tmp_path / "node-1" / "log").glob("*.log"))[:2]:
        path.unlink()
    found = [row for part in planned for batch in reader.read(part) for row in batch.to_pylist()]

    def by_place(row):
        return row["log_offset"]

    assert sorted(found, key=by_place) == sorted(expected, key=by_place)
    assert len(found) == len(lived.older_answers)


def test_the_same_log_twice_and_a_log_that_is_not_there_are_refused(spark, lived, tmp_path):
    shutil.copytree(lived.older, tmp_path / "copy")
    with pytest.raises(PySparkException, match="hold the same log: read one of them"):
        read(spark, None, paths=f"{lived.older},{tmp_path}/copy").count()
    with pytest.raises(PySparkException, match="has no archived log"):
        read(spark, None, archive=str(tmp_path)).count()
    (tmp_path / "new-1" / "log").mkdir(parents=True)
    with pytest.raises(PySparkException, match=r"new-\*: no log has a segment yet"):
        read(spark, tmp_path / "new-*").count()
    gone = json.dumps({"format": 1, "nodes": {"node-9": beginning_of(lived) | {"log": "00"}}})
    with pytest.raises(PySparkException, match="node-9 has an offset, and is not among the logs: node-1"):
        read(spark, lived.older, startingOffsets=gone).count()
    found = read(spark, lived.older, startingOffsets=gone, failOnDataLoss="false")
    assert found.count() == len(lived.older_answers)


def test_wrong_options_and_columns_are_one_line(spark, lived):
    with pytest.raises(PySparkException, match="no such option of a batch: topics; choose from path, paths"):
        read(spark, lived.older, topics="orders").count()
    with pytest.raises(PySparkException, match="no such column: colour string; choose from node string, "):
        spark.read.format(FORMAT).schema("id string, colour string").load(str(lived.older)).count()
    with pytest.raises(PySparkException, match="no such column: queue bigint"):
        spark.read.format(FORMAT).schema("queue bigint").load(str(lived.older)).count()
    with pytest.raises(PySparkException, match="no such option of a stream: from"):
        spark.readStream.format(FORMAT).option("from", "1").load(str(lived.older)).writeStream.format(
            "noop"
        ).start().awaitTermination()
    assert list(COLUMNS) == read(spark, lived.older).columns
