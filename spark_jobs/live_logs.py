"""Logs that their services write while a job reads them, so that retention may remove segments under it.

A task that finds no file looks at the manifest `start` (`timerwheel.spark_jobs.segments.open_segment`). A
segment that the log still has by its manifest is damage. One that retention has removed is not a fault: the
logs are listed again, and the work is done again with what they have now.

The work begins again as a whole because retention moves the timers of a segment to the end of the log before
it removes the segment. Without the segment, but with the end that was listed before, their messages would be
missing.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.logs import NodeLog, find_logs
from timerwheel.spark_jobs.segments import SegmentGoneError

T = TypeVar("T")
ATTEMPTS_MAX = 10
TASK_LOOKS_MAX = 1_200
LOOK_S = 0.05


class Removed(msgspec.Struct, frozen=True):
    """What retention removed from a log while a job ran: [begin, until). The result begins at `until`."""

    node: str
    begin: int
    until: int

    @property
    def text(self) -> str:
        """What happened, without the name of the node."""
        return (
            f"retention removed the segments from {self.begin} to {self.until} while the job ran; the result "
            f"covers the log from {self.until} on"
        )


class LiveLogs:
    """Some logs, as they were when they were last listed, and what retention has removed from them since."""

    def __init__(self, spark: SparkSession, logs: Sequence[NodeLog]) -> None:
        self.logs = list(logs)
        self.spark = spark
        self._begins = [log.segments[0].base for log in logs]

    @property
    def removed(self) -> list[Removed]:
        """What retention removed since the logs were first listed."""
        return [
            Removed(log.node, begin, log.segments[0].base)
            for log, begin in zip(self.logs, self._begins, strict=True)
            if log.segments[0].base > begin
        ]

    def read(self, work: Callable[[list[NodeLog]], T]) -> T:
        """The result of the work with the logs; it is done again if retention removed what it reads.

        No task of an attempt runs any more when the next one begins, so `work` may write the same files
        again. Raises the errors of `work`, and JobError if retention is faster than the job each time.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return work(self.logs)
            except (SegmentGoneError, PySparkException, Py4JError) as error:
                if not _is_gone(error) or not self._list_again():
                    raise
                _end_tasks(self.spark)
        raise JobError(
            f"retention removed segments in each of {ATTEMPTS_MAX} attempts to read them: run the job when "
            "less falls out of retention, or give it more cores"
        )

    def _list_again(self) -> bool:
        """List the logs; whether one begins later than before."""
        before = self.logs
        self.logs = find_logs([log.url for log in before])
        return any(
            now.segments[0].base > then.segments[0].base for now, then in zip(self.logs, before, strict=True)
        )


def _is_gone(error: Exception) -> bool:
    # An error of an executor is text that has the traceback there.
    return isinstance(error, SegmentGoneError) or SegmentGoneError.__name__ in str(error)


def _end_tasks(spark: SparkSession) -> None:
    """Wait until no task runs. Those beside the one that failed end when they have judged their segment."""
    context = spark.sparkContext
    context.cancelAllJobs()
    tracker = context._jsc.sc().statusTracker()  # noqa: SLF001 - Python's own does not count tasks
    for _ in range(TASK_LOOKS_MAX):
        if not any(one.numRunningTasks() for one in tracker.getExecutorInfos()):
            return
        time.sleep(LOOK_S)
    raise JobError("tasks of Spark do not end, although their job was cancelled; run the job again")
