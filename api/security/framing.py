"""Framing of requests: refuses what the parser accepts although it is not HTTP/1, and handles trailers.

A chunked body may end in trailers, which must not affect the next request. aiohttp drops trailers, but its
parser (3.14) takes the last one for a header of the next request on the connection. Behind a proxy that
shares connections, that request would be another client's. So the answer to a request with a chunked body
closes the connection.
"""

from aiohttp import HttpVersion10, hdrs, web

from timerwheel.api.http.problems import RequestError

HTTP_1 = 1
CHUNKED = "chunked"


def check_framing(request: web.BaseRequest) -> None:
    """Raise `RequestError` unless this is HTTP/1 and its body is framed by a length or by chunks alone.

    The parser takes `gzip, chunked` for chunks alone, and any version for 1.1.
    """
    major, minor = request.version
    if major != HTTP_1:
        raise RequestError("unsupported_version", f"HTTP/{major}.{minor} is not supported; send HTTP/1.1")
    codings = request.headers.getall(hdrs.TRANSFER_ENCODING, None)
    if codings is None:
        return
    if request.version == HttpVersion10:
        raise RequestError("malformed_request", "HTTP/1.0 has no Transfer-Encoding")
    if [coding.strip().lower() for coding in codings] != [CHUNKED]:
        detail = f"Transfer-Encoding {', '.join(codings)} is not supported; send chunked"
        raise RequestError("unsupported_transfer_encoding", detail)


def end_after_chunks(request: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after the response to such a request."""
    if hdrs.TRANSFER_ENCODING in request.headers and not response.prepared:
        response.force_close()
