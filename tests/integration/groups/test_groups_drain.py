"""Dead letters that workers drain: it works, each keeps its first origin, and none is multiplied."""

import asyncio
from collections import Counter

import orjson
import pytest

from tests.harness.consumers import bodies, put, receive, send
from tests.harness.group_checks import check_groups
from timerwheel.store.record import Kind, encode

DAY_MS = 86_400_000


async def die(world, *names, group="g", topic="orders"):
    """Have messages with these bodies become dead letters of a group; returns their ids by body."""
    await put(world, topic, group, max_attempts=1)
    await send(world, *names, topic=topic)
    got = await receive(world, topic=topic, group=group)
    results = await world.engine.groups.nack(topic, group, [d.receipt for d in got], reason="database away")
    assert all(result.ok for result in results)
    return {d.message.body.decode(): d.message.id for d in got}


async def fail_all(world, topic, group):
    """One round of a worker whose every message fails."""
    got = await receive(world, topic=topic, group=group)
    receipts = [delivery.receipt for delivery in got]
    await world.engine.groups.nack(topic, group, receipts, reason=f"{group} of {topic} fails")
    await world.advance(120_000)


async def letters(world, group):
    return (await world.engine.groups.dead.page(group, limit=1_000)).letters


async def origins(world, *groups):
    return Counter([(one.origin_topic, one.origin_id) for g in groups for one in await letters(world, g)])


async def test_a_group_that_drains_its_own_dead_letters_and_always_fails_never_multiplies_them(world):
    await world.open()
    ids = await die(world, "a", "b")
    await put(world, "%DLQ%g", "g", max_attempts=3)
    for _ in range(20):
        await fail_all(world, "%DLQ%g", "g")
    left = await letters(world, "g")
    assert [one.message.body for one in left] == [b"a", b"b"]
    assert [one.origin_id for one in left] == [ids["a"], ids["b"]]
    assert {(one.origin_topic, one.reason, one.attempts) for one in left} == {("orders", "database away", 1)}
    assert world.engine.queues.queue_bounds("%DLQ%g", 0) == (0, 2)
    check_groups(world.engine)


async def test_what_a_group_acknowledges_of_its_own_dead_letters_is_a_dead_letter_no_more(world):
    await world.open()
    await die(world, "a", "b", "c")
    await put(world, "%DLQ%g", "g")
    got = await receive(world, 2, topic="%DLQ%g")
    receipts = [delivery.receipt for delivery in got]
    assert all(one.ok for one in await world.engine.groups.ack("%DLQ%g", "g", receipts))
    assert [one.message.body for one in await letters(world, "g")] == [b"c"]
    assert world.engine.groups.info("orders", "g").dead_letters == 1
    assert await world.engine.groups.dead.redrive("g") == (1, 0)
    await world.advance(5_000)
    assert bodies(await receive(world)) == ["c"]
    await world.crash()
    assert await letters(world, "g") == []
    check_groups(world.engine)


async def test_a_dead_letter_that_was_redriven_or_dropped_is_not_drained_besides(world):
    await world.open()
    await die(world, "a", "b", "c", "d")
    await put(world, "%DLQ%g", "g", max_attempts=5)
    held = await receive(world, 2, topic="%DLQ%g")
    assert bodies(held) == ["a", "b"]
    await world.engine.groups.nack("%DLQ%g", "g", [held[0].receipt])
    assert await world.engine.groups.dead.redrive("g", [0]) == (1, 0)
    assert await world.engine.groups.dead.drop("g", [2]) == 1
    await world.advance(DAY_MS)
    assert sorted(bodies(await receive(world, topic="%DLQ%g"))) == ["b", "d"]
    info = world.engine.groups.info("%DLQ%g", "g")
    assert (info.lag, info.ready, info.waiting) == (0, 0, 0)
    check_groups(world.engine)


async def test_another_group_only_looks_on_its_acknowledgement_leaves_the_dead_letter(world):
    await world.open()
    await die(world, "a")
    await put(world, "%DLQ%g", "alarm")
    [seen] = await receive(world, topic="%DLQ%g", group="alarm")
    await world.engine.groups.ack("%DLQ%g", "alarm", [seen.receipt])
    assert [one.message.body for one in await letters(world, "g")] == [b"a"]


