"""Transactions: a message that is stored now, and delivered only if its sender commits it.

    begin     the half message: a TIMER in its own topic that is due at HALF_DUE_MS, which never comes
    commit    that timer gets the due time that the message asks for, counted from now; its id stays
    rollback  the timer is ended, like a recall

1. So whether a transaction is open follows from the due time of its timer, and each ends once: as a message,
   or recalled. All that time the log, the wheel and every job know it as a timer.
2. Who began a transaction and did not end it is asked: `transaction_timeout_ms` after the beginning, then
   every `transaction_interval_ms`. After `transaction_checks_max` checks without an end it is rolled
   back. Checks are counted in memory, from 0 at each start, so no time out of service drops anything.
3. A check does not count if the sender could not be asked, so one that comes back is asked before the end.
"""

import asyncio
import bisect
import heapq
import logging
from collections.abc import Callable

import msgspec
import orjson

from timerwheel.errors import (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    Fault,
    IllegalCursorError,
    NoOpenTransactionError,
    NotReadyError,
    OutcomeUnknownError,
    RefusedError,
    UnknownMessageError,
)
from timerwheel.model import admission
from timerwheel.model.admission import ENVELOPE_PROPERTY, HALF_DUE_MS, HALF_PROPERTY, Plan
from timerwheel.model.ids import root_in, root_of
from timerwheel.model.messages import MessageView, OpenPage, OpenTransaction, Outgoing, Receipt, State
from timerwheel.runtime.core import Core
from timerwheel.runtime.message_reader import Current, MessageReader
from timerwheel.runtime.pending_timers import take_pending
from timerwheel.runtime.recall import Recalls
from timerwheel.runtime.sender import Sender, explain
from timerwheel.runtime.shielded import finished, shielded
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.state.limited_records import flag_of
from timerwheel.store.errors import CorruptionError, LogFailedError, NoSpaceError
from timerwheel.store.record import FLAG_EARLY, Kind, crc_of, encode, encode_properties

logger = logging.getLogger("timerwheel")

CHECK_MS = 1_000
"""How often it is looked which transactions are to be checked."""
PAGE_MESSAGES = 500
CHECKED_AT_ONCE = 64
"""Transactions that are checked together: each one's message is read."""
LOOKED_AT_MAX = 10_000
"""Most open transactions to look at for one page."""

OnCheck = Callable[[Current, int], bool]
"""Called with an open transaction's message, and the number of the check from 1.

Returns False if the sender is one that it asks, and cannot be asked now; then the check does not count.
"""


class _Open(msgspec.Struct):
    """A transaction in memory; `next_ms` is monotonic."""

    id: str
    topic: str
    began_ms: int
    next_ms: int
    checks: int = 0


