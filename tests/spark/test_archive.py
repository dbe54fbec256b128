"""Archiving: every sealed record is in the archive once, whatever stops a run and however often it is run."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from tests.harness.archiving import ArchivedWorld, run_archive, story_of
from timerwheel.runtime.archived import read_archived
from timerwheel.spark_jobs.archive.check import check_chunk, verify
from timerwheel.spark_jobs.archive.chunk_writer import ChunkWriter
from timerwheel.spark_jobs.archive.job import (
    CHUNK_BYTES_MAX,
    CHUNK_SEGMENTS_MAX,
    archive,
    archive_segment,
)
from timerwheel.spark_jobs.archive.lock import ArchiveLock
from timerwheel.spark_jobs.archive.manifest import ArchivedSegment, partition_value
from timerwheel.spark_jobs.archive.part import find_part
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError
from timerwheel.spark_jobs.columns import COLUMNS
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.store.files import DiskFiles
from timerwheel.store.log import CommitLog
from timerwheel.store.record import HEADER_SIZE, Kind, encode
from timerwheel.store.sealed_json import seal
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, segment_name
from timerwheel.wheel.geometry import DAY_MS


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory) -> ArchivedWorld:
    return story_of(spark, tmp_path_factory.getbasetemp())


@pytest.fixture
def copy(story, tmp_path) -> ArchivedWorld:
    """The same, to be damaged."""
    for path in (story.data, story.archive):
        shutil.copytree(path, tmp_path / path.name)
    return story._replace(data=tmp_path / story.data.name, archive=tmp_path / story.archive.name)


def tree(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file's content and when it was written, without the locks, which name the last run."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "_lock" not in path.parts
    }


def manifests(directory: Path) -> list[Path]:
    return sorted(directory.glob("_manifest/*/*.json"))


def test_the_second_run_archives_what_the_first_did_not_have_and_skips_the_rest(story):
    first, second = story.logs
    assert first.archived > 0
    assert first.skipped == 0
    assert second.archived > 0
    segments = find_part(str(story.archive), None).segments
    assert first.archived + second.archived == len(segments) == 7
    assert (first.files, second.files, len(manifests(story.archive))) == (1, 3, 4)
    marker = read_archived(DiskFiles(), story.data)
    assert marker is not None
    assert (marker.log_id, marker.until) == (second.log_id, second.until)
    assert marker.until > first.until


def _bases(data: Path) -> set[int]:
    return {int(path.stem) for path in (data / "log").glob("*.log")}


def test_archiving_again_writes_nothing(spark, progress, story):
    before, marked = tree(story.archive), tree(story.data)
    again = run_archive(spark, progress, story.data, story.archive)
    assert (again.archived, again.records, again.marked) == (0, 0, False)
    assert tree(story.archive) == before
    assert tree(story.data) == marked


def test_a_whole_archive_is_verified_and_each_thing_that_is_wrong_is_named(spark, progress, copy):
    to = copy.archive.with_name("chunks")
    run_archive(spark, progress, copy.data, to, chunk_bytes_max=1)
    part = find_part(str(to), None)
    checked = verify(spark, progress, str(to), [part.log_id])
    assert checked.problems == []
    segments = part.segments
    assert (checked.segments, checked.records) == (len(segments), sum(one.records for one in segments))
    flipped, gone, *_ = sorted(to.glob("records/date=*/*.parquet"))
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    gone.unlink()
    unread = manifests(to)[-1]
    unread.write_text("{}")
    problems = verify(spark, progress, str(to), [part.log_id]).problems
    assert len(problems) == 3
    assert any(f"{flipped} is damaged" in problem for problem in problems)
    assert any(f"{gone} is missing" in problem for problem in problems)
    assert any(f"{unread} is not a valid manifest" in problem for problem in problems)


def damage(story: ArchivedWorld) -> int:
    """Flip a bit in the body of the first record of the first sealed segment; returns its log offset."""
    base = min(_bases(story.data))
    path = story.data / "log" / segment_name(base)
    data = bytearray(path.read_bytes())
    data[SEGMENT_HEADER_SIZE + HEADER_SIZE + 1] ^= 1
    path.write_bytes(data)
    return base + SEGMENT_HEADER_SIZE


def test_damage_is_named_with_salvage_the_rest_is_archived_and_once_it_is_mended_the_whole(
    spark, progress, copy, tmp_path
):
    offset = damage(copy)
    fresh = tmp_path / "fresh"
    with pytest.raises(PySparkException, match=f"damaged at log offset {offset}"):
        run_archive(spark, progress, copy.data, fresh)
    assert read_archived(DiskFiles(), copy.data).archive != str(fresh)
    found = run_archive(spark, progress, copy.data, fresh, salvage=True)
    assert [lost.offset for lost in found.lost] == [offset]
    with pytest.raises(ArchiveError, match=rf"offsets {offset} to \d+ were damaged"):
        find_part(str(fresh), None)
    assert find_part(str(fresh), None, salvage=True).missing
    chunks = find_part(str(fresh), None, salvage=True).chunks
    [damaged] = [chunk for chunk in chunks if any(segment.lost for segment in chunk.segments)]
    assert len(damaged.segments) == 1  # so that once mended it replaces nothing else
    damage(copy)  # flipped back: as if the segment came from a backup
    assert run_archive(spark, progress, copy.data, fresh, salvage=True).archived == 0
    assert run_archive(spark, progress, copy.data, fresh).archived == 1
    assert find_part(str(fresh), None).missing == []
    named = [file["path"] for path in manifests(fresh) for file in json.loads(path.read_bytes())["files"]]
    assert sorted(named) == [name for name in tree(fresh) if name.startswith("records/")]


def test_a_copy_of_a_log_that_went_its_own_way_is_refused(spark, progress, copy):
    manifest = manifests(copy.archive)[-1]
    changed = json.loads(manifest.read_bytes())
    changed["segments"][-1]["end"] += 8
    del changed["checksum"]
    manifest.write_bytes(seal(json.dumps(changed).encode()))
    with pytest.raises(ArchiveError, match="one of them is a diverged copy"):
        run_archive(spark, progress, copy.data, copy.archive)


def test_two_copies_of_one_log_are_not_archived_at_once(spark, progress, story, copy):
    logs = find_logs([str(story.data), str(copy.data)])
    with pytest.raises(ArchiveError, match="hold the same log"):
        archive(spark, progress, logs, str(copy.archive), now_ms=0)


def test_a_file_has_the_columns_of_the_log_and_the_rows_of_a_topic_side_by_side(story):
    path = max(story.archive.glob("records/date=*/*.parquet"))
    table = pq.ParquetFile(path).read()
    assert table.column_names == ["log_id", *COLUMNS]
    rows = list(zip(table["topic"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert rows == sorted(rows)


def test_a_large_segment_is_written_in_row_groups_and_memory_does_not_grow_with_it(story, tmp_path):
    [log] = find_logs([str(story.data)])
    with ArchiveLock(str(tmp_path / "to"), log.log_id.hex(), "now") as lock:
        writer = ChunkWriter(lock.run, row_group_bytes=2048)
        with writer:
            segments = [segment for segment in log.segments if segment.end is not None]
            found = [
                archive_segment(writer, lock.run.log_id, segment, None, salvage=False) for segment in segments
            ]
            writer.commit(log.node, found)
    [path] = tmp_path.glob("to/records/*/*.parquet")
    file = pq.ParquetFile(path)
    sizes = [sum(file.read_row_group(number)["size"].to_pylist()) for number in range(file.num_row_groups)]
    assert len(sizes) > 3
    # A batch is added at once, and is the most that a group may exceed its limit by.
    assert max(sizes) < 2048 + 8192
    assert check_chunk(Archive(str(tmp_path / "to")), lock.run.log_id, found[0].base) == (
        len(found),
        sum(one.records for one in found),
        [],
    )


def test_rows_of_many_days_are_written_before_they_are_too_many_for_memory(tmp_path):
    row = {"size": [100], "topic": ["orders"]}
    with (
        ArchiveLock(str(tmp_path), "0" * 32, "now") as lock,
        ChunkWriter(lock.run, row_group_bytes=1000) as writer,
    ):
        for number in range(45):  # less than a row group of each of five days, together more
            offset, store_ms = [64 + 104 * number], [number % 5 * DAY_MS]
            writer.add(pa.record_batch({**row, "store_ms": store_ms, "offset": offset}))
        facts = {"made_ms": 0, "records": 45, "last_store_ms": 1, "queues": [], "lost": [], "beginning": None}
        manifest = writer.commit("n", [ArchivedSegment(base=0, end=64 + 104 * 45, **facts)])
    assert [file.rows for file in manifest.files] == [9] * 5
    groups = [pq.ParquetFile(tmp_path / file.path).num_row_groups for file in manifest.files]
    assert sum(groups) > 5 >= max(groups)


def test_tiny_segments_are_archived_so_many_to_a_chunk(spark, progress, tmp_path):
    log = CommitLog(tmp_path / "node" / "log", DiskFiles(), 4096)
    log.open(new_log_id=b"i" * 16, now_ms=1, keep_from=0)
    for number in range(CHUNK_SEGMENTS_MAX + 2):
        times = {"store_ms": number, "enqueue_ms": number, "due_ms": DAY_MS}
        log.append([[encode(Kind.TIMER, b"t", b"", b"x" * 3000, **times)]], sync=False, now_ms=number)
    log.sync()
    log.close()
    found = run_archive(spark, progress, tmp_path / "node", tmp_path / "to", chunk_bytes_max=CHUNK_BYTES_MAX)
    assert (found.archived, found.files) == (CHUNK_SEGMENTS_MAX + 1, 2)
    chunks = find_part(str(tmp_path / "to"), None).chunks
    assert [len(chunk.segments) for chunk in chunks] == [CHUNK_SEGMENTS_MAX, 1]
    assert verify(spark, progress, str(tmp_path / "to"), [found.log_id]).problems == []


@pytest.mark.parametrize(
    ("topic", "directory"),
    [
        ("orders", "orders"),
        ("orders/closers", "orders%2Fclosers"),
        ("%DLQ%closers", "%25DLQ%25closers"),
        ("a|b-c_D", "a|b-c_D"),
    ],
)
def test_topics_are_escaped_as_hive_does(topic, directory):
    assert partition_value(topic) == directory


def test_names_too_long_for_a_directory_are_cut_and_stay_distinct():
    topics = ["%" * 127, "%" * 126 + "a", "t" * 127 + "/" + "%" * 120, "t" * 127 + "/" + "%" * 119 + "b"]
    values = [partition_value(topic) for topic in topics]
    assert len(set(values)) == len(topics)
    assert all(len(f"topic={value}".encode()) <= 255 for value in values)
    assert all("~" in value for value in values)
