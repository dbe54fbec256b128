"""What a scrape says of an engine, held against the engine, against its log, and against the clock."""

import asyncio
import contextlib
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.receiver import Receiver
from tests.harness.scraping import Scrape, scrape_engine
from tests.harness.world import World
from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.groups import groups as groups_module
from timerwheel.groups.config import GroupConfig, GroupTerms
from timerwheel.index.writer import STATE_KEY
from timerwheel.model.messages import Outgoing
from timerwheel.offline.fsck import FsckReport, fsck
from timerwheel.push.push import Push
from timerwheel.push.stats import FAILURES_IN_ROW
from timerwheel.push.subscription import Draft
from timerwheel.runtime.gauges import BOUNDS_S, NAMED_MAX, QUICK_MS, REST_TIMES, STALE_MS
from timerwheel.store.keys import sequence_key, slot_prefix
from timerwheel.wheel.geometry import Level

SECOND_MS, MINUTE_MS, HOUR_MS = 1_000, 60_000, 3_600_000
DELAYS_MS = (0, 700, 4_000, 50_000, 200_000, 2 * HOUR_MS, 5 * HOUR_MS, 30 * HOUR_MS, 900 * HOUR_MS)
TOPICS = ("orders", "mails", "bills")


def check_log(world: World) -> FsckReport:
    """The offline check of a stopped engine's log, which lies in memory, and its index."""
    shutil.rmtree(world.directory / "log", ignore_errors=True)  # what the check before saw
    for name, node in world.files.names_now.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(node.data)
    report = fsck(world.directory)
    assert report.ok, report.findings
    return report


def agree_on_due_times(scrape: Scrape, dues_ms: list[int], now_ms: int) -> None:
    """What waits by when it is due, as true as the slots are wide."""
    found = scrape.values("timerwheel_pending_due_messages", "within")
    assert found.pop("any") == len(dues_ms)
    for (name, count), bound_s in zip(found.items(), BOUNDS_S, strict=True):
        until_ms = now_ms + bound_s * SECOND_MS
        slot_ms = SECOND_MS if bound_s <= 300 else MINUTE_MS if bound_s <= 3_600 else HOUR_MS
        low = sum(due_ms < until_ms for due_ms in dues_ms)
        high = sum(due_ms < until_ms + slot_ms for due_ms in dues_ms)
        assert low <= count <= high, name


async def agree_with_lists(engine: Engine, scrape: Scrape) -> None:
    """Counts by topic, due time and group are what one finds who asks for each message and group."""
    waiting = (await engine.messages.pending(limit=100_000)).messages
    by_topic = Counter(message.topic for message in waiting)
    assert scrape.values("timerwheel_pending_messages", "topic") == {
        topic.topic: by_topic[topic.topic] for topic in engine.queues.topics() if not topic.system
    }
    agree_on_due_times(scrape, [message.due_ms for message in waiting], engine.clock.now_ms())
    for group in engine.groups.all():
        of_group = {"topic": group.topic, "group": group.group}
        for name in ("lag", "in_flight", "waiting", "ready", "parked"):
            assert scrape.value(f"timerwheel_group_{name}_messages", **of_group) == getattr(group, name)


async def agree_with_the_log(world: World) -> None:
    """Stop the engine as a crash would and compare its last scrape with what the log says."""
    engine = world.engine
    scrape = await scrape_engine(engine)
    await agree_with_lists(engine, scrape)
    await engine.abandon()
    report = check_log(world)
    assert scrape.total("timerwheel_pending_messages") == report.pending
    assert scrape.value("timerwheel_pending_due_messages", within="any") == report.pending
    assert scrape.total("timerwheel_visible_messages") == report.visible
    assert scrape.value("timerwheel_log_tail_offset_bytes") == report.log_end
    assert scrape.value("timerwheel_log_segments") == report.segments
    assert scrape.value("timerwheel_index_behind_bytes") == report.log_end - report.checkpoint


async def live_a_while(world: World, rng: random.Random) -> None:
    """Send, recall, reschedule, consume and let time pass."""
    ids: list[str] = []
    engine = world.engine

    async def reschedule(message_id: str) -> None:
        await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "9000"})

    for _ in range(6):
        topic = rng.choice(TOPICS)
        ids += await world.send_ids(*rng.sample(DELAYS_MS, 4), topic=topic)
        for change in (engine.recalls.recall, reschedule):
            with contextlib.suppress(TimerwheelError):  # it was delivered or recalled before
                await change(rng.choice(ids))
        await engine.groups.receive(
            topic, "g", count_max=2, invisible_ms=20_000, terms=GroupTerms(create=True)
        )
        await world.advance(rng.choice((100, 5_000, 70_000)))


