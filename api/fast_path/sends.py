"""The fast path of the call that is made most: a send of one message or a few hundred, asking nothing else.

    aiohttp's parser -> plain? -> auth -> begin -> group commit -> the answers' bytes

It does what the ordinary way does, without the objects that a request of any kind needs: of the time of a
single send that way took half. Messages that arrive one by one in one turn of the loop are checked, encoded
and answered together. Invariants:

1. What it answers is what the ordinary way would; a test holds the two beside each other.
2. What is not plain, or would be refused, goes the ordinary way as it came. A header that is not known here
   may mean anything, so it is not plain.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple, Protocol

import msgspec
from aiohttp import hdrs, web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import HttpVersion11, RawRequestMessage

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.bodies import FORMS
from timerwheel.api.http.json_steps import DIRECT_BYTES
from timerwheel.api.http.problems import RequestError, of_error
from timerwheel.api.http.responses import PLAIN_HEADERS, REQUEST_ID_HEADER, SERVER
from timerwheel.api.messages import intake
from timerwheel.api.middleware import Middleware
from timerwheel.api.security.access import Access
from timerwheel.api.security.auth import Auth, Running
from timerwheel.errors import RefusedError, TimerwheelError
from timerwheel.model.messages import Outgoing, Receipt
from timerwheel.runtime.sender import AT_ONCE_MAX, PendingSend, is_keyed

PATH = "/v1/messages"
CREATED = 201
FIRSTS = frozenset({b"{", b"["})

# Headers that change nothing about a send, or that are looked at here.
_PLAIN = frozenset(
    {"host", "user-agent", "accept", "accept-encoding", "accept-language", "connection"}
    | {"content-type", "content-length", "authorization"}
)

_encode = msgspec.json.Encoder().encode

Encode = Callable[[list[Receipt]], list[bytes]]  # JSON for each request

logger = logging.getLogger("timerwheel.api.requests")


class Sender(Running, Protocol):
    """A connection whose request was taken; it calls exactly one of these methods."""

    def answer(self, data: bytes) -> None:
        """Write the answer."""

    def decline(self) -> None:
        """Return the request to the ordinary path."""


class Taken(NamedTuple):
    """A request in progress."""

    messages: list[Outgoing]
    sender: Sender
    access: Access
    began_s: float
    size_bytes: int


class FastPath:
    """The fast path. Belongs to the event loop. `taken` counts the requests that took it."""

    def __init__(
        self, handle: EngineHandle, auth: Auth, middleware: Middleware, route: web.AbstractRoute
    ) -> None:
        self._handle = handle
        self._auth = auth
        self.middleware = middleware
        self._route = route
        self._count_max = min(AT_ONCE_MAX, handle.settings.messages_per_request_max)
        self._bytes_max = min(DIRECT_BYTES, handle.settings.request_bytes_max)
        self._arrived: list[Taken] = []  # in this turn of the loop
        self.taken = 0

    def take(self, message: RawRequestMessage, body: bytes, sender: Sender) -> bool:
        """Send a request's messages; returns False, with nothing done, if the ordinary path must take it.

        That one says what is wrong with it, too.
        """
        access = self._access(message, body) if _is_plain_send(message) else None
        if access is None:
            return False
        began_s, is_one = perf_counter(), body[:1] == b"{"
        try:
            messages = [intake.single(body)] if is_one else intake.few(body, self._count_max)
            if not messages or is_keyed(messages):
                return False
            access.check([message.topic for message in messages])
            if access.take():
                return False
            self.middleware.budgets.requests.take(len(body))
        except (RequestError, TimerwheelError):
            return False
        access.charge(len(messages))
        taken = Taken(messages, sender, access, began_s, len(body))
        self.middleware.traffic.in_progress += 1
        self._auth.began(sender, access)
        if is_one:
            self._gather(taken)
            return True
        return self._begin_array(taken)

    def _begin_array(self, taken: Taken) -> bool:
        try:
            begun = self._handle.engine.sender.begin(taken.messages)
        except Exception:  # noqa: BLE001 - the ordinary way meets it again, and tells
            self._give_back(taken)
            return False
        self._answer_when_stored(begun, [taken], _in_one)
        return True

    def _gather(self, taken: Taken) -> None:
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._begin_arrived)
        self._arrived.append(taken)

    def _begin_arrived(self) -> None:
        """Send the messages that arrived singly, in batches of one write each."""
        arrived, self._arrived = self._arrived, []
        part: list[Taken] = []
        part_bytes = 0
        for taken in arrived:
            part_bytes += len(taken.messages[0].body)
            if part and (len(part) == AT_ONCE_MAX or part_bytes > self._handle.settings.batch_bytes_max):
                self._begin(part)
                part, part_bytes = [], len(taken.messages[0].body)
            part.append(taken)
        self._begin(part)

    def _begin(self, arrived: list[Taken]) -> None:
        """Send them together. Refused messages take the ordinary path; if more are refused then, all do."""
        for _ in range(2):
            try:
                begun = self._handle.engine.sender.begin(
                    [taken.messages[0] for taken in arrived], separate=True
                )
            except RefusedError as error:
                wrong = {fault.index for fault in error.faults}
            except Exception:  # noqa: BLE001 - as above
                break
            else:
                return self._answer_when_stored(begun, arrived, _one_by_one)
            self._decline([taken for place, taken in enumerate(arrived) if place in wrong])
            arrived = [taken for place, taken in enumerate(arrived) if place not in wrong]
            if not arrived:
                return None
        return self._decline(arrived)

    def _decline(self, arrived: list[Taken]) -> None:
        for taken in arrived:
            self._give_back(taken)
            taken.sender.decline()

    def _give_back(self, taken: Taken) -> None:
        """Refund the charges of a request that takes the ordinary path, which charges them again."""
        taken.access.charge(1 - len(taken.messages))
        self._ended(taken)

    def _answer_when_stored(self, begun: PendingSend, arrived: list[Taken], encode: Encode) -> None:
        self.taken += len(arrived)
        begun.stored.add_done_callback(lambda _: self._answer_all(begun, arrived, encode))

    def _answer_all(self, begun: PendingSend, arrived: list[Taken], encode: Encode) -> None:
        try:
            contents = encode(self._handle.engine.sender.receipts(begun))
            status, head = CREATED, _head(rfc822_formatted_time())
        except Exception as error:  # noqa: BLE001 - the border, as in `Middleware`
            refusal = of_error(error)
            assert isinstance(refusal.body, bytes)
            status, head, contents = refusal.status, _head_of(refusal), [refusal.body] * len(arrived)
        now_s = perf_counter()
        seconds = [now_s - taken.began_s for taken in arrived]
        self.middleware.traffic.count_all(self._route, hdrs.METH_POST, status, seconds)
        for taken, content in zip(arrived, contents, strict=True):
            self._answer(taken, head, content)

    def _access(self, message: RawRequestMessage, body: bytes) -> Access | None:
        """Return the sender's access, or None if the state, the body or the sender rules this path out."""
        handle = self._handle
        if not handle.ready or handle.traces is not None or logger.isEnabledFor(logging.DEBUG):
            return None
        if body[:1] not in FIRSTS or len(body) > self._bytes_max:
            return None
        return self._auth.of_sender(message.headers)

    def _answer(self, taken: Taken, head: bytes, content: bytes) -> None:
        self._ended(taken)
        rest = f"{REQUEST_ID_HEADER}: {self.middleware.new_id()}\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            taken.sender.answer(b"".join((head, rest.encode(), content)))
        except Exception:  # the others that were stored with it get their answers all the same
            logger.exception("writing a response failed")

    def _ended(self, taken: Taken) -> None:
        self._auth.ended(taken.sender)
        self.middleware.budgets.requests.give(taken.size_bytes)
        self.middleware.traffic.in_progress -= 1


def _one_by_one(receipts: list[Receipt]) -> list[bytes]:
    return [_encode(receipt) for receipt in receipts]


def _in_one(receipts: list[Receipt]) -> list[bytes]:
    return [_encode(receipts)]


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


@functools.lru_cache(maxsize=256)
def _are_plain(names: tuple[bytes, ...]) -> bool:
    """Whether all of these headers occur once and are ones that a plain send may have."""
    known = [name.decode("latin-1").lower() for name in names]
    return _PLAIN.issuperset(known) and len(set(known)) == len(known)


@functools.lru_cache(maxsize=1)
def _head(date: str) -> bytes:
    """Return the part of the response to a stored message that all responses share."""
    return _head_of(web.Response(status=CREATED, headers=PLAIN_HEADERS), date)


def _head_of(response: web.Response, date: str | None = None) -> bytes:
    """Return the status line and the headers, except those of the connection and the body."""
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines += [f"Date: {date or rfc822_formatted_time()}", f"Server: {SERVER}", ""]
    return "\r\n".join(lines).encode()
