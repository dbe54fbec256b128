"""Errors as HTTP sees them: the one place that maps a code to a status (problem+json, RFC 9457).

Every error response is built here, so a client can always match on `code`.
"""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from timerwheel.api.http.budget import OverloadedError
from timerwheel.api.http.responses import NO_STORE, SERVER
from timerwheel.errors import (
    DiskReserveError,
    Fault,
    IndexFullError,
    NotReadyError,
    RefusedError,
    TimerwheelError,
)
from timerwheel.store.errors import CorruptionError, IndexBusyError, LogFailedError, NoSpaceError

TYPE_PREFIX = "urn:timerwheel:problem:"
CONTENT_TYPE = "application/problem+json"
INDEXES_NAMED = 5
DETAIL_CHARACTERS_MAX = 1_000  # a detail may quote a whole request
_DETAIL_END_CHARACTERS = 300  # a shortened detail keeps its end, which says what to do
NO_FACTS: Mapping[str, int | str] = MappingProxyType({})
RETRY_S = 1
FULL_DISK_RETRY_S = 10  # free space is measured every second, but somebody has to free some

# code -> (status, title); `doc/http-api.md` explains each, and a test compares the two.
PROBLEMS: dict[str, tuple[int, str]] = {
    "malformed_json": (400, "The body is not JSON"),
    "malformed_arrow": (400, "The body is not a valid Arrow stream"),
    "malformed_request": (400, "The request is not valid HTTP"),
    "invalid_field": (400, "A field is invalid"),
    "invalid_parameter": (400, "A path or query parameter is invalid"),
    "conflicting_body": (400, "Body given twice"),
    "conflicting_delay": (400, "Delay given twice"),
    "conflicting_tags": (400, "Tags given twice"),
    "conflicting_keys": (400, "Keys given twice"),
    "refused": (400, "Messages of the array are invalid"),
    "several_shards": (400, "The messages are for topics in several shards"),
    "shard_required": (400, "The topic is in each shard"),
    "illegal_delay": (400, "The delay cannot be parsed"),
    "delay_too_long": (400, "The delay is too long"),
    "illegal_topic": (400, "Invalid topic name"),
    "system_topic": (400, "The topic is reserved for the service"),
    "illegal_queue": (400, "The topic has no such queue"),
    "reserved_property": (400, "The property is reserved for the service"),
    "illegal_property": (400, "The property cannot be stored"),
    "too_many_properties": (400, "Too many properties"),
    "too_many_topics": (400, "Too many topics"),
    "properties_too_large": (400, "Properties too large"),
    "transactional": (400, "A half message must be begun as a transaction"),
    "precondition_failed": (412, "The resource is not as the condition says"),
    "illegal_cursor": (400, "Invalid cursor"),
    "illegal_key": (400, "Invalid deduplication key"),
    "reserved_key": (400, "The deduplication key is reserved for schedules"),
    "conflicting_key": (400, "Deduplication key given twice"),
    "illegal_filter": (400, "Invalid filter"),
    "illegal_group": (400, "Invalid group name"),
    "too_many_groups": (400, "Too many groups"),
    "illegal_schedule": (400, "Invalid schedule"),
    "too_many_schedules": (400, "Too many schedules"),
    "illegal_subscription": (400, "The subscription's URL is not allowed"),
    "too_many_subscriptions": (400, "Too many subscriptions"),
    "illegal_task": (400, "The URL of the task is not allowed"),
    "illegal_task_queue": (400, "Invalid task queue name"),
    "too_many_task_queues": (400, "Too many task queues"),
    "unauthenticated": (401, "Token missing or not valid"),
    "forbidden": (403, "The token does not allow this"),
    "cross_site": (403, "Request from a page of another origin"),
    "header_required": (403, "A header that guards against cross-site requests is missing"),
    "unknown_route": (404, "No such route"),
    "unknown_message": (404, "No such message"),
    "message_deleted": (404, "The message was deleted with its topic"),
    "unknown_topic": (404, "No such topic"),
    "unknown_queue": (404, "No such queue"),
    "group_not_found": (404, "No such group to receive from"),
    "unknown_group": (404, "No such group"),
    "unknown_schedule": (404, "No such schedule"),
    "unknown_subscription": (404, "No such subscription"),
    "unknown_task": (404, "No such task"),
    "unknown_ack": (404, "No such attempt"),
    "unknown_task_queue": (404, "No such task queue"),
    "method_not_allowed": (405, "Method not allowed"),
    "not_acceptable": (406, "The answer cannot be given in this form"),
    "already_delivered": (409, "Already delivered"),
    "already_recalled": (409, "Already recalled"),
    "open_transaction": (409, "The message belongs to an open transaction"),
    "no_open_transaction": (409, "The message is not an open transaction"),
    "key_recalled": (409, "The message with this key was sent before and recalled"),
    "not_leader": (409, "Another node leads"),
    "no_standby": (409, "No other node can take over"),
    "name_in_use": (409, "The name is used in another shard"),
    "topic_ending": (409, "The topic is being deleted"),
    "queues_shrink": (409, "The number of queues can only grow"),
    "keys_move": (409, "Sharding keys would move to other queues"),
    "fixed_outlet": (409, "The settings of the service send the topic to Kafka"),
    "group_differs": (409, "The group has different settings"),
    "group_in_use": (409, "A subscription or a task queue uses the group"),
    "subscription_exists": (409, "The subscription already exists"),
    "task_state": (409, "The state of the task does not allow this"),
    "ack_ended": (409, "The attempt is over"),
    "secret_rotation": (409, "No such step in the rotation of the secret"),
    "body_too_large": (413, "Message body too large"),
    "too_many_messages": (413, "Too many messages in a request"),
    "request_too_large": (413, "Request too large"),
    "too_many_values": (413, "Too many values"),
    "setting_too_large": (413, "Too large to store as a setting"),
    "uri_too_long": (414, "Path and query too long"),
    "unsupported_media_type": (415, "Content type not supported"),
    "unsupported_encoding": (415, "Content encoding not supported"),
    "offset_out_of_range": (416, "Offset out of range"),
    "expectation_failed": (417, "Expectation not supported"),
    "wrong_host": (421, "Host not served"),
    "wrong_shard": (421, "The topic is in another shard"),
    "key_reused": (422, "The deduplication key is used by a different message"),
    "slot_congested": (429, "Too many messages due in one second"),
    "rate_limited": (429, "Rate limit of the token exceeded"),
    "headers_too_large": (431, "Headers too large"),
    "internal": (500, "Internal error"),
    "corruption": (500, "Stored data is damaged"),
    "outcome_unknown": (500, "Outcome unknown: it may have been stored"),
    "not_ready": (503, "Not ready"),
    "overloaded": (503, "Too much in progress"),
    "index_busy": (503, "Too many readers of the index"),
    "log_failed": (503, "The log cannot be written"),
    "unsupported_transfer_encoding": (501, "Transfer encoding not supported"),
    "unsupported_version": (505, "HTTP version not supported"),
    "disk_reserve": (507, "Disk nearly full"),
    "no_space": (507, "Disk full"),
}

