"""What receivers, operators and clients can do to tasks at the wrong moment: real engine, real receiver."""

import asyncio

import pytest

from tests.harness.consumers import gated
from tests.harness.gated_threads import spin
from tests.harness.tasking import LATER, later
from timerwheel.errors import RefusedError, TimerwheelError
from timerwheel.groups.config import Exponential, GroupConfig, GroupFieldError, GroupTerms
from timerwheel.push.acks import AckEndedError
from timerwheel.push.signing import new_secret
from timerwheel.push.subscription import Draft, RotationError
from timerwheel.push.tasks import listing
from timerwheel.push.tasks import runner as running
from timerwheel.push.tasks.task import IllegalTaskUrlError, Task
from timerwheel.push.tasks.task_queue import TaskQueueOptions
from timerwheel.push.tasks.tasks import TaskStateError, UnknownTaskError
from timerwheel.schedules import scheduler
from timerwheel.schedules.errors import TooManySchedulesError
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.store.errors import NoSpaceError

HOUR_MS = 3_600_000
TOPIC = "%TASK%default"
SECRET = new_secret(bytes(32))


# ---------------------------------------------------------------------- leases


async def test_a_task_that_waits_when_its_group_is_moved_past_it_is_not_called(site):
    await site.tasks.put_queue("one", TaskQueueOptions(concurrency=1))
    site.receiver.behave["first"] = "hang"
    first = await site.create("first", queue="one")
    await site.receiver.arrived(1, "first")
    await site.create("waits", queue="one")
    await site.until(lambda: site.world.engine.groups.info("%TASK%one", "tasks").in_flight == 2)
    await site.world.engine.groups.rewind("%TASK%one", "tasks", to="tail")
    site.receiver.release()
    await site.until_state(first, "ended")
    after = await site.create("after", queue="one")
    await site.until_state(after, "succeeded")
    assert site.count("waits") == 0


async def test_an_extension_before_the_answer_is_not_cut_short_by_it(site):
    site.receiver.behave["hook"] = "hang"
    task = await site.create(timeout_ms=60_000)
    await site.receiver.arrived(1)
    token = site.token()
    await site.push.acks.extend(token, HOUR_MS)
    site.receiver.behave["hook"] = LATER
    site.receiver.answer_hanging(*LATER)
    await site.until(lambda: site.world.engine.counters.task_calls["delivered"] == 1)
    await site.later_for(HOUR_MS - 2_000)
    assert site.count() == 1
    await site.push.acks.acknowledge(token)
    assert (await site.get(task)).state == "succeeded"


async def test_a_pushed_message_that_was_extended_before_the_answer_stays_extended(site):
    site.receiver.behave["hook"] = "hang"
    await site.subscribe(timeout_ms=60_000)
    await site.send()
    await site.receiver.arrived(1)
    token = site.token()
    await site.push.acks.extend(token, HOUR_MS)
    site.receiver.answer_hanging(*LATER)
    await site.until(lambda: site.push.stats("s").delivered == 1)
    await site.later_for(HOUR_MS - 2_000)
    assert site.count() == 1
    await site.push.acks.acknowledge(token)


async def test_after_a_planned_restart_a_task_that_is_acknowledged_later_is_still_running(site):
    site.receiver.behave["hook"] = later("3600")
    task = await site.create()
    token = await site.task_taken()
    await site.push.close()
    await site.world.restart()
    await site.start()
    await site.world.advance(1_000)
    assert (await site.get(task)).state == "running"
    assert site.tasks.get_queue("default").running == 1
    with pytest.raises(TaskStateError, match="running"):
        await site.tasks.cancel(task)
    await site.push.acks.acknowledge(token)
    assert (await site.get(task)).state == "succeeded"
    assert site.tasks.get_queue("default").running == 0


