"""The connections to receivers: an answer costs the service no more than it needs.

The HTTP client skips informational answers (1xx), however many there are, and parses all that has come of
them in one step of the event loop. So a receiver that sends nothing else would hold up every other one.
"""

import asyncio
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

INFORMATIONAL_MAX = 8
"""Informational answers before the real one; servers send one or two."""
STEP_BYTES = 8_192
"""So much is parsed before the number of answers is looked at."""
_SWITCHING = 101


class AnswerHandler(ResponseHandler):
    """Reads the answers of one connection.

    With too many informational ones it closes the connection, and so it does when something comes after an
    answer: it would be taken for the answer to the next request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._informational = 0
        self._has_answer = False

    def set_response_params(self, **params: Any) -> None:  # noqa: ANN401 - those of the client
        """Begin to read the answer of another request."""
        self._informational, self._has_answer = 0, False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Parse what has come; nothing at all is a call of the client to go on with what it kept."""
        for at in range(0, len(data) or 1, STEP_BYTES):
            if data and self._is_over:
                self._close()
                return
            super().data_received(data[at : at + STEP_BYTES])
            if self._informational > INFORMATIONAL_MAX:
                return

    @property
    def _is_over(self) -> bool:
        """Whether the whole answer has come, and no other request was begun."""
        return self._has_answer and (self._payload is None or self._payload.is_eof())

    def _close(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def feed_data(self, data: Any, size: int = 0) -> None:  # noqa: ANN401 - an answer and its body
        """Take the head of an answer."""
        if 100 <= data[0].code < 200 and data[0].code != _SWITCHING:  # noqa: PLR2004 - the class of these
            self._informational += 1
        else:
            self._has_answer = True
        if self._informational <= INFORMATIONAL_MAX:
            super().feed_data(data, size)
        elif self.transport is not None and not self.transport.is_closing():
            self.set_exception(
                HttpProcessingError(message=f"more than {INFORMATIONAL_MAX} informational answers")
            )
            self._close()


class Connector(aiohttp.TCPConnector):
    """Opens connections whose answers are read by an AnswerHandler."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of the client
        super().__init__(**options)
        handler: type[ResponseHandler] = AnswerHandler
        self._factory = partial(handler, loop=asyncio.get_running_loop())
