"""The calls on transactions: begin, list, commit, roll back."""

from aiohttp import web

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.messages import intake
from timerwheel.api.messages.intake import Bounds
from timerwheel.api.messages.trace_headers import put_context
from timerwheel.api.security import access
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.messages import Message, MessagePath
from timerwheel.wire.transactions import OpenTransactions


class TransactionCalls:
    """Handlers under `/v1/transactions`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self._bounds = Bounds.of(handle.settings)

    async def begin(self, request: web.Request) -> web.Response:
        """POST /v1/transactions: stores a half message."""
        query.read(request, NoQuery)
        bodies.form_of_messages(request)
        engine = self._handle.engine
        body = await bodies.whole(request)
        message = await intake.single_in_steps(body, self._bounds, engine.clock.breathe)
        access.of(request).check([message.topic])
        put_context(request, [message.properties])
        return responses.json(await engine.transactions.begin(message), 201)

    async def all(self, request: web.Request) -> web.Response:
        """GET /v1/transactions: the open transactions of the caller's topics."""
        query.read(request, NoQuery)
        may = access.of(request).may
        found = [one for one in self._handle.engine.transactions.open() if may(one.topic)]
        return responses.json(OpenTransactions(found))

    async def commit(self, request: web.Request) -> web.Response:
        """POST .../commit: the message is delivered after its delay."""
        return responses.json(await self._handle.engine.transactions.commit(_id(request)))

    async def rollback(self, request: web.Request) -> web.Response:
        """POST .../rollback: the message is never delivered."""
        return responses.json(Message.of(await self._handle.engine.transactions.rollback(_id(request))))


def _id(request: web.Request) -> str:
    query.read(request, NoQuery)
    return query.path(request, MessagePath).id
