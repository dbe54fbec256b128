"""The calls on topics and on what was delivered to their queues."""

from aiohttp import web

from api import answers, query
from api.gate import Gate
from api.wire import Delivered, NoQuery, QueuePath, ReadQuery, TopicPath, Topics
from timerwheel.message import QueuePage

# A waiting read looks up this often whether its client is still there and the service goes on.
LOOK_UP_MS = 500


class TopicCalls:
    """Handlers under `/v1/topics`. Event loop only."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def all(self, request: web.Request) -> web.Response:
        """GET /v1/topics: every topic with its queues and counts."""
        query.read(request, NoQuery)
        return answers.json(Topics(self._gate.engine.topics()))

    async def one(self, request: web.Request) -> web.Response:
        """GET /v1/topics/{topic}: one topic."""
        query.read(request, NoQuery)
        return answers.json(self._gate.engine.topic(query.path(request, TopicPath).topic))

    async def delivered(self, request: web.Request) -> web.Response:
        """GET /v1/topics/{topic}/queues/{queue}/messages: delivered messages, waiting if there are none."""
        place = query.path(request, QueuePath)
        wanted = query.read(request, ReadQuery)
        return answers.json(Delivered.of(await self._read(request, place, wanted)))

    async def _read(self, request: web.Request, place: QueuePath, wanted: ReadQuery) -> QueuePage:
        """Wait in short steps: the engine's wait is never cancelled, and nobody is waited for in vain."""
        engine = self._gate.engine
        end_ms = engine.clock.monotonic_ms() + wanted.wait_ms
        offset, wait_ms = wanted.offset, min(wanted.wait_ms, LOOK_UP_MS)
        while True:
            page = await engine.read_queue(place.topic, place.queue, offset, wanted.max, wait_ms)
            left_ms = end_ms - engine.clock.monotonic_ms()
            gone = request.transport is None or self._gate.stopping
            if page.messages or left_ms <= 0 or gone:
                return page
            offset = page.next_offset  # -1 meant the end at the first look, not at each
            wait_ms = min(left_ms, LOOK_UP_MS)
