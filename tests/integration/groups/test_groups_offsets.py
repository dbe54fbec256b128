"""Groups of kind `offsets`: what is committed counts at once, and is in the log after the interval."""

import asyncio

import pytest

from tests.harness.consumers import put
from tests.harness.drive import turns_between
from tests.harness.group_checks import check_groups
from timerwheel.errors import NotReadyError
from timerwheel.groups import offset_commits
from timerwheel.groups.config import (
    GroupConfig,
    GroupDiffersError,
    GroupFieldError,
    GroupTerms,
    UnknownGroupError,
)
from timerwheel.model.messages import Outgoing
from timerwheel.state.config_table import ConfigTable, decode_puts
from timerwheel.store.errors import NoSpaceError
from timerwheel.store.record import Kind

INTERVAL_MS = 5_000
PLACE = ("orders", "g")


async def open_with(world, *, queues=3, count=9, start="head", **limits):
    """An engine, a topic with messages in each queue, and a group."""
    engine = await world.open(**limits)
    await engine.topics.change("orders", queues=queues)
    await engine.sender.send([Outgoing("orders", b"x", queue=n % queues) for n in range(count)])
    await engine.groups.put(*PLACE, GroupConfig(kind="offsets", start=start))
    return engine


def committed(engine, queues=3, place=PLACE):
    return [engine.groups.offsets.committed(*place, queue) for queue in range(queues)]


def events(engine):
    """The changes of cursors in the log, a list for each record."""
    log, found = engine.core.log, []
    for table in log.tables(log.start):
        rows = table.rows
        for offset in rows["offset"][rows["kind"] == int(Kind.CONTROL)].tolist():
            puts = decode_puts(log.read(offset))
            found.append([p for p in puts if p.table in (ConfigTable.CURSOR, ConfigTable.PASSED)])
    return [puts for puts in found if puts]


async def test_never_committed_is_told_from_committed_at_0_and_stays_so(world):
    engine = await open_with(world)
    assert committed(engine) == [None, None, None]
    engine.groups.offsets.commit(*PLACE, {1: 0, 2: 2})
    assert committed(engine) == [None, 0, 2]
    for how in ("restart", "crash", "lose_index"):
        engine = await getattr(world, how)()
        assert committed(engine) == [None, 0, 2]
        check_groups(engine)


async def test_a_group_that_starts_at_the_tail_has_its_place_from_the_start(world):
    engine = await open_with(world, start="tail")
    assert committed(engine) == [3, 3, 3]
    assert engine.groups.info(*PLACE).lag == 0
    await engine.topics.change("orders", queues=4)
    assert engine.groups.offsets.committed(*PLACE, 3) is None


async def test_lag_and_cursors_follow_commits_at_once(world):
    engine = await open_with(world)
    info = engine.groups.info(*PLACE)
    assert (info.lag, info.in_flight, info.waiting, info.ready, info.parked) == (9, 0, 0, 0, 0)
    engine.groups.offsets.commit(*PLACE, {0: 3, 1: 1})
    info = engine.groups.info(*PLACE)
    assert [(q.cursor, q.lag) for q in info.queues] == [(3, 0), (1, 2), (0, 3)]
    assert [(c.lag, c.in_flight) for c in await engine.groups.counts()] == [(5, 0)]
    assert info.config["kind"] == "offsets"
    world.clock.advance(500)
    assert (await engine.groups.describe(*PLACE)).oldest_age_ms == 500
    engine.groups.offsets.commit(*PLACE, dict.fromkeys(range(3), 3))
    assert await engine.groups.oldest_age_ms(*PLACE) is None


