"""The fast path of the call that is made most: one message, from a program that asks for nothing besides.

    aiohttp's parser -> plain? -> guard -> begin -> group commit -> the answer's bytes

It does what the ordinary way does, without the objects that a request of any kind needs: of the time of a
single send that way took half. Invariants:

1. What it answers is what the ordinary way would; a test holds the two beside each other.
2. What is not plain, or would be refused, goes the ordinary way as it came. A header that is not known here
   may mean anything, so it is not plain.
"""

import logging
from functools import lru_cache
from time import perf_counter
from typing import Final, NamedTuple

import msgspec
from aiohttp import hdrs, web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE, HttpVersion11, RawRequestMessage

from api import intake
from api.answers import PLAIN_HEADERS, REQUEST_ID_HEADER
from api.bodies import FORMS
from api.gate import Gate
from api.problems import RequestError, of_error
from api.requests import Requests
from api.security.access import Access
from api.security.guard import Guard, Running
from store.errors import StoreError
from timerwheel.errors import TimerwheelError
from timerwheel.sending import Begun

PATH = "/v1/messages"
AIOHTTP: Final = "3.14."
"""The version whose connections are known to this path (`api.connection`); with another it is not taken."""

# Headers that change nothing about a send, or that are looked at here.
_PLAIN = frozenset(
    {"host", "user-agent", "accept", "accept-encoding", "accept-language", "connection"}
    | {"content-type", "content-length", "authorization"}
)

logger = logging.getLogger("api.requests")


class Sending(NamedTuple):
    """One send on its way: ask `FastPath.answer` when `begun.stored` is done."""

    begun: Begun
    began_s: float
    caller: Running


class FastPath:
    """Belongs to the event loop. `taken` counts the requests that took it."""

    def __init__(self, gate: Gate, guard: Guard, requests: Requests, route: web.AbstractRoute) -> None:
        self._gate = gate
        self._guard = guard
        self._requests = requests
        self._route = route
        self.taken = 0

    @staticmethod
    def is_for(version: str) -> bool:
        """Whether connections of this aiohttp are as this path knows them."""
        return version.startswith(AIOHTTP)

    def take(self, message: RawRequestMessage, body: bytes, caller: Running) -> Sending | None:
        """Begin to send what a request holds; None, and nothing was done, if it is to go the ordinary way.

        That one says what is wrong with it, too.
        """
        access = self._access(message, body) if _is_plain_send(message) else None
        if access is None:
            return None
        try:
            outgoing = intake.single(body)
            if outgoing.dedup_key is not None or not access.may(outgoing.topic) or access.take():
                return None
            begun = self._gate.engine.begin(outgoing)
        except (RequestError, TimerwheelError, StoreError):
            return None
        self.taken += 1
        self._requests.traffic.in_progress += 1
        self._guard.began(caller, access)
        return Sending(begun, perf_counter(), caller)

    def _access(self, message: RawRequestMessage, body: bytes) -> Access | None:
        """What the sender may do; None if this is not the moment, the body or the sender for this path."""
        gate = self._gate
        if not gate.ready or gate.traces is not None or logger.isEnabledFor(logging.DEBUG):
            return None
        if body[:1] != b"{" or len(body) > gate.settings.request_bytes_max:
            return None
        return self._guard.of_sender(message.headers)

    def answer(self, sending: Sending) -> bytes:
        """What the caller is told, once the message is stored or could not be."""
        status = 201
        try:
            content = msgspec.json.encode(self._gate.engine.outcome(sending.begun))
            head = _head(rfc822_formatted_time())
        except Exception as error:  # noqa: BLE001 - the border, as in `Requests`
            refusal = of_error(error)
            assert isinstance(refusal.body, bytes)
            status, content, head = refusal.status, refusal.body, _head_of(refusal)
        self._guard.ended(sending.caller)
        self._requests.traffic.in_progress -= 1
        self._requests.traffic.count(self._route, hdrs.METH_POST, status, perf_counter() - sending.began_s)
        rest = f"{REQUEST_ID_HEADER}: {self._requests.new_id()}\r\nContent-Length: {len(content)}\r\n\r\n"
        return b"".join((head, rest.encode(), content))


FAST_PATH = web.AppKey("fast_path", FastPath)


def _is_plain_send(message: RawRequestMessage) -> bool:
    return (
        message.path == PATH
        and message.method == hdrs.METH_POST
        and message.version == HttpVersion11
        and not message.should_close
        and not message.upgrade
        and _are_plain(tuple([name for name, _ in message.raw_headers]))
        and FORMS.get(message.headers.get(hdrs.CONTENT_TYPE, "")) == "json"
    )


@lru_cache(maxsize=256)
def _are_plain(names: tuple[bytes, ...]) -> bool:
    """Whether these headers, each once, are all such as a plain send may have."""
    known = [name.decode("latin-1").lower() for name in names]
    return _PLAIN.issuperset(known) and len(set(known)) == len(known)


@lru_cache(maxsize=1)
def _head(date: str) -> bytes:
    """The beginning of the answer to a message that was stored, without what each has for itself."""
    return _head_of(web.Response(status=201, headers=PLAIN_HEADERS), date)


def _head_of(response: web.Response, date: str | None = None) -> bytes:
    """Status line and headers, but for those that are the connection's and the body's."""
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines += [f"Date: {date or rfc822_formatted_time()}", f"Server: {SERVER_SOFTWARE}", ""]
    return "\r\n".join(lines).encode()
