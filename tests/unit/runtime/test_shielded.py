"""Work that runs to its end even if its caller goes away."""

import asyncio

import pytest

from timerwheel.errors import UnknownTopicError
from timerwheel.runtime.shielded import shielded


class Job:
    """Work that a test lets go on, and that ends with an error if one is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go_on = asyncio.Event()
        self.is_done = False
        self._error = error

    @shielded
    async def run(self) -> str:
        await self.go_on.wait()
        self.is_done = True
        if self._error is not None:
            raise self._error
        return "the outcome"

    async def leave(self) -> None:
        """Call, leave, and let the work end."""
        calling = asyncio.create_task(self.run())
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        self.go_on.set()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_caller_that_stays_gets_the_outcome_or_the_error():
    job, failing = Job(), Job(ZeroDivisionError("a fault"))
    job.go_on.set()
    failing.go_on.set()
    assert await job.run() == "the outcome"
    with pytest.raises(ZeroDivisionError, match="a fault"):
        await failing.run()


async def test_work_whose_caller_left_comes_to_its_end():
    job = Job()
    await job.leave()
    assert job.is_done


async def test_a_fault_after_the_caller_left_is_logged_with_its_traceback(caplog):
    await Job(ZeroDivisionError("a fault")).leave()
    [record] = caplog.records
    assert record.getMessage() == "work whose caller had left failed"
    assert str(record.exc_info[1]) == "a fault"


async def test_a_refusal_after_the_caller_left_is_dropped(caplog):
    await Job(UnknownTopicError("orders")).leave()
    assert not caplog.records
