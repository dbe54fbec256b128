"""A route: its path, its handler, what it takes, and its possible responses.

A handler declares its route in the decorator `call`; `calls_of` collects those of an object.
"""

import enum
import inspect
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from multidict import istr

from timerwheel.api.http import bodies, query
from timerwheel.tokens import Scope
from timerwheel.wire import arrow
from timerwheel.wire.fields import NoQuery

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON = "application/json"
NDJSON = "application/x-ndjson"
ANY = "application/octet-stream"
EVENTS = "text/event-stream"
ARROW = arrow.MEDIA_TYPE

CONDITIONAL_METHODS = frozenset({"PATCH", "PUT", "DELETE"})
KEYED_METHODS = frozenset(
    {"POST", "PATCH"}
)  # clients may send Idempotency-Key with these; PUT and DELETE need none

# Problems that any call may answer with, besides its own.
ALWAYS = (
    "invalid_parameter",
    "uri_too_long",
    "headers_too_large",
    "expectation_failed",
    "cross_site",
    "wrong_host",
    "internal",
)
AUTH = ("unauthenticated", "forbidden", "rate_limited")  # problems of every call that is not open
ENGINE = ("not_ready", "corruption", "index_busy", "overloaded", "wrong_shard", "shard_required")
BODY = ("malformed_request", "request_too_large", "unsupported_encoding")
JSON_BODY = (*BODY, "malformed_json", "invalid_field", "unsupported_media_type", "too_many_values")
STORE = ("slot_congested", "log_failed", "outcome_unknown", "disk_reserve", "no_space")
DELAY = ("illegal_delay", "delay_too_long")
ADMISSION = (
    *DELAY,
    "illegal_topic",
    "system_topic",
    "illegal_queue",
    "reserved_property",
    "illegal_property",
    "too_many_properties",
    "too_many_topics",
    "topic_ending",
    "properties_too_large",
    "body_too_large",
    "transactional",
)
KEY = ("illegal_key", "reserved_key", "key_reused", "key_recalled", "conflicting_key")
RAW_CONFLICTS = ("conflicting_delay", "conflicting_tags", "conflicting_keys")
CONFLICTS = ("conflicting_body", *RAW_CONFLICTS)
ARROW_ANSWER = ("not_acceptable",)  # what a call that answers in Arrow may answer, too
SETTLED = ("unknown_message", "message_deleted", "already_delivered", "already_recalled")


class Tag(StrEnum):
    """The subject of a call, which groups the calls in the OpenAPI document."""

    MESSAGES = "messages"
    TOPICS = "topics"
    GROUPS = "groups"
    DEAD_LETTERS = "dead-letters"
    SCHEDULES = "schedules"
    SUBSCRIPTIONS = "subscriptions"
    TASKS = "tasks"
    ACKS = "acks"
    SERVICE = "service"


SIGN = istr("X-Requested-With")
"""A header, with any value, that no page of another site can send; some calls without a token need it."""


class Need(enum.Enum):
    """Who may make a call: the values are scopes, any one of which is enough. Every `Route` states it."""

    OPEN = "nothing"
    TOKEN = "any token"  # noqa: S105 - a name
    SEND = "send"
    RECEIVE = "receive"
    EITHER = "send or receive"
    ADMIN = "admin"

    @property
    def scopes(self) -> frozenset[Scope]:
        """Return the scopes, any one of which is enough; admin always is."""
        return _SCOPES[self]


