"""The request of a task. Pure."""

from collections.abc import Mapping, Sequence

from timerwheel.model.messages import MessageView
from timerwheel.model.trace_context import context_of
from timerwheel.push.endpoint import Call
from timerwheel.push.request import USER_AGENT, content_type, rfc3339
from timerwheel.push.signing import signature
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
        timestamp_s = now_ms // 1_000
        found = {
            "User-Agent": USER_AGENT,
            "Accept-Encoding": "identity",
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature(secrets, message.id, timestamp_s, message.body),
            **context_of(message.properties),
            "timerwheel-queue": queue,
            "timerwheel-attempt": str(attempt),
            "timerwheel-due": rfc3339(message.due_ms),
            **ack_headers,
        }
        if message.body:
            found["Content-Type"] = content_type(message)
        if task.reports is not None:
            found["timerwheel-reports"] = task.reports
        given = {name.lower() for name in task.headers}
        return {name: value for name, value in found.items() if name.lower() not in given} | task.headers

    return Call(
        name=f"task {message.id}",
        url=task.url,
        headers=headers,
        body=message.body,
        timeout_ms=task.timeout_ms,
        method=task.method,
        kept_bytes=CALLBACK_BODY_BYTES if task.callback or task.failure_callback else 0,
    )
