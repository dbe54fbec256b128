"""Leases over a planned stop: they are noted in the log, and the next start takes them over."""

import random

import pytest

from tests.harness.consumers import ack, bodies, items, put, receive, send
from tests.harness.drive import settle, small_settings
from tests.harness.group_checks import check_groups
from tests.harness.memory_journal import MemoryJournal
from tests.harness.world import World
from timerwheel.engine import Engine, LogOptions
from timerwheel.groups import groups as groups_module
from timerwheel.groups.choosing import Chooser
from timerwheel.groups.config import INVISIBLE_MS_MAX
from timerwheel.settings import DAY_MS
from timerwheel.state.config_table import ConfigTable, Put, encode_puts
from timerwheel.store.errors import NoSpaceError


def noted(world):
    return world.engine.control.items(ConfigTable.LEASES)


def counts(world, group="g"):
    info = world.engine.groups.info("orders", group)
    return info.in_flight, info.waiting, info.ready


async def restart_after(world, stopped_ms):
    await world.engine.close()
    world.clock.advance(stopped_ms)
    await world.open()


async def close_without_space(world):
    """Close while nothing can be stored."""
    space, world.files.space_bytes = world.files.space_bytes, 0
    await world.engine.close()
    world.files.space_bytes = space


async def fresh_and_retried(world):
    """Of five messages b is leased for the second time, and c and d for the first, d until later; a waits."""
    await world.open()
    await put(world, max_attempts=3)
    await send(world, *"abcde")
    a, b = await receive(world, 2)
    await world.engine.groups.nack("orders", "g", [b.receipt], delay_ms=1_000)
    await world.engine.groups.nack("orders", "g", [a.receipt], delay_ms=50_000)
    await world.advance(1_000)
    b, c, d = await receive(world, 3)
    assert [(x.message.body, x.attempt) for x in (b, c, d)] == [(b"b", 2), (b"c", 1), (b"d", 1)]
    await world.engine.groups.extend("orders", "g", [d.receipt], 8_000)
    assert counts(world) == (3, 1, 0)
    return b, c, d


async def test_if_the_clock_was_set_back_while_it_was_stopped_a_lease_lasts_no_longer_than_one_may(world):
    await world.open()
    await put(world)
    await send(world, "a")
    await receive(world, 1)
    await world.engine.close()
    world.clock.step(-30 * DAY_MS)
    await world.open()
    assert counts(world) == (1, 0, 0)
    await world.advance(INVISIBLE_MS_MAX - 1)
    assert counts(world) == (1, 0, 0)
    await world.advance(1)
    assert counts(world) == (0, 1, 0)


@pytest.mark.parametrize("gone_ms", [0, 3_000, 4_000, 9_000])
@pytest.mark.parametrize("up_ms", [0, 10**9])
async def test_on_the_node_that_leads_next_a_lease_ends_and_comes_back_when_it_would_have(
    tmp_path, gone_ms, up_ms
):
    journal, nodes = MemoryJournal(), [World(tmp_path / name) for name in ("first", "second")]
    first, second = nodes
    second.clock.mono_ms = up_ms  # another machine has been up for another time

    async def lead(node):
        settings = small_settings(node.directory)
        log = LogOptions(journal=journal.leader(node.files))
        node.engine = await Engine.open(settings, node.clock, node.files, threads=False, log=log)
        await settle(node.engine)

    await lead(first)
    await put(first)
    await send(first, "a")
    [held] = await receive(first, invisible_ms=4_000)
    await first.engine.close()
    second.clock.advance(gone_ms)
    await lead(second)
    back_ms = 4_000 + 1_000 - gone_ms  # the lease, and the delay after the first attempt
    if gone_ms < 4_000:
        assert counts(second) == (1, 0, 0)
        await second.advance(4_000 - gone_ms)
        back_ms = 1_000
    if back_ms > 0:
        assert counts(second) == (0, 1, 0)
        await second.advance(back_ms - 1)
        assert await receive(second) == []
        await second.advance(1)
    [again] = await receive(second)
    assert (again.message.id, again.attempt) == (held.message.id, 2)
    await second.engine.close()


