"""A task: the one request to make, how often to try, and whom to tell. Pure.

A task is a message of the topic of its queue. Its body is the request's; all else is the JSON of a `Task` in
the message's envelope, which no call shows: header values may be secrets.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import Exponential, Ladder
from timerwheel.model.admission import TASK_GROUP, TASK_LOG_PREFIX, TASK_PREFIX
from timerwheel.model.messages import Outgoing
from timerwheel.push.addresses import TargetError, check_url
from timerwheel.push.subscription import (
    TIMEOUT_MS_MAX,
    TIMEOUT_MS_MIN,
    IllegalUrlError,
    check_headers,
    check_range,
)

GROUP = TASK_GROUP
DEFAULT_QUEUE = "default"
TASK_ATTEMPTS_MAX = 100
TASK_HEADERS_BYTES_MAX = 8_192

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]
WITHOUT_BODY = frozenset({"GET", "HEAD"})

_match_queue = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch


class TaskError(TimerwheelError):
    """A field of a task or of a task queue is wrong; the message names it and says what is allowed."""

    code = "invalid_field"


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to call. `reports` is the id of the task whose outcome this one tells."""

    url: Annotated[str, Meta(description="http or https")]
    method: Method = "POST"
    headers: dict[str, str] = {}
    timeout_ms: int = 15_000
    max_attempts: int = 16
    backoff: Ladder | Exponential = Ladder()
    callback: str | None = None
    failure_callback: str | None = None
    reports: str | None = None

    def checked(self, body: bytes, *, allow_private: bool) -> "Task":
        """Return the task with its URLs in the form that is called.

        SubscriptionError, TaskError or IllegalUrlError names the first wrong field.
        """
        if self.method in WITHOUT_BODY and body:
            raise TaskError(f"body: a {self.method} request has none; leave it out or use another method")
        check_headers(self.headers)
        size_bytes = sum(len(name) + len(value) for name, value in self.headers.items())
        if size_bytes > TASK_HEADERS_BYTES_MAX:
            raise TaskError(f"headers: {size_bytes} bytes are more than {TASK_HEADERS_BYTES_MAX}")
        check_range("timeout_ms", self.timeout_ms, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX)
        check_range("max_attempts", self.max_attempts, 1, TASK_ATTEMPTS_MAX)
        backoff = self.backoff
        if isinstance(backoff, Exponential) and backoff.initial_ms > backoff.max_ms:
            raise TaskError(
                f"backoff: initial_ms = {backoff.initial_ms} is more than max_ms = {backoff.max_ms}"
            )
        urls = {"url": self.url, "callback": self.callback, "failure_callback": self.failure_callback}
        checked = {
            name: _checked_url(name, url, allow_private) for name, url in urls.items() if url is not None
        }
        return msgspec.structs.replace(self, **checked)

    def message(self, queue: str, body: bytes, dedup_key: str | None = None) -> Outgoing:
        """Return the message of this task in a queue."""
        return Outgoing(topic_of(queue), body, {}, dedup_key, queue=0, envelope=self.text(), to_reserved=True)

    def text(self) -> str:
        """Return the envelope of its message."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, envelope: str) -> "Task | None":
        """Return the task of a message's envelope; None if the service did not write it."""
        try:
            return msgspec.json.decode(envelope, type=cls)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None


End = Literal["succeeded", "failed", "cancelled"]


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended: after so many attempts, with this status if its last one was answered."""

    state: End
    finished_ms: int
    attempts: int
    status: int | None = None
    reason: str | None = None
    latency_ms: int | None = None


def _checked_url(name: str, url: str, allow_private: bool) -> str:  # noqa: FBT001 - two hops
    try:
        return check_url(url, allow_private=allow_private)
    except TargetError as error:
        raise IllegalTaskUrlError(name, str(error)) from None


class IllegalTaskUrlError(IllegalUrlError):
    """The URL, or that of a callback, is not one that may be called; the message names the field."""

    code = "illegal_task"

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.args = (f"{field}: {detail}",)
        self.field = field


def check_queue(queue: str) -> str:
    """Return the name if it is one of a task queue; TaskError."""
    if _match_queue(queue) is None:
        raise IllegalTaskQueueError(
            f"{queue[:80]!r} is not a valid task queue: use 1 to 64 characters of A-Z a-z 0-9 _ -"
        )
    return queue


class IllegalTaskQueueError(TimerwheelError):
    """The name is not that of a task queue."""

    code = "illegal_task_queue"


def topic_of(queue: str) -> str:
    """Return the topic that holds the tasks of a queue."""
    return TASK_PREFIX + queue


def log_topic_of(queue: str) -> str:
    """Return the topic that holds the outcomes of a queue's tasks."""
    return TASK_LOG_PREFIX + queue


def queue_in(topic: str) -> str | None:
    """Return the task queue whose tasks a topic holds; None if it is another topic."""
    return topic.removeprefix(TASK_PREFIX) if topic.startswith(TASK_PREFIX) else None
