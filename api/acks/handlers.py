"""The calls with which a receiver acknowledges later."""

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.model.durations import parse_delay_ms
from timerwheel.push.acks import Acks
from timerwheel.wire.acks import AckAnswer, AckPath, GiveBack, Prolong
from timerwheel.wire.fields import NoQuery


class AckCalls:
    """Handlers under `/v1/acks`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @property
    def _acks(self) -> Acks:
        return self._handle.push.acks

    async def acknowledge(self, request: web.Request) -> web.Response:
        """POST /v1/acks/{token}: the message is done."""
        await self._acks.acknowledge(self._token(request))
        return responses.json(AckAnswer("acknowledged"))

    async def give_back(self, request: web.Request) -> web.Response:
        """POST .../nack: the attempt failed."""
        token = self._token(request)
        wanted = await bodies.read(request, GiveBack, may_be_empty=True)
        reason = None if wanted.reason is UNSET else wanted.reason
        await self._acks.give_back(token, _delay_ms(wanted), reason)
        return responses.json(AckAnswer("given_back"))

    async def extend(self, request: web.Request) -> web.Response:
        """POST .../extend: the receiver needs longer."""
        token = self._token(request)
        wanted = await bodies.read(request, Prolong)
        return responses.json(AckAnswer("extended", await self._acks.extend(token, wanted.invisible_ms)))

    def _token(self, request: web.Request) -> str:
        """Return the token, checked before anything else of the request is read."""
        query.read(request, NoQuery)
        token = query.path(request, AckPath).token
        self._acks.check(token)
        return token


def _delay_ms(wanted: GiveBack) -> int | None:
    if wanted.delay is UNSET:
        return None if wanted.delay_ms is UNSET else wanted.delay_ms
    if wanted.delay_ms is not UNSET:
        raise RequestError("conflicting_delay", "give exactly one of delay_ms and delay")
    return parse_delay_ms(wanted.delay)
