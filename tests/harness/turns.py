"""A call that is repeated, or met by another one, in each turn of the event loop that it takes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")
AFTER = 3  # turns


async def outcome(call: Awaitable[_Answer]) -> _Answer | type[Exception]:
    """What a call returns, or the type of what it raises."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - a refusal is an answer here
        return type(error)


async def met_in_each_turn(
    first: Callable[[], Awaitable[_Answer]], other: Callable[[], Awaitable[_Answer]]
) -> tuple[_Answer | type[Exception], list[_Answer | type[Exception]]]:
    """Return the outcome of the first call, and of one more for each turn until it has ended, and after."""
    ours = asyncio.create_task(outcome(first()))
    others = []
    left = AFTER
    while left:
        others.append(asyncio.create_task(outcome(other())))
        await asyncio.sleep(0)
        left -= ours.done()
    return await ours, await asyncio.gather(*others)
