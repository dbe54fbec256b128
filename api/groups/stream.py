"""Messages of a group as server-sent events, over one answer that goes on until one side ends it.

    take (no more than the window has room) -> write -> drained -> in the window, or acknowledged

1. Back-pressure: the next events are written when all before them are with the kernel, and nothing is leased
   in between. The window bounds what a connection holds, and one page of messages bounds its memory.
2. When the client goes, what was not begun to be written is given back. What was begun the client may have
   read: that is its own until its lease is over, and never given back behind its back.
3. The answer ends with an event `end` whose data is a problem that says why, unless the client has gone.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from timerwheel.api.engine_handle import LOOK_UP_MS, EngineHandle
from timerwheel.api.groups.consumer import Consumer
from timerwheel.api.groups.handlers import GROUP, MAKING
from timerwheel.api.groups.window import Window, Windows
from timerwheel.api.http import budget, problems, responses
from timerwheel.api.http.route import EVENTS, Need, call
from timerwheel.model.messages import Delivery
from timerwheel.wire.fields import given
from timerwheel.wire.groups import GroupPath, Held, StreamQuery, terms_of

KEEP_ALIVE_MS = 15_000
CHUNK_BYTES = 1 << 16
PATIENCE_MS = 2_000  # with a client that reads slowly, when the service stops

logger = logging.getLogger(__name__)


def _begin_nothing() -> None:
    """Do nothing: a comment line has no message to count."""


class StreamCalls:
    """The handler of a group's `stream`. Event loop only."""

    def __init__(self, handle: EngineHandle, windows: Windows) -> None:
        self._handle = handle
        self._windows = windows

    async def head(
        self,
        _: web.Request,
        path: GroupPath,
        params: StreamQuery,  # noqa: ARG002 - taken to be checked
    ) -> web.Response:
        """HEAD .../stream: the headers of GET; receives nothing."""
        self._handle.engine.groups.info(path.topic, path.group)
        return responses.events_head()

    @call(
        "GET",
        f"{GROUP}/stream",
        "stream",
        needs=Need.RECEIVE,
        head=head,
        answer=str,
        answer_kind=EVENTS,
        changes_state=True,
        problems=(*MAKING, "group_not_found", "group_differs", "header_required"),
    )
    async def stream(self, request: web.Request, path: GroupPath, params: StreamQuery) -> web.StreamResponse:
        """Stream messages to a consumer of the group, as server-sent events.

        An error at the start is a problem response, a later one an event `end`.
        """
        window = Window(params.max_in_flight, self._handle.engine.clock)
        consumer = Consumer(self._handle, request, path)
        invisible_ms = given(params.invisible_ms)
        self._windows.open(path, window)
        try:
            first = await consumer.first(window.room, invisible_ms, 0, terms_of(params))
            response = responses.events()
            try:
                writer = await response.prepare(request)
            except ConnectionError:
                await consumer.give_back(first)
                return response  # to nobody: there is no one to tell an error
            if writer is not None:  # it is None for an answer that was prepared before
                stream = Stream(request, writer, self._handle, consumer, window, auto=params.ack == "auto")
                await stream.run(first, invisible_ms)
        finally:
            self._windows.close(path, window)
        return response


