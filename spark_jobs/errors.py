"""The errors of jobs: one line each, with what to do, instead of the stack traces of Java and Python."""

import re

from py4j.protocol import Py4JNetworkError

from timerwheel.errors import TimerwheelError

_OWN = re.compile(r"^(?:store|timerwheel|spark_jobs)\.[\w.]+: (.*)$", re.MULTILINE)
_ANY = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" |Caused by: |: )?"
    r"((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b: .*)$",
    re.MULTILINE,
)
_PYTHON_GONE = "Python worker exited unexpectedly"
_PYTHON_MEMORY = re.compile(r"^(?:[\w.]+\.)?_?(?:Array|Arrow)?MemoryError\b", re.MULTILINE)
_EXECUTOR_GONE = re.compile(r"ExecutorLostFailure \(executor (\S+) [^)]*\) Reason: (.*)")
_KILLED_FOR_MEMORY = re.compile(r"code:? (?:137|143)\b|OOM|memory limits", re.IGNORECASE)
_HEAP_EXIT = re.compile(r"code:? 52\b")  # Spark's own after an OutOfMemoryError
_JAVA_MEMORY = "java.lang.OutOfMemoryError"
_SHUT_DOWN = "SparkContext was shut down"  # an OutOfMemoryError makes Spark end its own process
_RESULT_SIZE = "spark.driver.maxResultSize"

_PYTHON_ADVICE = {
    True: "give it more, or use fewer cores, such as --master local[1]",
    False: "give the executors more with --conf spark.executor.memoryOverhead=2g, or let each run fewer "
    "tasks at a time with --conf spark.executor.cores=1",
}
_DRIVER_ADVICE = "give it more with --conf spark.driver.memory=4g"
_EXECUTOR_ADVICE = "give the executors more with --conf spark.executor.memory=4g"


class JobError(TimerwheelError):
    """A job cannot run, or ended without a result. Existing data is unchanged."""

    code = "job_failed"


def job_error(error: BaseException, output: str = "", *, local: bool = False) -> JobError:
    """The error of a job as one line: preferably the exception of our own code in an executor.

    Else it is the innermost cause, which may be one of Java. `output` is what Spark wrote to stderr. What to
    do about a lack of memory depends on whether executors are `local`, and a note of the error (`note_stage`)
    names the stage.
    """
    if lost := _lost_process(error, output, local=local):
        return JobError(lost)
    own = _OWN.findall(str(error))
    if own:
        return JobError(own[-1])
    # Spark's output names the problem first; the text of an exception ends with its cause.
    lines = "\n".join(line for line in output.splitlines() if not line.startswith("WARNING"))
    found = _ANY.findall(lines)[:1] or _ANY.findall(str(error))[-1:]
    rest = str(error).strip().splitlines() or [type(error).__name__]
    return JobError(f"Spark failed: {found[0] if found else rest[0]}")


def note_stage(error: BaseException, stage: str) -> None:
    """Note on an error in which stage of a job it occurred."""
    error.add_note(f"{_NOTE}{stage}")


_NOTE = "stage of the job: "


def _stage_of(error: BaseException) -> str:
    notes: list[str] = getattr(error, "__notes__", [])
    names = [note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)]
    return f" in the stage {names[0]}" if names else ""


def _lost_process(error: BaseException, output: str, *, local: bool) -> str:
    """What to say if a process of Spark was killed or lacked memory; else nothing."""
    text, stage = f"{error}\n{output}", _stage_of(error)
    if isinstance(error, (Py4JNetworkError, ConnectionError)) or _SHUT_DOWN in text:
        return (
            f"Spark's Java process ended in the middle of the job{stage}: it was killed, or lacked memory; "
            f"{_DRIVER_ADVICE}"
        )
    if _PYTHON_GONE in text:
        return (
            f"a Python process of Spark was killed{stage}, each time that the task was tried; most often the "
            f"machine or its container has too little memory: {_PYTHON_ADVICE[local]}"
        )
    if found := _EXECUTOR_GONE.search(text):
        return _lost_executor(found[1], found[2].strip(), stage)
    return _lacked_memory(text, stage, local=local)


def _lacked_memory(text: str, stage: str, *, local: bool) -> str:
    if _RESULT_SIZE in text:
        return (
            f"the tasks{stage} return more than the driver accepts: allow it with "
            "--conf spark.driver.maxResultSize=2g, and as much more of spark.driver.memory"
        )
    if _JAVA_MEMORY in text:
        if "Lost task" in text and not local:
            return f"Spark's executors lacked memory{stage}: {_EXECUTOR_ADVICE}"
        return f"Spark's driver lacked memory{stage}: {_DRIVER_ADVICE}"
    if _PYTHON_MEMORY.search(text):
        return f"a Python process of Spark lacked memory{stage}: {_PYTHON_ADVICE[local]}"
    return ""


def _lost_executor(number: str, reason: str, stage: str) -> str:
    if _HEAP_EXIT.search(reason):
        return f"executor {number} of Spark lacked memory{stage}: {_EXECUTOR_ADVICE}"
    if _KILLED_FOR_MEMORY.search(reason):
        return (
            f"executor {number} of Spark was killed{stage}, most often because its container has too little "
            f"memory: {_PYTHON_ADVICE[False]}"
        )
    return f"Spark lost executor {number}{stage}, each time that the task was tried: {reason}"
