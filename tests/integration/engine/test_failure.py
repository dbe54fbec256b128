"""Full disks, failed syncs, damaged records: refused clearly, kept, told, and none behind is blocked."""

import asyncio
import random

import pytest

from tests.harness.cold import make_cold
from tests.harness.drive import settle
from tests.harness.faulty import FaultyFiles
from timerwheel.engine import Engine
from timerwheel.errors import DiskReserveError, IndexFullError, NotReadyError, OutcomeUnknownError
from timerwheel.model.messages import Outgoing, State
from timerwheel.runtime.indexer import WAITING_TIMES
from timerwheel.store.errors import CorruptionError, LockedError, NoSpaceError

PLENTY = 1 << 40


async def test_send_on_a_full_disk_is_refused_and_stores_nothing(world):
    engine = await world.open()
    world.files.space_bytes = 100
    with pytest.raises(NoSpaceError):
        await world.send(1_000, body=b"b" * 500)
    world.files.space_bytes = PLENTY
    assert engine.ready
    [message_id] = await world.send_ids(1_000)
    await world.crash(random.Random(1))
    await world.advance(1_000)
    assert await world.delivered_ids() == [message_id]


async def test_due_messages_wait_for_a_descriptor_and_come_in_order(world):
    engine = await world.open(segment_size_bytes=4096)
    ids = await world.send_ids(*[1_000 + n // 3 for n in range(30)], body=b"b" * 500)
    make_cold(engine)
    engine.core.log.open_segments.clear()
    world.files.descriptors = 0
    world.clock.advance(1_100)
    await spin(200)
    assert engine.firing.retries > 0
    assert engine.ready
    assert await world.delivered_ids() == []
    with pytest.raises(NoSpaceError, match="Too many open files"):
        await engine.messages.get(ids[0])
    world.files.descriptors = 1
    await world.advance(2_000)
    assert await world.delivered_ids() == ids


async def test_due_messages_wait_out_a_full_disk_and_come_in_order(world):
    engine = await world.open()
    ids = await world.send_ids(*[1_000 + n // 3 for n in range(30)])
    world.files.space_bytes = 0
    world.clock.advance(1_100)
    await spin(200)
    assert engine.firing.retries > 0
    assert await world.delivered_ids() == []
    assert await world.pending_ids() == ids
    assert (await engine.messages.get(ids[0])).state is State.SCHEDULED
    world.clock.advance(500)
    await spin(200)
    assert engine.ready
    world.files.space_bytes = PLENTY
    await world.advance(500)
    assert await world.delivered_ids() == ids


def warnings_of(caplog, words):
    return [line for line in caplog.messages if words in line]


async def test_due_messages_that_wait_for_space_are_logged_once_a_minute_with_their_count_and_at_the_end(
    world, caplog
):
    engine = await world.open()
    ids = await world.send_ids(*[1_000] * 5)
    world.files.space_bytes = 0
    for _ in range(140):
        world.clock.advance(500)
        await spin(60)
    tries = engine.firing.retries
    assert tries > 120
    first, again = warnings_of(caplog, "due messages to the log")
    assert first.startswith("cannot write 5 due messages to the log; retrying: ")
    assert again.startswith("cannot write 5 due messages")
    assert " times since the last report)" in again
    world.files.space_bytes = PLENTY
    await world.advance(500)
    assert await world.delivered_ids() == ids
    assert warnings_of(caplog, "written again") == ["due messages are written again after 69 s"]


async def test_an_index_that_waits_for_space_is_logged_once_a_minute_and_at_the_end(world, caplog):
    engine = await world.open(index_records_max=100)
    environment = engine.core.index.index.env
    environment.set_mapsize(1)  # LMDB keeps what is in use
    for _ in range(140):
        await world.send(*[900_000_000] * 5)
        world.clock.advance(500)
        await spin(60)
    waits = warnings_of(caplog, "no space for the index")
    assert len(waits) == 2
    assert " times since the last report)" in waits[1]
    assert warnings_of(caplog, "space again") == []
    environment.set_mapsize(1 << 28)
    await world.advance(500)
    [over] = warnings_of(caplog, "space again")
    assert over.startswith("the index has space again after ")


async def test_an_index_without_room_bounds_what_waits_for_it_in_memory(world):
    engine = await world.open(index_records_max=10)
    due = await world.send_ids(*[60_000] * 5)
    environment = engine.core.index.index.env
    environment.set_mapsize(1)  # LMDB keeps what is in use
    sent = 0
    while engine.disk.refusal is None and sent < 1_000:
        sent += len(await world.send(*[900_000_000] * 5))
        await world.advance(500)
    with pytest.raises(IndexFullError, match="index_map_size"):
        await world.send(900_000_000)
    memtable = engine.core.state.memtable
    assert memtable.count <= WAITING_TIMES * 10 + 5
    with pytest.raises(IndexFullError):
        await world.engine.recalls.reschedule(due[0], {"TIMER_DELAY_MS": "1000"})
    await engine.recalls.recall(due[4])
    await world.advance(60_000)
    assert await world.delivered_ids() == due[:4]
    environment.set_mapsize(1 << 28)
    await world.advance(500)
    assert engine.disk.refusal is None
    await world.send(1_000)


async def test_order_holds_when_a_large_message_does_not_fit_and_a_small_one_would(world):
    """They are stored in batches of their own: the small one must not overtake the large one."""
    engine = await world.open(fire_records_max=1)
    [large] = await world.send_ids(1_000, body=b"b" * 1_900)
    [small] = await world.send_ids(1_001, body=b"s" * 300)
    world.files.space_bytes = 1_500
    world.clock.advance(1_500)
    await spin(200)
    world.files.space_bytes = PLENTY
    await world.advance(500)
    assert engine.ready
    assert await world.delivered_ids() == [large, small]


async def test_recall_on_a_full_disk_is_refused_and_the_message_still_comes(world):
    engine = await world.open()
    [message_id] = await world.send_ids(1_000)
    world.files.space_bytes = 0
    for call in (
        engine.recalls.recall(message_id),
        engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "1500"}),
    ):
        with pytest.raises(NoSpaceError):
            await call
    world.files.space_bytes = PLENTY
    assert (await engine.messages.get(message_id)).state is State.SCHEDULED
    await world.advance(1_000)
    assert await world.delivered_ids() == [message_id]


async def test_a_full_disk_when_a_segment_must_begin_is_survived(world):
    engine = await world.open()
    await world.send(*[60_000] * 10, body=b"b" * 250)
    world.files.space_bytes = 0
    with pytest.raises(NoSpaceError):
        await world.send(*[60_000] * 10, body=b"b" * 250)
    assert engine.ready
    world.files.space_bytes = PLENTY
    await world.send(*[60_000] * 10, body=b"b" * 250)
    await world.advance(60_000)
    assert len(await world.delivered_ids()) == 20


async def test_a_full_disk_when_a_sidecar_is_due_does_not_end_the_engine(world):
    """A sidecar is derived: it can wait for space, due messages cannot wait for the engine."""
    engine = await world.open()
    await world.roll()
    world.files.space_bytes = 0
    await engine.indexer.tick()
    world.clock.advance(1_000)
    await spin(100)
    assert engine.status == "ready"


async def test_a_full_disk_during_retention_does_not_end_the_engine(world):
    """Retention frees space; that it cannot move a timer now must not stop deliveries."""
    engine = await world.open(retention_ms=1_000, retention_interval_ms=10_000)
    [far] = await world.send_ids(900_000_000)
    await world.roll()
    await world.advance(5_000)
    world.files.space_bytes = 0
    world.clock.advance(10_000)
    await spin(300)
    assert engine.status == "ready"
    world.files.space_bytes = PLENTY
    await world.advance(900_000_000)
    assert await world.delivered_ids() == [far]


async def test_start_on_a_full_disk_delivers_once_there_is_space(world):
    await world.open()
    ids = await world.send_ids(1_000, 2_000)
    await world.roll()
    await world.engine.abandon()
    world.files.space_bytes = 0
    try:
        await world.open()
    finally:
        world.files.space_bytes = PLENTY
    await world.advance(2_000)
    assert await world.delivered_ids() == ids


async def test_below_the_disk_reserve_new_work_is_refused_and_due_messages_flow(world):
    engine = await world.open(disk_reserve_bytes=1 << 20)
    due, recalled, waiting = await world.send_ids(1_000, 5_000, 6_000)
    world.files.space_bytes = 100_000
    await world.advance(1_000)
    await engine.watch_once()
    assert await world.delivered_ids() == [due]
    with pytest.raises(DiskReserveError, match="less than disk_reserve = "):
        await world.send(1_000)
    with pytest.raises(DiskReserveError):
        await engine.recalls.reschedule(waiting, {"TIMER_DELAY_MS": "9000"})
    assert (await engine.recalls.recall(recalled)).state is State.RECALLED
    await world.advance(5_000)
    assert await world.delivered_ids() == [due, waiting]
    world.files.space_bytes = PLENTY
    await engine.watch_once()
    assert len(await world.send_ids(1_000)) == 1


async def test_the_disk_reserve_holds_from_the_start(world):
    world.files.space_bytes = 1_000
    await world.open(disk_reserve_bytes=1 << 20)
    with pytest.raises(DiskReserveError):
        await world.send(1_000)


async def test_a_failed_sync_ends_the_engine_and_a_restart_recovers(world):
    engine = await world.open()
    ids = await world.send_ids(1_000, 9_000_000)
    world.files.fail_sync = True
    with pytest.raises(OutcomeUnknownError):
        await world.send(1_000)
    reason = await asyncio.wait_for(engine.failed(), 1)
    assert "sync" in reason
    assert engine.status.startswith("failed")
    with pytest.raises(NotReadyError):
        await world.send(1_000)
    with pytest.raises(NotReadyError):
        await engine.recalls.recall(ids[0])
    await engine.close()
    world.files.fail_sync = False
    await world.open()
    await world.advance(9_000_000)
    delivered = await world.delivered_ids()
    assert set(ids) <= set(delivered)
    assert len(delivered) == len(set(delivered)) <= 3


async def test_a_sync_that_fails_while_firing_loses_and_doubles_nothing(world):
    engine = await world.open()
    ids = await world.send_ids(1_000, 1_000, 2_000)
    world.files.fail_sync = True
    world.clock.advance(1_000)
    assert "sync" in await asyncio.wait_for(engine.failed(), 1)
    await engine.close()
    world.files = world.files.after_crash(random.Random(3))
    await world.open()
    await world.advance(1_000)
    assert await world.delivered_ids() == ids


def damage_record(world, message_id):
    """Flip a bit of a record's body on the disk; returns the undoing."""
    make_cold(world.engine)
    offset = int(message_id[:16], 16)
    log = world.engine.core.log
    base = log.base_of(offset)
    node = world.files.names_now[str(log.path(base))]
    at = offset - base + 90

    def flip():
        node.data[at] ^= 0x10
        node.durable = bytes(node.data)

    flip()
    return flip


async def test_a_damaged_timer_is_quarantined_reported_and_blocks_none_behind_it(world):
    engine = await world.open()
    ids = await world.send_ids(*[1_000 + n for n in range(9)], body=b"b" * 40)
    damage_record(world, ids[4])
    await world.advance(2_000)
    assert await world.delivered_ids() == [*ids[:4], *ids[5:]]
    [aside] = (await engine.messages.wheel()).set_aside
    assert aside.log_offset == int(ids[4][:16], 16)
    view = await engine.messages.get(ids[4])
    assert view.state is State.SCHEDULED
    assert view.problem is not None
    assert "CRC" in view.problem
    assert (await engine.messages.wheel()).pending == 1


async def test_a_damaged_timer_is_tried_again_at_the_next_start(world):
    await world.open()
    ids = await world.send_ids(1_000, 1_001, body=b"b" * 40)
    undo = damage_record(world, ids[0])
    await world.advance(2_000)
    engine = await world.restart()
    assert len((await engine.messages.wheel()).set_aside) == 1
    assert await world.delivered_ids() == [ids[1]]
    undo()
    engine = await world.restart()
    assert await world.delivered_ids() == [ids[1], ids[0]]
    assert (await engine.messages.wheel()).set_aside == []


async def test_a_damaged_rescheduled_timer_tells_its_problem_under_its_id(world):
    engine = await world.open()
    [message_id] = await world.send_ids(1_000, body=b"b" * 40)
    tail = engine.core.log.tail
    await engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": "1500"})
    damage_record(world, f"{tail:016x}{0:08x}")
    await world.advance(2_000)
    view = await engine.messages.get(message_id)
    assert view.state is State.SCHEDULED
    assert view.problem is not None


async def test_a_damaged_timer_is_listed_among_the_pending_with_its_problem(world):
    engine = await world.open()
    ids = await world.send_ids(1_000, 90_000, body=b"b" * 40)
    damage_record(world, ids[0])
    await world.advance(2_000)
    page = await engine.messages.pending()
    assert [message.due_ms - world.clock.now_ms() for message in page.messages] == [-1_000, 88_000]
    assert page.messages[0].problem is not None


async def test_a_damaged_waiting_timer_is_not_answered_as_unknown(world):
    """It is pending: to say that no message has this id would not be the truth."""
    engine = await world.open()
    [message_id] = await world.send_ids(90_000, body=b"b" * 40)
    damage_record(world, message_id)
    view = await engine.messages.get(message_id)
    assert view.problem is not None


async def test_an_index_that_is_rebuilt_over_a_damaged_log_reports_every_damaged_place(world, caplog):
    """Sidecars spare the rebuild to read the segments, so it does not meet the damage."""
    await world.open()
    ids = await world.send_ids(1_000, 2_000, 90_000, body=b"b" * 40)
    await world.roll()
    far = await world.send_ids(90_000, body=b"b" * 40)
    await world.roll()
    await world.engine.indexer.tick()
    log = world.engine.core.log
    for damaged in (ids[1], *far):
        damage_record(world, damaged)
    caplog.clear()
    engine = await world.lose_index()
    await world.advance(0)
    assert engine.ready
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    places = [int(one[:16], 16) for one in (ids[1], *far)]
    assert len(told) == 3
    for line, place in zip(told, places, strict=False):
        assert line.startswith(f"{log.path(log.base_of(place))}: damaged at log offset {place}: ")
        assert "; intact records continue at offset " in line
    assert "the log is damaged in 2 place(s)" in told[2]
    assert "timerwheel fsck" in told[2]
    assert await world.pending_ids() == [*ids, *far]


async def test_an_index_that_is_rebuilt_over_a_whole_log_says_so_and_any_other_start_scrubs_nothing(
    world, caplog
):
    caplog.set_level("INFO")
    await world.open()
    await world.send_ids(90_000)
    await world.roll()
    await world.restart()
    assert not [line for line in caplog.messages if "checked the log" in line]
    await world.lose_index()
    assert "rebuilding the index from the log: the index was missing" in caplog.messages
    assert [line for line in caplog.messages if "checked the log" in line]


async def test_a_second_engine_on_the_directory_learns_who_owns_it(world):
    await world.open()
    with pytest.raises(LockedError, match=r"in use by process \d+ \(timerwheel on .* since "):
        await Engine.open(world.engine.settings, world.clock, world.files, threads=False)
    assert await world.send_ids(0)
    await world.restart()


async def test_flush_async_never_puts_the_index_ahead_of_the_synced_log(world):
    """A crash that drops everything unsynced leaves an index that a start can use as it is."""
    for seed in range(8):
        engine = await world.open(flush="async")
        rng = random.Random(seed)
        for _ in range(rng.randint(1, 6)):
            await world.send(*[rng.randint(0, 5_000) for _ in range(rng.randint(1, 20))])
            await world.advance(rng.randint(1, 900))
        await world.send(*[3_000] * 5)
        kept = engine.core.index.state.until
        assert kept <= engine.core.log.synced
        await engine.abandon()
        world.files = dropped(world.files)
        engine = await world.open()
        assert engine.recovered.rebuilt is None
        await world.advance(10_000)
        delivered = await world.delivered_ids()
        assert len(delivered) == len(set(delivered))
        await engine.close()


def dropped(files):
    """What is left when the disk forgets every byte and every name that was not synced."""
    survivor = FaultyFiles()
    for name, node in files.names_durable.items():
        node.data = bytearray(node.durable)
        survivor.names_now[name] = node
    survivor.names_durable = dict(survivor.names_now)
    return survivor


async def test_flush_sync_receipts_survive_when_everything_unsynced_is_dropped(world):
    await world.open()
    ids = await world.send_ids(*[n * 100 for n in range(1, 40)])
    await world.engine.abandon()
    world.files = dropped(world.files)
    await world.open()
    await world.advance(5_000)
    assert await world.delivered_ids() == ids


async def test_unit_of_an_array_is_cut_whole(world):
    """An array that was torn on its way to the disk leaves none of its messages."""
    engine = await world.open()
    [kept] = await world.send_ids(1_000)
    await world.send(*[1_000] * 8)
    base = engine.core.log.bases[-1]
    path = str(engine.core.log.path(base))
    await engine.abandon()
    node = world.files.names_now[path]
    del node.data[engine.core.log.tail - base - 40 :]
    node.durable = bytes(node.data)
    (world.directory / "index").rename(world.directory / "lost")
    await world.open()
    await world.advance(1_000)
    assert await world.delivered_ids() == [kept]


async def spin(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_ordinary_message_to_a_new_topic_needs_no_timer(world):
    engine = await world.open()
    await engine.sender.send([Outgoing("fresh", b"")])
    await settle(engine)
    assert len(await world.delivered_ids("fresh")) == 1


def lose_sector(world, message_id, at):
    """Have the disk lose the byte at this position of a record, and with it a page."""
    make_cold(world.engine)
    offset = int(message_id[:16], 16)
    log = world.engine.core.log
    base = log.base_of(offset)
    world.files.unreadable.append((log.path(base).name, offset - base + at))


LARGE = {"segment_size_bytes": 1 << 20, "batch_bytes_max": 1 << 20}


@pytest.mark.parametrize("start", [None, "restart"])
async def test_a_timer_that_the_disk_cannot_read_is_quarantined_and_blocks_no_other(world, start):
    engine = await world.open(**LARGE)
    ids = await world.send_ids(1_000, 1_001, 1_002, body=b"b" * 10_000)
    lose_sector(world, ids[1], 5_000)
    if start is not None:
        engine = await getattr(world, start)()
        make_cold(engine)
    await world.advance(2_000)
    assert await world.delivered_ids() == [ids[0], ids[2]]
    [aside] = (await engine.messages.wheel()).set_aside
    assert (aside.id, aside.log_offset) == (ids[1], int(ids[1][:16], 16))
    assert "the disk cannot read it" in aside.reason
    view = await engine.messages.get(ids[1])
    assert view.state is State.SCHEDULED
    assert "the disk cannot read it" in view.problem
    assert engine.ready


async def test_a_timer_whose_header_the_disk_cannot_read_is_not_answered_as_unknown(world):
    engine = await world.open(**LARGE)
    ids = await world.send_ids(90_000, 90_000, body=b"b" * 10_000)
    lose_sector(world, ids[1], 0)
    view = await engine.messages.get(ids[1])
    assert view.id == ids[1]
    assert "the disk cannot read it" in view.problem
    with pytest.raises(CorruptionError):
        await engine.recalls.recall(ids[1])
    results = await engine.bulk_recalls.recall_many([ids[1]])
    assert [result.code for result in results] == ["corruption"]


async def test_a_delivered_message_that_the_disk_cannot_read_keeps_its_place_in_the_queue(world):
    engine = await world.open(**LARGE)
    await world.send_ids(0, 0, 0, body=b"b" * 10_000)
    make_cold(engine)
    page = await engine.queues.read_queue("orders", 0, 0, 10)
    lose_sector(world, page.messages[1].id, 5_000)
    page = await engine.queues.read_queue("orders", 0, 0, 10)
    assert [message.problem is None for message in page.messages] == [True, False, True]


async def test_a_due_message_that_the_journal_no_longer_takes_is_quarantined_and_blocks_no_other(world):
    """Its limit was lowered since. It can still be recalled, and fires once the limit is raised again."""
    engine = await world.open(fire_records_max=50)
    ids = await world.send_ids(*[1_000] * 9)
    large, recalled = await world.send_ids(1_000, 1_000, body=b"b" * 900)
    engine.core.log.unit_bytes_max = 800
    await world.advance(2_000)
    assert engine.ready
    assert await world.delivered_ids() == ids
    assert [aside.id for aside in (await engine.messages.wheel()).set_aside] == [large, recalled]
    assert (await engine.messages.get(large)).state is State.SCHEDULED
    await engine.recalls.recall(recalled)
    assert [aside.id for aside in (await engine.messages.wheel()).set_aside] == [large]
    await world.restart()
    assert await world.delivered_ids() == [*ids, large]


async def test_an_error_of_a_fired_batch_that_nobody_knows_loses_no_timer_and_ends_the_engine(
    world, monkeypatch
):
    engine = await world.open()
    ids = await world.send_ids(1_000, 1_001)

    def refusing(*_):
        refused = asyncio.get_running_loop().create_future()
        refused.set_exception(ValueError("what is this"))
        return refused

    monkeypatch.setattr(engine.core.commit, "submit", refusing)
    world.clock.advance(2_000)
    assert "what is this" in await asyncio.wait_for(engine.failed(), 1)
    assert not len(engine.core.in_flight)
    assert len(engine.core.near) == 2
    await world.crash()
    assert await world.delivered_ids() == ids


async def test_retention_moves_the_timers_beside_one_that_the_journal_no_longer_takes(world):
    engine = await world.open(retention_ms=1_000)
    [large] = await world.send_ids(3_600_000, body=b"b" * 900)
    [small] = await world.send_ids(3_600_000)
    await world.roll()
    await world.advance(2_000)
    engine.core.log.unit_bytes_max = 800
    await world.retention_turn()
    assert engine.ready
    moves = [(await engine.messages.get(one)).properties["TIMER_ROLL_TIMES"] for one in (large, small)]
    assert moves == ["0", "1"]
    await world.advance(3_600_000)
    assert await world.delivered_ids() == [small]
