"""The OpenAPI 3.1 document, made from the table of routes and the types that validate the requests."""

from typing import Any

import msgspec
from aiohttp import hdrs

from timerwheel.api.http import etags, idempotency, query
from timerwheel.api.http.etags import IF_MATCH, IF_NONE_MATCH
from timerwheel.api.http.idempotency import HEADER
from timerwheel.api.http.problems import CONTENT_TYPE, PROBLEMS, status_of
from timerwheel.api.http.route import ALWAYS, ARROW, ARROW_ANSWER, AUTH, SIGN, Need, Route, Tag
from timerwheel.model.trace_context import TRACEPARENT, TRACESTATE
from timerwheel.wire.fields import Answer
from timerwheel.wire.problem import Problem

REF = "#/components/schemas/{name}"
RETRYABLE = frozenset({429, 503, 507})

Json = dict[str, Any]

TYPES = {str: "string", bool: "boolean", int: "integer"}

DESCRIPTIONS = {
    Tag.MESSAGES: "Send, get, list, recall and reschedule messages",
    Tag.TOPICS: "Topics, their queues, and delivered messages by offset",
    Tag.GROUPS: "Consumer groups: receive, acknowledge, return",
    Tag.DEAD_LETTERS: "Messages that groups gave up on: list, redrive, drop",
    Tag.SCHEDULES: "Recurring messages",
    Tag.SUBSCRIPTIONS: "Push to URLs",
    Tag.TASKS: "One-call tasks: URLs that the service calls when they are due",
    Tag.ACKS: "Later acknowledgements by the receivers of pushes and tasks",
    Tag.SERVICE: "The wheel, the delay levels, health and metrics",
}

TOKENS = "Required once `timerwheel tokens create` has created a token"


def _header(name: str, description: str, *, may_be_empty: bool = False) -> Json:
    """Return a header that a request may have."""
    schema: Json = {"type": "string"} if may_be_empty else {"type": "string", "minLength": 1}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


KEY_HEADER = _header(HEADER, "The deduplication key of a single message, bare or as a quoted string")
ETAG_HEADER: Json = {"description": "The tag of this state", "schema": {"type": "string"}}
CONDITION_HEADERS = [
    _header(IF_MATCH, "Change it only if its ETag is one of these; `*` if it exists"),
    _header(IF_NONE_MATCH, "`*`: create it, do not change an existing one"),
]
SIGN_HEADER = _header(
    SIGN, "Any value. Required in calls without a token, since pages of other sites cannot send it"
)
_TRACE = "The sender's trace context, stored with its messages (W3C Trace Context)"
TRACE_HEADERS = [_header(name, _TRACE, may_be_empty=True) for name in (TRACEPARENT, TRACESTATE)]

WEBHOOK_HEADERS = (
    ("webhook-id", True, "The message's id, the same for every attempt"),
    ("webhook-timestamp", True, "Time of this attempt, in seconds since the epoch"),
    (
        "webhook-signature",
        True,
        "v1, and the base64 HMAC-SHA256 of id.timestamp.body; two signatures during a rotation",
    ),
    ("timerwheel-topic", True, "The message's topic"),
    ("timerwheel-attempt", True, "Which attempt this is, from 1"),
    ("timerwheel-due", True, "When the message was due, RFC 3339"),
    ("timerwheel-delivered", True, "When it was delivered to its topic, RFC 3339"),
    ("timerwheel-tags", False, "The property TAGS"),
    ("timerwheel-keys", False, "The property KEYS"),
    ("timerwheel-property-{name}", False, "Any other property, its name in lower case"),
    ("timerwheel-properties-left-out", False, "How many properties do not fit into 4,096 bytes of headers"),
    (TRACEPARENT, False, "The sender's trace context, if the message has one"),
    (TRACESTATE, False, "Sent together with traceparent"),
    ("ce-specversion", False, "1.0; CloudEvents headers are sent if the subscription enables them"),
    ("ce-id", False, "The message's id"),
    ("ce-source", False, "/topics/ followed by the topic"),
    ("ce-type", False, "The property CE_TYPE, or timerwheel.message"),
    ("ce-time", False, "Time of delivery, RFC 3339"),
    ("ce-subject", False, "The property KEYS"),
)

