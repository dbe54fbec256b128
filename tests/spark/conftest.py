"""One Spark session for all tests of this directory: starting one takes longer than most tests."""

import contextlib
from collections.abc import Iterator

import pytest
import typer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.harness.quick_spark import quick_session
from timerwheel.cli import audit as audit_command
from timerwheel.cli.spark_options import Job
from timerwheel.cli.table import typed
from timerwheel.spark_jobs.monitoring.job_metrics import JobMetrics
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.session import plain_errors


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with quick_session(tmp_path_factory.mktemp("python")) as found:
        yield found


@pytest.fixture
def progress(spark: SparkSession) -> JobProgress:
    return JobProgress(spark, show=False)


@pytest.fixture
def run_audit(spark, tmp_path, monkeypatch):
    """Runs the command `audit` in a directory of its own, within the session of these tests."""

    @contextlib.contextmanager
    def job(*_, **_more):
        with plain_errors():
            yield Job(spark, JobProgress(spark, show=False), str(tmp_path), JobMetrics("audit", ""))

    monkeypatch.setattr(audit_command, "spark_job", job)
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(typed(audit_command.audit))
    return lambda *words: CliRunner().invoke(app, words)
