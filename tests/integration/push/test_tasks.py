"""One-call tasks with the real engine and a real receiver."""

import asyncio
import base64
import datetime as dt
import json

import pytest
from standardwebhooks import Webhook

from tests.harness.tasking import Tasking
from timerwheel.errors import IllegalCursorError, RefusedError
from timerwheel.groups.config import Exponential, TaskGroupError
from timerwheel.push.push import Push
from timerwheel.push.subscription import SubscriptionError
from timerwheel.push.tasks.task import IllegalTaskQueueError, IllegalTaskUrlError, TaskError
from timerwheel.push.tasks.task_queue import TaskQueueOptions
from timerwheel.push.tasks.tasks import TaskStateError, UnknownTaskError


async def test_a_task_is_called_when_it_is_due_and_not_before(site):
    task = await site.create(body=b'{"order": 7}', delay_ms=1_800_000)
    assert (await site.get(task)).state == "scheduled"
    await site.world.advance(1_799_999)
    assert site.receiver.got == []
    done = await site.until_state(task, "succeeded", step_ms=1)
    assert site.receiver.bodies() == [b'{"order": 7}']
    assert (done.attempts, done.last_status, done.last_error) == (1, 200, None)
    assert done.finished_ms >= done.due_ms


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"])
async def test_each_method_is_called_with_its_headers(site, method):
    body = b"" if method in {"GET", "HEAD"} else b"x"
    task = await site.create(body=body, method=method, headers={"Authorization": "Bearer s3cret"})
    view = await site.until_state(task, "succeeded")
    (got,) = site.receiver.got
    assert (got.method, got.body, got.headers["Authorization"]) == (method, body, "Bearer s3cret")
    assert got.headers["timerwheel-queue"] == "default"
    assert view.header_names == ["Authorization"]
    assert b"s3cret" not in (await site.world.engine.messages.get(task)).body
    assert "s3cret" not in str((await site.world.engine.messages.get(task)).properties)


async def test_every_call_of_every_attempt_is_a_standard_webhook(site):
    made, is_new = await site.tasks.put_queue("mail", TaskQueueOptions())
    assert is_new
    site.world.clock.step(int(dt.datetime.now(dt.UTC).timestamp() * 1000) - site.world.clock.now_ms())
    site.receiver.behave["hook"] = [500, 200]
    task = await site.create(queue="mail", body=b'{"n": 1}', callback=site.receiver.url("told"))
    await site.until(lambda: site.count("told") == 1, step_ms=100)
    assert site.count() == 2
    for got in site.receiver.got:
        assert Webhook(made.secret).verify(got.body, dict(got.headers))
    assert {got.headers["webhook-id"] for got in site.receiver.got if got.path == "hook"} == {task}


async def test_while_a_secret_is_rotated_both_verify(site):
    made, _ = await site.tasks.put_queue("mail", TaskQueueOptions())
    site.world.clock.step(int(dt.datetime.now(dt.UTC).timestamp() * 1000) - site.world.clock.now_ms())
    second = await site.tasks.rotate_secret("mail")
    await site.create(queue="mail", body=b"{}")
    await site.receiver.arrived(1)
    for secret in (made.secret, second.secret):
        Webhook(secret).verify(site.receiver.got[0].body, dict(site.receiver.got[0].headers))
    await site.tasks.finish_rotation("mail")
    assert site.tasks.get_queue("mail").secrets_valid == 1


async def test_a_failed_call_is_repeated_after_the_backoff(site):
    site.receiver.behave["hook"] = [500, 503, 200]
    task = await site.create()
    view = await site.until_state(task, "retrying")
    assert (view.attempts, view.last_status, view.last_error) == (1, 500, "HTTP 500")
    assert view.next_attempt_ms == site.world.clock.now_ms() + 1_000
    view = await site.until_state(task, "succeeded", step_ms=100)
    assert (view.attempts, site.count()) == (3, 3)


async def test_retry_after_is_kept(site):
    site.receiver.behave["hook"] = [(429, {"Retry-After": "30"}), 200]
    task = await site.create()
    view = await site.until_state(task, "retrying")
    assert view.next_attempt_ms == site.world.clock.now_ms() + 30_000
    await site.world.advance(29_999)
    assert site.count() == 1
    await site.until_state(task, "succeeded", step_ms=1)


