"""Limits of attempts: a message's TTL and number of attempts, and the age up to which a group tries again."""

import pytest

from tests.harness.consumers import QUICK, ack, bodies, put, receive
from tests.harness.drive import settle
from tests.harness.group_checks import check_groups
from timerwheel.errors import RefusedError
from timerwheel.groups.config import GroupConfig
from timerwheel.model.limits import ATTEMPTS_MAX, TTL_MS_MAX
from timerwheel.model.messages import Outgoing

WAYS = ["restart", "crash", "lose_index"]
HOUR_MS = 3_600_000


async def send(world, *texts, topic="orders", **properties):
    messages = [Outgoing(topic, text.encode(), dict(properties)) for text in texts]
    receipts = await world.engine.sender.send(messages)
    return [receipt.id for receipt in receipts]


async def nack(world, *deliveries, delay_ms=None, reason=None):
    receipts = [delivery.receipt for delivery in deliveries]
    await world.engine.groups.nack("orders", "g", receipts, delay_ms, reason)


async def dead(world, group="g"):
    await settle(world.engine)
    letters = (await world.engine.groups.dead.page(group)).letters
    return [(one.message.body.decode(), one.attempts, one.reason) for one in letters]


def numbers(world):
    check_groups(world.engine)
    info = world.engine.groups.info("orders", "g")
    return info.lag, info.in_flight, info.waiting, info.ready, info.dead_letters


async def test_a_message_is_received_within_its_ttl_and_not_after_it(world):
    await world.open()
    await put(world)
    await send(world, "a", "b", TIMER_TTL_MS="10000")
    await world.advance(9_999)
    assert bodies(await receive(world, 1)) == ["a"]
    await world.advance(1)
    assert await receive(world) == []
    await settle(world.engine)
    assert numbers(world) == (0, 1, 0, 0, 0)
    assert world.engine.core.counters.expired == 1
    assert [one.body for one in await world.delivered()] == [b"a", b"b"]  # for readers by offset


async def test_the_ttl_of_a_timer_counts_from_its_delivery_also_if_that_is_late(world):
    engine = await world.open()
    await put(world)
    await send(world, "due", TIMER_TTL_MS="10000", TIMER_DELAY_MS="60000")
    await world.advance(30_000)
    await engine.close()
    world.clock.advance(HOUR_MS)
    await world.open()
    assert (await world.delivered())[0].lateness_ms > 10_000
    await world.advance(9_999)
    assert bodies(await receive(world)) == ["due"]


async def test_a_rescheduled_message_keeps_its_ttl_which_counts_from_the_new_time(world):
    engine = await world.open()
    await put(world)
    [one] = await send(world, "a", TIMER_TTL_MS="10000", TIMER_DELAY_MS="1000")
    await engine.recalls.reschedule(one, {"TIMER_DELAY_MS": "60000"})
    await world.advance(60_000 + 9_999)
    assert bodies(await receive(world, invisible_ms=1)) == ["a"]
    await world.advance(1)
    await world.advance(HOUR_MS)
    assert await receive(world) == []


@pytest.mark.parametrize("how", WAYS)
async def test_a_ttl_survives_restarts_retention_moves_and_a_lost_index(world, how):
    await world.open()
    await put(world)
    await send(world, "timer", TIMER_TTL_MS="10000", TIMER_DELAY_MS="60000")
    await getattr(world, how)()
    await world.advance(60_000)
    await getattr(world, how)()
    await world.advance(10_000)
    assert await receive(world) == []
    await settle(world.engine)
    await getattr(world, how)()
    assert numbers(world) == (0, 0, 0, 0, 0)


async def test_a_message_whose_next_attempt_would_come_after_its_ttl_has_expired(world):
    await world.open()
    await put(world)
    await send(world, "back", "late", "done", TIMER_TTL_MS="10000")
    back, late, done = await receive(world, invisible_ms=9_500)
    await nack(world, back, delay_ms=10_000)
    assert numbers(world) == (0, 2, 0, 0, 0)
    assert await ack(world, back) == [False]
    await world.advance(9_499)
    assert await ack(world, done) == [True]
    await world.advance(1)
    assert numbers(world) == (0, 0, 0, 0, 0)
    assert await ack(world, late) == [False]
    assert world.engine.core.counters.expired == 2
    await world.advance(HOUR_MS)
    assert await receive(world) == []


async def test_what_is_in_work_when_its_ttl_ends_can_still_be_acknowledged(world):
    await world.open()
    await put(world)
    await send(world, "a", TIMER_TTL_MS="1000")
    got = await receive(world)
    await world.advance(4_999)
    assert await ack(world, *got) == [True]


