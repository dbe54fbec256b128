"""The calls on one-call tasks and their queues."""

import contextlib
from functools import partial

import msgspec
from aiohttp import web
from msgspec import UNSET
from yarl import URL

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, idempotency, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import ADMISSION, DELAY, KEY, STORE, Need, call
from timerwheel.api.http.steps import made_of
from timerwheel.api.messages import intake
from timerwheel.api.messages.delays import delay_property, new_time
from timerwheel.api.messages.trace_headers import put_context
from timerwheel.api.security import access
from timerwheel.api.security.access import Access
from timerwheel.errors import AdmissionError
from timerwheel.model import list_cursor
from timerwheel.model.durations import parse_delay_ms
from timerwheel.model.messages import Outgoing
from timerwheel.push.tasks.task import TASK_ATTEMPTS_MAX, Task, check_queue, topic_of
from timerwheel.push.tasks.task_queue import TaskQueueView, TaskQueueWithSecret
from timerwheel.push.tasks.tasks import Tasks
from timerwheel.push.tasks.view import TaskPage, TaskView
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec, check_name
from timerwheel.tokens import Scope
from timerwheel.wire.fields import given
from timerwheel.wire.messages import NewTime
from timerwheel.wire.paging import PageQuery
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

TASK = "/v1/tasks/{id}"
QUEUE = "/v1/task-queues/{queue}"
KNOWN = ("unknown_task", "message_deleted")
SETTLED = ("task_state", "already_delivered", "already_recalled", "unknown_message", "topic_ending", *STORE)
KNOWN_QUEUE = ("illegal_task_queue", "unknown_task_queue")
MAKES_QUEUE = ("illegal_task_queue", "too_many_task_queues", "too_many_groups", "setting_too_large")

_reads = partial(call, needs=Need.RECEIVE, answer=TaskView, known=KNOWN)
_changes = partial(_reads, problems=SETTLED)
_reads_queue = partial(call, needs=Need.RECEIVE, answer=TaskQueueView, known=KNOWN_QUEUE)
_changes_queue = partial(_reads_queue, audited=True)

_OF_CRON = ("zone", "schedule")