async def test_after_its_last_attempt_a_task_has_failed(site):
    site.receiver.behave["hook"] = 503
    task = await site.create(max_attempts=2, failure_callback=site.receiver.url("told"))
    view = await site.until_state(task, "failed", step_ms=100)
    assert (view.attempts, view.last_status, view.last_error, site.count()) == (2, 503, "HTTP 503", 2)
    await site.receiver.arrived(1, "told")
    told = json.loads(site.receiver.bodies("told")[0])
    assert (told["id"], told["type"], told["status"]) == (task, "timerwheel.task.failed", 503)
    assert base64.b64decode(told["body_base64"]) == b"answer"
    await site.world.advance(3_600_000)
    assert site.count() == 2


async def test_410_ends_a_task_at_once(site):
    site.receiver.behave["hook"] = 410
    task = await site.create()
    assert (await site.until_state(task, "failed")).attempts == 1
    assert site.tasks.get_queue("default").failing_hosts == []


async def test_a_call_that_is_never_answered_fails_after_its_time(site):
    site.receiver.behave["hook"] = "hang"
    task = await site.create(timeout_ms=1_000, max_attempts=1)
    await site.receiver.arrived(1)
    assert (await site.get(task)).state == "running"
    view = await site.until_state(task, "failed", step_ms=250)
    assert (view.last_status, view.last_error) == (None, "no complete response within 1000 ms")


async def test_a_callback_is_told_the_answer_and_is_a_task_itself(site):
    site.receiver.behave["hook"] = (201, {"X-Result": "7", "Set-Cookie": "session=1"})
    site.receiver.behave["told"] = [500, 200]
    task = await site.create(callback=site.receiver.url("told"))
    await site.until(lambda: site.count("told") == 2, step_ms=100)
    told = json.loads(site.receiver.bodies("told")[1])
    assert (told["id"], told["status"], told["attempts"]) == (task, 201, 1)
    assert told["headers"]["x-result"] == "7"
    assert "set-cookie" not in told["headers"]
    page = await site.tasks.page("default", lambda one: one.reports == task, 10)
    assert [one.url for one in page.tasks] == [site.receiver.url("told")]


async def test_a_cancelled_task_is_never_called(site):
    scheduled = await site.create(delay_ms=60_000)
    site.receiver.behave["hook"] = 500
    waits = await site.create()
    await site.until_state(waits, "retrying")
    for task in (scheduled, waits):
        assert (await site.tasks.cancel(task)).state == "cancelled"
    await site.world.advance(3_600_000)
    assert site.count() == 1
    with pytest.raises(TaskStateError):
        await site.tasks.cancel(waits)


async def test_a_task_that_waits_for_its_queue_can_be_cancelled(site):
    await site.tasks.put_queue("slow", TaskQueueOptions(concurrency=1))
    site.receiver.behave["first"] = "hang"
    first = await site.create("first", queue="slow")
    await site.receiver.arrived(1, "first")
    second = await site.create("second", queue="slow")
    await site.tasks.put_queue("off", TaskQueueOptions(paused=True))
    third = await site.create("third", queue="off")
    with pytest.raises(TaskStateError, match="running"):
        await site.tasks.cancel(first)
    for task in (second, third):
        assert (await site.get(task)).state == "ready"
        assert (await site.tasks.cancel(task)).state == "cancelled"
    await site.tasks.put_queue("off", TaskQueueOptions(paused=False))
    site.receiver.release()
    await site.until_state(first, "succeeded")
    assert {got.path for got in site.receiver.got} == {"first"}


async def test_a_task_can_be_given_another_time_and_be_run_now(site):
    task = await site.create(delay_ms=60_000)
    moved = await site.tasks.reschedule(task, {"TIMER_DELAY_MS": "120000"})
    assert moved.due_ms == site.world.clock.now_ms() + 120_000
    await site.tasks.run(task)
    await site.until_state(task, "succeeded")
    site.receiver.behave["bad"] = [500, 200]
    waits = await site.create("bad", backoff=Exponential(3_600_000, 1.0, 3_600_000))
    await site.until_state(waits, "retrying")
    await site.tasks.run(waits)
    await site.until_state(waits, "succeeded", step_ms=1)
    with pytest.raises(TaskStateError):
        await site.tasks.run(task)


async def test_the_same_key_makes_one_task_and_another_call_under_it_is_refused(site):
    first = await site.create(dedup_key="k", delay_ms=1_000)
    assert await site.create(dedup_key="k", delay_ms=1_000) == first
    with pytest.raises(RefusedError):
        await site.create("other", dedup_key="k", delay_ms=1_000)


