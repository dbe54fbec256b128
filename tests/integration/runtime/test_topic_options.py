"""The number of queues of a topic: set, grown, kept; and messages that go to the queue they name."""

import asyncio

import pytest

from tests.harness.drive import settle
from timerwheel.errors import (
    AdmissionError,
    KeysMoveError,
    QueuesShrinkError,
    RefusedError,
    TopicOptionError,
)
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Outgoing
from timerwheel.settings import TOPIC_QUEUES_MAX
from timerwheel.state.config_table import ConfigTable, Put

WAYS = ["restart", "crash", "lose_index"]


def used(engine, topic="orders"):
    return {q.queue: q.max_offset for q in engine.queues.topic(topic).queues}


@pytest.mark.parametrize("how", WAYS)
async def test_a_topic_has_the_queues_of_its_option_and_others_those_of_the_setting(world, how):
    engine = await world.open(queues_per_topic=2)
    await engine.topics.change("orders", queues=5)
    engine = await getattr(world, how)() or world.engine
    assert [engine.queues.queues_of(topic) for topic in ("orders", "other")] == [5, 2]
    await engine.sender.send([Outgoing("orders", b"")] * 10 + [Outgoing("other", b"")] * 4)
    assert used(engine) == dict.fromkeys(range(5), 2)
    assert used(engine, "other") == {0: 2, 1: 2}


@pytest.mark.parametrize("queues", [0, -1, TOPIC_QUEUES_MAX + 1])
async def test_a_number_of_queues_out_of_bounds_is_refused(world, queues):
    engine = await world.open()
    with pytest.raises(TopicOptionError, match=str(TOPIC_QUEUES_MAX)):
        await engine.topics.change("orders", queues=queues)
    await engine.topics.change("orders", queues=TOPIC_QUEUES_MAX)
    await engine.sender.send([Outgoing("orders", b"", queue=TOPIC_QUEUES_MAX - 1)])
    assert used(engine) == {TOPIC_QUEUES_MAX - 1: 1}


async def test_queues_only_grow_also_those_of_the_setting_and_those_in_use(world):
    engine = await world.open(queues_per_topic=4)
    with pytest.raises(QueuesShrinkError):
        await engine.topics.change("orders", queues=3)
    await engine.sender.send([Outgoing("orders", b"")] * 4)
    engine = await world.restart(queues_per_topic=1) or world.engine
    with pytest.raises(QueuesShrinkError):
        await engine.topics.change("orders", queues=3)
    await engine.topics.change("orders", queues=4)
    await engine.topics.change("orders", queues=4)
    await engine.topics.change("orders", queues=6)
    with pytest.raises(QueuesShrinkError):
        await engine.topics.change("orders", queues=5)
    assert engine.queues.queues_of("orders") == 6


async def test_each_option_stays_when_the_other_is_changed_also_at_once(world):
    engine = await world.open()
    await asyncio.gather(
        engine.topics.change("orders", ordered=True), engine.topics.change("orders", queues=3)
    )
    assert engine.control.get("topic", "orders") == {"ordered": True, "queues": 3}
    await engine.topics.change("orders", ordered=False)
    assert engine.control.get("topic", "orders") == {"ordered": False, "queues": 3}
    await engine.topics.change("tickets", ordered=True)
    await engine.topics.change("tickets", ordered=False)
    assert engine.control.get("topic", "tickets") == {"ordered": False, "queues": 1}
    await engine.topics.change("invoices", ordered=False)
    assert engine.control.get("topic", "invoices") is None


async def keyed_queues(engine):
    keyed = [Outgoing("orders", b"", {"__SHARDINGKEY": f"k{n}"}) for n in range(20)]
    return [(await engine.messages.get(one.id)).queue for one in await engine.sender.send(keyed)]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 4)])
