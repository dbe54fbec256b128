"""Schedules on paper: what may be put, the messages of runs, and how a schedule is kept."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.model.admission import check_key
from timerwheel.schedules.errors import ScheduleError
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import BODY_BYTES_MAX, JITTER_MS_MAX, ScheduleSpec, check_name, run_key
from timerwheel.schedules.stored import Earlier, Leaving, Stored

HOURLY = Recurrence(cron="0 * * * *")
HOUR_MS = 3_600_000
NOW_MS = 500_000 * HOUR_MS


def spec(**changes):
    values = {"topic": "orders", "body": b"\0x", "properties": {"TAGS": "a"}, "recurrence": HOURLY}
    return ScheduleSpec(**(values | changes))


def begin(spec, old=None, now_ms=NOW_MS, generation=1):
    return Stored.begin("n", spec, old, generation, now_ms)


@given(
    st.binary(max_size=50),
    st.integers(0, JITTER_MS_MAX),
    st.sampled_from(["skip", "once", "all"]),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 10**13)),
)
def test_a_stored_schedule_comes_back_from_json_as_it_was(body, jitter_ms, missed, paused, end_ms):
    recurrence = Recurrence(cron="0 * * * *", zone="Europe/Berlin", end_ms=end_ms, skipped_hour="skip")
    stored = begin(spec(body=body, jitter_ms=jitter_ms, missed=missed, paused=paused, recurrence=recurrence))
    stored = msgspec.structs.replace(stored, leaving=Leaving("orders", 1, [5, 6]))
    assert Stored.decode(msgspec.json.decode(msgspec.json.encode(stored.encode()))) == stored


@given(st.integers(0, 10**13), st.integers(0, JITTER_MS_MAX))
def test_jitter_is_within_its_bound_and_always_the_same(run_ms, jitter_ms):
    due_ms = spec(jitter_ms=jitter_ms).jittered("n", run_ms)
    assert run_ms <= due_ms <= run_ms + jitter_ms
    assert due_ms == spec(jitter_ms=jitter_ms).jittered("n", run_ms)


def test_jitter_spreads_schedules_and_runs():
    jittery = spec(jitter_ms=1_000)
    assert len({jittery.jittered(f"n{i}", 0) for i in range(100)}) > 80
    assert len({jittery.jittered("n", run) - run for run in range(0, 100_000, 1_000)}) > 80


def test_message_of_a_run_carries_name_moment_time_and_key():
    message = spec(jitter_ms=9).message("nightly", 7, 3_000)
    assert (message.topic, message.body) == ("orders", b"\0x")
    assert message.dedup_key == "schedule:nightly:7:3000"
    assert message.properties == {
        "TAGS": "a",
        "SCHEDULE_NAME": "nightly",
        "SCHEDULE_RUN_MS": "3000",
        "TIMER_DELIVER_MS": str(spec(jitter_ms=9).jittered("nightly", 3_000)),
    }


def test_the_message_of_a_late_run_waits_from_when_it_is_sent():
    late = spec().message("nightly", 7, 3_000, delay_ms=1)
    on_time = spec().message("nightly", 7, 3_000)
    assert late.properties["TIMER_DELAY_MS"] == "1"
    assert "TIMER_DELIVER_MS" not in late.properties
    assert late.dedup_key == on_time.dedup_key


def test_the_longest_name_makes_a_legal_key():
    check_key(run_key(check_name("n" * 127), 2**53, 253_370_764_800_000))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "n" * 128, "ü", "a\n", ".", ".."])
def test_names_that_are_refused(name):
    with pytest.raises(ScheduleError, match=r"^name: "):
        check_name(name)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("jitter_ms", {"jitter_ms": -1}),
        ("jitter_ms", {"jitter_ms": JITTER_MS_MAX + 1}),
        ("jitter_ms", {"jitter_ms": 10_000_001, "recurrence": Recurrence(every_ms=1_000)}),
        ("missed", {"missed": "twice"}),
        ("body", {"body": bytes(BODY_BYTES_MAX + 1)}),
        ("properties", {"properties": {"DELAY": "3"}}),
        ("properties", {"properties": {"TIMER_DELIVER_MS": "3"}}),
        ("properties", {"properties": {"SCHEDULE_NAME": "x"}}),
        ("cron", {"recurrence": Recurrence(cron="x")}),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_field(field, wrong):
    with pytest.raises(ScheduleError) as caught:
        spec(**wrong).check()
    assert caught.value.field == field
    codes = {"body": "body_too_large", "properties": "reserved_property", "cron": "illegal_schedule"}
    assert caught.value.code == codes.get(field, "invalid_field")


def test_a_new_schedule_begins_after_now():
    assert next(begin(spec()).due_after("n", 0)) == NOW_MS + HOUR_MS


def planned(stored, until_ms):
    return msgspec.structs.replace(stored, planned_until_ms=until_ms)


def test_a_change_takes_back_what_was_sent_ahead_and_keeps_the_interval_in_step():
    every = spec(recurrence=Recurrence(every_ms=HOUR_MS))
    old = planned(begin(every), NOW_MS + HOUR_MS)
    later_ms = NOW_MS + HOUR_MS // 2
    new = begin(msgspec.structs.replace(every, body=b"new"), old, later_ms, 2)
    assert new.leaving == Leaving("orders", 1, [NOW_MS + HOUR_MS])
    assert new.leaving.keys("n") == [run_key("n", 1, NOW_MS + HOUR_MS)]
    assert next(new.due_after("n", 0)) == NOW_MS + HOUR_MS
    other = begin(spec(recurrence=Recurrence(every_ms=2 * HOUR_MS)), old, later_ms, 2)
    assert next(other.due_after("n", 0)) == later_ms + 2 * HOUR_MS


def test_a_change_does_not_lose_a_run_that_jitter_holds_back():
    jittery = spec(jitter_ms=HOUR_MS // 2, recurrence=Recurrence(every_ms=HOUR_MS))
    run_ms = NOW_MS + HOUR_MS
    due_ms = jittery.jittered("n", run_ms)
    old = planned(begin(jittery), run_ms)
    changed = msgspec.structs.replace(jittery, body=b"new")
    new = begin(changed, old, due_ms - 1, 2)
    assert new.leaving.runs == [run_ms]
    assert next(new.due_after("n", due_ms - 1)) == run_ms
    fired = begin(changed, old, due_ms, 2)
    assert fired.leaving is None
    assert next(fired.due_after("n", due_ms)) == run_ms + HOUR_MS


def test_a_pause_takes_back_also_what_is_due_but_may_still_wait():
    run_ms = NOW_MS + HOUR_MS
    old = planned(begin(spec()), run_ms)
    paused = begin(spec(paused=True), old, run_ms + 5, 2)
    assert paused.leaving.runs == [run_ms]
    resumed = begin(spec(), paused, run_ms + 10 * HOUR_MS + 5, 3)
    assert resumed.leaving is None
    assert next(resumed.due_after("n", 0)) == run_ms + 11 * HOUR_MS


def test_a_schedule_whose_zone_is_gone_can_still_be_taken_back():
    gone = begin(spec(recurrence=Recurrence(cron="0 * * * *", zone="Europe/Atlantis")))
    assert gone.leave("n", NOW_MS, all_overdue=True) is None
    assert planned(gone, NOW_MS + 5).leave("n", NOW_MS, all_overdue=True).runs == [NOW_MS + 5]
    with pytest.raises(ScheduleError):
        next(gone.due_after("n", NOW_MS))


def test_a_new_generation_knows_which_runs_those_before_may_have_delivered():
    run_ms = NOW_MS + HOUR_MS
    old = planned(begin(spec()), run_ms)
    new = begin(spec(body=b"new"), old, run_ms - 3, 2)
    assert new.leaving.runs == [run_ms]
    [earlier] = new.earlier
    assert earlier.after_ms < run_ms <= earlier.until_ms
    assert earlier.key("n", run_ms) == run_key("n", old.generation, run_ms)
    assert Stored.decode(new.encode()) == new
    assert begin(spec(paused=True), new, run_ms - 2, 3).earlier == [earlier], "it had sent nothing"
    newest = begin(spec(body=b"newer"), planned(new, run_ms), run_ms - 1, 4)
    assert newest.earlier == [earlier, Earlier("orders", 2, new.since_ms, run_ms)]