async def test_a_hundred_dead_hosts_do_not_slow_a_healthy_one(site):
    site.receiver.behave["dead"] = "hang"
    urls = [site.receiver.url("dead", at) for at in range(2, 52)]
    ports = [f"http://127.0.0.{at}:1/refused" for at in range(2, 52)]
    for _ in range(10):
        for url in urls + ports:
            await site.create(url=url)
    good = [await site.create() for _ in range(100)]
    for task in good:
        await site.until_state(task, "succeeded")
    assert site.count() == 100


async def test_failing_hosts_have_at_most_half_of_a_limited_queue(site):
    await site.tasks.put_queue("small", TaskQueueOptions(concurrency=4))
    refused = [f"http://127.0.0.{at}:1/refused" for at in range(2, 12)]
    hang = [site.receiver.url("dead", at) for at in range(2, 12)]
    site.receiver.behave["dead"] = "hang"
    for url in refused:
        await site.create(url=url, queue="small")
    for url in hang:
        await site.create(url=url, queue="small", timeout_ms=1_000)
    await site.until(lambda: site.receiver.under_way["dead"] >= 2)
    good = [await site.create(queue="small") for _ in range(10)]
    for task in good:
        await site.until_state(task, "succeeded", step_ms=100)


async def test_a_queue_begins_no_more_calls_in_a_second_than_its_limit(site):
    await site.tasks.put_queue("slow", TaskQueueOptions(rate_limit=5))
    for at in range(20):
        await site.create(url=site.receiver.url("p", 2 + at % 4), queue="slow")
    begun: list[int] = []
    for _ in range(400):
        for _ in range(50):
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        begun += [site.world.clock.now_ms()] * (len(site.receiver.got) - len(begun))
        if len(begun) == 20:
            break
        await site.world.advance(50)
    assert len(begun) == 20
    assert all(later - first >= 950 for first, later in zip(begun, begun[5:], strict=False))


async def test_no_more_calls_run_at_once_than_a_queue_allows(site):
    await site.tasks.put_queue("one", TaskQueueOptions(concurrency=1))
    tasks = [await site.create(url=site.receiver.url("hook", 2 + at % 5), queue="one") for at in range(20)]
    for task in tasks:
        await site.until_state(task, "succeeded")
    assert site.receiver.most_under_way["hook"] == 1


async def test_after_a_crash_tasks_go_on_and_what_succeeded_is_not_called_again(site):
    site.receiver.behave["hang"] = "hang"
    done = await site.create("done")
    await site.until_state(done, "succeeded")
    under_way = await site.create("hang", max_attempts=2)
    later = await site.create("later", delay_ms=60_000)
    await site.receiver.arrived(1, "hang")
    await site.crash()
    site.receiver.behave.clear()
    assert (await site.get(done)).state == "succeeded"
    await site.until_state(under_way, "succeeded")
    await site.until_state(later, "succeeded", step_ms=1_000)
    assert (site.count("done"), site.count("hang"), site.count("later")) == (1, 2, 1)


async def test_an_outcome_is_found_though_the_clock_was_stepped_back(site):
    site.receiver.behave["hook"] = [500, 200]
    task = await site.create(backoff=Exponential(7_200_000, 1.0, 7_200_000))
    await site.until_state(task, "retrying")
    await site.world.step(-3_600_000)
    await site.tasks.run(task)
    view = await site.until_state(task, "succeeded", step_ms=1)
    assert view.finished_ms < view.due_ms
    assert (await site.tasks.page("default", lambda _: True, 10)).tasks == [view]


async def test_the_group_that_makes_the_calls_cannot_be_deleted(site):
    await site.until_state(await site.create(), "succeeded")
    with pytest.raises(TaskGroupError):
        await site.push.delete_group("%TASK%default", "tasks")


async def test_a_paused_queue_calls_nothing_until_it_goes_on(site):
    await site.tasks.put_queue("mail", TaskQueueOptions(paused=True))
    task = await site.create(queue="mail")
    await site.world.advance(60_000)
    assert (await site.get(task)).state == "ready"
    assert site.tasks.get_queue("mail").paused
    await site.tasks.put_queue("mail", TaskQueueOptions(paused=False))
    await site.until_state(task, "succeeded")


async def test_tasks_outlive_the_index(site):
    done = await site.create("done")
    waits = await site.create("waits", delay_ms=60_000)
    await site.until_state(done, "succeeded")
    await site.push.close()
    await site.world.lose_index()
    await site.start()
    assert (await site.get(done)).state == "succeeded"
    await site.until_state(waits, "succeeded", step_ms=1_000)


