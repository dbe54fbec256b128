"""Streams of delivered messages: exactly once with Spark's checkpoint, whatever becomes of the log."""

import json
import shutil

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.harness.archiving import run_archive, run_restore
from tests.harness.delivered import FORMAT, Sink, answers, deliver, node_at, rows_of, run_query, union
from tests.integration.runtime.test_retention import RETENTION_MS, age
from timerwheel.spark_jobs.delivered.options import read_options
from timerwheel.spark_jobs.delivered.stream import DeliveredStreamReader

ROWS = 24  # that `deliver` makes visible
KEPT_IF_ARCHIVED = {"retention_ms": RETENTION_MS, "retention_archived_only": True}


@pytest.fixture
def sink() -> Sink:
    return Sink()


def offsets_in(checkpoint, batch):
    """The offsets that Spark has noted for a batch."""
    return (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]


async def grown(tmp_path, name="node-1", **limits):
    """A node with some delivered messages."""
    world = node_at(tmp_path / name)
    await world.open(**limits)
    await deliver(world, 0)
    return world


async def test_a_stream_that_stops_and_starts_has_each_message_once(spark, tmp_path, sink):
    world = await grown(tmp_path)
    for first in (20, 40, 60):
        run_query(spark, world.directory, tmp_path / "checkpoint", sink)
        assert sink.rows == await answers(world, "node-1")
        await deliver(world, first)
        await world.restart()
    run_query(spark, world.directory, tmp_path / "checkpoint", sink)
    assert sink.rows == await answers(world, "node-1")
    before = len(sink.batches)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink)
    assert len(sink.batches) == before
    await world.engine.close()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("grown", marks=pytest.mark.torture),
        pytest.param("sealed", marks=pytest.mark.torture),
        pytest.param("archived", marks=pytest.mark.torture),
        "removed",
    ],
)
async def test_a_batch_that_was_killed_has_the_same_rows_again(spark, progress, tmp_path, sink, change):
    world = await grown(tmp_path, **KEPT_IF_ARCHIVED)
    options = {"archive": str(tmp_path / "archive")} if change in ("archived", "removed") else {}
    sink.fails_at = {1, 2}
    with pytest.raises(PySparkException, match="batch 1 was written"):
        run_query(spark, world.directory, tmp_path / "checkpoint", sink, **options)
    await deliver(world, 20)
    if change != "grown":
        await world.roll()
    expected = await answers(world, "node-1")
    if options:
        run_archive(spark, progress, world.directory, tmp_path / "archive")
    if change == "removed":
        assert await age(world) > 0
        assert world.engine.core.log.bases[0] > sink.batches[-1][1][-1].log_offset
        expected = union(expected, await answers(world, "node-1"))
    with pytest.raises(PySparkException, match="batch 2 was written"):
        run_query(spark, world.directory, tmp_path / "checkpoint", sink, **options)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, **options)
    assert [batch for batch, _ in sink.batches] == [0, 1, 1, 2, 2]
    assert len(sink.by_batch[1]) == ROWS
    assert sink.rows == expected
    await world.engine.close()


@pytest.mark.torture
@pytest.mark.parametrize("place", ["earliest", "latest"])
async def test_a_query_that_is_killed_in_its_first_batch_keeps_where_it_begins(spark, tmp_path, sink, place):
    world = await grown(tmp_path)
    sink.fails_at = {0}
    with pytest.raises(PySparkException, match="batch 0 was written"):
        run_query(spark, world.directory, tmp_path / "checkpoint", sink, startingOffsets=place)
    before = await answers(world, "node-1") if place == "latest" else []
    await deliver(world, 20)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, startingOffsets=place)
    assert sink.rows == [row for row in await answers(world, "node-1") if row not in before]
    await world.engine.close()