class TaskCalls:
    """Handlers under `/v1/tasks` and `/v1/task-queues`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @property
    def _tasks(self) -> Tasks:
        return self._handle.push.tasks

    @call(
        "POST",
        "/v1/tasks",
        "createTask",
        needs=Need.RECEIVE,
        audited=True,
        status=201,
        also=(200,),
        located=True,
        takes_key=True,
        takes_context=True,
        answer=AcceptedTask,
        problems=(
            *ADMISSION,
            *KEY,
            *MAKES_QUEUE,
            *("illegal_task", "conflicting_body", "conflicting_delay"),
            *("illegal_schedule", "too_many_schedules", "name_in_use"),
            *STORE,
        ),
        values_max=bodies.JSON_BODY_VALUES_MAX,
    )
    async def create(self, request: web.Request, body: NewTask) -> web.Response:
        """Call a URL now, later, or again and again; the token needs both send and receive.

        201 once the task, or its schedule, is durable; 200 if the key has it already.
        """
        self._check_may_call(request, body.queue)
        properties: dict[str, str] = {}
        content = intake.body_with_type(properties, body)
        key = _key(request, body)
        if body.cron is not UNSET:
            return await self._schedule(access.of(request), body, content, properties, key)
        given = [name for name in _OF_CRON if getattr(body, name) is not UNSET]
        if given:
            raise RequestError("invalid_field", f"{given[0]}: only a task with cron has one")
        when = delay_property(body, properties)
        if when is not None:
            properties[when[0]] = when[1]
        put_context(request, [properties])

        def more(message: Outgoing) -> Outgoing:
            return msgspec.structs.replace(message, properties=properties, dedup_key=key)

        receipt = await self._tasks.create(body.queue, _task(body), content, more=more)
        answer = AcceptedTask(
            queue=body.queue,
            id=receipt.id,
            due_ms=receipt.due_ms,
            state=receipt.state,
            duplicate=receipt.duplicate,
        )
        if receipt.duplicate:
            return responses.json(answer)
        return responses.created(answer, f"/v1/tasks/{receipt.id}")

    async def _schedule(
        self, caller: Access, new: NewTask, body: bytes, properties: dict[str, str], key: str | None
    ) -> web.Response:
        """Make the schedule of a task with `cron`; one of its name must be of a topic of the caller."""
        if key is not None or delay_property(new, {}) is not None:
            raise RequestError("invalid_field", "cron: a task with cron takes neither a delay nor a key")
        if new.schedule is not UNSET:
            self._check_may_change(caller, check_name(new.schedule))
        spec = ScheduleSpec(
            topic=topic_of(new.queue),
            body=body,
            properties=properties,
            recurrence=Recurrence(cron=given(new.cron), zone="UTC" if new.zone is UNSET else new.zone),
        )
        info = await self._tasks.schedule(new.queue, _task(new), given(new.schedule), spec, caller.may)
        answer = AcceptedTask(queue=new.queue, schedule=info.name, due_ms=info.next_run_ms)
        return responses.created(answer, f"/v1/schedules/{info.name}")

    @_reads("GET", TASK, "getTask")
    async def one(self, _: web.Request, path: TaskPath) -> web.Response:
        """Get a task with its state."""
        return responses.json(await self._tasks.get(path.id))

    @call(
        "GET",
        "/v1/tasks",
        "listTasks",
        needs=Need.RECEIVE,
        answer=TaskPage,
        problems=("illegal_cursor", "illegal_task_queue"),
    )
    async def all(self, request: web.Request, params: TasksQuery) -> web.Response:
        """List the tasks of a queue: scheduled ones first, then the others, newest first."""
        access.of(request).check([topic_of(check_queue(params.queue))])

        def wanted(task: TaskView) -> bool:
            return params.host is UNSET or params.host in _hosts(task.url)

        cursor, state = given(params.cursor), None if params.state is UNSET else params.state
        return responses.json(await self._tasks.page(params.queue, wanted, params.limit, cursor, state))

    @_changes("DELETE", TASK, "cancelTask")
    async def cancel(self, _: web.Request, path: TaskPath) -> web.Response:
        """Cancel a task that is not being called."""
        return responses.json(await self._tasks.cancel(path.id))

    @_changes("PATCH", TASK, "rescheduleTask", problems=(*DELAY, "conflicting_delay", *SETTLED))
    async def reschedule(self, _: web.Request, path: TaskPath, body: NewTime) -> web.Response:
        """Reschedule a task."""
        properties = new_time(body)
        return responses.json(await self._tasks.reschedule(path.id, properties))

    @_changes("POST", f"{TASK}/run", "runTask")
    async def run(self, _: web.Request, path: TaskPath) -> web.Response:
        """Run a scheduled task now."""
        return responses.json(await self._tasks.run(path.id))

    # ------------------------------------------------------------------ queues

    @call(
        "GET",
        "/v1/task-queues",
        "listTaskQueues",
        needs=Need.RECEIVE,
        answer=TaskQueues,
        problems=("illegal_cursor",),
    )
    async def queues(self, request: web.Request, params: PageQuery) -> web.Response:
        """List task queues."""
        may = access.of(request).may
        names = [name for name in self._tasks.queue_names() if may(topic_of(name))]
        page, cursor = list_cursor.page(names, list_cursor.name_key, params.count_max, params.after)
        found = await made_of(self._handle.engine.clock, page, self._tasks.find_queue)
        return responses.json(TaskQueues(found, params.answered(cursor)))

    @_reads_queue("GET", QUEUE, "getTaskQueue")
    async def queue(self, _: web.Request, path: TaskQueuePath) -> web.Response:
        """Get a task queue."""
        return responses.json(self._tasks.get_queue(path.queue))

    @_changes_queue(
        "PUT",
        QUEUE,
        "putTaskQueue",
        known=(),
        also=(201,),
        located=True,
        answer=(TaskQueueView, TaskQueueWithSecret),
        body_required=False,
        problems=(*MAKES_QUEUE, "secret_rotation", "topic_ending", "too_many_topics", *STORE),
    )
    async def put_queue(
        self, request: web.Request, path: TaskQueuePath, body: TaskQueueChanges
    ) -> web.Response:
        """Create a task queue or change its limits; shows the secret only once.

        201 with the secret if this made it, else 200.
        """
        view, made = await self._tasks.put_queue(path.queue, body)
        return responses.put(request, view, made=made)

    @_changes_queue(
        "POST",
        f"{QUEUE}/rotate-secret",
        "rotateTaskQueueSecret",
        answer=TaskQueueWithSecret,
        body_required=False,
        problems=("secret_rotation", "topic_ending", *STORE),
    )
    async def rotate(self, _: web.Request, path: TaskQueuePath, body: NewSecret) -> web.Response:
        """Start a rotation: sign with a new secret as well; shows it only once."""
        return responses.json(await self._tasks.rotate_secret(path.queue, given(body.secret)))

    @_changes_queue(
        "POST",
        f"{QUEUE}/finish-rotation",
        "finishTaskQueueRotation",
        problems=("secret_rotation", "topic_ending", *STORE),
    )
    async def finish_rotation(self, _: web.Request, path: TaskQueuePath) -> web.Response:
        """Finish a rotation: sign with the newest secret only."""
        return responses.json(await self._tasks.finish_rotation(path.queue))

    def _check_may_change(self, caller: Access, name: str) -> None:
        """Refuse a caller who may not change the schedule of this name by its path either."""
        topic = self._handle.engine.schedules.topic_of(name)
        if topic is not None and not caller.may(topic):
            raise RequestError(
                "forbidden", f"the token {caller.name!r} has no access to the topic of the schedule {name!r}"
            )

    def _check_may_call(self, request: web.Request, queue: str) -> None:
        """Refuse a caller who could not have a URL called by a subscription and a message of its own."""
        caller = access.of(request)
        caller.check([topic_of(check_queue(queue))])
        if not caller.holds(Scope.SEND):
            raise RequestError(
                "forbidden",
                f"the token {caller.name!r} lacks the scope send: a task needs both send and receive",
            )


def _key(request: web.Request, new: NewTask) -> str | None:
    own, key = given(new.dedup_key), idempotency.key_of(request)
    if key is not None and own is not None and key != own:
        raise RequestError("conflicting_key", "Idempotency-Key and dedup_key differ; give only one")
    return own if key is None else key


def _task(new: NewTask) -> Task:
    """Return the task; RequestError invalid_field for a field given twice, or with a wrong value."""
    names = ("headers", "max_attempts", "backoff", "timeout_ms", "callback", "failure_callback")
    found = {name: value for name in names if (value := getattr(new, name)) is not UNSET}
    for name, older, value in (
        ("retries", "max_attempts", _attempts_of(new)),
        ("timeout", "timeout_ms", _timeout_ms_of(new)),
    ):
        if value is not None and older in found:
            raise RequestError("invalid_field", f"give only one of {name} and {older}")
        found |= {} if value is None else {older: value}
    return Task(url=new.url, method=new.method, **found)


def _attempts_of(new: NewTask) -> int | None:
    if new.retries is UNSET:
        return None
    if not 0 <= new.retries < TASK_ATTEMPTS_MAX:
        raise RequestError(
            "invalid_field", f"retries: {new.retries} is not from 0 to {TASK_ATTEMPTS_MAX - 1}"
        )
    return new.retries + 1


def _timeout_ms_of(new: NewTask) -> int | None:
    if new.timeout is UNSET:
        return None
    try:
        return parse_delay_ms(new.timeout)
    except AdmissionError as error:
        raise RequestError("invalid_field", f"timeout: {error.detail}") from None


def _hosts(url: str) -> set[str]:
    """Return the ways to write the host of a URL: with or without port, encoded or as it was before."""
    found = URL(url)
    hosts = {found.raw_host}
    with contextlib.suppress(UnicodeError):  # a label that looks encoded may not be
        hosts.add(found.host)
    return {way for host in hosts for way in (f"{host}", f"{host}:{found.port}")}
