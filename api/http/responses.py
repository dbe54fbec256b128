"""Successful answers: JSON and event streams, with headers that keep a browser from guessing otherwise."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from msgspec import Struct
from multidict import CIMultiDict, istr

from timerwheel.api.http import budget
from timerwheel.api.http.budget import FREE_BYTES
from timerwheel.clock import SystemClock
from timerwheel.telemetry.logs import REQUEST_ID

REQUEST_ID_HEADER = istr("X-Request-Id")  # an istr is found sooner among headers

SERVER = "timerwheel"
"""The header `Server` of every answer; without a version, which would only help attackers."""

NO_STORE = "no-store"
"""`Cache-Control` of every answer: no cache may answer in place of the service."""

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
    """Add the headers that every response has."""
    response.headers[REQUEST_ID_HEADER] = request_id
    response.headers[hdrs.SERVER] = SERVER


STEP_BYTES = 1 << 20  # encoded without a pause, unless one message is larger
STEP_MESSAGES = 256
PIECE_BYTES = 1 << 16

_breathe = SystemClock().breathe


def json_bytes(body: bytes, status: int = 200) -> web.Response:
    """Return a response whose JSON is already encoded."""
    return web.Response(body=body, status=status, headers=PLAIN_HEADERS)


def json(content: Any, status: int = 200) -> web.Response:  # noqa: ANN401 - whatever msgspec encodes
    """Return a response of plain values or `timerwheel.wire.messages` types."""
    return json_bytes(msgspec.json.encode(content), status)


def created(content: Any, location: str) -> web.Response:  # noqa: ANN401 - as above
    """Return 201 with the path of the created resource."""
    response = json(content, 201)
    response.headers[hdrs.LOCATION] = location
    return response


def put(request: web.Request, content: Any, *, made: bool) -> web.Response:  # noqa: ANN401 - as above
    """Return the response to a PUT: 201 with the resource's path if it was created, else 200."""
    return created(content, request.rel_url.raw_path) if made else json(content)


class InPieces(web.StreamResponse):
    """A response of known length that is written as fast as the client reads it."""

    def __init__(
        self, pieces: list[bytes], *, headers: CIMultiDict[str] = PLAIN_HEADERS, status: int = 200
    ) -> None:
        super().__init__(headers=headers, status=status)
        self._is_head = False
        self.put(pieces)

    def put(self, pieces: list[bytes]) -> None:
        """Set the pieces to write; call it before the response is prepared."""
        self.pieces = pieces
        self.content_length = sum(map(len, pieces))

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the status line and the headers."""
        self._is_head = request.method == hdrs.METH_HEAD
        return await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the body; returns when all but its last piece has reached the kernel."""
        pieces, self.pieces = self.pieces, []
        for piece in [] if self._is_head else pieces:
            for at in range(0, len(piece), PIECE_BYTES):
                await self.write(piece[at : at + PIECE_BYTES])
        await super().write_eof(data)


async def page(
    request: web.Request,
    content: Struct,
    field: str,
    make: Callable[[Any], Struct],
    found: Sequence[Any],
    *,
    is_final: bool = False,
) -> web.StreamResponse:
    """Return `content`, whose list `field` is empty, with `make(one)` for each that was found in the list.

    It is built and encoded in steps, because a page may have PAGE_BYTES_MAX of bodies; these are charged
    first. Raises OverloadedError unless `is_final`: what it reports is done and can no longer be refused.
    """
    charge = request[budget.KEY]
    bodies_bytes = sum(len(getattr(one, "message", one).body) for one in found)
    if bodies_bytes > FREE_BYTES:
        charge.take_answer(bodies_bytes, force=is_final)
    head, empty, tail = msgspec.json.encode(content).partition(f'"{field}":[]'.encode())
    assert empty
    pieces = [head + empty[:-1]]
    part: list[bytes] = []
    size_bytes = 0
    for one in found:
        if size_bytes >= STEP_BYTES or len(part) >= STEP_MESSAGES:
            pieces.append(b",".join([*part, b""]))
            part, size_bytes = [], 0
            await _breathe()
        part.append(msgspec.json.encode(make(one)))
        size_bytes += len(part[-1])
    pieces.append(b",".join(part) + b"]" + tail)
    if bodies_bytes <= FREE_BYTES:
        return json_bytes(b"".join(pieces))
    return InPieces(pieces)


def events() -> web.StreamResponse:
    """Return a response of server-sent events, which the caller prepares and writes."""
    response = web.StreamResponse(headers=EVENTS_HEADERS)
    if (request_id := REQUEST_ID.get()) is not None:
        sign(response, request_id)
    response.force_close()
    return response


def events_head() -> web.Response:
    """Return the response to HEAD where GET streams events."""
    return web.Response(headers=EVENTS_HEADERS)
