"""The calls on transactions: begin, list, commit, roll back."""

import operator
from functools import partial

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, responses
from timerwheel.api.http.route import ADMISSION, CONFLICTS, JSON, JSON_BODY, SETTLED, STORE, Need, call
from timerwheel.api.messages import intake
from timerwheel.api.messages.intake import Bounds
from timerwheel.api.messages.trace_headers import put_context
from timerwheel.api.security import access
from timerwheel.model.admission import check_topic_name
from timerwheel.model.messages import OpenTransaction
from timerwheel.wire.fields import given
from timerwheel.wire.messages import Accepted, Message, MessagePath, NewMessage
from timerwheel.wire.transactions import OpenQuery, OpenTransactions

_ends = partial(call, "POST", needs=Need.SEND)


class TransactionCalls:
    """Handlers under `/v1/transactions`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self._bounds = Bounds.of(handle.settings)

    @call(
        "POST",
        "/v1/transactions",
        "beginTransaction",
        needs=Need.SEND,
        status=201,
        answer=OpenTransaction,
        takes_context=True,
        bodies={JSON: NewMessage},
        problems=(*JSON_BODY, *ADMISSION, *CONFLICTS, "illegal_key", *STORE),
    )
    async def begin(self, request: web.Request) -> web.Response:
        """Store a message that is delivered once it is committed."""
        bodies.form_of_messages(request)
        engine = self._handle.engine
        body = await bodies.whole(request)
        message = await intake.single_in_steps(body, self._bounds, engine.clock.breathe)
        access.of(request).check([message.topic])
        put_context(request, [message.properties])
        return responses.json(await engine.transactions.begin(message), 201)

    @call(
        "GET",
        "/v1/transactions",
        "listTransactions",
        needs=Need.EITHER,
        answer=OpenTransactions,
        problems=("illegal_cursor", "illegal_topic"),
    )
    async def all(self, request: web.Request, params: OpenQuery) -> web.Response:
        """List the open transactions, oldest first, in pages.

        Those of a topic, or of the caller's topics.
        """
        caller, topics = access.of(request), access.of(request).may
        if params.topic is not UNSET:
            check_topic_name(params.topic)
            caller.check([params.topic])
            topics = partial(operator.eq, params.topic)
        page = self._handle.engine.transactions.page(topics, params.limit, given(params.cursor))
        return responses.json(OpenTransactions(page.transactions, page.cursor))

    @_ends(
        "/v1/transactions/{id}/commit",
        "commitTransaction",
        answer=Accepted,
        problems=(*SETTLED, "no_open_transaction", "topic_ending", *STORE),
    )
    async def commit(self, _: web.Request, path: MessagePath) -> web.Response:
        """Commit a transaction: its message is delivered after its delay."""
        return responses.json(await self._handle.engine.transactions.commit(path.id))

    @_ends(
        "/v1/transactions/{id}/rollback",
        "rollBackTransaction",
        answer=Message,
        problems=(*SETTLED, "no_open_transaction", *STORE),
    )
    async def rollback(self, _: web.Request, path: MessagePath) -> web.Response:
        """Roll a transaction back: its message is never delivered."""
        return responses.json(Message.of(await self._handle.engine.transactions.rollback(path.id)))
