"""Locks of queues: an orderly consumer reads a queue only while it holds the lock of its group on it.

A lock lives LOCK_MS after it was last asked for, and ends with the connection of its client.

Groups of different tokens that have the same name, but read no topic in common, have one retry topic. Its
queue is not theirs to share, so none of them keeps the others from it by a lock.
"""

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
import orjson

from timerwheel.groups.config import check_group
from timerwheel.model.admission import RETRY_PREFIX
from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.members import Members, Name
from timerwheel.rocketmq.request import Answer, Link, RefusalError, Request
from timerwheel.rocketmq.topics import Topics
from timerwheel.tokens import Scope

LOCK_MS: Final = 60_000
LOCKS_MAX: Final = 100_000
"""Most locks in all."""
LOCKS_OF_CONNECTION_MAX: Final = 10_000
"""Most locks of one connection."""
QUEUES_MAX: Final = 10_000
"""Most queues that one request names."""


class Queue(msgspec.Struct, frozen=True, rename="camel"):
    """A queue as clients name it."""

    topic: Name
    broker_name: Name
    queue_id: int


Key = tuple[str, Queue]
"""A group and a queue."""


class LockBody(msgspec.Struct, frozen=True, rename="camel"):
    """The queues that a client wants to lock or unlock."""

    consumer_group: Name
    client_id: Name
    mq_set: Annotated[list[Queue], msgspec.Meta(max_length=QUEUES_MAX)] = []


class _Lock(msgspec.Struct):
    client: str
    caller: str
    link: Link
    until_ms: int


_decode = msgspec.json.Decoder(LockBody).decode


class Locks:
    """See the module. Event loop only."""

    def __init__(self, now_ms: Callable[[], int], topics: Topics, members: Members) -> None:
        self._now_ms = now_ms
        self._topics = topics
        self._members = members
        self._locks: dict[Key, _Lock] = {}
        self._places: dict[tuple[str, str], set[Key]] = {}  # by group and topic
        self._links: dict[int, set[Key]] = {}  # by the identity of the connection

    def lock(self, request: Request) -> Answer:
        """Lock the queues that nobody else holds; answers with those that the client holds now.

        A queue that its topic does not have is never among them.
        """
        body = _body_of(request)
        now_ms = self._now_ms()
        held: list[Queue] = []
        for topic in {queue.topic for queue in body.mq_set}:
            self._topics.must_read(request, topic)
        for queue in body.mq_set:
            if not 0 <= queue.queue_id < self._topics.queues_of(queue.topic):
                continue
            key = body.consumer_group, queue
            lock = self._locks.get(key)
            if lock is None or lock.until_ms <= now_ms or self._may_take(request, body, key, lock):
                self._make_room(key, request.link)
                if lock is not None:
                    self._drop(key)
                self._put(key, _Lock(body.client_id, request.caller.name, request.link, now_ms + LOCK_MS))
                held.append(queue)
        return Answer(body=orjson.dumps({"lockOKMQSet": [_named(queue) for queue in held]}))

    def _may_take(self, request: Request, body: LockBody, key: Key, lock: _Lock) -> bool:
        """Whether a lock is the client's own, or that of a client with which it shares no queues."""
        if lock.caller == request.caller.name:
            return lock.client == body.client_id
        group, queue = key
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        return is_retry and lock.client not in self._members.sharing(request, group)

    def _put(self, key: Key, lock: _Lock) -> None:
        self._locks[key] = lock
        self._links.setdefault(id(lock.link), set()).add(key)
        self._places.setdefault((key[0], key[1].topic), set()).add(key)

    def unlock(self, request: Request) -> Answer:
        """Give up locks."""
        body = _body_of(request)
        request.must_have(Scope.RECEIVE)
        for queue in body.mq_set:
            lock = self._locks.get((body.consumer_group, queue))
            if lock is not None and lock.client == body.client_id and lock.link is request.link:
                self._drop((body.consumer_group, queue))
        return Answer()

    def _make_room(self, key: Key, link: Link) -> None:
        """RefusalError if a new lock would be too many; locks that have run out make room."""
        own = self._links.get(id(link), set())
        if key not in own and len(own) >= LOCKS_OF_CONNECTION_MAX:
            detail = f"this connection has {LOCKS_OF_CONNECTION_MAX} locks; unlock some first"
            raise RefusalError(Result.SYSTEM_BUSY, detail)
        if key in self._locks or len(self._locks) < LOCKS_MAX:
            return
        now_ms = self._now_ms()
        for old in [old for old, lock in self._locks.items() if lock.until_ms <= now_ms]:
            self._drop(old)
        if len(self._locks) >= LOCKS_MAX:
            raise RefusalError(Result.SYSTEM_BUSY, f"{LOCKS_MAX} queues are locked; try again later")

    def _drop(self, key: Key) -> None:
        link, place = id(self._locks.pop(key).link), (key[0], key[1].topic)
        self._links[link].discard(key)
        if not self._links[link]:
            del self._links[link]
        self._places[place].discard(key)
        if not self._places[place]:
            del self._places[place]

    def is_held(self, group: str, topic: str) -> bool:
        """Whether a client of the group holds the lock of a queue of this topic."""
        now_ms = self._now_ms()
        return any(self._locks[key].until_ms > now_ms for key in self._places.get((group, topic), ()))

    def closed(self, link: Link) -> None:
        """A connection was closed."""
        for key in list(self._links.get(id(link), ())):
            self._drop(key)


def _body_of(request: Request) -> LockBody:
    try:
        body = _decode(request.frame.body)
    except (ValueError, RecursionError) as error:
        raise RefusalError(Result.SYSTEM_ERROR, f"the body is malformed: {error}") from None
    check_group(body.consumer_group)
    return body


def _named(queue: Queue) -> dict[str, object]:
    return {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
