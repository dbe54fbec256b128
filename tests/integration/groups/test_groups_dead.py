"""Dead letters that are large, many, or lie behind many that were dealt with: found, in bounded portions."""

import asyncio
import tracemalloc

import numpy as np
import pytest

from tests.harness.consumers import bodies, items, put, receive, send
from tests.harness.drive import settle
from tests.harness.group_checks import check_groups
from tests.integration.engine.test_failure import damage_record
from timerwheel.groups.dead_letter_filter import DeadLetterFilter
from timerwheel.groups.dead_lettering import UNIT_BYTES, UNIT_MESSAGES_MAX
from timerwheel.groups.dead_letters import PASSED_OVER_MAX
from timerwheel.model.listing import Times
from timerwheel.model.messages import DeadPage, Outgoing
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.store.record import FLAG_MORE, Kind

MIB = 1 << 20
RECORD_BYTES_MAX = 1_024  # of a record besides its body, in these tests
MANY = 1_300
LEFT = [0, 1, 499, 500, 777, 1_200, MANY - 1]


async def open_large(world):
    """Few segments, so that what is large and many is quickly there."""
    return await world.open(segment_size_bytes=256 * MIB, index_records_max=100_000, fire_records_max=1_000)


async def die(world, count, size_bytes=0, before=0):
    """Have this many messages of orders become dead letters of g; the body of the n-th begins with n.

    There were `before` dead letters.
    """
    messages = [Outgoing("orders", str(n).encode().ljust(size_bytes, b"-")) for n in range(count)]
    at_once = 500 if size_bytes < MIB else 4
    for at in range(0, count, at_once):
        await world.engine.sender.send(messages[at : at + at_once])
    got = 0
    while got < count:
        got += len(await receive(world, 1_000))
    await world.advance(5_000)
    assert world.engine.groups.info("orders", "g").dead_letters == before + count


async def pages(world, limit=100):
    """Every page of the dead letters of g."""
    found = [await world.engine.groups.dead.page("g", 0, limit)]
    while (at := found[-1].next_offset) is not None:
        found.append(await world.engine.groups.dead.page("g", at, limit))
    return found


def offsets(found):
    return [letter.offset for page in found for letter in page.letters]


def units(engine, start):
    """The rows of each unit that the log holds from an offset on, with topics as the view numbers them."""
    found = []
    for table in engine.core.log.tables(start):
        names = np.array([engine.core.state.topics[name].id for name in table.topics], np.uint32)
        table.rows["topic"] = names[table.rows["topic"]]
        found.append(table.rows)
    rows = np.concatenate(found)
    return np.split(rows, np.flatnonzero(rows["flags"] & FLAG_MORE == 0)[:-1] + 1)


def dead_letter_units(engine, start):
    """The units in which messages of g were given up since a log offset."""
    dead = engine.core.state.topics["%DLQ%g"].id
    return [unit for unit in units(engine, start) if (unit["topic"] == dead).any()]