@pytest.mark.torture
async def test_what_retention_has_removed_is_named_or_left_out(spark, tmp_path, sink, caplog):
    world = await grown(tmp_path, retention_ms=RETENTION_MS)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink)
    read = await answers(world, "node-1")
    await deliver(world, 20)
    assert await age(world) > 0
    await deliver(world, 40)
    begin = world.engine.core.log.bases[0]
    with pytest.raises(
        PySparkException, match=rf"node-1: log offsets \d+ to {begin} cannot be read: retention"
    ):
        run_query(spark, world.directory, tmp_path / "checkpoint", sink)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, failOnDataLoss="false")
    assert sink.rows == union(read, await answers(world, "node-1"))
    [start] = [json.loads(text) for text in offsets_in(tmp_path / "checkpoint", 1)]
    options = read_options({"path": str(world.directory), "failOnDataLoss": "false"}, stream=True)
    DeliveredStreamReader(options, pa.schema([])).latestOffset(start, ReadAllAvailable())
    assert f"to {begin} are left out: retention has removed them" in caplog.text
    await world.engine.close()


@pytest.mark.torture
async def test_a_batch_whose_rows_are_gone_is_named_or_has_the_rest(spark, tmp_path, sink):
    world = await grown(tmp_path, retention_ms=RETENTION_MS)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink)
    await deliver(world, 20)
    await age(world)
    await deliver(world, 40)
    gone, sink.fails_at = await answers(world, "node-1"), {2}
    with pytest.raises(PySparkException, match="batch 2"):
        run_query(spark, world.directory, tmp_path / "checkpoint", sink, failOnDataLoss="false")
    attempts, sink.batches = sink.batches, []
    await age(world)
    with pytest.raises(PySparkException, match="node-1: log offsets"):
        run_query(spark, world.directory, tmp_path / "checkpoint", sink)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, failOnDataLoss="false")
    kept = await answers(world, "node-1")
    assert len(kept) < len(gone)
    assert sink.rows == kept
    assert [batch for batch, _ in attempts] == [0, 1, 2]
    await world.engine.close()


@pytest.mark.torture
async def test_another_log_at_the_same_path_is_refused(spark, tmp_path, sink):
    world = await grown(tmp_path)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink)
    await world.engine.close()
    shutil.rmtree(world.directory)
    world = await grown(tmp_path)
    with pytest.raises(PySparkException, match=r"node-1 holds another log \(id \w{16}\) than the one"):
        run_query(spark, world.directory, tmp_path / "checkpoint", sink)
    await world.engine.close()


@pytest.mark.torture
async def test_a_log_that_lost_what_was_read_is_refused(spark, tmp_path, sink):
    """As after a power cut: the end of the log was read before it was synced."""
    world = await grown(tmp_path)
    await world.engine.close()
    shutil.copytree(world.directory, tmp_path / "synced")
    await world.open()
    await deliver(world, 20)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink)
    await world.engine.close()
    for again in (False, True):
        shutil.rmtree(world.directory)
        shutil.copytree(tmp_path / "synced", world.directory)
        if again:
            await world.open()
            await deliver(world, 60)
            await world.engine.close()
        with pytest.raises(PySparkException, match="is not the one that this query has read"):
            run_query(spark, world.directory, tmp_path / "checkpoint", sink, failOnDataLoss="false")


@pytest.mark.torture
async def test_new_nodes_are_read_from_their_beginning(spark, tmp_path, sink):
    nodes = [await grown(tmp_path)]
    run_query(spark, tmp_path / "node-*", tmp_path / "checkpoint", sink)
    (tmp_path / "node-2" / "log").mkdir(parents=True)  # as while a service creates its data directory
    run_query(spark, tmp_path / "node-*", tmp_path / "checkpoint", sink)
    nodes.append(await grown(tmp_path, "node-2"))
    await deliver(nodes[0], 20)
    run_query(spark, tmp_path / "node-*", tmp_path / "checkpoint", sink, startingOffsets="latest")
    await deliver(nodes[1], 20)
    run_query(spark, tmp_path / "node-*", tmp_path / "checkpoint", sink, startingOffsets="latest")
    expected = [row for node in nodes for row in await answers(node, node.directory.name)]
    assert sink.rows == union(expected)
    for node in nodes:
        await node.engine.close()
    shutil.rmtree(nodes[1].directory)
    with pytest.raises(PySparkException, match="the log of node-2 is gone; there are node-1"):
        run_query(spark, tmp_path / "node-*", tmp_path / "checkpoint", sink)
    run_query(spark, tmp_path / "node-*", tmp_path / "checkpoint", sink, failOnDataLoss="false")
    assert sink.rows == union(expected)


