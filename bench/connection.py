"""A cheap HTTP/1.1 connection: the load generator shares two cores with the service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson


class AnsweredError(Exception):
    """The service answered with an error of this HTTP status."""

    def __init__(self, status: int, answer: str) -> None:
        super().__init__(answer)
        self.status = status


class Connection(asyncio.Protocol):
    """Makes one call at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """A connection to the service on this loopback port."""
        _, made = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Collect data until the response is complete."""
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(body) < size:
            return
        self._buffer = b""
        answer, self._answer = self._answer, None
        assert answer is not None
        if head.startswith(b"HTTP/1.1 2"):
            answer.set_result(body)
        else:
            status = int(head.split(b" ", 2)[1])
            answer.set_exception(AnsweredError(status, (head + body).decode(errors="replace")))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the waiting call."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the service hung up"))

    async def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Returns the body of the response. Raises AnsweredError."""
        self._answer = asyncio.get_running_loop().create_future()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await self._answer

    async def post(self, path: str, content: object) -> Any:  # noqa: ANN401 - whatever JSON says
        """A call with JSON in both directions."""
        return orjson.loads(await self.call("POST", path, orjson.dumps(content)))

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


@asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Connection]]:
    """Opens this many connections and closes them at the end."""
    made = [await Connection.open(port) for _ in range(count)]
    try:
        yield made
    finally:
        for connection in made:
            connection.close()