async def test_a_page_has_what_waits_then_what_is_newest(site):
    done = [await site.create(f"p{at}") for at in range(5)]
    for task in done:
        await site.until_state(task, "succeeded")
    waits = [await site.create("later", delay_ms=1_000 * (at + 1)) for at in range(5)]
    found: list[str] = []
    cursor = None
    while True:
        page = await site.tasks.page("default", lambda _: True, 3, cursor)
        found += [one.id for one in page.tasks]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == waits + done[::-1]
    page = await site.tasks.page("default", lambda one: one.state == "succeeded", 100)
    assert [one.id for one in page.tasks] == done[::-1]
    assert (await site.tasks.page("empty", lambda _: True, 10)).tasks == []
    for cursor in ("x", "d.x", "s.x"):
        with pytest.raises(IllegalCursorError):
            await site.tasks.page("default", lambda _: True, 3, cursor)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"url": "ftp://example.com/"}, IllegalTaskUrlError),
        ({"callback": "http://u:p@example.com/"}, IllegalTaskUrlError),
        ({"headers": {"Host": "x"}}, SubscriptionError),
        ({"headers": {"Transfer-Encoding": "x"}}, SubscriptionError),
        ({"headers": {"webhook-id": "x"}}, SubscriptionError),
        ({"headers": {f"h{at}": "v" * 4_096 for at in range(3)}}, TaskError),
        ({"timeout_ms": 1}, SubscriptionError),
        ({"max_attempts": 101}, SubscriptionError),
        ({"method": "GET", "body": b"x"}, TaskError),
        ({"queue": "a b"}, IllegalTaskQueueError),
        ({"body": b"x" * (5 << 20)}, RefusedError),
    ],
)
async def test_nothing_is_stored_of_a_wrong_task(site, fields, error):
    before = site.world.engine.core.log.tail
    with pytest.raises(error):
        await site.create(**fields)
    assert site.world.engine.core.log.tail == before


async def test_a_private_address_is_refused_unless_allowed(world, receiver):
    await world.open()
    site = Tasking(world, receiver)
    site.push = Push(world.engine)
    await site.push.start()
    try:
        with pytest.raises(IllegalTaskUrlError, match="not a public address"):
            await site.create()
        with pytest.raises(IllegalTaskUrlError, match="failure_callback"):
            await site.create(url="https://example.com/", failure_callback=receiver.url())
    finally:
        await site.push.close()


async def test_a_message_that_is_no_task_is_not_one(site):
    (message,) = await site.world.send_ids(1_000)
    with pytest.raises(UnknownTaskError):
        await site.get(message)
    with pytest.raises(UnknownTaskError):
        await site.get("0" * 24)


REDIRECT = (302, {"Location": "/elsewhere"})
# What a receiver does, and what comes of it: state, status, words of the reason, and when it is called again.
WRONG_ANSWERS = {
    "an error": (500, "retrying", 500, "HTTP 500", 1_000),
    "too many requests": ((429, {"Retry-After": "30"}), "retrying", 429, "HTTP 429", 30_000),
    "unavailable, with Retry-After": ((503, {"Retry-After": "5"}), "retrying", 503, "HTTP 503", 5_000),
    "gone": (410, "failed", 410, "HTTP 410", None),
    "not found": (404, "retrying", 404, "HTTP 404", 1_000),
    "a redirect": (REDIRECT, "retrying", 302, "HTTP 302", 1_000),
    "a reset": ("reset", "retrying", None, "closed the connection", 1_000),
    "no HTTP": ("garbage", "retrying", None, "not a valid HTTP response", 1_000),
    "no answer": ("hang", "retrying", None, "no complete response within 2000 ms", 1_000),
    "an answer without an end": ("trickle", "retrying", None, "no complete response within 2000 ms", 1_000),
}


@pytest.mark.parametrize("case", WRONG_ANSWERS)
async def test_what_a_wrong_answer_means(site, case):
    does, state, status, words, again_ms = WRONG_ANSWERS[case]
    site.receiver.behave["hook"] = does
    task = await site.create(max_attempts=3, timeout_ms=2_000)
    await site.receiver.arrived(1)
    view = await site.until_state(task, state, step_ms=0 if isinstance(does, (int, tuple)) else 100)
    assert (view.attempts, view.last_status) == (1, status)
    assert words in view.last_error
    if again_ms is None:
        return
    site.receiver.behave["hook"] = 200
    left_ms = view.next_attempt_ms - site.world.clock.now_ms()
    assert again_ms - 100 <= left_ms <= again_ms
    await site.world.advance(left_ms - 1)
    assert site.count() == 1
    assert (await site.until_state(task, "succeeded", step_ms=1)).attempts == 2
    assert site.count("elsewhere") == 0
