"""What has a name of its own is its topic's when the change is made, not when it was asked for."""

import asyncio

import pytest

from timerwheel.model.authorization import limited_to, permitted
from timerwheel.push.push import Push
from timerwheel.push.subscription import Changes, Draft, UnknownSubscriptionError
from timerwheel.push.tasks.task import Task
from timerwheel.schedules.errors import UnknownScheduleError
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec

URL = "http://127.0.0.1:9/"


def spec(topic: str) -> ScheduleSpec:
    return ScheduleSpec(topic=topic, body=b"tick", recurrence=Recurrence(every_ms=60_000))


def mine(topic: str) -> bool:
    return topic == "mine"


async def test_a_schedule_that_became_anothers_is_neither_changed_nor_deleted(world):
    schedules = (await world.open()).schedules
    with limited_to(mine):
        await schedules.put("s", spec("mine"))
    await schedules.delete("s")
    theirs = await schedules.put("s", spec("theirs"))
    with limited_to(mine):
        for change in (
            schedules.put("s", spec("mine")),
            schedules.pause("s"),
            schedules.resume("s"),
            schedules.delete("s"),
        ):
            with pytest.raises(UnknownScheduleError):
                await change
    assert await schedules.get("s") == theirs


async def test_a_schedule_that_became_anothers_is_not_made_one_of_tasks(world):
    engine = await world.open()
    push = Push(engine, allow_private=True)
    await push.start()
    theirs = await engine.schedules.put("s", spec("theirs"))
    of_tasks = spec("%TASK%queue")
    with pytest.raises(UnknownScheduleError):
        await push.tasks.schedule("queue", Task(url=URL), "s", of_tasks, mine)
    assert await engine.schedules.get("s") == theirs
    await push.close()


async def test_a_subscription_that_became_anothers_is_neither_changed_nor_deleted(world):
    push = Push(await world.open(), allow_private=True)
    await push.start()
    await push.create(Draft(id="s", topic="theirs", url=URL))
    theirs = push.get("s")
    with limited_to(mine):
        for change in (
            push.update("s", Changes(url=URL + "taken")),
            push.pause("s"),
            push.resume("s"),
            push.rotate_secret("s"),
            push.finish_rotation("s"),
            push.test_fire("s"),
            push.delete("s"),
        ):
            with pytest.raises(UnknownSubscriptionError):
                await change
    assert push.get("s") == theirs
    await push.close()


async def test_the_limit_holds_in_tasks_of_the_block_and_ends_with_it():
    async def asked() -> bool:
        return permitted("theirs")

    with limited_to(mine):
        assert not await asyncio.create_task(asked())
    assert await asked()