@pytest.mark.parametrize("starts", [1, 3])
async def test_a_planned_restart_keeps_leases_their_receipts_their_attempts_and_the_time_they_have_left(
    world, starts
):
    b, c, d = await fresh_and_retried(world)
    before = world.engine.groups.info("orders", "g")
    for _ in range(starts):
        await restart_after(world, 1_000)
    assert world.engine.groups.info("orders", "g") == before
    check_groups(world.engine)
    assert bodies(await receive(world, invisible_ms=100_000)) == ["e"]
    await world.advance(4_999 - starts * 1_000)
    assert counts(world) == (4, 1, 0)
    await world.advance(1)
    assert counts(world) == (2, 3, 0)
    for receipt in (b.receipt, c.receipt):
        [result] = await world.engine.groups.extend("orders", "g", [receipt], 1_000)
        assert result.code == "receipt_ended"
    assert await ack(world, b, d) == [True, True]
    await world.advance(1_000)
    [again] = await receive(world)
    assert (again.message.body, again.attempt) == (b"c", 2)


async def test_a_kept_lease_ends_in_time_though_nobody_calls(world):
    await fresh_and_retried(world)
    await restart_after(world, 2_000)
    await world.advance(3_000)
    assert counts(world) == (1, 3, 0)
    await world.advance(3_000)
    assert counts(world) == (0, 2, 2)


async def test_a_kept_lease_is_given_back_extended_and_not_received_by_others(world):
    b, c, d = await fresh_and_retried(world)
    await world.restart()
    groups = world.engine.groups
    assert bodies(await receive(world, invisible_ms=100_000)) == ["e"]
    [result] = await groups.extend("orders", "g", [b.receipt], 20_000)
    assert result.ok
    given_back = await groups.nack("orders", "g", [c.receipt, d.receipt], delay_ms=1_000)
    assert [one.ok for one in given_back] == [True, True]
    await world.advance(1_000)
    again = await receive(world, invisible_ms=100_000)
    assert [(x.message.body, x.attempt) for x in again] == [(b"c", 2), (b"d", 2)]
    await world.advance(18_999)
    assert counts(world)[0] == 4
    assert await ack(world, b, c, d, *again) == [True, False, False, True, True]


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
async def test_more_leases_than_one_record_holds_are_all_kept_and_only_those_of_their_group(
    world, kept, monkeypatch
):
    monkeypatch.setattr(groups_module, "KEPT_LEASES", kept)
    await world.open(queues_per_topic=2)
    await put(world)
    await put(world, group="h")
    await send(world, *"abcdefg")
    mine, others = await receive(world), await receive(world, 3, group="h")
    before = world.engine.groups.all()
    await world.restart()
    assert world.engine.groups.all() == before
    assert noted(world) == {}
    assert await receive(world) == []
    assert len(await receive(world, group="h")) == 4
    assert await ack(world, *mine) == [True] * 7
    assert await ack(world, *others, group="h") == [True] * 3
    await world.crash()
    assert await receive(world) == []
    assert noted(world) == {}


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_of_a_key_nothing_follows_a_message_whose_lease_was_kept(world, how):
    await world.open()
    await world.engine.topics.change("orders", ordered=True)
    await put(world)
    await send(world, "a1", "a2", "a3", __SHARDINGKEY="a")
    await send(world, "b1", "b2", __SHARDINGKEY="b")
    [a1, b1] = await receive(world)
    await world.engine.groups.nack("orders", "g", [a1.receipt], delay_ms=1_000)
    await world.advance(1_000)
    [a1] = await receive(world)
    assert (a1.message.body, a1.attempt) == (b"a1", 2)
    assert world.engine.groups.info("orders", "g").parked == 3
    await world.restart()
    info = world.engine.groups.info("orders", "g")
    assert (info.in_flight, info.parked, info.lag) == (2, 0, 3)  # what was parked is looked at again
    assert await receive(world) == []
    assert world.engine.groups.info("orders", "g").parked == 3
    await getattr(world, how)()
    if how == "crash":
        again = {x.message.body: x for x in await receive(world)}
        assert sorted((body, x.attempt) for body, x in again.items()) == [(b"a1", 2), (b"b1", 1)]
        a1, b1 = again[b"a1"], again[b"b1"]
    assert await receive(world) == []
    assert await ack(world, b1) == [True]
    assert bodies(await receive(world)) == ["b2"]
    assert await ack(world, a1) == [True]
    [a2] = await receive(world)
    assert bodies([a2]) == ["a2"]
    await world.restart()
    assert await receive(world) == []
    assert await ack(world, a2) == [True]
    assert bodies(await receive(world)) == ["a3"]
    check_groups(world.engine)


