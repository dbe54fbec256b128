"""A connection that receives: gives its wire what arrives, and writes what the wire replies."""

import asyncio
from collections.abc import Callable
from typing import Any

from bench.wires.wire import ReceiveWire, RefusedError, WorkWire


class Reading(asyncio.Protocol):
    """Belongs to the event loop. `took` gets the bodies that each read brought, `failed` the first error."""

    def __init__(
        self,
        wire: ReceiveWire | WorkWire,
        took: Callable[[list[bytes]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._wire = wire
        self._took = took
        self._failed = failed
        self._closed = False
        self.gone = asyncio.get_running_loop().create_future()
        """Done when the connection has ended."""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - a transport that writes
        """Ask for the first messages."""
        self._transport = transport
        transport.write(self._wire.begin())

    def data_received(self, data: bytes) -> None:
        """Reply at once, then count."""
        if self._closed:
            return
        try:
            bodies, reply = self._wire.feed(data)
        except RefusedError as error:
            self._failed(error)
            return
        if reply:
            self._transport.write(reply)
        if bodies:
            self._took(bodies)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, unless this side closed it."""
        self.gone.set_result(None)
        if not self._closed:
            self._failed(exc or ConnectionResetError("the system hung up on a receiver"))

    def close(self) -> None:
        """Break off whatever is in flight."""
        self._closed = True
        self._transport.abort()