@pytest.mark.parametrize("seed", range(3))
async def test_counts_agree_with_the_log_after_crashes_and_a_lost_index(world, seed):
    rng = random.Random(seed)
    await world.open()
    for fate in ("crash", "lose_index", "crash"):
        await live_a_while(world, rng)
        await agree_with_the_log(world)
        if fate == "crash":
            await world.crash(rng)
        else:
            await world.lose_index()
        await agree_with_the_log(world)
        await world.open()


async def test_counters_say_what_was_done_since_the_start(world):
    await world.open()
    _, second, *_ = await world.send_ids(1_000, 60_000, 60_000, 0)
    await world.engine.recalls.recall(second)
    await world.advance(1_000)
    third = (await world.send_ids(60_000))[0]
    await world.engine.recalls.reschedule(third, {"TIMER_DELAY_MS": "90000"})
    await world.engine.recalls.reschedule(third, {"TIMER_DELAY_MS": "0"})
    scrape = await scrape_engine(world.engine)
    assert scrape.values("timerwheel_messages_accepted_total", "delivery") == {"waiting": 4, "at_once": 1}
    assert scrape.values("timerwheel_messages_fired_total", "when") == {"due": 1, "early": 1}
    assert scrape.value("timerwheel_messages_recalled_total") == 1
    assert scrape.value("timerwheel_messages_rescheduled_total") == 1
    assert scrape.value("timerwheel_delay_seconds_count") == 4
    assert scrape.value("timerwheel_lateness_seconds_count") == 1
    assert scrape.value("timerwheel_commit_records_sum") == 9
    commits = scrape.value("timerwheel_commit_seconds_count")
    assert commits == scrape.value("timerwheel_commit_bytes_count")
    assert scrape.value("timerwheel_log_sync_seconds_count") >= commits
    await world.restart()
    scrape = await scrape_engine(world.engine)
    assert scrape.total("timerwheel_messages_accepted_total") == 0
    assert scrape.value("timerwheel_pending_messages", topic="orders") == 1


async def test_a_reschedule_to_the_same_time_is_no_move_by_retention(world):
    await world.open()
    [message_id] = await world.send_ids(60_000)
    due_ms = (await world.engine.messages.get(message_id)).due_ms
    receipt = await world.engine.recalls.reschedule(message_id, {"TIMER_DELIVER_MS": str(due_ms)})
    assert receipt.due_ms == due_ms
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_messages_rescheduled_total") == 1
    assert scrape.value("timerwheel_messages_moved_total") == 0


async def test_lateness_is_what_the_clock_says_when_messages_fire_late(world):
    await world.open()
    await world.send(1_000, 1_000, 1_000)
    await world.advance(1_250)
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_lateness_seconds_sum") == 0.75
    buckets = scrape.values("timerwheel_lateness_seconds_bucket", "le")
    assert (buckets["0.2"], buckets["0.3"], buckets["+Inf"]) == (0, 3, 3)
    assert 200 < world.engine.counters.snapshot()["lateness_ms_p99"] <= 300


@pytest.mark.parametrize("committed", [False, True], ids=["staged", "in the index"])
async def test_what_waits_is_named_by_when_it_is_due(world, committed):
    await world.open()
    first, *delays_ms = [bound_s * 1_000 + more for bound_s in BOUNDS_S for more in (-1, 2 * HOUR_MS)]
    recalled, *_ = await world.send_ids(first, *delays_ms)
    if committed:
        await world.engine.indexer.commit()
    await world.engine.recalls.recall(recalled)
    dues_ms = [world.clock.now_ms() + delay_ms for delay_ms in delays_ms]
    agree_on_due_times(await scrape_engine(world.engine), dues_ms, world.clock.now_ms())


async def test_leases_and_retries_of_groups_are_not_messages_that_wait(world):
    await world.open()
    await world.send(0, 0, 0, 3_000)
    await world.advance(0)
    await world.engine.groups.put("orders", "g", GroupConfig(invisible_ms=4_000))
    for committed in (False, True):
        [got] = await world.engine.groups.receive("orders", "g", count_max=1, terms=GroupTerms(create=True))
        await world.engine.groups.nack("orders", "g", [got.receipt], delay_ms=4_500)
        if committed:
            await world.engine.indexer.commit()
        scrape = await scrape_engine(world.engine)
        assert scrape.value("timerwheel_leases") == 1 + committed
        within = scrape.values("timerwheel_pending_due_messages", "within")
        assert set(within.values()) == {1}
    [got] = await world.engine.groups.receive("orders", "g", count_max=1)
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_group_in_flight_messages", topic="orders", group="g") == 1
    assert scrape.value("timerwheel_group_waiting_messages", topic="orders", group="g") == 2
    assert scrape.value("timerwheel_group_lag_messages", topic="orders", group="g") == 0
    assert scrape.value("timerwheel_group_leases_total") == 3
    assert scrape.value("timerwheel_leases") == 2  # what is in flight has no timer
    await world.engine.groups.ack("orders", "g", [got.receipt])
    await world.advance(60_000)
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_group_ready_messages", topic="orders", group="g") == 2
    assert scrape.value("timerwheel_group_returns_total") == 2
    assert scrape.value("timerwheel_leases") == 0


