"""Messages by their place in the log, which clients name in a retry and in a look-up by offset id, or by key.

A client can name any offset. So the record there only says which message it may be; what is used is the
record at which the queue of that message points. A record that somebody wrote into a body is in no queue.
"""

import asyncio
from typing import Final, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

from timerwheel.engine import Engine
from timerwheel.errors import UnknownMessageError
from timerwheel.model.ids import root_of
from timerwheel.model.listing import KEY_CHARACTERS_MAX
from timerwheel.model.messages import State
from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.name_server import NameServer
from timerwheel.rocketmq.request import INT64_MAX, Answer, Link, RefusalError, Request
from timerwheel.rocketmq.search import BYTES_MAX, RECORDS_MAX, Query, Search
from timerwheel.rocketmq.stored_message import Host
from timerwheel.rocketmq.topics import Topics
from timerwheel.rocketmq.translation import stored_form
from timerwheel.store.errors import StoreError
from timerwheel.store.record import FLAG_LEASE, Kind, Record, decode

MESSAGES_MAX: Final = 64
"""Most messages of a query."""
AT_ONCE_MAX: Final = 8
"""Most messages that are looked up at a time: each is read several times, and may be large."""
AT_ONCE_OF_CONNECTION_MAX: Final = 2
"""Most of them for one connection, so that its others wait behind those of other clients."""
QUERY_BYTES_MAX: Final = 4 << 20
"""No more messages follow in the answer to a query once they have so many bytes."""
_BOUND = f"not all was searched: a search ends after {RECORDS_MAX} records, or {BYTES_MAX} bytes of its topic"


class Found(NamedTuple):
    """A message and its record: the delivered one, or while it waits its timer, with the queue offset 0."""

    message_id: str
    record: Record
    log_offset: int
    queue_offset: int
    state: State

    @property
    def is_delivered(self) -> bool:
        """Whether its consumers can read it."""
        return self.state is State.DELIVERED


class Lookups:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, topics: Topics, name_server: NameServer) -> None:
        self._engine = engine
        self._topics = topics
        self._name_server = name_server
        self._search = Search(engine)
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._own: WeakKeyDictionary[Link, asyncio.Semaphore] = WeakKeyDictionary()
        self._queries: WeakKeyDictionary[Link, asyncio.Lock] = WeakKeyDictionary()

    async def find(self, request: Request, log_offset: int) -> Found:
        """Return the message of a record that the caller may read; RefusalError for anything else."""
        own = self._own.setdefault(request.link, asyncio.Semaphore(AT_ONCE_OF_CONNECTION_MAX))
        async with own, self._turns:
            return await self._find(request, log_offset)

    async def _find(self, request: Request, log_offset: int) -> Found:
        engine = self._engine
        try:
            record = decode(await engine.core.threads.read(engine.core.log.read, log_offset))
        except (StoreError, ValueError):
            _refuse(log_offset)
        header = record.header
        is_message = header.kind in (Kind.MESSAGE, Kind.TIMER) and not header.flags & FLAG_LEASE
        if (
            not is_message
            or engine.queues.topic_id(record.topic) < 0
            or not self._topics.has_route(record.topic)
        ):
            _refuse(log_offset)
        self._topics.must_see(request, record)
        identity = header.identity(log_offset)
        message_id = engine.core.ids.encode(identity.root, identity.root_crc)
        try:
            view = await engine.messages.get(message_id)
        except (UnknownMessageError, StoreError):
            _refuse(log_offset)
        if view.state is not State.DELIVERED or view.queue_offset is None:
            return Found(message_id, record, log_offset, 0, view.state)
        page = await engine.queues.records(view.topic, view.queue, view.queue_offset, 1)
        if page.first != view.queue_offset or not page.records or not isinstance(page.records[0], bytes):
            _refuse(log_offset)
        place = int(page.positions["offset"][0])
        return Found(message_id, decode(page.records[0]), place, page.first, State.DELIVERED)

    async def view(self, request: Request) -> Answer:
        """The message at a log offset, delivered or waiting; none that a query would not find."""
        found = await self.find(request, request.number("offset"))
        if self._is_hidden(found):
            _refuse(found.log_offset)
        request.hold(len(found.record.body))
        host = self._name_server.address(request)
        return Answer(
            body=stored_form(found.record, found.log_offset, found.queue_offset, found.message_id, host)
        )

    async def query(self, request: Request) -> Answer:
        """Messages by key, delivered or waiting, at most MESSAGES_MAX; the log is searched for them.

        By UNIQ_KEY only the first that is found.
        """
        topic = request.text("topic")
        self._topics.must_read(request, topic)
        key = request.text("key")
        if not 0 < len(key) <= KEY_CHARACTERS_MAX:
            detail = f"a key of {len(key)} characters; name one of 1 to {KEY_CHARACTERS_MAX}"
            raise RefusalError(Result.SYSTEM_ERROR, detail)
        is_unique = request.text("_UNIQUE_KEY_QUERY", "false") == "true"
        begin_ms = request.number("beginTimestamp", 0, low=-INT64_MAX)
        end_ms = request.number("endTimestamp", INT64_MAX, low=-INT64_MAX)
        count_max = 1 if is_unique else min(max(request.number("maxNum", MESSAGES_MAX), 1), MESSAGES_MAX)
        if self._engine.queues.topic_id(topic) < 0:
            return Answer(Result.QUERY_NOT_FOUND, remark=f"topic {topic[:127]!r} does not exist")
        query = Query(topic, key, is_unique, begin_ms, end_ms)
        host = self._name_server.address(request)
        parts: list[bytes] = []

        async def take(log_offset: int) -> bool:
            if (part := await self._shown(request, log_offset, host)) is not None:
                request.hold(len(part))
                parts.append(part)
            return len(parts) < count_max and sum(map(len, parts)) < QUERY_BYTES_MAX

        # One search runs at a time: a client that asks for many lets those of others come in between.
        async with self._queries.setdefault(request.link, asyncio.Lock()):
            is_complete = await self._search.find(query, lambda: request.link.takes_more, take)
        bound = "" if is_complete else _BOUND
        if not parts:
            return Answer(Result.QUERY_NOT_FOUND, remark=bound or "no message has this key")
        fields = {
            "indexLastUpdateTimestamp": str(self._engine.clock.now_ms()),
            "indexLastUpdatePhyoffset": str(self._engine.core.log.tail),
        }
        return Answer(fields=fields, body=b"".join(parts), remark=bound or None)

    async def _shown(self, request: Request, log_offset: int, host: Host) -> bytes | None:
        """Return a message that began at a log offset; None if it is not to be shown."""
        try:
            found = await self.find(request, log_offset)
        except RefusalError:  # it is gone, or of a topic that the caller must not read
            return None
        if self._is_hidden(found):
            return None
        return stored_form(found.record, found.log_offset, found.queue_offset, found.message_id, host)

    def _is_hidden(self, found: Found) -> bool:
        """Whether a message will never be delivered, or may never be: it is recalled, or a half message."""
        root = root_of(found.message_id)
        return found.state is State.RECALLED or self._engine.transactions.open_at(root) is not None


def _refuse(log_offset: int) -> NoReturn:
    raise RefusalError(Result.SYSTEM_ERROR, f"no message that you may read is stored at offset {log_offset}")
