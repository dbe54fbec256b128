"""HTTP to the processes of shards: one pool of connections, with TLS as the service itself offers it.

A certificate may be replaced at any time, and a shard that starts again shows the new one at once. So before
a certificate is refused, the files are read again.
"""

import logging
import ssl
from collections.abc import Collection, Mapping
from typing import Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

from timerwheel import broken_connection, tls
from timerwheel.errors import SettingsError
from timerwheel.settings import Serving

KEEP_S: Final = 10.0
"""How long an idle connection is kept: shorter than services keep it, so that none ends as a call begins."""
LINE_BYTES_MAX: Final = 1 << 20
"""Longest line of a stream of events."""
_NO_HEADERS = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE)

logger = logging.getLogger(__name__)


class ConnectionPool:
    """See the module. `with` closes its connections. Belongs to the event loop."""

    def __init__(self, serving: Serving, own_urls: Collection[str]) -> None:
        """Raises SettingsError for certificates that cannot be used."""
        self._own_hosts = frozenset(URL(url).origin() for url in own_urls)
        self._serving = serving
        self._files = tls.digests(serving)
        self._own, self._peer = tls.own_context(serving), tls.peer_context(serving)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S)
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            read_bufsize=LINE_BYTES_MAX,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            middlewares=(broken_connection.reported_unless_reading,),
        )

    async def __aenter__(self) -> "ConnectionPool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def renew(self) -> bool:
        """Read the certificates again for new connections; True if there are new, usable ones."""
        files = tls.digests(self._serving)
        if files == self._files:
            return False
        try:
            self._own, self._peer = tls.own_context(self._serving), tls.peer_context(self._serving)
        except SettingsError as error:
            logger.warning(
                "cannot reload the certificates for calls to shards; keeping the old ones: %s", error
            )
            return False
        self._files = files
        return True

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - of each step, not of the whole
        headers: Mapping[str, str] | None = None,
        data: bytes | bytearray | None = None,
    ) -> aiohttp.ClientResponse:
        """Make a request as it is given: no header is added, no redirect followed, nothing unpacked."""
        target = URL(url, encoded=True)
        while True:
            context = self._context_for(target)
            try:
                return await self._session.request(
                    method,
                    target,
                    headers=headers,
                    data=data,
                    allow_redirects=False,
                    timeout=timeout,
                    skip_auto_headers=_NO_HEADERS,
                    ssl=True if context is None else context,
                )
            except aiohttp.ClientConnectorCertificateError:
                if context is self._context_for(target) and not self.renew():
                    raise

    def _context_for(self, target: URL) -> ssl.SSLContext | None:
        return self._own if target.origin() in self._own_hosts else self._peer
