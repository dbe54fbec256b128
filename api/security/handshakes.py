"""TLS handshakes: they count towards the connection limit, and a refused client is logged with the reason.

Event loops drop a failed handshake silently. So each connection is accepted as plain TCP, and the handshake
runs on a duplicate of its socket.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import cast

from timerwheel.clock import Clock
from timerwheel.listening import accepted_socket
from timerwheel.telemetry.throttled_log import Troubles

PEERS_MAX = 1_000
FINISH_S_MAX = 1.0
"""How long a stop waits for clients in the middle of their handshakes."""
REASONS = {
    "HTTP_REQUEST": "it sent plain HTTP to an HTTPS port",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it presented no client certificate, and tls_client_ca requires one",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority that signed tls_certificate",
    "UNSUPPORTED_PROTOCOL": "it does not support TLS 1.2 or later",
    "WRONG_VERSION_NUMBER": "it sent something that is not TLS",
}

logger = logging.getLogger(__name__)


class Handshakes:
    """The handshakes of one server. Event loop only."""

    def __init__(self, context: ssl.SSLContext, clock: Clock) -> None:
        self._context = context
        self._refused = Troubles(clock, PEERS_MAX)
        self._under_way: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """The number of handshakes in progress."""
        return len(self._under_way)

    def greeter(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """Return the protocol for new connections; after the handshake, the protocol of `make` takes over."""
        return _Greeter(self, make)

    def begin(self, transport: asyncio.Transport, make: Callable[[], asyncio.Protocol]) -> None:
        """Take an unread connection away from its transport, and start the handshake."""
        peer = (transport.get_extra_info("peername") or ("somebody",))[0]
        try:
            own = accepted_socket(transport)
        except OSError as error:
            self._log_refusal(peer, str(error))
            return
        task = asyncio.create_task(self._greet(own, peer, make))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _greet(self, own: socket.socket, peer: str, make: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(make, own, ssl=self._context)
        except ssl.SSLError as error:
            self._log_refusal(peer, _reason(error))
        except OSError as error:
            # It left or was too slow; port scans and health checks do that all the time.
            logger.debug("a client at %s disconnected during the TLS handshake: %s", peer, error)

    def _log_refusal(self, peer: str, reason: str) -> None:
        self._refused.warning(peer, logger, "refused a client at %s: %s", peer, reason)

    async def finish(self) -> None:
        """Wait for the handshakes in progress, and cancel those that take longer than FINISH_S_MAX.

        In TLS 1.3 a client sends its first request without waiting for the server to end the handshake.
        """
        if self._under_way:
            _, silent = await asyncio.wait(self._under_way, timeout=FINISH_S_MAX)
            for task in silent:
                task.cancel()


class _Greeter(asyncio.Protocol):
    def __init__(self, handshakes: Handshakes, make: Callable[[], asyncio.Protocol]) -> None:
        self._handshakes = handshakes
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshakes.begin(cast("asyncio.Transport", transport), self._make)


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate fails verification against tls_client_ca: {error.verify_message}"
    return REASONS.get(error.reason, f"the TLS handshake failed: {error.reason or error}")