async def test_after_a_planned_restart_a_task_that_nobody_acknowledges_follows_its_own_backoff(site):
    site.receiver.behave["hook"] = later("60")
    task = await site.create(backoff=Exponential(4 * HOUR_MS, 1.0, 4 * HOUR_MS))
    await site.task_taken()
    await site.push.close()
    await site.world.restart()
    await site.start()
    view = await site.until_state(task, "retrying", step_ms=1_000)
    assert view.next_attempt_ms - site.world.clock.now_ms() > 3 * HOUR_MS


async def test_a_task_that_was_taken_but_not_acknowledged_reports_the_answer_that_took_it(site):
    site.receiver.behave["hook"] = later("5")
    task = await site.create(max_attempts=1)
    await site.task_taken()
    view = await site.until_state(task, "failed", step_ms=1_000)
    assert view.last_status == 202


async def test_an_extension_comes_in_time_or_is_refused(site):
    site.receiver.behave["hook"] = later("60")
    task = await site.create(backoff=Exponential(HOUR_MS, 1.0, HOUR_MS))
    token = await site.task_taken()
    threads = gated(site.world)
    threads.reads.clear()
    await site.world.advance(60_000)  # the time is over, and that is about to be stored
    extension = asyncio.create_task(site.push.acks.extend(token, HOUR_MS))
    await spin()
    threads.reads.set()
    with pytest.raises(AckEndedError):
        await extension
    assert (await site.get(task)).state == "retrying"


async def test_a_call_in_progress_keeps_its_lease_however_little_its_receiver_asks_for(site):
    site.receiver.behave["hook"] = "hang"
    task = await site.create(timeout_ms=300_000)
    await site.receiver.arrived(1)
    await site.push.acks.extend(site.token(), 1_000)
    await site.later_for(100_000)
    assert ((await site.get(task)).attempts, site.count()) == (0, 1)
    site.receiver.release()
    view = await site.until_state(task, "succeeded", step_ms=100)
    assert (view.attempts, site.count()) == (1, 1)


async def test_a_push_in_progress_keeps_its_lease_however_little_its_endpoint_asks_for(site):
    site.receiver.behave["hook"] = "hang"
    await site.subscribe(timeout_ms=300_000)
    await site.send()
    await site.receiver.arrived(1)
    await site.push.acks.extend(site.token(), 1_000)
    await site.later_for(100_000)
    assert site.in_flight() == 1
    site.receiver.release()
    await site.until(lambda: site.in_flight() == 0)
    assert site.count() == 1


@pytest.mark.parametrize("invisible_ms", [-1, 0, 12 * HOUR_MS + 1])
@pytest.mark.parametrize("kind", ["task", "message"])
async def test_an_extension_out_of_range_is_refused(site, kind, invisible_ms):
    site.receiver.behave["hook"] = later("60")
    if kind == "task":
        await site.create()
        token = await site.task_taken()
    else:
        await site.subscribe()
        await site.send()
        token = await site.taken()
    with pytest.raises(GroupFieldError):
        await site.push.acks.extend(token, invisible_ms)
    await site.push.acks.acknowledge(token)


async def test_what_comes_too_late_of_an_attempt_is_not_shown_of_the_next(site):
    site.receiver.behave["hook"] = later("60")
    task = await site.create()
    first = await site.task_taken()
    await site.push.acks.give_back(first, 1_000, "no stock")
    await site.world.advance(1_000)
    await site.task_taken(2)
    with pytest.raises(AckEndedError):
        await site.push.acks.give_back(first, 1_000, "too late")
    assert (await site.get(task)).last_error == "no stock"


@pytest.mark.parametrize("status", [200, 410, 500])
async def test_a_task_that_is_acknowledged_before_its_answer_is_counted_once(site, status):
    site.receiver.behave["hook"] = "hang"
    task = await site.create(max_attempts=1)
    await site.receiver.arrived(1)
    await site.push.acks.acknowledge(site.token())
    counters = site.world.engine.counters
    site.receiver.answer_hanging(status, {})
    await site.until(lambda: not site.tasks.get_queue("default").running)
    assert sum(counters.task_calls.values()) == 1
    assert counters.task_ends == {"succeeded": 1, "failed": 0, "cancelled": 0}
    assert (await site.get(task)).state == "succeeded"


