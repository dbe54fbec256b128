"""Planning: which runs are sent, which are left out, and when the planner looks again."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.schedules.planning import SKIP_GRACE_MS, Step, missed_runs, overdue_runs, plan
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.schedules.stored import Stored

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
DELAY_MS_MAX = 10 * YEAR_MS
NAME = "n"


def begun(every_ms, now_ms=0, **changes):
    """A schedule that was made at `now_ms`; its interval counts from then."""
    recurrence = Recurrence(every_ms=every_ms, **changes.pop("recurrence", {}))
    spec = ScheduleSpec(topic="orders", recurrence=recurrence, **changes)
    return Stored.begin(NAME, spec, None, 1, now_ms)


def done(stored, step, now_ms):
    return msgspec.structs.replace(stored, planned_until_ms=step.planned_until_ms, planned_ms=now_ms)


def planned(every_ms, **changes):
    """A schedule made at 0, with its first runs sent ahead."""
    stored = begun(every_ms, **changes)
    return done(stored, plan(NAME, stored, 0, DELAY_MS_MAX), 0)


def ask(stored, now_ms, overdue=(), delay_ms_max=DELAY_MS_MAX):
    return plan(NAME, stored, now_ms, delay_ms_max, overdue)


@pytest.mark.parametrize(
    ("every_ms", "sent", "wake_ms"),
    [
        (SECOND_MS, range(SECOND_MS, 61 * SECOND_MS, SECOND_MS), 30 * SECOND_MS),
        (45 * SECOND_MS, [45 * SECOND_MS], 30 * SECOND_MS),
        (61 * SECOND_MS, [61 * SECOND_MS], 61 * SECOND_MS),
        (DAY_MS, [DAY_MS], DAY_MS),
        (YEAR_MS, [YEAR_MS], YEAR_MS),
    ],
)
def test_one_run_is_ahead_and_of_dense_schedules_all_of_a_minute(every_ms, sent, wake_ms):
    assert ask(begun(every_ms), 0) == Step([], list(sent), list(sent)[-1], wake_ms)


def test_when_the_run_comes_the_next_one_is_sent():
    assert ask(planned(DAY_MS), DAY_MS) == Step([], [2 * DAY_MS], 2 * DAY_MS, 2 * DAY_MS)


def test_before_that_there_is_nothing_to_do():
    assert ask(planned(DAY_MS), DAY_MS - 1) == Step([], [], DAY_MS, DAY_MS)


def test_a_schedule_that_has_ended_is_not_looked_at_again():
    assert ask(begun(DAY_MS, recurrence={"end_ms": DAY_MS + 1}), 0) == Step([], [DAY_MS], DAY_MS, None)
    assert ask(planned(DAY_MS, recurrence={"end_ms": DAY_MS + 1}), DAY_MS) == Step([], [], DAY_MS, None)


def test_nothing_is_sent_further_ahead_than_delays_may_be():
    stored = begun(DAY_MS)
    assert ask(stored, 0, delay_ms_max=HOUR_MS) == Step([], [], 0, DAY_MS - HOUR_MS)
    step = ask(stored, DAY_MS - HOUR_MS, delay_ms_max=HOUR_MS)
    assert step == Step([], [DAY_MS], DAY_MS, DAY_MS)
    assert ask(stored, DAY_MS, delay_ms_max=0) == Step([], [DAY_MS], DAY_MS, 2 * DAY_MS)


# The service was down from just after 0 until ten hours and two minutes; the run of hour 1 was sent ahead.
BACK_MS = 10 * HOUR_MS + 2 * MINUTE_MS
HOURS_MS = [hour * HOUR_MS for hour in range(12)]


@pytest.mark.parametrize(
    ("missed", "overdue", "revoked", "sent"),
    [
        ("skip", [], [], []),
        ("skip", [HOUR_MS], [HOUR_MS], []),
        ("once", [], [], [HOURS_MS[10]]),
        ("once", [HOUR_MS], [HOUR_MS], [HOURS_MS[10]]),
        ("all", [HOUR_MS], [], HOURS_MS[2:11]),
        ("all", [], [], HOURS_MS[2:11]),
    ],
)
def test_missed_runs_by_policy(missed, overdue, revoked, sent):
    stored = planned(HOUR_MS, missed=missed)
    assert overdue_runs(NAME, stored, BACK_MS) == [HOUR_MS]
    next_ms = HOURS_MS[11]
    assert ask(stored, BACK_MS, overdue) == Step(revoked, [*sent, next_ms], next_ms, next_ms)


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_runs_that_are_late_by_more_than_a_minute_are_missed_whatever_is_sent_in_their_place(missed):
    stored = planned(HOUR_MS, missed=missed)
    assert missed_runs(NAME, stored, BACK_MS, [HOUR_MS]) == HOURS_MS[1:11]
    assert missed_runs(NAME, stored, BACK_MS) == HOURS_MS[2:11]
    late_ms = 2 * HOUR_MS + SKIP_GRACE_MS
    assert missed_runs(NAME, stored, late_ms) == []
    assert missed_runs(NAME, stored, late_ms + 1) == [2 * HOUR_MS]
    assert missed_runs(NAME, done(stored, ask(stored, BACK_MS), BACK_MS), BACK_MS) == []


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_run_that_is_a_little_late_is_sent_under_every_policy(missed):
    now_ms = 2 * HOUR_MS + SKIP_GRACE_MS
    step = ask(planned(HOUR_MS, missed=missed), now_ms)
    assert step.send == [2 * HOUR_MS, 3 * HOUR_MS]
    assert ask(planned(HOUR_MS, missed="skip"), now_ms + 1).send == [3 * HOUR_MS]


def test_skip_leaves_an_overdue_run_that_is_a_little_late():
    stored = planned(HOUR_MS, missed="skip")
    assert ask(stored, HOUR_MS + SKIP_GRACE_MS, [HOUR_MS]).revoke == []
    assert ask(stored, HOUR_MS + SKIP_GRACE_MS + 1, [HOUR_MS]).revoke == [HOUR_MS]


@pytest.mark.parametrize("missed", ["skip", "once"])
def test_one_run_is_sent_of_many_that_are_a_little_late_and_it_is_the_newest(missed):
    stored = planned(10 * SECOND_MS, missed=missed)
    now_ms = 2 * MINUTE_MS + 5 * SECOND_MS
    overdue = overdue_runs(NAME, stored, now_ms)
    assert overdue == [10_000, 20_000, 30_000, 40_000, 50_000, 60_000]
    step = ask(stored, now_ms, overdue)
    assert step.revoke == overdue
    assert [run for run in step.send if run <= now_ms] == [2 * MINUTE_MS]
    assert ask(done(stored, step, now_ms), now_ms).send == []


@pytest.mark.parametrize("missed", ["skip", "once"])
def test_the_newest_may_be_one_that_was_sent_ahead(missed):
    stored = planned(10 * SECOND_MS, missed=missed)
    now_ms = MINUTE_MS + 5 * SECOND_MS
    overdue = overdue_runs(NAME, stored, now_ms)
    step = ask(stored, now_ms, overdue)
    assert step.revoke == overdue[:-1]
    assert min(step.send) > now_ms
    assert ask(done(stored, step, now_ms), now_ms).send == []


def test_what_was_left_out_is_remembered_also_if_nothing_is_sent():
    stored = planned(HOUR_MS, missed="skip", recurrence={"end_ms": 5 * HOUR_MS})
    step = ask(stored, BACK_MS, [HOUR_MS])
    assert step == Step([HOUR_MS], [], BACK_MS, None)
    assert ask(done(stored, step, BACK_MS), BACK_MS).send == []


def test_all_means_at_most_the_newest_thousand():
    step = ask(planned(SECOND_MS, missed="all"), HOUR_MS)
    assert step.send[:1_000] == list(range(HOUR_MS - 999 * SECOND_MS, HOUR_MS + 1, SECOND_MS))
    assert len(step.send) == 1_000 + 60


def test_thirty_years_of_outage_are_planned_from_the_end():
    step = ask(planned(SECOND_MS, missed="all"), 30 * YEAR_MS)
    assert len(step.send) == 1_060


def test_a_run_that_jitter_holds_back_is_not_missed():
    stored = planned(HOUR_MS, missed="skip", jitter_ms=HOUR_MS)
    jittered = stored.spec.jittered
    now_ms = 5 * HOUR_MS + 1
    step = ask(stored, now_ms)
    waits = [run for run in HOURS_MS[2:6] if jittered(NAME, run) > now_ms]
    assert waits
    assert step.send == [*waits, 6 * HOUR_MS]


@given(
    st.sampled_from(["skip", "once", "all"]),
    st.sampled_from([1_000, 7_000, 45_000, 61_000, 400_000]),
    st.sampled_from([0, 500, 90_000]),
    st.integers(0, 2**32),
)
def test_no_run_is_planned_twice_and_without_outages_none_is_left_out(missed, every_ms, jitter_ms, seed):
    rng = random.Random(seed)
    stored = begun(every_ms, missed=missed, jitter_ms=jitter_ms)
    now_ms, on_time = 0, True
    sent = []
    for _ in range(60):
        step = ask(stored, now_ms)
        assert step.planned_until_ms >= stored.planned_until_ms
        assert step.send == sorted(step.send)
        assert step.wake_ms > now_ms
        assert any(run > now_ms for run in [*sent, *step.send])
        sent += step.send
        stored = done(stored, step, now_ms)
        fate = rng.random()
        if fate < 0.1:
            now_ms -= rng.randrange(10 * every_ms)  # the clock is stepped back
        elif fate < 0.15:
            now_ms, on_time = now_ms + rng.randrange(400 * every_ms), False
        else:
            now_ms = max(step.wake_ms - rng.choice([0, 0, 0, 5_000]), now_ms + 1)
    assert len(sent) == len(set(sent))
    if on_time or missed == "all":
        assert sent == list(range(every_ms, sent[-1] + 1, every_ms))
