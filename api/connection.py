"""One connection: what is not HTTP is refused with a problem, under an id that the log has, too.

Such a request reaches no middleware, so what they do for every other answer is done here.
"""

import logging
import secrets

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError

from api.answers import REQUEST_ID_HEADER
from api.problems import problem

logger = logging.getLogger("api.http")


class Connection(web.RequestHandler):
    """aiohttp's protocol with answers of our own. Event loop only."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that could not be read; it ends the connection."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        reason = exc.message.split("\n", 1)[0].removesuffix(":")
        request_id = secrets.token_hex(8)
        # A first line without a method is of another protocol: probes of ports are no news.
        is_probe = isinstance(exc, BadHttpMethod) and self._request_count == 1
        level = logging.DEBUG if is_probe else logging.WARNING
        logger.log(level, "not HTTP from %s: %s", request.remote, reason, extra={"request": request_id})
        answer = problem("malformed_request", reason, headers={REQUEST_ID_HEADER: request_id})
        answer.force_close()
        return answer
