"""A Spark session for tests: Java that starts quickly, and Pythons that have loaded their modules."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.loaded_python import python_for_spark
from tests.harness.processes import QUICK_JAVA
from timerwheel.spark_jobs.session import session

CONF = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}


@contextmanager
def quick_session(directory: Path) -> Iterator[SparkSession]:
    """A session until the end of the block; `directory` is there and takes the program of its Pythons."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # Spark looks at them when it starts
            for name, value in QUICK_JAVA.items():
                patch.setenv(name, value)
            patch.setenv("PYSPARK_PYTHON", python_for_spark(directory))
            patch.setenv("OPENBLAS_NUM_THREADS", "1")  # no thread may be there when a Python forks
            found = stack.enter_context(session("tests", "local[2]", CONF))
        yield found
