"""Plain receives and acknowledgements of consumer groups.

    aiohttp's parser -> plain? -> auth -> leases in memory, group commit of the receipts -> the answer's bytes

A receive is served here if it finds something, or does not want to wait. To one that finds nothing the
ordinary path listens; its receipts are acknowledged by then, and acknowledging twice is not an error.
"""

import asyncio
import re
from functools import lru_cache
from time import perf_counter
from typing import NamedTuple

import msgspec
from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from msgspec import UNSET

from timerwheel.api.fast_path.plain import PlainRequests, Sender, Taken, head_of, head_of_response
from timerwheel.api.groups.consumer import give_back
from timerwheel.api.groups.window import Windows
from timerwheel.api.http.budget import FREE_BYTES, OverloadedError
from timerwheel.api.http.compression import GZIP_BYTES_MIN, accepts_gzip
from timerwheel.api.http.problems import RequestError, of_error
from timerwheel.api.http.responses import STEP_MESSAGES
from timerwheel.api.http.route import Need
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import check_group
from timerwheel.model.admission import check_topic_name
from timerwheel.model.messages import Delivery
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.runtime.outcome import one_call
from timerwheel.wire.groups import Ack, GroupPath, Held, Receive, Received, Settled, SettledAll, terms_of

OK = 200
FEW_MESSAGES = 16
"""A receive of more takes the ordinary path if its client accepts gzip, which large answers may get there."""
CONTENT_BYTES_MAX = 4 * FREE_BYTES
"""A larger answer takes the ordinary path, and so do bodies of more than FREE_BYTES, which it charges."""
LARGE_RECEIVES = 100
"""How many receives of a group take the ordinary path after one whose answer was too large here."""
LARGE_GROUPS_MAX = 1_000
"""How many groups are known to have large answers; when there are more, all are tried here again."""

_match_path = re.compile(r"/v1/topics/([^/?%]+)/groups/([^/?%]+)/(receive|ack)").fullmatch
_decode_receive = msgspec.json.Decoder(Receive).decode
_decode_ack = msgspec.json.Decoder(Ack).decode
_encode = msgspec.json.Encoder().encode


class _Call(NamedTuple):
    """What a path names."""

    place: GroupPath
    is_receive: bool


class _Found(NamedTuple):
    """What is answered to a receive."""

    messages: list[Delivery]
    results: list[Settled] | msgspec.UnsetType


