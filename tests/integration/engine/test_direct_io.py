"""Small batches are padded to sectors: nobody who reads messages notices."""

import pytest

from tests.harness.columns import send_in_columns
from tests.harness.world import World
from timerwheel.model.messages import Outgoing
from timerwheel.store.files import SECTOR_BYTES, DiskFiles
from timerwheel.store.record import decode_header

SECOND_MS = 1_000


@pytest.fixture
def on_disk(tmp_path):
    world = World(tmp_path / "data")
    world.files = DiskFiles()
    return world


async def opened(world):
    engine = await world.open()
    if not engine.core.log.direct_io:
        pytest.skip("no direct writes on this file system")
    return engine


def delayed(number, key=None):
    properties = {"TIMER_DELAY_MS": "1000", "NUMBER": str(number)}
    return Outgoing("orders", b"x" * number, properties, dedup_key=key)


async def test_ids_of_single_messages_and_arrays_with_and_without_keys_name_them(on_disk):
    engine = await opened(on_disk)
    sent = {}
    for number in range(8):
        key = f"k{number}" if number % 2 else None
        for message in ([delayed(number, key)], [delayed(number), delayed(number, key and key + "b")]):
            for receipt in await engine.sender.send(message):
                sent[receipt.id] = number
        assert (engine.core.log.tail - engine.core.log.bases[-1]) % SECTOR_BYTES == 0
    assert len(sent) == 24
    for again in (None, on_disk.restart, on_disk.crash, on_disk.lose_index):
        if again is not None:
            engine = await again()
        for message_id, number in sent.items():
            view = await engine.messages.get(message_id)
            assert (view.body, view.properties["NUMBER"]) == (b"x" * number, str(number))
    await engine.recalls.recall(next(iter(sent)))
    await on_disk.advance(SECOND_MS)
    assert sorted(await on_disk.delivered_ids()) == sorted(list(sent)[1:])


async def test_ids_of_messages_that_were_sent_in_columns_name_them(on_disk):
    engine = await opened(on_disk)
    sent = {}
    for count in (1, 2, 3, 1_500):
        messages = [delayed(number % 50) for number in range(count)]
        receipts = await send_in_columns(engine, messages)
        sent |= dict(zip([receipt.id for receipt in receipts], messages, strict=True))
        large = count > 1_000  # too large for a segment: it has one of its own, without room for padding
        assert large or (engine.core.log.tail - engine.core.log.bases[-1]) % SECTOR_BYTES == 0
    assert len(sent) == 1_506
    engine = await on_disk.lose_index()
    assert sorted(await on_disk.pending_ids()) == sorted(sent)
    for message_id, message in list(sent.items())[-3:]:
        assert (await engine.messages.get(message_id)).body == message.body


async def test_a_delivered_message_takes_no_padding_from_its_timer(on_disk):
    engine = await opened(on_disk)
    await engine.sender.send([delayed(10)])
    await engine.sender.send([delayed(10)])
    await on_disk.advance(SECOND_MS)
    sizes = [len(item.data) for item in engine.core.log.scan(0)]
    assert sizes[0] == SECTOR_BYTES - engine.core.log.start
    assert sizes[1] == SECTOR_BYTES
    assert sizes[2] == decode_header(engine.core.log.read(2 * SECTOR_BYTES)).size_without_padding()


async def test_after_a_planned_stop_the_log_is_as_long_as_its_records(on_disk):
    engine = await opened(on_disk)
    await engine.sender.send([delayed(1)])
    path = engine.core.log.path(0)
    assert path.stat().st_size > engine.core.log.tail
    await engine.close()
    assert path.stat().st_size == engine.core.log.tail
    engine = await on_disk.open()
    assert engine.recovered.truncation is None
    await engine.sender.send([delayed(2)])
    engine = await on_disk.crash()
    assert engine.recovered.truncation is None
    assert len(await on_disk.pending_ids()) == 2


async def test_where_direct_writes_do_not_work_the_start_says_so_and_nothing_is_padded(world, caplog):
    world.files.direct = False
    with caplog.at_level("INFO", "timerwheel"):
        engine = await world.open()
    assert any("allows no direct writes" in line for line in caplog.messages)
    await engine.sender.send([delayed(1)])
    assert (engine.core.log.tail - engine.core.log.start) % SECTOR_BYTES


async def test_the_setting_turns_direct_writes_off(on_disk):
    engine = await on_disk.open(direct_io=False)
    await engine.sender.send([delayed(1)])
    assert (engine.core.log.tail - engine.core.log.start) % SECTOR_BYTES
    assert not engine.core.log.direct_io
