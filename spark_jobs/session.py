"""A Spark session for one command: quiet, local unless a master is given, and always stopped."""

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.errors import JobError, job_error
from timerwheel.spark_jobs.formats import register
from timerwheel.spark_jobs.preflight import has_executors
from timerwheel.store.files import UMASK

LOCAL = "local[*]"
FAILURES = "spark.task.maxFailures"
FAILURES_MAX = 4
DRIVER_MEMORY = "2g"
SHOWN_BYTES = 4_000
PARTITIONS = "spark.sql.shuffle.partitions"
PARTITIONS_PER_CORE = 3  # so that a slow one does not leave the other cores idle for long
_LOCAL_MASTER = re.compile(r"local(?:\[(\*|[0-9]+)\])?")
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit
_LOGGING = Path(__file__).with_name("log4j2.properties")


@contextmanager
def session(name: str, master: str = LOCAL, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that stops with the block. Spark errors are raised as JobError."""
    check_java()
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
    }
    if master.startswith("local"):
        values |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.master(with_retries(master, conf or {})).appName(f"timerwheel {name}")
    for key, value in {**values, **(conf or {})}.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as stderr:
        try:
            with _stderr_to(stderr), _ended_while_starting():
                spark = builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            raise job_error(error, _text_of(stderr)) from error
    with _quiet_py4j():
        try:
            with plain_errors(local=not has_executors(master)):
                register(spark)
                match_cluster(spark, conf or {})
                yield spark
        finally:
            _stop(spark)


def with_retries(master: str, conf: Mapping[str, str]) -> str:
    """A local master that tries a task as often as a cluster does; Spark itself would give up at once.

    So a Python process that the kernel kills for lack of memory does not end the job.
    """
    found = _LOCAL_MASTER.fullmatch(master)
    if found is None:
        return master
    return f"local[{found[1] or 1},{conf.get(FAILURES, FAILURES_MAX)}]"


@contextmanager
def plain_errors(*, local: bool = False) -> Iterator[None]:
    """Turns Spark errors in the block into a JobError of one line; `local` is whether executors are here."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise job_error(error, local=local) from error


def submitted_master() -> str | None:
    """The master that `spark-submit` chose, if it started this process; it has started Java, too."""
    if _SUBMITTED not in os.environ:
        return None
    SparkContext._ensure_initialized()  # noqa: SLF001 - nothing public reads its settings before a session
    master: str | None = SparkConf().get("spark.master")
    return master


def match_cluster(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Divide shuffles by the cores of the cluster, unless `conf` says how.

    On a cluster call it again once executors are there: before that Spark counts no core of theirs.
    """
    if PARTITIONS not in conf:
        spark.conf.set(PARTITIONS, str(PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism))


def _stop(spark: SparkSession) -> None:
    """Stop Spark, also if a signal to our process group has ended its Java process already."""
    with warnings.catch_warnings(), contextlib.suppress(PySparkException, Py4JError, OSError):
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()


@contextmanager
def _quiet_py4j() -> Iterator[None]:
    """Keeps what py4j logs by itself from stderr: it logs a traceback besides raising the error."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return f"{os.sep}py4j{os.sep}" not in record.pathname

    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    root.addFilter(is_wanted)  # some of it goes to the root logger itself
    py4j.propagate = False
    try:
        yield
    finally:
        py4j.propagate = True
        root.removeFilter(is_wanted)


@contextmanager
def _ended_while_starting() -> Iterator[None]:
    """Lets SIGINT and SIGTERM end the start of Spark without leaving its Java process behind.

    An exception in the middle of PySpark's start would: the new process then waits forever. So the signal
    ends that process, the start fails, and then the signal takes its usual course. PySpark also sets a
    handler for SIGINT that outlives the session; it is removed here.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = _children()
    arrived: list[int] = []

    def end(number: int, _frame: object) -> None:
        arrived.append(number)
        for child in _children() - ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def _children() -> set[int]:
    """The processes that this one has started and that still run; none where the kernel does not say."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, path.read_text().split()))
    return found


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
    return file.read()[-SHOWN_BYTES:].decode(errors="replace")


def check_java() -> None:
    """Raises JobError if there is no Java."""
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        raise JobError(
            "Spark needs Java 17 or later: install it (Debian: apt-get install default-jre-headless)"
        )
