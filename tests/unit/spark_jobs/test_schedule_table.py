"""A table of files: which files it has, and which columns the rows of each have."""

import datetime as dt
import os
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.schedule.rows import RowMapping, alike, messages_of
from timerwheel.spark_jobs.schedule.table import BLOCK_BYTES, batches_of, open_table

AT = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
AT_MS = int(AT.timestamp() * 1_000)
TIMES = pa.array([AT], pa.timestamp("us", "UTC"))
ROWS = RowMapping("due", "orders")  # as bodies


def messages(place: Path, mapping: RowMapping = ROWS) -> list[dict[str, object]]:
    table = open_table(str(place), None)
    mapping.check(table.columns)
    batches = (batch for piece in table.pieces for batch in batches_of(piece, table.schema, mapping))
    parts = (part for batch in batches for part in alike(batch, mapping))
    return [row for part in parts for row in messages_of(part, mapping).to_pylist()]


def test_each_file_has_its_own_columns_and_types(tmp_path):
    """Files of a table that grew over years: 1.9e12 of one must not become microseconds of another."""
    pq.write_table(pa.table({"due": TIMES, "n": ["a"]}), tmp_path / "b.parquet")
    [alone] = messages(tmp_path)
    pq.write_table(pa.table({"due": [AT_MS], "n": ["c"], "more": [7]}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"due": [AT.isoformat()], "old": [1]}), tmp_path / "a.parquet")
    first, second, third = messages(tmp_path)
    assert second == alone, "so it has the same key, and is not scheduled twice"
    assert (first["deliver_at"], second["deliver_at"], third["deliver_at_ms"]) == (AT.isoformat(), AT, AT_MS)
    assert orjson.loads(first["body"]) == {"due": AT.isoformat(), "old": 1}
    assert orjson.loads(third["body"]) == {"due": AT_MS, "n": "c", "more": 7}


def test_a_column_that_a_later_file_has_is_in_the_bodies_of_its_rows(tmp_path):
    (tmp_path / "a.csv").write_text(f"due\n{AT_MS}\n")
    (tmp_path / "b.csv").write_text(f"more,due\n007,{AT_MS}\n")
    assert [orjson.loads(row["body"]) for row in messages(tmp_path)] == [
        {"due": str(AT_MS)},
        {"more": "007", "due": str(AT_MS)},
    ]


def test_a_file_without_a_column_that_is_needed_has_nulls_there(tmp_path):
    mapping = RowMapping("due", "orders", tags="kind")
    for name, line in (("a", {"kind": "x", "body": "one"}), ("b", {"body": "two"}), ("c", {"kind": "y"})):
        (tmp_path / f"{name}.jsonl").write_bytes(orjson.dumps({"due": AT_MS, **line}))
    found = [(row["body"], row["tags"]) for row in messages(tmp_path, mapping)]
    assert found == [("one", "x"), ("two", None), (None, "y")]


