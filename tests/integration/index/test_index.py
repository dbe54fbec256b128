"""The index is derived: lost, damaged, foreign or ahead, a start makes it anew and nothing is missing."""

import asyncio
import logging
import shutil

import lmdb
import msgspec
import pytest

from tests.harness.drive import settle, small_settings
from tests.harness.world import World
from timerwheel.engine import Engine
from timerwheel.groups.config import GroupConfig
from timerwheel.index.writer import STATE_KEY, read_state
from timerwheel.model.messages import State
from timerwheel.store.errors import IndexDamagedError
from timerwheel.store.index import INDEX_FORMAT, TABLES, Index

DELAYS_MS = [1_500, 1_501, 30_000, 400_000, 9_000_000, 900_000_000]


def recorded_rebuild(engine):
    return engine.recovered.rebuilt


async def filled(world):
    """A stopped engine whose index holds timers on every level, a delivery and a recall."""
    engine = await world.open()
    delivered, recalled = await world.send_ids(100, 200)
    await engine.recalls.recall(recalled)
    await world.advance(300)
    ids = await world.send_ids(*DELAYS_MS)
    await engine.close()
    return delivered, recalled, ids


async def proves_whole(world, delivered, recalled, ids):
    assert await world.delivered_ids() == [delivered]
    assert await world.pending_ids() == ids
    assert (await world.engine.messages.get(recalled)).state is State.RECALLED
    await world.advance(1_000_000_000)
    assert await world.delivered_ids() == [delivered, *ids]


def rewrite(world, table, change):
    """Edit the raw values of one table of the stopped index."""
    index = Index(world.directory / "index", 1 << 28)
    with index.write() as txn:
        for key, value in list(txn.items(table)):
            txn.put(table, key, change(value))
    index.close()


def rewrite_state(world, **changes):
    index = Index(world.directory / "index", 1 << 28)
    with index.write() as txn:
        state = msgspec.structs.replace(read_state(txn), **changes)
        txn.put("meta", STATE_KEY, msgspec.msgpack.encode(state))
    index.close()


@pytest.mark.parametrize(
    "changes",
    [{"log_id": b"another log 1234"}, {"until": 1 << 40}, {"format": 99}],
    ids=lambda c: next(iter(c)),
)
async def test_index_of_another_log_or_format_or_ahead_of_the_log_is_rebuilt(world, changes):
    books = await filled(world)
    rewrite_state(world, **changes)
    engine = await world.open()
    assert recorded_rebuild(engine)
    assert (world.directory / "index.aside").exists()
    await proves_whole(world, *books)


async def test_a_log_that_lost_its_end_is_an_error_and_an_index_of_another_format_is_none(world, caplog):
    await filled(world)
    for changes, is_lost in (({"format": 99}, False), ({"until": 1 << 40}, True)):
        rewrite_state(world, **changes)
        caplog.clear()
        await (await world.open()).close()
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        gone = [text for text in errors if text.startswith("records that were on the disk are gone: ")]
        assert errors == gone
        assert len(gone) == is_lost


async def test_index_of_a_second_data_directory_is_rebuilt(world, tmp_path):
    books = await filled(world)
    other = World(tmp_path / "other")
    await other.open()
    await other.send(1_000, 2_000)
    await other.engine.close()
    shutil.rmtree(world.directory / "index")
    shutil.copytree(other.directory / "index", world.directory / "index")
    engine = await world.open()
    assert recorded_rebuild(engine)
    await proves_whole(world, *books)


