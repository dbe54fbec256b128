"""The calls with which a receiver acknowledges later."""

from functools import partial

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.http.route import DELAY, STORE, Need, call
from timerwheel.model.durations import parse_delay_ms
from timerwheel.push.acks import Acks
from timerwheel.wire.acks import AckAnswer, AckPath, GiveBack, Prolong

ACK = "/v1/acks/{token}"
SETTLING = ("unknown_ack", "ack_ended", "topic_ending", *STORE)

_settles = partial(call, "POST", needs=Need.OPEN, path_type=AckPath, answer=AckAnswer, problems=SETTLING)


class AckCalls:
    """Handlers under `/v1/acks`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @property
    def _acks(self) -> Acks:
        return self._handle.push.acks

    @_settles(ACK, "acknowledgeLater")
    async def acknowledge(self, request: web.Request) -> web.Response:
        """Acknowledge a pushed message or a task, with the token that its receiver was given."""
        await self._acks.acknowledge(self._token(request))
        return responses.json(AckAnswer("acknowledged"))

    @_settles(
        f"{ACK}/nack",
        "giveBackLater",
        body=GiveBack,
        body_required=False,
        problems=(*SETTLING, *DELAY, "conflicting_delay"),
    )
    async def give_back(self, request: web.Request) -> web.Response:
        """Give back a pushed message or a task: the attempt failed."""
        token = self._token(request)
        wanted = await bodies.read(request, GiveBack, may_be_empty=True)
        reason = None if wanted.reason is UNSET else wanted.reason
        await self._acks.give_back(token, _delay_ms(wanted), reason)
        return responses.json(AckAnswer("given_back"))

    @_settles(f"{ACK}/extend", "extendLater", body=Prolong)
    async def extend(self, request: web.Request) -> web.Response:
        """Have longer to acknowledge a pushed message or a task."""
        token = self._token(request)
        wanted = await bodies.read(request, Prolong)
        return responses.json(AckAnswer("extended", await self._acks.extend(token, wanted.invisible_ms)))

    def _token(self, request: web.Request) -> str:
        """Return the token, checked before anything else of the request is read."""
        token = query.path(request, AckPath).token
        self._acks.check(token)
        return token


def _delay_ms(wanted: GiveBack) -> int | None:
    if wanted.delay is UNSET:
        return None if wanted.delay_ms is UNSET else wanted.delay_ms
    if wanted.delay_ms is not UNSET:
        raise RequestError("conflicting_delay", "give exactly one of delay_ms and delay")
    return parse_delay_ms(wanted.delay)
