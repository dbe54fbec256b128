import stat

import pytest

from tests.harness.scraping import Scrape
from timerwheel.errors import SettingsError
from timerwheel.spark_jobs.monitoring.job_metrics import LAST_SUCCESS, job_metrics


def run(path, *, fails=False, warn=pytest.fail, **gauges):
    with job_metrics("audit", path, {"survey": 1.5}, warn) as metrics:
        for name, value in gauges.items():
            metrics.set(name, "a gauge", value)
        if fails:
            raise ValueError("the job failed")


def test_a_run_says_that_it_came_to_its_end_and_what_it_measured(tmp_path):
    path = tmp_path / "nightly.prom"
    with job_metrics("audit", path, {"survey": 1.5, "judge": 2.0}, pytest.fail) as metrics:
        metrics.set("timerwheel_audit_balanced", "Whether it is", value=True)
        metrics.set_each("timerwheel_audit_findings", "How many", "rule", {"early": 0, "wrong_due": 3})
    found = Scrape(path.read_text())
    own = {"job": "audit", "run": "nightly"}
    assert found.value("timerwheel_job_success", **own) == 1
    assert found.value("timerwheel_audit_balanced", **own) == 1
    assert found.values("timerwheel_audit_findings", "rule") == {"early": 0, "wrong_due": 3}
    assert found.values("timerwheel_job_stage_duration_seconds", "stage") == {"survey": 1.5, "judge": 2}
    assert found.value(LAST_SUCCESS, **own) == found.value("timerwheel_job_end_timestamp_seconds", **own)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644  # the node exporter is another user
    assert [one.name for one in tmp_path.iterdir()] == ["nightly.prom"]


def test_after_a_failure_the_time_of_the_last_success_stays(tmp_path):
    path = tmp_path / "nightly.prom"
    run(path, left=1)
    succeeded = Scrape(path.read_text()).total(LAST_SUCCESS)
    for _ in range(2):
        with pytest.raises(ValueError, match="the job failed"):
            run(path, fails=True)
        found = Scrape(path.read_text())
        assert found.total("timerwheel_job_success") == 0
        assert found.total(LAST_SUCCESS) == succeeded
        assert "left" not in found.series()


@pytest.mark.parametrize("earlier", [None, b"\xff\xfe", b"no metrics {", b""])
def test_a_first_run_that_fails_knows_no_success(tmp_path, earlier):
    path = tmp_path / "nightly.prom"
    if earlier is not None:
        path.write_bytes(earlier)
    with pytest.raises(ValueError, match="the job failed"):
        run(path, fails=True)
    assert LAST_SUCCESS not in Scrape(path.read_text()).series()


def test_a_file_that_the_node_exporter_would_not_read_is_refused_before_the_job(tmp_path):
    for path in (tmp_path / "nightly.txt", tmp_path / "missing" / "nightly.prom"):
        with pytest.raises(SettingsError, match=r"^--metrics "):
            run(path, fails=True)


def test_metrics_that_cannot_be_written_do_not_fail_the_job(tmp_path):
    path = tmp_path / "nightly.prom"
    path.mkdir()
    warnings = []
    run(path, warn=warnings.append)
    assert len(warnings) == 1
    assert warnings[0].startswith("the metrics of this run are not written: ")
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_file_nothing_is_written(tmp_path):
    run(None, anything=1)
    assert list(tmp_path.iterdir()) == []
