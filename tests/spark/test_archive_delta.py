"""An archive as a Delta table: the records that its manifests name, without a copy."""

import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.harness.archiving import run_archive, story_of
from timerwheel.spark_jobs.archive.check import verify
from timerwheel.spark_jobs.archive.source import ARCHIVE_COLUMNS, read_archive
from timerwheel.spark_jobs.archive.store import ArchiveError
from timerwheel.spark_jobs.delta.archive import list_archive

GOLDEN = Path(__file__).parents[1] / "golden" / "archive-v1"


def rows_of(archive):
    return DeltaTable(archive / "records").to_pyarrow_table()


@pytest.fixture
def archive(spark, tmp_path, tmp_path_factory):
    story = story_of(spark, tmp_path_factory.getbasetemp())
    return shutil.copytree(story.archive, tmp_path / "archive")


def test_the_table_has_the_records_and_is_no_part_of_the_archive(spark, progress, archive):
    found = list_archive(str(archive))
    assert (found.removed, found.added) == (0, found.files)
    rows = rows_of(archive)
    assert len(rows) == found.rows == read_archive(spark, str(archive)).count()
    assert set(rows.column_names) == set(ARCHIVE_COLUMNS)
    expected = read_archive(spark, str(archive)).toArrow()
    order = [("log_id", "ascending"), ("offset", "ascending")]
    for name in ARCHIVE_COLUMNS:
        assert rows.sort_by(order)[name].to_pylist() == expected.sort_by(order)[name].to_pylist(), name
    log_ids = sorted(set(rows["log_id"].to_pylist()))
    assert verify(spark, progress, str(archive), log_ids).problems == []
    assert list_archive(str(archive))[1:3] == (0, 0)


def test_conditions_on_the_date_leave_files_out(archive):
    list_archive(str(archive))
    table = DeltaTable(archive / "records")
    assert table.metadata().partition_columns == ["date"]
    dates = sorted(set(rows_of(archive)["date"].to_pylist()))
    files = table.file_uris(file_pruning_predicate=[("date", "=", dates[0].isoformat())])
    assert files
    assert all(f"/date={dates[0]}/" in file for file in files)
    on_day = table.to_pyarrow_dataset().count_rows(filter=pc.field("date") == dates[0])
    assert on_day == rows_of(archive)["date"].to_pylist().count(dates[0])


def test_what_is_archived_later_comes_in_and_what_was_replaced_goes(
    spark, progress, tmp_path, tmp_path_factory
):
    story = story_of(spark, tmp_path_factory.getbasetemp())
    to = tmp_path / "growing"
    run_archive(spark, progress, story.data, to)
    list_archive(str(to))
    before = len(rows_of(to))
    manifests = sorted((to / "_manifest").glob("*/*.json"))
    # As if that chunk had not been archived yet, or had been replaced.
    held = manifests[-1].read_bytes()
    manifests[-1].unlink()
    removed = list_archive(str(to))
    assert (removed.added, removed.removed > 0) == (0, True)
    assert len(rows_of(to)) == removed.rows < before
    manifests[-1].write_bytes(held)
    added = list_archive(str(to))
    assert (added.added, added.removed) == (removed.removed, 0)
    assert len(rows_of(to)) == before


def test_a_vacuum_deletes_nothing_of_the_archive(archive):
    list_archive(str(archive))
    files = sorted((archive / "records").rglob("*.parquet"))
    stranger = files[0].with_name("not-in-the-table-yet.parquet")
    shutil.copy(files[0], stranger)
    assert DeltaTable(archive / "records").vacuum(dry_run=False) == []
    assert sorted((archive / "records").rglob("*.parquet")) == sorted([*files, stranger])


def test_an_archive_of_format_1_and_what_is_no_archive_are_refused(tmp_path):
    old = shutil.copytree(GOLDEN / "archive", tmp_path / "old")
    with pytest.raises(ArchiveError, match="has chunks of format 1, whose files lack columns"):
        list_archive(str(old))
    with pytest.raises(ArchiveError, match="is not an archive: it has no manifest of a log"):
        list_archive(str(tmp_path))
