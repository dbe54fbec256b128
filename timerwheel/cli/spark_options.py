"""Options of the commands that run on Spark, and the session around each."""

import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from timerwheel.cli.options import Options, parse_pairs
from timerwheel.cli.output import progress_bar
from timerwheel.errors import SettingsError
from timerwheel.model.text import printable
from timerwheel.settings import JournalAddress, journal_of
from timerwheel.shards import layout
from timerwheel.store.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from timerwheel.spark_jobs.live_logs import Removed
    from timerwheel.spark_jobs.logs import NodeLog
    from timerwheel.spark_jobs.monitoring.job_metrics import JobMetrics
    from timerwheel.spark_jobs.monitoring.lineage import Dataset
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
SalvageFlag = Annotated[bool, typer.Option("--salvage", help="Skip damage in the log and report it.")]
ScanFlag = Annotated[
    bool, typer.Option("--scan", help="Read every record and check its CRC instead of trusting sidecars.")
]


KafkaOption = Annotated[
    str | None,
    typer.Option(
        "--kafka",
        metavar="kafka://HOST:PORT[/CLUSTER]",
        help="Brokers. With /CLUSTER, the log is there, and is copied into --data first.",
    ),
]
KafkaPropertiesOption = Annotated[
    Path | None,
    typer.Option("--kafka-properties", metavar="FILE", help="Properties of librdkafka, for TLS and SASL."),
]


class KafkaPlace(NamedTuple):
    """Brokers, their properties, and the name of the log that they keep, if they do."""

    servers: str
    properties: dict[str, str]
    cluster: str | None


class SparkOptions(NamedTuple):
    """What every command on Spark is given: where it runs, and where its metrics go."""

    master: str
    conf: list[str] | None
    metrics: Path | None
    staging: str | None = None


def _options(*, stages: bool) -> Options:
    master = typer.Option(
        "--master", envvar="TIMERWHEEL_SPARK_MASTER", help="The Spark master that runs the job."
    )
    conf = typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
    staging = typer.Option(
        "--staging", help="Directory or URL for temporary files; all executors must reach it."
    )
    metrics = typer.Option(
        "--metrics",
        metavar="FILE.prom",
        help="Write the metrics of this run there, for Prometheus' node exporter.",
    )
    return Options(
        {
            "master": (Annotated[str, master], MASTER_DEFAULT),
            "conf": (Annotated[list[str] | None, conf], None),
            **({"staging": (Annotated[str | None, staging], None)} if stages else {}),
            "metrics": (Annotated[Path | None, metrics], None),
        },
        SparkOptions,
    )


RunOptions = Annotated[SparkOptions, _options(stages=False)]
StagedRunOptions = Annotated[SparkOptions, _options(stages=True)]


class Job(NamedTuple):
    """A running Spark session, its progress bars, a directory for temporary files, and its metrics."""

    spark: "SparkSession"
    progress: "JobProgress"
    staging: str
    metrics: "JobMetrics"


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


def listed_again(logs: "Sequence[NodeLog]") -> "list[NodeLog]":
    """The logs as they are now that Spark has started, which takes seconds, and minutes on a busy cluster.

    Retention may have removed segments since, and the work would begin again without them. Logs in a store
    are left alone: to list them takes long, and what writes there is a copy.
    """
    from timerwheel.spark_jobs.storage import is_local

    every_is_local = all(is_local(log.url) for log in logs)
    return find_logs([log.url for log in logs]) if every_is_local else list(logs)


def removed_facts(removed: "Sequence[Removed]") -> list[tuple[str, str]]:
    """What retention removed from logs while a job ran, as facts for the user."""
    return [("removed", f"{printable(one.node)}: {one.text}") for one in removed]


