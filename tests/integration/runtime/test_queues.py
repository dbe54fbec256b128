"""Reading delivered messages: from an offset on, with a long poll, in bounded pages."""

import asyncio

import pytest

from tests.harness.cold import make_cold
from tests.harness.held import open_held
from timerwheel.errors import NotReadyError, OffsetOutOfRangeError, UnknownQueueError, UnknownTopicError
from timerwheel.model.messages import Outgoing
from timerwheel.store.record import decode


async def spin(count=60):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_long_poll_wakes_when_a_message_is_delivered(world):
    engine = await world.open()
    [message_id] = await world.send_ids(1_500)
    poll = asyncio.create_task(engine.queues.read_queue("orders", 0, 0, 10, wait_ms=60_000))
    await spin()
    assert not poll.done()
    await world.advance(1_500)
    assert [message.id for message in (await poll).messages] == [message_id]
    assert not engine.queues.has_waiting


async def test_long_poll_on_a_topic_without_messages_wakes_at_its_first(world):
    engine = await world.open()
    poll = asyncio.create_task(engine.queues.read_queue("fresh", 0, 0, 10, wait_ms=60_000))
    await spin()
    await world.send(0, topic="other")
    await spin()
    assert not poll.done()
    await world.send(0, topic="fresh")
    assert len((await poll).messages) == 1


async def test_long_poll_ends_empty_when_its_time_is_up(world):
    engine = await world.open()
    await world.send(0, 60_000)
    poll = asyncio.create_task(engine.queues.read_queue("orders", 0, 1, 10, wait_ms=2_000))
    await spin()
    await world.advance(1_999)
    assert not poll.done()
    await world.advance(1)
    await spin()
    page = await poll
    assert (page.messages, page.next_offset) == ([], 1)
    assert not engine.queues.has_waiting


async def test_long_poll_wakes_on_close(world):
    engine = await world.open()
    polls = [
        asyncio.create_task(engine.queues.read_queue("orders", 0, 0, 10, wait_ms=10**9)) for _ in range(3)
    ]
    await spin()
    await engine.close()
    await spin()
    assert all(poll.done() for poll in polls)
    for poll in polls:
        assert poll.exception() is None or isinstance(poll.exception(), NotReadyError)


async def test_minus_one_reads_from_the_end_as_it_is_now(world):
    engine = await world.open()
    await world.send(0, 0, 0)
    page = await engine.queues.read_queue("orders", 0, -1, 10)
    assert (page.messages, page.next_offset) == ([], 3)
    poll = asyncio.create_task(engine.queues.read_queue("orders", 0, -1, 10, wait_ms=60_000))
    await spin()
    [message_id] = await world.send_ids(0)
    assert [message.id for message in (await poll).messages] == [message_id]


async def test_offsets_before_the_first_kept_message_read_from_there(world):
    engine = await world.open(retention_ms=1_000)
    await world.send(*[0] * 5)
    await world.roll()
    await world.advance(5_000)
    await world.roll()
    await world.retention_turn()
    ids = await world.send_ids(0, 0)
    for offset in (0, 3, 5):
        page = await engine.queues.read_queue("orders", 0, offset, 10)
        assert [message.id for message in page.messages] == ids
        assert page.min_offset == 5
    assert (await engine.queues.read_queue("orders", 0, 6, 10)).messages[0].id == ids[1]


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_an_offset_behind_the_end_is_refused_and_never_waited_for(world, wait_ms):
    engine = await world.open()
    await world.send(0)
    page = await engine.queues.read_queue("orders", 0, 1, 10)
    assert (page.messages, page.next_offset, page.max_offset) == ([], 1, 1)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await engine.queues.read_queue("orders", 0, 2, 10, wait_ms)
    assert caught.value.facts == {"max_offset": 1}
    with pytest.raises(UnknownTopicError):
        await engine.queues.read_queue("other", 0, 2, 10, wait_ms)


async def test_pages_join_without_gap_or_double_wherever_the_positions_lie(world):
    """Some in index pages, some in the stage, some being put down meanwhile."""
    engine = await world.open(index_records_max=10_000)
    ids = []
    for turn in range(12):
        ids += await world.send_ids(*[0] * 17)
        if turn in (2, 3, 8):
            await engine.indexer.commit()
    for count_max in (1, 7, 50, 1_000):
        seen, offset = [], 0
        while True:
            page = await engine.queues.read_queue("orders", 0, offset, count_max)
            if not page.messages:
                break
            assert len(page.messages) <= count_max
            assert [m.queue_offset for m in page.messages] == list(range(offset, page.next_offset))
            seen += [message.id for message in page.messages]
            offset = page.next_offset
        assert seen == ids


async def test_a_page_holds_no_more_bytes_than_its_limit_and_at_least_one_message(world):
    engine = await world.open()
    await engine.sender.send([Outgoing("orders", b"b" * 900) for _ in range(3)])
    await engine.sender.send([Outgoing("orders", b"b" * 2_500), Outgoing("orders", b"b" * 900)])
    sizes, offset = [], 0
    while True:
        page = await engine.queues.records("orders", 0, offset, 100, bytes_max=2_100)
        if not page.records:
            break
        sizes.append([len(decode(record).body) for record in page.records])
        offset = page.first + len(page.records)
    assert sizes == [[900, 900], [900], [2_500], [900]]


@pytest.mark.parametrize(("topic", "queue"), [("orders", 1), ("orders", -1), ("fresh", 1)])
async def test_a_queue_that_cannot_be_is_unknown(world, topic, queue):
    engine = await world.open()
    await world.send(0)
    with pytest.raises(UnknownQueueError):
        await engine.queues.read_queue(topic, queue, 0, 10)


async def test_a_topic_that_no_message_was_sent_to_is_unknown(world):
    engine = await world.open()
    with pytest.raises(UnknownTopicError):
        engine.queues.topic("fresh")


async def test_topic_counts_follow_what_waits_and_what_is_visible(world):
    engine = await world.open()
    ids = await world.send_ids(0, 1_000, 2_000, 90_000_000)
    await engine.recalls.recall(ids[3])
    info = engine.queues.topic("orders")
    assert (info.visible, info.pending) == (1, 2)
    await world.advance(1_000)
    engine = await world.restart()
    info = engine.queues.topic("orders")
    assert (info.visible, info.pending) == (2, 1)
    assert [(topic.topic, topic.system) for topic in engine.queues.topics()] == [
        ("orders", False),
        ("rmq_sys_wheel_timer", True),
        ("SCHEDULE_TOPIC_XXXX", True),
    ]


async def test_a_page_holds_no_message_before_the_first_offset_that_it_names(world):
    """Retention raises the first offset, then removes the segments; a read may come in between."""
    threads = await open_held(world)
    engine = world.engine
    await world.send(*[0] * 10)
    queue = engine.core.state.topics["orders"].queues[0]
    make_cold(engine)

    async def begin_retention(_):
        queue.min_offset = 4

    threads.see_once("read_many", begin_retention)
    page = await engine.queues.read_queue("orders", 0, 0, 100)
    assert page.min_offset == 4
    assert [message.queue_offset for message in page.messages] == list(range(4, 10))
    assert page.next_offset == 10
