"""Apache Arrow in requests and responses: who asks for it, and the streams that answer.

pyarrow is an extra of the package. It is imported in a thread when a request first needs it: that takes half
a second, in which other requests go on. Event loop only.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType, ModuleType
from typing import Any

from aiohttp import hdrs, web
from multidict import CIMultiDict

from timerwheel.api.http import budget
from timerwheel.api.http.budget import FREE_BYTES
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.responses import PLAIN_HEADERS, STEP_BYTES, InPieces
from timerwheel.wire import arrow
from timerwheel.wire.arrow import MEDIA_TYPE, REMEDY

HEADERS = CIMultiDict({**PLAIN_HEADERS, hdrs.CONTENT_TYPE: MEDIA_TYPE})
NO_METADATA: Mapping[str, str] = MappingProxyType({})
Columns = list[tuple[Any, Any]]  # fields and their arrays, of pyarrow

_LOADED: list[ModuleType] = []
JSON_TYPES = ("application/json", "application/*", "*/*")


async def load() -> Any:  # noqa: ANN401 - a module that need not be installed
    """Return pyarrow; ImportError if it is not installed."""
    if not _LOADED:
        _LOADED.append(await asyncio.to_thread(arrow.load))
    return _LOADED[0]


async def for_body() -> Any:  # noqa: ANN401 - as above
    """Return pyarrow to read a body with; raises `RequestError` unsupported_media_type."""
    try:
        return await load()
    except ImportError:
        raise RequestError("unsupported_media_type", f"a body of {MEDIA_TYPE} {REMEDY}") from None


async def for_answer(request: web.Request) -> Any:  # noqa: ANN401 - as above
    """Return pyarrow if the answer is to be Arrow, else None. Call it before the request has any effect.

    Raises `RequestError` not_acceptable if the client takes nothing else and it is not installed.
    """
    accept = request.headers.get(hdrs.ACCEPT, "")
    if not wants_arrow(accept):
        return None
    try:
        return await load()
    except ImportError:
        if takes_json(accept):
            return None
        raise RequestError("not_acceptable", f"an answer of {MEDIA_TYPE} {REMEDY}") from None


@lru_cache(maxsize=256)
def wants_arrow(accept: str) -> bool:
    """Whether a client prefers Arrow to JSON by its `Accept` header (RFC 9110). A wildcard means JSON."""
    weights = _weights(accept)
    return weights.get(MEDIA_TYPE, 0) > 0 and weights[MEDIA_TYPE] >= weights.get(JSON_TYPES[0], 0)


def takes_json(accept: str) -> bool:
    """Whether a client also takes JSON."""
    weights = _weights(accept)
    return any(weights.get(kind, 0) > 0 for kind in JSON_TYPES)


def _weights(accept: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in accept.split(","):
        kind, *parameters = (one.strip().lower() for one in part.split(";"))
        weight = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        try:
            weights[kind] = float(weight)
        except ValueError:
            weights[kind] = 0.0
    return weights


async def answer(  # noqa: PLR0913 - of which most have a default
    request: web.Request,
    pa: Any,  # noqa: ANN401 - as above
    make: Callable[[], Columns],
    metadata: Mapping[str, str] = NO_METADATA,
    *,
    bodies_bytes: int = 0,
    status: int = 200,
    is_final: bool = False,
) -> web.StreamResponse:
    """Return a stream of one record batch, of the columns that are made of bodies of so many bytes.

    Raises OverloadedError, unless `is_final`: what it reports was done, and cannot be refused any more.
    """
    charge = request[budget.KEY]
    if bodies_bytes > FREE_BYTES:
        charge.take_answer(bodies_bytes, force=is_final)
    if bodies_bytes > STEP_BYTES:
        stream = await asyncio.to_thread(_stream_of, pa, make, metadata)
    else:
        stream = _stream_of(pa, make, metadata)
    if len(stream) <= FREE_BYTES:
        return web.Response(body=stream, status=status, headers=HEADERS)
    if bodies_bytes <= FREE_BYTES:
        charge.take_answer(len(stream), force=True)
    return InPieces([stream], headers=HEADERS, status=status)


def _stream_of(pa: Any, make: Callable[[], Columns], metadata: Mapping[str, str]) -> bytes:  # noqa: ANN401
    columns = make()
    schema = pa.schema([field for field, _ in columns], dict(metadata) or None)
    batch = pa.record_batch([array for _, array in columns], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        if batch.num_rows:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
