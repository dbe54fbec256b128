"""What a call may say of its writes when the log has failed."""

import asyncio
from weakref import WeakSet

import pytest

from timerwheel.errors import NotReadyError, OutcomeUnknownError
from timerwheel.runtime.outcome import CALL, NOTED_MAX, Writes, one_call
from timerwheel.store.errors import IndexBusyError, LogFailedError, NoSpaceError, WriteUnknownError


def write(outcome: int | Exception | None) -> "asyncio.Future[int]":
    """A write with this outcome; None: it is under way."""
    stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    if isinstance(outcome, Exception):
        stored.set_exception(outcome)
        stored.exception()
    elif outcome is not None:
        stored.set_result(outcome)
    return stored


def call_that_writes(outcomes: list[int | Exception | None], error: Exception) -> None:
    """A call whose writes have these outcomes, and that ends with an error."""
    with one_call():
        call = CALL.get()
        assert call is not None
        for outcome in outcomes:
            call.note(write(outcome))
        raise error


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], "not_ready"),
        ([LogFailedError("x")], "not_ready"),
        ([NoSpaceError("x"), LogFailedError("x")], "not_ready"),
        ([WriteUnknownError("x")], "outcome_unknown"),
        ([64, LogFailedError("x")], "outcome_unknown"),
        ([None, LogFailedError("x")], "outcome_unknown"),
    ],
)
async def test_not_stored_leaves_a_call_only_if_none_of_its_writes_may_be_stored(outcomes, code):
    with pytest.raises((NotReadyError, OutcomeUnknownError)) as caught:
        call_that_writes(outcomes, NotReadyError("the service has failed"))
    assert caught.value.code == code
    assert CALL.get() is None


@pytest.mark.parametrize("error", [NoSpaceError("full"), IndexBusyError("busy")])
async def test_nor_does_no_space_or_a_busy_index_once_a_write_is_stored(error):
    with pytest.raises(OutcomeUnknownError):
        call_that_writes([64, error], error)
    with pytest.raises(type(error)):
        call_that_writes([error], error)


async def test_other_errors_leave_a_call_as_they_are():
    with pytest.raises(KeyError):
        call_that_writes([64], KeyError("x"))


async def test_a_call_that_lasts_for_days_keeps_no_more_than_the_writes_under_way():
    writes, kept = Writes(), WeakSet()
    for number in range(100 * NOTED_MAX):
        kept.add(stored := write(number))
        writes.note(stored)
    del stored
    assert len(kept) <= NOTED_MAX
    assert writes.may_be_stored
    refused = Writes()
    for _ in range(3 * NOTED_MAX):
        refused.note(write(LogFailedError("x")))
    assert not refused.may_be_stored


async def test_what_a_call_began_and_left_behind_is_not_noted_for_ever():
    with one_call():
        left = CALL.get()
    kept = WeakSet()
    for number in range(1_000):
        kept.add(stored := write(number))
        left.note(stored)
    del stored
    assert not kept
