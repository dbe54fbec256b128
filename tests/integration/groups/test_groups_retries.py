"""Messages that consumers of a group of kind `offsets` send back: they come again, or are dead letters."""

import asyncio

import pytest

from tests.harness.consumers import put
from tests.harness.drive import read_all
from tests.harness.held import go_on, open_held
from timerwheel.errors import AdmissionError, NotReadyError
from timerwheel.groups import dead_letters
from timerwheel.groups.config import GroupConfig, GroupDiffersError, UnknownGroupError
from timerwheel.groups.dead_letter_properties import DeadLetterOrigin
from timerwheel.model.messages import Outgoing, State
from timerwheel.store.errors import NoSpaceError

PLACE = ("orders", "g")
RETRY, DEAD = "%RETRY%g", "%DLQ%g"
PROPERTIES = {"TAGS": "a", "RETRY_TOPIC": "orders", "RECONSUME_TIME": "1"}
ORIGIN = DeadLetterOrigin("0" * 24, "reconsumed 16 times", 16)
LEVEL_3_MS = 10_000


async def open_with(world, **limits):
    engine = await world.open(**limits)
    await engine.groups.put(*PLACE, GroupConfig(kind="offsets"))
    return engine


@pytest.mark.parametrize("how", [None, "restart", "crash", "lose_index"])
async def test_a_message_that_is_sent_back_comes_once_after_its_delay_with_its_properties(world, how):
    engine = await open_with(world, queues_per_topic=4)
    by_level = await engine.groups.retries.send_back(*PLACE, b"x", PROPERTIES, level=3)
    by_ms = await engine.groups.retries.send_back(*PLACE, b"y", {}, delay_ms=500)
    found = await engine.messages.get(by_level)
    assert (found.level, found.due_ms, found.state) == (3, world.clock.now_ms() + 10_000, State.SCHEDULED)
    if how is not None:
        engine = await getattr(world, how)()
    await world.advance(500)
    assert [(m.id, m.body) for m in await read_all(engine, RETRY)] == [(by_ms, b"y")]
    await world.advance(LEVEL_3_MS - 501)
    assert len(await read_all(engine, RETRY)) == 1
    await world.advance(1)
    again = (await read_all(engine, RETRY))[1]
    assert (again.id, again.body, again.queue) == (by_level, b"x", 0)
    assert again.properties.items() >= PROPERTIES.items()


async def test_without_a_delay_it_comes_at_once_and_levels_are_clamped(world):
    engine = await open_with(world)
    sent = await engine.groups.retries.send_back(*PLACE, b"x", {})
    assert [m.id for m in await read_all(engine, RETRY)] == [sent]
    late = await engine.groups.retries.send_back(*PLACE, b"x", {}, level=99)
    assert (await engine.messages.get(late)).level == 18


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"level": -1}, "illegal_delay"),
        ({"delay_ms": -1}, "illegal_delay"),
        ({"delay_ms": 2**62}, "delay_too_long"),
    ],
)
async def test_a_delay_that_cannot_be_is_refused(world, options, code):
    engine = await open_with(world)
    tail = engine.core.log.tail
    with pytest.raises(AdmissionError) as refused:
        await engine.groups.retries.send_back(*PLACE, b"x", {}, **options)
    assert (refused.value.code, engine.core.log.tail) == (code, tail)


async def test_a_message_that_is_given_up_is_a_dead_letter_of_its_group_and_topic(world):
    engine = await open_with(world, queues_per_topic=4)
    letter_id = await engine.groups.retries.give_up(*PLACE, b"x", PROPERTIES, ORIGIN)
    [letter] = (await engine.groups.dead.page("g")).letters
    assert (letter.message.id, letter.message.body, letter.message.queue) == (letter_id, b"x", 0)
    assert (letter.origin_topic, letter.origin_id, letter.attempts) == ("orders", "0" * 24, 16)
    assert letter.reason == "reconsumed 16 times"
    assert (await engine.groups.describe(*PLACE)).dead_letters == 1


