"""One-call tasks on the wire; see `timerwheel.wire`."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.groups.config import Exponential, Ladder
from timerwheel.model.messages import State
from timerwheel.push.tasks.task import DEFAULT_QUEUE, Method
from timerwheel.push.tasks.task_queue import TaskQueueOptions, TaskQueueView
from timerwheel.push.tasks.view import TaskState
from timerwheel.wire.delays import Delays
from timerwheel.wire.fields import Answer, Json
from timerwheel.wire.messages import DedupKey
from timerwheel.wire.paging import LIMIT_DEFAULT, Cursor, Limit, PagedCursor

TaskQueueName = Annotated[
    str, Meta(description="1 to 64 characters of A-Z a-z 0-9 _ -", examples=[DEFAULT_QUEUE])
]


class NewTask(Delays, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call to make, now or later, or with `cron` again and again. Give at most one of the three bodies."""

    url: Annotated[str, Meta(description="http or https", examples=["https://example.com/close-order"])]
    method: Method = "POST"
    headers: dict[str, str] | UnsetType = UNSET
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    json: Json | UnsetType = UNSET
    queue: TaskQueueName = DEFAULT_QUEUE
    max_attempts: int | UnsetType = UNSET
    retries: (
        Annotated[int, Meta(description="Attempts after the first, in place of max_attempts")] | UnsetType
    ) = UNSET
    backoff: Ladder | Exponential | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    timeout: (
        Annotated[str, Meta(description="timeout_ms as a length, like delay", examples=["10s"])] | UnsetType
    ) = UNSET
    callback: Annotated[str, Meta(description="URL that gets the outcome of a success")] | UnsetType = UNSET
    failure_callback: (
        Annotated[str, Meta(description="URL that gets the outcome of a failure")] | UnsetType
    ) = UNSET
    dedup_key: DedupKey | UnsetType = UNSET
    cron: Annotated[str, Meta(examples=["30 9 * * 1-5", "@daily"])] | UnsetType = UNSET
    zone: Annotated[str, Meta(examples=["Europe/Berlin"])] | UnsetType = UNSET
    schedule: Annotated[str, Meta(description="Name of the schedule that cron makes")] | UnsetType = UNSET


class AcceptedTask(Answer, frozen=True, kw_only=True):
    """The task is durable, and is called at `due_ms`; or its `schedule` is, whose next run is then.

    `duplicate` is true if it was stored earlier, under the same deduplication key.
    """

    queue: str
    id: str | None = None
    schedule: str | None = None
    due_ms: int | None = None
    state: State | None = None
    duplicate: bool = False


class TaskPath(msgspec.Struct, frozen=True):
    """One task."""

    id: str


class TasksQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which tasks to list."""

    queue: str = DEFAULT_QUEUE
    state: TaskState | UnsetType = UNSET
    host: (
        Annotated[str, Meta(description="Host of the URL, with or without port", min_length=1)] | UnsetType
    ) = UNSET
    limit: Limit = LIMIT_DEFAULT
    cursor: Cursor | UnsetType = UNSET


class TaskQueuePath(msgspec.Struct, frozen=True):
    """One task queue."""

    queue: str


class TaskQueueChanges(TaskQueueOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a queue; what is left out stays, or has its default in a new queue."""


class TaskQueues(msgspec.Struct, frozen=True):
    """The task queues, by name."""

    queues: list[TaskQueueView]
    cursor: PagedCursor = UNSET
