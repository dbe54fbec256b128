"""The calls on one-call tasks and their queues."""

import msgspec
from aiohttp import web
from msgspec import UNSET
from yarl import URL

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, idempotency, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.messages import intake
from timerwheel.api.messages.delays import delay_property, new_time
from timerwheel.api.messages.trace_headers import put_context
from timerwheel.api.security import access
from timerwheel.model.messages import Outgoing
from timerwheel.push.tasks.task import Task, check_queue, topic_of
from timerwheel.push.tasks.tasks import Tasks
from timerwheel.push.tasks.view import TaskView
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec, check_name
from timerwheel.tokens import Scope
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.messages import NewTime
from timerwheel.wire.subscriptions import NewSecret
from timerwheel.wire.tasks import (
    AcceptedTask,
    NewTask,
    TaskPath,
    TaskQueueChanges,
    TaskQueuePath,
    TaskQueues,
    TasksQuery,
)

_OF_CRON = ("zone", "schedule")


class TaskCalls:
    """Handlers under `/v1/tasks` and `/v1/task-queues`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @property
    def _tasks(self) -> Tasks:
        return self._handle.push.tasks

    async def create(self, request: web.Request) -> web.Response:
        """POST /v1/tasks: 201 once the task, or its schedule, is durable; 200 if the key has it already."""
        query.read(request, NoQuery)
        new = await bodies.read(request, NewTask, values_max=bodies.JSON_BODY_VALUES_MAX)
        self._check_may_call(request, new.queue)
        properties: dict[str, str] = {}
        body = intake.body_with_type(properties, new)
        key = _key(request, new)
        if new.cron is not UNSET:
            return await self._schedule(new, body, properties, key)
        given = [name for name in _OF_CRON if getattr(new, name) is not UNSET]
        if given:
            raise RequestError("invalid_field", f"{given[0]}: only a task with cron has one")
        when = delay_property(new, properties)
        if when is not None:
            properties[when[0]] = when[1]
        put_context(request, [properties])

        def more(message: Outgoing) -> Outgoing:
            return msgspec.structs.replace(message, properties=properties, dedup_key=key)

        receipt = await self._tasks.create(new.queue, _task(new), body, more=more)
        answer = AcceptedTask(
            queue=new.queue,
            id=receipt.id,
            due_ms=receipt.due_ms,
            state=receipt.state,
            duplicate=receipt.duplicate,
        )
        if receipt.duplicate:
            return responses.json(answer)
        return responses.created(answer, f"/v1/tasks/{receipt.id}")

    async def _schedule(
        self, new: NewTask, body: bytes, properties: dict[str, str], key: str | None
    ) -> web.Response:
        """Make the schedule of a task with `cron`."""
        if key is not None or delay_property(new, {}) is not None:
            raise RequestError("invalid_field", "cron: a task with cron takes neither a delay nor a key")
        if new.schedule is not UNSET:
            check_name(new.schedule)
        spec = ScheduleSpec(
            topic=topic_of(new.queue),
            body=body,
            properties=properties,
            recurrence=Recurrence(
                cron=None if new.cron is UNSET else new.cron, zone="UTC" if new.zone is UNSET else new.zone
            ),
        )
        name = None if new.schedule is UNSET else new.schedule
        info = await self._tasks.schedule(new.queue, _task(new), name, spec)
        answer = AcceptedTask(queue=new.queue, schedule=info.name, due_ms=info.next_run_ms)
        return responses.created(answer, f"/v1/schedules/{info.name}")

    async def one(self, request: web.Request) -> web.Response:
        """GET /v1/tasks/{id}: a task with its state."""
        return responses.json(await self._tasks.get(_id(request)))

    async def all(self, request: web.Request) -> web.Response:
        """GET /v1/tasks: a page of the tasks of a queue."""
        asked = query.read(request, TasksQuery)
        access.of(request).check([topic_of(check_queue(asked.queue))])

        def wanted(task: TaskView) -> bool:
            if asked.state is not UNSET and task.state != asked.state:
                return False
            return asked.host is UNSET or asked.host in _hosts(task.url)

        cursor = None if asked.cursor is UNSET else asked.cursor
        return responses.json(await self._tasks.page(asked.queue, wanted, asked.limit, cursor))

    async def cancel(self, request: web.Request) -> web.Response:
        """DELETE /v1/tasks/{id}: it is not called any more."""
        return responses.json(await self._tasks.cancel(_id(request)))

    async def reschedule(self, request: web.Request) -> web.Response:
        """PATCH /v1/tasks/{id}: gives a waiting task another time."""
        task_id = _id(request)
        properties = new_time(await bodies.read(request, NewTime))
        return responses.json(await self._tasks.reschedule(task_id, properties))

    async def run(self, request: web.Request) -> web.Response:
        """POST /v1/tasks/{id}/run: calls a waiting task now."""
        return responses.json(await self._tasks.run(_id(request)))

    # ------------------------------------------------------------------ queues

    async def queues(self, request: web.Request) -> web.Response:
        """GET /v1/task-queues: every queue that the caller has access to."""
        query.read(request, NoQuery)
        may = access.of(request).may
        return responses.json(TaskQueues([one for one in self._tasks.queues() if may(one.topic)]))

    async def queue(self, request: web.Request) -> web.Response:
        """GET /v1/task-queues/{queue}: one queue."""
        return responses.json(self._tasks.get_queue(_queue(request)))

    async def put_queue(self, request: web.Request) -> web.Response:
        """PUT /v1/task-queues/{queue}: 201 with the secret if this made it, else 200."""
        name = _queue(request)
        options = await bodies.read(request, TaskQueueChanges, may_be_empty=True)
        view, made = await self._tasks.put_queue(name, options)
        return responses.put(request, view, made=made)

    async def rotate(self, request: web.Request) -> web.Response:
        """POST .../rotate-secret: signs with a new secret as well as the old one."""
        name = _queue(request)
        new = await bodies.read(request, NewSecret, may_be_empty=True)
        secret = None if new.secret is UNSET else new.secret
        return responses.json(await self._tasks.rotate_secret(name, secret))

    async def finish_rotation(self, request: web.Request) -> web.Response:
        """POST .../finish-rotation: signs with the newest secret only."""
        return responses.json(await self._tasks.finish_rotation(_queue(request)))

    def _check_may_call(self, request: web.Request, queue: str) -> None:
        """Refuse a caller who could not have a URL called by a subscription and a message of its own."""
        caller = access.of(request)
        caller.check([topic_of(check_queue(queue))])
        if not caller.holds(Scope.SEND):
            raise RequestError(
                "forbidden",
                f"the token {caller.name!r} lacks the scope send: a task needs both send and receive",
            )


def _id(request: web.Request) -> str:
    query.read(request, NoQuery)
    return query.path(request, TaskPath).id


def _queue(request: web.Request) -> str:
    query.read(request, NoQuery)
    return query.path(request, TaskQueuePath).queue


def _key(request: web.Request, new: NewTask) -> str | None:
    given = None if new.dedup_key is UNSET else new.dedup_key
    key = idempotency.key_of(request)
    if key is not None and given is not None and key != given:
        raise RequestError("conflicting_key", "Idempotency-Key and dedup_key differ; give only one")
    return given if key is None else key


def _task(new: NewTask) -> Task:
    names = ("headers", "max_attempts", "backoff", "timeout_ms", "callback", "failure_callback")
    given = {name: value for name in names if (value := getattr(new, name)) is not UNSET}
    return Task(url=new.url, method=new.method, **given)


def _hosts(url: str) -> set[str]:
    found = URL(url)
    return {f"{found.host}", f"{found.host}:{found.port}", f"{found.raw_host}"}