MULTI_STATUS = 207


def document(routes: list[Route]) -> Json:
    """The whole document as plain values."""
    types: list[Any] = [Problem]
    described = [route for route in routes if route.described]
    for route in described:
        types += [*_either(route), *route.bodies.values()]
        types += [] if route.partly is None else [route.partly]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    leave_out_nulls(components)
    for route in described:
        if len(_either(route)) > 1:  # types that nothing distinguishes have no other fields
            for answer in _either(route):
                components[answer.__name__]["additionalProperties"] = False
    make_plain(components)
    components["Problem"]["properties"]["code"]["enum"] = sorted(PROBLEMS)
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    paths: Json = {}
    for route in described:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "timerwheel",
            "version": "1",
            "description": "Stores messages until they are due, then delivers them. Times: epoch ms.",
        },
        "tags": [{"name": tag.value, "description": DESCRIPTIONS[tag]} for tag in Tag],
        "paths": paths,
        "webhooks": _webhooks(Tag.SUBSCRIPTIONS.value),
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": TOKENS}},
        },
    }


def leave_out_nulls(components: Json, kind: type[Answer] = Answer) -> None:
    """State in each `Answer` that a field that does not apply is left out, not null; in place."""
    for answer in kind.__subclasses__():
        leave_out_nulls(components, answer)
        if answer.__name__ not in components:
            continue
        required = {field.encode_name for field in msgspec.structs.fields(answer) if field.required}
        for name, schema in components[answer.__name__]["properties"].items():
            if name in required:
                continue
            schema.pop("default", None)
            if "anyOf" in schema:
                [value] = [one for one in schema.pop("anyOf") if one != {"type": "null"}]
                schema.update(value)


def make_plain(schema: Any) -> None:  # noqa: ANN401 - a JSON value
    """Add what client generators need, and leave out what they cannot handle; in place.

    The type of an enum follows from its values; an enum of one value is a constant. A default goes into the
    description: generators take a field with a default for one that is always given, or cannot write the
    default down if it is an object.
    """
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        make_plain(value)
    if not isinstance(schema, dict):
        return
    if isinstance(values := schema.get("enum"), list) and "type" not in schema:
        [schema["type"]] = {TYPES[type(value)] for value in values}
        if len(values) == 1:
            [schema["const"]] = schema.pop("enum")
    if "default" in schema and not isinstance(schema.get("properties"), dict):
        text = f"Default: {msgspec.json.encode(schema.pop('default')).decode()}"
        schema["description"] = f"{schema['description']}. {text}" if "description" in schema else text


def _operation(route: Route, schema_of: dict[str, Json]) -> Json:
    operation: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [(route.tag or Tag.SERVICE).value],
        "parameters": _parameters(route),
        "responses": _responses(route, schema_of),
    }
    if route.needs is not Need.OPEN:
        operation["security"] = [{}, *_tokens(route.needs)]  # a service without tokens asks for none
    if route.bodies:
        content = {kind: {"schema": _body_schema(body, schema_of)} for kind, body in route.bodies.items()}
        operation["requestBody"] = {"required": route.body_required, "content": content}
    return operation


def _either(route: Route) -> tuple[Any, ...]:
    """Return the types of a response, usually one."""
    return route.answer if isinstance(route.answer, tuple) else (route.answer,)


def _body_schema(body: Any, schema_of: dict[str, Json]) -> Json:  # noqa: ANN401 - a type form
    return {} if body is bytes else schema_of[repr(body)]  # {}: any bytes


def _tokens(needs: Need | None) -> list[Json]:
    """Return the scopes, one of which a token must have; admin is listed only where nothing else is."""
    if needs is Need.TOKEN:
        return [{"token": []}]
    return [{"token": [scope.value]} for scope in sorted((needs or Need.ADMIN).scopes)]


def _names(route: Route) -> list[str]:
    """Return the problem codes for malformed names in the path."""
    if route.path_type is None:
        return []
    fields = msgspec.structs.fields(route.path_type)
    return [query.NAMES[field.name].code for field in fields if field.name in query.NAMES]