def each_letter_ends_its_message(unit):
    """A unit of copies of fresh messages and their ends, one of each for each message."""
    return np.array_equal(unit["kind"], np.tile([Kind.MESSAGE, Kind.ACK], len(unit) // 2))


# ---------------------------------------------------------------------- pages


async def test_a_page_of_dead_letters_is_bounded_by_bytes_and_pages_have_each_letter_once(world):
    await open_large(world)
    await put(world, max_attempts=1)
    size_bytes = 3 * MIB
    await die(world, 14, size_bytes)
    found = await pages(world)
    assert offsets(found) == list(range(14))
    for page in found:
        size = sum(len(letter.message.body) for letter in page.letters)
        assert size <= PAGE_BYTES_MAX + size_bytes
    assert len(found) == 3


async def test_a_letter_says_which_end_its_last_attempt_had_though_the_limit_was_lowered_later(world):
    await world.open()
    await put(world, max_attempts=5)
    await world.engine.sender.send([Outgoing("orders", b"given back"), Outgoing("orders", b"late")])
    given_back, _ = await receive(world)
    await world.engine.groups.nack("orders", "g", [given_back.receipt], reason="no")
    await world.advance(5_000)
    await put(world, max_attempts=1)
    await settle(world.engine)
    await world.advance(60_000)
    [page] = await pages(world)
    assert {letter.message.body: letter.reason for letter in page.letters} == {
        b"given back": "nacked, and max_attempts was lowered to 1",
        b"late": "attempt 1 was not acknowledged in time",
    }


async def test_a_letter_that_is_larger_than_a_page_is_a_page_of_its_own(world):
    await world.open(segment_size_bytes=256 * MIB, body_bytes_max=PAGE_BYTES_MAX + MIB)
    await put(world, max_attempts=1)
    await die(world, 3, PAGE_BYTES_MAX + 1)
    assert [offsets([page]) for page in await pages(world)] == [[0], [1], [2]]
    assert await world.engine.groups.dead.drop("g") == 3


async def test_all_of_many_large_letters_are_redriven_or_dropped(world):
    await open_large(world)
    await put(world, max_attempts=1)
    await die(world, 12, 2 * MIB)
    letters = [letter.message.body.decode() for page in await pages(world) for letter in page.letters]
    assert await world.engine.groups.dead.drop("g", range(0, 12, 3)) == 4
    start = world.engine.core.log.tail
    assert await world.engine.groups.dead.redrive("g") == (8, 0)
    await world.advance(0)
    got = [delivery for _ in range(2) for delivery in await receive(world)]
    assert bodies(got) == [letters[offset] for offset in (1, 2, 4, 5, 7, 8, 10, 11)]
    assert world.engine.core.log.tail - start < MIB  # no body is stored a second time
    check_groups(world.engine)


async def test_a_page_reads_a_bounded_number_of_letters_that_do_not_meet_its_conditions(world):
    await open_large(world)
    await put(world, max_attempts=1)
    await die(world, PASSED_OVER_MAX + 2)
    dead = world.engine.groups.dead
    nothing = DeadLetterFilter(reason="nobody says this")
    first = await dead.page("g", 0, 100, nothing)
    assert (first.letters, first.next_offset) == ([], PASSED_OVER_MAX)
    assert await dead.page("g", PASSED_OVER_MAX, 100, nothing) == DeadPage([], None)
    assert await dead.drop("g", None, nothing) == 0
    last = DeadLetterFilter(died=Times((await pages(world))[-1].letters[-1].dead_ms))
    assert await dead.drop("g", [0], nothing) == 0
    assert await dead.drop("g", [0], DeadLetterFilter(topics={"orders"})) == 1
    assert 0 < await dead.drop("g", None, last) <= PASSED_OVER_MAX + 1


# ---------------------------------------------------------------------- giving up


async def test_messages_that_die_together_are_stored_in_units_bounded_by_bytes(world):
    await open_large(world)
    await put(world, max_attempts=1)
    start = world.engine.core.log.tail
    size_bytes = 3 * MIB // 2
    await die(world, 14, size_bytes)
    found = dead_letter_units(world.engine, start)
    assert sum(len(unit) for unit in found) == 2 * 14
    for unit in found:
        assert each_letter_ends_its_message(unit)
        assert unit["size"].sum() < UNIT_BYTES + size_bytes + RECORD_BYTES_MAX * len(unit)
    assert len(found) == 5
    assert not items(world)
    check_groups(world.engine)


async def test_messages_that_are_given_back_for_the_last_time_together_are_stored_so_too(world):
    await open_large(world)
    await put(world, max_attempts=1)
    size_bytes = 3 * MIB // 2
    for n in range(10):
        await send(world, str(n).ljust(size_bytes, "-"))
    got = await receive(world)
    assert len(got) == 10
    start = world.engine.core.log.tail
    results = await world.engine.groups.nack("orders", "g", [d.receipt for d in got], reason="no use")
    assert all(result.ok for result in results)
    found = dead_letter_units(world.engine, start)
    assert [len(unit) for unit in found] == [6, 6, 6, 2]
    assert all(map(each_letter_ends_its_message, found))
    [page] = await pages(world)
    assert [(letter.reason, int(letter.message.body.rstrip(b"-"))) for letter in page.letters] == [
        ("no use", n) for n in range(10)
    ]


async def test_many_small_messages_that_die_together_are_stored_in_units_bounded_by_their_number(world):
    await open_large(world)
    await put(world, max_attempts=1)
    start = world.engine.core.log.tail
    await die(world, 3 * UNIT_MESSAGES_MAX + 7)
    sizes = [len(unit) // 2 for unit in dead_letter_units(world.engine, start)]
    assert max(sizes) <= UNIT_MESSAGES_MAX
    assert sum(sizes) == 3 * UNIT_MESSAGES_MAX + 7


# ---------------------------------------------------------------------- behind many that were dealt with


async def all_but_few(world):
    """Many dead letters of which all but LEFT were dropped."""
    await open_large(world)
    await put(world, max_attempts=1)
    await die(world, MANY)
    gone = [offset for offset in range(MANY) if offset not in LEFT]
    assert await world.engine.groups.dead.drop("g", gone) == len(gone)


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_letters_behind_many_that_were_dealt_with_are_listed(world, limit):
    await all_but_few(world)
    found = await pages(world, limit)
    assert offsets(found) == LEFT
    assert all(len(page.letters) == limit for page in found[:-1])
    assert found[-1].letters


@pytest.mark.parametrize("start", [None, "restart", "lose_index"])
async def test_letters_behind_many_that_were_dealt_with_are_redriven_and_dropped_by_offset(world, start):
    await all_but_few(world)
    if start is not None:
        await getattr(world, start)()
    dead = world.engine.groups.dead
    [letter] = (await dead.page("g", 1_200, 1)).letters
    assert await dead.redrive("g", [1_200]) == (1, 0)
    assert await dead.drop("g", [MANY - 1, 499, 499]) == 2
    assert offsets(await pages(world)) == [0, 1, 500, 777]
    await settle(world.engine)
    assert bodies(await receive(world)) == [letter.message.body.decode()]
    check_groups(world.engine)


async def test_offsets_at_which_no_letter_is_are_passed_over(world):
    await all_but_few(world)
    dead = world.engine.groups.dead
    tail = world.engine.core.log.tail
    nowhere = [2, 498, 776, MANY, MANY + 1_000, 1 << 40]
    assert await dead.drop("g", nowhere) == 0
    assert await dead.redrive("g", nowhere) == (0, 0)
    assert await dead.drop("other", [0]) == 0
    assert world.engine.core.log.tail == tail
    assert await dead.redrive("g", [*nowhere, 777, 2]) == (1, 0)
    assert await dead.redrive("g", [777]) == (0, 0)
    assert offsets(await pages(world)) == [offset for offset in LEFT if offset != 777]


async def test_the_offset_of_a_letter_that_retention_removed_stands_for_no_other(world):
    await world.open(retention_ms=60_000)
    await put(world, max_attempts=1)
    await die(world, 2)
    await world.roll()
    await world.advance(60_001)
    await send(world, "late")
    await receive(world)
    await world.advance(5_000)
    assert world.engine.core.log.bases[0] > 0  # retention has taken its turn meanwhile
    dead = world.engine.groups.dead
    assert offsets(await pages(world)) == [2]
    assert await dead.redrive("g", [0, 1]) == (0, 0)
    assert await dead.drop("g", [0, 1]) == 0
    assert await dead.redrive("g", [1, 2]) == (1, 0)
    await settle(world.engine)
    assert bodies(await receive(world)) == ["late"]


async def test_a_letter_by_its_offset_is_read_alone(world):
    await world.open(segment_size_bytes=MIB)  # a sync copies the last segment: no letter shall be in that
    await put(world, max_attempts=1)
    await die(world, 12, 2 * MIB)
    await world.engine.groups.dead.drop("g", range(8))
    await settle(world.engine)
    tracemalloc.start()
    try:
        assert await world.engine.groups.dead.drop("g", [10]) == 1
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * MIB, "more than this letter was read"


async def test_a_damaged_letter_is_shown_stays_when_redriven_and_can_be_dropped(world):
    await world.open()
    await put(world, max_attempts=1)
    await die(world, 3, 100)
    dead = world.engine.groups.dead
    [page] = await pages(world)
    damage_record(world, page.letters[1].message.id)
    [page] = await pages(world)
    assert [letter.message.problem is None for letter in page.letters] == [True, False, True]
    assert page.letters[1].message.id == (await dead.page("g", 1, 1)).letters[0].message.id
    assert await dead.redrive("g") == (2, 1)
    assert offsets(await pages(world)) == [1]
    assert await dead.redrive("g", [1]) == (0, 1)
    assert await dead.drop("g", [1]) == 1
    assert world.engine.groups.info("orders", "g").dead_letters == 0


async def test_an_error_that_nobody_expected_delays_dead_letters_and_is_logged_once_a_second(world, caplog):
    await world.open()
    await put(world, max_attempts=1, invisible_ms=1_000)
    await send(world, "a")
    await receive(world)
    positions = world.engine.queues.positions

    async def failing(*_):
        raise RuntimeError("a fault")

    world.engine.queues.positions = failing
    world.clock.advance(1_000)
    for _ in range(200):
        await asyncio.sleep(0)
    assert caplog.text.count("RuntimeError: a fault") == 1
    world.engine.queues.positions = positions
    await world.advance(1_000)
    assert len((await world.engine.groups.dead.page("g")).letters) == 1


async def test_of_more_letters_than_a_group_can_hold_as_many_go_back_as_it_can(world):
    await world.open(group_items_max=100)
    await put(world, max_attempts=1)
    await die(world, 100)
    await die(world, 50, before=100)
    dead = world.engine.groups.dead
    assert await dead.redrive("g") == (100, 50)
    assert await dead.redrive("g") == (0, 50)
    assert len(items(world)) == 100
    check_groups(world.engine)
    got = await receive(world, 30)
    await world.engine.groups.ack("orders", "g", [one.receipt for one in got])
    assert await dead.redrive("g") == (len(got), 50 - len(got))