@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": "10"}])
@pytest.mark.parametrize("by_name", [False, True])
async def test_the_rest_of_a_retired_node_comes_from_the_archive(
    spark, progress, tmp_path, sink, by_name, limit
):
    nodes = [await grown(tmp_path, name) for name in ("node-1", "node-2")]
    archive = tmp_path / "archive"
    options = {"archive": str(archive), **limit}
    if by_name:
        options["paths"] = ",".join(str(node.directory) for node in nodes)
    path = None if by_name else tmp_path / "node-*"
    run_query(spark, path, tmp_path / "checkpoint", sink, **options)
    before = len(sink.rows)
    await deliver(nodes[1], 20)
    await nodes[1].roll()
    run_archive(spark, progress, nodes[1].directory, archive)
    for node in nodes:
        await node.engine.close()
    shutil.rmtree(nodes[1].directory)
    run_query(spark, path, tmp_path / "checkpoint", sink, **options)
    archived = spark.read.format(FORMAT).option("archive", str(archive)).load().collect()
    assert [row for row in sink.rows if row["node"] == "node-2"] == rows_of(archived)
    assert len(sink.rows) >= before + ROWS


async def test_a_retired_node_that_is_given_by_its_path_is_left_out_if_asked_for(spark, tmp_path, sink):
    nodes = [await grown(tmp_path, name) for name in ("node-1", "node-2")]
    paths = ",".join(str(node.directory) for node in nodes)
    run_query(spark, None, tmp_path / "checkpoint", sink, paths=paths)
    await deliver(nodes[0], 20)
    expected = union(*[await answers(node, node.directory.name) for node in nodes])
    for node in nodes:
        await node.engine.close()
    shutil.rmtree(nodes[1].directory)
    with pytest.raises(PySparkException, match="the log of node-2 is gone; there are node-1"):
        run_query(spark, None, tmp_path / "checkpoint", sink, paths=paths)
    run_query(spark, None, tmp_path / "checkpoint", sink, paths=paths, failOnDataLoss="false")
    assert sink.rows == expected
    # For a new query nothing says that there ever was a log.
    with pytest.raises(PySparkException, match="node-2 is not a data directory of timerwheel"):
        run_query(spark, None, tmp_path / "new", Sink(), paths=paths, failOnDataLoss="false")


@pytest.mark.torture
async def test_a_moved_node_keeps_its_name_and_its_place(spark, tmp_path, sink):
    world = await grown(tmp_path)
    run_query(spark, tmp_path / "node-*", tmp_path / "checkpoint", sink)
    await world.engine.close()
    world.directory = world.directory.rename(tmp_path / "node-7")
    await world.open()
    await deliver(world, 20)
    run_query(spark, tmp_path / "node-*", tmp_path / "checkpoint", sink)
    assert sink.rows == await answers(world, "node-1")
    await world.engine.close()


@pytest.mark.torture
@pytest.mark.parametrize(
    ("limit", "value"),
    [("maxRowsPerTrigger", 10), ("maxBytesPerTrigger", 3_000), ("maxRowsPerTrigger", 1)],
)
async def test_limits_divide_the_same_rows_among_more_batches(spark, progress, tmp_path, sink, limit, value):
    nodes = [await grown(tmp_path, name, **KEPT_IF_ARCHIVED) for name in ("node-1", "node-2")]
    expected = []
    for node in nodes:
        await deliver(node, 20)
        await node.roll()
        expected += await answers(node, node.directory.name)
    run_archive(spark, progress, nodes[0].directory, tmp_path / "archive")
    assert await age(nodes[0]) > 0
    expected = union(expected, await answers(nodes[0], "node-1"))
    topic = "orders" if value == 1 else "orders,tickets,reports,filler"
    run_query(
        spark,
        tmp_path / "node-*",
        tmp_path / "checkpoint",
        sink,
        archive=str(tmp_path / "archive"),
        topic=topic,
        **{limit: str(value)},
    )
    assert sink.rows == [row for row in expected if row["topic"] in topic]
    ends = [max(row.log_offset for row in rows) for rows in sink.by_batch.values() if rows]
    assert len(ends) > 5
    log_sizes = [len(rows) for rows in sink.by_batch.values() if {row.node for row in rows} == {"node-2"}]
    if limit == "maxRowsPerTrigger" and value == 10:
        assert max(log_sizes) <= 10
    for node in nodes:
        await node.engine.close()


