"""What is stored of a topic's options, and what earlier versions stored of them."""

import pytest

from timerwheel.state.config_table import ConfigTable, Put


def stored(world, topic="orders"):
    return world.engine.core.state.control.get(ConfigTable.TOPIC, topic)


async def test_only_what_differs_from_the_default_is_stored_but_always_whether_it_is_ordered(world):
    await world.open()
    topics = world.engine.topics
    assert stored(world) is None
    await topics.change("orders", queues=3)
    assert stored(world) == {"ordered": False, "queues": 3}
    await topics.pause("orders")
    await topics.change("orders", ordered=True, to_kafka=False)
    assert stored(world) == {"ordered": True, "queues": 3, "paused": True, "to_kafka": False}
    await topics.resume("orders")
    assert stored(world) == {"ordered": True, "queues": 3, "to_kafka": False}
    await topics.pause("other")
    await topics.resume("other")
    assert stored(world, "other") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"queues": 3}, (False, 3, False, None)),
        ({"ordered": True, "queues": 2, "paused": True}, (True, 2, True, None)),
        ({"to_kafka": False, "unheard of": 1}, (False, 1, False, False)),
    ],
)
async def test_options_are_read_as_earlier_and_later_versions_store_them(world, value, expected):
    world.limits["queues_per_topic"] = 1
    await world.open()
    await world.engine.control.put([Put(ConfigTable.TOPIC, "orders", value)])
    for _ in range(2):
        topics = world.engine.topics
        found = (topics.ordered("orders"), topics.queues_of("orders"), topics.paused("orders"))
        assert (*found, topics.to_kafka("orders")) == expected
        await world.engine.close()
        await world.open()