async def test_what_all_groups_commit_in_an_interval_is_one_record_with_what_changed(world):
    engine = await open_with(world)
    other = ("orders", "h")
    await engine.groups.put(*other, GroupConfig(kind="offsets"))
    before = len(events(engine))
    for offset in range(4):
        engine.groups.offsets.commit(*PLACE, {0: offset})
    engine.groups.offsets.commit(*other, {1: 1})
    await world.advance(INTERVAL_MS)
    [puts] = events(engine)[before:]
    assert [(put.table, put.key, put.value) for put in puts] == [
        ("passed", "orders/g", {"0": 3}),
        ("passed", "orders/h", {"1": 1}),
    ]
    engine.groups.offsets.commit(*PLACE, {0: 3})
    size_bytes = engine.core.log.tail
    for _ in range(3):
        await world.advance(INTERVAL_MS)
    assert engine.core.log.tail == size_bytes, "nothing changed, so nothing is written"


async def test_a_commit_back_is_kept_too(world):
    engine = await open_with(world)
    engine.groups.offsets.commit(*PLACE, {0: 3, 1: 2})
    await engine.groups.offsets.flush()
    engine.groups.offsets.commit(*PLACE, {0: 1})
    assert committed(engine) == [1, 2, None]
    await engine.groups.offsets.flush()
    assert [put.table for put in events(engine)[-1]] == ["cursor"]
    engine = await world.lose_index()
    assert committed(engine) == [1, 2, None]


async def test_a_commit_is_refused_whole_for_a_queue_or_an_offset_that_there_is_not(world):
    engine = await open_with(world)
    for wrong in ({3: 0}, {-1: 0}, {0: 4}, {0: -1}, {1: 1, 0: 4}):
        with pytest.raises(GroupFieldError, match="offsets"):
            engine.groups.offsets.commit(*PLACE, wrong)
    assert committed(engine) == [None, None, None]
    with pytest.raises(UnknownGroupError):
        engine.groups.offsets.commit("orders", "none", {0: 0})
    with pytest.raises(UnknownGroupError):
        engine.groups.offsets.committed("none", "g", 0)


async def test_a_planned_stop_stores_what_was_committed_and_a_crash_loses_one_interval(world):
    engine = await open_with(world)
    engine.groups.offsets.commit(*PLACE, {0: 1})
    engine = await world.restart()
    assert committed(engine) == [1, None, None]
    engine.groups.offsets.commit(*PLACE, {0: 2})
    await world.advance(INTERVAL_MS)
    engine.groups.offsets.commit(*PLACE, {0: 3})
    engine = await world.crash()
    assert committed(engine) == [2, None, None]


async def test_after_the_stop_began_a_commit_is_refused_since_nobody_would_store_it(world):
    engine = await open_with(world)
    await engine.close()
    with pytest.raises(NotReadyError):
        engine.groups.offsets.commit(*PLACE, {0: 1})


async def test_what_is_committed_while_a_record_is_stored_is_in_the_next(world):
    engine = await open_with(world)
    engine.groups.offsets.commit(*PLACE, {0: 1, 1: 1})
    flushing = asyncio.create_task(engine.groups.offsets.flush())
    await asyncio.sleep(0)
    engine.groups.offsets.commit(*PLACE, {0: 2})
    await flushing
    assert committed(engine) == [2, 1, None]
    engine = await world.restart()
    assert committed(engine) == [2, 1, None]


async def test_on_a_full_disk_commits_are_kept_and_stored_when_there_is_room(world):
    engine = await open_with(world)
    engine.groups.offsets.commit(*PLACE, {0: 1})
    world.files.space_bytes = 0
    with pytest.raises(NoSpaceError):
        await engine.groups.offsets.flush()
    await world.advance(INTERVAL_MS)
    assert committed(engine) == [1, None, None]
    world.files.space_bytes = 1 << 40
    await world.advance(INTERVAL_MS)
    engine = await world.crash()
    assert committed(engine) == [1, None, None]


