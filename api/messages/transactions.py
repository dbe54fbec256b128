"""The calls on transactions: begin, list, commit, roll back."""

import operator
from functools import partial

from aiohttp import web
from msgspec import UNSET

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.http.route import ADMISSION, CONFLICTS, SETTLED, STORE, Need, call
from timerwheel.api.messages import intake
from timerwheel.api.messages.intake import Bounds
from timerwheel.api.messages.trace_headers import put_context
from timerwheel.api.security import access
from timerwheel.model.admission import check_topic_name
from timerwheel.model.messages import OpenTransaction
from timerwheel.wire.messages import Accepted, Message, MessagePath, NewMessage
from timerwheel.wire.transactions import OpenQuery, OpenTransactions

_ends = partial(call, "POST", needs=Need.SEND, path_type=MessagePath)


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
        body=NewMessage,
        problems=(*ADMISSION, *CONFLICTS, "illegal_key", *STORE),
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
        query_type=OpenQuery,
        problems=("illegal_cursor", "illegal_topic"),
    )
    async def all(self, request: web.Request) -> web.Response:
        """List the open transactions, oldest first, in pages.

        Those of a topic, or of the caller's topics.
        """
        wanted = query.read(request, OpenQuery)
        caller, topics = access.of(request), access.of(request).may
        if wanted.topic is not UNSET:
            check_topic_name(wanted.topic)
            caller.check([wanted.topic])
            topics = partial(operator.eq, wanted.topic)
        cursor = None if wanted.cursor is UNSET else wanted.cursor
        page = self._handle.engine.transactions.page(topics, wanted.limit, cursor)
        return responses.json(OpenTransactions(page.transactions, page.cursor))

    @_ends(
        "/v1/transactions/{id}/commit",
        "commitTransaction",
        answer=Accepted,
        problems=(*SETTLED, "no_open_transaction", "topic_ending", *STORE),
    )
    async def commit(self, request: web.Request) -> web.Response:
        """Commit a transaction: its message is delivered after its delay."""
        return responses.json(await self._handle.engine.transactions.commit(_id(request)))

    @_ends(
        "/v1/transactions/{id}/rollback",
        "rollBackTransaction",
        answer=Message,
        problems=(*SETTLED, "no_open_transaction", *STORE),
    )
    async def rollback(self, request: web.Request) -> web.Response:
        """Roll a transaction back: its message is never delivered."""
        return responses.json(Message.of(await self._handle.engine.transactions.rollback(_id(request))))


def _id(request: web.Request) -> str:
    return query.path(request, MessagePath).id