@pytest.mark.parametrize("harm", ["missing", "empty file", "garbage", "cut", "empty directory", "state"])
async def test_lost_or_ruined_index_is_rebuilt(world, harm):
    books = await filled(world)
    path = world.directory / "index"
    data = path / "data.mdb"
    if harm == "missing":
        shutil.rmtree(path)
    elif harm == "empty file":
        data.write_bytes(b"")
    elif harm == "garbage":
        data.write_bytes(b"\x5a" * 16_384)
    elif harm == "cut":
        data.write_bytes(data.read_bytes()[:12_288])
    elif harm == "empty directory":
        data.unlink()
    else:
        rewrite(world, "meta", lambda value: value[: len(value) // 2])
    engine = await world.open()
    assert recorded_rebuild(engine)
    await proves_whole(world, *books)


async def test_index_that_is_merely_behind_is_brought_up_and_not_rebuilt(world):
    engine = await world.open()
    await world.send(1_000, 50_000)
    await engine.indexer.commit()
    ids = await world.send_ids(500, 900_000)
    engine = await world.crash()
    assert recorded_rebuild(engine) is None
    await world.advance(500)
    assert await world.delivered_ids() == [ids[0]]


async def test_a_checkpoint_inside_a_record_sets_the_index_aside_and_cuts_nothing_off_the_log(world):
    books = await filled(world)
    until = world.engine.core.log.tail
    size = sum(len(node.data) for node in world.files.names_now.values())
    for offset in (until - 8, until - 64, 72):
        rewrite_state(world, until=offset)
        engine = await world.open()
        assert f"the checkpoint {offset} lies inside a record" in recorded_rebuild(engine)
        assert sum(len(node.data) for node in world.files.names_now.values()) == size
        await engine.close()
    await world.open()
    await proves_whole(world, *books)


@pytest.mark.parametrize("table", ["topics", "segments", "meta"])
async def test_whatever_keeps_the_index_from_being_read_sets_it_aside(world, table):
    """Values that pass their check and are no msgpack, as a fault of a program leaves them."""
    books = await filled(world)
    rewrite(world, table, lambda value: b"\xc1" + value[1:])
    engine = await world.open()
    assert recorded_rebuild(engine)
    await proves_whole(world, *books)


async def test_counts_of_topics_that_are_not_those_of_the_wheel_set_the_index_aside(world):
    books = await filled(world)

    def one_more(value):
        name, pending, queues = msgspec.msgpack.decode(value)
        return msgspec.msgpack.encode((name, pending + 1, queues))

    rewrite(world, "topics", one_more)
    engine = await world.open()
    assert "the topics count" in recorded_rebuild(engine)
    await proves_whole(world, *books)


@pytest.mark.parametrize("earlier", range(1, INDEX_FORMAT))
async def test_an_index_of_an_earlier_format_is_moved_aside_with_one_log_line(world, caplog, earlier):
    books = await filled(world)
    rewrite_state(world, format=earlier)
    await world.open()
    [line] = [line for line in caplog.messages if "rebuilding the index" in line]
    assert f"index format {earlier}; this program writes {INDEX_FORMAT}" in line
    await proves_whole(world, *books)


async def test_an_index_that_lacks_a_table_of_its_format_is_rebuilt_and_not_read_as_empty(world, caplog):
    """The format before had no runs of keys: their table would be empty, and its sum is missing too."""
    books = await filled(world)
    rewrite_state(world, format=INDEX_FORMAT - 1)
    path = world.directory / "index"
    env = lmdb.open(str(path), max_dbs=len(TABLES))
    table = env.open_db(b"key_parts", create=False)
    with env.begin(write=True) as txn:
        txn.drop(table)
    env.close()
    with pytest.raises(IndexDamagedError, match="a table is missing"):
        Index(path, 1 << 28, readonly=True)
    await world.open()
    assert len([line for line in caplog.messages if "rebuilding the index" in line]) == 1
    await proves_whole(world, *books)


async def test_groups_of_an_index_of_an_earlier_format_go_on_after_the_rebuild(world, caplog):
    """In format 3 their rows had only cursors, which the rebuild does not look at."""
    await world.open()
    await world.engine.groups.put("orders", "g", GroupConfig())
    await world.send(*[0] * 5)
    await world.advance(0)
    got = await world.engine.groups.receive("orders", "g", count_max=2)
    await world.engine.groups.ack("orders", "g", [delivery.receipt for delivery in got])
    await world.engine.close()
    rewrite_state(world, format=3)

    def without_since(row):
        name, passed, _ = msgspec.msgpack.decode(row)
        assert passed == {0: 2}
        return msgspec.msgpack.encode((name, passed))

    rewrite(world, "groups", without_since)
    await world.open()
    assert len([line for line in caplog.messages if "rebuilding the index" in line]) == 1
    again = await world.engine.groups.receive("orders", "g", count_max=5)
    assert [delivery.message.queue_offset for delivery in again] == [2, 3, 4]
    assert all(one.ok for one in await world.engine.groups.ack("orders", "g", [d.receipt for d in again]))


def flip(value):
    """Change one bit of a page's last row."""
    return value[:-9] + bytes([value[-9] ^ 1]) + value[-8:]


@pytest.mark.parametrize("delay_ms", [1_500, 30_000, 150_000, 400_000, 9_000_000, 900_000_000])
async def test_damaged_wheel_page_found_at_the_start_or_in_use_leads_to_a_rebuild(world, delay_ms):
    """Near pages are read while the engine starts, far ones when their slot cascades."""
    await world.open()
    [message_id] = await world.send_ids(delay_ms)
    await world.engine.close()
    rewrite(world, "wheel", flip)
    await world.open_healing()
    for _ in range(3):
        if await world.delivered_ids() == [message_id]:
            break
        world.clock.advance(delay_ms)
        try:
            await settle(world.engine)
        except RuntimeError as error:
            assert "damaged" in str(error)  # noqa: PT017
            assert world.engine.status.startswith("failed: the index is damaged")
            assert "damaged" in await asyncio.wait_for(world.engine.failed(), 1)
            await world.engine.close()
            await world.open()
            assert recorded_rebuild(world.engine)
    assert await world.delivered_ids() == [message_id]


async def test_damage_that_a_start_meets_does_not_keep_the_directory_locked(world):
    await world.open()
    [message_id] = await world.send_ids(1_500)
    await world.engine.close()
    rewrite(world, "wheel", flip)
    await world.open_healing()
    await world.advance(1_500)
    assert await world.delivered_ids() == [message_id]


async def test_damage_that_a_start_meets_while_counting_slots_is_healed(world):
    await world.open()
    [message_id] = await world.send_ids(900_000_000)
    await world.engine.close()
    rewrite(world, "wheel", flip)
    await world.open_healing(slot_messages_max=100)
    await world.advance(900_000_000)
    assert await world.delivered_ids() == [message_id]


@pytest.mark.parametrize("table", ["wheel", "queues"])
async def test_damage_met_by_a_question_ends_the_engine_and_is_healed_at_the_next_start(world, table):
    """A wrong index must not go on in use because only readers met the damage."""
    await world.open()
    [message_id] = await world.send_ids(900_000_000)
    [delivered] = await world.send_ids(0)
    await world.engine.close()
    rewrite(world, table, flip)
    engine = await world.open()
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the question is answered with
        await (
            engine.messages.pending() if table == "wheel" else engine.queues.read_queue("orders", 0, 0, 10)
        )
    assert "damaged" in await asyncio.wait_for(engine.failed(), 1)
    await engine.close()
    await world.open()
    assert recorded_rebuild(world.engine)
    assert await world.pending_ids() == [message_id]
    assert await world.delivered_ids() == [delivered]


async def test_close_during_an_index_commit_puts_nothing_into_the_wheel_twice(world):
    """`close` ends the indexer while its commit is still running in the index thread."""
    settings = small_settings(world.directory, **world.limits)
    engine = await Engine.open(settings, world.clock, world.files, threads=True)
    world.engine = engine
    loop, indexer = asyncio.get_running_loop(), engine.indexer
    async with indexer.turn:
        await world.send(*[60_000 + n for n in range(5)])
        blocker = engine.core.index.index.env.begin(write=True)
    indexer.wake.set()
    for _ in range(50):  # the commit begins in the index thread, and cannot end while the blocker is there
        await loop.run_in_executor(None, int)
    assert engine.core.state.immutable is not None
    closing = asyncio.create_task(engine.close())
    for _ in range(200):
        await asyncio.sleep(0)
    blocker.abort()
    await closing
    await world.open()
    assert len(await world.pending_ids()) == 5
    await world.advance(61_000)
    delivered = await world.delivered_ids()
    assert len(delivered) == len(set(delivered)) == 5


async def test_caller_cancelled_during_its_commit_does_not_have_the_stage_written_twice(world):
    """Retention commits too, and a stop may cancel it while the index thread is at it."""
    settings = small_settings(world.directory, **world.limits)
    engine = await Engine.open(settings, world.clock, world.files, threads=True)
    world.engine = engine
    loop, indexer = asyncio.get_running_loop(), engine.indexer
    indexer.stop()  # so that the commit below is the caller's, not a tick's
    [ticking] = [task for task in asyncio.all_tasks() if task.get_name() == "timerwheel indexer"]
    await asyncio.wait([ticking], timeout=60)
    async with indexer.turn:
        await world.send(*[60_000 + n for n in range(5)])
        blocker = engine.core.index.index.env.begin(write=True)
    committing = asyncio.create_task(indexer.commit())
    for _ in range(50):  # the commit begins in the index thread, and cannot end while the blocker is there
        await loop.run_in_executor(None, int)
    assert engine.core.state.immutable is not None
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    closing = asyncio.create_task(engine.close())
    for _ in range(200):  # long enough for a second commit to be handed to the index thread
        await loop.run_in_executor(None, int)
    blocker.abort()
    await closing
    await world.open()
    assert len(await world.pending_ids()) == 5
    await world.advance(61_000)
    delivered = await world.delivered_ids()
    assert len(delivered) == len(set(delivered)) == 5
