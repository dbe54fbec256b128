"""Live numbers as server-sent events, produced once for all listeners and only while there are listeners.

    tick     every second: the state, pending messages, totals and lateness; from memory only
    wheel    the pending messages of each slot; takes at most a twentieth of the time

1. An event is encoded once for all listeners.
2. A slow reader misses events: only the newest of each kind is kept, so no queue can grow.
3. The stream ends with an event `end` whose data is a problem with the reason, unless the client has gone.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from aiohttp import web

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import problems, responses
from timerwheel.api.http.route import EVENTS, Need, call
from timerwheel.api.service.figures import FigureKeeper, pending_of
from timerwheel.clock import Clock
from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError, TimerwheelError
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.figures import Point
from timerwheel.model.live_events import LevelSlots, Tick, Wheel
from timerwheel.model.messages import SlotInfo
from timerwheel.store.errors import StoreError
from timerwheel.wheel.geometry import LEVEL_NAMES, Horizons

TICK_MS = 1_000
WHEEL_MS_MIN = 2_000
WHEEL_SHARE = 20  # reading the wheel takes at most a twentieth of the time
SLOTS_MAX = 400  # of each level in an event; the rest is a sum
OVERDUE_MS = 1_000  # a message due for this long should have fired
PATIENCE_S = 5.0  # with a client that reads nothing

NOT_READY, INTERNAL = NotReadyError.code, "internal"

logger = logging.getLogger(__name__)


class Live:
    """Publishes events while there are listeners. Event loop only."""

    def __init__(self, handle: EngineHandle, figures: FigureKeeper | None = None) -> None:
        self._handle = handle
        self._figures = figures
        self._newest: dict[str, tuple[int, bytes]] = {}  # kind -> (number, event)
        self._number = 0
        self._listeners = 0
        self._maker: asyncio.Task[str] | None = None
        self._published: asyncio.Future[None]
        self._clock: Clock
        self._wheel_at_ms = 0

    def check_ready(self) -> None:
        """Raise `NotReadyError` while there is no engine yet."""
        _ = self._handle.engine

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Publish events inside the block."""
        self._listeners += 1
        if self._maker is None or self._maker.done():
            self._clock = self._handle.engine.clock
            self._published = asyncio.get_running_loop().create_future()
            self._maker = asyncio.create_task(self._make())
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners and self._maker is not None:
                self._maker.cancel()
                self._maker = None
                self._newest.clear()  # the next listener needs only new ones

    def after(self, number: int) -> tuple[int, bytes]:
        """Return the newest event of each kind after `number`, and the number of the last event."""
        news = sorted(event for event in self._newest.values() if event[0] > number)
        return self._number, b"".join(event for _, event in news)

    @property
    def ended(self) -> str | None:
        """The code of the error with which it ended; None as long as more events will come."""
        return self._maker.result() if self._maker is not None and self._maker.done() else None

    async def wait(self, number: int, wait_ms: int) -> None:
        """Wait for an event after `number`, at most `wait_ms`."""
        if self._number <= number:
            await self._clock.wait_for(self._published, wait_ms)

    async def _make(self) -> str:
        self._wheel_at_ms = self._clock.monotonic_ms()
        try:
            while True:
                await self._go_on(self._handle.engine)
        except NotReadyError:
            return NOT_READY  # the engine has gone, and another may come
        except Exception:
            # The stream of each listener ends with an event that refers to the log.
            logger.exception("the live view failed")
            return INTERNAL

    async def _go_on(self, engine: Engine) -> None:
        while engine is self._handle.engine:
            await self._handle.assure_lead()
            began_ms = engine.clock.monotonic_ms()
            second = self._figures.newest if self._figures is not None else None
            self._publish("tick", tick_of(engine, self._handle.status, second))
            if began_ms >= self._wheel_at_ms:
                await self._look(engine)
            spent_ms = engine.clock.monotonic_ms() - began_ms
            await engine.clock.sleep_for(max(TICK_MS - spent_ms, 1))

    async def _look(self, engine: Engine) -> None:
        began_ms = engine.clock.monotonic_ms()
        try:
            found = await engine.messages.slots(None, 0, HALF_DUE_MS)  # nothing fires of open transactions
        except (StoreError, TimerwheelError) as error:
            logger.warning("the live view continues without the wheel: %s", error)
        else:
            self._publish("wheel", wheel_of(found, engine.clock.now_ms(), engine.messages.horizons))
        cost_ms = engine.clock.monotonic_ms() - began_ms
        self._wheel_at_ms = began_ms + max(WHEEL_MS_MIN, WHEEL_SHARE * cost_ms)

    def _publish(self, kind: str, content: Tick | Wheel) -> None:
        self._number += 1
        event = b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(content))
        self._newest[kind] = (self._number, event)
        if not self._published.done():
            self._published.set_result(None)
        self._published = asyncio.get_running_loop().create_future()


def tick_of(engine: Engine, status: str, second: Point | None = None) -> Tick:
    """Return a tick of the engine's current numbers; reads nothing from the disk."""
    refusal = engine.disk.refusal
    return Tick(
        engine.clock.now_ms(),
        status,
        pending_of(engine),
        engine.counters.snapshot(),
        refusing=None if refusal is None else str(refusal),
        second=second,
    )


def wheel_of(found: list[SlotInfo], now_ms: int, horizons: Horizons) -> Wheel:
    """Return the slots in use as an event, ordered by level and start."""
    over_ms = now_ms - OVERDUE_MS
    overdue = sum(slot.count for slot in found if slot.end_ms <= over_ms)
    levels = []
    for name, moved_until_ms in zip(LEVEL_NAMES, (0, *horizons), strict=True):
        own = (slot for slot in found if slot.level == name and slot.end_ms > over_ms)
        slots = [(slot.start_ms, slot.count) for slot in own]
        later = sum(count for _, count in slots[SLOTS_MAX:])
        levels.append(LevelSlots(name, slots[:SLOTS_MAX], later, moved_until_ms))
    return Wheel(now_ms, levels, overdue)


class LiveCalls:
    """The handler of `/v1/live`. Event loop only."""

    def __init__(self, handle: EngineHandle, figures: FigureKeeper) -> None:
        self._handle = handle
        self._live = Live(handle, figures)

    async def head(self, _: web.Request) -> web.Response:
        """HEAD /v1/live: the headers of GET."""
        self._live.check_ready()
        return responses.events_head()

    @call("GET", "/v1/live", "live", needs=Need.TOKEN, head=head, answer=str, answer_kind=EVENTS)
    async def live(self, request: web.Request) -> web.StreamResponse:
        """Stream live counts and events, as server-sent events.

        They end when the client disconnects or the service stops.
        """
        self._live.check_ready()
        response = responses.events()
        with self._live.listening():
            try:
                await response.prepare(request)
                await self._stream(request, response)
            except (ConnectionError, TimeoutError):
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse) -> None:
        number = 0
        while request.transport is not None:
            number, events = self._live.after(number)
            if events:
                await _write(response, events)
            if self._handle.stopping or self._live.ended == NOT_READY:
                await _end(response, problems.problem(NOT_READY, self._handle.refusal))
                return
            if self._live.ended is not None:
                await _end(response, problems.problem(INTERNAL, "the service's log has the details"))
                return
            await self._live.wait(number, TICK_MS)


async def _end(response: web.StreamResponse, problem: web.Response) -> None:
    await _write(response, problems.end_event(problem))


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write; raises TimeoutError if the client reads nothing."""
    async with asyncio.timeout(PATIENCE_S):
        await response.write(data)