logger = logging.getLogger(__name__)


class RequestError(TimerwheelError):
    """The request itself is invalid, found before calling the engine; `code` is one of `PROBLEMS`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def status_of(code: str) -> int:
    """The HTTP status of a code; 400 for a rule of the engine that is not in the table."""
    return PROBLEMS[code][0] if code in PROBLEMS else 400


def end_event(problem: web.Response) -> bytes:
    """Return the event with which a stream of events ends, and says why."""
    assert isinstance(problem.body, bytes)
    return b"event: end\ndata: " + problem.body + b"\n\n"


def problem(
    code: str,
    detail: str,
    *,
    status: int | None = None,
    headers: dict[str, str] | None = None,
    errors: Sequence[Fault] | None = None,
    facts: Mapping[str, int | str] = NO_FACTS,
) -> web.Response:
    """Return an error response. `status` is given only where the code does not determine it.

    `facts` are further members, for programs.
    """
    known_status, title = PROBLEMS.get(code, (400, "The message breaks a rule"))
    status = status or known_status
    content: dict[str, object] = {
        "type": TYPE_PREFIX + code,
        "title": title,
        "status": status,
        "code": code,
        "detail": _shown(detail),
        **facts,
    }
    if errors is not None:
        content["errors"] = [{"index": f.index, "code": f.code, "detail": _shown(f.detail)} for f in errors]
    return web.Response(
        body=orjson.dumps(content),
        status=status,
        content_type=CONTENT_TYPE,
        headers={"Cache-Control": NO_STORE, "X-Content-Type-Options": "nosniff", **(headers or {})},
    )


def last_response(code: str, detail: str) -> bytes:
    """Return a problem as the bytes of the last response of a connection, for what reads no request on it."""
    response = problem(code, detail, headers={"Retry-After": str(RETRY_S)})
    body = response.body
    assert isinstance(body, bytes)
    headers = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
    head = (
        f"HTTP/1.1 {response.status} {response.reason}\r\n{headers}"
        f"Server: {SERVER}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _shown(detail: str) -> str:
    """Return a detail fit for a response: of limited length, and UTF-8 whatever bytes the client sent."""
    if (extra := len(detail) - DETAIL_CHARACTERS_MAX) > 0:
        begin, end = (
            detail[: DETAIL_CHARACTERS_MAX - _DETAIL_END_CHARACTERS],
            detail[-_DETAIL_END_CHARACTERS:],
        )
        detail = f"{begin} [{extra} characters omitted] {end}"
    return detail.encode(errors="backslashreplace").decode()


def refused(faults: Sequence[Fault], *, array: bool) -> web.Response:
    """Return the response to a send with invalid messages: all faults of an array, or that of the message."""
    if not array:
        return problem(faults[0].code, faults[0].detail)
    statuses = {status_of(fault.code) for fault in faults}
    named = ", ".join(str(fault.index) for fault in faults[:INDEXES_NAMED])
    more = " and more" if len(faults) > INDEXES_NAMED else ""
    return problem(
        "refused",
        f"nothing was stored: {len(faults)} message(s) are invalid, at index {named}{more}",
        status=statuses.pop() if len(statuses) == 1 else PROBLEMS["refused"][0],
        errors=faults,
    )


def of_error(error: Exception) -> web.Response:
    """Return the response to an error of the engine or the store; logs an unknown one as `internal`."""
    if isinstance(error, RefusedError):
        return refused(error.faults, array=len(error.faults) > 1)
    if isinstance(error, (TimerwheelError, NoSpaceError, LogFailedError, IndexBusyError)):
        after_s = _retry_after_s(error)
        headers = None if after_s is None else {"Retry-After": str(after_s)}
        facts = error.facts if isinstance(error, TimerwheelError) else NO_FACTS
        return problem(error.code, str(error), headers=headers, facts=facts)
    if isinstance(error, CorruptionError):
        logger.error("%s", error)
        return problem(error.code, "stored data is damaged; the service's log says where")
    logger.error("a request failed", exc_info=error)
    return problem("internal", "the service's log has the details")


def _retry_after_s(error: Exception) -> int | None:
    """Return after how many seconds the same request may succeed, None if only another request can."""
    if isinstance(error, (DiskReserveError, IndexFullError, NoSpaceError)):
        return FULL_DISK_RETRY_S
    is_brief = isinstance(error, (NotReadyError, LogFailedError, IndexBusyError, OverloadedError))
    return RETRY_S if is_brief else None


def of_http(error: web.HTTPException, request: web.BaseRequest) -> web.Response:
    """Return the response to what aiohttp itself refuses: unknown routes, wrong methods, large requests."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        detail = f"{request.path} allows {allowed}, not {request.method}"
        return problem("method_not_allowed", detail, headers={"Allow": allowed})
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return problem("request_too_large", error.text or "the request is too large")
    if isinstance(error, web.HTTPNotFound):
        return problem("unknown_route", f"no route {request.path}; /openapi.json lists all routes")
    return problem("malformed_request", error.reason, status=error.status)


def answer_to(error: Exception, request: web.BaseRequest) -> web.Response:
    """Return an exception as a problem; raises it again if it means that the connection is gone."""
    if isinstance(error, web.HTTPException):
        return of_http(error, request)
    if isinstance(error, ConnectionError):
        raise error  # aiohttp drops the connection; nobody would read an answer
    if isinstance(error, HttpProcessingError):
        return problem("malformed_request", f"the body could not be read: {error.message}")
    return of_error(error)