async def test_due_messages_that_cannot_be_stored_are_overdue(world):
    await world.open()
    await world.send(1_000, 1_000, 500_000)
    world.files.space_bytes = 0
    world.clock.advance(6_000)
    for _ in range(200):
        await world.clock.breathe()
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_overdue_messages") == 2
    assert scrape.value("timerwheel_fire_retries_total") > 0
    assert scrape.value("timerwheel_pending_due_messages", within="5s") == 2
    world.files.space_bytes = 1 << 40
    await world.advance(1_000)
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_overdue_messages") == scrape.value("timerwheel_overdue_seconds") == 0


async def test_dead_letters_are_counted_until_they_are_dropped(world):
    await world.open()
    await world.engine.groups.put("orders", "g", GroupConfig(max_attempts=1))
    await world.send(0, 0)
    for _ in range(2):
        (delivery,) = await world.engine.groups.receive("orders", "g", terms=GroupTerms(create=True))
        await world.engine.groups.nack("orders", "g", [delivery.receipt], 0)
    await world.advance(5_000)
    scrape = await scrape_engine(world.engine)
    assert scrape.values("timerwheel_dead_letter_messages", "group") == {"g": 2}
    accepted = scrape.values("timerwheel_messages_accepted_total", "delivery")
    assert accepted == {"waiting": 0, "at_once": 4}, "dead letters are messages of their own topic"
    await world.engine.groups.dead.drop("g", [0])
    scrape = await scrape_engine(world.engine)
    assert scrape.values("timerwheel_dead_letter_messages", "group") == {"g": 1}


async def test_of_many_topics_and_groups_the_largest_have_names_and_the_others_are_one_sum(world):
    await world.open()
    count = NAMED_MAX + 20
    for number in range(count):
        await world.send(*[HOUR_MS] * (2 if number >= 20 else 1), topic=f"t{number}")
    scrape = await scrape_engine(world.engine)
    found = scrape.values("timerwheel_pending_messages", "topic")
    assert set(found) == {"", *(f"t{number}" for number in range(20, count))}
    assert found[""] == 20
    assert sum(found.values()) == world.engine.core.state.pending
    assert scrape.value("timerwheel_topics") == count
    for number in range(count):
        await world.engine.groups.put(f"t{number}", "g", GroupConfig())
    scrape = await scrape_engine(world.engine)
    lags = [sample for sample in scrape.samples if sample.name == "timerwheel_group_lag_messages"]
    assert len(lags) == NAMED_MAX + 1


async def test_the_index_is_behind_by_what_is_staged_and_by_its_age(world):
    await world.open(index_interval_ms=50_000)
    await world.send(HOUR_MS)
    await world.engine.indexer.commit()
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_index_behind_bytes") == 0
    await world.send(HOUR_MS, HOUR_MS)
    await world.advance(3_000)
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_index_behind_records") == 2
    assert scrape.value("timerwheel_index_behind_bytes") > 0
    assert scrape.value("timerwheel_index_behind_seconds") == 3
    await world.engine.indexer.commit()
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_index_behind_seconds") == 0


async def test_cascades_are_counted_by_the_entries_that_they_move(world):
    await world.open()
    await world.send(*[2 * HOUR_MS + 1] * 3)
    await world.engine.indexer.commit()
    before = (await scrape_engine(world.engine)).value("timerwheel_cascade_entries_total")
    assert before == 0
    await world.advance(2 * HOUR_MS)
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_cascade_entries_total") in (3, 6)
    assert scrape.value("timerwheel_cascade_seconds_count") > 0


class SlowClock(ManualClock):
    """By this clock whatever is done takes a while."""

    took_ms = 0

    def monotonic_ms(self) -> int:
        self.mono_ms += self.took_ms
        return self.mono_ms


