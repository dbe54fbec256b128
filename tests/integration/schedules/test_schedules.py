"""Schedules on the real engine: each run once whatever crashes, missed runs by policy, changes that hold."""

import asyncio
import contextlib
import logging
from collections import Counter

import pytest

from tests.harness.clock import ManualClock
from tests.harness.crashes import crashes_of
from tests.harness.drive import read_all, settle, small_settings
from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from tests.harness.held import go_on, open_held
from tests.harness.scratch import scratch
from timerwheel.engine import Engine
from timerwheel.errors import RefusedError, TimerwheelError
from timerwheel.model.messages import Outgoing, State
from timerwheel.schedules import scheduler
from timerwheel.schedules.errors import ScheduleError, TooManySchedulesError, UnknownScheduleError
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import NO_MISSED_RUNS, MissedRuns, NextRun, ScheduleSpec
from timerwheel.store.errors import NoSpaceError, StoreError

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FATES = 3
ROUNDS = 40


def every(every_ms, **changes):
    values = {"topic": "orders", "body": b"tick", "recurrence": Recurrence(every_ms=every_ms)}
    return ScheduleSpec(**(values | changes))


async def spin():
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


async def rest(engine):
    """Let the planner, the firing and the planner again come to rest at this moment."""
    await spin()
    await settle(engine)


async def go(world, duration_ms, step_ms=SECOND_MS):
    """Let time pass in steps, as it does."""
    for _ in range(duration_ms // step_ms):
        await world.advance(step_ms)
        await rest(world.engine)


async def outage(world, duration_ms, **limits):
    """The service is killed and started again later."""
    await rest(world.engine)
    await world.engine.abandon()
    world.clock.advance(duration_ms)
    engine = await world.open(**limits)
    await rest(engine)
    await world.advance(1)  # missed runs are timers of a millisecond
    await rest(engine)
    return engine


async def run_moments(engine, name="n", topic="orders"):
    messages = await read_all(engine, topic)
    return [int(m.properties["SCHEDULE_RUN_MS"]) for m in messages if m.properties["SCHEDULE_NAME"] == name]


async def test_runs_come_once_and_on_time_over_restarts_and_a_lost_index(world):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(10 * SECOND_MS, properties={"TAGS": "a"}))
    for again in (world.restart, world.crash, world.lose_index, world.restart):
        await go(world, 15 * SECOND_MS)
        await again()
    messages = await world.delivered()
    assert await run_moments(world.engine) == [start_ms + 10 * SECOND_MS * k for k in range(1, 7)]
    assert {message.lateness_ms for message in messages} == {0}
    assert {(message.body, message.properties["TAGS"]) for message in messages} == {(b"tick", "a")}


async def test_a_dense_schedule_keeps_its_seconds(world):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(SECOND_MS))
    await go(world, 150 * SECOND_MS)
    assert await run_moments(engine) == [start_ms + SECOND_MS * k for k in range(1, 151)]
    assert {message.lateness_ms for message in await world.delivered()} == {0}