async def test_another_number_in_the_settings_moves_no_key_of_an_ordered_topic(world, how, before, after):
    engine = await world.open(queues_per_topic=before)
    await engine.topics.change("orders", ordered=True)
    queues = await keyed_queues(engine)
    assert set(queues) == set(range(before))
    await getattr(world, how)(queues_per_topic=after)
    assert await keyed_queues(world.engine) == queues
    assert world.engine.topics.queues_of("orders") == before


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
async def test_an_ordered_topic_from_before_gets_the_number_of_queues_in_use_at_the_start(
    world, before, after
):
    engine = await world.open(queues_per_topic=before)
    await engine.control.put([Put("topic", name, {"ordered": True}) for name in ("orders", "unused")])
    queues = await keyed_queues(engine)
    engine = await world.restart(queues_per_topic=after) or world.engine
    assert engine.control.get("topic", "orders") == {"ordered": True, "queues": before}
    assert engine.control.get("topic", "unused") == {"ordered": True, "queues": after}
    assert await keyed_queues(engine) == queues
    tail = engine.core.log.tail
    engine = await world.restart(queues_per_topic=before) or world.engine
    assert await keyed_queues(engine) == queues
    assert engine.control.get("topic", "unused") == {"ordered": True, "queues": after}
    assert tail < engine.core.log.tail


async def test_a_full_disk_does_not_stop_the_start_nor_move_keys(world):
    engine = await world.open()
    await engine.control.put([Put("topic", "orders", {"ordered": True})])
    queues = await keyed_queues(engine)
    await world.engine.close()
    world.files.space_bytes = 0
    engine = await world.open(queues_per_topic=4)
    assert engine.control.get("topic", "orders") == {"ordered": True}
    world.files.space_bytes = 1 << 40
    assert await keyed_queues(engine) == queues
    engine = await world.restart() or world.engine
    assert engine.control.get("topic", "orders") == {"ordered": True, "queues": 1}


async def test_keys_of_an_ordered_topic_move_only_if_the_call_says_so(world):
    engine = await world.open(queues_per_topic=2)
    await engine.topics.change("orders", ordered=True, queues=3)  # no message, so no key has a queue
    keyed = [Outgoing("orders", b"", {"__SHARDINGKEY": f"k{n}"}) for n in range(20)]

    async def queues_of_keys():
        return [(await engine.messages.get(one.id)).queue for one in await engine.sender.send(keyed)]

    before = await queues_of_keys()
    with pytest.raises(KeysMoveError, match="move_keys"):
        await engine.topics.change("orders", queues=4)
    await engine.topics.change("orders", queues=3)
    assert await queues_of_keys() == before
    await engine.topics.change("orders", queues=4, move_keys=True)
    assert await queues_of_keys() != before
    await engine.topics.change("orders", ordered=False)
    await engine.topics.change("orders", queues=5)  # nobody keeps their order
    with pytest.raises(KeysMoveError):
        await engine.topics.change("orders", queues=6, ordered=True)
    assert not engine.topics.ordered("orders")


@pytest.mark.parametrize("how", WAYS)
async def test_a_message_keeps_the_queue_that_it_names_through_the_wheel(world, how):
    engine = await world.open()
    await engine.topics.change("orders", queues=4)
    sent = [
        Outgoing("orders", b"", queue=3),
        Outgoing("orders", b"", after_ms=5_000, queue=2),
        Outgoing("orders", b"", {"DELAY": "3", "__SHARDINGKEY": "k"}, queue=1),
        Outgoing("orders", b"", {"TIMER_DELAY_MS": "90000000"}, queue=3),
        Outgoing("orders", b"", after_ms=5_000, dedup_key=None, queue=2),
    ]
    receipts = await engine.sender.send(sent)
    await engine.recalls.reschedule(receipts[1].id, {"TIMER_DELAY_MS": "7000"})
    engine = await getattr(world, how)() or world.engine
    await world.advance(100_000_000)
    assert used(world.engine) == {1: 1, 2: 2, 3: 2}
    for one, receipt in zip(sent, receipts, strict=True):
        assert (await world.engine.messages.get(receipt.id)).queue == one.queue


