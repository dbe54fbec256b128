"""One Spark session for all tests of this directory: starting one takes longer than most tests."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.harness.processes import QUICK_JAVA
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ.update(QUICK_JAVA)
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}
    with session("tests", "local[2]", conf) as found:
        yield found


@pytest.fixture
def progress(spark: SparkSession) -> JobProgress:
    return JobProgress(spark, show=False)