def _parameters(route: Route) -> list[Json]:
    found: list[Json] = []
    if route.takes_key:
        found.append(KEY_HEADER)
    if route.changes_state:
        found.append(SIGN_HEADER)
    if route.etag and route.method != hdrs.METH_GET:
        found += CONDITION_HEADERS if route.method == hdrs.METH_PUT else CONDITION_HEADERS[:1]
    if route.takes_context:
        found += TRACE_HEADERS
    if route.path_type is not None:
        found += _fields(route.path_type, "path")
    found += _fields(route.query_type, "query")
    if route.takes_properties:
        properties = {"type": "object", "additionalProperties": {"type": "string"}}
        description = "Every other query parameter becomes a property of the message; names as in RocketMQ"
        found.append(
            {
                "name": "properties",
                "in": "query",
                "description": description,
                "schema": properties,
                "style": "form",
                "explode": True,
            }
        )
    return found


def _fields(kind: type[msgspec.Struct], place: str) -> list[Json]:
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return [
        {
            "name": name,
            "in": place,
            "required": place == "path" or name in schema["required"],
            "schema": field,
        }
        for name, field in schema["properties"].items()
    ]


def _responses(route: Route, schema_of: dict[str, Json]) -> Json:
    schemas = [schema_of[repr(answer)] for answer in _either(route)]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    content = {route.answer_kind: {"schema": schema}}
    if route.answers_arrow:
        content[ARROW] = {"schema": {}}  # any bytes
    responses: Json = {
        str(status): {"description": route.summary, "content": content}
        for status in (route.status, *route.also)
    }
    if route.partly is not None:
        parts = {route.answer_kind: {"schema": schema_of[repr(route.partly)]}}
        responses[str(MULTI_STATUS)] = {"description": "A part of it was done", "content": parts}
    if route.located:
        location = {"description": "The path of the created resource", "schema": {"type": "string"}}
        responses["201"]["headers"] = {"Location": location}
    if route.etag and route.method != hdrs.METH_DELETE:
        for status in (route.status, *route.also):
            responses[str(status)].setdefault("headers", {})["ETag"] = ETAG_HEADER
    codes: dict[int, list[str]] = {}
    auth = () if route.needs is Need.OPEN else AUTH
    conditional = ("precondition_failed",) if route.etag and route.method != hdrs.METH_GET else ()
    keyless = (idempotency.REFUSED,) if route.refuses_key else ()
    unconditional = (etags.REFUSED,) if route.refuses_condition else ()
    arrow = ARROW_ANSWER if route.answers_arrow else ()
    for code in (
        *ALWAYS,
        *auth,
        *conditional,
        *keyless,
        *unconditional,
        *arrow,
        *_names(route),
        *route.problems,
    ):
        codes.setdefault(status_of(code), []).append(code)
    for status, named in sorted(codes.items()):
        response: Json = {
            "description": ", ".join(dict.fromkeys(named)),
            "content": {CONTENT_TYPE: {"schema": {"$ref": REF.format(name="Problem")}}},
        }
        if status in RETRYABLE:
            response["headers"] = {
                "Retry-After": {
                    "description": "seconds",
                    "schema": {"type": "integer", "minimum": 1},
                }
            }
        responses[str(status)] = response
    return responses


def _webhooks(tag: str) -> Json:
    """Return the requests that push sends: a message of a subscription; see `doc/push.md`."""
    operation: Json = {
        "operationId": "receiveMessage",
        "summary": "A message of a subscription, signed as a Standard Webhook",
        "tags": [tag],
        "parameters": [
            {
                "name": name,
                "in": "header",
                "required": required,
                "description": text,
                "schema": {"type": "string"},
            }
            for name, required, text in WEBHOOK_HEADERS
        ],
        "requestBody": {
            "required": True,
            "description": "The message's body, byte for byte; the property CONTENT_TYPE sets its media type",
            "content": {"application/json": {"schema": {}}, "application/octet-stream": {"schema": {}}},
        },
        "responses": {
            "2XX": {"description": "The message is acknowledged"},
            "410": {
                "description": "The subscription is disabled until it is resumed; the group keeps the message"
            },
            "default": {
                "description": "The attempt failed; it is retried, after Retry-After if that is given"
            },
        },
    }
    return {"message": {"post": operation}}
