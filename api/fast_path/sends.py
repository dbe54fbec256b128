"""Plain sends: of one message or a few hundred.

    aiohttp's parser -> plain? -> auth -> begin -> group commit -> the answers' bytes

Messages that arrive one by one in one turn of the loop are checked, encoded and answered together.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter

import msgspec
from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage

from timerwheel.api.fast_path.plain import PlainRequests, Sender, Taken, head_of, head_of_response
from timerwheel.api.http.problems import RequestError, of_error
from timerwheel.api.http.route import Need
from timerwheel.api.messages import intake
from timerwheel.engine import Engine
from timerwheel.errors import RefusedError, TimerwheelError
from timerwheel.model.messages import Outgoing, Receipt
from timerwheel.runtime.sender import PendingSend, is_keyed
from timerwheel.runtime.steps import AT_ONCE_MAX

PATH = "/v1/messages"
CREATED = 201
FIRSTS = frozenset({b"{", b"["})

_encode = msgspec.json.Encoder().encode

Encode = Callable[[list[Receipt]], list[bytes]]  # JSON for each request


class TakenSend(Taken, frozen=True):
    """A send in progress."""

    messages: list[Outgoing]


class FastSends:
    """See the module. Belongs to the event loop."""

    def __init__(self, requests: PlainRequests, route: web.AbstractRoute) -> None:
        self._requests = requests
        self._handle = requests.handle
        self._route = route
        self._count_max = min(AT_ONCE_MAX, self._handle.settings.messages_per_request_max)
        self._arrived: list[TakenSend] = []  # in this turn of the loop

    def take(self, message: RawRequestMessage, body: bytes, sender: Sender) -> bool:
        """Send a request's messages; returns False, with nothing done, if the ordinary path must take it."""
        access = self._requests.access(message, body, Need.SEND) if body[:1] in FIRSTS else None
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
            self._requests.middleware.budgets.requests.take(len(body))
        except (RequestError, TimerwheelError):
            return False
        access.charge(len(messages))
        taken = TakenSend(sender, access, began_s, len(body), messages)
        self._requests.begin(taken)
        if is_one:
            self._gather(taken)
            return True
        return self._begin_array(taken)

    def _begin_array(self, taken: TakenSend) -> bool:
        try:
            engine = self._handle.engine
            begun = engine.sender.begin(taken.messages)
        except Exception:  # noqa: BLE001 - the ordinary path meets it again
            self._requests.refund(taken, len(taken.messages))
            return False
        self._answer_when_stored(engine, begun, [taken], _in_one)
        return True

    def _gather(self, taken: TakenSend) -> None:
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._begin_arrived)
        self._arrived.append(taken)

    def _begin_arrived(self) -> None:
        """Send the messages that arrived singly, in batches of one write each."""
        arrived, self._arrived = self._arrived, []
        part: list[TakenSend] = []
        part_bytes = 0
        for taken in arrived:
            part_bytes += len(taken.messages[0].body)
            if part and (len(part) == AT_ONCE_MAX or part_bytes > self._handle.settings.batch_bytes_max):
                self._begin(part)
                part, part_bytes = [], len(taken.messages[0].body)
            part.append(taken)
        self._begin(part)

    def _begin(self, arrived: list[TakenSend]) -> None:
        """Send them together. Refused messages take the ordinary path; if more are refused then, all do."""
        for _ in range(2):
            try:
                engine = self._handle.engine
                begun = engine.sender.begin([taken.messages[0] for taken in arrived], separate=True)
            except RefusedError as error:
                wrong = {fault.index for fault in error.faults}
            except Exception:  # noqa: BLE001 - as above
                break
            else:
                return self._answer_when_stored(engine, begun, arrived, _one_by_one)
            self._decline([taken for place, taken in enumerate(arrived) if place in wrong])
            arrived = [taken for place, taken in enumerate(arrived) if place not in wrong]
            if not arrived:
                return None
        return self._decline(arrived)

    def _decline(self, arrived: list[TakenSend]) -> None:
        for taken in arrived:
            self._requests.decline(taken)

    def _answer_when_stored(
        self, engine: Engine, begun: PendingSend, arrived: list[TakenSend], encode: Encode
    ) -> None:
        self._requests.taken += len(arrived)
        begun.stored.add_done_callback(lambda _: self._answer_all(engine, begun, arrived, encode))

    def _answer_all(
        self, engine: Engine, begun: PendingSend, arrived: list[TakenSend], encode: Encode
    ) -> None:
        """Answer by what became of the write, also if the engine has been closed to callers since."""
        try:
            contents = encode(engine.sender.receipts(begun))
            status, head = CREATED, head_of(CREATED)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
            refusal = of_error(error)
            assert isinstance(refusal.body, bytes)
            status, head, contents = refusal.status, head_of_response(refusal), [refusal.body] * len(arrived)
        now_s = perf_counter()
        seconds = [now_s - taken.began_s for taken in arrived]
        self._requests.middleware.traffic.count_all(self._route, hdrs.METH_POST, status, seconds)
        for taken, content in zip(arrived, contents, strict=True):
            self._requests.answer(taken, head, content)


def _one_by_one(receipts: list[Receipt]) -> list[bytes]:
    return [_encode(receipt) for receipt in receipts]


def _in_one(receipts: list[Receipt]) -> list[bytes]:
    return [_encode(receipts)]
