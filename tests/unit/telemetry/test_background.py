"""Tasks that nobody waits for."""

import asyncio

from timerwheel.telemetry.background import in_background


async def fails() -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError("the reason")


async def test_an_error_that_ends_a_task_is_logged_at_once_with_its_traceback(caplog):
    task = in_background(fails(), "the mill")
    await asyncio.wait([task])
    [record] = caplog.records
    assert record.getMessage() == "the mill failed"
    assert record.levelname == "ERROR"
    assert str(record.exc_info[1]) == "the reason"


async def test_a_task_that_is_cancelled_or_comes_to_its_end_is_not_logged(caplog):
    endless = in_background(asyncio.Event().wait(), "the mill")
    short = in_background(asyncio.sleep(0), "the mill")
    await short
    endless.cancel()
    await asyncio.wait([endless])
    assert not caplog.records