@pytest.mark.parametrize("count", [1, offset_commits.LOST_NAMED_MAX, offset_commits.LOST_NAMED_MAX + 2])
async def test_a_planned_stop_on_a_full_disk_says_whose_commits_are_lost(world, caplog, count):
    engine = await open_with(world)
    names = [f"h{number:02}" for number in range(count)]
    for name in names:
        await engine.groups.put("orders", name, GroupConfig(kind="offsets"))
        engine.groups.offsets.commit("orders", name, {0: 1, 1: 2})
    world.files.space_bytes = 0
    await engine.close()
    [told] = [record.getMessage() for record in caplog.records if "committed" in record.getMessage()]
    assert f"committed offsets of {count} groups: orders/h00" in told
    assert told.count("orders/h") == min(count, offset_commits.LOST_NAMED_MAX)
    assert ("and 2 more" in told) == (count > offset_commits.LOST_NAMED_MAX)
    world.files.space_bytes = 1 << 40
    engine = await world.open()
    assert [committed(engine, place=("orders", name)) for name in names] == [[None] * 3] * count


async def test_many_commits_are_stored_in_steps_of_a_record_each(world, monkeypatch):
    monkeypatch.setattr(offset_commits, "RECORD_QUEUES_MAX", 5)
    engine = await open_with(world)
    names = [f"g{number}" for number in range(7)]
    for name in names:
        await engine.groups.put("orders", name, GroupConfig(kind="offsets"))
        engine.groups.offsets.commit("orders", name, {0: 1, 2: 3})
    before, submit, queued = len(events(engine)), engine.core.commit.submit, []

    def noted(*args):
        queued.append(len(engine.core.commit.queued))
        return submit(*args)

    engine.core.commit.submit = noted
    async with turns_between() as turns:
        await engine.groups.offsets.flush()
    assert [len(puts) for puts in events(engine)[before:]] == [2, 2, 2, 1]
    assert queued == [0] * 4, "one record is stored before the next is made"
    assert turns() >= 4
    engine = await world.crash()
    assert [committed(engine, place=("orders", name)) for name in names] == [[1, None, 3]] * 7


async def test_a_flush_of_groups_that_moved_nothing_has_pauses_too(world, monkeypatch):
    monkeypatch.setattr(offset_commits, "RECORD_QUEUES_MAX", 1)
    engine = await open_with(world)
    for number in range(20):
        await engine.groups.put("orders", f"g{number}", GroupConfig(kind="offsets", start="tail"))
        engine.groups.offsets.commit("orders", f"g{number}", {0: 3})
    before = len(events(engine))
    async with turns_between() as turns:
        await engine.groups.offsets.flush()
    assert turns() >= 20
    assert len(events(engine)) == before


async def test_a_full_disk_in_the_midst_of_a_flush_loses_no_commit(world, monkeypatch):
    monkeypatch.setattr(offset_commits, "RECORD_QUEUES_MAX", 1)
    engine = await open_with(world)
    engine.groups.offsets.commit(*PLACE, {0: 1})
    await engine.groups.put("orders", "h", GroupConfig(kind="offsets"))
    engine.groups.offsets.commit("orders", "h", {0: 2})
    submit = engine.core.commit.submit

    def full_after_the_first(*args):
        world.files.space_bytes = 0 if submitted else world.files.space_bytes
        submitted.append(args)
        return submit(*args)

    submitted, space = [], world.files.space_bytes
    engine.core.commit.submit = full_after_the_first
    with pytest.raises(NoSpaceError):
        await engine.groups.offsets.flush()
    assert len(submitted) == 2
    world.files.space_bytes, engine.core.commit.submit = space, submit
    await engine.groups.offsets.flush()
    engine = await world.crash()
    assert committed(engine) == [1, None, None]
    assert committed(engine, place=("orders", "h")) == [2, None, None]


async def test_rewinding_sets_the_offsets_of_all_queues_or_of_one(world):
    engine = await open_with(world)
    engine.groups.offsets.commit(*PLACE, {0: 1, 1: 2})
    await engine.groups.rewind(*PLACE, offsets={1: 3})
    assert committed(engine) == [1, 3, None]
    await engine.groups.rewind(*PLACE, to="head")
    assert committed(engine) == [0, 0, 0]
    world.clock.advance(1_000)
    await engine.sender.send([Outgoing("orders", b"x", queue=2)])
    engine.groups.offsets.commit(*PLACE, {0: 1})
    await engine.groups.rewind(*PLACE, time_ms=world.clock.now_ms())
    assert committed(engine) == [3, 3, 3]
    engine = await world.crash()
    assert committed(engine) == [3, 3, 3]
    with pytest.raises(GroupFieldError):
        await engine.groups.rewind(*PLACE, offsets={3: 0})


