"""What a job says when it cannot go on."""

import re

from timerwheel.errors import TimerwheelError

_OWN = re.compile(r"^(?:store|timerwheel|spark_jobs)\.[\w.]+: (.*)$", re.MULTILINE)
_ANY = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b: .*)$", re.MULTILINE
)


class JobError(TimerwheelError):
    """A job cannot be run, or ended without a result; nothing that was there before is changed."""

    code = "job_failed"


def job_error(error: BaseException, told: str = "") -> JobError:
    """The error of a job as one line: that of our own code in an executor, if it is that which failed.

    `told` is what Spark wrote besides.
    """
    own = _OWN.findall(str(error))
    if own:
        return JobError(own[-1])
    # What Spark wrote says first what went wrong; an exception's text ends with its cause.
    lines = "\n".join(line for line in told.splitlines() if not line.startswith("WARNING"))
    found = _ANY.findall(lines)[:1] or _ANY.findall(str(error))[-1:]
    rest = str(error).strip().splitlines() or [type(error).__name__]
    return JobError(f"Spark could not do it: {found[0] if found else rest[0]}")
