"""A connection that breaks in the middle of a request, for clients with aiohttp.

On a connection that was kept open, aiohttp makes such a request again by itself if its method is said to be
idempotent (`aiohttp.client.IDEMPOTENT_METHODS`: PUT and DELETE are among them). The first one may have been
carried out: then a recall is answered `already_recalled`; and if nobody listens by then, the error says that
no connection was made, which looks as if nothing had happened. With one of these middlewares the caller hears
of the broken connection instead, and decides.

    reported                 whatever the method: for callers that count their calls
    reported_unless_reading  what only reads is still made again by aiohttp, which does no harm

If the other side ends a connection just as it is taken from the pool, aiohttp may find it closing when it
begins to write. Then nothing was sent, and UnsentError says so.
"""

from typing import Final

import aiohttp
from aiohttp import hdrs
from aiohttp.payload import BytesPayload

_CLOSING: Final = "Cannot write to closing transport"
"""What aiohttp says before it writes; after it, it says that the connection was lost."""
READS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})


class BrokenConnectionError(aiohttp.ClientConnectionError):
    """The connection broke after the request was begun: it may have been carried out, or not."""


class UnsentError(BrokenConnectionError):
    """The connection had ended before anything of the request was sent: nothing was carried out."""


async def reported(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Make a request once, whatever becomes of its connection; BrokenConnectionError if that breaks."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:  # no connection was made
        raise
    except (
        aiohttp.ClientConnectionResetError,
        aiohttp.ClientOSError,
        aiohttp.ServerDisconnectedError,
    ) as error:
        kind = UnsentError if _is_unsent(request, error) else BrokenConnectionError
        raise kind(str(error) or "the connection broke") from error


def _is_unsent(request: aiohttp.ClientRequest, error: Exception) -> bool:
    """Whether aiohttp found the connection closing when it began to write the request.

    It writes the head together with the first part of the body, and a body of bytes is one part.
    """
    is_one_part = not request.body or isinstance(request.body, BytesPayload)
    closing = (isinstance(one, aiohttp.ClientConnectionResetError) for one in (error, error.__cause__))
    return is_one_part and any(closing) and _CLOSING in f"{error} {error.__cause__}"


async def reported_unless_reading(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Make a request that changes something once, as `reported` does."""
    return await (handler(request) if request.method in READS else reported(request, handler))