async def test_a_commit_during_a_rewind_counts_for_the_queues_that_are_not_rewound(world):
    engine = await open_with(world)
    engine.groups.offsets.commit(*PLACE, {0: 1, 1: 1})
    rewinding = asyncio.create_task(engine.groups.rewind(*PLACE, offsets={0: 0}))
    while not engine.core.commit.queued:
        await asyncio.sleep(0)
    engine.groups.offsets.commit(*PLACE, {0: 2, 1: 3, 2: 2})
    await rewinding
    assert committed(engine) == [0, 3, 2]
    engine = await world.restart()
    assert committed(engine) == [0, 3, 2]


async def test_a_group_that_is_deleted_forgets_what_was_committed(world):
    engine = await open_with(world)
    engine.groups.offsets.commit(*PLACE, {0: 1})
    await engine.groups.delete(*PLACE)
    await engine.groups.put(*PLACE, GroupConfig(kind="offsets"))
    assert committed(engine) == [None, None, None]
    await world.advance(INTERVAL_MS)
    engine = await world.restart()
    assert committed(engine) == [None, None, None]


async def test_a_group_of_offsets_leases_nothing_and_one_of_leases_commits_nothing(world):
    engine = await open_with(world)
    groups = engine.groups
    for call in (
        groups.receive(*PLACE, terms=GroupTerms(create=True)),
        groups.ack(*PLACE, ["r"]),
        groups.nack(*PLACE, ["r"]),
        groups.extend(*PLACE, ["r"], 1_000),
    ):
        with pytest.raises(GroupDiffersError, match="kind 'offsets'"):
            await call
    await put(world, group="leasing")
    for call in (groups.offsets.commit, groups.offsets.committed):
        with pytest.raises(GroupDiffersError, match="leases messages"):
            call("orders", "leasing", {0: 0} if call == groups.offsets.commit else 0)
    assert engine.groups.put_back(*PLACE, ["r"]) is None


@pytest.mark.parametrize("kind", ["leases", "offsets"])
async def test_the_kind_of_a_group_cannot_be_changed(world, kind):
    engine = await world.open()
    await engine.groups.put(*PLACE, GroupConfig(kind=kind))
    other = "leases" if kind == "offsets" else "offsets"
    with pytest.raises(GroupDiffersError, match="delete the group first"):
        await engine.groups.put(*PLACE, GroupConfig(kind=other))
    await engine.groups.put(*PLACE, GroupConfig(kind=kind, max_attempts=3))
    engine = await world.restart()
    assert engine.groups.info(*PLACE).config["kind"] == kind
    assert ("kind" in engine.control.get("group", "orders/g")) == (kind == "offsets")


async def test_a_group_of_offsets_has_no_filter(world):
    engine = await world.open()
    with pytest.raises(GroupFieldError, match="tags"):
        await engine.groups.put(*PLACE, GroupConfig(kind="offsets", tags="a"))


async def test_commits_before_what_is_kept_count_from_the_first_kept_message(world):
    engine = await open_with(world, retention_ms=1_000)
    engine.groups.offsets.commit(*PLACE, {0: 1})
    await world.roll()
    await world.advance(5_000)
    await world.roll()
    await world.retention_turn()
    assert engine.queues.queue_bounds("orders", 0) == (3, 3)
    assert committed(engine) == [1, None, None]
    assert [(q.cursor, q.lag) for q in engine.groups.info(*PLACE).queues] == [(3, 0)] * 3
    engine = await world.lose_index()
    assert committed(engine) == [1, None, None]
