"""The calls on the message that a deduplication key stands for: look at it, recall it, reschedule it."""

from aiohttp import web

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import bodies, query, responses
from timerwheel.api.http.problems import RequestError
from timerwheel.api.messages.handlers import new_time
from timerwheel.errors import UnknownMessageError
from timerwheel.wire.fields import NoQuery
from timerwheel.wire.messages import KeyPath, Message, NewTime


class KeyCalls:
    """Handlers under `/v1/topics/{topic}/keys`. Event loop only."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    async def get(self, request: web.Request) -> web.Response:
        """GET .../keys/{key}: the message."""
        return responses.json(
            Message.of(await self._handle.engine.messages.get(await self._id(_path(request))))
        )

    async def recall(self, request: web.Request) -> web.Response:
        """DELETE .../keys/{key}: the message will not be delivered."""
        return responses.json(
            Message.of(await self._handle.engine.recalls.recall(await self._id(_path(request))))
        )

    async def reschedule(self, request: web.Request) -> web.Response:
        """PATCH .../keys/{key}: another due time under the same id and key."""
        path = _path(request)
        properties = new_time(await bodies.read(request, NewTime))
        receipt = await self._handle.engine.recalls.reschedule(await self._id(path), properties)
        return responses.json(receipt)

    async def _id(self, path: KeyPath) -> str:
        try:
            return await self._handle.engine.keys.id_of(path.topic, path.key)
        except UnknownMessageError:
            detail = f"no message of topic {path.topic!r} has the key {path.key!r}, or not any more"
            raise RequestError("unknown_message", detail) from None


def _path(request: web.Request) -> KeyPath:
    query.read(request, NoQuery)
    return query.path(request, KeyPath)
