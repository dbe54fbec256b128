"""Every call in one table, from which both the router and the OpenAPI document are made."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from aiohttp import web

from api.gate import Gate
from api.health import HealthCalls
from api.messages import Messages
from api.topics import TopicCalls
from api.wheel import WheelCalls
from api.wire import (
    Accepted,
    Delivered,
    Health,
    Levels,
    Message,
    MessagePath,
    NewMessage,
    NewTime,
    NoQuery,
    Pending,
    PendingQuery,
    QueuePath,
    ReadQuery,
    Slots,
    SlotsQuery,
    TopicPath,
    Topics,
)
from timerwheel.message import TopicInfo, WheelInfo

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON = "application/json"
NDJSON = "application/x-ndjson"
ANY = "application/octet-stream"

# What any call may answer, beside what is said with the call.
ALWAYS = ("invalid_parameter", "expectation_failed", "internal")
ENGINE = ("not_ready", "corruption")
BODY = ("malformed_request", "request_too_large", "unsupported_encoding")
JSON_BODY = (*BODY, "malformed_json", "invalid_field", "unsupported_media_type")
STORE = ("slot_congested", "log_failed", "disk_reserve", "no_space")
DELAY = ("illegal_delay", "delay_too_long")
ADMISSION = (
    *DELAY,
    "illegal_topic",
    "system_topic",
    "reserved_property",
    "illegal_property",
    "too_many_properties",
    "too_many_topics",
    "properties_too_large",
    "body_too_large",
    "transactional",
)
CONFLICTS = ("conflicting_body", "conflicting_delay", "conflicting_tags", "conflicting_keys")
SETTLED = ("unknown_message", "already_delivered", "already_recalled")


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One call: where it is, who answers, what it takes and what it may answer."""

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    status: int = 200
    answer: Any
    path_type: type[msgspec.Struct] | None = None
    query_type: type[msgspec.Struct] | None = NoQuery  # None: any name is a property
    bodies: Mapping[str, Any] = MappingProxyType({})
    problems: tuple[str, ...] = ()


def routes(gate: Gate) -> list[Route]:
    """All calls, with handlers that work on the engine behind `gate`."""
    return [*_message_routes(gate), *_topic_routes(gate), *_wheel_routes(gate), *_health(gate)]


def _message_routes(gate: Gate) -> list[Route]:
    calls = Messages(gate)
    one_or_many = NewMessage | list[NewMessage]
    return [
        Route(
            method="POST",
            path="/v1/messages",
            name="sendMessages",
            summary="Store one message, or an array as one durable unit",
            handler=calls.send,
            status=201,
            answer=Accepted | list[Accepted],
            bodies={JSON: one_or_many, NDJSON: NewMessage},
            problems=(
                *(*ENGINE, *JSON_BODY, *ADMISSION, *CONFLICTS, *STORE),
                *("refused", "too_many_messages"),
            ),
        ),
        Route(
            method="GET",
            path="/v1/messages",
            name="listPending",
            summary="Waiting messages in due order, a page at a time",
            handler=calls.pending,
            answer=Pending,
            query_type=PendingQuery,
            problems=(*ENGINE, "illegal_cursor"),
        ),
        Route(
            method="GET",
            path="/v1/messages/{id}",
            name="getMessage",
            summary="One message as it stands",
            handler=calls.get,
            answer=Message,
            path_type=MessagePath,
            problems=(*ENGINE, "unknown_message"),
        ),
        Route(
            method="DELETE",
            path="/v1/messages/{id}",
            name="recallMessage",
            summary="Recall a waiting message: it will not be delivered",
            handler=calls.recall,
            answer=Message,
            path_type=MessagePath,
            problems=(*ENGINE, *SETTLED, *STORE),
        ),
        Route(
            method="PATCH",
            path="/v1/messages/{id}",
            name="rescheduleMessage",
            summary="Give a waiting message another due time under the same id",
            handler=calls.reschedule,
            answer=Accepted,
            path_type=MessagePath,
            bodies={JSON: NewTime},
            problems=(*ENGINE, *JSON_BODY, *DELAY, "conflicting_delay", *SETTLED, *STORE),
        ),
    ]


def _topic_routes(gate: Gate) -> list[Route]:
    messages, calls = Messages(gate), TopicCalls(gate)
    return [
        Route(
            method="POST",
            path="/v1/topics/{topic}/messages",
            name="sendRaw",
            summary="Store the request's body as a message; query parameters are its properties",
            handler=messages.send_raw,
            status=201,
            answer=Accepted,
            path_type=TopicPath,
            query_type=None,
            bodies={ANY: bytes},
            problems=(*ENGINE, *BODY, *ADMISSION, *STORE),
        ),
        Route(
            method="GET",
            path="/v1/topics",
            name="listTopics",
            summary="All topics with queues and counts",
            handler=calls.all,
            answer=Topics,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path="/v1/topics/{topic}",
            name="getTopic",
            summary="One topic with queues and counts",
            handler=calls.one,
            answer=TopicInfo,
            path_type=TopicPath,
            problems=(*ENGINE, "unknown_topic"),
        ),
        Route(
            method="GET",
            path="/v1/topics/{topic}/queues/{queue}/messages",
            name="readQueue",
            summary="Delivered messages from an offset on, waiting for the first if there is none",
            handler=calls.delivered,
            answer=Delivered,
            path_type=QueuePath,
            query_type=ReadQuery,
            problems=(*ENGINE, "unknown_topic"),
        ),
    ]


def _wheel_routes(gate: Gate) -> list[Route]:
    calls = WheelCalls(gate)
    return [
        Route(
            method="GET",
            path="/v1/wheel",
            name="getWheel",
            summary="The wheel at a glance",
            handler=calls.wheel,
            answer=WheelInfo,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path="/v1/wheel/slots",
            name="listSlots",
            summary="What fires when: counts per slot",
            handler=calls.slots,
            answer=Slots,
            query_type=SlotsQuery,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path="/v1/levels",
            name="listLevels",
            summary="The delay levels with what waits in each",
            handler=calls.levels,
            answer=Levels,
            problems=ENGINE,
        ),
    ]


def _health(gate: Gate) -> list[Route]:
    calls = HealthCalls(gate)
    return [
        Route(
            method="GET",
            path="/healthz",
            name="getHealth",
            summary="Alive",
            handler=calls.alive,
            answer=Health,
        ),
        Route(
            method="GET",
            path="/readyz",
            name="getReadiness",
            summary="Recovered and accepting",
            handler=calls.ready,
            answer=Health,
            problems=("not_ready",),
        ),
    ]
