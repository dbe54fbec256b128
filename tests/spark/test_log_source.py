"""The log source against the log as the service reads it."""

import asyncio
import shutil
import zipfile

import pytest
from pyspark.sql.types import StructType

from bench.history import make_log
from tests.harness.sample_log import make_sample, open_log
from timerwheel.spark_jobs.columns import COLUMNS, DEFAULT
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.log_source import CommitLogSource
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.segments import SegmentReader
from timerwheel.store.errors import FormatError
from timerwheel.store.record import NO_OFFSET, Kind, decode

HEADER_COLUMNS = set(COLUMNS) - {"node", "segment", "offset", "id", "topic", "properties", "body"}


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return asyncio.run(make_sample(tmp_path_factory.mktemp("source") / "node-1"))


def as_the_service_reads_it(data, ids):
    """Every record of a log as a row of all columns, with the id that the engine told."""
    log = open_log(data)
    rows, id_of_root = [], {}
    for item in log.scan(log.start):
        header, topic, properties, body = decode(item.data)
        root = item.offset if header.root == NO_OFFSET else header.root
        own = ids.get(body) if not topic.endswith(("/closers", "/control")) else None
        row = {
            **{name: getattr(header, name) for name in HEADER_COLUMNS},
            "node": data.name,
            "segment": log.base_of(item.offset),
            "offset": item.offset,
            "kind": Kind(header.kind).name.lower(),
            "root": root,
            "origin": None if header.origin == NO_OFFSET else header.origin,
            "topic": topic,
            "properties": properties.decode() or None,
            "body": bytes(body),
            "id": id_of_root.setdefault(root, own),
        }
        rows.append(row)
    log.close()
    return rows


def rows_of(frame):
    found = [row.asDict() for row in frame.collect()]
    for row in found:
        if row.get("body") is not None:
            row["body"] = bytes(row["body"])
    return sorted(found, key=lambda row: (row["node"], row["offset"]))


def test_every_column_of_every_record_is_what_the_service_reads(spark, sample):
    found = rows_of(spark.read.format("commitlog").option("columns", "all").load(str(sample.data)))
    expected = as_the_service_reads_it(sample.data, sample.ids)
    assert {row["kind"] for row in expected} == {kind.name.lower() for kind in Kind}
    assert set(found[0]) == set(COLUMNS)
    assert sum(row["id"] is not None for row in expected) > len(sample.ids) - 1
    for row, wanted in zip(found, expected, strict=True):
        if wanted["id"] is None:  # the engine told none: filler, leases and settings
            wanted["id"] = row["id"]
        assert row == wanted


def test_many_logs_are_read_by_a_pattern_with_a_node_for_each(spark, sample, tmp_path):
    expected = []
    for name in ("a", "b"):
        shutil.copytree(sample.data, tmp_path / f"node-{name}")
        expected += as_the_service_reads_it(tmp_path / f"node-{name}", sample.ids)
    (tmp_path / "node-file").write_text("no directory")
    (tmp_path / "node-empty").mkdir()
    found = rows_of(spark.read.format("commitlog").load(str(tmp_path / "node-*")))
    assert found == [{name: row[name] for name in DEFAULT} for row in expected]
    each = [str(tmp_path / "node-a"), str(tmp_path / "node-b")]
    assert rows_of(spark.read.format("commitlog").load(each)) == found
    assert rows_of(spark.read.format("commitlog").option("paths", ", ".join(each)).load()) == found


def test_a_log_in_an_archive_is_read_by_its_url_and_only_the_columns_that_are_asked_for(
    spark, sample, tmp_path
):
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        for path in sorted(sample.data.rglob("*")):
            if path.parent.name == "log":
                archive.write(path, f"node-1/log/{path.name}")
    schema = "node string, offset bigint, id string, body binary"
    source = spark.read.format("commitlog").schema(schema)
    found = rows_of(source.load(f"zip://node-*::{tmp_path}/logs.zip"))
    log = as_the_service_reads_it(sample.data, sample.ids)
    assert [(row["node"], row["offset"], row["body"]) for row in found] == [
        (row["node"], row["offset"], row["body"]) for row in log
    ]
    assert {row["id"] for row in found} >= set(sample.ids.values())


