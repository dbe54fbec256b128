"""The fast path of the call that is made most: a send of one message or a few hundred, asking nothing else.

    aiohttp's parser -> plain? -> guard -> begin -> group commit -> the answers' bytes

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
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Final, NamedTuple, Protocol

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
from timerwheel.errors import RefusedError, TimerwheelError
from timerwheel.message import Outgoing, Receipt
from timerwheel.sending import AT_ONCE_MAX, Begun, is_keyed

PATH = "/v1/messages"
CREATED = 201
BODY_BYTES_MAX = 512 * 1024
FIRSTS = frozenset({b"{", b"["})
AIOHTTP: Final = "3.14."
"""The version whose connections are known to this path (`api.connection`); with another it is not taken."""

# Headers that change nothing about a send, or that are looked at here.
_PLAIN = frozenset(
    {"host", "user-agent", "accept", "accept-encoding", "accept-language", "connection"}
    | {"content-type", "content-length", "authorization"}
)

_encode = msgspec.json.Encoder().encode

logger = logging.getLogger("api.requests")


class Sender(Running, Protocol):
    """A connection whose request was taken; one of these follows."""

    def answer(self, data: bytes) -> None:
        """Write the answer."""

    def decline(self) -> None:
        """Let the request go the ordinary way after all."""


class Taken(NamedTuple):
    """A request on its way."""

    message: Outgoing
    sender: Sender
    access: Access
    began_s: float


class FastPath:
    """Belongs to the event loop. `taken` counts the requests that took it."""

    def __init__(self, gate: Gate, guard: Guard, requests: Requests, route: web.AbstractRoute) -> None:
        self._gate = gate
        self._guard = guard
        self._requests = requests
        self._route = route
        self._count_max = min(AT_ONCE_MAX, gate.settings.messages_per_request_max)
        self._arrived: list[Taken] = []  # in this turn of the loop
        self.taken = 0

    @staticmethod
    def is_for(version: str) -> bool:
        """Whether connections of this aiohttp are as this path knows them."""
        return version.startswith(AIOHTTP)

    def take(self, message: RawRequestMessage, body: bytes, sender: Sender) -> bool:
        """Send what a request holds; False, and nothing was done, if it is to go the ordinary way.

        That one says what is wrong with it, too.
        """
        access = self._access(message, body) if _is_plain_send(message) else None
        if access is None:
            return False
        try:
            if body[:1] == b"{":
                return self._take_one(Taken(intake.single(body), sender, access, perf_counter()))
            return self._take_array(intake.few(body, self._count_max), sender, access)
        except (RequestError, TimerwheelError, StoreError):
            return False

    def _take_one(self, taken: Taken) -> bool:
        if taken.message.dedup_key is not None or not taken.access.may(taken.message.topic):
            return False
        if taken.access.take():
            return False
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._begin)
        self._arrived.append(taken)
        self._began(taken.sender, taken.access)
        return True

    def _take_array(self, messages: list[Outgoing] | None, sender: Sender, access: Access) -> bool:
        began_s = perf_counter()
        if not messages or is_keyed(messages):
            return False
        access.check({message.topic for message in messages})
        if access.take():
            return False
        try:
            begun = self._gate.engine.begin(messages)
        except BaseException:
            access.charge(0)  # it counts where it is refused
            raise
        access.charge(len(messages))
        self.taken += 1
        self._began(sender, access)

        def answer(_: asyncio.Future[int]) -> None:
            status, head, [content] = self._outcome(begun, 1, lambda receipts: [_encode(receipts)])
            self._requests.traffic.count(self._route, hdrs.METH_POST, status, perf_counter() - began_s)
            self._answer(sender, head, content)

        begun.stored.add_done_callback(answer)
        return True

    def _begin(self) -> None:
        """Send the messages that came one by one; those that are refused go the ordinary way."""
        arrived, self._arrived = self._arrived, []
        for at in range(0, len(arrived), AT_ONCE_MAX):
            self._begin_some(arrived[at : at + AT_ONCE_MAX])

    def _begin_some(self, arrived: list[Taken]) -> None:
        while arrived:
            try:
                begun = self._gate.engine.begin([taken.message for taken in arrived], apart=True)
            except RefusedError as error:
                wrong = {fault.index for fault in error.faults}
                self._decline([taken for place, taken in enumerate(arrived) if place in wrong])
                arrived = [taken for place, taken in enumerate(arrived) if place not in wrong]
            except Exception:  # noqa: BLE001 - the ordinary way meets it again, and tells
                return self._decline(arrived)
            else:
                self.taken += len(arrived)
                begun.stored.add_done_callback(functools.partial(self._answer_all, arrived, begun))
                return None
        return None

    def _decline(self, arrived: list[Taken]) -> None:
        for taken in arrived:
            taken.access.charge(0)  # it counts where it is refused
            self._ended(taken.sender)
            taken.sender.decline()

    def _answer_all(self, arrived: list[Taken], begun: Begun, _: asyncio.Future[int]) -> None:
        status, head, contents = self._outcome(begun, len(arrived), lambda receipts: map(_encode, receipts))
        now_s = perf_counter()
        seconds = [now_s - taken.began_s for taken in arrived]
        self._requests.traffic.count_all(self._route, hdrs.METH_POST, status, seconds)
        for taken, content in zip(arrived, contents, strict=True):
            self._answer(taken.sender, head, content)

    def _access(self, message: RawRequestMessage, body: bytes) -> Access | None:
        """What the sender may do; None if this is not the moment, the body or the sender for this path."""
        gate = self._gate
        if not gate.ready or gate.traces is not None or logger.isEnabledFor(logging.DEBUG):
            return None
        if body[:1] not in FIRSTS or len(body) > min(gate.settings.request_bytes_max, BODY_BYTES_MAX):
            return None
        return self._guard.of_sender(message.headers)

    def _outcome(
        self, begun: Begun, requests: int, told: Callable[[list[Receipt]], Iterable[bytes]]
    ) -> tuple[int, bytes, Iterable[bytes]]:
        """Status, head, and JSON for each request: what is `told` of the receipts, or why there are none."""
        try:
            receipts = self._gate.engine.outcome(begun)
        except Exception as error:  # noqa: BLE001 - the border, as in `Requests`
            refusal = of_error(error)
            assert isinstance(refusal.body, bytes)
            return refusal.status, _head_of(refusal), [refusal.body] * requests
        return CREATED, _head(rfc822_formatted_time()), told(receipts)

    def _answer(self, sender: Sender, head: bytes, content: bytes) -> None:
        self._ended(sender)
        rest = f"{REQUEST_ID_HEADER}: {self._requests.new_id()}\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            sender.answer(b"".join((head, rest.encode(), content)))
        except Exception:  # the others that were stored with it get their answers all the same
            logger.exception("an answer could not be written")

    def _began(self, sender: Sender, access: Access) -> None:
        self._requests.traffic.in_progress += 1
        self._guard.began(sender, access)

    def _ended(self, sender: Sender) -> None:
        self._guard.ended(sender)
        self._requests.traffic.in_progress -= 1


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
    """Whether these headers, each once, are all such as a plain send may have."""
    known = [name.decode("latin-1").lower() for name in names]
    return _PLAIN.issuperset(known) and len(set(known)) == len(known)


@functools.lru_cache(maxsize=1)
def _head(date: str) -> bytes:
    """The beginning of the answer to a message that was stored, without what each has for itself."""
    return _head_of(web.Response(status=CREATED, headers=PLAIN_HEADERS), date)


def _head_of(response: web.Response, date: str | None = None) -> bytes:
    """Status line and headers, but for those that are the connection's and the body's."""
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines += [f"Date: {date or rfc822_formatted_time()}", f"Server: {SERVER_SOFTWARE}", ""]
    return "\r\n".join(lines).encode()
