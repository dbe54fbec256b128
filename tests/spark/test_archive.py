"""Archiving: every sealed record is in the archive once, whatever stops a run and however often it is run."""

import json
import shutil
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from tests.harness.archiving import ArchivedWorld, run_archive, story_of
from timerwheel.runtime.archived import read_archived
from timerwheel.spark_jobs.archive.check import check_segment, verify
from timerwheel.spark_jobs.archive.job import Work, archive, archive_segment
from timerwheel.spark_jobs.archive.part import find_part
from timerwheel.spark_jobs.archive.store import Archive, ArchiveError, partition_value
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.store.files import DiskFiles
from timerwheel.store.record import HEADER_SIZE
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, segment_name


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
    """Every file's content and when it was written."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def contents(directory: Path) -> dict[str, bytes]:
    return {name: data for name, (data, _) in tree(directory).items()}


def manifests(directory: Path) -> list[Path]:
    return sorted(directory.glob("_manifest/*/*.json"))


def test_the_second_run_archives_what_the_first_did_not_have_and_skips_the_rest(story):
    first, second = story.logs
    assert first.archived > 0
    assert first.skipped == 0
    assert second.archived > 0
    assert first.archived + second.archived == len(manifests(story.archive))
    marker = read_archived(DiskFiles(), story.data)
    assert marker is not None
    assert (marker.log_id, marker.until) == (second.log_id, second.until)
    assert marker.until > first.until


def test_plain_spark_reads_all_of_it_by_date_and_topic(spark, story):
    archived = spark.read.parquet(str(story.archive)).collect()
    heads = find_part(str(story.archive), None).heads
    assert len({row.offset for row in archived}) == len(archived) == sum(head.records for head in heads)
    own = {str(row.topic) for row in archived}
    assert own >= {"orders", "%odd|topic", "0042", "reports", "orders/g", "/control", "%DLQ%hasty"}
    assert {str(row.date) for row in archived} == {"2027-01-15"}
    # Of what retention has left, the log says the same, column by column.
    kept = sum(head.records for head in heads if head.base in _bases(story.data))
    source = spark.read.format("commitlog").option("columns", "all")
    log = source.load(str(story.data)).where(f"offset < {story.logs[-1].until}").collect()
    assert len(log) == kept
    by_offset = {row.offset: row.asDict() for row in archived}
    for row in log:
        assert row.asDict().items() <= by_offset[row.offset].items()


def _bases(data: Path) -> set[int]:
    return {int(path.stem) for path in (data / "log").glob("*.log")}


def test_archiving_again_writes_nothing(spark, progress, story):
    before, marked = tree(story.archive), tree(story.data)
    again = run_archive(spark, progress, story.data, story.archive)
    assert (again.archived, again.records, again.marked) == (0, 0, False)
    assert tree(story.archive) == before
    assert tree(story.data) == marked


def test_a_run_that_was_killed_at_any_point_is_completed_by_the_next_to_the_same_bytes(spark, progress, copy):
    before = tree(copy.archive)
    lost, half, last = manifests(copy.archive)[-3:]
    for manifest in (lost, half, last):
        files = [copy.archive / file["path"] for file in json.loads(manifest.read_bytes())["files"]]
        manifest.unlink()
        if manifest == lost:  # killed before the first file
            for path in files:
                path.unlink()
        elif manifest == half:  # killed in the middle of the second one
            for path in files[1:]:
                path.unlink()
            writing = copy.archive / "_writing" / files[0].stem
            writing.mkdir(parents=True)
            (writing / "5f0c").write_bytes(b"PAR1half")
    again = run_archive(spark, progress, copy.data, copy.archive)
    assert again.archived == 3
    after = tree(copy.archive)
    assert contents(copy.archive) == {name: data for name, (data, _) in before.items()}
    others = [name for name in before if not any(part.stem in name for part in (lost, half, last))]
    assert others
    assert all(after[name] == before[name] for name in others)


def test_a_whole_archive_is_verified_and_each_thing_that_is_wrong_is_named(spark, progress, copy):
    part = find_part(str(copy.archive), None)
    checked = verify(spark, progress, str(copy.archive), [part.log_id])
    assert checked.problems == []
    assert (checked.segments, checked.records) == (len(part.heads), sum(h.records for h in part.heads))
    flipped, gone, *_ = sorted(copy.archive.glob("date=*/topic=filler/*.parquet"))
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    gone.unlink()
    unread = manifests(copy.archive)[-1]
    unread.write_text("{}")
    problems = verify(spark, progress, str(copy.archive), [part.log_id]).problems
    assert len(problems) == 3
    assert any(f"{flipped} is damaged" in problem for problem in problems)
    assert any(f"{gone} is missing" in problem for problem in problems)
    assert any(f"{unread} is not a manifest" in problem for problem in problems)


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
    damage(copy)  # flipped back: as if the segment came from a backup
    assert run_archive(spark, progress, copy.data, fresh, salvage=True).archived == 0
    assert run_archive(spark, progress, copy.data, fresh).archived == 1
    assert find_part(str(fresh), None).missing == []


def test_a_copy_of_a_log_that_went_its_own_way_is_refused(spark, progress, copy):
    manifest = manifests(copy.archive)[-1]
    changed = json.loads(manifest.read_bytes())
    changed["end"] += 8
    manifest.write_text(json.dumps(changed))
    with pytest.raises(ArchiveError, match="one of them is a diverged copy"):
        run_archive(spark, progress, copy.data, copy.archive)


def test_two_copies_of_one_log_are_not_archived_at_once(spark, progress, story, copy):
    logs = find_logs([str(story.data), str(copy.data)])
    with pytest.raises(ArchiveError, match="hold the same log"):
        archive(spark, progress, logs, str(copy.archive), now_ms=0)


def test_a_segment_that_retention_removes_before_it_is_read_is_named(spark, progress, copy, tmp_path):
    logs = find_logs([str(copy.data)])
    base, following, *_ = sorted(_bases(copy.data))
    (copy.data / "log" / "start").write_text(json.dumps({"offset": following, "queues": []}))
    (copy.data / "log" / segment_name(base)).unlink()
    with pytest.raises(PySparkException, match=f"{segment_name(base)} is gone: retention has removed it"):
        archive(spark, progress, logs, str(tmp_path / "fresh"), now_ms=0)


def test_an_archive_may_lie_in_any_file_system_that_fsspec_knows(story):
    [log] = find_logs([str(story.data)])
    store = Archive("memory://backup/timers")
    done = archive_segment(store, Work(log.log_id, log.segments[0], None), salvage=False)
    assert store.log_ids() == [log.log_id.hex()]
    assert check_segment(store, log.log_id.hex(), log.segments[0].base) == (done.records, [])
    here = Archive(str(story.archive)).manifest(log.log_id.hex(), log.segments[0].base)
    assert store.manifest(log.log_id.hex(), log.segments[0].base).files == here.files
    fs = fsspec.filesystem("memory")
    assert not fs.exists("/backup/timers/_writing") or fs.find("/backup/timers/_writing") == []
    fs.rm("/backup", recursive=True)


def test_a_file_has_the_columns_of_the_log_and_rows_in_its_order(story):
    [path] = sorted(story.archive.glob("date=*/topic=0042/*.parquet"))[:1]
    table = pq.ParquetFile(path).read()
    assert table.column_names[:4] == ["log_id", "node", "segment", "offset"]
    assert {"id", "crc", "root_crc", "enqueue_ms", "properties", "body"} <= set(table.column_names)
    offsets = table["offset"].to_pylist()
    assert offsets == sorted(offsets)


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