async def test_the_lease_of_a_redriven_message_is_kept(world):
    await world.open()
    await put(world, max_attempts=1)
    await send(world, "a")
    await receive(world)
    await world.advance(5_000)
    await world.engine.groups.dead.redrive("g")
    await world.advance(0)
    [got] = await receive(world)
    await world.restart()
    assert counts(world) == (1, 0, 0)
    assert await receive(world) == []
    assert await ack(world, got) == [True]
    assert not items(world)
    check_groups(world.engine)


@pytest.mark.parametrize("max_attempts", [1, 2])
@pytest.mark.parametrize(
    ("stopped_ms", "ready"), [(5_000, False), (5_999, False), (6_000, True), (99_000, True)]
)
async def test_an_attempt_that_ended_while_the_service_was_stopped_has_failed_at_its_end(
    world, stopped_ms, ready, max_attempts
):
    await world.open()
    await put(world, max_attempts=max_attempts)
    await send(world, "a")
    [got] = await receive(world)
    await restart_after(world, stopped_ms)
    if max_attempts == 1:
        assert counts(world) == (0, 0, 0)
        assert world.engine.groups.info("orders", "g").dead_letters == 1
        assert await ack(world, got) == [False]
        return
    assert counts(world) == (0, not ready, ready)
    again = await receive(world)
    if ready:
        assert [x.attempt for x in again] == [2]
        assert await ack(world, got) == [False]
    else:
        assert again == []
        assert await ack(world, got) == [True]  # late, and nobody received it since
        assert not items(world)


async def test_what_was_finished_after_the_leases_were_noted_stays_finished(world):
    """As when an answer of a consumer is stored behind the note, at the end of a stop."""
    b, c, d = await fresh_and_retried(world)
    groups = world.engine.groups
    await groups.keep_leases()
    assert await ack(world, b) == [True]
    [given_back] = await groups.nack("orders", "g", [c.receipt], delay_ms=3_000)
    assert given_back.ok
    await world.crash()
    assert noted(world) == {}
    assert counts(world) == (1, 2, 0)
    assert bodies(await receive(world, invisible_ms=100_000)) == ["e"]
    assert await ack(world, b, c, d) == [False, False, True]
    check_groups(world.engine)