async def test_a_message_that_was_ready_again_expires(world):
    await world.open()
    await put(world)
    await send(world, "a", TIMER_TTL_MS="10000")
    await nack(world, *await receive(world))
    await world.advance(1_000)
    assert numbers(world) == (0, 0, 0, 1, 0)
    await world.advance(9_000)
    assert await receive(world) == []
    await settle(world.engine)
    assert numbers(world) == (0, 0, 0, 0, 0)


async def test_a_group_can_have_expired_messages_as_dead_letters(world):
    await world.open()
    await put(world, expired="dead_letter")
    await send(world, "fresh", "tried", TIMER_TTL_MS="10000")
    fresh, tried = await receive(world, 2)
    world.engine.groups.put_back("orders", "g", [fresh.receipt])
    await nack(world, tried, delay_ms=60_000)
    await world.advance(10_000)
    assert await receive(world) == []
    reason = "expired: it was not acknowledged within its TTL"
    assert await dead(world) == [("tried", 1, reason), ("fresh", 0, reason)]
    assert world.engine.core.counters.expired == 2
    # An operator who redrives it wants it: no TTL ends it again.
    await world.engine.groups.dead.redrive("g", [1])
    await world.advance(HOUR_MS)
    assert bodies(await receive(world)) == ["fresh"]


async def test_an_expired_message_of_a_lane_makes_room_for_the_next(world):
    engine = await world.open()
    await engine.topics.change("orders", ordered=True)
    await put(world)
    await send(world, "1", "2", TIMER_TTL_MS="1000", __SHARDINGKEY="k")
    await send(world, "3", __SHARDINGKEY="k")
    await world.advance(1_000)
    got = []
    for _ in range(4):
        got += bodies(await receive(world))
        await settle(engine)
    assert got == ["3"]


async def test_a_receive_passes_over_thousands_of_expired_messages(world):
    await world.open()
    await put(world)
    for _ in range(25):
        await send(world, *["old"] * 100, TIMER_TTL_MS="1000")
    await world.advance(1_000)
    await send(world, "new")
    got = []
    for _ in range(5):
        got += bodies(await receive(world, 1, wait_ms=0))
        await settle(world.engine)
    assert got == ["new"]
    assert world.engine.core.counters.expired == 2_500


async def test_what_is_delivered_while_the_clock_is_wrong_for_a_moment_expires_no_earlier(world):
    """Both steps come between two looks at the clock."""
    await world.open()
    await put(world)
    world.clock.step(-HOUR_MS)
    await send(world, "a", TIMER_TTL_MS="60000")
    world.clock.step(HOUR_MS)
    assert bodies(await receive(world)) == ["a"]


async def test_a_step_of_the_clock_makes_no_message_expire_early(world):
    await world.open()
    await put(world)
    await send(world, "before", TIMER_TTL_MS="60000")
    await world.step(HOUR_MS)
    await send(world, "after", TIMER_TTL_MS="60000")
    await world.advance(59_999)
    first, second = await receive(world)
    assert bodies([first, second]) == ["before", "after"]
    world.engine.groups.put_back("orders", "g", [first.receipt, second.receipt])
    await world.advance(1)
    assert await receive(world) == []
    await send(world, "back", TIMER_TTL_MS="60000")
    await world.step(-HOUR_MS)
    await world.advance(59_999)
    assert bodies(await receive(world)) == ["back"]


async def test_a_clock_that_was_ahead_for_a_moment_lets_no_message_outlive_its_ttl(world):
    await world.open()
    await put(world)
    await send(world, "before", TIMER_TTL_MS="60000")
    await world.step(HOUR_MS)
    await world.step(-HOUR_MS)
    await world.advance(60_000)
    assert await receive(world) == []


async def test_a_message_can_have_fewer_attempts_than_its_group_grants(world):
    await world.open()
    await put(world, max_attempts=5)
    await send(world, "two", TIMER_MAX_ATTEMPTS="2")
    await nack(world, *await receive(world), delay_ms=0)
    await world.advance(1_000)
    [second] = await receive(world)
    assert second.attempt == 2
    await nack(world, second, reason="no")
    assert await dead(world) == [("two", 2, "no")]


@pytest.mark.parametrize("how", [None, *WAYS])
async def test_a_message_can_have_more_attempts_than_its_group_grants(world, how):
    await world.open()
    await put(world, max_attempts=1)
    await send(world, "three", TIMER_MAX_ATTEMPTS="3")
    await send(world, "one")
    for attempt in (1, 2, 3):
        got = await receive(world)
        assert {(one.message.body, one.attempt) for one in got} == {(b"three", attempt)} | (
            {(b"one", 1)} if attempt == 1 else set()
        )
        await nack(world, *got, delay_ms=0, reason="no")
        if how is not None:
            await getattr(world, how)()
        await world.advance(1_000)
    assert await dead(world) == [("one", 1, "no"), ("three", 3, "no")]


