"""A body in chunks may end in trailers, and those must not reach what comes after it.

aiohttp reads trailers and drops them, but its parser (3.14) takes the last one for a header of the request
that comes next on the connection. Behind a proxy that shares connections this would be another client's. So
a connection ends with the answer to a request whose body came in chunks.
"""

from aiohttp import hdrs, web


def end_after_chunks(request: web.Request, response: web.StreamResponse) -> None:
    """Whatever answers such a request, have it be the connection's last answer."""
    if hdrs.TRANSFER_ENCODING in request.headers and not response.prepared:
        response.force_close()
