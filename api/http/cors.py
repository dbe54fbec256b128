"""Cross-origin resource sharing: which pages of other origins may read what the service answers.

Only browsers enforce these headers; `Auth` refuses what pages of other origins must not send. Credentials are
never allowed, so a page can do only what an anonymous visitor could do, or what its own token allows.
"""

from aiohttp import hdrs, web

ALLOWED_HEADERS = (
    "authorization, content-type, idempotency-key, if-match, if-none-match, traceparent, tracestate, "
    "x-request-id"
)
EXPOSED_HEADERS = "ETag, Location, Retry-After, X-Request-Id"
MAX_AGE_S = 600
ANY = "*"


class Cors:
    """The allowed origins, as browsers write them; `*` allows all. Event loop only."""

    def __init__(self, origins: frozenset[str]) -> None:
        self._origins = origins

    def install(self, app: web.Application) -> None:
        """Add the headers to every response of the application; call it before the start."""
        app.on_response_prepare.append(self._sign)

    def _allowed(self, request: web.BaseRequest) -> str | None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin and (origin in self._origins or ANY in self._origins):
            # Anything else could not be echoed unchanged.
            return origin if origin.isascii() and origin.isprintable() else None
        return None

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        """Sign a response, and tell caches that it depends on the origin, even if the request had none."""
        varies = response.headers.get(hdrs.VARY)
        response.headers[hdrs.VARY] = hdrs.ORIGIN if varies is None else f"{varies}, {hdrs.ORIGIN}"
        origin = self._allowed(request)
        if origin is not None:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED_HEADERS

    def preflight(self, request: web.Request) -> web.Response | None:
        """Return the response to a browser's preflight request, None for any other request."""
        refusal = request.match_info.http_exception
        if not _is_preflight(request) or not isinstance(refusal, web.HTTPMethodNotAllowed):
            return None
        response = web.Response(status=204, headers={"X-Content-Type-Options": "nosniff"})
        if self._allowed(request) is not None:
            methods = ", ".join(sorted(refusal.allowed_methods))
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = methods
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = ALLOWED_HEADERS
            response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = str(MAX_AGE_S)
        return response


def _is_preflight(request: web.Request) -> bool:
    asked = (hdrs.ORIGIN, hdrs.ACCESS_CONTROL_REQUEST_METHOD)
    return request.method == hdrs.METH_OPTIONS and all(name in request.headers for name in asked)
