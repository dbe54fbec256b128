"""Consumer groups on the engine: receive, acknowledge, give back, time out, dead letters, order, rewind."""

import asyncio

import pytest

from tests.harness.consumers import ack, bodies, items, put, receive, send
from tests.harness.drive import settle
from timerwheel.groups.config import GroupDiffersError
from timerwheel.model.messages import Outgoing


async def test_what_was_acknowledged_never_comes_again(world):
    await world.open()
    await send(world, "a", "b", "c")
    got = await receive(world)
    assert bodies(got) == ["a", "b", "c"]
    assert [d.attempt for d in got] == [1, 1, 1]
    assert await ack(world, got[0], got[2]) == [True, True]
    await world.advance(3_600_000)
    again = await receive(world)
    assert bodies(again) == ["b"]
    assert again[0].attempt == 2
    assert await ack(world, *again) == [True]
    await world.advance(10 * 3_600_000)
    assert await receive(world) == []
    assert world.engine.core.state.leases == 0
    assert not items(world)


async def test_a_message_comes_back_after_its_invisibility_and_the_backoff_of_its_attempt(world):
    await world.open()
    await put(world)
    await send(world, "a")
    for attempt, backoff_ms in enumerate((1_000, 2_000, 4_000), start=1):
        got = await receive(world)
        assert [d.attempt for d in got] == [attempt]
        await world.advance(5_000 + backoff_ms - 1)
        assert await receive(world) == []
        await world.advance(1)


async def test_a_message_that_is_given_back_comes_after_the_delay_and_no_sooner_than_the_minimum(world):
    await world.open()
    await put(world)
    await send(world, "a")
    got = await receive(world)
    await world.engine.groups.nack("orders", "g", [got[0].receipt], delay_ms=0)
    assert await ack(world, got[0]) == [False]
    await world.advance(999)
    assert await receive(world) == []
    await world.advance(1)
    got = await receive(world)
    await world.engine.groups.nack("orders", "g", [got[0].receipt], delay_ms=7_000)
    await world.advance(6_999)
    assert await receive(world) == []
    await world.advance(1)
    assert [d.attempt for d in await receive(world)] == [3]


async def test_an_extended_message_stays_away_and_keeps_its_receipt(world):
    await world.open()
    await put(world)
    await send(world, "a")
    got = await receive(world)
    await world.advance(4_000)
    results = await world.engine.groups.extend("orders", "g", [got[0].receipt], 10_000)
    assert [r.ok for r in results] == [True]
    await world.advance(10_999)
    assert await receive(world) == []
    assert await ack(world, got[0]) == [True]
    await world.advance(100_000)
    assert await receive(world) == []