async def test_a_cron_schedule_in_a_zone_runs_at_its_local_times(world):
    engine = await world.open()
    spec = every(SECOND_MS, recurrence=Recurrence(cron="30 9 * * *", zone="Asia/Kolkata"))
    info = await engine.schedules.put("n", spec)
    wanted = [run.run_ms for run in await engine.schedules.next_runs("n", 3)]
    assert info.next_run_ms == wanted[0]
    assert all(run_ms % (24 * HOUR_MS) == 4 * HOUR_MS for run_ms in wanted)
    await go(world, 72 * HOUR_MS, step_ms=HOUR_MS // 2)
    assert await run_moments(engine) == wanted


async def test_jitter_moves_the_message_and_not_the_run(world):
    engine = await world.open()
    await engine.schedules.put("n", every(MINUTE_MS, jitter_ms=30_000))
    wanted = await engine.schedules.next_runs("n", 5)
    await go(world, 6 * MINUTE_MS)
    messages = (await world.delivered())[:5]
    assert [message.due_ms for message in messages] == [run.due_ms for run in wanted]
    assert (await run_moments(engine))[:5] == [run.run_ms for run in wanted]
    assert any(run.due_ms != run.run_ms for run in wanted)


async def test_the_same_put_changes_nothing(world):
    engine = await world.open()
    info = await engine.schedules.put("n", every(MINUTE_MS))
    await go(world, 10 * SECOND_MS)
    tail = engine.core.log.tail
    assert await engine.schedules.put("n", every(MINUTE_MS)) == info
    await rest(engine)
    assert engine.core.log.tail == tail


async def test_a_changed_put_takes_back_what_was_sent_ahead(world):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    before = await engine.schedules.put("n", every(MINUTE_MS))
    await go(world, 90 * SECOND_MS)
    after = await engine.schedules.put("n", every(MINUTE_MS, body=b"tock"))
    assert after.generation > before.generation
    await go(world, 60 * SECOND_MS)
    assert await run_moments(engine) == [start_ms + MINUTE_MS, start_ms + 2 * MINUTE_MS]
    assert [message.body for message in await world.delivered()] == [b"tick", b"tock"]


async def test_a_paused_schedule_is_silent_and_its_time_is_never_missed(world):
    engine = await world.open()
    await engine.schedules.put("n", every(10 * SECOND_MS, missed="all"))
    await go(world, 15 * SECOND_MS)
    info = await engine.schedules.pause("n")
    assert info.spec.paused
    assert info.next_run_ms is None
    assert await engine.schedules.next_runs("n", 5) == []
    assert await world.pending_ids() == []
    engine = await outage(world, 5 * MINUTE_MS)
    await go(world, 30 * SECOND_MS)
    assert len(await world.delivered()) == 1
    await engine.schedules.resume("n")
    now_ms = world.clock.now_ms()
    await go(world, 10 * SECOND_MS)
    [_, resumed] = await run_moments(engine)
    assert now_ms < resumed <= now_ms + 10 * SECOND_MS


async def test_pause_and_resume_before_the_run_do_not_lose_it(world):
    engine = await world.open()
    wanted_ms = (await engine.schedules.put("n", every(10 * SECOND_MS))).next_run_ms
    for _ in range(3):
        await engine.schedules.pause("n")
        await engine.schedules.pause("n")
        await engine.schedules.resume("n")
        await engine.schedules.resume("n")
    await go(world, 10 * SECOND_MS)
    assert await run_moments(engine) == [wanted_ms]


async def test_a_deleted_schedule_fires_no_more_and_its_name_is_free(world):
    engine = await world.open()
    await engine.schedules.put("n", every(10 * SECOND_MS))
    await go(world, 5 * SECOND_MS)
    await engine.schedules.delete("n")
    assert await world.pending_ids() == []
    assert await engine.schedules.all() == []
    for call in (engine.schedules.pause, engine.schedules.resume, engine.schedules.delete):
        with pytest.raises(UnknownScheduleError):
            await call("n")
    with pytest.raises(UnknownScheduleError):
        await engine.schedules.get("n")
    wanted_ms = (await engine.schedules.put("n", every(5 * SECOND_MS))).next_run_ms
    await go(world, 5 * SECOND_MS)
    assert await run_moments(engine) == [wanted_ms]


@pytest.mark.parametrize("end", [None, 4 * HOUR_MS + MINUTE_MS])
@pytest.mark.parametrize(("missed", "hours"), [("skip", []), ("once", [4]), ("all", [1, 2, 3, 4])])
async def test_missed_runs_come_by_policy_and_only_once(world, missed, hours, end):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    end_ms = None if end is None else start_ms + end
    spec = every(HOUR_MS, missed=missed, recurrence=Recurrence(every_ms=HOUR_MS, end_ms=end_ms))
    await engine.schedules.put("n", spec)
    [ahead] = await world.pending_ids()
    engine = await outage(world, 4 * HOUR_MS + 2 * MINUTE_MS)
    assert await run_moments(engine) == [start_ms + hour * HOUR_MS for hour in hours]
    state = State.DELIVERED if missed == "all" else State.RECALLED
    assert (await engine.messages.get(ahead)).state is state
    # Of `all`, the run that was sent ahead is late but not missed.
    counted = MissedRuns(3 if missed == "all" else 4, start_ms + 4 * HOUR_MS)
    assert (await engine.schedules.get("n")).missed == counted
    engine = await outage(world, MINUTE_MS)
    assert (await engine.schedules.get("n")).missed == NO_MISSED_RUNS
    engine = await outage(world, 0)
    assert sorted(await run_moments(engine)) == [start_ms + hour * HOUR_MS for hour in hours]
    if end is None:
        assert (await engine.schedules.get("n")).next_run_ms == start_ms + 5 * HOUR_MS
        await go(world, HOUR_MS, step_ms=MINUTE_MS)
        assert (await run_moments(engine))[-1] == start_ms + 5 * HOUR_MS


async def test_once_is_one_also_if_the_run_sent_ahead_had_fired(world):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(HOUR_MS, missed="once"))
    await go(world, HOUR_MS, step_ms=HOUR_MS // 4)
    engine = await outage(world, 4 * HOUR_MS + MINUTE_MS)
    assert await run_moments(engine) == [start_ms + HOUR_MS, start_ms + 5 * HOUR_MS]


async def test_of_a_dense_schedule_once_is_one(world):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(10 * SECOND_MS, missed="once"))
    engine = await outage(world, HOUR_MS + SECOND_MS)
    assert await run_moments(engine) == [start_ms + HOUR_MS]


