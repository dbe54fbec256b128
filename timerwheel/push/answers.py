"""The connections to receivers: an answer costs the service no more than it needs.

The HTTP client skips informational answers (1xx), however many there are, and parses all that has come of
them in one step of the event loop. So a receiver that sends nothing else would hold up every other one.
"""

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import aiohttp
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

INFORMATIONAL_MAX = 8
"""Informational answers before the real one; servers send one or two."""
STEP_BYTES = 8_192
"""How much is parsed before the number of answers is checked."""
_SWITCHING = 101
_WITHOUT_BODY = frozenset({204, 304})
_HEAD_END = re.compile(rb"(?:\A|\n)\r?\n")
"""An empty line: the end of a head, if not a line end that comes before one."""


class AnswerHandler(ResponseHandler):
    """Reads the answers of one connection.

    With too many informational ones it closes the connection, and so it does when something comes after an
    answer: it would be taken for the answer to the next request. With an answer that announces a body though
    its status has none, such as 204, the connection serves no other request: what may come is dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._informational = 0
        self._has_answer = False
        self._is_strayed = False

    def set_response_params(self, **params: Any) -> None:  # noqa: ANN401 - those of the client
        """Begin to read the answer of another request."""
        self._informational, self._has_answer, self._is_strayed = 0, False, False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Parse what has come; nothing at all is a call of the client to go on with what it kept."""
        at = 0
        while not at or at < len(data):
            if data and self._is_over:
                self._close()
                return
            step = data[at : at + STEP_BYTES]
            if not self._has_answer and (head_end := _HEAD_END.search(step)):
                step = step[: head_end.end()]  # the head decides what may come behind it
            super().data_received(step)
            if self._informational > INFORMATIONAL_MAX or self._is_strayed or not data:
                return
            at += len(step)

    @property
    def _is_over(self) -> bool:
        """Whether the whole answer has come, and no other request was begun."""
        return self._has_answer and (self._payload is None or self._payload.is_eof())

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """End what is being read with this error; aiohttp leaves the readers of a broken body waiting."""
        super().set_exception(exc, *cause)
        body = self._payload
        if isinstance(exc, HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError(exc.message))

    def _close(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def feed_data(self, data: Any, size: int = 0) -> None:  # noqa: ANN401 - an answer and its body
        """Take the head of an answer."""
        if 100 <= data[0].code < 200 and data[0].code != _SWITCHING:  # noqa: PLR2004 - the class of these
            self._informational += 1
        else:
            self._has_answer = True
            self._is_strayed = data[0].code in _WITHOUT_BODY and _announces_body(data[0].headers)
            if self._is_strayed:
                self.force_close()
        if self._informational <= INFORMATIONAL_MAX:
            super().feed_data(data, size)
        elif self.transport is not None and not self.transport.is_closing():
            self.set_exception(
                HttpProcessingError(message=f"more than {INFORMATIONAL_MAX} informational answers")
            )
            self._close()


def _announces_body(headers: Mapping[str, str]) -> bool:
    return hdrs.TRANSFER_ENCODING in headers or headers.get(hdrs.CONTENT_LENGTH, "0") != "0"


class Connector(aiohttp.TCPConnector):
    """Opens connections whose answers are read by an AnswerHandler."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of the client
        super().__init__(**options)
        handler: type[ResponseHandler] = AnswerHandler
        self._factory = partial(handler, loop=asyncio.get_running_loop())
