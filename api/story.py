"""The call that tells the story of one message."""

from aiohttp import web

from timerwheel.api import answers, query
from timerwheel.api.gate import Gate
from timerwheel.api.wire import MessagePath, NoQuery
from timerwheel.history.service import Stories


class StoryCalls:
    """The handler of `/v1/messages/{id}/story`. Event loop only."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._stories = Stories()

    async def story(self, request: web.Request) -> web.Response:
        """GET /v1/messages/{id}/story: what happened to it, and what each group did with it."""
        query.read(request, NoQuery)
        message_id = query.path(request, MessagePath).id
        return answers.json(await self._stories.tell(self._gate.engine, message_id))