async def test_of_a_dense_schedule_skip_is_at_most_one(world):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(10 * SECOND_MS, missed="skip"))
    engine = await outage(world, 65 * SECOND_MS)
    assert await run_moments(engine) == [start_ms + MINUTE_MS]
    await go(world, 10 * SECOND_MS)
    now_ms = world.clock.now_ms()
    engine = await outage(world, 125 * SECOND_MS)
    found = await run_moments(engine)
    assert len([run_ms for run_ms in found if run_ms > now_ms]) == 1
    assert found[-1] == start_ms + 200 * SECOND_MS


@pytest.mark.parametrize("limits", [{}, {"slot_messages_max": 20}])
async def test_all_missed_runs_come_in_order_after_those_that_were_sent_ahead(world, limits):
    engine = await world.open(**limits)
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(SECOND_MS, missed="all"))
    engine = await outage(world, 5 * MINUTE_MS, **limits)
    await go(world, 30 * SECOND_MS)
    found = await run_moments(engine)
    wanted = [start_ms + SECOND_MS * k for k in range(1, len(found) + 1)]
    assert len(found) >= 300
    assert (found if not limits else sorted(found)) == wanted


async def test_a_late_run_that_did_not_fire_before_a_crash_is_judged_again(world):
    limits = {"max_delay_ms": 1}  # nothing is sent ahead
    engine = await world.open(**limits)
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(HOUR_MS, missed="once"))
    await world.advance(HOUR_MS)
    await rest(engine)
    assert await run_moments(engine) == []
    engine = await outage(world, 4 * HOUR_MS + MINUTE_MS, **limits)
    assert await run_moments(engine) == [start_ms + 5 * HOUR_MS]


