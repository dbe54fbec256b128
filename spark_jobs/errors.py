"""The errors of jobs."""

import re

from py4j.protocol import Py4JNetworkError

from timerwheel.errors import TimerwheelError

_OWN = re.compile(r"^(?:store|timerwheel|spark_jobs)\.[\w.]+: (.*)$", re.MULTILINE)
_ANY = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" |Caused by: |: )?"
    r"((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b: .*)$",
    re.MULTILINE,
)


class JobError(TimerwheelError):
    """A job cannot run, or ended without a result. Existing data is unchanged."""

    code = "job_failed"


def job_error(error: BaseException, output: str = "") -> JobError:
    """The error of a job as one line: preferably the exception of our own code in an executor.

    Else it is the innermost cause, which may be one of Java. `output` is what Spark wrote to stderr.
    """
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return JobError(
            "Spark's Java process ended in the middle of the job: it was killed, or lacked memory; more with "
            "--conf spark.driver.memory=4g"
        )
    own = _OWN.findall(str(error))
    if own:
        return JobError(own[-1])
    # Spark's output names the problem first; the text of an exception ends with its cause.
    lines = "\n".join(line for line in output.splitlines() if not line.startswith("WARNING"))
    found = _ANY.findall(lines)[:1] or _ANY.findall(str(error))[-1:]
    rest = str(error).strip().splitlines() or [type(error).__name__]
    return JobError(f"Spark failed: {found[0] if found else rest[0]}")