def spoil(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def damages(first, second):
    """Ways to spoil the sidecar of the first segment: one bit flipped in each field, and what else can be."""
    size = first.stat().st_size
    return {
        "missing": lambda path: path.unlink(),
        "other": lambda path: path.write_bytes(second.read_bytes()),
        "half": lambda path: path.write_bytes(first.read_bytes()[: size // 2]),
        "empty": lambda path: path.write_bytes(b""),
        **{
            f"flip-{place}": lambda path, place=place: spoil(path, place)
            for place in (0, 8, 16, 24, 32, 36, 40, 700, size - 1)
        },
    }


def test_a_sidecar_that_is_not_sound_is_not_read_and_the_rows_are_the_same(sample, tmp_path):
    [log] = find_logs([str(sample.data)])
    first, second = sorted((sample.data / "log").glob("*.side"))[:2]
    sound = SegmentReader(log.segments[0])
    rows, topics = sound.table()
    assert sound.source == "sidecar"
    for name, damage in damages(first, second).items():
        copied = shutil.copytree(sample.data / "log", tmp_path / name)
        damage(copied / first.name)
        reader = SegmentReader(log.segments[0]._replace(directory=str(copied)))
        found = reader.table()
        assert reader.source == "scan"
        assert found.topics == topics
        assert found.rows.tobytes() == rows.tobytes()


def test_sidecars_are_read_where_they_are_sound_and_segments_where_not(spark, sample, tmp_path):
    expected = as_the_service_reads_it(sample.data, sample.ids)
    first, second = sorted((sample.data / "log").glob("*.side"))[:2]
    spoiled = {"sound": lambda _path: None} | {
        name: damage for name, damage in damages(first, second).items() if name in ("missing", "flip-700")
    }
    for name, damage in spoiled.items():
        shutil.copytree(sample.data, tmp_path / name, ignore=shutil.ignore_patterns("index"))
        damage(tmp_path / name / "log" / first.name)
    read = spark.read.format("commitlog")
    sources = read.option("table", "segments").load(str(tmp_path / "*")).where("base = 0").collect()
    assert {row.node: row.source for row in sources} == {
        name: "sidecar" if name == "sound" else "scan" for name in spoiled
    }
    found = rows_of(read.option("table", "records").load(str(tmp_path / "*")))
    for name in spoiled:
        own = [{**row, "node": "node-1"} for row in found if row["node"] == name]
        assert own == [{column: row[column] for column in DEFAULT} for row in expected]


def test_a_long_log_is_read_whole_in_many_batches(spark, tmp_path):
    pending = make_log(tmp_path / "node-1", 80_000, 1_800_000_000_000)
    log = spark.read.format("commitlog").option("columns", "offset,kind,origin,crc")
    sums = (
        "count(*) AS records",
        "count(DISTINCT offset) AS offsets",
        "count(origin) AS ends",
        "count_if(kind = 'timer') AS timers",
    )
    found = log.load(str(tmp_path / "node-1")).selectExpr(*sums).first()
    assert (found.records, found.offsets) == (80_000, 80_000)
    assert found.timers - found.ends == pending


def test_directories_of_one_name_differ_by_their_whole_place(sample, tmp_path):
    for place in ("x", "y"):
        shutil.copytree(sample.data, tmp_path / place / "data")
    logs = find_logs([str(tmp_path / "*" / "data"), str(sample.data), str(tmp_path / "x" / "data")])
    assert [log.node for log in logs] == [
        str(tmp_path / "x" / "data"),
        str(tmp_path / "y" / "data"),
        "node-1",
    ]


def test_sidecars_are_left_alone_when_they_are_not_wanted(sample):
    [log] = find_logs([str(sample.data)])
    for segment in log.segments:
        reader = SegmentReader(segment, sidecars=False)
        reader.table()
        assert (reader.source, reader.until) == ("scan", reader.segment.end or reader.until)


def read(options):
    source = CommitLogSource(options)
    source.reader(StructType.fromDDL(source.schema()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "x", "columns": "id, colour"}, "no such columns: colour; choose from node, "),
        (
            {"path": "x", "table": "messages"},
            "no such table: messages; choose from records, damage, segments",
        ),
        ({"path": "x", "salvage": "perhaps"}, "option salvage must be true or false, not perhaps"),
        ({"path": "x", "columns": "topic, queue, topic"}, "given twice: topic"),
        (
            {"path": "x", "salvge": "true"},
            "no such option of commitlog: salvge; choose from path, paths, table",
        ),
        ({}, "give a path"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_what_cannot_be_read_is_refused_with_what_can(options, words):
    with pytest.raises(JobError, match=words):
        read(options)


@pytest.mark.parametrize("columns", ["colour string", "offset string", "topic string, topic string"])
@pytest.mark.usefixtures("spark")
def test_a_schema_that_the_source_does_not_have_is_refused(columns):
    with pytest.raises(JobError, match=r"no such column: |given twice"):
        CommitLogSource({"path": "x"}).reader(StructType.fromDDL(columns))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _data: None, "is not a data directory of timerwheel: it has no log/"),
        (lambda data: (data / "log").mkdir(parents=True), "no intact segment of a commit log"),
        (lambda data: data.write_text("x"), "is not a data directory"),
    ],
)
def test_a_place_without_a_log_is_refused_by_its_name(tmp_path, make, words):
    make(tmp_path / "data")
    with pytest.raises(FormatError, match=words) as caught:
        find_logs([str(tmp_path / "data")])
    assert str(tmp_path / "data") in str(caught.value)


def test_a_pattern_that_matches_no_log_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(FormatError, match="matches no data directory"):
        find_logs([str(tmp_path / "*")])