@pytest.mark.parametrize(
    "readers",
    [
        [("%DLQ%a", "a"), ("%DLQ%b", "b")],
        [("%DLQ%a", "b"), ("%DLQ%b", "a")],
        [("%DLQ%a", "w"), ("%DLQ%w", "x"), ("%DLQ%x", "a")],
        [(f"%DLQ%{topic}", group) for topic in "abw" for group in "abw"],
    ],
    ids=["its own", "each other's", "a chain", "all of all"],
)
async def test_whatever_groups_fail_on_dead_letters_each_stays_one_with_its_first_origin(world, readers):
    await world.open()
    first, second = await die(world, "1", "2", group="a"), await die(world, "3", group="b")
    # Group b read the messages of group a, too: each group has dead letters of its own.
    expected = await origins(world, "a", "b")
    for topic, group in readers:
        await put(world, topic, group, max_attempts=2)
    for _ in range(8):
        for topic, group in readers:
            await fail_all(world, topic, group)
        check_groups(world.engine)
    assert await origins(world, "a", "b", "w", "x") == expected
    assert {topic for topic, _ in expected} == {"orders"}
    assert {one for _, one in expected} == {*first.values(), *second.values()}
    await world.lose_index()
    assert await origins(world, "a", "b", "w", "x") == expected


async def test_a_dead_letter_that_is_drained_and_redriven_at_once_ends_in_one_way(world):
    await world.open()
    for first in ("ack", "redrive"):
        await die(world, first)
        await put(world, "%DLQ%g", "g")
        [held] = await receive(world, topic="%DLQ%g")
        groups = world.engine.groups
        calls = [groups.ack("%DLQ%g", "g", [held.receipt]), groups.dead.redrive("g")]
        results = await asyncio.gather(*(calls if first == "ack" else reversed(calls)))
        redriven = next(one.redriven for one in results if not isinstance(one, list))
        assert redriven == (first == "redrive")
        await world.advance(5_000)
        assert bodies(await receive(world)) == ([first] if redriven else [])
        assert await letters(world, "g") == []


async def test_old_dead_letters_whose_origin_is_a_dead_letter_topic_are_redriven_and_stay_one(world):
    """As a log may have them in which a group's failures on its own dead letters were copied again."""
    await world.open()
    await die(world, "a")
    await put(world, "%DLQ%g", "g", max_attempts=2)
    [letter] = await letters(world, "g")
    origin = {"DLQ_ORIGIN_TOPIC": "%DLQ%g", "DLQ_ORIGIN_MESSAGE_ID": letter.message.id}
    old = {**letter.message.properties, **origin}
    await world.engine.groups.dead.drop("g")
    await store_letter(world, "g", b"a", old)
    assert await world.engine.groups.dead.redrive("g") == (1, 0)
    await world.advance(5_000)
    for _ in range(8):
        await fail_all(world, "%DLQ%g", "g")
    assert [one.message.body for one in await letters(world, "g")] == [b"a"]
    check_groups(world.engine)


async def store_letter(world, group, body, properties):
    """A dead letter as an older program would have stored it."""
    now_ms, topic = world.clock.now_ms(), f"%DLQ%{group}"
    record = encode(
        Kind.MESSAGE,
        topic.encode(),
        orjson.dumps(properties),
        body,
        store_ms=now_ms,
        due_ms=now_ms,
        enqueue_ms=now_ms,
    )
    await world.engine.core.commit.submit([record], [topic])


async def test_a_redriven_message_has_its_first_id_and_topic_so_that_a_repeat_is_known(world):
    await world.open()
    ids = await die(world, "a")
    for _ in range(2):  # also when it has died a second time
        assert await world.engine.groups.dead.redrive("g") == (1, 0)
        await world.advance(5_000)
        [again] = await receive(world)
        assert (again.message.id, again.message.topic) == (ids["a"], "orders")
        assert again.message.queue_offset is None
        assert again.message.properties["DLQ_REASON"] == "database away"
        await world.engine.groups.nack("orders", "g", [again.receipt], reason="database away")
    [letter] = await letters(world, "g")
    assert letter.origin_id == ids["a"] != letter.message.id
    assert (await world.engine.messages.get(ids["a"])).body == b"a"
