"""The preflight of a job on a cluster: a look from the executors, before the job, at what it will need there.

A short task for each core reports whether it can import this package, in this version, read the logs, and
read what this machine wrote to the staging and output directories. It has to run where nothing of ours is
installed, so it is one function that Spark sends by value and that imports only when it runs.
"""

import contextlib
import hashlib
import importlib
import platform
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.errors import JobError, job_error
from timerwheel.spark_jobs.logs import NodeLog
from timerwheel.spark_jobs.storage import (
    exists,
    is_local,
    join,
    normal,
    read_head,
    remove,
    shown,
    write_atomically,
)
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, segment_name
from timerwheel.version import version

LOGS_MAX = 8  # as many logs are read from: a path that is wrong for one is wrong for all
HOSTS_SHOWN = 3
PROBE_PREFIX = ".probe-"
MODULES = ("timerwheel.spark_jobs.preflight", "numpy", "pyarrow", "pandas", "msgspec", "fsspec")
_MISMATCH = re.compile(r"Python in worker has different version: (\S+) than that in driver: ([\d.]+\d)")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')


Call = tuple[str, str, tuple[object, ...]]
"""A function that executors call: module, name and arguments. It returns a problem or "", or raises one."""


class Seen(NamedTuple):
    """The first bytes of a file, as a digest, and which option names its place."""

    option: str
    place: str
    url: str
    size: int
    digest: str


def is_one_machine(master: str) -> bool:
    """Whether all processes of Spark run on this machine, so that they see the same directories."""
    return master.startswith("local")


def has_executors(master: str) -> bool:
    """Whether executors are processes of their own, unlike with `local[*]`."""
    return not (master == "local" or master.startswith("local["))


def seen_logs(logs: Sequence[NodeLog]) -> list[Seen]:
    """The headers of the newest segments, which retention removes last, as this machine reads them."""
    found = []
    for log in logs[:LOGS_MAX]:
        segment = log.segments[-1]
        found.append(_seen("--data", log.url, join(segment.directory, segment_name(segment.base))))
    return found


def _seen(option: str, place: str, url: str) -> Seen:
    head = read_head(url, SEGMENT_HEADER_SIZE)
    return Seen(option, place, url, len(head), hashlib.sha256(head).hexdigest())


@contextlib.contextmanager
def probe(option: str, url: str) -> Iterator[Seen]:
    """A small file in a directory to which executors will write; it is gone after the block.

    So a directory or bucket that does not exist or may not be written shows before the job begins.
    """
    was_there = not is_local(url) or exists(url)
    file = join(normal(url), f"{PROBE_PREFIX}{uuid.uuid4().hex}")
    write_atomically(file, uuid.uuid4().bytes)
    try:
        yield _seen(option, url, file)
    finally:
        remove(file)
        if not was_there:
            with contextlib.suppress(OSError):  # another job may write there by now
                Path(normal(url)).rmdir()


def check_executors(spark: SparkSession, seen: Sequence[Seen], calls: Sequence[Call] = ()) -> None:
    """Run the preflight. Raises JobError with the first problem, the hosts that have it, and what to do.

    The executors look at the files that were `seen` here, and make the `calls`.
    """
    context = spark.sparkContext
    tasks = max(context.defaultParallelism, 1)
    try:
        found = context.parallelize(range(tasks), tasks).mapPartitions(executor_check(seen, calls)).collect()
    except (PySparkException, Py4JError) as error:
        raise explained(error) from error
    hosts: defaultdict[str, set[str]] = defaultdict(set)
    for host, problem in found:
        if problem:
            hosts[problem].add(host)
    for problem, on in sorted(hosts.items()):
        names = ", ".join(sorted(on)[:HOSTS_SHOWN]) + (", ..." if len(on) > HOSTS_SHOWN else "")
        raise JobError(f"the executors on {names} cannot run this job: {problem}")


def executor_check(
    seen: Sequence[Seen], calls: Sequence[Call] = ()
) -> Callable[[Iterable[int]], Iterator[tuple[str, str]]]:
    """What runs on executors: yields the host, and the first problem there or ""."""
    ours, python = version(), platform.python_version()
    modules, files = MODULES, [tuple(one) for one in seen]
    every: list[Call] = [(MODULES[0], "problem_with", (files,)), *calls]

    # Nothing from this module may be named in here: Spark would send it as a name to import.
    def look(_numbers: Iterable[int]) -> Iterator[tuple[str, str]]:
        import importlib  # noqa: PLC0415 - on the executor
        import platform as there  # noqa: PLC0415
        import sys  # noqa: PLC0415

        problem = ""
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - whatever keeps it from being imported
                problem = (
                    f"{type(error).__name__}: {error}. Install timerwheel[spark] {ours} for {sys.executable} "
                    f"(Python {there.python_version()}; this command runs {python}), or send the package "
                    "with --conf spark.submit.pyFiles (doc/spark.md)"
                )
                break
        else:
            found = importlib.import_module("timerwheel.version").version()
            if found != ours:
                problem = (
                    f"they have timerwheel {found}, this command is {ours}: install the same version there"
                )
            else:
                problem = importlib.import_module(modules[0]).problem_of(every)
        yield there.node(), problem

    return look


def problem_of(calls: Iterable[Call]) -> str:
    """The first problem that one of these calls finds or raises, "" if none does. Runs in executors."""
    for module, name, arguments in calls:
        try:
            problem = getattr(importlib.import_module(module), name)(*arguments)
        except Exception as error:  # noqa: BLE001 - a problem to report, whatever it is
            problem = f"{error}" or type(error).__name__
        if problem:
            return str(problem)
    return ""


def problem_with(files: Iterable[tuple[str, str, str, int, str]]) -> str:
    """What an executor finds wrong with these files, "" if nothing. Runs in executors."""
    for one in map(Seen._make, files):
        try:
            head = read_head(one.url, one.size)
        except Exception as error:  # noqa: BLE001 - a problem to report, whatever it is
            why = f"cannot read it ({error})"
        else:
            if hashlib.sha256(head).hexdigest() == one.digest:
                continue
            why = "read something else there"
        return (
            f"they {why}, unlike this machine: give {one.option} a directory or URL that all of them reach, "
            f"instead of {shown(one.place)}"
        )
    return ""


def explained(error: BaseException) -> JobError:
    """The error of a task that failed before our code ran."""
    text = str(error)
    if found := _MISMATCH.search(text):
        return JobError(
            f"the executors run Python {found[1]} and this command {found[2]}: set PYSPARK_PYTHON to a "
            f"Python {found[2]} that they have, with timerwheel[spark] {version()} installed"
        )
    if found := _NO_PROGRAM.search(text):
        return JobError(
            f"the executors have no {found[1]}: set PYSPARK_PYTHON to a Python {platform.python_version()} "
            f"that they have, with timerwheel[spark] {version()} installed"
        )
    return job_error(error)