async def test_a_lease_that_was_noted_before_its_group_was_rewound_is_nobodys(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    got = await receive(world)
    await world.engine.groups.keep_leases()
    await world.engine.groups.rewind("orders", "g", to="head")
    await world.crash()
    assert await ack(world, *got) == [False, False]
    await world.advance(6_000)
    assert bodies(await receive(world)) == ["a", "b"]


async def test_a_stop_without_space_forgets_the_leases_and_receipts_are_good_until_another_receives(world):
    b, c, d = await fresh_and_retried(world)
    await close_without_space(world)
    await world.open()
    assert counts(world) == (0, 1, 1)
    assert await ack(world, c) == [True]
    again = await receive(world)
    assert [(x.message.body, x.attempt) for x in again] == [(b"b", 2), (b"d", 1), (b"e", 1)]
    assert await ack(world, b, d) == [False, False]
    assert await ack(world, *again) == [True] * 3


async def test_a_start_without_space_takes_the_leases_over_and_a_later_one_removes_the_note(world):
    b, c, d = await fresh_and_retried(world)
    await world.engine.close()
    space, world.files.space_bytes = world.files.space_bytes, 0
    await world.open()
    assert counts(world) == (3, 1, 0)
    world.files.space_bytes = space
    assert noted(world) != {}
    assert await ack(world, b) == [True]
    await world.crash()
    assert noted(world) == {}
    assert counts(world) == (2, 1, 0)
    assert bodies(await receive(world)) == ["e"]
    assert await ack(world, b, c, d) == [False, True, True]
    check_groups(world.engine)


async def test_a_note_that_a_start_had_no_space_to_remove_is_removed_once_there_is_space(world):
    await fresh_and_retried(world)
    await world.engine.close()
    space, world.files.space_bytes = world.files.space_bytes, 0
    await world.open()
    await world.advance(1_000)
    assert noted(world) != {}
    world.files.space_bytes = space
    await world.advance(1_000)
    assert noted(world) == {}
    await world.crash()
    assert counts(world) == (0, 1, 1)


async def test_nor_does_a_planned_stop_leave_such_notes_of_leases_that_have_ended(world):
    await world.open()
    for group in ("g", "h"):
        await put(world, group=group)
    await send(world, "a")
    await receive(world)
    held = await receive(world, group="h")
    await world.engine.close()
    space, world.files.space_bytes = world.files.space_bytes, 0
    await world.open()
    world.files.space_bytes = space
    assert await ack(world, *held, group="h") == [True]
    await world.engine.close()
    world.files.space_bytes = 0
    await world.open()
    assert noted(world).keys() == {"orders/g", f"{groups_module.MARKS}orders/g"}
    assert (counts(world), counts(world, "h")) == ((1, 0, 0), (0, 0, 0))
    world.files.space_bytes = space


@pytest.mark.parametrize("how", ["crash", "lose_index", "power cut"])
async def test_a_crash_after_the_next_start_makes_visible_what_the_planned_restart_had_kept(world, how):
    b, c, d = await fresh_and_retried(world)
    await world.restart()
    assert noted(world) == {}
    if how == "power cut":
        await world.crash(random.Random(7))
    else:
        await getattr(world, how)()
    assert noted(world) == {}
    assert counts(world) == (0, 1, 1)
    assert await ack(world, c) == [True]  # a receipt from two starts ago
    again = await receive(world)
    assert [(x.message.body, x.attempt) for x in again] == [(b"b", 2), (b"d", 1), (b"e", 1)]
    assert await ack(world, b, d) == [False, False]


async def test_a_stop_with_no_lease_notes_nothing(world):
    await world.open()
    await put(world)
    await send(world, "a")
    assert await ack(world, *await receive(world)) == [True]
    tail = world.engine.core.log.tail
    await world.engine.close()
    assert world.engine.core.log.tail == tail
    await world.open()
    assert world.engine.core.log.tail == tail


async def test_what_could_not_be_acknowledged_as_the_service_stopped_is_received_again(world):
    await world.open()
    await put(world)
    await send(world, "a", "b")
    [a, b] = await receive(world)
    space, world.files.space_bytes = world.files.space_bytes, 0
    with pytest.raises(NoSpaceError):
        await ack(world, a)
    world.files.space_bytes = space
    await world.restart()
    await settle(world.engine)
    assert await ack(world, a, b) == [True, True]
    assert await receive(world) == []


async def test_many_leases_are_taken_over_at_a_cost_that_grows_with_their_number_alone(world, monkeypatch):
    """Counted in steps, not in time: each message that is passed is looked at once."""
    await world.open(group_items_max=100_000, segment_size_bytes=1 << 22, batch_bytes_max=1 << 20)
    await put(world, invisible_ms=3_600_000)
    for _ in range(4):
        await send(world, *["x"] * 500)
    for _ in range(2):
        await receive(world, 1_000, invisible_ms=3_600_000)
    looked = 0
    is_known = Chooser.is_known

    def counted(self, queue, offset):
        nonlocal looked
        looked += 1
        return is_known(self, queue, offset)

    monkeypatch.setattr(Chooser, "is_known", counted)
    await world.restart()
    for _ in range(10):
        assert world.engine.groups.info("orders", "g").in_flight == 2_000
    assert looked < 3 * 2_000


def test_a_note_of_leases_fits_a_setting_however_long_its_numbers():
    longest = [(1 << 64) - 1, 1_000, (1 << 32) - 1, (1 << 32) - 1, 1 << 45, (1 << 63) - 1]
    encode_puts(
        [Put(ConfigTable.LEASES, "t" * 127 + "/" + "g" * 120, [longest] * groups_module.KEPT_LEASES)], 0
    )
