"""The jobs on logs full of acknowledgements, retries, and leases of earlier versions."""

import pytest

from tests.harness.archiving import run_archive, run_restore
from tests.harness.group_log import BEGIN_MS, GroupLog, RandomGroups
from timerwheel.offline.fsck import fsck
from timerwheel.spark_jobs.archive.check import verify
from timerwheel.spark_jobs.archive.restored_start import RESTORED_GAP_MESSAGES
from timerwheel.spark_jobs.audit.job import audit
from timerwheel.spark_jobs.forecast.horizon import horizon_of
from timerwheel.spark_jobs.forecast.job import count_due, totals_of
from timerwheel.spark_jobs.logs import find_logs
from timerwheel.spark_jobs.segment_stats import ReadOptions, survey
from timerwheel.state import lease_records
from timerwheel.state.config_table import ConfigTable
from timerwheel.state.log_manifest import LOG_DIRECTORY, read_start
from timerwheel.store.files import DiskFiles

SEEDS = range(100, 110)
STEPS = 320
NAME = b"orders/g"


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("groups")
    return directory, [RandomGroups(directory / f"g{seed}", seed).live(STEPS) for seed in SEEDS]


@pytest.fixture(scope="module")
def surveyed(spark, logs, tmp_path_factory):
    return survey(spark, find_logs([str(logs[0] / "*")]), ReadOptions(str(tmp_path_factory.mktemp("tables"))))


def test_the_audit_has_no_findings_and_counts_what_waits(spark, progress, logs, surveyed):
    found = audit(spark, progress, surveyed, None)
    assert found.balanced, found.findings
    assert found.leases.difference == 0
    held = [item for life in logs[1] for group in life.log.state.groups for item in group.items.values()]
    assert found.leases.pending == sum(item.timed for item in held) > 0


def test_the_forecast_counts_no_retry(spark, surveyed):
    horizon = horizon_of(BEGIN_MS, 3_600_000)
    totals = totals_of(count_due(spark, surveyed, horizon), horizon)
    assert (totals.overdue, totals.later, totals.per_second.sum()) == (0, 0, 0)


def retried(data) -> GroupLog:
    """A log with a retry that waits, in the second segment; the first has its message and settings."""
    log = GroupLog(data)
    log.group(NAME.decode())
    log.put(ConfigTable.LEASES, NAME.decode(), [[0, 1, 1, 7, 1, BEGIN_MS + 30_000]])
    log.send("orders", count=9)
    log.store(lease_records.ack(NAME, 0, 2, 6, log.now_ms))
    log.store(
        lease_records.hold(NAME, (0, 1), log.now_ms, 77),
        lease_records.retry(NAME, (0, 1), 3, log.now_ms, log.now_ms + 10**6, ended=True),
    )
    return log


def test_a_retry_that_retention_has_moved_is_still_the_attempt_that_it_was(spark, progress, tmp_path):
    log = retried(tmp_path / "data")
    while len(log.log.bases) < 4:
        log.send("orders", body=b"f" * 300)
    log.drop_before(log.log.bases[2])
    log.close()
    item = log.state.groups.by_name[NAME.decode()].items[1]
    assert (item.attempt, item.offset > item.root) == (3, True)
    assert fsck(tmp_path / "data").ok
    tables = tmp_path / "tables"
    tables.mkdir()
    found = audit(spark, progress, survey(spark, find_logs([str(log.data)]), ReadOptions(str(tables))), None)
    assert found.balanced, found.findings
    assert (found.leases.carried, found.leases.replaced, found.leases.pending) == (1, 1, 1)


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_they_are_archived_and_the_archive_is_what_was_archived(spark, progress, logs, tmp_path, seed):
    archived = run_archive(spark, progress, logs[0] / f"g{seed}", tmp_path / "archive")
    assert archived.records > 100
    checked = verify(spark, progress, str(tmp_path / "archive"), [archived.log_id])
    assert (checked.records, checked.problems) == (archived.records, [])


def test_a_restored_group_begins_again_without_what_it_held(spark, progress, tmp_path):
    log = retried(tmp_path / "data")
    while len(log.log.bases) < 2:
        log.send("orders", body=b"f" * 300)
    log.close()
    run_archive(spark, progress, log.data, tmp_path / "archive")
    restored = tmp_path / "restored"
    report = run_restore(spark, progress, tmp_path / "archive", restored, log.now_ms)
    assert report.pending == 0
    start = read_start(DiskFiles(), restored / LOG_DIRECTORY)
    [(topic, queue, first)] = start.queues
    assert (topic, queue, first > RESTORED_GAP_MESSAGES) == ("orders", 0, True)
    assert start.settings.groups == {NAME.decode(): [{"0": first}, [], start.offset]}
    assert [put.table for put in start.settings.control] == [ConfigTable.GROUP]
    assert fsck(restored).ok