class FastConsumes:
    """See the module. Belongs to the event loop.

    The ordinary path encodes large answers in steps, charges and compresses them. If one turns out to be
    large here, its messages are put back; `_large` counts down the receives of its group that avoid this.
    """

    def __init__(
        self, requests: PlainRequests, windows: Windows, receive: web.AbstractRoute, ack: web.AbstractRoute
    ) -> None:
        self._requests = requests
        self._windows = windows
        self._receive = receive
        self._ack = ack
        self._tasks: set[asyncio.Task[None]] = set()
        self._large: dict[GroupPath, int] = {}

    def take(self, message: RawRequestMessage, body: bytes, sender: Sender) -> bool:
        """Serve a request; returns False, with nothing done, if the ordinary path must take it."""
        call = _call_of(message.path)
        access = self._requests.access(message, body, Need.RECEIVE) if call is not None else None
        if call is None or access is None:
            return False
        began_s = perf_counter()
        try:
            wanted: Receive | Ack = _decode_receive(body or b"{}") if call.is_receive else _decode_ack(body)
            zips = accepts_gzip(message.headers.get(hdrs.ACCEPT_ENCODING, ""))
            if isinstance(wanted, Receive) and not self._suits(call.place, wanted.max, zips=zips):
                return False
            access.check([call.place.topic])
            self._requests.handle.check_topic(call.place.topic)
            if access.take():
                return False
            self._requests.middleware.budgets.requests.take(len(body))
        except (ValueError, RecursionError, RequestError, TimerwheelError):
            return False
        taken = Taken(sender, access, began_s, len(body))
        self._requests.begin(taken)
        bytes_max = GZIP_BYTES_MIN - 1 if zips else CONTENT_BYTES_MAX
        task = asyncio.create_task(self._serve(taken, call.place, wanted, bytes_max))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def _suits(self, place: GroupPath, count_max: int, *, zips: bool) -> bool:
        """Whether the answer to a receive is likely to be small enough."""
        if count_max > (FEW_MESSAGES if zips else STEP_MESSAGES):
            return False
        left = self._large.pop(place, 0)
        if left > 1:
            self._large[place] = left - 1
        return not left

    async def _serve(self, taken: Taken, place: GroupPath, wanted: Receive | Ack, bytes_max: int) -> None:
        status, head, content = OK, head_of(OK), b""
        try:
            with one_call():
                if isinstance(wanted, Ack):
                    results = await self._settle(place, wanted.receipts)
                    content = _encode(SettledAll(results))
                else:
                    found = await self._exchange(taken, place, wanted)
                    content = b"" if found is None else await self._content(taken, place, found, bytes_max)
                    if not content:
                        return self._requests.decline(taken)
                    head = head_of(OK, varies=len(content) >= GZIP_BYTES_MIN)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
            refusal = of_error(error)
            assert isinstance(refusal.body, bytes)
            status, head, content = refusal.status, head_of_response(refusal), refusal.body
        self._requests.taken += 1
        route = self._receive if isinstance(wanted, Receive) else self._ack
        traffic = self._requests.middleware.traffic
        traffic.count(route, hdrs.METH_POST, status, perf_counter() - taken.began_s)
        return self._requests.answer(taken, head, content)

    async def _settle(self, place: GroupPath, receipts: list[str]) -> list[Settled]:
        results = await self._requests.handle.engine.groups.ack(place.topic, place.group, receipts)
        self._windows.settled(place, results)
        return SettledAll.of(results).results

    async def _exchange(self, taken: Taken, place: GroupPath, wanted: Receive) -> _Found | None:
        """Acknowledge, and receive at the same time; None if the ordinary path must go on with it."""
        if not wanted.ack:
            found = await self._find(taken, place, wanted)
            return None if found is None or (not found and wanted.wait_ms) else _Found(found, UNSET)
        try:
            ending = self._requests.handle.engine.groups.begin_ack(place.topic, place.group, wanted.ack)
        except TimerwheelError:
            return None
        if ending is None:
            return None
        found = None
        try:
            found = await self._find(taken, place, wanted)
        finally:
            try:
                results = await ending.results()
            except BaseException:
                self._put_back(place, found or [])
                raise
        self._windows.settled(place, results)
        if not found and wanted.wait_ms:
            return None
        # The acknowledged messages may have held others back: those with their key, or of a full group.
        found = found or await self._find(taken, place, wanted)
        return None if found is None else _Found(found, SettledAll.of(results).results)

    async def _find(self, taken: Taken, place: GroupPath, wanted: Receive) -> list[Delivery] | None:
        """What there is now; None if the receive is refused, which the ordinary path says."""
        try:
            with self._requests.middleware.budgets.answers.taking() as bytes_max:
                return await self._requests.handle.engine.groups.receive(
                    place.topic,
                    place.group,
                    terms_of(wanted),
                    count_max=wanted.max,
                    bytes_max=min(bytes_max, PAGE_BYTES_MAX),
                    invisible_ms=None if wanted.invisible_ms is UNSET else wanted.invisible_ms,
                    wanted=lambda: not _is_gone(taken.sender),
                )
        except (TimerwheelError, OverloadedError):
            return None

    async def _content(self, taken: Taken, place: GroupPath, found: _Found, bytes_max: int) -> bytes:
        """The answer; empty if it is so large that the ordinary path has more to decide."""
        content = b""
        if sum(len(one.message.body) for one in found.messages) <= min(bytes_max, FREE_BYTES):
            content = _encode(Received([Held.from_delivery(one) for one in found.messages], found.results))
        if not 0 < len(content) <= bytes_max:
            self._put_back(place, found.messages)
            if len(self._large) >= LARGE_GROUPS_MAX:
                self._large.clear()
            self._large[place] = LARGE_RECEIVES
            return b""
        if found.messages and _is_gone(taken.sender):
            await give_back(self._requests.handle, place, found.messages)
        return content

    def _put_back(self, place: GroupPath, found: list[Delivery]) -> None:
        self._requests.handle.engine.groups.put_back(place.topic, place.group, [one.receipt for one in found])


def _is_gone(sender: Sender) -> bool:
    return sender.transport is None or sender.transport.is_closing()


@lru_cache(maxsize=1_024)
def _call_of(path: str) -> _Call | None:
    """The call that a path names without any escape or query; None if it names another, or is malformed."""
    match = _match_path(path)
    if match is None:
        return None
    try:
        check_topic_name(match[1])
        check_group(match[2])
    except TimerwheelError:
        return None  # the ordinary path says which name is malformed
    return _Call(GroupPath(match[1], match[2]), match[3] == "receive")
