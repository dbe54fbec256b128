"""A load balancer of one target: connections to it go to the node that leads, or are closed."""

import asyncio
import contextlib
from urllib.parse import urlsplit


class Relay:
    """Listens on a port of its own; `target` is the URL to which it connects, or None."""

    def __init__(self) -> None:
        self.target: str | None = None
        self.url = ""
        self.is_silent = False
        """Whether what comes is dropped, as if the target hung."""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self.target is not None:
                place = urlsplit(self.target)
                there, back = await asyncio.open_connection(place.hostname, place.port)
                self._open.add(back)
                try:
                    await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
                finally:
                    self._open.discard(back)
                    back.close()
        except OSError:
            pass  # the node is gone, or the client
        finally:
            self._open.discard(writer)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not self.is_silent:
                    writer.write(data)
                    await writer.drain()
        writer.close()
