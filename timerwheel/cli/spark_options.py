"""Options of the commands that run on Spark, and the session around each."""

import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from timerwheel.cli.options import parse_pairs
from timerwheel.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from timerwheel.spark_jobs.logs import NodeLog
    from timerwheel.spark_jobs.progress import JobProgress

DATA_VARIABLE = "TIMERWHEEL_DATA"
MASTER_DEFAULT = "local[*]"


def _default_data() -> list[str]:
    # Not as the envvar of the option: typer splits that at spaces for an option that may be repeated.
    return [os.environ.get(DATA_VARIABLE, "data")]


LogsOption = Annotated[
    list[str],
    typer.Option(
        "--data",
        default_factory=_default_data,
        show_default=f"data, or {DATA_VARIABLE}",
        metavar="DATA",
        help="A data directory, a pattern that matches many, or a URL that fsspec reads; may be repeated.",
    ),
]
MasterOption = Annotated[
    str,
    typer.Option("--master", envvar="TIMERWHEEL_SPARK_MASTER", help="The Spark master that runs the job."),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; may be repeated."),
]
StagingOption = Annotated[
    str | None,
    typer.Option("--staging", help="Directory or URL for temporary files; all executors must reach it."),
]
SalvageFlag = Annotated[bool, typer.Option("--salvage", help="Skip damage in the log and report it.")]
ScanFlag = Annotated[
    bool, typer.Option("--scan", help="Read every record and check its CRC instead of trusting sidecars.")
]


class Job(NamedTuple):
    """A running Spark session, its progress bars, and a directory for temporary files."""

    spark: "SparkSession"
    progress: "JobProgress"
    staging: str


def stage_times(seconds: dict[str, float]) -> str:
    """The durations of a job's stages on one line."""
    return ", ".join(f"{name} {duration:.1f} s" for name, duration in seconds.items())


def require_spark() -> None:
    """Raises SettingsError if the packages of the extra `spark` are not installed."""
    for module in ("pyspark", "pandas", "pyarrow", "fsspec", "matplotlib", "jinja2"):
        if importlib.util.find_spec(module) is None:
            raise SettingsError(
                f"{module} is missing: this command needs Spark, `pip install 'timerwheel[spark]'`"
            )


def find_logs(data: list[str]) -> "list[NodeLog]":
    """Finds the logs that the options name. Call it before Spark starts, so that a mistake shows at once."""
    require_spark()
    from timerwheel.spark_jobs.logs import find_logs as find

    return find(data)


@contextlib.contextmanager
def spark_job(name: str, master: str, conf: list[str] | None, staging: str | None) -> Iterator[Job]:
    """A Spark session for a command, with progress bars on a terminal and a directory for temporary files."""
    require_spark()
    from timerwheel.spark_jobs.progress import JobProgress
    from timerwheel.spark_jobs.session import session

    settings = parse_pairs(conf, "--conf")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_by_sigterm())
        if staging is None:
            made = tempfile.TemporaryDirectory(prefix="timerwheel-", ignore_cleanup_errors=True)
            staging = stack.enter_context(made)
        else:
            staging = stack.enter_context(_own_directory(staging, name))
        show = sys.stderr.isatty()
        if show:
            print("starting Spark", end="\r", file=sys.stderr, flush=True)
        spark = stack.enter_context(session(name, master, settings))
        yield Job(spark, JobProgress(spark, show=show), staging)


@contextlib.contextmanager
def _own_directory(url: str, name: str) -> Iterator[str]:
    """A directory for this run below the named one, which several runs may share."""
    from timerwheel.spark_jobs.storage import file_system, join, make_directories, normal

    own = join(normal(url), f"timerwheel-{name}-{uuid.uuid4().hex}")
    fs, path = file_system(own)
    make_directories(own, path)
    try:
        yield own
    finally:
        fs.rm(path, recursive=True)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turns SIGTERM into an exception, so that Spark is stopped and temporary files are removed."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
