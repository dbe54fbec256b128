"""Reads the history of a message of a running service.

Each history opens its own log reader, so it uses neither the service's reader threads nor its open files.
"""

import asyncio

import msgspec

from timerwheel.engine import Engine
from timerwheel.errors import UnknownMessageError
from timerwheel.history.groups import groups_now
from timerwheel.history.history import Found, MessageHistory, Question, Standing, What
from timerwheel.history.log_steps import RECORDS_MAX, Steps, slot_starts, step, steps
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.messages import SlotInfo, State
from timerwheel.offline.snapshot import open_log
from timerwheel.store.errors import OffsetError

_LEASABLE = (Standing.NOT_RECEIVED, Standing.PASSED_OVER, Standing.READY)


class HistoryReader:
    """Reads the histories of an engine's messages, one at a time. Belongs to the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def read(self, engine: Engine, message_id: str, records_max: int = RECORDS_MAX) -> MessageHistory:
        """Return the history of a message as of now. Raises UnknownMessageError, CorruptionError.

        If the caller is cancelled, it ends with the current step: a thread reads the log until then.
        """
        async with self._turn:
            left = asyncio.Event()
            reading = asyncio.create_task(_read(engine, message_id, records_max, left))
            try:
                return await asyncio.shield(reading)
            except asyncio.CancelledError:
                left.set()
                await asyncio.wait({reading})
                _ = reading.cancelled() or reading.exception()  # nobody is left to hear of it
                raise


async def _read(engine: Engine, message_id: str, records_max: int, left: asyncio.Event) -> MessageHistory:
    found = await _find(engine, message_id)
    try:
        log = await asyncio.to_thread(open_log, engine.settings.data)
    except OffsetError:  # retention just removed a segment; a second try opens the log without it
        log = await asyncio.to_thread(open_log, engine.settings.data)
    try:
        return _with_leases(engine, await _answered(engine, steps(log, found, records_max), left))
    except OffsetError:
        raise UnknownMessageError(message_id) from None
    finally:
        log.close()


async def _answered(engine: Engine, reading: Steps, left: asyncio.Event) -> MessageHistory:
    answer: int | None = None
    while True:
        if left.is_set():
            raise asyncio.CancelledError
        asked = await asyncio.to_thread(step, reading, answer)
        if isinstance(asked, MessageHistory):
            return asked
        answer = None if asked is None else await _queue_offset(engine, asked)


async def _find(engine: Engine, message_id: str) -> Found:
    current = await engine.messages.current(message_id)
    if current.state is not State.DELIVERED:
        waits = current.state is State.SCHEDULED
        slot = await _slot_online(engine, current.record.header.due_ms) if waits else None
        return Found(message_id, current.state, current.offset, None, {}, slot)
    view = await engine.messages.get(message_id)
    place = 0 if view.queue_offset is None else view.queue_offset
    first, positions = await engine.queues.positions(view.topic, view.queue, place, 1)
    if first != view.queue_offset or not len(positions):
        raise UnknownMessageError(message_id)
    groups = groups_now(engine.core.state, current.record, first, engine.groups.offsets.cursors)
    return Found(message_id, State.DELIVERED, int(positions["offset"][0]), first, groups)


def _with_leases(engine: Engine, history: MessageHistory) -> MessageHistory:
    """Add which groups have the message leased now: only the service's memory has leases."""
    delivered = next((event for event in history.events if event.what is What.DELIVERED), None)
    if delivered is None or delivered.queue_offset is None:
        return history
    lease_of = engine.groups.lease_of
    place = (history.queue, delivered.queue_offset)
    groups = [
        msgspec.structs.replace(part, standing=Standing.IN_FLIGHT, attempts=part.attempts + 1)
        if part.standing in _LEASABLE and lease_of(history.topic, part.group, *place) is not None
        else part
        for part in history.groups
    ]
    return msgspec.structs.replace(history, groups=groups)


async def _slot_online(engine: Engine, due_ms: int) -> SlotInfo | None:
    for level, start_ms in () if due_ms == HALF_DUE_MS else slot_starts(due_ms):
        for slot in await engine.messages.slots(level, start_ms, start_ms + 1):
            return slot
    return None


async def _queue_offset(engine: Engine, asked: Question) -> int | None:
    low, high = engine.queues.queue_bounds(asked.topic, 0)
    while low < high:
        middle = (low + high) // 2
        first, positions = await engine.queues.positions(asked.topic, 0, middle, 1)
        if not len(positions):
            return None
        at = int(positions["offset"][0])
        if at == asked.log_offset:
            return first
        if at < asked.log_offset:
            low = first + 1
        else:
            high = middle
    return None
