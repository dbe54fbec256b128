"""What the commands share that run on Spark: their options, and the session around each."""

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

    from timerwheel.spark_jobs.logs import Site
    from timerwheel.spark_jobs.progress import Stages

DATA_VARIABLE = "TIMERWHEEL_DATA"
MASTER_DEFAULT = "local[*]"


def _default_data() -> list[str]:
    # Not as the option's own variable: of an option that may be repeated, that would be cut at each space.
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
    str, typer.Option("--master", envvar="TIMERWHEEL_SPARK_MASTER", help="Where Spark runs the job.")
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]
StagingOption = Annotated[
    str | None,
    typer.Option(
        "--staging", help="Where the job keeps what it needs meanwhile: all executors must reach it."
    ),
]
SalvageFlag = Annotated[bool, typer.Option("--salvage", help="Go on past damage in the log, and report it.")]
ScanFlag = Annotated[
    bool, typer.Option("--scan", help="Read every record and check its CRC, also where sidecars would do.")
]


class Job(NamedTuple):
    """A running session and what a job needs beside it."""

    spark: "SparkSession"
    stages: "Stages"
    staging: str


def require_spark() -> None:
    """Raises SettingsError if what the extra `spark` installs is not there."""
    for module in ("pyspark", "pandas", "pyarrow", "fsspec", "matplotlib", "jinja2"):
        if importlib.util.find_spec(module) is None:
            raise SettingsError(
                f"{module} is missing: this command needs Spark, `pip install 'timerwheel[spark]'`"
            )


def find_logs(data: list[str]) -> "list[Site]":
    """The logs that the options name; before Spark is started, so that a mistake is told at once."""
    require_spark()
    from timerwheel.spark_jobs.logs import find_sites

    return find_sites(data)


@contextlib.contextmanager
def spark_job(name: str, master: str, conf: list[str] | None, staging: str | None) -> Iterator[Job]:
    """A Spark session for one command, with a bar for each stage on a terminal, and a place to stage."""
    require_spark()
    from timerwheel.spark_jobs.progress import Stages
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
        yield Job(spark, Stages(spark, show=show), staging)


@contextlib.contextmanager
def _own_directory(url: str, name: str) -> Iterator[str]:
    """A directory of this run below the one that was named: two runs may share that one."""
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
    """SIGTERM leaves the block as an exception, so that Spark is stopped and nothing stays behind."""

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
