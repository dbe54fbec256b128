"""Messages that are alike: stored together as `begin` stores them, or left to it."""

import asyncio

import msgspec
import pytest

from tests.harness.drive import read_all, settle
from timerwheel.errors import NotReadyError, RefusedError, TopicEndingError
from timerwheel.model.admission import Rules
from timerwheel.model.messages import Alike
from timerwheel.model.shards import Shard, shard_of_topic
from timerwheel.runtime.core import Status
from timerwheel.runtime.steps import AT_ONCE_BYTES, AT_ONCE_MAX
from timerwheel.store.record import decode_header

BODIES = [b"%d" % number * number for number in range(1, 5)]


def alike(*bodies: bytes, topic: str = "orders", queue: int = 0) -> Alike:
    return Alike(topic, queue, bodies, [b'{"A":"%d"}' % number for number in range(len(bodies))])


@pytest.fixture
async def engine(world):
    engine = await world.open(body_bytes_max=2 * AT_ONCE_BYTES, slot_messages_max=3)
    await world.send(0)
    return engine


async def test_they_are_stored_as_begin_stores_them(engine):
    quick = engine.sender.begin_alike(alike(*BODIES))
    slow = engine.sender.begin(alike(*BODIES).separate())
    await asyncio.gather(quick.stored, slow.stored)
    assert quick.records[:-1] == slow.records[:-1]  # the last one of a batch is padded
    last = [decode_header(records[-1])._replace(size=0, crc=0) for records in (quick.records, slow.records)]
    assert last[0] == last[1]
    assert engine.sender.offsets(slow)[0] == engine.sender.offsets(quick)[-1] + len(quick.records[-1])
    views = await read_all(engine, "orders")
    assert [view.body for view in views[1:]] == BODIES * 2


@pytest.mark.parametrize(
    "given",
    [
        alike(*[b"x"] * (AT_ONCE_MAX + 1)),
        alike(b"x", bytes(AT_ONCE_BYTES)),
        alike(b"x", topic="new"),
        alike(b"x", queue=1),
        alike(b"x", queue=-1),
        alike(b"x", bytes(2 * AT_ONCE_BYTES + 1)),
    ],
)
async def test_what_is_more_than_one_step_new_or_wrong_is_left_to_the_others(engine, given):
    before = engine.core.log.tail
    assert engine.sender.begin_alike(given) is None
    await settle(engine)
    assert engine.core.log.tail == before


async def test_a_body_over_the_limit_is_left_to_what_says_so(world):
    engine = await world.open(body_bytes_max=10)
    await world.send(0)
    assert engine.sender.begin_alike(alike(b"x", bytes(11))) is None
    assert engine.sender.begin_alike(alike(b"x", bytes(10))) is not None
    with pytest.raises(RefusedError, match="body_size_max"):
        engine.sender.begin(alike(b"x", bytes(11)).separate())


@pytest.mark.parametrize("topic", ["%DLQ%g", "%RETRY%g", "rmq_sys_wheel_timer"])
async def test_topics_of_the_service_are_left_to_what_refuses_them(engine, topic):
    engine.core.state.topic(topic)
    assert engine.sender.begin_alike(alike(b"x", topic=topic)) is None
    with pytest.raises(RefusedError):
        engine.sender.begin(alike(b"x", topic=topic).separate())


async def test_a_topic_of_another_shard_is_left_to_what_refuses_it(engine):
    own = shard_of_topic("orders", 2)
    for number in range(2):
        engine.sender.rules = msgspec.structs.replace(Rules.of(engine.settings), shard=Shard(number, 2))
        assert (engine.sender.begin_alike(alike(b"x")) is None) == (number != own)


async def test_a_topic_that_is_being_deleted_takes_none(engine):
    engine.topics.ending.add("orders")
    assert engine.sender.begin_alike(alike(b"x")) is None
    with pytest.raises(RefusedError) as caught:
        engine.sender.begin(alike(b"x").separate())
    assert caught.value.faults[0].code == TopicEndingError.code


async def test_a_service_that_is_not_ready_takes_none(engine):
    engine.life.become(Status.FAILED, "gone")
    with pytest.raises(NotReadyError):
        engine.sender.begin_alike(alike(b"x"))


async def test_they_do_not_overtake_a_timer_of_their_topic_and_millisecond(world, engine):
    await world.send(1_000, body=b"timer")
    await world.advance(999)
    world.clock.advance(1)  # due, and not fired before the next step of the loop
    assert engine.sender.begin_alike(alike(b"behind")) is None
    engine.sender.begin(alike(b"behind").separate())
    await world.advance(0)
    assert [view.body for view in (await read_all(engine, "orders"))[1:]] == [b"timer", b"behind"]
    assert engine.sender.begin_alike(alike(b"x")) is not None


async def test_after_a_crash_they_are_all_there_or_none(world, engine):
    pending = engine.sender.begin_alike(alike(*BODIES))
    await pending.stored
    await world.crash()
    assert [view.body for view in await read_all(world.engine, "orders")] == [b"x", *BODIES]
    assert sum(decode_header(record).flags for record in pending.records) == len(BODIES) - 1