async def test_a_survey_that_takes_long_is_made_seldom_and_keeps_no_scrape_waiting(world):
    world.clock = SlowClock()
    await world.open()
    await world.send(HOUR_MS)
    census = world.engine.gauges
    assert (await census.take()).survey.pending_all == 1
    world.clock.took_ms = QUICK_MS + 1
    assert (await census.take()).survey.pending_all == 1  # this one was waited for, and took long
    world.clock.took_ms = 0
    await world.send(HOUR_MS)
    for _ in range(3):
        seen = await census.take()
        assert (world.engine.core.state.pending, seen.survey.pending_all) == (2, 1)
    await world.advance(2 * REST_TIMES * (QUICK_MS + 1))
    seen = await census.take()  # the next one is being made
    assert seen.survey.pending_all == 1
    assert seen.survey_age_ms == 2 * REST_TIMES * (QUICK_MS + 1)
    await world.advance(0)
    assert (await census.take()).survey.pending_all == 2


class BusyClock(ManualClock):
    """A long task that yields to others waits until it gets another turn of the loop."""

    async def breathe(self) -> None:
        self.mono_ms += QUICK_MS
        await super().breathe()


async def test_counting_many_groups_takes_part_of_the_time_after_which_a_survey_rests(world, monkeypatch):
    monkeypatch.setattr(groups_module, "COUNTED_QUEUES", 1)
    world.clock = BusyClock()
    await world.open()
    for number in range(3):
        await world.engine.groups.put("orders", f"g{number}", GroupConfig())
    await world.engine.gauges.take()
    await world.send(HOUR_MS)
    assert (await world.engine.gauges.take()).survey.pending_all == 0
    await world.advance(REST_TIMES * 2 * QUICK_MS)
    await world.engine.gauges.take()
    await world.advance(0)
    assert (await world.engine.gauges.take()).survey.pending_all == 1


async def test_nobody_gets_a_survey_that_is_long_out_of_date(world):
    world.clock = SlowClock()
    await world.open()
    await world.send(HOUR_MS)
    census = world.engine.gauges
    world.clock.took_ms = QUICK_MS + 1
    await census.take()
    world.clock.took_ms = 0
    await world.send(HOUR_MS)
    await world.advance(STALE_MS + 2 * REST_TIMES * (QUICK_MS + 1))
    assert (await census.take()).survey.pending_all == 2


async def test_rocketmq_names_say_the_same(world):
    await world.open()
    await world.send(1_000, 1_000, 4_000, 50_000, 3 * HOUR_MS, 900 * HOUR_MS)
    await world.advance(1_000)
    await world.engine.groups.receive("orders", "g", count_max=1, terms=GroupTerms(create=True))
    own = await scrape_engine(world.engine)
    assert not any(name.startswith("rocketmq_") for name in own.families)
    scrape = await scrape_engine(world.engine, rocketmq=True)
    assert scrape.value("rocketmq_timing_messages", topic="orders", node_type="broker") == 4
    snapshot = scrape.values("rocketmq_timer_message_snapshot", "timer_bound_s")
    assert snapshot == {str(bound): {5: 1, 60: 1, 14_400: 1}.get(bound, 0) for bound in BOUNDS_S}
    assert scrape.value("rocketmq_timer_enqueue_total") == 6
    assert scrape.value("rocketmq_timer_dequeue_total") == 2
    assert scrape.value("rocketmq_timer_enqueue_lag") == own.value("timerwheel_index_behind_records")
    assert scrape.value("rocketmq_timer_dequeue_lag") == 0
    for name, count in (("lag", 2), ("inflight", 1), ("ready", 1)):
        of_group = {"consumer_group": "g", "topic": "orders"}
        assert scrape.value(f"rocketmq_consumer_{name}_messages", **of_group) == count
    delays = scrape.values("rocketmq_delay_message_latency_bucket", "le")
    assert (delays["60.0"], delays["43200.0"], delays["+Inf"]) == (4, 5, 6)


async def test_a_scrape_names_units_and_says_what_each_metric_is(world):
    await world.open()
    scrape = await scrape_engine(world.engine)
    units = ("_seconds", "_bytes", "_total", "_messages", "_records", "_info", "_timers", "_progress")
    counted = (
        "leases",
        "topics",
        "groups",
        "schedules",
        "subscriptions",
        "log_segments",
        "push_subscription_failing",
    )
    plain = {f"timerwheel_{name}" for name in ("ready", "accepting", *counted)}
    plain.add("timerwheel_push_subscription_failing")
    for name, family in scrape.families.items():
        assert name.endswith(units) or name in plain, name
        assert family.documentation
        assert "\n" not in family.documentation


