"""Receivers that answer with `timerwheel-ack: later` and acknowledge by URL: real engine, real receiver."""

import json

import pytest

from tests.harness.counted_dict import CountedDict
from tests.harness.tasking import LATER, later
from timerwheel.errors import AdmissionError
from timerwheel.groups.config import Exponential, GroupFieldError
from timerwheel.push import dispatcher as dispatching
from timerwheel.push.ack_urls import ACK_URL_HEADER
from timerwheel.push.acks import AckEndedError, UnknownAckError
from timerwheel.push.push import Push
from timerwheel.push.tasks.task_queue import TaskQueueOptions

PUSH_LEASE_MS = 30_000
TASK_MS = 30_000


@pytest.fixture(autouse=True)
def acknowledges_later(receiver):
    receiver.behave["hook"] = LATER


# ---------------------------------------------------------------------- subscriptions


async def test_a_message_that_is_acknowledged_by_its_url_does_not_come_again(site):
    await site.subscribe()
    await site.send()
    token = await site.taken()
    assert site.in_flight() == 1
    await site.push.acks.acknowledge(token)
    assert site.in_flight() == 0
    await site.later_for(600_000)
    assert site.count() == 1


async def test_a_repeated_acknowledgement_is_fine_and_nothing_else_follows_one(site):
    await site.subscribe()
    await site.send()
    token = await site.taken()
    await site.push.acks.acknowledge(token)
    await site.push.acks.acknowledge(token)
    with pytest.raises(AckEndedError):
        await site.push.acks.give_back(token, None, None)
    with pytest.raises(AckEndedError):
        await site.push.acks.extend(token, 1_000)


async def test_a_message_that_nobody_acknowledges_comes_again_when_its_lease_has_ended(site):
    await site.subscribe()
    await site.send()
    first = await site.taken()
    await site.world.advance(PUSH_LEASE_MS - 100)
    assert site.count() == 1
    await site.until(lambda: site.count() == 2, step_ms=500)
    assert [got.headers["timerwheel-attempt"] for got in site.receiver.got] == ["1", "2"]
    with pytest.raises(AckEndedError):
        await site.push.acks.acknowledge(first)
    await site.push.acks.acknowledge(await site.taken(2))
    assert site.in_flight() == 0


async def test_a_message_that_is_given_back_comes_again_after_the_delay(site):
    await site.subscribe()
    await site.send()
    token = await site.taken()
    await site.push.acks.give_back(token, 5_000, "no stock")
    await site.world.advance(4_999)
    assert site.count() == 1
    await site.until(lambda: site.count() == 2, step_ms=1)
    with pytest.raises(AckEndedError):
        await site.push.acks.acknowledge(token)


async def test_the_answer_asks_for_longer_and_a_call_for_longer_still(site, receiver):
    receiver.behave["hook"] = later("120")
    await site.subscribe()
    await site.send()
    token = await site.taken()
    await site.later_for(119_000)
    assert site.count() == 1
    until_ms = await site.push.acks.extend(token, 500_000)
    assert until_ms == site.world.clock.now_ms() + 500_000
    await site.later_for(499_000)
    assert site.count() == 1
    await site.push.acks.acknowledge(token)


async def test_an_illegal_extension_or_delay_changes_nothing(site):
    await site.subscribe()
    await site.send()
    token = await site.taken()
    with pytest.raises(GroupFieldError):
        await site.push.acks.extend(token, 13 * 3_600_000)
    with pytest.raises(AdmissionError):
        await site.push.acks.give_back(token, 10**15, None)
    await site.push.acks.acknowledge(token)


async def test_a_forged_token_is_unknown(site):
    await site.subscribe()
    await site.send(*[b"x"] * 2)
    await site.taken(2)
    one, other = site.token(-1), site.token(-2)
    mixed = one[:60] + other[60:]
    for forged in ("", "x", one[:-1], one + "A", mixed, one.swapcase(), "é" * 99, "A" * 2_000):
        with pytest.raises(UnknownAckError):
            await site.push.acks.acknowledge(forged)
    assert site.in_flight() == 2


