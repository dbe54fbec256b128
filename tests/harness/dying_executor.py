"""A daemon for PySpark's workers that kills its executor once in each stage, in the middle of a task.

Set `spark.python.daemon.module` to the name of this module, and on the executors TIMERWHEEL_DEATHS to a
directory: a file there stands for a stage that has had its death. TIMERWHEEL_DEATH is `executor`, or `worker`
for the process that would start the executor again, which dies once.
"""

import os
import signal
import threading
import time
from pathlib import Path

from pyspark import daemon
from pyspark.taskcontext import TaskContext

MODULE = "tests.harness.dying_executor"
DELAYS_MS = (0, 5, 25)
_set = TaskContext._setTaskContext


def _die(executor: int, delay_ms: int, *, worker: bool) -> None:
    time.sleep(delay_ms / 1_000)
    if worker:
        parent = int(Path(f"/proc/{executor}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
    os.kill(executor, signal.SIGKILL)


def _set_and_die(context: TaskContext | None) -> None:
    _set(context)
    if context is None or context.attemptNumber():
        return
    worker = os.environ["TIMERWHEEL_DEATH"] == "worker"
    name = "worker" if worker else f"stage-{context.stageId()}"
    try:
        os.close(os.open(Path(os.environ["TIMERWHEEL_DEATHS"], name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    delay_ms = DELAYS_MS[context.stageId() % len(DELAYS_MS)]
    # The parent of a worker is the daemon, whose parent is the executor.
    threading.Thread(target=_die, args=(_executor, delay_ms), kwargs={"worker": worker}).start()


if __name__ == "__main__":
    _executor = os.getppid()
    TaskContext._setTaskContext = staticmethod(_set_and_die)
    daemon.manager()
