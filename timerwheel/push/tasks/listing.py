"""Lists the tasks of a queue: those that wait for their time in due order, then the others, newest first."""

import re
from collections.abc import Callable, Sequence

from timerwheel.engine import Engine
from timerwheel.errors import IllegalCursorError, UnknownQueueError
from timerwheel.model.messages import MessageView
from timerwheel.push.tasks.standings import Standings
from timerwheel.push.tasks.task import Task, topic_of
from timerwheel.push.tasks.view import TaskPage, TaskState, TaskView, view_of

LOOKED_AT_MAX = 2_000
"""Most tasks to look at for one page."""
STEP_TASKS = 200
_SCHEDULED, _DELIVERED = "s", "d"
_OFFSET = re.compile(r"[0-9]{1,18}", re.ASCII)

Wanted = Callable[[TaskView], bool]


class Listing:
    """See the module. Belongs to the event loop."""

    def __init__(self, engine: Engine, standings: Standings) -> None:
        self._engine = engine
        self._standings = standings

    async def page(
        self, queue: str, wanted: Wanted, limit: int, cursor: str | None, state: TaskState | None = None
    ) -> TaskPage:
        """Return up to `limit` tasks for which `wanted` is true; IllegalCursorError.

        With a `state` it looks only where tasks of that state are.
        """
        part, inner = _SCHEDULED if state in (None, "scheduled") else _DELIVERED, None
        if cursor is not None:
            part, _, text = cursor.partition(".")
            inner = text or None
            if part not in (_SCHEDULED, _DELIVERED):
                raise _illegal(cursor)
        found: list[TaskView] = []
        looked = 0
        while part == _SCHEDULED and len(found) < limit and looked < LOOKED_AT_MAX:
            step = min(limit - len(found), STEP_TASKS)
            page = await self._engine.messages.pending(topic=topic_of(queue), limit=step, cursor=inner)
            looked += len(page.messages)
            found += await self._views(queue, page.messages, wanted)
            inner = page.cursor
            if inner is None and state == "scheduled":
                return TaskPage(found, None)
            if inner is None:
                part = _DELIVERED
        if part == _DELIVERED and len(found) < limit and looked < LOOKED_AT_MAX:
            return await self._delivered(queue, wanted, limit, found, inner, LOOKED_AT_MAX - looked)
        return TaskPage(found, f"{part}.{inner or ''}")

    async def _delivered(
        self,
        queue: str,
        wanted: Wanted,
        limit: int,
        found: list[TaskView],
        before: str | None,
        looks: int,
    ) -> TaskPage:
        """Add tasks whose time has come, below the queue offset `before`."""
        if before is not None and _OFFSET.fullmatch(before) is None:
            raise _illegal(f"{_DELIVERED}.{before}")
        low, high = self._engine.queues.queue_bounds(topic_of(queue), 0)
        end = high if before is None else min(int(before), high)
        while end > low and len(found) < limit and looks > 0:
            first = max(end - min(STEP_TASKS, looks), low)
            messages = await self._messages(queue, first, end)
            looks -= end - first
            for message, view in reversed(await self._pairs(queue, messages)):
                if wanted(view):
                    found.append(view)
                    if len(found) == limit:
                        at = message.queue_offset or 0
                        return TaskPage(found, f"{_DELIVERED}.{at}" if at > low else None)
            end = first
        return TaskPage(found, f"{_DELIVERED}.{end}" if end > low else None)

    async def _messages(self, queue: str, first: int, end: int) -> list[MessageView]:
        """Return the messages at these queue offsets, as far as they are kept."""
        found: list[MessageView] = []
        while first < end:
            try:
                page = await self._engine.queues.read_queue(topic_of(queue), 0, first, end - first)
            except UnknownQueueError:
                return []
            found += page.messages
            if page.next_offset <= first or not page.messages:
                break
            first = page.next_offset
        return [message for message in found if (message.queue_offset or 0) < end]

    async def _views(self, queue: str, messages: Sequence[MessageView], wanted: Wanted) -> list[TaskView]:
        return [view for _, view in await self._pairs(queue, messages) if wanted(view)]

    async def _pairs(self, queue: str, messages: Sequence[MessageView]) -> list[tuple[MessageView, TaskView]]:
        tasks = [Task.of(message.envelope) for message in messages]
        standings = await self._standings.of_all(messages)
        return [
            (message, view_of(message, task, queue, standing))
            for message, task, standing in zip(messages, tasks, standings, strict=True)
            if task is not None
        ]


def _illegal(cursor: str) -> IllegalCursorError:
    return IllegalCursorError(f"{cursor!r} is not a cursor of this call; use one from the previous page")
