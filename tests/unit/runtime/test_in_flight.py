"""Timers that are taken: out of firing's reach until their records are stored, back in it if they are not."""

import asyncio

import numpy as np
import pytest

from timerwheel.runtime.in_flight import InFlight, entry
from timerwheel.wheel.near import NearWheel

NEAR_UNTIL_MS = 10_000


class Commit:
    """Keeps what was submitted until the test says how it went."""

    def __init__(self):
        self.units = []

    def submit(self, records, topics, on_effect=None, _dues_ms=()):
        stored = asyncio.get_running_loop().create_future()
        self.units.append((list(records), list(topics), on_effect, stored))
        return stored


class Place:
    def __init__(self):
        self.near = NearWheel()
        self.near.until_ms = NEAR_UNTIL_MS
        self.commit = Commit()
        self.wake = asyncio.Event()
        self.in_flight = InFlight(self.near, self.wake, self.commit)

    def add(self, *dues_ms):
        """Timers that wait, those due soon in the near wheel."""
        entries = np.concatenate(
            [
                entry(due_ms=due, root=8 * n, offset=8 * n, size=96, topic=0)
                for n, due in enumerate(dues_ms, 1)
            ]
        )
        self.near.add(entries[entries["due_ms"] < NEAR_UNTIL_MS])
        return entries

    def due(self, now_ms=NEAR_UNTIL_MS):
        return self.near.pop_due(now_ms, 100)["offset"].tolist()


@pytest.fixture
async def place():
    return Place()


async def turn():
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_taken_timers_are_in_flight_and_never_come_due(place):
    entries = place.add(5, 20_000, 7)
    place.in_flight.take(entries)
    assert sorted(place.in_flight.offsets()) == [8, 16, 24]
    assert len(place.in_flight.outcomes([8, 16, 24])) == 1
    assert place.due() == []


async def test_others_go_on_while_some_are_taken(place):
    entries = place.add(5, 6, 7)
    place.in_flight.take(entries[1:2])
    assert place.due() == [8, 24]


@pytest.mark.parametrize("met", [False, True])
async def test_put_back_timers_come_due_again_whether_or_not_firing_has_passed_them(place, met):
    taken = place.in_flight.take(place.add(5, 20_000, 7))
    outcome = place.in_flight.outcome(8)
    if met:
        assert place.due() == []
    taken.put_back()
    assert outcome.done()
    assert len(place.in_flight) == 0
    assert place.wake.is_set()
    assert place.due() == [8, 24]
    assert len(place.near) == 0


async def test_a_stored_unit_lets_go_of_its_timers_for_good(place):
    taken = place.in_flight.take(place.add(5, 7))
    outcome = place.in_flight.outcome(8)
    effects = []
    finished = taken.submit([b"a", b"b"], ["t", "t"], lambda: effects.append(1))
    [(records, topics, on_effect, stored)] = place.commit.units
    assert (records, topics) == ([b"a", b"b"], ["t", "t"])
    on_effect()
    assert effects == [1]
    await turn()
    assert not finished.done()
    assert len(place.in_flight) == 2
    stored.set_result(640)
    assert await finished == 640
    assert outcome.done()
    assert len(place.in_flight) == 0
    assert place.due() == []


async def test_a_unit_that_fails_puts_its_timers_back(place):
    taken = place.in_flight.take(place.add(5, 20_000))
    outcome = place.in_flight.outcome(8)
    finished = taken.submit([b"a"], ["t"])
    place.commit.units[0][3].set_exception(OSError("no"))
    with pytest.raises(OSError, match="no"):
        await finished
    assert outcome.done()
    assert len(place.in_flight) == 0
    assert place.due() == [8]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_caller_that_goes_away_changes_nothing_for_the_timers(place, fails):
    taken = place.in_flight.take(place.add(5))
    finished = taken.submit([b"a"], ["t"])
    finished.cancel()
    await turn()
    assert sorted(place.in_flight.offsets()) == [8]
    stored = place.commit.units[0][3]
    if fails:
        stored.set_exception(OSError("no"))
    else:
        stored.set_result(640)
    await turn()
    assert len(place.in_flight) == 0
    assert place.due() == ([8] if fails else [])


async def test_a_failure_that_nobody_waits_for_is_no_unhandled_error(place):
    unhandled = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
    place.in_flight.take(place.add(5)).submit([b"a"], ["t"])
    place.commit.units[0][3].set_exception(OSError("no"))
    place.commit.units.clear()
    await turn()
    assert unhandled == []
    assert place.due() == [8]


async def test_a_cancelled_unit_puts_its_timers_back(place):
    taken = place.in_flight.take(place.add(5))
    taken.submit([b"a"], ["t"])
    place.commit.units[0][3].cancel()
    await turn()
    assert len(place.in_flight) == 0
    assert place.due() == [8]


def test_an_entry_holds_what_it_was_given():
    made = entry(due_ms=5, root=8, offset=16, size=96, topic=3, queue=2, delay_level=1)
    values = [
        int(made[name][0])
        for name in ("due_ms", "root", "offset", "size", "topic", "queue", "delay_level", "op")
    ]
    assert values == [5, 8, 16, 96, 3, 2, 1, 0]
