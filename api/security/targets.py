"""Which topic the path of a call is about: named there, or that of what is named there.

`TARGETS` knows every type of path. A call whose path is of another type is not for tokens with some topics.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.errors import DeletedMessageError, UnknownMessageError
from timerwheel.push.subscription import UnknownSubscriptionError
from timerwheel.push.tasks.task import topic_of
from timerwheel.state.groups import dead_topic
from timerwheel.wire.acks import AckPath
from timerwheel.wire.groups import DeadPath, GroupPath
from timerwheel.wire.messages import KeyPath, MessagePath
from timerwheel.wire.schedules import SchedulePath
from timerwheel.wire.subscriptions import SubscriptionPath
from timerwheel.wire.tasks import TaskPath, TaskQueuePath
from timerwheel.wire.topics import QueuePath, TopicPath

Target = Callable[[EngineHandle, Any], Awaitable[str | None]]


async def _named(_: EngineHandle, path: TopicPath | QueuePath | KeyPath | GroupPath) -> str:
    return path.topic


async def _of_message(handle: EngineHandle, path: MessagePath) -> str:
    """Return the topic of the message's current record; a damaged record has none that can be trusted."""
    try:
        return (await handle.engine.messages.current(path.id)).record.topic
    except DeletedMessageError as error:
        return error.topic


async def _of_schedule(handle: EngineHandle, path: SchedulePath) -> str | None:
    return handle.engine.schedules.topic_of(path.name)


async def _of_subscription(handle: EngineHandle, path: SubscriptionPath) -> str | None:
    try:
        return handle.push.get(path.id).topic
    except UnknownSubscriptionError:
        return None


async def _of_task(handle: EngineHandle, path: TaskPath) -> str | None:
    try:
        return await _of_message(handle, MessagePath(path.id))
    except UnknownMessageError:
        return None


async def _of_ack(_handle: EngineHandle, _path: AckPath) -> None:
    """Return none: the token in the path entitles to the call, whatever topic it is about."""


async def _of_task_queue(_: EngineHandle, path: TaskQueuePath) -> str:
    return topic_of(path.queue)


async def _of_dead_letters(_: EngineHandle, path: DeadPath) -> str:
    """Return the dead-letter topic: dead letters are its messages, whatever topics they came from."""
    return dead_topic(path.group)


# None where there is no such thing: the handler then makes it, or says that there is none.
TARGETS: Mapping[type[msgspec.Struct], Target] = {
    TopicPath: _named,
    QueuePath: _named,
    KeyPath: _named,
    GroupPath: _named,
    MessagePath: _of_message,
    SchedulePath: _of_schedule,
    SubscriptionPath: _of_subscription,
    TaskPath: _of_task,
    TaskQueuePath: _of_task_queue,
    AckPath: _of_ack,
    DeadPath: _of_dead_letters,
}
# What these name may be deleted and created again for another topic.
CHANGING = frozenset({SchedulePath, SubscriptionPath})