async def test_a_plain_202_acknowledges_as_ever(site, receiver):
    receiver.behave["hook"] = 202
    await site.subscribe()
    await site.send()
    await site.taken()
    await site.until(lambda: site.in_flight() == 0)


async def test_the_token_of_a_group_that_was_deleted_has_ended(site):
    await site.subscribe()
    await site.send()
    token = await site.taken()
    await site.push.delete("s")
    with pytest.raises(AckEndedError):
        await site.push.acks.acknowledge(token)


async def test_messages_acknowledged_later_do_not_count_against_concurrency_but_against_a_limit(
    site, monkeypatch
):
    monkeypatch.setattr(dispatching, "LATER_ACKS_MAX", 5)
    await site.subscribe(concurrency=1)
    await site.send(*[b"x"] * 8)
    await site.taken(5)
    await site.world.advance(1_000)
    assert (site.count(), site.in_flight()) == (5, 5)
    await site.push.acks.acknowledge(site.token(0))
    await site.until(lambda: site.count() == 6)
    await site.push.acks.give_back(site.token(1), 3_600_000, None)
    await site.until(lambda: site.count() == 7)


async def test_at_the_limit_the_end_of_a_lease_lets_the_next_message_go(site, monkeypatch):
    monkeypatch.setattr(dispatching, "LATER_ACKS_MAX", 1)
    await site.subscribe(backoff=Exponential(3_600_000, 1.0, 3_600_000))
    await site.send(*[b"x"] * 2)
    await site.taken(1)
    await site.until(lambda: site.count() == 2, step_ms=1_000)
    ids = {got.headers["webhook-id"] for got in site.receiver.got}
    assert len(ids) == 2


async def end_by_purge(engine):
    await engine.topic_purges.purge("orders", scheduled=True, delivered=True)


async def end_by_rewind(engine):
    await engine.groups.rewind("orders", "push-s", to="tail")


@pytest.mark.parametrize("end", [end_by_purge, end_by_rewind])
async def test_messages_that_a_purge_or_a_rewind_has_ended_do_not_count_against_the_limit(
    site, monkeypatch, end
):
    monkeypatch.setattr(dispatching, "LATER_ACKS_MAX", 1)
    await site.subscribe()
    await site.send()
    await site.taken()
    await end(site.world.engine)
    await site.send()
    await site.taken(2)


async def test_what_a_group_ends_costs_a_receiver_as_much_as_it_holds_and_not_as_others_have_leased(site):
    """Other consumers may share the group, and the messages of a receiver are few."""
    groups = site.world.engine.groups
    await site.subscribe()
    await site.send()
    await site.taken()
    await site.push.pause("s")
    for _ in range(50):
        await site.send()
    others = await groups.receive("orders", "push-s", count_max=50)
    leases = groups.runtimes["orders/push-s"].leasing.leases
    leases.by_key = CountedDict(leases.by_key)
    for note in groups.on_ended:
        note("orders", "push-s")
    assert (len(leases), leases.by_key.seen) == (51, 0)
    assert groups.ended("orders", "push-s", [one.receipt for one in others]) == []


async def test_after_a_crash_the_message_comes_again_at_once_and_the_old_url_has_ended(site):
    await site.subscribe()
    await site.send()
    first = await site.taken()
    await site.crash()
    await site.until(lambda: site.count() == 2)
    second = await site.taken()
    assert second != first
    with pytest.raises(AckEndedError):
        await site.push.acks.acknowledge(first)
    await site.push.acks.acknowledge(second)


async def test_after_a_crash_the_url_is_good_while_nobody_has_the_message(site):
    await site.subscribe()
    await site.send()
    token = await site.taken()
    await site.push.pause("s")
    await site.crash()
    await site.push.acks.acknowledge(token)
    await site.push.resume("s")
    await site.later_for(60_000)
    assert site.count() == 1


async def test_without_a_public_url_there_is_no_header(site, receiver):
    await site.push.close()
    site.push = Push(site.world.engine, allow_private=True)
    await site.push.start()
    await site.subscribe()
    await site.send()
    await receiver.arrived(1)
    assert ACK_URL_HEADER not in receiver.got[0].headers


# ---------------------------------------------------------------------- tasks