async def test_a_dead_letter_that_is_redriven_comes_again_in_the_topic_of_retries_once(world):
    engine = await open_with(world)
    for body in (b"x", b"y"):
        await engine.groups.retries.give_up(*PLACE, body, PROPERTIES, ORIGIN)
    assert await engine.groups.dead.redrive("g", [0]) == (1, 0)
    assert await engine.groups.dead.redrive("g", [0]) == (0, 0)
    [again] = await read_all(engine, RETRY)
    assert (again.body, again.properties) == (b"x", PROPERTIES)
    engine = await world.lose_index()
    assert len(await read_all(engine, RETRY)) == 1
    assert [letter.message.body for letter in (await engine.groups.dead.page("g")).letters] == [b"y"]
    assert await engine.groups.dead.redrive("g") == (1, 0)
    assert len(await read_all(engine, RETRY)) == 2
    assert not engine.core.state.groups.by_name["orders/g"].items


async def test_many_large_dead_letters_are_redriven_in_several_units(world, monkeypatch):
    monkeypatch.setattr(dead_letters, "REDRIVE_BYTES", 2_000)
    engine = await open_with(world)
    for number in range(7):
        await engine.groups.retries.give_up(*PLACE, b"%d" % number * 900, {}, ORIGIN)
    assert await engine.groups.dead.redrive("g") == (7, 0)
    assert [m.body[:1] for m in await read_all(engine, RETRY)] == [b"%d" % number for number in range(7)]
    assert (await engine.groups.dead.page("g")).letters == []


async def test_a_dead_letter_whose_group_is_gone_stays(world):
    engine = await open_with(world)
    await engine.groups.retries.give_up(*PLACE, b"x", {}, ORIGIN)
    await engine.groups.delete(*PLACE)
    assert await engine.groups.dead.redrive("g") == (0, 1)
    assert await read_all(engine, RETRY) == []


async def test_a_dead_letter_that_is_redriven_while_its_group_is_deleted_stays(world):
    threads = await open_held(world)
    groups = world.engine.groups
    await groups.put(*PLACE, GroupConfig(kind="offsets"))
    await groups.retries.give_up(*PLACE, b"x", {}, ORIGIN)
    with threads.holding("append"):
        deleting = asyncio.create_task(groups.delete(*PLACE))
        await go_on()
        redriving = asyncio.create_task(groups.dead.redrive("g"))
        await go_on()
    await deleting
    assert await redriving == (0, 1)
    assert await read_all(world.engine, RETRY) == []
    assert len((await groups.dead.page("g")).letters) == 1


async def test_copies_pass_the_limits_on_new_messages_but_not_a_full_disk(world):
    engine = await open_with(world, properties_max=2, body_bytes_max=1, disk_reserve_bytes=1 << 50)
    await engine.watch_once()
    assert engine.disk.refusal is not None
    await engine.groups.retries.send_back(*PLACE, b"xyz", PROPERTIES)
    await engine.groups.retries.give_up(*PLACE, b"xyz", PROPERTIES, ORIGIN)
    world.files.space_bytes = 0
    with pytest.raises(NoSpaceError):
        await engine.groups.retries.send_back(*PLACE, b"xyz", PROPERTIES)


async def test_only_groups_that_commit_offsets_send_messages_back(world):
    engine = await open_with(world)
    await put(world, group="leasing")
    retries = engine.groups.retries
    for group, error in (("leasing", GroupDiffersError), ("none", UnknownGroupError)):
        with pytest.raises(error):
            await retries.send_back("orders", group, b"", {})
        with pytest.raises(error):
            await retries.give_up("orders", group, b"", {}, ORIGIN)
    await engine.close()
    with pytest.raises(NotReadyError):
        await retries.send_back(*PLACE, b"", {})


async def test_a_client_sends_nothing_to_the_retries_of_a_group_and_may_read_them(world):
    engine = await open_with(world)
    await engine.groups.retries.send_back(*PLACE, b"x", {})
    assert engine.sender.check([Outgoing(RETRY, b"x")])[0].code == "system_topic"
    await engine.groups.put(RETRY, "g", GroupConfig(kind="offsets"))
    assert engine.groups.info(RETRY, "g").lag == 1
    assert RETRY in engine.queues.topic_names()
