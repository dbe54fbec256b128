"""Audits as Delta tables: each once, whatever is repeated or killed."""

import itertools
import shutil

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.harness.audit_tables import HOUR_MS, START_MS, write_audit
from tests.harness.object_store import BUCKET, object_store
from timerwheel.spark_jobs.audit.output import AuditOutputError
from timerwheel.spark_jobs.delta import audits as module
from timerwheel.spark_jobs.delta.audits import publish_audits
from timerwheel.spark_jobs.delta.tables import DeltaTableError

DELIVERIES = [("orders", START_MS + number * 7 * HOUR_MS, number) for number in range(20)]
MORE = [("007", START_MS + number * HOUR_MS, number) for number in range(5)]
TABLES = ("audits", "findings", "lateness", "timers")


def publish(*urls, to, replace=False):
    return publish_audits(list(urls), str(to), replace=replace, note=lambda _: None)


def rows_of(to, name, **options):
    return DeltaTable(f"{to}/{name}", **options).to_pyarrow_table().to_pylist()


def topics_of(to):
    return sorted(row["topic"] for row in rows_of(to, "timers"))


@pytest.fixture
def audits(tmp_path):
    """Two audits that continue each other."""
    return (
        write_audit(tmp_path / "one", DELIVERIES, files=3),
        write_audit(tmp_path / "two", MORE, begin=1_000, until=1_100),
    )


def test_each_row_of_an_audit_is_there_with_its_day_and_audit(audits, tmp_path):
    (found,) = publish(audits[0], to=tmp_path / "lake")
    assert found.rows == {"audits": 1, "timers": 20, "findings": 0, "lateness": 20}
    timers = rows_of(tmp_path / "lake", "timers")
    assert sorted(row["lateness_ms"] for row in timers) == list(range(20))
    for row in timers:
        assert row["audited_ms"] == START_MS
        assert row["day"].isoformat() == f"2026-11-{20 + (row['stored_ms'] - START_MS) // (24 * HOUR_MS) + 1}"
    table = DeltaTable(tmp_path / "lake" / "timers")
    assert table.metadata().partition_columns == ["day"]
    (audit,) = rows_of(tmp_path / "lake", "audits")
    assert (audit["node"], audit["begin"], audit["until"]) == ("node-1", 64, 1_000)
    assert {row["audit"] for row in timers} == {audit["audit"]}


def test_to_repeat_a_call_changes_nothing(audits, tmp_path):
    to = tmp_path / "lake"
    publish(*audits, to=to)
    moved = shutil.move(audits[0], tmp_path / "elsewhere")
    again = publish(str(moved), audits[1], to=to)
    assert [one.rows for one in again] == [{}, {}]
    assert topics_of(to) == ["007"] * 5 + ["orders"] * 20
    assert {name: DeltaTable(to / name).version() for name in TABLES} == {
        "audits": 1, "timers": 1, "lateness": 1, "findings": 0
    }  # fmt: skip


@pytest.mark.parametrize("writes", range(8))
def test_a_call_that_is_killed_is_continued_by_the_next(audits, tmp_path, monkeypatch, writes):
    to, done, write = tmp_path / "lake", itertools.count(), module.write_deltalake

    def killed(*arguments, **options):
        if next(done) == writes:
            raise KeyboardInterrupt
        write(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_deltalake", killed)
        try:
            publish(*audits, to=to)
        except KeyboardInterrupt:
            overlapping = write_audit(tmp_path / "three", MORE, begin=500, until=1_200)
            if writes:
                with pytest.raises(AuditOutputError, match="both account for"):
                    publish(overlapping, to=to)
    publish(*audits, to=to)
    assert topics_of(to) == ["007"] * 5 + ["orders"] * 20
    assert len(rows_of(to, "audits")) == 2
    assert len(rows_of(to, "lateness")) == 25


def test_of_what_several_audits_judged_the_tables_have_what_the_latest_says(audits, tmp_path):
    whole = write_audit(tmp_path / "whole", MORE, until=2_000, ended_ms=START_MS + 1)
    for number, order in enumerate(([*audits, whole], [whole, *audits])):
        to = tmp_path / f"lake-{number}"
        for _ in range(2):
            for url in order:
                publish(url, to=to)
        assert topics_of(to) == ["007"] * 5
        assert {row["topic"] for row in rows_of(to, "lateness")} == {"007"}
        assert len(rows_of(to, "lateness")) == 5
        assert len(rows_of(to, "audits")) == 3


def test_an_audit_of_an_earlier_version_loses_no_rows_beside_a_later_one_but_is_refused(tmp_path):
    """Its rows do not say which of them the later one judged again."""
    old = write_audit(tmp_path / "old", DELIVERIES)
    for path in (tmp_path / "old" / "lateness").iterdir():
        pq.write_table(pq.read_table(path).drop_columns(["segment"]), path)
    new = write_audit(tmp_path / "new", MORE, begin=500 + 64, until=2_000, segment=500, ended_ms=START_MS + 1)
    publish(old, to=tmp_path / "alone")
    assert len(rows_of(tmp_path / "alone", "lateness")) == 20
    with pytest.raises(AuditOutputError, match="old was made by an earlier version"):
        publish(new, old, to=tmp_path / "lake")
    assert not (tmp_path / "lake").exists()


def test_audits_that_cannot_be_told_from_each_other_are_refused_or_replace_the_others(audits, tmp_path):
    to = tmp_path / "lake"
    publish(*audits, to=to)
    whole = write_audit(tmp_path / "whole", MORE, until=1_050, ended_ms=START_MS + 1)
    with pytest.raises(AuditOutputError, match="both account for offsets from"):
        publish(whole, to=to)
    publish(whole, to=to, replace=True)
    assert topics_of(to) == ["007"] * 5
    # What was replaced may come back, and a replacement may be repeated.
    for _ in range(2):
        publish(*audits, to=to, replace=True)
        assert topics_of(to) == ["007"] * 5 + ["orders"] * 20
        assert len(rows_of(to, "audits")) == 2


def test_tables_in_an_object_store(audits, monkeypatch):
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        for _ in range(2):
            publish(*audits, to=f"s3://{BUCKET}/lake")
        found = rows_of(f"s3://{BUCKET}/lake", "timers", storage_options={"allow_http": "true"})
        assert len(found) == 25


def test_a_place_that_cannot_have_a_delta_table_is_named(audits, tmp_path):
    with pytest.raises(DeltaTableError, match="memory://lake/audits: a Delta table is a local directory, or"):
        publish(*audits, to="memory://lake")
    (tmp_path / "file").touch()
    with pytest.raises(DeltaTableError, match=r"file/audits: .*Not a directory"):
        publish(*audits, to=tmp_path / "file")
    (tmp_path / "lake" / "audits" / "_delta_log").mkdir(parents=True)
    (tmp_path / "lake" / "audits" / "_delta_log" / f"{0:020}.json").write_text("no log")
    with pytest.raises(DeltaTableError, match="lake/audits: "):
        publish(*audits, to=tmp_path / "lake")