async def test_a_clock_that_steps_back_repeats_no_run(world):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(20 * SECOND_MS))
    await go(world, 50 * SECOND_MS)
    await world.step(-35 * SECOND_MS)
    await go(world, 60 * SECOND_MS)
    await world.step(3 * MINUTE_MS)
    await go(world, 60 * SECOND_MS)
    found = await run_moments(engine)
    assert len(found) == len(set(found))
    assert sorted(found)[:4] == [start_ms + 20 * SECOND_MS * k for k in range(1, 5)]


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
@pytest.mark.parametrize("again", ["go on", "crash"])
@pytest.mark.parametrize("ahead_ms", [7 * MINUTE_MS, 30 * HOUR_MS, 3_650 * DAY_MS])
async def test_a_clock_that_was_ahead_for_a_while_costs_no_later_run(world, ahead_ms, again, missed):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    every_ms = 5 * MINUTE_MS if ahead_ms < DAY_MS or missed != "all" else HOUR_MS
    await engine.schedules.put("n", every(every_ms, missed=missed))
    await go(world, 12 * MINUTE_MS, MINUTE_MS)
    await world.step(ahead_ms)
    await go(world, 2 * SECOND_MS)
    await world.step(-ahead_ms)
    if again == "crash":
        await world.crash()
    await rest(world.engine)
    for _ in range(3):
        [coming] = await world.engine.schedules.next_runs("n", 1)
        assert (await world.engine.schedules.get("n")).next_run_ms == coming.run_ms
        before = await run_moments(world.engine)
        while (left_ms := coming.due_ms - world.clock.now_ms()) > 0:
            await world.advance(min(left_ms, every_ms * 3 // 5))
            await rest(world.engine)
        after = await run_moments(world.engine)
        assert sorted(after) == sorted([*before, coming.run_ms])
    found = await run_moments(world.engine)
    assert len(found) == len(set(found))
    passed = range(start_ms + every_ms, world.clock.now_ms() + 1, every_ms)
    assert set(passed) <= set(found)


@pytest.mark.parametrize("again", ["go on", "crash"])
@pytest.mark.parametrize("ahead_ms", [7 * MINUTE_MS, 3_650 * DAY_MS])
async def test_a_schedule_made_while_the_clock_was_ahead_runs_once_it_is_right(world, ahead_ms, again):
    engine = await world.open()
    await world.step(ahead_ms)
    await engine.schedules.put("n", every(MINUTE_MS))
    await go(world, 2 * SECOND_MS)
    await world.step(-ahead_ms)
    right_ms = world.clock.now_ms()
    if again == "crash":
        engine = await world.crash()
    await rest(engine)
    assert (await engine.schedules.get("n")).next_run_ms == right_ms + MINUTE_MS
    assert len(await world.pending_ids()) == 1, "what was sent ahead by the wrong clock is recalled"
    await go(world, 3 * MINUTE_MS, 20 * SECOND_MS)
    assert await run_moments(engine) == [right_ms + MINUTE_MS * k for k in (1, 2, 3)]


@pytest.mark.parametrize("ahead_ms", [7 * MINUTE_MS, 3_650 * DAY_MS])
async def test_a_schedule_changed_while_the_clock_was_ahead_goes_on_and_repeats_no_run(world, ahead_ms):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(20 * SECOND_MS))
    await go(world, 50 * SECOND_MS)
    await world.step(ahead_ms)
    await engine.schedules.put("n", every(20 * SECOND_MS, body=b"another"))
    await go(world, 2 * SECOND_MS)
    await world.step(-ahead_ms)
    await go(world, 60 * SECOND_MS)
    found = await run_moments(engine)
    assert len(found) == len(set(found))
    assert {start_ms + 20 * SECOND_MS * k for k in range(1, 6)} <= set(found)
    assert (await world.delivered())[-1].body == b"another"


async def test_a_clock_that_steps_back_behind_a_change_repeats_no_run_of_the_generations_before(world):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(20 * SECOND_MS))
    await go(world, 21 * SECOND_MS)
    for body in (b"another", b"third"):
        await engine.schedules.put("n", every(20 * SECOND_MS, body=body))
        await go(world, SECOND_MS)
    await world.step(-10 * SECOND_MS)
    await go(world, 30 * SECOND_MS)
    assert await run_moments(engine) == [start_ms + 20 * SECOND_MS, start_ms + 40 * SECOND_MS]


@pytest.mark.parametrize("missed", ["skip", "once"])
async def test_a_clock_that_was_past_the_end_of_a_schedule_for_a_moment_does_not_end_it(world, missed):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    recurrence = Recurrence(every_ms=5 * MINUTE_MS, start_ms=start_ms, end_ms=start_ms + HOUR_MS)
    await engine.schedules.put("n", every(MINUTE_MS, recurrence=recurrence, missed=missed))
    await world.step(DAY_MS)
    await go(world, 2 * SECOND_MS)
    assert (await engine.schedules.get("n")).next_run_ms is None
    await world.step(-DAY_MS)
    await rest(engine)
    before = len(await run_moments(engine))
    await go(world, 21 * MINUTE_MS, MINUTE_MS)
    assert len(await run_moments(engine)) >= before + 3


async def test_what_was_sent_while_the_clock_was_ahead_is_recalled_by_a_pause(world):
    engine = await world.open()
    await engine.schedules.put("n", every(MINUTE_MS, jitter_ms=30 * SECOND_MS))
    for ahead_ms in (10 * DAY_MS, 20 * DAY_MS, 5 * DAY_MS):
        await world.step(ahead_ms)
        await go(world, 2 * SECOND_MS)
        await world.step(-ahead_ms)
        await rest(engine)
    assert len(await world.pending_ids()) > 1
    await engine.schedules.pause("n")
    assert await world.pending_ids() == []


