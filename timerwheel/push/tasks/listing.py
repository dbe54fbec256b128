"""Lists the tasks of a queue: scheduled ones in due order, then the others, newest first."""

import re
from collections.abc import Callable, Sequence

from timerwheel.engine import Engine
from timerwheel.errors import IllegalCursorError, UnknownQueueError
from timerwheel.model.messages import MessageView
from timerwheel.push.tasks.standings import Standings
from timerwheel.push.tasks.task import Task, topic_of
from timerwheel.push.tasks.view import TaskPage, TaskState, TaskView, view_of
from timerwheel.runtime.message_reader import cursor_behind

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
                raise IllegalCursorError(cursor)
        found: list[TaskView] = []
        looked = 0
        if part == _SCHEDULED:
            found, inner, looked = await self._scheduled(queue, wanted, limit, inner)
            if inner is None and state == "scheduled":
                return TaskPage(found, None)
            if inner is None:
                part = _DELIVERED
        if part == _DELIVERED and len(found) < limit and looked < LOOKED_AT_MAX:
            return await self._delivered(queue, wanted, limit, found, inner, LOOKED_AT_MAX - looked)
        return TaskPage(found, f"{part}.{inner or ''}")

    async def _scheduled(
        self, queue: str, wanted: Wanted, limit: int, cursor: str | None
    ) -> tuple[list[TaskView], str | None, int]:
        """Return scheduled tasks, the cursor behind them, and how many were looked at."""
        found: list[TaskView] = []
        looked, count_max = 0, limit
        while True:
            count = min(count_max, LOOKED_AT_MAX - looked)
            page = await self._engine.messages.pending(topic=topic_of(queue), limit=count, cursor=cursor)
            messages, cursor = page.messages, page.cursor
            for first in range(0, len(messages), STEP_TASKS):
                for message, view in await self._pairs(queue, messages[first : first + STEP_TASKS]):
                    if wanted(view):
                        found.append(view)
                    if len(found) == limit and message is not messages[-1]:
                        return found, cursor_behind(message), looked
                await self._engine.clock.breathe()
            looked += len(messages)
            if cursor is None or len(found) >= limit or looked >= LOOKED_AT_MAX:
                return found, cursor, looked
            count_max = LOOKED_AT_MAX  # all at once: each look at a far slot sorts all of its entries

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
            raise IllegalCursorError(f"{_DELIVERED}.{before}")
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

    async def _pairs(self, queue: str, messages: Sequence[MessageView]) -> list[tuple[MessageView, TaskView]]:
        tasks = [Task.of(message.envelope) for message in messages]
        standings = await self._standings.of_all(messages)
        return [
            (message, view_of(message, task, queue, standing))
            for message, task, standing in zip(messages, tasks, standings, strict=True)
            if task is not None
        ]
