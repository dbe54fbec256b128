"""The clock that stands still until a test moves it."""

import asyncio

from tests.harness.clock import ManualClock


def test_it_forgets_who_waited_in_a_loop_that_is_over():
    clock = ManualClock()

    async def wait_in_each_way() -> None:
        loop = asyncio.get_running_loop()
        ways = (
            clock.wait_for(loop.create_future(), 100),
            clock.wait_until(None, asyncio.Event()),
            clock.sleep_for(5),
        )
        waiting = [asyncio.create_task(way) for way in ways]
        await clock.breathe()
        assert not any(task.done() for task in waiting)  # the end of the loop cancels them

    async def advance() -> None:
        clock.advance(10)

    asyncio.run(wait_in_each_way())
    asyncio.run(advance())
    assert clock.monotonic_ms() == 10
