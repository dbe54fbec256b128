"""What is shown of a task."""

from typing import Literal

import msgspec

from timerwheel.groups.config import Exponential, Ladder
from timerwheel.model.messages import MessageView, State
from timerwheel.push.tasks.task import Method, Task, TaskOutcome

TaskState = Literal["scheduled", "ready", "running", "retrying", "succeeded", "failed", "cancelled", "ended"]
"""`ended` is a task whose outcome is no longer kept, or whose message somebody else acknowledged."""


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task and its current state. The values of headers are not shown: they may be secrets.

    `attempts` counts those that are over. `last_status` and `last_error` are of the last failed attempt in
    this run of the service, or of the last one of a task that failed.
    """

    id: str
    queue: str
    state: TaskState
    url: str
    method: Method
    header_names: list[str]
    timeout_ms: int
    max_attempts: int
    backoff: Ladder | Exponential
    callback: str | None
    failure_callback: str | None
    reports: str | None
    schedule: str | None
    dedup_key: str | None
    body_bytes: int
    created_ms: int
    due_ms: int
    attempts: int
    next_attempt_ms: int | None = None
    last_status: int | None = None
    last_error: str | None = None
    finished_ms: int | None = None
    latency_ms: int | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a task besides its message."""

    state: TaskState
    attempts: int = 0
    next_attempt_ms: int | None = None
    last_status: int | None = None
    last_error: str | None = None
    finished_ms: int | None = None
    latency_ms: int | None = None

    @classmethod
    def of(cls, outcome: TaskOutcome) -> "Standing":
        """Return that of a task that has ended."""
        return cls(
            state=outcome.state,
            attempts=outcome.attempts,
            last_status=outcome.status,
            last_error=outcome.reason,
            finished_ms=outcome.finished_ms,
            latency_ms=outcome.latency_ms,
        )


class TaskPage(msgspec.Struct, frozen=True):
    """Tasks of a queue: those that are not due in due order, then the others, newest first.

    Pass `cursor` back for the next page, None at the end. A page may have fewer tasks than were asked for, or
    none, and not be the last one.
    """

    tasks: list[TaskView]
    cursor: str | None


def view_of(message: MessageView, task: Task, queue: str, standing: Standing) -> TaskView:
    """Return the public form."""
    properties = message.properties
    next_ms = message.due_ms if message.state is State.SCHEDULED else standing.next_attempt_ms
    found = msgspec.structs.asdict(standing) | {"next_attempt_ms": next_ms}
    return TaskView(
        id=message.id,
        queue=queue,
        url=task.url,
        method=task.method,
        header_names=list(task.headers),
        timeout_ms=task.timeout_ms,
        max_attempts=task.max_attempts,
        backoff=task.backoff,
        callback=task.callback,
        failure_callback=task.failure_callback,
        reports=task.reports,
        schedule=properties.get("SCHEDULE_NAME"),
        dedup_key=properties.get("DEDUP_KEY"),
        body_bytes=len(message.body),
        created_ms=message.enqueue_ms,
        due_ms=message.due_ms,
        **found,
    )
