"""Compresses large answers with gzip, for clients that accept it.

    handler's answer -> large? -> does the client accept gzip? -> compressed, on the loop or in a thread

1. At most LOOP_BYTES_MAX are compressed on the event loop; larger answers are compressed in a thread.
2. Answers to sends are never compressed, so the fast path has nothing to decide. Streams are not compressed
   either: their events would wait in the compressor.
3. `Vary` says to caches that the answer depends on `Accept-Encoding`.

Belongs to the event loop.
"""

import asyncio
import re
import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from aiohttp import hdrs, web

from timerwheel.api.http.responses import InPieces
from timerwheel.api.http.route import Handler

GZIP_BYTES_MIN: Final = 8 * 1024
"""Smaller answers cost more time than they save."""
LOOP_BYTES_MAX: Final = 64 * 1024
"""About a millisecond of compression."""
LEVEL: Final = 1  # leaves about a sixth of JSON; higher levels take three times as long to save a tenth more
THREADS_MAX: Final = 2
GZIP: Final = "gzip"

_GZIP_WINDOW = 16 + zlib.MAX_WBITS  # selects the gzip format
_ZERO = re.compile(r"0(\.0{0,3})?", re.ASCII).fullmatch


class Compression:
    """Compresses the responses of one application."""

    def __init__(self) -> None:
        self._threads = asyncio.Semaphore(THREADS_MAX)

    def around(self, handler: Handler) -> Handler:
        """Call the handler and compress its response if that is large."""

        async def handle(request: web.Request) -> web.StreamResponse:
            response = await handler(request)
            if hdrs.CONTENT_ENCODING in response.headers:
                return response  # passed on from a shard, which has compressed it
            if isinstance(response, InPieces):
                await self._compress_pieces(request, response)
            elif isinstance(response, web.Response):
                await self._compress(request, response)
            return response

        return handle

    async def _compress(self, request: web.Request, response: web.Response) -> None:
        body = response.body
        if not isinstance(body, bytes) or len(body) < GZIP_BYTES_MIN or response.prepared:
            return
        response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
        if not accepts_gzip(request.headers.get(hdrs.ACCEPT_ENCODING, "")):
            return
        if len(body) <= LOOP_BYTES_MAX:
            response.body = compressed([body])
        else:
            async with self._threads:
                response.body = await asyncio.to_thread(compressed, [body])
        response.headers[hdrs.CONTENT_ENCODING] = GZIP

    async def _compress_pieces(self, request: web.Request, response: InPieces) -> None:
        response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
        if not accepts_gzip(request.headers.get(hdrs.ACCEPT_ENCODING, "")):
            return
        async with self._threads:
            response.put([await asyncio.to_thread(compressed, response.pieces)])
        response.headers[hdrs.CONTENT_ENCODING] = GZIP


def compressed(pieces: Iterable[bytes]) -> bytes:
    """Compress a body with gzip."""
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return b"".join([*map(compressor.compress, pieces), compressor.flush()])


@lru_cache(maxsize=256)
def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client accepts gzip, by its `Accept-Encoding` header (RFC 9110); without one it does not."""
    weights: dict[str, bool] = {}
    for part in accept_encoding.split(","):
        coding, _, parameters = part.partition(";")
        name, _, weight = parameters.partition("=")
        is_refused = name.strip().lower() == "q" and _ZERO(weight.strip()) is not None
        weights[coding.strip().lower()] = not is_refused
    return weights.get(GZIP, weights.get("x-gzip", weights.get("*", False)))
