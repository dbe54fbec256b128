"""`read_archive`: an archive as a table, with each topic as the text that it was."""

import datetime as dt
import json
import shutil
from pathlib import Path
from zoneinfo import ZoneInfo

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from tests.harness.archiving import ArchivedWorld, run_archive, run_restore, story_of
from timerwheel.offline.fsck import fsck
from timerwheel.spark_jobs.archive.check import verify
from timerwheel.spark_jobs.archive.part import find_part
from timerwheel.spark_jobs.archive.source import ARCHIVE_COLUMNS, read_archive
from timerwheel.spark_jobs.archive.store import ArchiveError
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.store.files import DiskFiles
from timerwheel.store.log import CommitLog
from timerwheel.store.record import Kind, encode
from timerwheel.wheel.geometry import DAY_MS

BEGIN_MS = 1_800_000_000_000 // DAY_MS * DAY_MS
ODD = ("007", "7", "1e3", "2027-01-15", "true", "null", "NULL", "NaN", "__HIVE_DEFAULT_PARTITION__", " ", "")
TOPICS = (*ODD, "orders", "%DLQ%a", "a|b", "ä/ö")


@pytest.fixture(scope="module")
def odd(spark, tmp_path_factory) -> Path:
    """The archive of a log with odd topics on three days."""
    room = tmp_path_factory.mktemp("odd")
    log = CommitLog(room / "node" / "log", DiskFiles(), 4096)
    log.open(new_log_id=b"i" * 16, now_ms=BEGIN_MS, keep_from=0)
    for number in range(200):
        store_ms = BEGIN_MS + number * 3 * DAY_MS // 200
        times = {"store_ms": store_ms, "enqueue_ms": store_ms, "due_ms": store_ms + DAY_MS}
        topic = TOPICS[number % len(TOPICS)]
        log.append(
            [[encode(Kind.TIMER, topic.encode(), b"", b"x" * 50, **times)]], sync=False, now_ms=store_ms
        )
    log.sync()
    log.close()
    run_archive(spark, JobProgress(spark, show=False), room / "node", room / "archive")
    return room / "archive"


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory) -> ArchivedWorld:
    return story_of(spark, tmp_path_factory.getbasetemp())


def test_each_topic_is_the_text_that_it_was(spark, progress, odd):
    found = read_archive(spark, str(odd))
    assert dict(found.dtypes)["topic"] == "string"
    counts = dict(found.groupBy("topic").count().collect())
    assert counts.keys() == set(TOPICS)
    for topic in ODD:
        assert read_archive(spark, str(odd), topic=topic).count() == counts[topic]
    assert found.where(found.topic == "007").count() == counts["007"], "as a text, not as a number"
    assert found.where("topic is null").count() == 0
    part = find_part(str(odd), None)
    assert verify(spark, progress, str(odd), [part.log_id]).problems == []


def test_the_messages_of_odd_topics_are_restored(spark, progress, odd, tmp_path):
    found = run_restore(spark, progress, odd, tmp_path / "new", BEGIN_MS)
    # "ä/ö" is a topic of the service itself.
    clients = read_archive(spark, str(odd)).where("not contains(topic, '/')").count()
    assert found.pending == clients == fsck(tmp_path / "new").pending < found.records


def test_others_read_the_same_rows(spark, odd):
    """As `doc/archive.md` tells them to: plain Spark, pandas, and any reader of Parquet by the manifests."""
    rows = sorted((row.offset, row.topic, row.date) for row in read_archive(spark, str(odd)).collect())
    plain = spark.read.parquet(f"{odd}/records")
    assert sorted((row.offset, row.topic, row.date) for row in plain.collect()) == rows
    frame = pd.read_parquet(odd / "records")
    assert sorted(zip(frame["offset"], frame["topic"], strict=True)) == [row[:2] for row in rows]
    manifests = [json.loads(path.read_bytes()) for path in odd.glob("_manifest/*/*.json")]
    files = [file["path"] for manifest in manifests for file in manifest["files"]]
    named = pd.concat([pq.ParquetFile(odd / file).read().to_pandas() for file in files])
    assert sorted(zip(named["offset"], named["topic"], strict=True)) == [row[:2] for row in rows]


def test_it_has_the_rows_that_the_log_has_column_by_column(spark, story):
    found = read_archive(spark, str(story.archive))
    assert found.columns == list(ARCHIVE_COLUMNS)
    archived = {row.offset: row.asDict() for row in found.collect()}
    segments = find_part(str(story.archive), None).segments
    assert len(archived) == sum(segment.records for segment in segments)
    assert {str(row["date"]) for row in archived.values()} == {"2027-01-15"}
    source = spark.read.format("commitlog").option("columns", "all")
    log = source.load(str(story.data)).where(f"offset < {story.logs[-1].until}").collect()
    assert len(log) > 50  # what retention has left
    for row in log:
        assert row.asDict().items() <= archived[row.offset].items()


def test_columns_topic_and_days_are_chosen_before_the_files_are_read(spark, odd, tmp_path):
    days = {row.date for row in read_archive(spark, str(odd), columns=["date"]).collect()}
    first, second, third = sorted(days)
    later = read_archive(spark, str(odd), columns=["offset", "date"], since=second)
    assert {row.date for row in later.collect()} == {second, third}
    assert later.columns == ["offset", "date"]
    one = read_archive(spark, str(odd), columns=["topic", "date"], topic="007", since=first, until=first)
    assert {tuple(row) for row in one.collect()} == {("007", dt.date(2027, 1, 15))} == {("007", first)}
    noon = dt.datetime.combine(second, dt.time(12))
    for at in (noon, noon.replace(tzinfo=dt.UTC).astimezone(ZoneInfo("Pacific/Kiritimati"))):
        found = read_archive(spark, str(odd), columns=["date"], since=at, until=at)
        assert {row.date for row in found.collect()} == {second}
    shutil.copytree(odd, tmp_path / "copy")
    for path in tmp_path.glob(f"copy/records/date={third}/*.parquet"):
        path.write_bytes(b"PAR1")
    assert read_archive(spark, str(tmp_path / "copy"), until=second).count() > 0
    with pytest.raises(PySparkException, match=f"date={third}/.* is damaged"):
        read_archive(spark, str(tmp_path / "copy")).count()


def test_what_is_no_archive_and_what_has_no_such_column_is_one_line(spark, odd, tmp_path):
    with pytest.raises(ArchiveError, match=f"{tmp_path} is not an archive"):
        read_archive(spark, str(tmp_path))
    with pytest.raises(ArchiveError, match="no such columns: tpic; choose from date, log_id, node"):
        read_archive(spark, str(odd), columns=["tpic"])
