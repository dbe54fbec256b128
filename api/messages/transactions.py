"""The calls on transactions: begin, list, commit, roll back."""

import operator
from functools import partial

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.messages import intake
from timerwheel.api.messages.intake import Bounds
from timerwheel.api.messages.trace_headers import put_context
from timerwheel.api.security import access
from timerwheel.model.admission import check_topic_name
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.messages import Message, MessagePath
from timerwheel.wire.transactions import OpenQuery, OpenTransactions


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
        """GET /v1/transactions: a page of the open transactions of a topic, or of the caller's topics."""
        wanted = query.read(request, OpenQuery)
        caller, topics = access.of(request), access.of(request).may
        if wanted.topic is not UNSET:
            check_topic_name(wanted.topic)
            caller.check([wanted.topic])
            topics = partial(operator.eq, wanted.topic)
        cursor = None if wanted.cursor is UNSET else wanted.cursor
        page = self._handle.engine.transactions.page(topics, wanted.limit, cursor)
        return responses.json(OpenTransactions(page.transactions, page.cursor))

    async def commit(self, request: web.Request) -> web.Response:
        """POST .../commit: the message is delivered after its delay."""
        return responses.json(await self._handle.engine.transactions.commit(_id(request)))

    async def rollback(self, request: web.Request) -> web.Response:
        """POST .../rollback: the message is never delivered."""
        return responses.json(Message.of(await self._handle.engine.transactions.rollback(_id(request))))


def _id(request: web.Request) -> str:
    query.read(request, NoQuery)
    return query.path(request, MessagePath).id
