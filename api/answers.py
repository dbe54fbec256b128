"""Successful answers: JSON by orjson, and headers that keep a browser from guessing otherwise."""

from typing import Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict

_HEADERS = CIMultiDict({"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"})


def json_bytes(body: bytes, status: int = 200) -> web.Response:
    """An answer whose JSON is already encoded."""
    return web.Response(body=body, status=status, headers=_HEADERS)


def json(content: Any, status: int = 200) -> web.Response:  # noqa: ANN401 - whatever msgspec encodes
    """An answer of plain values or `api.wire` types."""
    return json_bytes(msgspec.json.encode(content), status)