def kafka_place(text: str, properties: Path | None) -> KafkaPlace:
    """What `--kafka` and `--kafka-properties` name; SettingsError, also if confluent-kafka is missing."""
    if importlib.util.find_spec("confluent_kafka") is None:
        raise SettingsError("confluent_kafka is missing: --kafka needs `pip install 'timerwheel[kafka]'`")
    from timerwheel.kafka.clients import read_properties

    has_cluster = "/" in text.removeprefix("kafka://")
    try:
        address = journal_of(text if has_cluster else f"{text}/any")
    except SettingsError:
        raise SettingsError(
            f"--kafka {text!r} is not an address of brokers: give kafka://HOST:PORT, or "
            "kafka://HOST:PORT/CLUSTER for a log that they keep; separate several HOST:PORT by commas"
        ) from None
    return KafkaPlace(address.servers, read_properties(properties), address.cluster if has_cluster else None)


def copy_journal(place: KafkaPlace, data: list[str]) -> list[str]:
    """Copy the log that brokers keep into the one directory that `--data` names, with progress.

    Returns the directories with a log. Those of a service in shards are in it, as a node has them.
    """
    assert place.cluster is not None
    from timerwheel.kafka.log_copy import copy_log, shards_of
    from timerwheel.spark_jobs.storage import is_local

    if len(data) != 1 or not is_local(data[0]):
        raise SettingsError(
            f"--data {', '.join(data)}: with --kafka, give one local directory for the copy of the log"
        )
    address, home = JournalAddress(place.servers, place.cluster), Path(data[0])
    shards = shards_of(address, place.properties)
    if not shards:
        with progress_bar("copying the log from Kafka") as report:
            copy_log(address, place.properties, home, report)
        return data
    for shard, log in enumerate(shards):
        with progress_bar(f"copying the log of shard {shard} from Kafka") as report:
            found = copy_log(log, place.properties, layout.data_of(home, shard), report).shard
        if found != (shard, len(shards)):
            raise SettingsError(
                f"--kafka {address.text}: the log of {log.cluster} is that of shard {found.number} of "
                f"{found.of}, but there are topics of {len(shards)} shards"
            )
    return [str(layout.data_of(home, shard)) for shard in range(len(shards))]


class Run(NamedTuple):
    """One run of a job, from its beginning to the one outcome that it reports.

    `reads` and `writes` go into the next OpenLineage event: complete them when more is known.
    """

    name: str
    options: SparkOptions
    metrics: "JobMetrics"
    seconds: dict[str, float]
    reads: "list[Dataset]"
    writes: "list[Dataset]"

    def find_logs(self, data: list[str]) -> "list[NodeLog]":
        """Find the logs that the options name, which the run reads."""
        from timerwheel.spark_jobs.monitoring.lineage import dataset_of

        logs = find_logs(data)
        self.reads[:] = [dataset_of(log.url) for log in logs]
        return logs


@contextlib.contextmanager
def reported(
    name: str, options: SparkOptions, reads: "Sequence[str | Dataset]", writes: "Sequence[str | Dataset]"
) -> Iterator[Run]:
    """A run of a job: whatever the block does from here on ends in one outcome, which is reported.

    A failure before Spark starts is one, and so is a signal. The outcome is in the metrics and the last
    OpenLineage event; a signal that comes while they are written changes nothing.
    """
    require_spark()
    from timerwheel.spark_jobs.monitoring.job_metrics import job_metrics
    from timerwheel.spark_jobs.monitoring.lineage import known_datasets, lineage

    seconds: dict[str, float] = {}
    inputs, outputs = known_datasets(reads), known_datasets(writes)
    with (
        _ended_by_signals() as signals,
        job_metrics(name, options.metrics, seconds, _warn) as metrics,
        lineage(name, inputs, outputs, _warn),
    ):
        try:
            yield Run(name, options, metrics, seconds, inputs, outputs)
        finally:
            signals.hold()


