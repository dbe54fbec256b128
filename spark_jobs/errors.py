"""What a job says when it cannot go on."""

import re

from timerwheel.errors import TimerwheelError

_OWN = re.compile(r"^(?:store|timerwheel|spark_jobs)\.[\w.]+: (.*)$", re.MULTILINE)
_ANY = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b: .*$", re.MULTILINE)


class JobError(TimerwheelError):
    """A job cannot be run, or ended without a result; nothing that was there before is changed."""

    code = "job_failed"


def job_error(error: BaseException, told: str = "") -> JobError:
    """The error of a job as one line: that of our own code in an executor, if it is that which failed.

    `told` is what Spark wrote besides.
    """
    text = f"{told}\n{error}"
    own = _OWN.findall(text)
    if own:
        return JobError(own[-1])
    found = _ANY.findall(text)
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return JobError(f"Spark could not do it: {found[-1] if found else first}")
