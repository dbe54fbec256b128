"""Recall and reschedule: end or replace a pending timer, in competition with firing and other calls.

The timer is taken (`timerwheel.runtime.in_flight`) while its record is being stored. So a firing or a second
caller finds it gone, or waits.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from timerwheel.model import admission
from timerwheel.model.messages import MessageView, Receipt, State
from timerwheel.model.precondition import ALWAYS, Precondition, message_tag
from timerwheel.runtime.core import Core
from timerwheel.runtime.current_record import cancel_of
from timerwheel.runtime.dedup_keys import DedupKeys
from timerwheel.runtime.in_flight import Taken
from timerwheel.runtime.message_reader import Current, MessageReader
from timerwheel.runtime.pending_timers import take_pending
from timerwheel.runtime.sender import Sender, explain
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.state.config_table import CONTROL_TOPIC, Put, encode_puts
from timerwheel.store.record import FLAG_EARLY, Kind, replace, unit_of


class Recalls:
    """Ends and reschedules pending timers. Belongs to the event loop."""

    def __init__(
        self,
        core: Core,
        sender: Sender,
        messages: MessageReader,
        keys: DedupKeys,
        topics: TopicOptions,
    ) -> None:
        self._core = core
        self._topics = topics
        self._clock = core.clock
        self._rules = sender.rules
        self._sender = sender
        self._messages = messages
        self._keys = keys

    async def recall(
        self,
        message_id: str,
        *,
        half: bool = False,
        puts: Sequence[Put] = (),
        when: Precondition = ALWAYS,
    ) -> MessageView:
        """End a scheduled message, or with `half` an open transaction; final when this returns.

        With `puts` these changes of settings are stored in the same unit: both, or neither.
        Raises UnknownMessageError, AlreadyDeliveredError or AlreadyRecalledError, each of which is exact;
        OpenTransactionError or NoOpenTransactionError if it is the other one of the two;
        PreconditionFailedError if it is not as `when` says.
        """
        current, taken = await take_pending(self._core, self._messages, message_id, half=half)
        _check(when, current, taken)
        record, now_ms = current.record, self._clock.now_ms()
        cancel = cancel_of(record.header, record.topic.encode(), current.root, current.offset, now_ms)
        await self.replace_timer(current, taken, cancel, puts=puts)
        return self._messages.view_of(current, State.RECALLED, recalled_ms=now_ms)

    async def recall_key(self, topic: str, key: str, puts: Sequence[Put] = ()) -> MessageView:
        """Recall the message that a deduplication key names, as `recall` does."""
        return await self.recall(await self._keys.id_of(topic, key), puts=puts)

    async def reschedule(
        self, message_id: str, properties: dict[str, str], when: Precondition = ALWAYS
    ) -> Receipt:
        """Give a scheduled message another due time; its id stays the same.

        The new time follows the rules of admission; a time in the past delivers at once. Raises
        AdmissionError, CongestedError, DiskReserveError, TopicEndingError, OpenTransactionError and the
        errors of `recall`.
        """
        self._sender.check_accepting()
        admission.admit_delay(properties, self._clock.now_ms(), self._rules)
        current, taken = await take_pending(self._core, self._messages, message_id)
        _check(when, current, taken)
        now_ms = self._clock.now_ms()
        try:
            self._topics.check_open([current.record.topic])
            plan = admission.admit_delay(properties, now_ms, self._rules)
            release = self._core.slot_limit.admit(
                [plan.due_ms] if plan.waits else [], [current.record.header.due_ms]
            )
            if not plan.waits and self._sender.must_wait(current.record.topic, now_ms):
                plan = msgspec.structs.replace(plan, waits=True)
        except BaseException:
            taken.put_back()
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
        dues_ms = [plan.due_ms] if plan.waits else []
        await self.replace_timer(current, taken, record, release, dues_ms)
        state = State.SCHEDULED if plan.waits else State.DELIVERED
        return Receipt(message_id, current.record.topic, plan.due_ms, state)

    def due_of(self, properties: dict[str, str]) -> int:
        """Return the due time that these delay properties name, counted from now; AdmissionError."""
        return admission.admit_delay(properties, self._clock.now_ms(), self._rules).due_ms

    async def replace_timer(
        self,
        current: Current,
        taken: Taken,
        record: bytes,
        release: Callable[[], None] | None = None,
        dues_ms: Sequence[int] = (),
        puts: Sequence[Put] = (),
    ) -> None:
        """Store the record that ends or replaces a timer that was taken; the errors of a send."""
        records, topics = [record], [current.record.topic]
        if puts:
            records = unit_of([record, encode_puts(puts, self._clock.now_ms())])
            topics.append(CONTROL_TOPIC)
        stored = taken.submit(records, topics, release, dues_ms)
        if release is not None:
            stored.add_done_callback(lambda _: release())
        # Shielded: a cancelled caller must not leave a timer half out of the wheel.
        try:
            await asyncio.shield(stored)
        except BaseException as error:
            explain(error, self._core.disk)
            raise


def _check(when: Precondition, current: Current, taken: Taken) -> None:
    """Raise PreconditionFailedError, with the timer put back, unless the message is as `when` says."""
    header = current.record.header
    try:
        when.check(lambda: message_tag(State.SCHEDULED, header.due_ms))
    except BaseException:
        taken.put_back()
        raise
