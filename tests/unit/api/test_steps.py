"""Work on many things of one request, in steps."""

import pytest

from tests.harness.clock import ManualClock
from timerwheel.api.http.steps import AT_ONCE, made_of


class Breathing(ManualClock):
    """Counts how often somebody lets others have their turn."""

    breaths = 0

    async def breathe(self) -> None:
        self.breaths += 1


@pytest.mark.parametrize(("count", "breaths"), [(0, 0), (1, 0), (AT_ONCE, 0), (AT_ONCE + 1, 1)])
async def test_others_have_their_turn_after_each_step(count, breaths):
    clock = Breathing()
    assert await made_of(clock, range(count), str) == [str(number) for number in range(count)]
    assert clock.breaths == breaths


async def test_what_is_not_there_any_more_is_left_out():
    assert await made_of(ManualClock(), "abc", {"a": 1, "c": 3}.get) == [1, 3]
