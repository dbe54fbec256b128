"""A stream of delivered messages against what the service answers, over random histories.

Without Spark: the reader is called as Spark calls it. A history sends, fires, fills segments, archives,
applies retention and restarts. Whatever happens, each micro-batch has the same rows whenever it is planned,
and all together are what the queues had.
"""

import json
import random
import shutil
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tests.harness.delivered import TOPICS, answers, deliver, node_at, rows_of_batches, union
from tests.integration.runtime.test_retention import RETENTION_MS, age
from timerwheel.runtime.archived import Archived, write_archived
from timerwheel.spark_jobs.archive.job import Work, archive_chunk
from timerwheel.spark_jobs.archive.lock import ArchiveLock
from timerwheel.spark_jobs.archive.manifest import Beginning
from timerwheel.spark_jobs.archive.store import Archive
from timerwheel.spark_jobs.delivered.options import read_options
from timerwheel.spark_jobs.delivered.position import DataLossError, LogChangedError
from timerwheel.spark_jobs.delivered.rows import COLUMNS
from timerwheel.spark_jobs.delivered.stream import DeliveredStreamReader
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.store.files import DiskFiles

TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
SCHEMA = pa.schema([(name, TYPES[kind]) for name, kind in COLUMNS.items()])
STEPS = 30
LONG_RUN = [pytest.param(seed, marks=pytest.mark.torture) for seed in range(4, 40)]


def archive_new(data, to):
    """Archive what is sealed and not archived yet, a few segments at a time."""
    [log] = find_logs([str(data)])
    store, log_id = Archive(str(to)), log.log_id.hex()
    until = max([chunk.end for chunk in store.chunks(log_id)], default=0)
    sealed = [one for one in log.segments if one.end is not None and one.base >= until]
    start = log.start
    with ArchiveLock(str(to), log_id, "now") as lock:
        for at in range(0, len(sealed), 3):
            part = tuple(sealed[at : at + 3])
            beginnings = tuple(
                Beginning(start.queues, start.settings_until, [])
                if start is not None and start.offset == one.base
                else None
                for one in part
            )
            archive_chunk(Work(lock.run, part, beginnings), salvage=False)
            until = part[-1].end or until
    write_archived(DiskFiles(), data, Archived(log_id, until, str(to), 0))