# ---------------------------------------------------------------------- cancelling


async def test_a_cancelled_task_says_how_many_attempts_were_over_when_it_ended(site):
    site.receiver.behave["hook"] = "hang"
    task = await site.create()
    await site.receiver.arrived(1)
    threads = gated(site.world)
    threads.writes.clear()
    site.receiver.answer_hanging(500, {})
    counters = site.world.engine.counters
    await site.until(lambda: counters.task_calls["failed"] == 1)
    cancelling = asyncio.create_task(site.tasks.cancel(task))  # while the failure is being stored
    await spin()
    threads.writes.set()
    assert ((await cancelling).state, (await site.get(task)).attempts) == ("cancelled", 1)


async def test_a_task_cancelled_in_its_lane_says_how_many_attempts_it_had(site):
    await site.tasks.put_queue("one", TaskQueueOptions(concurrency=1))
    site.receiver.behave |= {"twice": 500, "first": "hang"}
    twice = await site.create("twice", queue="one")
    await site.until_state(twice, "retrying", step_ms=10)
    await site.create("first", queue="one")
    await site.receiver.arrived(1, "first")
    await site.world.advance(2_000)
    await site.until(lambda: site.world.engine.groups.info("%TASK%one", "tasks").in_flight == 2)
    view = await site.tasks.cancel(twice)
    assert (view.state, view.attempts, site.count("twice")) == ("cancelled", 1, 1)


# ---------------------------------------------------------------------- limits


async def test_a_raised_rate_limit_counts_at_once(site):
    await site.tasks.put_queue("slow", TaskQueueOptions(rate_limit=0.001))
    first, second = await site.create(queue="slow"), await site.create(queue="slow")
    await site.until_state(first, "succeeded")
    await site.world.advance(1_000)
    await site.tasks.put_queue("slow", TaskQueueOptions(rate_limit=None))
    await site.until_state(second, "succeeded")
    assert site.world.clock.now_ms()  # no time had to pass


async def test_of_hosts_that_failed_the_last_ones_are_remembered(site, monkeypatch):
    monkeypatch.setattr(running, "HOSTS_REMEMBERED_MAX", 3)
    await _fail_at(site, range(2, 8))
    assert site.tasks.get_queue("default").failing_hosts == ["127.0.0.5:1", "127.0.0.6:1", "127.0.0.7:1"]


async def test_what_is_shown_of_failing_hosts_is_bounded(site, monkeypatch):
    monkeypatch.setattr(running, "FAILING_HOSTS_SHOWN_MAX", 2)
    await _fail_at(site, range(2, 6))
    assert site.tasks.get_queue("default").failing_hosts == ["127.0.0.2:1", "127.0.0.3:1"]


async def _fail_at(site, hosts):
    for at in hosts:
        for _ in range(5):
            task = await site.create(url=f"http://127.0.0.{at}:1/refused", max_attempts=1)
            await site.until_state(task, "failed", step_ms=1_000)


# ---------------------------------------------------------------------- what belongs to the service


@pytest.mark.parametrize("field", ["url", "callback", "failure_callback"])
async def test_an_empty_url_is_refused(site, field):
    with pytest.raises(IllegalTaskUrlError, match=field):
        await site.create(**{field: ""})


@pytest.mark.parametrize(
    "config", [GroupConfig(tags="x"), GroupConfig(max_attempts=1), GroupConfig(kind="offsets")]
)
async def test_nobody_else_makes_or_changes_the_group_that_makes_the_calls(site, config):
    for topic in (TOPIC, "%TASK%new"):
        with pytest.raises(Exception, match="makes the calls") as caught:
            await site.world.engine.groups.put(topic, "tasks", config)
        assert caught.value.code == "group_in_use"
    with pytest.raises(Exception, match="makes the calls"):
        await site.world.engine.groups.receive("%TASK%new", "tasks", terms=GroupTerms(create=True))
    with pytest.raises(Exception, match="makes the calls"):
        await site.push.create(Draft(topic=TOPIC, group="tasks", url=site.receiver.url()))
    await site.until_state(await site.create(), "succeeded")


