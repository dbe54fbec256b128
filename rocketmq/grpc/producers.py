"""Producers that are connected, and are asked how the transactions end that they left open.

    a Telemetry stream   tells the topics of a producer in its settings; half messages tell more
    a check              is written to the stream of one producer of the topic, of another one each time
    EndTransaction       is the producer's answer

1. A producer that is asked sees the half message, so its token must then allow sends to the topic.
2. Checks that wait to be written hold at most `bytes_max`. A check that finds no room, or no producer, does
   not count: a producer that comes back is asked before its transactions are rolled back.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from timerwheel.engine import Engine
from timerwheel.model.admission import is_sendable
from timerwheel.model.messages import State
from timerwheel.rocketmq.grpc.call import SLOW_READER_MS, Call, ClientName
from timerwheel.rocketmq.grpc.codes import CallError, Code
from timerwheel.rocketmq.grpc.messages import name_of, stored
from timerwheel.rocketmq.grpc.schema import message_class
from timerwheel.rocketmq.translation import PRODUCER_GROUP
from timerwheel.runtime.message_reader import Current
from timerwheel.tokens import Scope

TOPICS_MAX: Final = 1_000
"""Most topics of one producer; of more, those that it named first are forgotten."""
CHECK_BYTES: Final = 1 << 10
"""What a check counts beside the body of its message."""

_Command = message_class("TelemetryCommand")
_Resource = message_class("Resource")


class Stream:
    """The Telemetry stream of a client. What is written to it is written one after the other."""

    def __init__(self, call: Call, engine: Engine) -> None:
        self.call = call
        self.topics: dict[str, Any] = {}
        self.checks: asyncio.Queue[tuple[Any, int]] = asyncio.Queue()
        self._clock = engine.clock
        self._turn = asyncio.Lock()

    def may_send(self, topic: str) -> bool:
        """Whether the token of the client allows it now."""
        try:
            self.call.caller_for(Scope.SEND, topic, counted=False)
        except CallError:
            return False
        return True

    async def write(self, command: Any) -> None:
        """Write a command; CallError if the client does not read it for SLOW_READER_MS."""
        async with self._turn:
            writing = asyncio.ensure_future(self.call.context.write(command))
            try:
                await self._clock.wait_for(writing, SLOW_READER_MS)
                if not writing.done():
                    raise CallError(Code.REQUEST_TIMEOUT, "the client does not read what it is sent")
                writing.result()
            finally:
                writing.cancel()


class Producers:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, store_host: str, bytes_max: int) -> None:
        self._engine = engine
        self._store_host = store_host
        self._bytes_max = bytes_max
        self._by_client: dict[ClientName, Stream] = {}
        self._by_topic: dict[str, dict[Stream, None]] = {}  # who was asked last is at the end
        self.waiting_bytes = 0

    def publishes(self, stream: Stream, topics: Iterable[Any]) -> None:
        """The client of this stream is a producer of these topics."""
        self._by_client[stream.call.client] = stream
        for topic in topics:
            self._add(stream, topic)

    def sent_half(self, client: ClientName, topic: Any) -> None:
        """The client has sent a half message to this topic."""
        if (stream := self._by_client.get(client)) is not None:
            self._add(stream, topic)

    def _add(self, stream: Stream, topic: Any) -> None:
        name = name_of(topic)
        if not is_sendable(name):
            return
        stream.topics[name] = kept = _Resource()
        kept.CopyFrom(topic)  # a part of a request keeps all of it in memory
        self._by_topic.setdefault(name, {}).setdefault(stream)
        if len(stream.topics) > TOPICS_MAX:
            self._remove(stream, next(iter(stream.topics)))

    def _remove(self, stream: Stream, name: str) -> None:
        del stream.topics[name]
        streams = self._by_topic[name]
        del streams[stream]
        if not streams:
            del self._by_topic[name]

    def ended(self, stream: Stream) -> None:
        """The stream has ended: its producer is asked no more, until it opens another one."""
        for name in list(stream.topics):
            self._remove(stream, name)
        for client in [client for client, one in self._by_client.items() if one is stream]:
            del self._by_client[client]
        while not stream.checks.empty():
            self.waiting_bytes -= stream.checks.get_nowait()[1]

    def ask(self, current: Current, _number: int) -> bool:
        """Ask a producer about an open transaction; returns False if nobody can be asked."""
        half = self._engine.messages.view_of(current, State.SCHEDULED)
        if not half.envelope or PRODUCER_GROUP in half.properties:
            return True  # begun over HTTP or remoting
        size_bytes = len(half.body) + CHECK_BYTES
        if self.waiting_bytes and self.waiting_bytes + size_bytes > self._bytes_max:
            return False
        streams = self._by_topic.get(half.topic, {})
        asked = next((one for one in streams if one.may_send(half.topic)), None)
        if asked is None:
            return False
        streams[asked] = streams.pop(asked)
        command = _Command()
        check = command.recover_orphaned_transaction_command
        check.message.CopyFrom(stored(half, asked.topics[half.topic], self._store_host))
        check.transaction_id = half.id
        asked.checks.put_nowait((command, size_bytes))
        self.waiting_bytes += size_bytes
        return True

    async def write_checks(self, stream: Stream) -> None:
        """Write the checks of a stream until cancelled; CallError if its client does not read them."""
        while True:
            command, size_bytes = await stream.checks.get()
            try:
                await stream.write(command)
            finally:
                self.waiting_bytes -= size_bytes
