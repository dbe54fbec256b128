"""One-call tasks: URLs that the service calls when they are due."""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

from msgspec import UNSET, UnsetType

from timerwheel.client.bodies import Body, content_of
from timerwheel.client.connection import Connection, arguments, given, part, with_query
from timerwheel.client.drafts import WHEN_FIELDS, length_ms, when_content
from timerwheel.groups.config import Exponential, Ladder
from timerwheel.push.tasks.task import Method
from timerwheel.push.tasks.task_queue import TaskQueueView, TaskQueueWithSecret
from timerwheel.push.tasks.view import TaskPage, TaskState, TaskView
from timerwheel.wire import tasks as wire
from timerwheel.wire.tasks import AcceptedTask

PAGE_TASKS = 500


class Tasks:
    """The tasks of a service, by id, and their queues, by name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self,
        url: str,
        body: Body = "",
        *,
        json: object = UNSET,
        method: Method | None = None,
        headers: dict[str, str] | None = None,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
        cron: str | None = None,
        zone: str | None = None,
        schedule: str | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        retries: int | None = None,
        backoff: Ladder | Exponential | None = None,
        timeout_ms: int | None = None,
        timeout: str | dt.timedelta | None = None,  # noqa: ASYNC109 - of the call that the service makes
        callback: str | None = None,
        failure_callback: str | None = None,
        dedup_key: str | None = None,
    ) -> AcceptedTask:
        """Have a URL called when it is due: the task is durable when this returns.

        The body is text, bytes, a model as in `Client.send`, or with `json` any JSON value. `delay` and
        `deliver_at` are as in `Client.send`; with none, it is called at once. With `cron` it is called again
        and again, by the `schedule` of that name. `callback` is a URL that gets the outcome of a success,
        `failure_callback` that of a failure. `retries` are the attempts after the first, in place of
        `max_attempts`; `timeout` is `timeout_ms` as `"10s"` or a timedelta. With a `dedup_key` it is stored
        once. The service chooses what is left out. Raises `ValueError` for a datetime without a time zone.
        """
        options = arguments(locals(), "json")
        others = {"body", "json", "timeout", *WHEN_FIELDS}
        content = {name: value for name, value in options.items() if name not in others}
        if isinstance(timeout, dt.timedelta):
            content["timeout_ms"] = length_ms(timeout)
        elif timeout is not None:
            content["timeout"] = timeout
        content |= when_content(options) | content_of(options)
        return await self._connection.call("POST", "/v1/tasks", AcceptedTask, content=content)

    async def get(self, task_id: str) -> TaskView:
        """Return a task with its state."""
        return await self._connection.call("GET", _task(task_id), TaskView)

    async def page(
        self,
        queue: str | None = None,
        *,
        state: TaskState | None = None,
        host: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> TaskPage:
        """Return tasks of a queue: scheduled ones in due order, then the others, newest first."""
        wanted: dict[str, Any] = arguments(locals())
        return await self._connection.call("GET", with_query("/v1/tasks", wanted), TaskPage)

    async def all(
        self,
        *,
        queue: str | None = None,
        state: TaskState | None = None,
        host: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[TaskView]:
        """Yield the tasks of a queue, page by page, at most `limit`: scheduled ones, then the others."""
        cursor: str | None = None
        while limit is None or limit > 0:
            size = PAGE_TASKS if limit is None else min(limit, PAGE_TASKS)
            page = await self.page(queue=queue, state=state, host=host, limit=size, cursor=cursor)
            for task in page.tasks:
                yield task
            cursor = page.cursor
            if cursor is None:
                return
            limit = None if limit is None else limit - len(page.tasks)

    async def reschedule(
        self,
        task_id: str,
        *,
        delay: str | dt.timedelta | None = None,
        delay_ms: int | None = None,
        deliver_at: dt.datetime | str | None = None,
        deliver_at_ms: int | None = None,
    ) -> TaskView:
        """Reschedule a task; `ConflictError` if it runs or has ended."""
        when = arguments(locals())
        return await self._connection.call("PATCH", _task(task_id), TaskView, content=when_content(when))

    async def cancel(self, task_id: str) -> TaskView:
        """Cancel a task that is not being called; `ConflictError` if it is, or has ended."""
        return await self._connection.call("DELETE", _task(task_id), TaskView)

    async def run(self, task_id: str) -> TaskView:
        """Call a scheduled or retrying task now; `ConflictError` if it runs or has ended."""
        return await self._connection.call("POST", f"{_task(task_id)}/run", TaskView)

    async def queues(self) -> list[TaskQueueView]:
        """Return all task queues, by name."""
        return (await self._connection.call("GET", "/v1/task-queues", wire.TaskQueues)).queues

    async def get_queue(self, queue: str) -> TaskQueueView:
        """Return one task queue."""
        return await self._connection.call("GET", _queue(queue), TaskQueueView)

    async def put_queue(
        self,
        queue: str,
        *,
        rate_limit: float | UnsetType | None = UNSET,
        concurrency: int | UnsetType | None = UNSET,
        host_concurrency: int | None = None,
        paused: bool | None = None,
        secret: str | None = None,
    ) -> TaskQueueWithSecret | TaskQueueView:
        """Create a queue, whose secret no other call shows, or change what is given; None means no limit."""
        content = arguments(locals(), "rate_limit", "concurrency")
        del content["queue"]
        found = await self._connection.call("PUT", _queue(queue), dict[str, Any], content=content)
        kind = TaskQueueWithSecret if "secret" in found else TaskQueueView
        return kind(**found)

    async def rotate_secret(self, queue: str, secret: str | None = None) -> TaskQueueWithSecret:
        """Sign with a new secret and with the old one, until `finish_rotation`."""
        content = given(secret=secret)
        return await self._connection.call(
            "POST", f"{_queue(queue)}/rotate-secret", TaskQueueWithSecret, content=content
        )

    async def finish_rotation(self, queue: str) -> TaskQueueView:
        """Sign with the newest secret only."""
        return await self._connection.call("POST", f"{_queue(queue)}/finish-rotation", TaskQueueView)


def _task(task_id: str) -> str:
    return f"/v1/tasks/{part(task_id)}"


def _queue(queue: str) -> str:
    return f"/v1/task-queues/{part(queue)}"