@pytest.mark.parametrize("queue", [-1, 2, 65_536, 2**40])
async def test_a_queue_that_the_topic_does_not_have_is_refused_and_nothing_is_stored(world, queue):
    engine = await world.open(queues_per_topic=2)
    sent = [Outgoing("orders", b"", queue=1), Outgoing("orders", b"", queue=queue)]
    assert [(fault.index, fault.code) for fault in engine.sender.check(sent)] == [(1, "illegal_queue")]
    with pytest.raises(RefusedError) as caught:
        await engine.sender.send(sent)
    assert caught.value.faults == engine.sender.check(sent)
    assert "queues 0 to 1" in caught.value.faults[0].detail
    assert "orders" not in engine.core.state.topics


async def test_a_repeat_with_a_key_is_the_same_message_whichever_queue_it_names(world):
    engine = await world.open(queues_per_topic=2)
    [first] = await engine.sender.send([Outgoing("orders", b"x", dedup_key="k", queue=0)])
    [again] = await engine.sender.send([Outgoing("orders", b"x", dedup_key="k", queue=1)])
    assert (again.id, again.duplicate) == (first.id, True)
    assert used(engine) == {0: 1}


async def test_a_group_of_the_tail_receives_the_first_message_of_a_queue_that_is_new(world):
    engine = await world.open()
    await engine.sender.send([Outgoing("orders", b"old")])
    await engine.groups.put("orders", "g", GroupConfig(start="tail"))
    await engine.topics.change("orders", queues=2)
    await engine.sender.send([Outgoing("orders", b"new", queue=1)])
    assert engine.groups.info("orders", "g").lag == 1
    assert [got.message.body for got in await engine.groups.receive("orders", "g")] == [b"new"]


async def test_topics_with_options_count_towards_topics_max(world):
    engine = await world.open(topics_max=1)
    await engine.topics.change("orders", queues=2)
    with pytest.raises(RefusedError):
        await engine.topics.change("tickets", queues=2)
    with pytest.raises(AdmissionError):
        await engine.topics.change("rmq_sys_wheel_timer", queues=2)


@pytest.mark.parametrize("how", WAYS)
async def test_whether_a_topic_goes_to_kafka_outlives_all_but_its_deletion(world, how):
    engine = await world.open()
    await engine.sender.send([Outgoing("orders", b"")] * 3)
    tag = engine.topics.tag("orders")
    await engine.topics.change("orders", to_kafka=True)
    assert engine.control.get(ConfigTable.KAFKA_OUTLET, "orders") == {"0": 3}
    assert engine.topics.tag("orders") != tag
    await engine.sender.send([Outgoing("orders", b"")])
    await engine.topics.change("orders", to_kafka=True)  # goes already
    assert engine.control.get(ConfigTable.KAFKA_OUTLET, "orders") == {"0": 3}
    await engine.topics.change("new", to_kafka=False)
    engine = await getattr(world, how)() or world.engine
    assert [engine.queues.topic(name).to_kafka for name in ("orders", "new")] == [True, False]
    await engine.topics.change("new", ordered=True)
    assert engine.topics.to_kafka("new") is False
    await engine.topics.change("orders", to_kafka=False)
    await engine.control.put(
        [Put(ConfigTable.KAFKA_OUTLET, "orders", {})]
    )  # as with a record that comes just then
    assert engine.topics.to_kafka("orders") is False
    for name in ("orders", "new"):
        await engine.topic_deletions.delete(name)
    await settle(engine)
    assert engine.control.items(ConfigTable.KAFKA_OUTLET) == {}
    assert [engine.topics.to_kafka(name) for name in ("orders", "new")] == [None, None]


async def test_no_more_topics_go_to_kafka_than_there_may_be(world):
    engine = await world.open(topics_max=1)
    await engine.topics.change("orders", to_kafka=True)
    with pytest.raises(RefusedError):
        await engine.topics.change("more", to_kafka=True)
