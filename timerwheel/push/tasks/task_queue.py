"""A queue of tasks: its limits and its signing secrets, as they are stored. Pure.

It is a value of the control table `task_queue` under the queue's name. The first task of a queue creates it.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerwheel.errors import TimerwheelError
from timerwheel.push.subscription import (
    CONCURRENCY_MAX,
    RATE_LIMIT_MAX,
    RATE_LIMIT_MIN,
    GivenSecret,
    check_range,
    check_secrets,
)
from timerwheel.push.tasks.task import TaskError

TASK_QUEUES_MAX = 1_000
QUEUE_CONCURRENCY_MAX = 1_024

HostConcurrency = Annotated[int, Meta(description="Concurrent requests to one host and port")]


class TaskQueue(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a queue; `secrets` are one, or two during a rotation, the newest first."""

    secrets: list[str]
    rate_limit: float | None = None
    concurrency: int | None = None
    host_concurrency: int = 8

    def checked(self) -> "TaskQueue":
        """Return self; SubscriptionError names the first field that is out of range."""
        if self.rate_limit is not None:
            check_range("rate_limit", self.rate_limit, RATE_LIMIT_MIN, RATE_LIMIT_MAX)
        if self.concurrency is not None:
            check_range("concurrency", self.concurrency, 1, QUEUE_CONCURRENCY_MAX)
        check_range("host_concurrency", self.host_concurrency, 1, CONCURRENCY_MAX)
        check_secrets(self.secrets)
        return self

    def value(self) -> Any:  # noqa: ANN401 - a JSON value
        """Return the JSON value that the control table stores."""
        return msgspec.to_builtins(self)

    @classmethod
    def of(cls, value: Any) -> "TaskQueue":  # noqa: ANN401 - a JSON value
        """Decode a value of the control table; TaskError if it is not a queue."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise TaskError(f"value: {error}") from None


class TaskQueueOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may choose about a queue; what is left out stays, or has its default in a new queue.

    A queue is `paused` by pausing its topic.
    """

    rate_limit: Annotated[float | None, Meta(description="Requests per second")] | UnsetType = UNSET
    concurrency: int | UnsetType | None = UNSET
    host_concurrency: HostConcurrency | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    secret: GivenSecret | UnsetType = UNSET

    def apply(self, queue: TaskQueue) -> TaskQueue:
        """Return the queue with these limits."""
        values = {name: getattr(self, name) for name in ("rate_limit", "concurrency", "host_concurrency")}
        given = {name: value for name, value in values.items() if value is not UNSET}
        return msgspec.structs.replace(queue, **given)


class TaskQueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The public form of a queue, with its current counts.

    `scheduled` tasks are not due yet, `ready` ones wait for their turn, `running` ones are being called,
    `retrying` ones wait for their next attempt. `failing_hosts` failed five times or more in a row.
    """

    queue: str
    topic: str
    rate_limit: float | None
    concurrency: int | None
    host_concurrency: int
    paused: bool
    secrets_valid: int
    scheduled: int
    ready: int
    running: int
    retrying: int
    failing_hosts: list[str]


class TaskQueueWithSecret(TaskQueueView, frozen=True, kw_only=True):
    """A queue with its newest secret, which is shown this once."""

    secret: str


class UnknownTaskQueueError(TimerwheelError):
    """No task queue has this name."""

    code = "unknown_task_queue"

    def __init__(self, queue: str) -> None:
        super().__init__(f"there is no task queue {queue!r}; its first task creates it")


class TooManyTaskQueuesError(TimerwheelError):
    """The service has reached its limit of task queues."""

    code = "too_many_task_queues"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the limit of {limit} task queues is reached; delete the topic of one first")
