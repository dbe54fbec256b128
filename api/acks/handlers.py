"""The calls with which a receiver acknowledges later."""

from functools import partial

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import DELAY, JSON, JSON_BODY, STORE, Need, call
from timerwheel.model.durations import parse_delay_ms
from timerwheel.push.acks import Acks
from timerwheel.wire.acks import AckAnswer, AckPath, GiveBack, Prolong
from timerwheel.wire.fields import given

ACK = "/v1/acks/{token}"
SETTLING = ("unknown_ack", "ack_ended", "topic_ending", *STORE)

BODY_BYTES_MAX = 1 << 16
NOTHING = (b"", b"{}", b"null")

_settles = partial(call, "POST", needs=Need.OPEN, answer=AckAnswer, known=SETTLING)


class AckCalls:
    """Handlers under `/v1/acks`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @property
    def _acks(self) -> Acks:
        return self._handle.push.acks

    @_settles(ACK, "acknowledgeLater", problems=("invalid_field", "body_too_large"))
    async def acknowledge(self, request: web.Request, path: AckPath) -> web.Response:
        """Acknowledge a pushed message or a task, with the token that its receiver was given."""
        self._acks.check(path.token)  # before anything else of the request is read
        if (await bodies.whole(request, bytes_max=BODY_BYTES_MAX)).strip() not in NOTHING:
            raise RequestError(
                "invalid_field", "an acknowledgement has no body; those of /nack and /extend do"
            )
        await self._acks.acknowledge(path.token)
        return responses.json(AckAnswer("acknowledged"))

    @_settles(
        f"{ACK}/nack",
        "giveBackLater",
        bodies={JSON: GiveBack},
        body_required=False,
        problems=(*JSON_BODY, *DELAY, "conflicting_delay"),
    )
    async def give_back(self, request: web.Request, path: AckPath) -> web.Response:
        """Give back a pushed message or a task: the attempt failed."""
        self._acks.check(path.token)  # before anything else of the request is read
        wanted = await bodies.read(request, GiveBack, may_be_empty=True)
        await self._acks.give_back(path.token, _delay_ms(wanted), given(wanted.reason))
        return responses.json(AckAnswer("given_back"))

    @_settles(f"{ACK}/extend", "extendLater", bodies={JSON: Prolong}, problems=JSON_BODY)
    async def extend(self, request: web.Request, path: AckPath) -> web.Response:
        """Have longer to acknowledge a pushed message or a task."""
        self._acks.check(path.token)  # before anything else of the request is read
        wanted = await bodies.read(request, Prolong)
        return responses.json(AckAnswer("extended", await self._acks.extend(path.token, wanted.invisible_ms)))


def _delay_ms(wanted: GiveBack) -> int | None:
    if wanted.delay is UNSET:
        return given(wanted.delay_ms)
    if wanted.delay_ms is not UNSET:
        raise RequestError("conflicting_delay", "give exactly one of delay_ms and delay")
    return parse_delay_ms(wanted.delay)