async def test_pages_of_runs_follow_each_other_whatever_the_jitter(world):
    engine = await world.open()
    await engine.schedules.put("n", every(10 * SECOND_MS, jitter_ms=MINUTE_MS))
    await go(world, 2 * MINUTE_MS)
    found, after_ms = [], 0
    for _ in range(10):
        page = await engine.schedules.next_runs("n", 2, after_ms)
        found, after_ms = found + page, page[-1].run_ms
    assert found == await engine.schedules.next_runs("n", 20)


@pytest.mark.parametrize("every_ms", [SECOND_MS, MINUTE_MS])
async def test_runs_that_were_recalled_are_not_announced(world, every_ms):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(every_ms))
    recalled = await world.pending_ids()
    for message_id in recalled:
        await engine.recalls.recall(message_id)
    wanted_ms = start_ms + (len(recalled) + 1) * every_ms
    assert (await engine.schedules.get("n")).next_run_ms == wanted_ms
    assert [one.next_run_ms for one in await engine.schedules.all()] == [wanted_ms]
    await go(world, wanted_ms - start_ms)
    assert await run_moments(engine) == [wanted_ms]


async def test_a_run_whose_message_was_rescheduled_is_announced_for_its_new_time(world):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(HOUR_MS))
    [ahead] = await world.pending_ids()
    await engine.recalls.reschedule(ahead, {"TIMER_DELIVER_MS": str(start_ms + 2 * HOUR_MS + 1)})
    runs = await engine.schedules.next_runs("n", 2)
    assert runs == [
        NextRun(start_ms + HOUR_MS, start_ms + 2 * HOUR_MS + 1),
        NextRun(start_ms + 2 * HOUR_MS, start_ms + 2 * HOUR_MS),
    ]


async def test_what_a_full_disk_refuses_is_sent_when_there_is_room(world, caplog):
    engine = await world.open(segment_size_bytes=1 << 20)
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(MINUTE_MS, missed="all"))
    space_bytes, world.files.space_bytes = world.files.space_bytes, 0
    with caplog.at_level(logging.CRITICAL):
        for _ in range(60):
            world.clock.advance(5 * SECOND_MS)  # an engine with due messages that do not fit is never at rest
            await spin()
        assert (await engine.schedules.get("n")).problem
        with pytest.raises((NoSpaceError, TimerwheelError)):
            await engine.schedules.pause("n")
    world.files.space_bytes = space_bytes
    await go(world, 5 * SECOND_MS)
    assert (await engine.schedules.get("n")).problem is None
    assert sorted(await run_moments(engine)) == [start_ms + MINUTE_MS * k for k in range(1, 6)]


async def test_a_schedule_that_cannot_be_sent_holds_up_no_other(world, caplog):
    engine = await world.open(topics_max=1)
    await engine.schedules.put("good", every(10 * SECOND_MS))
    info = await engine.schedules.put("bad", every(10 * SECOND_MS, topic="one-too-many"))
    assert "topics_max" in info.problem
    await go(world, 35 * SECOND_MS)
    assert len(await run_moments(engine, "good")) == 3
    assert [found.problem is None for found in await engine.schedules.all()] == [False, True]
    told = [record for record in caplog.records if "schedule" in record.getMessage()]
    assert len(told) == 1


async def test_what_is_wrong_is_refused_and_nothing_is_stored(world):
    engine = await world.open(max_delay_ms=HOUR_MS)
    tail = engine.core.log.tail
    with pytest.raises(RefusedError):
        await engine.schedules.put("n", every(SECOND_MS, topic="no topic"))
    for name, spec in (
        ("a/b", every(MINUTE_MS)),
        ("n", every(999)),
        ("n", every(MINUTE_MS, jitter_ms=HOUR_MS + 1)),
    ):
        with pytest.raises(ScheduleError):
            await engine.schedules.put(name, spec)
    assert engine.core.log.tail == tail


