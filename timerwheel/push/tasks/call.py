"""The request of a task. Pure."""

from collections.abc import Mapping, Sequence

from timerwheel.model.messages import MessageView
from timerwheel.push.endpoint import Call
from timerwheel.push.request import content_type, rfc3339, signed_headers, with_own
from timerwheel.push.tasks.outcome import CALLBACK_BODY_BYTES
from timerwheel.push.tasks.task import Task


def call_of(
    message: MessageView,
    task: Task,
    queue: str,
    secrets: Sequence[str],
    attempt: int,
    ack_headers: Mapping[str, str],
) -> Call:
    """Return the call of an attempt, signed as a Standard Webhook at the time that it is made.

    `ack_headers` say where it can be acknowledged later.
    """

    def headers(now_ms: int) -> dict[str, str]:
        found = {
            **signed_headers(message, secrets, now_ms),
            "timerwheel-queue": queue,
            "timerwheel-attempt": str(attempt),
            "timerwheel-due": rfc3339(message.due_ms),
            **ack_headers,
        }
        if message.body:
            found["Content-Type"] = content_type(message)
        if task.reports is not None:
            found["timerwheel-reports"] = task.reports
        return with_own(found, task.headers)

    return Call(
        name=f"task {message.id}",
        url=task.url,
        headers=headers,
        body=message.body,
        timeout_ms=task.timeout_ms,
        method=task.method,
        kept_bytes=CALLBACK_BODY_BYTES if task.callback or task.failure_callback else 0,
    )
