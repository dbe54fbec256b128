"""A Spark session for one command: quiet, local unless a master is given, and always stopped."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.errors import JobError, job_error
from timerwheel.spark_jobs.log_source import register
from timerwheel.store.files import UMASK

LOCAL = "local[*]"
DRIVER_MEMORY = "2g"
TOLD_BYTES = 4_000
_LOGGING = Path(__file__).with_name("log4j2.properties")


@contextmanager
def session(name: str, master: str = LOCAL, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that stops with the block. Spark errors are raised as JobError."""
    _check_java()
    # Executors on this machine run the same Python with the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    values = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.sql.session.timeZone": "UTC",
        "spark.hadoop.fs.permissions.umask-mode": f"{UMASK:03o}",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
    }
    if master.startswith("local"):
        values |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.master(master).appName(f"timerwheel {name}")
    for key, value in {**values, **(conf or {})}.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as stderr:
        try:
            with _stderr_to(stderr):
                spark = builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            raise job_error(error, _text_of(stderr)) from error
        try:
            with plain_errors():
                register(spark)
                yield spark
        finally:
            spark.stop()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turns Spark errors in the block into a JobError of one line."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise job_error(error) from error


@contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Redirects stderr of processes started in the block to `file`.

    The JVM prints warnings that mean nothing to our users; real errors arrive as exceptions.
    """
    kept = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read()[-TOLD_BYTES:].decode(errors="replace")


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        raise JobError(
            "Spark needs Java 17 or later: install it (Debian: apt-get install default-jre-headless)"
        )
