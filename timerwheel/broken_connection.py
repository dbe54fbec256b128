"""A connection that breaks in the middle of a request, for clients with aiohttp.

On a connection that was kept open, aiohttp makes such a request again by itself if its method is said to be
idempotent (`aiohttp.client.IDEMPOTENT_METHODS`: PUT and DELETE are among them). The first one may have been
carried out: then a recall is answered `already_recalled`; and if nobody listens by then, the error says that
no connection was made, which looks as if nothing had happened. With `reported` among a session's middlewares
the caller hears of the broken connection instead, and decides. What only reads is still made again.
"""

from typing import Final

import aiohttp
from aiohttp import hdrs

READS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})


class BrokenConnectionError(aiohttp.ClientConnectionError):
    """The connection broke after the request was begun: it may have been carried out, or not."""


async def reported(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Make a request that changes something once, whatever becomes of its connection."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:  # no connection was made
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method in READS:
            raise
        raise BrokenConnectionError(str(error) or "the connection broke") from error