def test_a_field_that_a_body_would_lack_is_an_error(tmp_path):
    """Arrow takes the fields of a JSON file from its first block."""
    lines = b'{"due":%d}\n' % AT_MS * (BLOCK_BYTES // 20) + b'{"due":%d,"late":"x"}\n' % AT_MS
    (tmp_path / "a.json").write_bytes(lines)
    with pytest.raises(JobError, match=r"a\.json: a row has a field that none of the first rows has"):
        messages(tmp_path)


def test_what_begins_with_an_underscore_or_a_dot_is_no_part_of_a_table(tmp_path):
    rows = pa.table({"due": TIMES, "body": ["one"]})
    pq.write_table(rows, tmp_path / "a.parquet")
    for place in ("_temporary/0", ".hidden"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "part.json").touch()
    (tmp_path / "_SUCCESS").touch()
    assert [row["body"] for row in messages(tmp_path)] == ["one"]


def test_a_delta_table_is_refused_as_its_files_have_rows_that_it_has_not(tmp_path):
    pq.write_table(pa.table({"due": TIMES}), tmp_path / "a.parquet")
    (tmp_path / "_delta_log").mkdir()
    for kind in (None, "parquet"):
        with pytest.raises(JobError, match="is a Delta table: its files also hold rows that were deleted"):
            open_table(str(tmp_path), kind)


def test_what_is_no_file_in_a_directory_is_named_instead_of_left_out(tmp_path):
    pq.write_table(pa.table({"due": TIMES}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").symlink_to("nowhere")
    with pytest.raises(JobError, match=r"b\.parquet is a link to nothing: its rows would be missing"):
        open_table(str(tmp_path), None)
    (tmp_path / "b.parquet").unlink()
    os.mkfifo(tmp_path / "b.parquet")
    with pytest.raises(JobError, match=r"b\.parquet is neither a file nor a directory"):
        open_table(str(tmp_path), None)


def test_an_empty_directory_is_named(tmp_path):
    with pytest.raises(JobError, match="there are no files in this directory"):
        open_table(str(tmp_path), None)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_of_int96_are_in_utc_unless_the_file_says_that_they_have_no_zone(tmp_path, zone):
    """Spark and Hive write them so, and say nothing; pyarrow and pandas note what they are."""
    far = AT.replace(year=3000)
    instants = pa.array([AT, far], pa.timestamp("us", zone) if zone else pa.timestamp("us"))
    nested = pa.StructArray.from_arrays([pa.array(["x", "y"]), instants], ["name", "at"])
    listed = pa.LargeListArray.from_arrays([0, 1, 2], nested)
    mapped = pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), instants)
    rows = pa.table({"due": instants, "nested": nested, "listed": listed, "mapped": mapped, "n": [1, 2]})
    for name, stored in (("silent", False), ("noted", True)):
        place = tmp_path / name
        place.mkdir()
        pq.write_table(rows, place / "a.parquet", use_deprecated_int96_timestamps=True, store_schema=stored)
    berlin = ROWS._replace(zone="Europe/Berlin")
    first, second = messages(tmp_path / "silent", berlin)
    assert (first["deliver_at"], second["deliver_at"]) == (AT, far)
    assert orjson.loads(second["body"]) == {
        "due": far.isoformat(),
        "nested": {"name": "y", "at": far.isoformat()},
        "listed": [{"name": "y", "at": far.isoformat()}],
        "mapped": [["b", far.isoformat()]],
        "n": 2,
    }
    if zone is None:
        with pytest.raises(JobError, match="have no zone: say which"):
            messages(tmp_path / "noted")
        assert messages(tmp_path / "noted", berlin)[0]["deliver_at"] == AT - dt.timedelta(hours=1)
    else:
        assert messages(tmp_path / "noted")[0]["deliver_at"] == AT


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_row_may_be_as_large_as_any_message(tmp_path, kind, at):
    bodies = ["x" * (4 << 20), "y"]
    lines = [
        f"{AT_MS},{body}" if kind == "csv" else orjson.dumps({"due": AT_MS, "body": body}).decode()
        for body in (bodies if at == 0 else reversed(bodies))
    ]
    (tmp_path / f"a.{kind}").write_text("\n".join((["due,body"] if kind == "csv" else []) + lines) + "\n")
    assert sorted(row["body"] for row in messages(tmp_path)) == sorted(bodies)


def test_a_row_that_is_too_long_is_named_with_what_to_do(tmp_path):
    body = "x" * (2 * BLOCK_BYTES)
    (tmp_path / "a.csv").write_text(f"due,body\n{AT_MS},small\n{AT_MS},{body}\n{AT_MS},small\n")
    with pytest.raises(JobError, match=r"a\.csv.*a row is longer than 16 MiB: convert the file to Parquet"):
        messages(tmp_path)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("empty", ["a", "c"])
def test_an_empty_file_of_text_has_no_rows(tmp_path, kind, empty):
    """Spark writes one for a partition without rows."""
    place = tmp_path / "day=1"
    place.mkdir()
    line = f"due,n\n{AT_MS},1\n" if kind == "csv" else f'{{"due":{AT_MS},"n":"1"}}\n'
    (place / f"b.{kind}").write_text(line)
    (place / f"{empty}.{kind}").touch()
    due = str(AT_MS) if kind == "csv" else AT_MS
    assert [orjson.loads(row["body"]) for row in messages(tmp_path)] == [{"due": due, "n": "1", "day": "1"}]


def test_a_directory_of_empty_files_is_named(tmp_path):
    (tmp_path / "a.csv").touch()
    with pytest.raises(JobError, match="all files in this directory are empty"):
        open_table(str(tmp_path), None)


def test_an_empty_file_of_parquet_is_damage(tmp_path):
    pq.write_table(pa.table({"due": [AT_MS]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").touch()
    with pytest.raises(JobError, match=r"b\.parquet|0 bytes"):
        open_table(str(tmp_path), None)


def test_names_of_columns_that_are_not_utf_8_are_the_fault_of_the_file(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"due,f\xfcr\n1,2\n")
    with pytest.raises(JobError, match="names of columns are not UTF-8: convert the file"):
        open_table(str(tmp_path), None)
