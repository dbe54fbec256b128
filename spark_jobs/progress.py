"""Times the stages of a job and shows a progress bar for each."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from timerwheel.spark_jobs.errors import note_stage

POLL_S = 0.2


class JobProgress:
    """The stages of one job. `seconds` gets the duration of each."""

    def __init__(self, spark: SparkSession, *, show: bool, seconds: dict[str, float] | None = None) -> None:
        self.seconds = {} if seconds is None else seconds
        self._spark = spark
        self._show = show

    @contextmanager
    def stage(self, name: str) -> Iterator["Step"]:
        """Times a block as a stage; its bar counts Spark's tasks, or what the block reports to its step."""
        began = time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(
            *columns, console=Console(stderr=True), transient=True, disable=not self._show
        ) as progress:
            step = Step(progress, name)
            ended = threading.Event()
            watcher = threading.Thread(target=self._watch, args=(step, ended), daemon=True)
            if self._show:
                watcher.start()
            try:
                yield step
            except (PySparkException, Py4JError, ConnectionError) as error:
                note_stage(error, name)
                raise
            finally:
                ended.set()
                if self._show:
                    watcher.join()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def _watch(self, step: "Step", ended: threading.Event) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        done: dict[int, tuple[int, int]] = {}
        while not ended.wait(POLL_S):
            for number in tracker.getActiveStageIds():
                info = tracker.getStageInfo(number)
                if info is not None:
                    done[number] = (info.numCompletedTasks, info.numTasks)
            if done and not step.reported:
                last = done[max(done)]
                step.show(*last)


class Step:
    """The bar of a running stage."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.reported = False
        self._progress = progress
        self._task = progress.add_task(name, total=None)

    def report(self, done: int, total: int | None) -> None:
        """Show progress of work outside Spark, instead of counting Spark's tasks."""
        self.reported = True
        self.show(done, total)

    def show(self, done: int, total: int | None) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, total=total)