async def test_a_task_that_is_acknowledged_later_succeeds_and_its_callback_is_called(site, receiver):
    receiver.behave["hook"] = later("3600")
    task = await site.create(callback=receiver.url("told"))
    token = await site.task_taken()
    await site.later_for(1_800_000)
    assert (await site.get(task)).state == "running"
    await site.push.acks.acknowledge(token)
    done = await site.get(task)
    assert (done.state, done.attempts, done.last_status) == ("succeeded", 1, 202)
    await site.until(lambda: site.count("told") == 1, step_ms=10)
    report = json.loads(receiver.bodies("told")[0])
    assert (report["type"], report["id"], report["status"]) == ("timerwheel.task.succeeded", task, 202)
    await site.push.acks.acknowledge(token)
    await site.later_for(7_200_000)
    assert (site.count(), site.count("told")) == (1, 1)


async def test_a_task_that_is_given_back_is_called_again_and_fails_after_its_last_attempt(site, receiver):
    task = await site.create(max_attempts=2, failure_callback=receiver.url("told"))
    first = await site.task_taken()
    await site.push.acks.give_back(first, 7_000, "no stock")
    view = await site.get(task)
    assert (view.state, view.last_error) == ("retrying", "no stock")
    await site.world.advance(6_999)
    assert site.count() == 1
    second = await site.task_taken(2)
    await site.push.acks.give_back(second, None, "no stock again")
    view = await site.get(task)
    assert (view.state, view.attempts, view.last_error) == ("failed", 2, "no stock again")
    await site.until(lambda: site.count("told") == 1, step_ms=10)
    for token in (first, second):
        with pytest.raises(AckEndedError):
            await site.push.acks.acknowledge(token)


async def test_a_task_that_nobody_acknowledges_is_called_again_by_its_own_backoff(site):
    task = await site.create(max_attempts=2, backoff=Exponential(100_000, 1.0, 100_000))
    await site.task_taken()
    await site.later_for(TASK_MS)
    await site.until_state(task, "retrying", step_ms=10)
    assert "in time" in (await site.get(task)).last_error
    await site.later_for(99_000)
    assert site.count() == 1
    await site.task_taken(2)
    view = await site.until_state(task, "failed", step_ms=1_000)
    assert view.attempts == 2
    assert site.count() == 2


async def test_a_task_is_extended_by_its_url(site):
    task = await site.create()
    token = await site.task_taken()
    await site.push.acks.extend(token, 600_000)
    await site.later_for(599_000)
    assert (site.count(), (await site.get(task)).state) == (1, "running")
    await site.push.acks.acknowledge(token)
    assert (await site.get(task)).state == "succeeded"


async def test_a_task_that_waits_for_its_acknowledgement_holds_no_place_of_its_host(site):
    await site.tasks.put_queue("default", TaskQueueOptions(concurrency=1, host_concurrency=1))
    for _ in range(5):
        await site.create()
    await site.until(lambda: site.count() == 5, step_ms=10)


async def test_after_a_crash_a_task_is_called_again_and_ends_once(site):
    task = await site.create()
    first = await site.task_taken()
    await site.crash()
    second = await site.task_taken(2, before=1)
    assert (await site.get(task)).attempts <= 1
    with pytest.raises(AckEndedError):
        await site.push.acks.acknowledge(first)
    await site.push.acks.acknowledge(second)
    assert (await site.get(task)).state == "succeeded"


async def test_a_planned_restart_keeps_the_url_of_a_task(site):
    task = await site.create(callback=site.receiver.url("told"))
    token = await site.task_taken()
    await site.push.close()
    await site.world.restart()
    await site.start()
    await site.world.advance(1_000)
    assert site.count() == 1
    await site.push.acks.acknowledge(token)
    assert (await site.get(task)).state == "succeeded"
    await site.until(lambda: site.count("told") == 1, step_ms=10)


async def test_a_task_whose_last_attempt_ended_in_another_run_is_not_called_once_more(site):
    task = await site.create(max_attempts=1)
    await site.task_taken()
    await site.push.close()
    await site.world.restart()
    await site.start()
    view = await site.until_state(task, "failed", step_ms=5_000)
    assert (view.attempts, site.count()) == (1, 1)