class Stream:
    """One open stream."""

    def __init__(
        self,
        request: web.Request,
        writer: AbstractStreamWriter,
        handle: EngineHandle,
        consumer: Consumer,
        window: Window,
        *,
        auto: bool,
    ) -> None:
        self._request = request
        self._writer = writer
        self._handle = handle
        self._clock = handle.engine.clock
        self._consumer = consumer
        self._window = window
        self._auto = auto
        self._sent_ms = self._clock.monotonic_ms()

    async def run(self, found: Sequence[Delivery], invisible_ms: int | None) -> None:
        """Send `found` and all later messages; returns when the client disconnects or the end is sent."""
        try:
            await self._send_bytes(b": messages of the group follow\n\n")
            while not self._consumer.gone:
                if found:
                    held, found = found, []
                    await self.send(held)
                elif self._clock.monotonic_ms() - self._sent_ms >= KEEP_ALIVE_MS:
                    await self._send_bytes(b": still here\n\n")
                if not self._handle.ready:
                    await self._end(problems.problem("not_ready", self._handle.refusal))
                    return
                found = await self._next(invisible_ms)
        except ConnectionError:
            return
        except Exception as error:  # noqa: BLE001 - the answer has begun: its last event says it
            await self._end(problems.of_error(error))
        finally:
            if found:  # the client went before the first of them was written
                await self._consumer.give_back(found)

    async def _next(self, invisible_ms: int | None) -> list[Delivery]:
        wait_ms = min(LOOK_UP_MS, max(self._sent_ms + KEEP_ALIVE_MS - self._clock.monotonic_ms(), 1))
        room = self._window.room
        if room:
            return await self._consumer.more(room, invisible_ms, wait_ms)
        self._consumer.check_group()
        await self._window.wait(wait_ms)
        return []

    async def send(self, deliveries: Sequence[Delivery]) -> None:
        """Write the events. If the client disconnects, return the messages whose events were not begun."""
        if not self._auto:
            self._window.enter(deliveries)
        begun = drained = 0
        charge = self._request[budget.KEY]
        charge.take_answer(sum(len(one.message.body) for one in deliveries), force=True)

        def begin() -> None:
            nonlocal begun
            begun += size

        try:
            while drained < len(deliveries):
                part, size = _chunk(deliveries, drained)
                await self._send_bytes(part, begin)
                drained += size
        finally:
            charge.give_answer()
            if begun < len(deliveries):
                await self._consumer.give_back(deliveries[begun:])
            if self._auto and drained:
                await self._consumer.ack(deliveries[:drained])

    async def _end(self, problem: web.Response) -> None:
        try:
            await self._send_bytes(problems.end_event(problem))
        except ConnectionError:
            logger.debug("a client disconnected before the end of its stream was sent")

    async def _send_bytes(self, data: bytes, begin: Callable[[], None] = _begin_nothing) -> None:
        """Write, and return when the kernel has all of it; ConnectionError if the client disconnected before.

        `begin` is called when the first byte is about to be written, so not if the client had gone by then.
        """
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the client disconnected")
        transport.set_write_buffer_limits(high=0)  # so that drained means: all of it is with the kernel
        writing = asyncio.create_task(self._write(data, begin))
        writing.add_done_callback(_take_error)
        try:
            await self._written(writing, transport)
        finally:
            if not writing.done():
                transport.abort()  # this wakes the writer
        await writing
        self._sent_ms = self._clock.monotonic_ms()

    async def _write(self, data: bytes, begin: Callable[[], None]) -> None:
        if self._consumer.gone:
            raise ConnectionResetError("the client disconnected")
        begin()
        await self._writer.write(data)
        await self._writer.drain()

    async def _written(self, writing: asyncio.Task[None], transport: asyncio.Transport) -> None:
        """Wait for a client that reads slowly, but only briefly once the service stops."""
        patience_ms = PATIENCE_MS
        while not writing.done():
            await self._clock.wait_for(writing, LOOK_UP_MS)
            if not self._handle.ready:
                patience_ms -= LOOK_UP_MS
            if patience_ms <= 0:
                transport.abort()


def _take_error(writing: asyncio.Task[None]) -> None:
    """Retrieve the error of a write that nobody awaits any more, so that asyncio does not log it."""
    if not writing.cancelled():
        writing.exception()


def _chunk(deliveries: Sequence[Delivery], at: int) -> tuple[bytes, int]:
    """Return the events from index `at`, about CHUNK_BYTES of them, and their number."""
    events: list[bytes] = []
    size_bytes = 0
    while at + len(events) < len(deliveries) and size_bytes < CHUNK_BYTES:
        event = _event(deliveries[at + len(events)])
        events.append(event)
        size_bytes += len(event)
    return b"".join(events), len(events)


def _event(delivery: Delivery) -> bytes:
    data = msgspec.json.encode(Held.from_delivery(delivery))
    return b"event: message\nid: %b\ndata: %b\n\n" % (delivery.receipt.encode(), data)
