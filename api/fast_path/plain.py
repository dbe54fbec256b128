"""Plain requests: what the calls of the fast path have in common.

A request is plain if nothing in it asks for more than its call and its JSON body. A header that is not known
here may mean anything, so the request is not plain. What is not plain, or would be refused, goes the ordinary
way as it came.
"""

import functools
import logging
from typing import Protocol

import msgspec
from aiohttp import hdrs, web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import HttpVersion11, RawRequestMessage

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.arrow import wants_arrow
from timerwheel.api.http.bodies import FORMS
from timerwheel.api.http.json_steps import DIRECT_BYTES
from timerwheel.api.http.responses import PLAIN_HEADERS, REQUEST_ID_HEADER, SERVER
from timerwheel.api.http.route import Need
from timerwheel.api.middleware import Middleware
from timerwheel.api.security.access import Access
from timerwheel.api.security.auth import Auth, Running

# Headers that change nothing about a plain request, or that are looked at here.
_PLAIN = frozenset(
    {"host", "user-agent", "accept", "accept-encoding", "accept-language", "connection"}
    | {"content-type", "content-length", "authorization"}
)

logger = logging.getLogger("timerwheel.api.requests")


class Sender(Running, Protocol):
    """A connection whose request was taken; it calls exactly one of these methods."""

    def answer(self, data: bytes) -> None:
        """Write the answer."""

    def decline(self) -> None:
        """Return the request to the ordinary path."""


class Taken(msgspec.Struct, frozen=True):
    """A request in progress."""

    sender: Sender
    access: Access
    began_s: float
    size_bytes: int


class PlainRequests:
    """Begins and ends plain requests as `Middleware` and `Auth` do. Belongs to the event loop.

    `taken` counts the requests that took the fast path.
    """

    def __init__(self, handle: EngineHandle, auth: Auth, middleware: Middleware) -> None:
        self.handle = handle
        self._auth = auth
        self.middleware = middleware
        self._bytes_max = min(DIRECT_BYTES, handle.settings.request_bytes_max)
        self.taken = 0

    def access(self, message: RawRequestMessage, body: bytes, need: Need) -> Access | None:
        """Return the caller's access, or None if the state, the request or the caller rules this path out."""
        handle = self.handle
        if (
            not handle.ready
            or not handle.has_lead
            or handle.traces is not None
            or logger.isEnabledFor(logging.DEBUG)
        ):
            return None
        if not is_plain(message) or len(body) > self._bytes_max:
            return None
        return self._auth.of_program(message.headers, need)

    def begin(self, taken: Taken) -> None:
        """The request is served here: its bytes are charged already."""
        self.middleware.traffic.in_progress += 1
        self._auth.began(taken.sender, taken.access)

    def end(self, taken: Taken) -> None:
        """It is answered, or takes the ordinary path."""
        self._auth.ended(taken.sender)
        self.middleware.budgets.requests.give(taken.size_bytes)
        self.middleware.traffic.in_progress -= 1

    def decline(self, taken: Taken) -> None:
        """Have the ordinary path take it, which charges it again."""
        self.refund(taken)
        taken.sender.decline()

    def refund(self, taken: Taken, messages: int = 1) -> None:
        """Take back what a request was charged that counted as so many messages."""
        taken.access.charge(1 - messages)
        self.end(taken)

    def answer(self, taken: Taken, head: bytes, content: bytes) -> None:
        """Write the answer: `head` is that of the status, without what differs between requests."""
        self.end(taken)
        rest = f"{REQUEST_ID_HEADER}: {self.middleware.new_id()}\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            taken.sender.answer(b"".join((head, rest.encode(), content)))
        except Exception:  # the others that were stored with it get their answers all the same
            logger.exception("writing a response failed")


def is_plain(message: RawRequestMessage) -> bool:
    """Whether it is a POST of JSON that asks for nothing else."""
    return (
        message.method == hdrs.METH_POST
        and message.version == HttpVersion11
        and not message.should_close
        and not message.upgrade
        and _are_plain(tuple([name for name, _ in message.raw_headers]))
        and FORMS.get(message.headers.get(hdrs.CONTENT_TYPE, "")) == "json"
        and not wants_arrow(message.headers.get(hdrs.ACCEPT, ""))
    )


@functools.lru_cache(maxsize=256)
def _are_plain(names: tuple[bytes, ...]) -> bool:
    """Whether all of these headers occur once and are ones that a plain request may have."""
    known = [name.decode("latin-1").lower() for name in names]
    return _PLAIN.issuperset(known) and len(set(known)) == len(known)


def head_of(status: int, *, varies: bool = False) -> bytes:
    """Return the status line and the headers that all JSON answers of this status share now.

    It `varies` if it is so large that it might be compressed for another client.
    """
    return _head(status, rfc822_formatted_time(), varies)


@functools.lru_cache(maxsize=4)
def _head(status: int, date: str, varies: bool) -> bytes:  # noqa: FBT001 - a key of the cache
    response = web.Response(status=status, headers=PLAIN_HEADERS)
    if varies:
        response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
    return head_of_response(response, date)


def head_of_response(response: web.Response, date: str | None = None) -> bytes:
    """Return the status line and the headers, except those of the connection and the body."""
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines += [f"Date: {date or rfc822_formatted_time()}", f"Server: {SERVER}", ""]
    return "\r\n".join(lines).encode()