async def test_a_survey_that_fails_is_logged_and_the_rest_of_the_scrape_is_there(world, caplog):
    await world.open()
    await world.send(HOUR_MS)
    with world.engine.core.index.index.write() as txn:
        txn.put("meta", STATE_KEY, b"\xc1")  # no byte of msgpack
    scrape = await scrape_engine(world.engine)
    assert "timerwheel_pending_messages" not in scrape.families
    assert scrape.value("timerwheel_log_segments") == 1
    assert "counting for the gauges failed" in caplog.text


async def test_a_survey_that_meets_damage_ends_the_engine_and_the_rest_of_the_scrape_is_there(world):
    await world.open()
    await world.send(HOUR_MS)
    with world.engine.core.index.index.write() as txn:
        txn.put("wheel", slot_prefix(Level.SECOND, 0) + sequence_key(1), b"short")
    scrape = await scrape_engine(world.engine)
    assert "timerwheel_pending_messages" not in scrape.families
    assert scrape.value("timerwheel_log_segments") == 1
    assert "the index is damaged" in await world.engine.failed()


async def test_messages_sent_with_others_are_counted_once_each(world):
    await world.open()
    await world.engine.sender.send([Outgoing("a", b""), Outgoing("b", b"", {"TIMER_DELAY_MS": "5000"})])
    scrape = await scrape_engine(world.engine)
    assert scrape.values("timerwheel_messages_accepted_total", "delivery") == {"waiting": 1, "at_once": 1}
    assert scrape.values("timerwheel_visible_messages", "topic") == {"a": 1, "b": 0}


async def test_a_caller_with_some_topics_gets_all_counts_but_only_their_names(world):
    await world.open()
    for topic, count in (("orders", 1), ("bills", 2), ("mails", 4)):
        await world.send(*[HOUR_MS] * count, topic=topic)
        await world.send(0, topic=topic)
        await world.engine.groups.put(topic, f"of-{topic}", GroupConfig())
    survey = (await world.engine.gauges.take()).survey
    part = survey.seen_by(lambda topic: topic == "orders")
    assert part.pending == [("orders", 1), ("", 6)]
    assert part.visible == [("orders", 1), ("", 2)]
    assert [(group.topic, group.group) for group in part.groups] == [("orders", "of-orders"), ("", "")]
    assert [sum(column) for column in zip(*(group[2:] for group in part.groups), strict=True)] == [
        sum(column) for column in zip(*(group[2:] for group in survey.groups), strict=True)
    ]
    assert part.within == survey.within
    assert survey.seen_by(lambda _: True) == survey


async def test_with_flush_async_syncs_are_counted_though_no_commit_waits_for_one(world):
    await world.open(flush="async", flush_interval_ms=200)
    await world.send(HOUR_MS)
    before = (await scrape_engine(world.engine)).value("timerwheel_log_sync_seconds_count")
    await world.send(HOUR_MS)
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_log_sync_seconds_count") == before
    assert scrape.value("timerwheel_log_unsynced_bytes") > 0
    await world.advance(200)
    scrape = await scrape_engine(world.engine)
    assert scrape.value("timerwheel_log_sync_seconds_count") == before + 1
    assert scrape.value("timerwheel_log_unsynced_bytes") == 0


async def test_attempts_of_each_subscription_and_the_oldest_message_of_each_group_are_measured(world):
    await world.open()
    await world.engine.groups.put("orders", "g", GroupConfig())
    await world.send(0)
    await world.advance(7_000)
    async with Receiver() as receiver:
        receiver.behave["bad"] = 500
        push = Push(world.engine, allow_private=True)
        await push.start()
        try:
            for path in ("good", "bad"):
                draft = Draft(topic=path, url=receiver.url(path), id=path)
                await push.create(draft)
                await world.engine.sender.send([Outgoing(path, b"x")] * FAILURES_IN_ROW)
            async with asyncio.timeout(60):
                while push.stats("good").delivered + push.stats("bad").failed < 2 * FAILURES_IN_ROW:
                    await asyncio.sleep(0)
            scrape = await scrape_engine(world.engine, push=push)
        finally:
            await push.close()
    attempts = "timerwheel_push_subscription_attempts_total"
    assert scrape.value(attempts, topic="good", subscription="good", outcome="delivered") == FAILURES_IN_ROW
    assert scrape.value(attempts, topic="bad", subscription="bad", outcome="failed") == FAILURES_IN_ROW
    assert scrape.values("timerwheel_push_subscription_failing", "subscription") == {"good": 0, "bad": 1}
    ages = scrape.values("timerwheel_group_oldest_unacknowledged_seconds", "group")
    assert ages == {"g": 7, "push-good": 0, "push-bad": 0}
