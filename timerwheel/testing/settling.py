"""When an engine on a manual clock has done all that it can do at this moment."""

import asyncio

from timerwheel.engine import Engine
from timerwheel.runtime.core import Status

SPINS_MAX = 20_000
CALM_SPINS = 12
"""Turns of the event loop without anything under way, after which nothing more begins by itself."""


def is_calm(engine: Engine) -> bool:
    """Whether nothing is under way and nothing is due."""
    now_ms = engine.clock.now_ms()
    next_due_ms = engine.core.near.next_due_ms()
    return (
        not engine.core.commit.queued
        and not len(engine.core.in_flight)
        and not engine.groups.busy
        and (next_due_ms is None or next_due_ms > now_ms)
        and engine.core.near.until_ms > now_ms
    )


async def settle(engine: Engine) -> None:
    """Let the engine do all that it can do now. RuntimeError if it failed or does not come to rest."""
    calm = 0
    for _ in range(SPINS_MAX):
        await asyncio.sleep(0)
        if engine.life.status is Status.FAILED:
            raise RuntimeError(engine.status)
        calm = calm + 1 if is_calm(engine) else 0
        if calm >= CALM_SPINS:
            return
    raise RuntimeError("the engine does not come to rest")