@contextlib.contextmanager
def spark_job(
    run: Run,
    *,
    logs: "Sequence[NodeLog]" = (),
    out: Sequence[tuple[str, str]] = (),
    stages: bool = True,
) -> Iterator[Job]:
    """A Spark session for a command, with progress bars on a terminal and a directory for temporary files.

    On a cluster the executors first look at the logs, the staging directory and `out`, options and their
    values. What can be checked without them is checked before Spark starts. `stages` says whether the job
    needs the staging directory.
    """
    from timerwheel.spark_jobs.preflight import check_executors, has_executors, probe, seen_logs
    from timerwheel.spark_jobs.progress import JobProgress
    from timerwheel.spark_jobs.session import check_java, match_cluster, session, submitted_master
    from timerwheel.spark_jobs.storage import is_local

    name, options = run.name, run.options
    settings = parse_pairs(options.conf, "--conf")
    master = settings.pop("spark.master", options.master)
    if master == MASTER_DEFAULT:
        master = submitted_master() or master
    if stages:
        _check_staging(options.staging, master)
    check_java()
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_staging(options.staging, name))
        written = [("--staging", place)] if stages else []
        written += out
        with contextlib.ExitStack() as probes:
            seen = [
                probes.enter_context(probe(option, url))
                for option, url in written
                if has_executors(master) or not is_local(url)
            ]
            show = sys.stderr.isatty()
            if show:
                print("starting Spark", end="\r", file=sys.stderr, flush=True)
            spark = stack.enter_context(session(name, master, settings))
            if has_executors(master):
                check_executors(spark, [*seen, *seen_logs(logs)])
                match_cluster(spark, settings)
        yield Job(spark, JobProgress(spark, show=show, seconds=run.seconds), place, run.metrics)


def _warn(problem: str) -> None:
    print(f"timerwheel: {problem}", file=sys.stderr)


def _check_staging(staging: str | None, master: str) -> None:
    from timerwheel.spark_jobs.preflight import is_one_machine

    if staging is None and not is_one_machine(master):
        raise SettingsError(
            f"--staging is missing: with --master {master} it must be a directory or URL that this machine "
            "and all executors reach, such as s3://bucket/path"
        )


@contextlib.contextmanager
def _staging(url: str | None, name: str) -> Iterator[str]:
    """The named directory's part for this run, or a temporary directory."""
    if url is None:
        with tempfile.TemporaryDirectory(prefix="timerwheel-", ignore_cleanup_errors=True) as made:
            yield made
    else:
        with _own_directory(url, name) as made:
            yield made


@contextlib.contextmanager
def _own_directory(url: str, name: str) -> Iterator[str]:
    """A directory for this run below the named one, which several runs may share."""
    from timerwheel.spark_jobs.storage import join, make_directories, normal, remove

    own = join(normal(url), f"timerwheel-{name}-{uuid.uuid4().hex}")
    make_directories(own)
    try:
        yield own
    finally:
        try:
            remove(own)
        except (StoreError, OSError) as error:  # the result of the job matters more
            print(f"timerwheel: temporary files are left in {own}: {error}", file=sys.stderr)


class _Signals:
    """The signals that arrived; the first one raises KeyboardInterrupt until `hold` is called."""

    def __init__(self) -> None:
        self.arrived: list[int] = []
        self._held = False

    def hold(self) -> None:
        """Let the first signal from now on change nothing; a second Ctrl-C still interrupts."""
        self._held = True

    def end(self, number: int, _frame: object) -> None:
        """Take a signal."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not self._held:
            self.arrived.append(number)
            raise KeyboardInterrupt


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[_Signals]:
    """Lets SIGTERM end a job like Ctrl-C: Spark is stopped, temporary files are removed, and a line says so.

    SIGTERM raises KeyboardInterrupt, too, because py4j would take any other exception for an answer that is
    still to come, and wait for the end of Spark's job. A second SIGTERM does not interrupt the removal, but a
    second Ctrl-C does.
    """
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals.end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    except BaseException:
        # If the signal ended Spark's Java process as well, this may be another error than the one above.
        if not signals.arrived:
            raise
        number = signals.arrived[0]
        what = "interrupted" if number == signal.SIGINT else "terminated"
        print(f"timerwheel: {what}; the job was stopped and its temporary files removed", file=sys.stderr)
        raise SystemExit(128 + number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
