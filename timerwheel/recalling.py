"""Recall and reschedule: a waiting timer is ended or replaced, against firing and against each other.

The timer leaves the near wheel and goes in flight in one step of the loop; then its record is stored. What
fails puts it back. So whoever comes second, a firing or another caller, finds it gone or waits.
"""

import asyncio
from collections.abc import Callable

import numpy as np

from store.errors import LogFailedError, NoSpaceError
from store.record import FLAG_EARLY, Header, Kind, encode, replace
from timerwheel import admission
from timerwheel.errors import AlreadyDeliveredError, AlreadyRecalledError, NotReadyError
from timerwheel.message import MessageView, Receipt, State
from timerwheel.queries import Current
from timerwheel.sending import Sending
from timerwheel.wheel import ENTRY_DTYPE


class Recalling(Sending):
    """The part of the engine that changes what waits. Belongs to the event loop."""

    async def recall(self, message_id: str) -> MessageView:
        """End a waiting message for good; final when this returns.

        Raises UnknownMessageError, AlreadyDeliveredError, AlreadyRecalledError: each is the truth.
        """
        current = await self._leave(message_id)
        header = current.record.header
        now_ms = self.clock.now_ms()
        cancel = encode(
            Kind.CANCEL,
            current.record.topic.encode(),
            b"",
            b"",
            store_ms=now_ms,
            due_ms=header.due_ms,
            enqueue_ms=header.enqueue_ms,
            queue=header.queue,
            root=current.root,
            root_crc=current.root_crc,
            origin=current.offset,
            prior_due_ms=header.due_ms,
            prior_level=header.level,
        )
        await self._replace_timer(current, cancel)
        return self.view_of(current, State.RECALLED, recalled_ms=now_ms)

    async def reschedule(self, message_id: str, properties: dict[str, str]) -> Receipt:
        """Give a waiting message another due time, keeping its id.

        The new time follows the rules of admission; a time that has come delivers at once. Raises
        AdmissionError, CongestedError, DiskReserveError and what `recall` raises.
        """
        self._check_accepting()
        admission.admit_delay(properties, self.clock.now_ms(), self.rules)
        current = await self._leave(message_id)
        now_ms = self.clock.now_ms()
        try:
            plan = admission.admit_delay(properties, now_ms, self.rules)
            let_go = self.congestion.admit([plan.due_ms] if plan.waits else [], current.record.header.due_ms)
        except BaseException:
            self._stay(current)
            raise
        record = replace(
            current.data,
            current.record.header,
            kind=Kind.TIMER if plan.waits else Kind.MESSAGE,
            origin=current.offset,
            root=current.root,
            root_crc=current.root_crc,
            store_ms=now_ms,
            due_ms=plan.due_ms,
            rolls=current.record.header.rolls,
            level=plan.level if plan.waits else 0,
            flags=0 if plan.waits else FLAG_EARLY,
        )
        await self._replace_timer(current, record, let_go)
        state = State.SCHEDULED if plan.waits else State.DELIVERED
        return Receipt(message_id, current.record.topic, plan.due_ms, state)

    async def _leave(self, message_id: str) -> Current:
        """Take a waiting timer out of the near wheel and put it in flight, in one step of the loop."""
        if self.status != "ready":
            raise NotReadyError(f"the service is {self.status}")
        current = await self.settled(message_id)
        if current.state is State.DELIVERED:
            raise AlreadyDeliveredError(message_id)
        if current.state is State.RECALLED:
            raise AlreadyRecalledError(message_id)
        self._in_flight[current.offset] = asyncio.get_running_loop().create_future()
        self._parts.near.remove(current.offset, current.record.header.due_ms)
        return current

    async def _replace_timer(
        self, current: Current, record: bytes, let_go: Callable[[], None] | None = None
    ) -> None:
        submitted = self._parts.commit.submit([record], [current.record.topic], let_go)
        if let_go is not None:
            submitted.add_done_callback(lambda _: let_go())
        try:
            # Shielded: a caller that goes away must not leave a timer half out of the wheel.
            await asyncio.shield(self._stored_or_back(submitted, current))
        except NoSpaceError:
            self._free_bytes = self._files.free_bytes(self.settings.data)
            raise
        except LogFailedError as error:
            raise NotReadyError(f"the service has failed: {error}") from error

    async def _stored_or_back(self, submitted: asyncio.Future[int], current: Current) -> None:
        try:
            await submitted
        except BaseException:
            self._stay(current)
            raise
        self._arrive(current.offset)

    def _stay(self, current: Current) -> None:
        """The operation failed: the timer waits on."""
        header: Header = current.record.header
        if current.offset not in self._parts.firing.set_aside:
            entry = np.zeros(1, ENTRY_DTYPE)
            entry["due_ms"], entry["root"], entry["offset"] = header.due_ms, current.root, current.offset
            entry["size"], entry["queue"], entry["level"] = header.size, header.queue, header.level
            entry["topic"] = self._parts.recovered.view.topic(current.record.topic).id
            self._parts.near.put_back(entry)
            self._parts.firing.wake.set()
        self._arrive(current.offset)

    def _arrive(self, offset: int) -> None:
        waiting = self._in_flight.pop(offset, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