async def test_a_group_of_another_kind_is_made_again_at_the_start(site):
    await site.tasks.put_queue("mail", TaskQueueOptions(paused=True))
    task = await site.create(queue="mail")
    await site.push.close()
    groups = site.world.engine.groups
    await groups.delete("%TASK%mail", "tasks")
    await groups.put_own("%TASK%mail", "tasks", GroupConfig(kind="offsets"))
    await site.world.restart()
    await site.start()
    await site.tasks.put_queue("mail", TaskQueueOptions(paused=False))
    await site.until_state(task, "succeeded")


@pytest.mark.parametrize(
    ("limits", "code"), [({"disk_reserve_bytes": 1 << 50}, "disk_reserve"), ({"topics_max": 1}, "refused")]
)
async def test_a_task_that_is_refused_makes_no_queue(site, limits, code):
    await site.send()  # the one topic
    await site.push.close()
    await site.world.restart(**limits)
    await site.start()
    with pytest.raises(TimerwheelError) as caught:
        await site.create()
    assert caught.value.code == code
    assert site.tasks.queue_names() == []


async def test_a_task_with_cron_whose_schedule_is_refused_makes_no_queue(site, monkeypatch):
    monkeypatch.setattr(scheduler, "SCHEDULES_MAX", 0)
    spec = ScheduleSpec(topic="%TASK%mail", recurrence=Recurrence(cron="0 9 * * *", zone="UTC"))
    with pytest.raises(TooManySchedulesError):
        await site.tasks.schedule("mail", Task(url=site.receiver.url("hook")), None, spec, lambda _: True)
    assert site.tasks.queue_names() == []


async def test_a_task_with_cron_whose_topic_has_no_room_makes_no_queue(site):
    await site.send()  # the one topic
    await site.push.close()
    await site.world.restart(topics_max=1)
    await site.start()
    spec = ScheduleSpec(topic="%TASK%mail", recurrence=Recurrence(cron="0 9 * * *", zone="UTC"))
    with pytest.raises(RefusedError) as caught:
        await site.tasks.schedule("mail", Task(url=site.receiver.url("hook")), None, spec, lambda _: True)
    assert [fault.code for fault in caught.value.faults] == ["too_many_topics"]
    assert (site.tasks.queue_names(), site.world.engine.schedules.names()) == ([], [])


# ---------------------------------------------------------------------- what has ended


async def test_nothing_more_can_be_done_to_a_task_that_was_cancelled_before_its_time(site):
    task = await site.create(delay_ms=HOUR_MS)
    await site.tasks.cancel(task)
    for change in (
        site.tasks.cancel(task),
        site.tasks.run(task),
        site.tasks.reschedule(task, {"TIMER_DELAY_MS": "1"}),
    ):
        with pytest.raises(TaskStateError, match="cancelled"):
            await change


# ---------------------------------------------------------------------- races