async def test_the_number_of_schedules_has_a_limit_which_a_change_does_not_meet(world, monkeypatch):
    engine = await world.open()
    monkeypatch.setattr(scheduler, "SCHEDULES_MAX", 2)
    await engine.schedules.put("a", every(MINUTE_MS))
    await engine.schedules.put("b", every(MINUTE_MS))
    with pytest.raises(TooManySchedulesError, match="limit of 2 schedules"):
        await engine.schedules.put("c", every(MINUTE_MS))
    assert (await engine.schedules.put("a", every(HOUR_MS))).spec == every(HOUR_MS)


async def test_runs_beyond_the_longest_delay_are_sent_when_they_come_within_it(world):
    engine = await world.open(max_delay_ms=MINUTE_MS)
    start_ms = world.clock.now_ms()
    await engine.schedules.put("n", every(10 * MINUTE_MS))
    assert await world.pending_ids() == []
    await go(world, 20 * MINUTE_MS, step_ms=20 * SECOND_MS)
    assert await run_moments(engine) == [start_ms + 10 * MINUTE_MS, start_ms + 20 * MINUTE_MS]
    assert {message.lateness_ms for message in await world.delivered()} == {0}


async def test_a_change_is_finished_though_its_caller_goes_away(world):
    engine = await world.open()
    await engine.schedules.put("n", every(MINUTE_MS))
    for steps in range(12):
        change = asyncio.create_task(engine.schedules.put("n", every(MINUTE_MS, body=b"%d" % steps)))
        for _ in range(steps):
            await asyncio.sleep(0)
        change.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await change
        await engine.schedules.drain()
        await rest(engine)
    await go(world, MINUTE_MS)
    assert len(await run_moments(engine)) == 1
    assert [message.body for message in await world.delivered()] == [
        (await engine.schedules.get("n")).spec.body
    ]


# ---------------------------------------------------------------- a crash at every step

LONG = {"segment_size_bytes": 16_384}


class Told:
    """What clients were told of schedules: from when on one is silent."""

    def __init__(self):
        self.silent_from_ms = {}


