"""A Spark session for tests: Java that starts quickly, and perhaps Pythons that have loaded their modules."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.java import HAS_JAVA, WHY
from tests.harness.loaded_python import python_for_spark
from tests.harness.processes import QUICK_JAVA
from timerwheel.spark_jobs.session import session

CONF = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}


@contextmanager
def quick_session(loaded: Path | None = None) -> Iterator[SparkSession]:
    """A session until the end of the block; without Java, the tests that ask for it are skipped.

    With a directory for their program, its Pythons load their modules first, which many jobs make up for.
    """
    if not HAS_JAVA:
        pytest.skip(WHY)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # Spark looks at them when it starts
            for name, value in QUICK_JAVA.items():
                patch.setenv(name, value)
            if loaded is not None:
                patch.setenv("PYSPARK_PYTHON", python_for_spark(loaded))
                patch.setenv("OPENBLAS_NUM_THREADS", "1")  # no thread may be there when a Python forks
            found = stack.enter_context(session("tests", "local[2]", CONF))
        yield found