async def test_tasks_that_are_created_while_their_queue_is_deleted_are_refused_or_kept(site):
    for turns in range(20):
        made = [asyncio.create_task(site.create(queue="gone", delay_ms=HOUR_MS)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        deletion = asyncio.create_task(site.world.engine.topic_deletions.delete("%TASK%gone"))
        results = await asyncio.gather(*made, deletion, return_exceptions=True)
        errors = [one for one in results if isinstance(one, Exception)]
        assert {getattr(one, "code", repr(one)) for one in errors} <= {"topic_ending", "unknown_topic"}
        for _ in range(5):
            await site.world.advance(100)


async def test_a_purge_ends_what_is_held_and_running_calls_end_without_an_outcome(site):
    site.receiver.behave["hang"] = "hang"
    running_one = await site.create("hang")
    await site.receiver.arrived(1, "hang")
    taken = await site.create("later")
    site.receiver.behave["later"] = later("3600")
    await site.world.engine.topic_purges.purge(TOPIC, scheduled=True, delivered=True)
    site.receiver.release()
    await site.until(lambda: site.tasks.get_queue("default").running == 0, step_ms=100)
    for task in (running_one, taken):
        with pytest.raises(UnknownTaskError):
            await site.get(task)
    after = await site.create()
    await site.until_state(after, "succeeded")


async def test_a_purge_lets_go_of_tasks_that_wait_for_their_acknowledgement(site, monkeypatch):
    monkeypatch.setattr(running, "HELD_MAX", 1)
    site.receiver.behave["later"] = later("3600")
    await site.create("later")
    await site.until(lambda: site.world.engine.counters.task_calls["delivered"] == 1, step_ms=10)
    assert site.tasks.get_queue("default").running == 1
    await site.world.engine.topic_purges.purge(TOPIC, scheduled=True, delivered=True)
    assert site.tasks.get_queue("default").running == 0
    await site.until_state(await site.create(), "succeeded")


async def test_a_purge_lets_go_of_tasks_that_wait_for_their_host(site, monkeypatch):
    monkeypatch.setattr(running, "HELD_MAX", 2)
    await site.tasks.put_queue("default", TaskQueueOptions(host_concurrency=1))
    site.receiver.behave["hang"] = "hang"
    for _ in range(3):
        await site.create("hang")
    await site.until(lambda: site.world.engine.groups.info(TOPIC, "tasks").in_flight == 3)
    await site.world.engine.topic_purges.purge(TOPIC, scheduled=True, delivered=True)
    await site.until_state(await site.create(url=site.receiver.url("other", 2)), "succeeded")
    site.receiver.release()
    await site.until_state(await site.create(), "succeeded")
    assert site.count("hang") == 1


async def test_a_task_whose_cancellation_could_not_be_stored_is_called_all_the_same(site):
    groups, files = site.world.engine.groups, site.world.files
    await site.tasks.put_queue("one", TaskQueueOptions(host_concurrency=1))
    site.receiver.behave["first"] = "hang"
    first = await site.create("first", queue="one")
    await site.receiver.arrived(1, "first")
    second = await site.create("second", queue="one")
    await site.until(lambda: groups.info("%TASK%one", "tasks").in_flight == 2)
    await site.tasks.put_queue("one", TaskQueueOptions(paused=True))
    site.receiver.release()
    await site.until_state(first, "succeeded")
    await site.until(lambda: groups.info("%TASK%one", "tasks").in_flight == 0)
    space, files.space_bytes = files.space_bytes, 0
    with pytest.raises(NoSpaceError):
        await site.tasks.cancel(second)
    files.space_bytes = space
    await site.tasks.put_queue("one", TaskQueueOptions(paused=False))
    await site.until_state(second, "succeeded")


async def test_a_task_that_is_taken_while_the_service_stops_is_waited_for_by_the_next_run_alone(site, caplog):
    site.receiver.behave["hook"] = "hang"
    task = await site.create(timeout_ms=60_000)
    await site.receiver.arrived(1)
    closing = asyncio.create_task(site.push.close(grace_ms=10_000))
    await asyncio.sleep(0)
    site.receiver.answer_hanging(*later("60"))
    await closing
    await site.world.restart()
    await site.later_for(120_000)  # nobody waits for it in this run, which has no tasks
    assert "cannot store an outcome" not in caplog.text
    site.receiver.behave["hook"] = 200
    await site.start()
    view = await site.until_state(task, "succeeded", step_ms=1_000)
    assert (view.attempts, site.count()) == (2, 2)


async def test_a_queue_that_could_not_start_keeps_its_limits_and_its_secret(site, caplog):
    world = site.world
    await site.tasks.put_queue("mail", TaskQueueOptions(rate_limit=5, secret=SECRET))
    await site.push.close()
    await world.engine.groups.delete("%TASK%mail", "tasks")  # as if it had not been stored yet
    space, world.files.space_bytes = world.files.space_bytes, 0
    await site.start()
    assert "task queue mail cannot start, so its tasks wait" in caplog.text
    world.files.space_bytes = space
    task = await site.create(queue="mail", body=b"{}")
    await site.until_state(task, "succeeded", step_ms=100)  # after a start its limit is used up for a second
    assert site.tasks.get_queue("mail").rate_limit == 5
    with pytest.raises(RotationError):  # it has a secret, which is not another
        await site.tasks.put_queue("mail", TaskQueueOptions(secret=SECRET))
    assert site.tasks.get_queue("mail").secrets_valid == 1


async def test_a_queue_that_could_not_start_begins_when_there_is_room_again(site):
    world = site.world
    task = await site.create(queue="mail", delay_ms=60_000)
    await site.push.close()
    await world.engine.groups.delete("%TASK%mail", "tasks")  # as if it had not been stored yet
    space, world.files.space_bytes = world.files.space_bytes, 0
    await site.start()
    await world.advance(3_000)
    assert site.tasks.queue_names() == []
    world.files.space_bytes = space
    await site.until(lambda: site.tasks.queue_names() == ["mail"], step_ms=100)
    await world.advance(60_000)
    await site.until_state(task, "succeeded")


async def test_a_queue_that_waits_for_room_keeps_no_stop_waiting(site):
    world = site.world
    await site.create(queue="mail")
    await site.push.close()
    await world.engine.groups.delete("%TASK%mail", "tasks")
    space, world.files.space_bytes = world.files.space_bytes, 0
    await site.start()
    assert site.tasks.queue_names() == []  # it waits
    async with asyncio.timeout(20):  # only keeps a failure from hanging
        await site.push.close()
    assert site.tasks.queue_names() == []
    world.files.space_bytes = space


async def test_a_step_of_the_clock_makes_no_second_attempt_of_what_cannot_be_acknowledged_yet(site):
    site.receiver.behave["hook"] = "hang"
    await site.subscribe()
    await site.send()
    await site.receiver.arrived(1)
    space, site.world.files.space_bytes = site.world.files.space_bytes, 0
    site.receiver.release()
    await site.until(lambda: site.push.stats("s").last_error is not None)
    await site.world.step(HOUR_MS)
    await site.world.advance(1_000)
    site.world.files.space_bytes = space
    await site.until(lambda: site.in_flight() == 0, step_ms=500)
    info = site.world.engine.groups.info("orders", "push-s")
    assert (info.waiting, info.ready, site.count()) == (0, 0, 1)


# ---------------------------------------------------------------------- lists


async def test_a_page_that_finds_nothing_looks_at_the_wheel_a_few_times_however_small_it_is(site):
    looks = site.world.engine.core.threads.calls
    waiting = [await site.create(delay_ms=HOUR_MS + at) for at in range(30)]
    before = looks["_pending_entries"]
    assert (await site.tasks.page("default", lambda _: False, 1)).tasks == []
    assert looks["_pending_entries"] == before + 2

    def is_even(task):
        return task.id in waiting[::2]

    found, cursor = [], None
    while True:
        page = await site.tasks.page("default", is_even, 4, cursor, state="scheduled")
        found += [task.id for task in page.tasks]
        assert len(page.tasks) <= 4
        cursor = page.cursor
        if cursor is None:
            break
    assert found == waiting[::2]


async def test_a_page_of_one_state_looks_at_no_tasks_of_others(site, monkeypatch):
    monkeypatch.setattr(listing, "LOOKED_AT_MAX", 3)
    site.receiver.behave["bad"] = 500
    failed = await site.create("bad", max_attempts=1)
    await site.until_state(failed, "failed")
    waiting = [await site.create(delay_ms=HOUR_MS + at) for at in range(10)]
    page = await site.tasks.page("default", lambda _: True, 10, state="failed")
    assert ([task.id for task in page.tasks], page.cursor) == ([failed], None)
    found, cursor = [], None
    while True:
        page = await site.tasks.page("default", lambda _: True, 10, cursor, state="scheduled")
        found += [task.id for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == waiting
