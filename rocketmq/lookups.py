"""Messages by their place in the log, which clients name in a retry and in a look-up by offset id.

A client can name any offset. So the record there only says which message it may be; what is used is the
record at which the queue of that message points. A record that somebody wrote into a body is in no queue.
"""

from typing import NamedTuple, NoReturn

from timerwheel.engine import Engine
from timerwheel.errors import UnknownMessageError
from timerwheel.model.messages import State
from timerwheel.rocketmq.codes import Result
from timerwheel.rocketmq.name_server import NameServer
from timerwheel.rocketmq.request import Answer, RefusalError, Request
from timerwheel.rocketmq.topics import Topics
from timerwheel.rocketmq.translation import stored_form
from timerwheel.store.errors import StoreError
from timerwheel.store.record import FLAG_LEASE, Kind, Record, decode


class Found(NamedTuple):
    """A message and its record: the delivered one, or while it waits its timer, with the queue offset 0."""

    message_id: str
    record: Record
    log_offset: int
    queue_offset: int
    is_delivered: bool


class Lookups:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, topics: Topics, name_server: NameServer) -> None:
        self._engine = engine
        self._topics = topics
        self._name_server = name_server

    async def find(self, request: Request, log_offset: int) -> Found:
        """Return the message of a record that the caller may read; RefusalError for anything else."""
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
        self._topics.must_read(request, record.topic)
        identity = header.identity(log_offset)
        message_id = engine.core.ids.encode(identity.root, identity.root_crc)
        try:
            view = await engine.messages.get(message_id)
        except (UnknownMessageError, StoreError):
            _refuse(log_offset)
        if view.state is not State.DELIVERED or view.queue_offset is None:
            return Found(message_id, record, log_offset, 0, is_delivered=False)
        page = await engine.queues.records(view.topic, view.queue, view.queue_offset, 1)
        if page.first != view.queue_offset or not page.records or not isinstance(page.records[0], bytes):
            _refuse(log_offset)
        place = int(page.positions["offset"][0])
        return Found(message_id, decode(page.records[0]), place, page.first, is_delivered=True)

    async def view(self, request: Request) -> Answer:
        """The message at a log offset, delivered or waiting."""
        found = await self.find(request, request.number("offset"))
        host = self._name_server.address(request)
        return Answer(
            body=stored_form(found.record, found.log_offset, found.queue_offset, found.message_id, host)
        )

    def query(self, request: Request) -> Answer:
        """Messages by key: there is no index of keys."""
        self._topics.must_read(request, request.text("topic"))
        return Answer(
            Result.QUERY_NOT_FOUND, remark="messages cannot be found by key here, only by offset id"
        )


def _refuse(log_offset: int) -> NoReturn:
    raise RefusalError(Result.SYSTEM_ERROR, f"no message that you may read is stored at offset {log_offset}")
