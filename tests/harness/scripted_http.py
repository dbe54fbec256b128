"""A server that answers each request with the next of a list, and keeps what it was sent."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

CLOSE = "close"
"""Closes the connection after it has read the request."""
HANG = "hang"
"""Never answers."""
DIE = "die"
"""As `CLOSE`, and nobody listens any longer: the process was killed when it had carried out the request."""


class Reply(NamedTuple):
    status: int
    content: Any
    headers: Mapping[str, str] = MappingProxyType({})


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    content: Any


class ScriptedHttp:
    """Repeats the last reply when a list has ended."""

    def __init__(self, replies: Sequence[Reply | str]) -> None:
        self.replies = list(replies)
        self.by_end: dict[str, list[Reply | str]] = {}
        """Replies to the paths with these ends, instead of `replies`."""
        self.requests: list[Request] = []
        self.url = ""
        self.server: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *rest = head.decode().rstrip().split("\r\n")
                headers = dict(each.lower().split(": ", 1) for each in rest)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = line.split(" ")
                self.requests.append(Request(method, path, headers, json.loads(body or b"null")))
                reply = self._next(path)
                if reply == DIE and self.server is not None:
                    self.server.close()
                if reply in (CLOSE, DIE):
                    break
                if reply == HANG:
                    await reader.read()
                    break
                writer.write(_encoded(reply))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _next(self, path: str) -> Reply | str:
        ends = (replies for end, replies in self.by_end.items() if path.endswith(end))
        replies = next(ends, self.replies)
        return replies.pop(0) if len(replies) > 1 else replies[0]


def _encoded(reply: Reply) -> bytes:
    body = json.dumps(reply.content).encode()
    kind = "application/problem+json" if reply.status >= 400 else "application/json"
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), **reply.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {reply.status} x\r\n{lines}\r\n".encode() + body


@asynccontextmanager
async def scripted(*replies: Reply | str) -> AsyncIterator[ScriptedHttp]:
    service = ScriptedHttp(replies)
    service.server = server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    service.url = f"http://{host}:{port}"
    async with server:
        yield service


def problem(status: int, code: str, retry_after: object = None, **facts: object) -> Reply:
    content = {"type": "x", "title": "x", "status": status, "code": code, "detail": "x", **facts}
    return Reply(status, content, {} if retry_after is None else {"Retry-After": str(retry_after)})