_SCOPES = {
    Need.OPEN: frozenset(Scope),
    Need.TOKEN: frozenset(Scope),
    Need.SEND: frozenset({Scope.SEND}),
    Need.RECEIVE: frozenset({Scope.RECEIVE}),
    Need.EITHER: frozenset({Scope.SEND, Scope.RECEIVE}),
    Need.ADMIN: frozenset({Scope.ADMIN}),
}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route: its path, its handler, what it takes, and its possible responses."""

    method: str
    path: str
    pattern: str | None = None  # for the router, if the path would match another call's
    name: str
    summary: str
    tag: Tag | None = None  # None: that of its resource, see `timerwheel.api.routes`
    handler: Handler
    needs: Need | None = None  # what its caller needs; None: admins only
    audited: bool = False  # whether it is written to the audit log
    changes_state: bool = False  # a GET that needs proof that no page of another site sent it
    described: bool = True  # in the OpenAPI document
    status: int = 200
    also: tuple[int, ...] = ()  # other statuses with the same answer
    located: bool = False  # whether a 201 has the header Location
    answer: Any  # a tuple if it is one of several types without a tag
    partly: Any = None  # the answer with status 207, if a part of it can be done
    answer_kind: str = JSON
    answers_arrow: bool = False  # whether a client may have the answer as Arrow instead
    leases_messages: bool = False  # messages that go back to their group if the answer cannot begin
    head: Handler | None = None  # what answers HEAD in place of the GET's handler, which it would start
    compresses: bool = True  # whether large answers go in gzip to those who accept it
    path_type: type[msgspec.Struct] | None = None
    takes_key: bool = False  # the header Idempotency-Key
    etag: bool = False  # what is read has the header ETag; a change takes If-Match, a PUT If-None-Match too
    takes_context: bool = False  # the headers traceparent and tracestate
    body_required: bool = True
    query_type: type[msgspec.Struct] = NoQuery
    takes_properties: bool = False  # query parameters that are not in the type are properties
    bodies: Mapping[str, Any] = MappingProxyType({})
    problems: tuple[str, ...] = ()
    needs_engine: bool = True  # refused while it is not certain that this node still leads

    @property
    def may_compress(self) -> bool:
        """Whether its responses may be compressed; events of a stream would get stuck in the compressor."""
        return self.compresses and self.answer_kind != EVENTS

    @property
    def refuses_key(self) -> bool:
        """Whether to refuse a deduplication key, because it would be ignored."""
        return self.method in KEYED_METHODS and not self.takes_key

    @property
    def refuses_condition(self) -> bool:
        """Whether to refuse If-Match and If-None-Match, because a change would ignore them."""
        return self.method in CONDITIONAL_METHODS and not self.etag


H = TypeVar("H", bound=Callable[..., Awaitable[web.StreamResponse]])

_declared: dict[Any, list[Route]] = {}  # by function; their handlers still take the object of the method


def call(  # noqa: PLR0913 - what a call declares besides is in `facts`
    method: str,
    path: str,
    name: str,
    *,
    known: tuple[str, ...] = (),
    problems: tuple[str, ...] = (),
    needs_engine: bool = True,
    values_max: int = bodies.JSON_VALUES_MAX,
    **facts: Any,  # noqa: ANN401 - checked by `Route` when the module is imported
) -> Callable[[H], H]:
    """Declare a route that the decorated handler answers; its docstring begins with the summary.

    Besides the request, the handler takes what it needs of it: `path`, `params` of the query, and a JSON
    `body` of at most `values_max` values. Their types say how to read them, in this order. A call that takes
    no query refuses one. To `problems` are added those of the engine, of a JSON body, and `known`: those of
    the thing in the path, which the calls of a resource share.
    """

    def declare(handler: H) -> H:
        takes = {one.name: one.annotation for one in inspect.signature(handler).parameters.values()}
        for parameter, fact in (("path", "path_type"), ("params", "query_type")):
            if parameter in takes:
                facts.setdefault(fact, takes[parameter])
        if "body" in takes:
            facts["bodies"] = {JSON: takes["body"]}
        of_engine = ENGINE if needs_engine else ()
        of_body = JSON_BODY if "body" in takes else ()
        summary = (inspect.getdoc(handler) or "").partition("\n")[0].removesuffix(".")
        route = Route(
            method=method,
            path=path,
            name=name,
            handler=handler,
            problems=(*of_engine, *known, *of_body, *problems),
            needs_engine=needs_engine,
            **{"summary": summary, **facts},
        )
        reads = {
            "handler": _reading(handler, route, values_max),
            "head": None if route.head is None else _reading(route.head, route, values_max),
        }
        _declared.setdefault(handler, []).insert(0, msgspec.structs.replace(route, **reads))
        return handler

    return declare


def _reading(handler: Callable[..., Any], route: Route, values_max: int) -> Callable[..., Any]:
    """Return the handler with nothing to take but the request."""
    takes = inspect.signature(handler).parameters
    takes_query = route.query_type is not NoQuery or not route.described

    async def answer(owner: object, request: web.Request) -> web.StreamResponse:
        given: dict[str, Any] = {}
        if not takes_query and request.rel_url.raw_query_string:
            query.read(request, NoQuery)
        if "path" in takes and route.path_type is not None:
            given["path"] = query.path(request, route.path_type)
        if "params" in takes:
            given["params"] = query.read(request, route.query_type)
        if "body" in takes:
            kind, empty = takes["body"].annotation, not route.body_required
            given["body"] = await bodies.read(request, kind, may_be_empty=empty, values_max=values_max)
        response: web.StreamResponse = await handler(owner, request, **given)
        return response

    return answer


def calls_of(owner: object, tag: Tag | None = None) -> list[Route]:
    """Return the routes that the methods of an object declare, in the order of its class."""
    return [
        msgspec.structs.replace(
            route,
            tag=route.tag or tag,
            handler=_of(route.handler, owner),
            head=None if route.head is None else _of(route.head, owner),
        )
        for function in vars(type(owner)).values()
        if isinstance(function, FunctionType)
        for route in _declared.get(function, ())
    ]


def _of(function: Callable[..., Any], owner: object) -> Handler:
    """Return a method that was declared, of this object."""
    return partial(function, owner)
