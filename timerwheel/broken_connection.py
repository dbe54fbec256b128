"""A connection that breaks in the middle of a request, for clients with aiohttp.

On a connection that was kept open, aiohttp makes such a request again by itself if its method is said to be
idempotent (`aiohttp.client.IDEMPOTENT_METHODS`: PUT and DELETE are among them). The first one may have been
carried out: then a recall is answered `already_recalled`; and if nobody listens by then, the error says that
no connection was made, which looks as if nothing had happened. With one of these middlewares the caller hears
of the broken connection instead, and decides.

    reported                 whatever the method: for callers that count their calls
    reported_unless_reading  what only reads is still made again by aiohttp, which does no harm
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
    """Make a request once, whatever becomes of its connection; BrokenConnectionError if that breaks."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:  # no connection was made
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise BrokenConnectionError(str(error) or "the connection broke") from error


async def reported_unless_reading(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Make a request that changes something once, as `reported` does."""
    return await (handler(request) if request.method in READS else reported(request, handler))
