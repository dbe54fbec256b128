"""Successful answers: JSON and event streams, with headers that keep a browser from guessing otherwise."""

from typing import Any

import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict, istr

from timerwheel.logs import REQUEST_ID

REQUEST_ID_HEADER = istr("X-Request-Id")  # an istr is found sooner among headers

SERVER = "timerwheel"
"""The header `Server` of every answer; without a version, which only helps who looks for old ones."""

NO_STORE = "no-store"
"""`Cache-Control` of whatever tells of messages: no cache may answer in place of the service."""

PLAIN_HEADERS = CIMultiDict(
    {"Content-Type": "application/json", "Cache-Control": NO_STORE, "X-Content-Type-Options": "nosniff"}
)
EVENTS_HEADERS = CIMultiDict(
    {
        "Content-Type": "text/event-stream",
        "Cache-Control": NO_STORE,
        "X-Content-Type-Options": "nosniff",
        "X-Accel-Buffering": "no",  # nginx would hold events back
    }
)


def sign(response: web.StreamResponse, request_id: str) -> None:
    """Put what every answer has into the head of one."""
    response.headers[REQUEST_ID_HEADER] = request_id
    response.headers[hdrs.SERVER] = SERVER


def json_bytes(body: bytes, status: int = 200) -> web.Response:
    """An answer whose JSON is already encoded."""
    return web.Response(body=body, status=status, headers=PLAIN_HEADERS)


def json(content: Any, status: int = 200) -> web.Response:  # noqa: ANN401 - whatever msgspec encodes
    """An answer of plain values or `api.wire` types."""
    return json_bytes(msgspec.json.encode(content), status)


def created(content: Any, location: str) -> web.Response:  # noqa: ANN401 - as above
    """201 with the path of what was made."""
    response = json(content, 201)
    response.headers[hdrs.LOCATION] = location
    return response


def put(request: web.Request, content: Any, *, made: bool) -> web.Response:  # noqa: ANN401 - as above
    """The answer to a PUT: 201 with its own path if it made what lies there, else 200."""
    return created(content, request.rel_url.raw_path) if made else json(content)


def events() -> web.StreamResponse:
    """The head of an answer of server-sent events, to be prepared by who writes them."""
    response = web.StreamResponse(headers=EVENTS_HEADERS)
    if (request_id := REQUEST_ID.get()) is not None:
        sign(response, request_id)
    response.force_close()
    return response


def events_head() -> web.Response:
    """The answer to HEAD where GET answers with events."""
    return web.Response(headers=EVENTS_HEADERS)