async def workload(engine, clock, told):
    schedules = engine.schedules

    async def pass_time(duration_ms):
        for _ in range(duration_ms // 5_000):
            clock.advance(5_000)
            await rest(engine)

    await schedules.put("all", every(20 * SECOND_MS, missed="all"))
    await schedules.put("once", every(HOUR_MS, missed="once"))
    await schedules.put("paused", every(15 * SECOND_MS, missed="all"))
    await schedules.put("deleted", every(25 * SECOND_MS, missed="all"))
    await pass_time(30_000)
    await schedules.pause("paused")
    told.silent_from_ms["paused"] = clock.now_ms()
    await schedules.delete("deleted")
    told.silent_from_ms["deleted"] = clock.now_ms()
    await schedules.put("once", every(HOUR_MS, missed="once", body=b"new"))
    await pass_time(45_000)
    await schedules.pause("all")
    await schedules.resume("all")
    await pass_time(30_000)


async def run_once(directory, crash_at):
    clock, files, told = ManualClock(), FaultyFiles(crash_at), Told()
    engine = None
    with contextlib.suppress(SimulatedCrashError, TimerwheelError, StoreError, RuntimeError):
        engine = await Engine.open(small_settings(directory, **LONG), clock, files, threads=False)
        await workload(engine, clock, told)
    if engine is not None:
        with contextlib.suppress(SimulatedCrashError):
            await engine.abandon()
    return files, clock, told


async def finish(directory, files, clock, told):
    """Go on an hour and more after the crash, and check the books."""
    start_ms = 1_800_000_000_000
    engine = await Engine.open(small_settings(directory, **LONG), clock, files, threads=False)
    await rest(engine)
    for _ in range(15):
        clock.advance(5_000)
        await rest(engine)
    clock.advance(HOUR_MS)
    await rest(engine)
    clock.advance(1)
    await rest(engine)
    messages = await read_all(engine, "orders")
    seen = Counter((m.properties["SCHEDULE_NAME"], m.properties["SCHEDULE_RUN_MS"]) for m in messages)
    assert not seen or max(seen.values()) == 1, f"twice: {seen.most_common(3)}"
    for message in messages:
        silent_ms = told.silent_from_ms.get(message.properties["SCHEDULE_NAME"], clock.now_ms())
        assert message.delivered_ms <= silent_ms, "a schedule that was told to stop went on"
    for info in await engine.schedules.all():
        if info.name != "all" or info.spec.paused:
            continue
        found = sorted(int(run_ms) for name, run_ms in seen if name == "all")
        step_ms = 20 * SECOND_MS
        assert found == list(range(start_ms + step_ms, clock.now_ms() + 1, step_ms)), "lost"
    if any(info.name == "once" for info in await engine.schedules.all()):
        assert [name for name, _ in seen].count("once") >= 1
    await engine.close()


async def test_a_crash_at_any_step_fires_no_run_twice_and_loses_none(caplog):
    caplog.set_level(logging.CRITICAL, "timerwheel")
    with scratch() as root:
        for crash in await crashes_of(run_once, root, sampled=True):
            for fate, files in crash.fates(FATES):
                with crash.again("kept", fate) as (directory, clock, told):
                    await finish(directory, files, clock, told)


async def kept_bytes(world, duration_ms):
    """Let traffic and schedules go on; returns how much log is kept at the end, and at most meanwhile."""
    sizes = []
    for _ in range(duration_ms // (5 * SECOND_MS)):
        await world.engine.sender.send([Outgoing("traffic", b"x" * 900)])
        await go(world, 5 * SECOND_MS, 5 * SECOND_MS)
        await world.retention_turn()
        sizes.append(world.engine.core.log.tail - world.engine.core.log.start)
    return max(sizes)


@pytest.mark.parametrize("start", ["restart", "crash", "lose_index"])
async def test_dense_schedules_do_not_hold_the_log_and_no_run_fires_twice(world, start):
    engine = await world.open(retention_ms=20 * SECOND_MS)
    for name in ("a", "b", "c"):
        await engine.schedules.put(name, every(5 * SECOND_MS, topic=name, properties={"P": "x" * 200}))
    await kept_bytes(world, 3 * MINUTE_MS)
    first = await kept_bytes(world, 3 * MINUTE_MS)
    read = {name: await read_all(world.engine, name) for name in ("a", "b", "c")}
    await getattr(world, start)()
    await rest(world.engine)
    second = await kept_bytes(world, 6 * MINUTE_MS)
    assert second <= 1.2 * first, "the log grows though nothing is kept for longer"
    for name, before in read.items():
        after = await read_all(world.engine, name, before[-1].queue_offset + 1)
        assert after, "the schedule stopped"
        first_kept = world.engine.queues.topic(name).queues[0].min_offset
        assert first_kept > before[-1].queue_offset, "what had fired before was kept"
        runs = [m.properties["SCHEDULE_RUN_MS"] for m in (*before, *after)]
        assert len(set(runs)) == len(runs), "a run fired twice"


async def test_a_client_key_among_dense_schedules_is_known_for_a_day_though_the_index_is_lost(world):
    engine = await world.open(retention_ms=20 * SECOND_MS)
    await engine.schedules.put("a", every(5 * SECOND_MS))
    [first] = await engine.sender.send([Outgoing("orders", b"x", dedup_key="k")])
    await kept_bytes(world, 2 * MINUTE_MS)
    engine = await world.lose_index()
    [again] = await engine.sender.send([Outgoing("orders", b"x", dedup_key="k")])
    assert (again.id, again.duplicate) == (first.id, True)


@pytest.mark.parametrize("then", ["finish", "crash"])
async def test_a_run_that_fires_while_its_schedule_is_changed_comes_once(world, then):
    """It is due between the moment of the change and when that is stored."""
    threads = await open_held(world)
    engine, start_ms = world.engine, world.clock.now_ms()
    await engine.schedules.put("n", every(SECOND_MS))
    await go(world, 5 * SECOND_MS)
    await world.advance(SECOND_MS - 3)
    with threads.holding("append"):
        change = asyncio.create_task(engine.schedules.put("n", every(SECOND_MS, body=b"new")))
        await go_on()
        world.clock.advance(5)
        await go_on()
    if then == "finish":
        await change
    else:
        with threads.holding("append", after=1):  # the run is stored, and nothing behind it
            await go_on()
            await engine.abandon()
        with contextlib.suppress(TimerwheelError, StoreError):
            await change
        await world.open()
    await go(world, 5 * SECOND_MS)
    moments = await run_moments(world.engine)
    assert moments == [start_ms + SECOND_MS * number for number in range(1, len(moments) + 1)]
    assert len(moments) >= 10