class Transactions:
    """Begins and ends transactions, and has open ones checked. Belongs to the event loop."""

    def __init__(
        self, core: Core, sender: Sender, recalls: Recalls, messages: MessageReader, topics: TopicOptions
    ) -> None:
        self._core = core
        self._topics = topics
        self._clock = core.clock
        self._settings = core.settings
        self._sender = sender
        self._recalls = recalls
        self._messages = messages
        self._open: dict[int, _Open] = {}  # by the log offset of the half message
        self._next: list[tuple[int, int]] = []
        self.on_check: list[OnCheck] = []
        """All are called: each protocol asks the senders that it knows."""

    async def begin(self, message: Outgoing) -> OpenTransaction:
        """Store a half message; durable when this returns. Its delay counts from the commit.

        Raises RefusedError for what a send would refuse, and for a deduplication key; DiskReserveError,
        NotReadyError, NoSpaceError, OutcomeUnknownError as a send does.
        """
        self._sender.check_accepting()
        properties = {name: value for name, value in message.spelled.items() if name != HALF_PROPERTY}
        plain = msgspec.structs.replace(message, properties=properties, after_ms=None, at_ms=None)
        faults = self._sender.check([plain])
        if message.dedup_key is not None:
            detail = "a half message takes no deduplication key: its id names it, and it is committed once"
            faults.append(Fault(0, "transactional", detail))
        if not faults and self._sender.topics_without_room([message.topic]):
            faults.append(self._sender.too_many_topics(0))
        if faults:
            raise RefusedError(faults)
        return await finished(self._begin(plain))

    async def _begin(self, message: Outgoing) -> OpenTransaction:
        now_ms = self._clock.now_ms()
        properties = {**message.properties, HALF_PROPERTY: "true"}
        if message.envelope:
            properties[ENVELOPE_PROPERTY] = message.envelope
        text = encode_properties(properties)
        times_ms = (now_ms, HALF_DUE_MS, now_ms)
        queue = self._sender.queue_of(message)
        name, flags = message.topic.encode(), flag_of(properties)
        unit = [encode(Kind.TIMER, name, text, message.body, *times_ms, flags=flags, queue=queue)]
        self._topics.check_open([message.topic])
        try:
            offset = await self._core.commit.submit(unit, [message.topic])
        except (NoSpaceError, LogFailedError) as error:
            explain(error, self._core.disk)
            raise
        message_id = self._core.ids.encode(offset, crc_of(unit[0]))
        self._watch(message_id, message.topic, now_ms)
        return self._view(self._open[offset])

    @shielded
    async def commit(self, message_id: str) -> Receipt:
        """Have a message delivered after the delay that it was begun with; final when this returns.

        Its id stays. Raises UnknownMessageError, AlreadyRecalledError if it was rolled back,
        AlreadyDeliveredError or NoOpenTransactionError if it was committed. After CongestedError or
        NoSpaceError it stays open. Limits that were lowered since the beginning do not count.
        """
        current, taken = await take_pending(self._core, self._messages, message_id, half=True)
        record, now_ms = current.record, self._clock.now_ms()
        header = record.header
        try:
            self._topics.check_open([record.topic])
            properties: dict[str, str] = orjson.loads(record.properties)
            properties.pop(HALF_PROPERTY)
            envelope = {name: properties.pop(name) for name in (ENVELOPE_PROPERTY,) if name in properties}
            plan = admission.plan_accepted(properties, now_ms, self._sender.rules.levels, from_ms=now_ms)
            plan = self._sender.after_its_level(plan) if plan.level else plan
            delayed_ms = [plan.due_ms] if plan.waits else []
            if not plan.waits and self._sender.must_wait(record.topic, now_ms):
                plan = msgspec.structs.replace(plan, waits=True)
            stored = plan.properties | envelope
            committed = encode(
                Kind.TIMER if plan.waits else Kind.MESSAGE,
                record.topic.encode(),
                encode_properties(stored) if stored else b"",
                record.body,
                store_ms=now_ms,
                due_ms=plan.due_ms,
                enqueue_ms=header.enqueue_ms,
                # Early, because it is before the due time of the half message.
                flags=flag_of(stored) | (0 if plan.waits else FLAG_EARLY),
                level=plan.level,
                queue=header.queue,
                root=current.root,
                root_crc=current.root_crc,
                origin=current.offset,
                prior_due_ms=header.due_ms,
            )
            release = self._core.slot_limit.admit(delayed_ms)
        except BaseException:
            taken.put_back()
            raise
        dues_ms = [plan.due_ms] if plan.waits else []
        await self._recalls.replace_timer(current, taken, committed, release, dues_ms)
        self._open.pop(current.root, None)
        return _receipt(message_id, record.topic, plan)

    async def rollback(self, message_id: str) -> MessageView:
        """End a transaction: its message is never delivered. Raises what `commit` does of its state."""
        view = await finished(self._recalls.recall(message_id, half=True))
        self._open.pop(root_of(message_id), None)
        return view

    def forget(self, topic: str) -> None:
        """Forget the open transactions of a topic, which were rolled back with it."""
        self._open = {root: one for root, one in self._open.items() if one.topic != topic}

    def page(
        self,
        topics: Callable[[str], bool] = lambda _: True,
        limit: int = 100,
        cursor: str | None = None,
    ) -> OpenPage:
        """Return open transactions of these topics, oldest first; IllegalCursorError."""
        begin = 0
        roots = sorted(self._open)  # almost in order, so fast
        if cursor is not None:
            if (last := root_in(cursor)) is None:
                raise IllegalCursorError(cursor)
            begin = bisect.bisect_right(roots, last)
        found: list[OpenTransaction] = []
        for root in roots[begin : begin + LOOKED_AT_MAX]:
            one = self._open[root]
            if topics(one.topic):
                found.append(self._view(one))
            begin += 1
            if len(found) == limit:
                break
        return OpenPage(found, self._open[roots[begin - 1]].id if begin < len(roots) else None)

    def open_at(self, log_offset: int) -> OpenTransaction | None:
        """Return the open transaction whose half message was stored at this log offset."""
        one = self._open.get(log_offset)
        return None if one is None else self._view(one)

    # ------------------------------------------------------------------ checks

    async def at_start(self) -> None:
        """Find the transactions that are open."""
        cursor: str | None = None
        while True:
            page = await self._messages.pending(due_from_ms=HALF_DUE_MS, limit=PAGE_MESSAGES, cursor=cursor)
            for message in page.messages:
                self._watch(message.id, message.topic, message.enqueue_ms)
            cursor = page.cursor
            if cursor is None:
                return

    async def run(self) -> None:
        """Have transactions checked that are open for long, until cancelled."""
        while True:
            await self._clock.sleep_for(CHECK_MS)
            try:
                await self.check_due()
            except (NoSpaceError, NotReadyError, OutcomeUnknownError) as error:
                logger.warning("transactions cannot be rolled back yet: %s", error)

    async def check_due(self) -> None:
        """Check what is to be checked now, and roll back what was checked in vain."""
        now_ms = self._clock.monotonic_ms()
        while due := self._take_due(now_ms):
            # Together, so that the rollbacks share a write to the log.
            done = await asyncio.gather(
                *(self._check_one(root, one) for root, one in due), return_exceptions=True
            )
            for error in done:
                if error is not None:
                    raise error

    def _take_due(self, now_ms: int) -> list[tuple[int, _Open]]:
        due: list[tuple[int, _Open]] = []
        while self._next and self._next[0][0] <= now_ms and len(due) < CHECKED_AT_ONCE:
            at_ms, root = heapq.heappop(self._next)
            one = self._open.get(root)
            if one is not None and one.next_ms == at_ms:
                self._plan(root, one, now_ms + self._settings.transaction_interval_ms)
                due.append((root, one))
        return due

    async def _check_one(self, root: int, one: _Open) -> None:
        try:
            await self._check(root, one)
        except (AlreadyDeliveredError, AlreadyRecalledError, NoOpenTransactionError, UnknownMessageError):
            self._open.pop(root, None)  # its sender ended it at the same time
        except CorruptionError:
            logger.warning(
                "transaction %s cannot be read; it is no longer checked: if no backup has it, "
                "`timerwheel recall %s --damaged` ends it",
                one.id,
                one.id,
            )
            self._open.pop(root, None)

    async def _check(self, root: int, one: _Open) -> None:
        if one.checks >= self._settings.transaction_checks_max:
            await self.rollback(one.id)
            logger.warning("rolled back transaction %s: %d checks had no answer", one.id, one.checks)
            return
        current = await self._messages.current(one.id)
        if current.state is not State.SCHEDULED or current.record.header.due_ms != HALF_DUE_MS:
            self._open.pop(root, None)
            return
        if self._counts(current, one.checks + 1):
            one.checks += 1

    def _counts(self, current: Current, check: int) -> bool:
        """Have the sender asked; returns whether this counts as a check."""
        asked = [self._asked(on_check, current, check) for on_check in self.on_check]
        return all(asked)

    def _asked(self, on_check: OnCheck, current: Current, check: int) -> bool:
        try:
            return on_check(current, check)
        except Exception:  # one sender that cannot be asked must not end the checks of the others
            logger.exception("transaction %s could not be checked", current.message_id)
            return True

    def _watch(self, message_id: str, topic: str, began_ms: int) -> None:
        root = root_of(message_id)
        if root in self._open:  # begun while the service started
            return
        one = self._open[root] = _Open(message_id, topic, began_ms, 0)
        self._plan(root, one, self._clock.monotonic_ms() + self._settings.transaction_timeout_ms)

    def _plan(self, root: int, one: _Open, at_ms: int) -> None:
        one.next_ms = at_ms
        heapq.heappush(self._next, (at_ms, root))

    def _view(self, one: _Open) -> OpenTransaction:
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        return OpenTransaction(one.id, one.topic, one.began_ms, one.checks, one.next_ms + ahead_ms)


def _receipt(message_id: str, topic: str, plan: Plan) -> Receipt:
    return Receipt(message_id, topic, plan.due_ms, State.SCHEDULED if plan.waits else State.DELIVERED)
