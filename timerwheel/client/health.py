"""The health check of an `App` over HTTP: whether its workers work, and their counts.

It does not ask the service: a worker that is restarted in an outage of the service gains nothing.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
from aiohttp import web

from timerwheel.client.errors import AddressError

DRAINING = "draining"
"""The `status` of workers that take no more work."""


@contextlib.asynccontextmanager
async def serving_health(address: str, look: Callable[[], Mapping[str, object]]) -> AsyncIterator[None]:
    """Answer every GET at HOST:PORT within the block with what `look` returns: `status`, and the counts.

    Raises `AddressError` if that is not an address, or is in use.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise AddressError(f"{address!r} is not the address of a health check; write one like 127.0.0.1:8080")

    async def answer(_: web.BaseRequest) -> web.Response:
        content = look()
        return web.Response(
            status=503 if content["status"] == DRAINING else 200,
            body=msgspec.json.encode(content),
            content_type="application/json",
        )

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        except (OSError, OverflowError) as error:
            raise AddressError(f"the health check cannot listen on {address}: {error}") from error
        yield
    finally:
        await runner.cleanup()
