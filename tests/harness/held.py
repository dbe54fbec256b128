"""Threads whose calls a test can hold up: what happens meanwhile happens at the same moment in every run."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.harness.drive import settle, small_settings
from tests.harness.gated_threads import GatedThreads
from tests.harness.world import SPINS_TO_SLEEP, World
from timerwheel.engine import Engine


class HeldThreads(GatedThreads):
    """Every call runs in the caller, but one whose function is held waits until it is let go.

    `calls` counts the calls of each function that have begun; more than `calls_max` of one are a failure.
    """

    def __init__(self, calls_max: int = 1 << 60) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._calls_max = calls_max
        self._gates: dict[str, asyncio.Event] = {}
        self._free: Counter[str] = Counter()
        self._seeing: dict[str, Callable[[Any], Awaitable[object]]] = {}

    def see(self, name: str, happen: Callable[[Any], Awaitable[object]]) -> None:
        """From now on, await `happen` with each answer of this function before its caller has it."""
        self._seeing[name] = happen

    def see_once(self, name: str, happen: Callable[[Any], Awaitable[object]]) -> None:
        """As `see`, for the next answer only."""

        async def once(answer: Any) -> None:
            del self._seeing[name]
            await happen(answer)

        self.see(name, once)

    @contextmanager
    def holding(self, name: str, *, after: int = 0) -> Iterator[None]:
        """Within the block, hold up the calls of the function of this name, but for the next few."""
        gate = self._gates[name] = asyncio.Event()
        self._free[name] = after
        try:
            yield
        finally:
            del self._gates[name]
            gate.set()

    async def log(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await self._pass(call)
        return await self._show(call, await super().log(call, *args, **kwargs))

    async def index(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await self._pass(call)
        return await self._show(call, await super().index(call, *args, **kwargs))

    async def read(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await self._pass(call)
        return await self._show(call, await super().read(call, *args, **kwargs))

    async def read_due(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await self._pass(call)
        return await self._show(call, await super().read_due(call, *args, **kwargs))

    async def _pass(self, call: Callable[..., Any]) -> None:
        name = call.__name__
        self.calls[name] += 1
        if self.calls[name] > self._calls_max:
            raise AssertionError(f"{name} was called more than {self._calls_max} times")
        gate = self._gates.get(name)
        if gate is None:
            return
        if self._free[name]:
            self._free[name] -= 1
            return
        await gate.wait()

    async def _show(self, call: Callable[..., Any], answer: Any) -> Any:
        happen = self._seeing.get(call.__name__)
        if happen is not None:
            await happen(answer)
        return answer


async def open_held(world: World, calls_max: int = 1 << 60, **limits: Any) -> HeldThreads:
    """Open the world's engine on threads that can be held up."""
    world.limits |= limits
    threads = world.threads = HeldThreads(calls_max)
    world.engine = Engine(small_settings(world.directory, **world.limits), world.clock, world.files, threads)
    await world.engine.start()
    await settle(world.engine)
    return threads


async def go_on(spins: int = SPINS_TO_SLEEP) -> None:
    """Let everything that can run do so, until it sleeps or is held up."""
    for _ in range(spins):
        await asyncio.sleep(0)
