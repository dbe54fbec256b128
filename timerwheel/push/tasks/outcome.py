"""The outcome of a task: its record in the log, and the body of a callback. Pure.

The outcome is a MESSAGE in the topic of the queue's outcomes, whose root is that of the task. So it is found
by the task's id, is read like any message, and carries the task's id itself. It is one unit with the end of
the task in its group and with the callback: a crash leaves all of it or nothing.
"""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import orjson

from timerwheel.model.admission import ENVELOPE_PROPERTY
from timerwheel.model.messages import MessageView
from timerwheel.model.properties import TAGS
from timerwheel.model.trace_context import context_of
from timerwheel.push.endpoint import Reply
from timerwheel.push.request import CONTENT_TYPE_PROPERTY
from timerwheel.push.tasks.task import Task, TaskOutcome, log_topic_of, topic_of
from timerwheel.store.record import NO_OFFSET, Identity, Kind, decode, encode, encode_properties

CALLBACK_BODY_BYTES = 16_384
"""Bytes of the answer's body that a callback reports."""
CALLBACK_HEADERS_BYTES = 4_096
_UNTOLD_HEADERS = frozenset({"set-cookie", "set-cookie2", "www-authenticate", "proxy-authenticate"})
_CALLBACK_TYPE = "application/json"


class Ended(NamedTuple):
    """A task that ends: its message, which one that is, what it says, its queue, the last answer if any."""

    message: MessageView
    identity: Identity
    task: Task
    queue: str
    reply: Reply | None = None


def outcome_of(data: bytes) -> TaskOutcome | None:
    """Return the outcome in a record; None if it is not one."""
    try:
        return msgspec.json.decode(decode(data).body, type=TaskOutcome)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def records_of(ended: Ended, outcome: TaskOutcome) -> list[tuple[bytes, str]]:
    """Return the records to store with the end of a task, and their topics: outcome and callback."""
    topic = log_topic_of(ended.queue)
    properties: dict[str, str] = {TAGS: outcome.state}
    body = msgspec.json.encode(outcome)
    found = [(_record(topic, properties, body, outcome.finished_ms, ended.identity), topic)]
    task, state = ended.task, outcome.state
    url = task.callback if state == "succeeded" else task.failure_callback if state == "failed" else None
    if url is not None:
        report = _callback_of(task, url, ended.message.id)
        properties = {
            CONTENT_TYPE_PROPERTY: _CALLBACK_TYPE,
            ENVELOPE_PROPERTY: report.text(),
            **context_of(ended.message.properties),  # of the call that made the task
        }
        topic = topic_of(ended.queue)
        found.append((_record(topic, properties, report_of(ended, outcome), outcome.finished_ms), topic))
    return found


def _callback_of(task: Task, url: str, message_id: str) -> Task:
    return Task(
        url=url,
        timeout_ms=task.timeout_ms,
        max_attempts=task.max_attempts,
        backoff=task.backoff,
        reports=message_id,
    )


def report_of(ended: Ended, outcome: TaskOutcome) -> bytes:
    """Return the body of a callback."""
    message, task, reply = ended.message, ended.task, ended.reply
    report: dict[str, Any] = {
        "type": f"timerwheel.task.{outcome.state}",
        "id": message.id,
        "queue": ended.queue,
        "url": task.url,
        "method": task.method,
        "due_ms": message.due_ms,
        "finished_ms": outcome.finished_ms,
        "attempts": outcome.attempts,
        "status": outcome.status,
        "reason": outcome.reason,
        "headers": {} if reply is None else _reported_headers(reply.headers),
        "body_base64": "" if reply is None else base64.b64encode(reply.body).decode(),
        "body_truncated": False if reply is None else reply.truncated,
    }
    return orjson.dumps(report)


def _reported_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an answer that fit, without those that hold credentials."""
    left_bytes, found = CALLBACK_HEADERS_BYTES, dict[str, str]()
    for name, value in headers.items():
        size_bytes = len(name) + len(value)
        if name.lower() in _UNTOLD_HEADERS or size_bytes > left_bytes:
            continue
        found[name.lower()] = value.encode(errors="replace").decode()
        left_bytes -= size_bytes
    return found


def _record(
    topic: str, properties: Mapping[str, str], body: bytes, now_ms: int, identity: Identity | None = None
) -> bytes:
    times_ms = (now_ms, now_ms, now_ms)
    root, root_crc = (NO_OFFSET, 0) if identity is None else identity
    name, text = topic.encode(), encode_properties(properties)
    return encode(Kind.MESSAGE, name, text, body, *times_ms, root=root, root_crc=root_crc)
