"""Offsets: the bounds of a queue, the offset of a time, and how far a group has come.

A group that has committed nothing begins at the first message of the queue as long as that is kept. RocketMQ
does so too: a consumer that wants to begin at the end still reads a young topic from its beginning.

The retry topic of a group has messages of all topics that consumers of this name read, and one offset. So a
client without access to all of them commits no further than to the first message that it may not see.
"""

import contextlib
from typing import Final

from timerwheel.engine import Engine
from timerwheel.errors import TopicEndingError
from timerwheel.groups.config import OFFSETS, GroupConfig, UnknownGroupError
from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.request import INT64_MAX, Answer, RefusalError, Request
from timerwheel.rocketmq.topics import Topics
from timerwheel.store.record import decode

SEEN_MAX: Final = 2_048
"""Most retries of which one commit finds out whether they are the client's own."""
SEEN_BYTES_MAX: Final = 1 << 20
"""Most bytes of these retries."""
SEEN_PER_BREATH: Final = 200


class Offsets:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, topics: Topics) -> None:
        self._engine = engine
        self._topics = topics

    def committed(self, request: Request) -> Answer:
        """The offset that a group has committed."""
        topic, queue = self._queue_of(request)
        group = request.group()
        offset = self.of(topic, group, queue)
        if offset is not None:
            return _offset(offset)
        low = self._engine.queues.queue_bounds(topic, queue)[0]
        first = self._engine.queues.first_of(topic, queue)
        if low == first and request.text("setZeroIfNotFound", "true") != "false":
            return _offset(first)
        raise RefusalError(Result.QUERY_NOT_FOUND, f"group {group!r} has committed no offset of this queue")

    async def commit(self, request: Request) -> Answer:
        """A group has consumed a queue up to an offset."""
        topic, queue = self._queue_of(request)
        await self.advance_for(request, topic, request.group(), queue, request.number("commitOffset"))
        return Answer()

    async def advance_for(self, request: Request, topic: str, group: str, queue: int, offset: int) -> None:
        """Commit an offset of a group for a client, or as much as the client may; what `advance` raises.

        Of a retry topic it looks at SEEN_MAX messages, so a client that is far ahead gets there step by step.
        """
        if not self._topics.sees_all(request, topic):
            offset = await self._seen_until(request, topic, group, queue, offset)
            if offset <= (self.of(topic, group, queue) or 0):
                return
        await self.advance(topic, group, queue, offset)

    async def _seen_until(self, request: Request, topic: str, group: str, queue: int, offset: int) -> int:
        """Return how far a client may commit of a retry topic: the messages up to there are all its own."""
        begin = self.of(topic, group, queue) or 0
        page = await self._engine.queues.records(topic, queue, begin, SEEN_MAX, SEEN_BYTES_MAX)
        for place, data in enumerate(page.records, page.first):
            if (place - page.first) % SEEN_PER_BREATH == SEEN_PER_BREATH - 1:
                await self._engine.clock.breathe()
            if isinstance(data, bytes) and not self._topics.may_see(request, decode(data)):
                return min(place, offset)
        return min(page.first + len(page.records), offset)

    def of(self, topic: str, group: str, queue: int) -> int | None:
        """Return the offset that a group has committed, None if it has not; GroupDiffersError."""
        try:
            return self._engine.groups.offsets.committed(topic, group, queue)
        except UnknownGroupError:
            return None

    def advance_known(self, topic: str, group: str, queue: int, offset: int) -> bool:
        """Commit an offset of a group; returns False if there is none. GroupDiffersError, GroupFieldError.

        Of a topic that is not there there is nothing to commit: its consumers may have come before it, or it
        is deleted while they are connected.
        """
        if not self._topics.is_open(topic):
            return True
        try:
            self._engine.groups.offsets.commit(topic, group, {queue: offset})
        except UnknownGroupError:
            return False
        return True

    async def advance(self, topic: str, group: str, queue: int, offset: int) -> None:
        """Commit an offset of a group, which is made if it is new; GroupDiffersError, GroupFieldError."""
        if not self.advance_known(topic, group, queue, offset):
            self._engine.groups.offsets.check(topic, {queue: offset})
            with contextlib.suppress(TopicEndingError):  # as `advance_known`
                await self.make(topic, group)
                self._engine.groups.offsets.commit(topic, group, {queue: offset})

    async def make(self, topic: str, group: str) -> None:
        """Make a group that commits offsets, unless it exists; what `Groups.put` raises."""
        try:
            self._engine.groups.offsets.committed(topic, group, 0)
        except UnknownGroupError:
            await self._engine.groups.put(topic, group, GroupConfig(kind=OFFSETS))

    def largest(self, request: Request) -> Answer:
        """The offset after the last message of a queue."""
        return _offset(self._engine.queues.queue_bounds(*self._queue_of(request))[1])

    def smallest(self, request: Request) -> Answer:
        """The first kept offset of a queue."""
        return _offset(self._engine.queues.queue_bounds(*self._queue_of(request))[0])

    async def search(self, request: Request) -> Answer:
        """The offset of the first message that was delivered at a time or later.

        With the upper boundary, that of the last one delivered by then, or else of the first that is kept.
        """
        topic, queue = self._queue_of(request)
        time_ms = request.number("timestamp", low=-INT64_MAX)
        if request.text("boundaryType", "LOWER").upper() != "UPPER":
            return _offset(await self._engine.queues.first_from(topic, queue, time_ms))
        after = await self._engine.queues.first_from(topic, queue, time_ms + 1)
        return _offset(max(after - 1, self._engine.queues.queue_bounds(topic, queue)[0]))

    async def earliest_time(self, request: Request) -> Answer:
        """When the first kept message of a queue was stored."""
        topic, queue = self._queue_of(request)
        _, positions = await self._engine.queues.positions(topic, queue, 0, 1)
        time_ms = int(positions["store_ms"][0]) if len(positions) else -1
        return Answer(fields={"timestamp": str(time_ms)})

    def _queue_of(self, request: Request) -> tuple[str, int]:
        topic = request.text("topic")
        self._topics.must_read(request, topic)
        return topic, self._topics.queue_of(request, topic)


def _offset(offset: int) -> Answer:
    return Answer(fields={"offset": str(offset)})