async def test_a_receipt_is_good_until_the_message_is_received_again(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    first = await receive(world)
    await world.advance(60_000)
    assert await ack(world, first[0]) == [True]
    again = await receive(world)
    assert bodies(again) == ["b"]
    assert await ack(world, first[1]) == [False]
    assert await ack(world, again[0]) == [True]
    assert await ack(world, again[0]) == [True]  # the answer may have been lost: saying it twice is fine


async def test_after_an_acknowledgement_only_another_acknowledgement_is_ok(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    [done, held] = await receive(world)
    assert await ack(world, done) == [True]
    groups, receipts = world.engine.groups, [done.receipt, held.receipt]
    for results in (
        await groups.extend("orders", "g", receipts, 60_000),
        await groups.nack("orders", "g", receipts, reason="too late for the first"),
    ):
        assert [(one.ok, one.code) for one in results] == [(False, "receipt_ended"), (True, None)]
    assert await ack(world, done) == [True]


async def test_of_an_acknowledgement_and_what_undoes_it_at_the_same_time_one_is_ok(world):
    await world.open()
    await put(world, max_attempts=1)
    groups = world.engine.groups
    for undo in ("nack", "extend"):
        for first in ("ack", undo):
            await send(world, "a")
            receipts = [(await receive(world))[0].receipt]
            calls = {
                "ack": lambda got=receipts: groups.ack("orders", "g", got),
                "nack": lambda got=receipts: groups.nack("orders", "g", got),
                "extend": lambda got=receipts: groups.extend("orders", "g", got, 60_000),
            }
            second = undo if first == "ack" else "ack"
            [[one], [other]] = await asyncio.gather(calls[first](), calls[second]())
            assert one.ok
            # An extension leaves the receipt good for the acknowledgement; nothing else leaves it good.
            assert (other.ok, other.code) == ((True, None) if first == "extend" else (False, "receipt_ended"))
            assert not items(world)


async def test_a_receipt_that_was_not_given_out_or_is_of_another_group_is_refused(world):
    await world.open()
    await put(world)
    await put(world, group="h")
    await send(world, "a")
    got = await receive(world)
    await receive(world, group="h")
    forged = [got[0].receipt[:-1] + "0", "", "zz", "0" * 32, got[0].receipt.upper()]
    results = await world.engine.groups.ack("orders", "g", forged)
    assert {r.code for r in results if r.receipt != got[0].receipt} == {"illegal_receipt"}
    results = await world.engine.groups.ack("orders", "h", [got[0].receipt])
    assert [r.code for r in results] == ["illegal_receipt"]


async def test_after_its_last_attempt_a_message_is_a_dead_letter_with_the_reason(world):
    await world.open()
    await put(world, max_attempts=2)
    await send(world, "a", "b", COLOUR="red")
    await receive(world)
    await world.advance(6_000)
    got = await receive(world)
    assert [d.attempt for d in got] == [2, 2]
    await world.engine.groups.nack("orders", "g", [got[0].receipt], reason="HTTP 500")
    await world.advance(5_000)
    assert await receive(world) == []
    page = await world.engine.groups.dead.page("g")
    assert [letter.message.body for letter in page.letters] == [b"a", b"b"]
    assert [letter.reason for letter in page.letters] == [
        "HTTP 500",
        "attempt 2 was not acknowledged in time",
    ]
    assert [letter.origin_topic for letter in page.letters] == ["orders", "orders"]
    assert page.letters[0].origin_id == got[0].message.id
    assert page.letters[0].message.properties["COLOUR"] == "red"
    assert not items(world)
    assert world.engine.groups.info("orders", "g").dead_letters == 2
    assert [m.body for m in await world.delivered("%DLQ%g")] == [b"a", b"b"]


async def test_dead_letters_are_redriven_once_or_dropped(world):
    await world.open()
    await put(world, max_attempts=1)
    await send(world, "a", "b", "c")
    await receive(world)
    await world.advance(5_000)
    assert (await world.engine.groups.dead.redrive("g", [0])).redriven == 1
    assert (await world.engine.groups.dead.redrive("g", [0])).redriven == 0
    await world.advance(0)
    got = await receive(world)
    assert bodies(got) == ["a"]
    assert got[0].attempt == 1
    assert got[0].message.properties["DLQ_ORIGIN_TOPIC"] == "orders"
    assert await ack(world, got[0]) == [True]
    assert await world.engine.groups.dead.drop("g", [1]) == 1
    page = await world.engine.groups.dead.page("g")
    assert [letter.offset for letter in page.letters] == [2]
    assert (await world.engine.groups.dead.redrive("g")).redriven == 1
    await world.restart()
    assert bodies(await receive(world)) == ["c"]
    assert world.engine.groups.info("orders", "g").dead_letters == 0


async def test_what_a_group_holds_is_there_after_a_planned_restart(world):
    await world.open()
    await put(world, max_attempts=3)
    await send(world, *"abcdefgh")
    got = await receive(world, 5)
    await ack(world, got[0])
    await world.engine.groups.nack("orders", "g", [got[1].receipt], delay_ms=2_000)
    await world.engine.groups.extend("orders", "g", [got[2].receipt], 60_000)
    before = world.engine.groups.info("orders", "g")
    assert (before.in_flight, before.waiting, before.lag) == (3, 1, 3)
    await world.restart()
    assert world.engine.groups.info("orders", "g") == before
    assert await ack(world, got[3]) == [True]
    assert bodies(await receive(world)) == ["f", "g", "h"]
    await world.advance(2_000)
    again = await receive(world)
    assert bodies(again) == ["b"]
    assert again[0].attempt == 2
    await world.advance(10_000)
    assert "e" in bodies(await receive(world))
    assert await ack(world, got[2]) == [True]


@pytest.mark.parametrize("how", ["crash", "lose_index"])
async def test_after_a_crash_what_was_in_flight_comes_at_once_as_the_same_attempt(world, how):
    await world.open()
    await put(world, max_attempts=3)
    await send(world, *"abcdefgh")
    got = await receive(world, 6)
    await ack(world, got[0])
    await world.engine.groups.nack("orders", "g", [got[1].receipt], delay_ms=2_000)
    await world.engine.groups.extend("orders", "g", [got[2].receipt], 60_000)
    await getattr(world, how)()
    info = world.engine.groups.info("orders", "g")
    assert (info.in_flight, info.waiting, info.lag) == (0, 1, 6)
    # Receipts from before are good while nobody has received their messages since.
    assert await ack(world, got[3], got[0], got[1]) == [True, False, False]
    results = await world.engine.groups.extend("orders", "g", [got[4].receipt], 20_000)
    assert [result.ok for result in results] == [True]
    again = await receive(world)
    assert [(d.message.body, d.attempt) for d in again] == [(body.encode(), 1) for body in "cfgh"]
    assert await ack(world, got[2], got[5]) == [False, False]
    assert await ack(world, got[4], *again) == [True] * 5
    await world.advance(2_000)
    [last] = await receive(world)
    assert (last.message.body, last.attempt) == (b"b", 2)
    await getattr(world, how)()
    [last] = await receive(world)  # it was in flight: the second attempt again
    assert (last.message.body, last.attempt) == (b"b", 2)
    assert await ack(world, last) == [True]
    assert not items(world)


async def test_receiving_and_extending_store_nothing(world):
    await world.open()
    await put(world)
    await send(world, *"abc")
    tail, space = world.engine.core.log.tail, world.files.space_bytes
    world.files.space_bytes = 0
    got = await receive(world, 2)
    results = await world.engine.groups.extend("orders", "g", [d.receipt for d in got], 9_000)
    assert [result.ok for result in results] == [True, True]
    assert world.engine.core.log.tail == tail
    assert world.engine.core.state.leases == 0
    assert not items(world)
    world.files.space_bytes = space
    assert await ack(world, *got) == [True, True]


async def test_when_the_invisibility_ends_the_attempt_has_failed_and_a_late_acknowledgement_counts(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    got = await receive(world)

    def counts():
        info = world.engine.groups.info("orders", "g")
        return info.in_flight, info.waiting, info.ready

    await world.advance(4_999)
    assert counts() == (2, 0, 0)
    await world.advance(1)
    assert counts() == (0, 2, 0)
    groups = world.engine.groups
    for call in (
        groups.extend("orders", "g", [got[0].receipt], 5_000),
        groups.nack("orders", "g", [got[0].receipt]),
    ):
        assert [result.code for result in await call] == ["receipt_ended"]
    assert await ack(world, got[0]) == [True]
    await world.advance(1_000)
    assert counts() == (0, 0, 1)
    assert await ack(world, got[1]) == [True]
    assert counts() == (0, 0, 0)
    await world.advance(100_000)
    assert await receive(world) == []


@pytest.mark.parametrize("anew", [False, True])
async def test_the_receipts_of_a_group_end_when_it_is_rewound_or_made_again(world, anew):
    await world.open()
    await put(world)
    await send(world, "a")
    got = await receive(world)
    groups = world.engine.groups
    if anew:
        await groups.delete("orders", "g")
        await put(world)
    else:
        await groups.rewind("orders", "g", to="head")
    for call in (groups.ack, groups.nack):
        assert [result.code for result in await call("orders", "g", [got[0].receipt])] == ["receipt_ended"]
    extended = await groups.extend("orders", "g", [got[0].receipt], 5_000)
    assert [result.code for result in extended] == ["receipt_ended"]
    assert [d.attempt for d in await receive(world)] == [1]


async def test_a_new_group_starts_at_the_head_or_at_the_tail(world):
    await world.open()
    await send(world, "old")
    assert bodies(await receive(world, group="all")) == ["old"]
    assert await receive(world, group="new", start="tail") == []
    await send(world, "young")
    assert bodies(await receive(world, group="all")) == ["young"]
    assert bodies(await receive(world, group="new")) == ["young"]


async def test_a_group_of_a_topic_that_has_no_message_yet_gets_the_first(world):
    await world.open()
    assert await receive(world, start="tail") == []
    await send(world, "first")
    assert bodies(await receive(world)) == ["first"]


async def test_rewinding_delivers_again_what_lies_behind_the_new_place(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    await world.advance(10)
    middle_ms = world.clock.now_ms()
    await send(world, "c", "d")
    got = await receive(world)
    await ack(world, got[0], got[1], got[2])
    await world.engine.groups.rewind("orders", "g", time_ms=middle_ms)
    assert await ack(world, got[3]) == [False]
    assert world.engine.core.state.leases == 0
    assert bodies(await receive(world)) == ["c", "d"]
    await world.engine.groups.rewind("orders", "g", offsets={0: 1})
    assert bodies(await receive(world)) == ["b", "c", "d"]
    await world.engine.groups.rewind("orders", "g", to="head")
    assert bodies(await receive(world)) == ["a", "b", "c", "d"]
    await world.engine.groups.rewind("orders", "g", to="tail")
    assert await receive(world) == []
    await world.advance(100_000)
    assert await receive(world) == []


async def test_a_filter_passes_what_it_does_not_want_and_all_consumers_share_it(world):
    await world.open()
    await send(world, "a", TAGS="A")
    await send(world, "b", TAGS="B")
    await send(world, "none")
    await send(world, "c", TAGS="C")
    assert bodies(await receive(world, tags="A || C")) == ["a", "c"]
    with pytest.raises(GroupDiffersError):
        await receive(world, tags="B")
    await send(world, "c2", TAGS="C")
    assert bodies(await receive(world, tags="C||A")) == ["c2"]
    assert bodies(await receive(world)) == []


async def test_a_cursor_far_over_messages_of_other_tags_is_remembered(world):
    await world.open(segment_size_bytes=1 << 20)
    await receive(world, tags="A")
    for _ in range(30):
        await send(world, *["x"] * 50, TAGS="B")
    await send(world, "a", TAGS="A")
    assert bodies(await receive(world, 1)) == ["a"]
    for _ in range(30):
        await send(world, *["x"] * 50, TAGS="B")
    assert await receive(world) == []
    await settle(world.engine)
    assert world.engine.groups.info("orders", "g").lag == 0
    await world.crash()
    assert world.engine.groups.info("orders", "g").lag == 1  # the one that was in flight
    assert bodies(await receive(world)) == ["a"]


async def test_ordered_topics_have_one_message_of_a_key_in_flight(world):
    await world.open()
    await world.engine.topics.change("orders", ordered=True)
    await put(world)
    for body in ("a1", "b1", "a2", "a3", "b2"):
        await send(world, body, __SHARDINGKEY=body[0])
    await send(world, "free")
    first = await receive(world)
    assert bodies(first) == ["a1", "b1", "free"]
    assert await receive(world) == []
    assert world.engine.groups.info("orders", "g").parked == 3
    await ack(world, first[0])
    second = await receive(world)
    assert bodies(second) == ["a2"]
    await world.crash()
    info = world.engine.groups.info("orders", "g")
    assert (info.parked, info.lag) == (0, 5)
    await world.engine.groups.nack("orders", "g", [second[0].receipt], delay_ms=1_000)
    again = await receive(world)
    assert bodies(again) == ["b1", "free"]
    assert await receive(world) == []
    await ack(world, again[0])
    assert bodies(await receive(world)) == ["b2"]
    await world.advance(1_000)
    again = await receive(world)
    assert bodies(again) == ["a2"]
    assert again[0].attempt == 2
    await ack(world, *again)
    assert bodies(await receive(world)) == ["a3"]


async def test_leases_do_not_count_as_pending_messages_nor_show_up_as_such(world):
    await world.open()
    await send(world, "a", "b")
    await receive(world)
    assert await world.pending_ids() == []
    assert (await world.engine.messages.wheel()).pending == 0
    assert [t.topic for t in world.engine.queues.topics() if not t.system] == ["orders"]


async def test_a_deleted_group_is_gone_and_its_timers_with_it(world):
    await world.open()
    await send(world, "a", "b")
    got = await receive(world)
    await world.engine.groups.delete("orders", "g")
    assert world.engine.groups.all() == []
    assert world.engine.core.state.leases == 0
    await world.crash()
    assert world.engine.groups.all() == []
    assert bodies(await receive(world)) == ["a", "b"]
    assert await ack(world, got[0]) == [False]


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_another_filter_looks_again_at_what_was_skipped_since_a_message_was_chosen(world, wait_ms):
    await world.open()
    await put(world, tags="A")
    await send(world, "b1", "b2", TAGS="B")
    assert await receive(world) == []
    assert world.engine.groups.info("orders", "g").lag == 0  # looked at, and left out
    waiting = asyncio.create_task(receive(world, wait_ms=wait_ms)) if wait_ms else None
    await asyncio.sleep(0)
    await put(world, tags="A || B")
    got = await (waiting or receive(world))
    await send(world, "a", TAGS="A")
    got += await receive(world)
    assert bodies(got) == ["b1", "b2", "a"]
    await world.restart()
    assert await receive(world) == []


async def test_a_group_that_rests_holds_no_messages_in_memory_that_it_has_passed(world):
    await world.open(batch_bytes_max=1 << 20)
    await put(world, tags="A")
    for _ in range(5):
        await world.engine.sender.send([Outgoing("orders", b"x" * 4096, {"TAGS": "B"}) for _ in range(100)])
    await send(world, *"abc", TAGS="A")
    assert bodies(await receive(world, 1)) == ["a"]
    chooser = world.engine.groups.runtimes["orders/g"].leasing.chooser
    assert 0 < chooser.read_ahead_bytes < 4096  # of "b" and "c", and none of the others
    assert bodies(await receive(world)) == ["b", "c"]
    assert chooser.read_ahead_bytes == 0


async def test_a_group_tells_how_old_the_oldest_message_is_that_it_is_not_done_with(world):
    await world.open()
    await put(world, max_attempts=2)

    async def oldest_ms():
        return (await world.engine.groups.describe("orders", "g")).oldest_age_ms

    assert await oldest_ms() is None
    await send(world, "a")
    await world.advance(2_000)
    await send(world, "b", "c")
    await world.advance(1_000)
    assert await oldest_ms() == 3_000  # not seen yet
    [first, second] = await receive(world, 2)
    assert await oldest_ms() == 3_000  # in flight
    assert await ack(world, first) == [True]
    assert await oldest_ms() == 1_000
    await world.engine.groups.nack("orders", "g", [second.receipt])
    await world.lose_index()
    assert await oldest_ms() == 1_000  # waits for its next attempt, which its age does not care for
    [third] = await receive(world)
    assert await ack(world, third) == [True]
    await world.advance(10_000)
    assert await oldest_ms() == 11_000
    [last] = await receive(world)
    await world.engine.groups.nack("orders", "g", [last.receipt])
    assert await oldest_ms() is None  # a dead letter is not the group's any more
    await world.advance(500)
    await world.engine.groups.dead.redrive("g")
    assert await oldest_ms() == 500
    assert [info.oldest_age_ms for info in await world.engine.groups.describe_each([("orders", "g")])] == [
        500
    ]


async def test_a_late_acknowledgement_counts_for_the_attempt_that_failed_last_alone(world):
    await world.open()
    await put(world)
    await send(world, "a")
    [first] = await receive(world)
    await world.advance(6_000)
    [second] = await receive(world)
    assert second.attempt == 2
    await world.advance(5_000)
    for _ in range(2):  # while it waits, and when it is ready
        assert await ack(world, first) == [False]
        await world.advance(2_000)
    assert await ack(world, second) == [True]
    assert not items(world)


@pytest.mark.parametrize("how", ["extend", "nack"])
async def test_after_a_crash_only_the_attempt_that_was_in_flight_is_prolonged_or_given_back(world, how):
    await world.open()
    await put(world)
    await send(world, "a")
    [first] = await receive(world)
    await world.advance(6_000)
    [second] = await receive(world)
    await world.crash()
    options = {"invisible_ms": 9_000} if how == "extend" else {}
    call = getattr(world.engine.groups, how)
    assert [one.code for one in await call("orders", "g", [first.receipt], **options)] == ["receipt_ended"]
    assert world.engine.groups.info("orders", "g").ready == 1
    assert [one.code for one in await call("orders", "g", [second.receipt], **options)] == [None]
    info = world.engine.groups.info("orders", "g")
    assert (info.in_flight, info.waiting) == ((1, 0) if how == "extend" else (0, 1))
