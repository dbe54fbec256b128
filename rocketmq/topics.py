"""Topics as RocketMQ's clients see them: every legal name has a route, and a topic is made by its first send.

A producer that asks for a topic that does not exist gets a route all the same: with RocketMQ it would wait 30
seconds for the next one, and so would a consumer that starts before its topic. Nothing is stored for a route.
"""

from functools import lru_cache
from typing import Final

import orjson

from timerwheel.engine import Engine
from timerwheel.errors import AdmissionError
from timerwheel.model.admission import (
    DEAD_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    TEMPLATE_TOPIC,
    TRACE_TOPIC,
    check_topic_name,
    is_sendable,
)
from timerwheel.rocketmq.codes import PERM_READ, PERM_WRITE, Result
from timerwheel.rocketmq.request import RefusalError, Request
from timerwheel.store.record import Record
from timerwheel.tokens import Scope

QUEUES_OF_NEW: Final = 4
"""Queues of a topic that is made by a send over remoting, as RocketMQ's default."""


RETRY_ORIGIN: Final = "RETRY_TOPIC"
"""The property of a message in a retry topic that names the topic from which it came."""


@lru_cache(maxsize=4096)
def _has_route(topic: str) -> bool:
    try:
        check_topic_name(topic)
    except AdmissionError:
        return False
    return topic not in SYSTEM_TOPICS and (
        topic in {TEMPLATE_TOPIC, TRACE_TOPIC}
        or topic.startswith((DEAD_PREFIX, RETRY_PREFIX))
        or is_sendable(topic)
    )


class Topics:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def exists(self, topic: str) -> bool:
        """Whether the topic has or had messages since it was last deleted, or has options."""
        return self._engine.queues.exists(topic) or self._engine.topics.has(topic)

    def is_open(self, topic: str) -> bool:
        """Whether the topic exists, and is not being deleted."""
        return self.exists(topic) and topic not in self._engine.topics.ending

    def has_route(self, topic: str) -> bool:
        """Whether a topic can have this name, and clients may know of it."""
        return _has_route(topic)

    def queues_of(self, topic: str) -> int:
        """Return the number of queues that the topic has, or would have after a send."""
        if topic == TRACE_TOPIC or topic.startswith((DEAD_PREFIX, RETRY_PREFIX)):
            return 1
        return self._engine.topics.queues_of(topic) if self.exists(topic) else QUEUES_OF_NEW

    def permissions(self, topic: str) -> int:
        """Return what clients may do with the topic."""
        return PERM_READ if topic.startswith(DEAD_PREFIX) else PERM_READ | PERM_WRITE

    def must_read(self, request: Request, topic: str) -> None:
        """RefusalError unless the topic can exist and the caller may read it.

        The retry topic of a group is open to all readers, but each sees only messages of its topics there.
        """
        if topic.startswith(RETRY_PREFIX):
            request.must_have(Scope.RECEIVE)
        else:
            request.must_have(Scope.RECEIVE, topic)
        self.must_have_route(topic)

    def must_have_route(self, topic: str) -> None:
        """RefusalError unless a topic can have this name, and clients may know of it."""
        if not self.has_route(topic):
            raise RefusalError(Result.TOPIC_NOT_EXIST, f"no topic can have the name {topic[:127]!r}")

    def sees_all(self, request: Request, topic: str) -> bool:
        """Whether the caller may see each message of a topic that it may read.

        Access to the name of a retry topic, which a pattern for topics may match, is not enough.
        """
        return not topic.startswith(RETRY_PREFIX) or request.caller.has_all_topics

    def may_see(self, request: Request, record: Record) -> bool:
        """Whether the caller may see this message of a topic that it may read."""
        if self.sees_all(request, record.topic):
            return True
        properties: dict[str, str] = orjson.loads(record.properties) if record.properties else {}
        return request.caller.may(properties.get(RETRY_ORIGIN, ""))

    def must_see(self, request: Request, record: Record) -> None:
        """RefusalError unless the caller may read this message: of a retry topic, that from which it came."""
        self.must_read(request, record.topic)
        if not self.may_see(request, record):
            detail = f"the token {request.caller.name!r} has no access to the topic of this message"
            raise RefusalError(Result.NO_PERMISSION, detail)

    def queue_of(self, request: Request, topic: str) -> int:
        """Return the queue that a request names; RefusalError if the topic has no such queue."""
        queue, count = request.number("queueId", low=-1), self.queues_of(topic)
        if not 0 <= queue < count:
            raise RefusalError(Result.SYSTEM_ERROR, f"topic {topic!r} has no queue {queue}, only {count}")
        return queue

    def queue_to(self, topic: str, queue: int) -> int:
        """Return the queue of a topic to which a send to this queue goes; RefusalError.

        A client that learned the route before the topic was made by another protocol still chooses among
        QUEUES_OF_NEW queues. Its message goes to one that the topic has, unless their number was set.
        """
        count = self.queues_of(topic)
        is_old_route = queue < QUEUES_OF_NEW and not self._engine.topics.has_number(topic)
        if queue >= count and not is_old_route:
            raise RefusalError(Result.SYSTEM_ERROR, f"topic {topic!r} has no queue {queue}, only {count}")
        return queue % count

    async def make(self, topic: str, queues: int = QUEUES_OF_NEW) -> None:
        """Give a topic that does not exist its queues; AdmissionError, and what `Control.put` raises."""
        if is_sendable(topic) and not self.exists(topic):
            await self._engine.topics.change(topic, queues=queues)
