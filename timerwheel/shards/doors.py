"""HTTP to the processes of shards: one pool of connections, with TLS as the service itself offers it."""

from collections.abc import Collection, Mapping
from typing import Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

from timerwheel.settings import Serving
from timerwheel.tls import own_context, peer_context

KEEP_S: Final = 10.0
"""How long an idle connection is kept: shorter than services keep it, so that none ends as a call begins."""
LINE_BYTES_MAX: Final = 1 << 20
"""Longest line of a stream of events."""
_NO_HEADERS = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE)


class Doors:
    """See the module. `with` closes its connections. Belongs to the event loop."""

    def __init__(self, serving: Serving, own_urls: Collection[str]) -> None:
        """Raises SettingsError for certificates that cannot be used."""
        self._own_hosts = frozenset(URL(url).origin() for url in own_urls)
        self._own, self._peer = own_context(serving), peer_context(serving)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S)
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            read_bufsize=LINE_BYTES_MAX,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def __aenter__(self) -> "Doors":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

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
        context = self._own if target.origin() in self._own_hosts else self._peer
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
