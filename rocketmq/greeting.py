"""Greeting: a client's first byte says whether it speaks TLS, and both are served at one port.

RocketMQ's clients with `tls.enable=true` use the port of the others. A TLS connection begins with the byte
22, a frame with the highest byte of its length, which is 0 or 1. So the connection is taken from its
transport unread, and given to another one once the first byte has been seen.

1. Plain text is for clients on this machine, and not even for them if clients must show certificates.
2. A client that says nothing within GREETING_MS_MAX is let go; until then it counts as a connection.
"""

import asyncio
import logging
import socket
import ssl
from functools import partial
from typing import Final, Protocol, cast

from timerwheel.clock import Clock
from timerwheel.listening import accepted_socket
from timerwheel.settings import is_loopback
from timerwheel.telemetry.throttled_log import Troubles

GREETING_MS_MAX: Final = 20_000
"""The longest time until the first byte, and then for the handshake."""
PEERS_MAX: Final = 1_000
"""Most addresses for which the log counts refusals."""
_TLS_HANDSHAKE: Final = b"\x16"
_IPV4_IN_IPV6: Final = "::ffff:"

logger = logging.getLogger(__name__)


class House(Protocol):
    """Who the clients come to."""

    def connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""

    def has_room(self, greeted: int) -> bool:
        """Whether another client may come, if so many are being greeted."""


class Greeting:
    """Greets the clients of one port. Event loop only."""

    def __init__(self, house: House, context: ssl.SSLContext, clock: Clock) -> None:
        self._house = house
        self._context = context
        self._clock = clock
        self._refused = Troubles(clock, PEERS_MAX)
        self._silent: dict[socket.socket, int] = {}  # since when
        self._handshakes: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many clients are being greeted."""
        return len(self._silent) + len(self._handshakes)

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol for a new connection; that of the house takes over after the first byte."""
        return _Newcomer(self)

    def begin(self, transport: asyncio.Transport) -> None:
        """Take an unread connection away from its transport, and wait for its first byte."""
        peer = _address(transport)
        if not self._house.has_room(len(self)):
            transport.abort()
            self._log_refusal(peer, "too many connections are open")
            return
        try:
            own = accepted_socket(transport)
        except OSError as error:
            self._log_refusal(peer, str(error))
            return
        own.settimeout(0)
        self._silent[own] = self._clock.monotonic_ms()
        asyncio.get_running_loop().add_reader(own, self._hear, own, peer)

    def _hear(self, own: socket.socket, peer: str) -> None:
        """The first byte is there, or the client has left."""
        try:
            first = own.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        self._forget(own)
        may_be_plain = self._context.verify_mode == ssl.CERT_NONE and is_loopback(peer)
        if first == _TLS_HANDSHAKE:
            self._accept(own, peer, self._context)
        elif first and may_be_plain:
            self._accept(own, peer, None)
        else:
            if first:
                self._log_refusal(peer, "it does not speak TLS; clients need tls.enable=true")
            own.close()

    def _accept(self, own: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        task = asyncio.create_task(self._introduce(own, peer, context))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _introduce(self, own: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        accept = partial(asyncio.get_running_loop().connect_accepted_socket, self._house.connection, own)
        try:
            if context is None:
                await accept()
            else:
                await accept(ssl=context, ssl_handshake_timeout=GREETING_MS_MAX / 1000)
        except ssl.SSLError as error:
            self._log_refusal(peer, f"the TLS handshake failed: {error.reason or error}")
        except OSError as error:
            logger.debug("a client at %s left during the TLS handshake: %s", peer, error)

    def look(self) -> None:
        """Let clients go that have been silent for too long."""
        latest_ms = self._clock.monotonic_ms() - GREETING_MS_MAX
        for own, since_ms in list(self._silent.items()):
            if since_ms <= latest_ms:
                self._forget(own)
                own.close()

    def close(self) -> None:
        """Let all go that are not served yet."""
        for own in list(self._silent):
            self._forget(own)
            own.close()
        for task in self._handshakes:
            task.cancel()

    def _forget(self, own: socket.socket) -> None:
        del self._silent[own]
        asyncio.get_running_loop().remove_reader(own)

    def _log_refusal(self, peer: str, reason: str) -> None:
        self._refused.warning(peer, logger, "refused a client at %s: %s", peer, reason)


class _Newcomer(asyncio.Protocol):
    def __init__(self, greeting: Greeting) -> None:
        self._greeting = greeting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._greeting.begin(cast("asyncio.Transport", transport))


def _address(transport: asyncio.BaseTransport) -> str:
    name: tuple[str, int] | None = transport.get_extra_info("peername")
    return "unknown" if name is None else name[0].partition("%")[0].removeprefix(_IPV4_IN_IPV6)
