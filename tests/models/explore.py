"""Visits every state of a model, breadth first, so a counterexample is as short as any."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

StateT = TypeVar("StateT", bound=Hashable)
Steps = Callable[[StateT], Iterable[tuple[str, StateT]]]


class Found(NamedTuple):
    """How many states there are; and the steps to one that breaks an invariant, with what it breaks."""

    states: int
    steps: list[str]
    broken: str | None


def explore(
    start: StateT, steps: Steps[StateT], broken: Callable[[StateT], str | None], states_max: int
) -> Found:
    """Visit all states that `steps` leads to; OverflowError if they are more than `states_max`."""
    came_by: dict[StateT, tuple[StateT, str] | None] = {start: None}
    to_visit = deque([start])
    while to_visit:
        state = to_visit.popleft()
        if (why := broken(state)) is not None:
            return Found(len(came_by), _way(state, came_by), why)
        for name, following in steps(state):
            if following not in came_by:
                came_by[following] = (state, name)
                to_visit.append(following)
        if len(came_by) > states_max:
            raise OverflowError(f"more than {states_max:,} states")
    return Found(len(came_by), [], None)


def _way(state: StateT, came_by: dict[StateT, tuple[StateT, str] | None]) -> list[str]:
    names: list[str] = []
    while (before := came_by[state]) is not None:
        state, name = before
        names.append(name)
    return names[::-1]