@pytest.mark.torture
async def test_a_topic_that_is_added_later_has_its_own_offsets(spark, tmp_path, sink):
    world = await grown(tmp_path)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, topic="orders")
    expected = [row for row in await answers(world, "node-1") if row["topic"] == "orders"]
    assert sink.rows == expected
    await deliver(world, 20)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, topic="orders, tickets")
    later = [
        row
        for row in await answers(world, "node-1")
        if row["topic"] == "orders" or (row["topic"] == "tickets" and row["offset"] >= 7)
    ]
    assert sink.rows == later
    await world.engine.close()


async def test_the_offset_of_a_query_is_where_another_begins_and_a_batch_ends(spark, tmp_path, sink):
    world = await grown(tmp_path)
    await deliver(world, 20)
    source = spark.readStream.format(FORMAT).option("maxRowsPerTrigger", "20").load(str(world.directory))
    ends = []

    def note(frame, batch):
        sink(frame, batch)
        ends.append(frame)

    query = source.writeStream.foreachBatch(note).trigger(availableNow=True).start()
    query.awaitTermination()
    offsets = [json.loads(one["sources"][0]["endOffset"]) for one in map(dict, query.recentProgress)]
    [first, second] = offsets[1:3]
    assert second["nodes"]["node-1"]["at"] > first["nodes"]["node-1"]["at"]
    read = spark.read.format(FORMAT).options(
        startingOffsets=json.dumps(first), endingOffsets=json.dumps(second)
    )
    assert sorted(read.load(str(world.directory)).collect()) == sorted(sink.by_batch[2])
    other = Sink()
    run_query(spark, world.directory, tmp_path / "checkpoint", other, startingOffsets=json.dumps(first))
    assert len(other.rows) == len(sink.rows) - len(sink.by_batch[1])
    await world.engine.close()


async def test_only_sealed_segments_are_read_if_asked_for(spark, tmp_path, sink):
    world = await grown(tmp_path)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, sealed="true")
    sealed = world.engine.core.log.bases[-1]
    await deliver(world, 20)
    assert all(row.log_offset < sealed for _, rows in sink.batches for row in rows)
    await world.roll()
    await world.roll()
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, sealed="true")
    sealed = world.engine.core.log.bases[-1]
    expected = [row for row in await answers(world, "node-1") if row["topic"] != "filler"]
    assert [row for row in sink.rows if row["topic"] != "filler"] == expected
    await world.engine.close()


async def test_a_stream_goes_on_after_its_node_was_restored_from_the_archive(spark, progress, tmp_path, sink):
    world = await grown(tmp_path)
    await world.send(3_600_000, topic="later")
    await world.roll()
    archive = tmp_path / "archive"
    run_archive(spark, progress, world.directory, archive)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, archive=str(archive), sealed="true")
    before = sink.rows
    await world.engine.close()
    world.directory.rename(tmp_path / "old")
    run_restore(spark, progress, archive, world.directory, world.clock.now_ms())
    await world.open()
    await world.advance(3_600_000)
    run_query(spark, world.directory, tmp_path / "checkpoint", sink, archive=str(archive))
    after = await answers(world, "node-1")
    assert [row["topic"] for row in after] == ["later"]
    assert sink.rows == union(before, after)
    everything = spark.read.format(FORMAT).option("archive", str(archive)).load(str(world.directory))
    assert everything.count() == len(sink.rows)
    await world.engine.close()