class Query:
    """A stream as Spark runs it: offsets as JSON, a reader that may be a new one at any time."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.offsets = [json.dumps(self.reader().initialOffset())]
        self.rows: list[list[dict[str, Any]]] = []

    def reader(self) -> DeliveredStreamReader:
        return DeliveredStreamReader(read_options(self.options, stream=True), SCHEMA)

    def step(self, reader: DeliveredStreamReader, limit: Any) -> bool:
        """One micro-batch, unless there is nothing new."""
        end = json.dumps(reader.latestOffset(json.loads(self.offsets[-1]), limit))
        if end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        self.rows.append(self.planned(reader, len(self.rows)))
        return True

    def planned(self, reader: DeliveredStreamReader, number: int) -> list[dict[str, Any]]:
        start, end = (json.loads(text) for text in self.offsets[number : number + 2])
        found = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        return rows_of_batches(found)


async def one_step(world, rng, archive, number):
    match rng.choice(("deliver", "deliver", "array", "roll", "restart", "archive", "age")):
        case "deliver":
            await deliver(world, number * 20, rng.randrange(1, 20))
        case "array":
            await world.send(*[rng.randrange(3) * 200] * rng.randrange(1, 12), topic=rng.choice(TOPICS))
            await world.advance(300)
        case "roll":
            await world.roll()
        case "restart":
            await world.restart()
        case "archive":
            archive_new(world.directory, archive)
        case "age":
            for _ in range(2):
                await world.roll()
            archive_new(world.directory, archive)
            await age(world)


@pytest.mark.parametrize("seed", [*range(4), *LONG_RUN])
async def test_a_stream_has_what_the_queues_had_and_each_batch_again(tmp_path, seed):
    rng = random.Random(seed)
    world = node_at(tmp_path / "node-1", segment_bytes=rng.choice((4096, 8192, 16384)))
    await world.open(retention_ms=RETENTION_MS, retention_archived_only=True)
    archive = tmp_path / "archive"
    archive.mkdir()
    await deliver(world, 0)
    query = Query({"path": str(world.directory), "archive": str(archive)})
    reader = query.reader()
    expected: list[dict[str, Any]] = []
    for number in range(1, STEPS):
        expected = union(expected, await answers(world, "node-1"))
        await one_step(world, rng, archive, number)
        if rng.random() < 0.3:
            reader = query.reader()
        if rng.random() < 0.6:
            limits = (
                ReadAllAvailable(),
                ReadMaxRows(rng.randrange(1, 40)),
                ReadMaxBytes(rng.randrange(1, 9000)),
            )
            query.step(reader, rng.choice(limits))
        if query.rows and rng.random() < 0.5:
            again = rng.randrange(len(query.rows))
            assert query.planned(rng.choice((reader, query.reader())), again) == query.rows[again]
    expected = union(expected, await answers(world, "node-1"))
    while query.step(reader, ReadMaxRows(50)):
        pass
    found = [row for rows in query.rows for row in rows]
    assert len(found) == len(union(found))
    wanted = [row for row in expected if row["topic"] != "filler"]
    assert [row for row in union(found) if row["topic"] != "filler"] == wanted
    fillers = [row["offset"] for row in union(found) if row["topic"] == "filler"]
    assert fillers == list(range(len(fillers)))
    fresh = query.reader()
    for again, rows in enumerate(query.rows):
        assert query.planned(fresh, again) == rows
    await world.engine.close()


@pytest.mark.parametrize("seed", [*range(2), *LONG_RUN])
async def test_without_an_archive_what_is_lost_is_named_and_the_rest_has_its_offsets(tmp_path, seed):
    rng = random.Random(seed)
    world = node_at(tmp_path / "node-1")
    await world.open(retention_ms=RETENTION_MS)
    await deliver(world, 0)
    query = Query({"path": str(world.directory), "failOnDataLoss": "false"})
    strict = DeliveredStreamReader(read_options({"path": str(world.directory)}, stream=True), SCHEMA)
    lost = 0
    for number in range(1, STEPS):
        if rng.random() < 0.4:
            await age(world, rolls=rng.randrange(2, 4))
        await deliver(world, number * 20, rng.randrange(1, 10))
        if rng.random() < 0.5:
            start = json.loads(query.offsets[-1])
            at = start["nodes"].get("node-1", {"at": 2**62})["at"]
            if at < world.engine.core.log.bases[0]:
                lost += 1
                with pytest.raises(DataLossError, match=f"node-1: log offsets {at} to"):
                    strict.latestOffset(start, ReadAllAvailable())
            query.step(query.reader(), ReadMaxRows(rng.randrange(1, 60)))
    while query.step(query.reader(), ReadAllAvailable()):
        pass
    found = [row for rows in query.rows for row in rows]
    kept = await answers(world, "node-1")
    assert len(found) == len(union(found))
    assert [row for row in kept if row in found] == kept
    assert lost > 0
    await world.engine.close()


async def test_a_log_that_lost_its_end_is_refused_and_goes_on_if_it_did_not(tmp_path):
    world = node_at(tmp_path / "node-1")
    await world.open()
    await deliver(world, 0)
    await world.engine.close()
    whole = shutil.copytree(world.directory, tmp_path / "whole")
    query = Query({"path": str(world.directory)})
    while query.step(query.reader(), ReadAllAvailable()):
        pass
    log = max((world.directory / "log").glob("*.log"))
    records = log.read_bytes()
    at = json.loads(query.offsets[-1])["nodes"]["node-1"]
    lost = at["last"][0] - int(log.stem)
    flipped = bytearray(records)
    flipped[lost + 4] ^= 1
    for found in (records[:lost], bytes(flipped)):
        log.write_bytes(found)
        with pytest.raises(LogChangedError, match=f"the record at log offset {at['last'][0]} is not the one"):
            query.step(query.reader(), ReadAllAvailable())
        with pytest.raises(LogChangedError):
            query.planned(query.reader(), len(query.rows) - 1)
    shutil.rmtree(world.directory)
    shutil.move(whole, world.directory)
    await world.open()
    await deliver(world, 20)
    assert query.step(query.reader(), ReadAllAvailable())
    assert union(*query.rows) == await answers(world, "node-1")
    await world.engine.close()