async def test_the_attempts_of_a_message_count_when_its_leases_outlive_a_restart(world):
    await world.open()
    await put(world, max_attempts=1)
    await send(world, "twice", TIMER_MAX_ATTEMPTS="2")
    assert len(await receive(world)) == 1
    await world.restart()
    await world.advance(5_000 + 1_000)
    assert [one.attempt for one in await receive(world)] == [2]
    await world.advance(5_000)
    assert [one[:2] for one in await dead(world)] == [("twice", 2)]


async def test_no_retry_comes_later_than_the_group_allows_but_every_message_has_a_first_attempt(world):
    await world.open()
    await put(world, max_age_ms=10_000)
    await send(world, "a")
    await world.advance(60_000)
    [one] = await receive(world)
    await nack(world, one)
    why = "too old: no other attempt within max_age_ms = 10000 of its delivery"
    assert await dead(world) == [("a", 1, why)]
    await send(world, "b")
    await nack(world, *await receive(world), delay_ms=2_000)
    await world.advance(2_000)
    [two] = await receive(world, invisible_ms=7_000)
    assert two.attempt == 2
    await world.advance(7_000)
    assert (await dead(world))[1] == ("b", 2, why)


async def test_a_message_that_is_too_old_when_it_is_ready_becomes_a_dead_letter(world):
    await world.open()
    await put(world)
    await send(world, "a")
    await nack(world, *await receive(world))
    await put(world, max_age_ms=10_000)
    await world.advance(9_999)
    assert bodies(await receive(world, invisible_ms=HOUR_MS)) == ["a"]
    await world.crash()
    await world.advance(1)
    assert await receive(world) == []
    assert [one[:2] for one in await dead(world)] == [("a", 1)]


async def test_a_lease_of_before_the_limit_was_set_is_judged_by_it(world):
    await world.open()
    await put(world)
    await send(world, "a")
    assert len(await receive(world, invisible_ms=20_000)) == 1
    await put(world, max_age_ms=10_000)
    await world.advance(20_000)
    assert [letter[:2] for letter in await dead(world)] == [("a", 1)]


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_TTL_MS": text}
        for text in ("0", "-1", "x", "", "1.5", str(TTL_MS_MAX + 1), "9" * 30, "1" * 10_000)
    ]
    + [{"TIMER_MAX_ATTEMPTS": text} for text in ("0", "-1", "x", "", str(ATTEMPTS_MAX + 1))],
)
async def test_a_limit_that_is_no_number_within_its_bounds_is_refused(world, properties):
    engine = await world.open()
    [name] = properties
    with pytest.raises(RefusedError, match=f"{name} = .*must be a whole number from 1"):
        await engine.sender.send([Outgoing("orders", b"", properties)])
    largest = str(TTL_MS_MAX if name == "TIMER_TTL_MS" else ATTEMPTS_MAX)
    await engine.sender.send([Outgoing("orders", b"", {name: largest})])


async def test_a_transaction_and_a_scheduled_run_have_their_limits(world):
    engine = await world.open()
    await put(world)
    half = (await engine.transactions.begin(Outgoing("orders", b"half", {"TIMER_TTL_MS": "1000"}))).id
    await world.advance(5_000)
    await engine.transactions.commit(half)
    await world.advance(999)
    assert bodies(await receive(world, invisible_ms=1)) == ["half"]
    await world.advance(HOUR_MS)
    assert await receive(world) == []


@pytest.mark.parametrize("text", ["soon", "0", "9" * 30])
async def test_a_limit_of_before_there_were_limits_that_is_no_number_limits_nothing(world, text):
    # A schedule that an earlier version stored was not checked for it.
    await world.open()
    await put(world, max_attempts=2)
    limits = {"TIMER_TTL_MS": text, "TIMER_MAX_ATTEMPTS": text}
    await world.engine.sender.send([Outgoing("orders", b"run", limits, "schedule:s", own=True)])
    await world.advance(60_000)
    [one] = await receive(world)
    await nack(world, one, delay_ms=0)
    await world.advance(1_000)
    assert [again.attempt for again in await receive(world)] == [2]


async def test_defaults_of_new_settings_are_not_stored_for_older_programs(world):
    engine = await world.open()
    await engine.groups.put("orders", "g", GroupConfig(backoff=QUICK))
    assert engine.control.get("group", "orders/g").keys() & {"kind", "max_age_ms", "expired"} == set()
    await engine.groups.put("orders", "g", GroupConfig(max_age_ms=1_000, expired="dead_letter"))
    assert engine.groups.info("orders", "g").config["max_age_ms"] == 1_000
