"""The call for the history of one message."""

from aiohttp import web

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import query, responses
from timerwheel.history.service import HistoryReader
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.messages import MessagePath


class HistoryCalls:
    """The handler of `/v1/messages/{id}/history`, and of `/story`, its older path. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self._histories = HistoryReader()

    async def history(self, request: web.Request) -> web.Response:
        """GET /v1/messages/{id}/history: what happened to it, and what each group did with it."""
        query.read(request, NoQuery)
        message_id = query.path(request, MessagePath).id
        return responses.json(await self._histories.read(self._handle.engine, message_id))
