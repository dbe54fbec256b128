"""Leasing: consumers are given messages of one group, and the log gets what came of them.

    take      the chooser finds messages -> leases in memory -> deliveries; nothing is stored
    ack       ACK, or CANCEL of a retry  -> group commit     -> the leases are over, the messages done
    fail      RETRY                      -> group commit     -> the leases are over, the messages wait

While records about a message are being stored it is *busy*: other calls wait for the outcome and look again.
If nothing was stored, its lease is as it was.

A receipt is good as long as its lease is the message's newest and was not given back. It is still good for an
acknowledgement when the attempt was not acknowledged in time, and the message waits or is ready again but was
not received: then the work need not be done twice. A receipt of an earlier run of the service is good as long
as its message is not done and nobody else has it; see `timerwheel.groups.receipts` for how that is known
from another at its place.

Only `ack` may be repeated. After it a `nack` or `extend` finds the receipt ended: it would change nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple, TypeGuard

from timerwheel.groups.choosing import Choice, Choices, Chooser, is_other, mark_of
from timerwheel.groups.config import REASON_CHARACTERS_MAX, GroupConfig
from timerwheel.groups.dead_letter_properties import redriven_view
from timerwheel.groups.leases import UNREAD, Lease, Leases
from timerwheel.groups.outlook import Outlook, outlook
from timerwheel.groups.parts import Acknowledged, GroupParts, stored_offset
from timerwheel.groups.receipts import NO_ATTEMPT, Receipts
from timerwheel.model.messages import Delivery, ReceiptResult
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.runtime.outcome import CALL
from timerwheel.runtime.shielded import finished
from timerwheel.state import lease_records
from timerwheel.state.config_table import CONTROL_TOPIC, ConfigTable, Put, encode_puts
from timerwheel.state.groups import DEAD_QUEUE, GroupState, Item, ItemKey, ItemState
from timerwheel.state.limited_records import limits_of
from timerwheel.store.record import unit_of

logger = logging.getLogger("timerwheel")

ENDED = "receipt_ended"
ILLEGAL = "illegal_receipt"
STEP_MESSAGES = 256
"""Leased, or acknowledged, without a pause."""


class Leasing:
    """Leases the messages of one group. Belongs to the event loop.

    `turn` is held while messages are chosen; a change of cursors holds it, too. While that is being stored,
    `resetting` is its outcome: what is stored about a message behind it would outlive it. `freed` is called
    when records about messages were stored, or could not be, and `restored` with the end of each lease of an
    earlier run that is taken up, so that it ends in time.
    """

    def __init__(
        self,
        group: GroupState,
        parts: GroupParts,
        freed: Callable[[], None],
        restored: Callable[[int], None],
    ) -> None:
        self._group = group
        self._parts = parts
        self._name = group.name.encode()
        self._freed = freed
        self._restored = restored
        self._tags: str | None = None
        self._receipts: tuple[int, Receipts] | None = None
        self._acks: tuple[list[Lease], asyncio.Future[int]] | None = None
        self.leases = Leases()
        self.busy: dict[int, asyncio.Future[int]] = {}
        self.resetting: asyncio.Future[int] | None = None
        self.chooser = Chooser(group, parts, self.leases)
        self.turn = asyncio.Lock()

    @property
    def receipts(self) -> Receipts:
        """The receipts of the group as of its last rewind."""
        if self._receipts is None or self._receipts[0] != self._group.since:
            made = Receipts(self._parts.secret, self._group.name, self._group.since)
            self._receipts = (self._group.since, made)
        return self._receipts[1]

    # ------------------------------------------------------------------ giving messages to consumers

    async def take(
        self, count_max: int, invisible_ms: int, bytes_max: int = PAGE_BYTES_MAX
    ) -> list[Delivery]:
        """Lease up to `count_max` messages, those that there are; no more once they have `bytes_max`.

        None while the topic is paused.
        """
        async with self.turn:
            if not self._parts.is_kept(self._group) or self._is_paused:
                return []
            config = self._parts.config(self._group)  # as it is now that it is our turn
            if config.tags != self._tags:
                # Looked over by another filter: what that left out counts from the last message chosen.
                self.chooser.look_again()
                self._tags = config.tags
            choices = await self.chooser.choose(config, count_max, bytes_max)
            self._end_lost(choices)
            if self.chooser.overdue:
                self._store_acks([])
            return await self._lease(choices, invisible_ms)

    async def _lease(self, choices: Choices, invisible_ms: int) -> list[Delivery]:
        """Lease these messages; if that is broken off, others may have them."""
        clock, chosen = self._parts.core.clock, choices.found
        held = [*chosen, *choices.over]
        end_ms = clock.monotonic_ms() + invisible_ms
        until_ms = clock.now_ms() + invisible_ms
        leases: list[Lease] = []
        found: list[Delivery] = []
        try:
            for at in range(0, len(chosen), STEP_MESSAGES):
                if at:
                    await clock.breathe()
                step = chosen[at : at + STEP_MESSAGES]
                made = self._leases(step, end_ms)
                leases += made
                found += self._deliveries(step, made, until_ms)
        except BaseException:
            self._give_back(held)
            raise
        if self._is_paused:  # since this began
            self._give_back(held)
            return []
        if choices.over:
            now_ms = clock.monotonic_ms()
            over = [
                Lease(one.key, one.attempt, 0, 0, now_ms, one.lane, "", one.limits) for one in choices.over
            ]
            self.leases.add_all(over, now_ms)  # they have ended, so the group deals with them
        self.leases.add_all(leases, end_ms)
        self._parts.core.counters.leased += len(leases)
        return found

    @property
    def _is_paused(self) -> bool:
        return self._parts.topics.paused(self._group.topic)

    def _give_back(self, chosen: Sequence[Choice]) -> None:
        for one in chosen:
            self.chooser.give_back(one.key, one.lane)
        self._freed()

    def _leases(self, chosen: Sequence[Choice], end_ms: int) -> list[Lease]:
        run, numbers = self._parts.run, self._parts.numbers
        leases = [
            Lease(
                one.key, one.attempt, run, next(numbers), end_ms, one.lane, "", one.limits, mark_of(one.data)
            )
            for one in chosen
        ]
        for lease, receipt in zip(leases, self.receipts.encode_all(leases), strict=True):
            lease.receipt = receipt
        return leases

    def _deliveries(self, chosen: Sequence[Choice], leases: Sequence[Lease], until_ms: int) -> list[Delivery]:
        messages = self._parts.queues.delivered_views(
            [one.data for one in chosen],
            [one.root for one in chosen],
            [ItemKey.offset(one.key) for one in chosen],
        )
        if self._group.items:
            messages = [
                redriven_view(message) if lease.queue == DEAD_QUEUE else message
                for message, lease in zip(messages, leases, strict=True)
            ]
        return [
            Delivery(message, lease.receipt, lease.attempt, until_ms)
            for message, lease in zip(messages, leases, strict=True)
        ]

    def put_back(self, receipts: Sequence[str]) -> None:
        """Take back leases that no consumer has heard of; one that has ended since has failed."""
        now_ms = self._parts.core.clock.monotonic_ms()
        for receipt in receipts:
            named = self.receipts.decode(receipt)
            if not isinstance(named, Lease) or named.key in self.busy:
                continue
            lease = self.leases.by_key.get(named.key)
            if lease is not None and lease.is_named_by(named) and lease.end_ms > now_ms:
                self.leases.remove(lease.key)
                self.chooser.give_back(lease.key, lease.lane)
        self._freed()

    def restore(self, lease: Lease) -> None:
        """Somebody has this message since before the service started, or says so with a good receipt."""
        item = self._group.items.get(lease.key)
        if item is not None:
            self._group.lend(item)
            lease.lane = item.lane
        lease.limits = UNREAD
        self.chooser.expect(lease.key, lease.lane)
        self.leases.add(lease)
        self._restored(lease.end_ms)

    def is_leased(self, receipt: str) -> bool:
        """Whether somebody has a message under this receipt."""
        if self.leases.of_receipt(receipt) is not None:
            return True
        named = self.receipts.decode(receipt)  # of a lease from before the start, or of none
        if not isinstance(named, Lease):
            return False
        lease = self.leases.by_key.get(named.key)
        return lease is not None and lease.is_named_by(named)

    def is_free(self, lease: Lease) -> bool:
        """Whether the message of this lease of an earlier run is not done, and nobody has it."""
        key = lease.key
        if key in self.leases.by_key:
            return False
        item = self._group.items.get(key)
        if item is not None:
            return key in self._group.ready and item.attempt + 1 == lease.attempt
        queue, offset = lease.queue, lease.queue_offset
        if lease.attempt != 1 or queue >= self._parts.queues.queues_of(self._group.topic):
            return False
        low, high = self._parts.queues.queue_bounds(self._group.topic, queue)
        passed = self._group.passed.get(queue)
        if not low <= offset < high or (passed is not None and offset in passed):
            return False
        if self.chooser.was_looked_at(queue, offset):
            return key in self.chooser.loose
        return lease.lane not in self.chooser.lanes and lease.lane not in self._group.lanes

    # ------------------------------------------------------------------ what consumers say of them

    async def ack(self, receipts: Sequence[str]) -> list[ReceiptResult]:
        """These messages are done, for good when this returns; one that was acknowledged before is ok."""
        if not self._parts.drains(self._group):
            return await self._ack(receipts)
        return await finished(self._drain(receipts))

    async def _drain(self, receipts: Sequence[str]) -> list[ReceiptResult]:
        """Acknowledge the group's own dead letters, which are dead letters no more."""
        async with self._parts.letters_turn:
            return await self._ack(receipts)

    async def _ack(self, receipts: Sequence[str]) -> list[ReceiptResult]:
        return await self._ack_named(receipts, await self._decoded(receipts)).results()

    def begin(self, receipts: Sequence[str]) -> "Ending | None":
        """Start an `ack`; return None, with nothing done, if it must wait for another write."""
        if self._parts.drains(self._group) or len(receipts) > STEP_MESSAGES:
            return None
        named = self._read(receipts)
        if any(self._is_of_another_run(one) for one in named) or self._under_way(named):
            return None
        return self._ack_named(receipts, named)

    def _ack_named(self, receipts: Sequence[str], named: list[Lease | int | None]) -> "Ending":
        current = self.leases.by_key.get
        held = [
            one if isinstance(one, Lease) and current(one.key) is one else self._held(one, late=True)
            for one in named
        ]
        leases = {lease.key: lease for lease in held if lease is not None}
        stored = None
        if leases:
            stored = self.end(list(leases.values()))
            good = [_identity(one) for one, lease in zip(named, held, strict=True) if lease is not None]
            self._note_when(stored, good)
        return Ending(receipts, named, held, stored, self._parts.acknowledged)

    def _note_when(self, stored: asyncio.Future[int], identities: Sequence[int]) -> None:
        """Remember these as acknowledged once that is stored, whether or not their caller still waits."""

        def note(stored: asyncio.Future[int]) -> None:
            if not stored.cancelled() and stored.exception() is None:
                self._parts.acknowledged.add(identities)

        stored.add_done_callback(note)

    async def conclude(
        self, receipt: str, more: Sequence[tuple[bytes, str]], *, given_up: bool = False
    ) -> ReceiptResult:
        """Acknowledge one message, or with `given_up` end its attempts, in one unit with `more`.

        `more` are records and their topics. Unlike an `ack` it is not ok a second time, when it stores
        nothing. Raises TopicEndingError if a topic is being deleted.
        """
        (named,) = await self._decoded([receipt])
        lease = self._held(named, late=True)
        if lease is None:
            return _result(receipt, named, ok=False)
        stored = self._conclude(lease, more, given_up=given_up)
        self._note_when(stored, [_identity(named)])
        await stored_offset(stored)
        return ReceiptResult(receipt, ok=True)

    async def withdraw(self, key: int, more: Callable[[int], Sequence[tuple[bytes, str]]]) -> bool:
        """End a message that no consumer has, in one unit with `more`; False if one has it, or it is done.

        `more` gives records and their topics for the number of attempts that have failed by then.
        """
        async with self.turn:  # so that nobody receives it in the meantime
            named = Lease(key, 1, 0, 0)
            while under_way := self._under_way([named]):
                await asyncio.wait(under_way)
            item = self._group.items.get(key)
            if key in self.leases.by_key or (item is not None and item.lent):
                return False
            if item is None and self.chooser.is_known(named.queue, named.queue_offset):
                return False
            lease = named if item is None else pending_of(item)
            records = more(0 if item is None else item.attempt)
            await stored_offset(self._conclude(lease, records))
            if item is None:  # only now: if that could not be stored, it may still be received
                self.chooser.expect(key, 0)
            return True

    async def reschedule_retry(self, key: int, due_ms: int) -> bool:
        """Change when a nacked message is retried; False if it has no retry pending."""
        named = Lease(key, 1, 0, 0)
        while under_way := self._under_way([named]):
            await asyncio.wait(under_way)
        item = self._group.items.get(key)
        if item is None or item.state != ItemState.WAITING or not item.ended:
            return False
        await stored_offset(self.retime([item], [due_ms], ended=True))
        return True

    async def leases_of(self, receipts: Sequence[str]) -> "ReceiptLeases":
        """Return what receipts say, and their leases, when nothing is being stored about their messages."""
        named = await self._decoded(receipts)
        return ReceiptLeases(receipts, named, [self._held(one, late=False) for one in named])

    async def extend(
        self, config: GroupConfig, receipts: Sequence[str], invisible_ms: int
    ) -> list[ReceiptResult]:
        """Keep these messages for `invisible_ms` from now; their receipts stay good."""
        found = await self.leases_of(receipts)
        end_ms = self._parts.core.clock.monotonic_ms() + invisible_ms
        logged = []
        for lease in found.leases:
            if lease.key in self.leases.by_key:
                self.leases.extend(lease, end_ms)
            else:
                logged.append(self._group.items[lease.key])
        if logged:
            now_ms = self._parts.core.clock.now_ms()
            again_ms = [
                self._parts.comes_back_ms(config, item.attempt, invisible_ms, now_ms) for item in logged
            ]
            await stored_offset(self.retime(logged, again_ms, ended=False))
        return found.results()

    async def _decoded(self, receipts: Sequence[str]) -> list[Lease | int | None]:
        """What the receipts say, when nothing is being stored about their messages."""
        if len(receipts) > STEP_MESSAGES:
            await self._parts.core.clock.breathe()
        named, since = self._read(receipts), self._group.since
        strangers = [one for one in named if self._is_of_another_run(one)]
        if strangers:
            await self._compare(strangers)
        while under_way := self._under_way(named):
            await asyncio.wait(under_way)
        if self._group.since != since:  # a rewind has ended all receipts; this run's went with the leases
            for one in strangers:
                one.attempt = NO_ATTEMPT
        return named

    async def _compare(self, strangers: Sequence[Lease]) -> None:
        """Find the lanes of receipts of another run; one whose message is another now is of no attempt.

        No message is put at a queue offset twice in one run, so this stays as it is found.
        """
        found = await self.chooser.look_up([one.key for one in strangers])
        for one in strangers:
            if (message := found.get(one.key)) is None:
                continue
            mark, one.lane = message
            if is_other(one.mark, mark):
                one.attempt = NO_ATTEMPT

    def _read(self, receipts: Sequence[str]) -> list[Lease | int | None]:
        current, decode = self.leases.of_receipt, self.receipts.decode
        return [current(receipt) or decode(receipt) for receipt in receipts]

    def _is_of_another_run(self, named: Lease | int | None) -> TypeGuard[Lease]:
        return isinstance(named, Lease) and named.run != self._parts.run

    def _under_way(self, named: Sequence[Lease | int | None]) -> set[asyncio.Future[Any]]:
        """The outcomes to wait for: records about these messages, timers of theirs that fire or are moved."""
        busy, group = self.busy, self._group
        if self.resetting is not None:
            return {self.resetting}
        if not group.items and busy.keys().isdisjoint([one.key for one in named if isinstance(one, Lease)]):
            return set()
        found: set[asyncio.Future[Any]] = set()
        for one in named:
            if one is None:
                continue
            item = group.by_root.get(one) if isinstance(one, int) else group.items.get(one.key)
            key = one.key if isinstance(one, Lease) else None if item is None else item.key
            if key in busy:
                found.add(busy[key])
            if item is not None and item.timed:
                outcome = self._parts.core.in_flight.outcome(item.offset)
                if outcome is not None:
                    found.add(outcome)
        return found

    def _held(self, named: Lease | int | None, *, late: bool) -> Lease | None:
        """The lease of a receipt that is good, for an acknowledgement also if it is `late`."""
        if isinstance(named, Lease):
            lease = self.leases.by_key.get(named.key)
            if lease is not None:
                # What has ended in time is about to be given up, or to wait: it can no longer be prolonged.
                good = late or lease.end_ms > self._parts.core.clock.monotonic_ms()
                return lease if good and lease.is_named_by(named) else None
            if named.run != self._parts.run and self.is_free(named):
                # For as long as its group leases by default: if nothing can be stored it is nobody's again.
                invisible_ms = self._parts.config(self._group).invisible_ms
                named.end_ms = self._parts.core.clock.monotonic_ms() + invisible_ms
                self.restore(named)
                return named
        if named is None:
            return None
        item = self._group.by_root.get(named) if isinstance(named, int) else self._group.items.get(named.key)
        if item is None or item.lent or item.ended:
            return None
        if isinstance(named, int):
            good = item.state == ItemState.LEASED or (late and item.state == ItemState.READY)
        else:
            good = late and item.state != ItemState.LEASED and item.attempt == named.attempt != NO_ATTEMPT
        return pending_of(item) if good else None

    # ------------------------------------------------------------------ what became of them

    def end(self, leases: Sequence[Lease]) -> asyncio.Future[int]:
        """The messages of these leases are done; the future is done when that is durable, or fails."""
        held = self._items_of(leases)
        if not held and not self._parts.drains(self._group):
            return self._end_fresh(leases)
        now_ms = self._parts.core.clock.now_ms()
        keys = sorted(lease.key for lease in leases if lease.key not in self._group.items)
        records = [lease_records.end(self._name, item, now_ms) for item in held]
        records += [lease_records.ack(self._name, *stretch, now_ms) for stretch in stretches(keys)]
        topics = [self._group.name] * len(records)
        if self._parts.drains(self._group):
            letters = [lease.queue_offset for lease in leases if lease.queue != DEAD_QUEUE]
            topic = self._group.topic.encode()
            records += [lease_records.take_dead(topic, offset, now_ms) for offset in letters]
            topics += [self._group.topic] * len(letters)
        stored = self.submit(records, topics, held)
        self.watch(leases, stored, done=True)
        return stored

    def _conclude(
        self, lease: Lease, more: Sequence[tuple[bytes, str]], *, given_up: bool = False
    ) -> asyncio.Future[int]:
        """End one message, in one unit with other records and in this order after them."""
        self._parts.topics.check_open([topic for _, topic in more])
        items = self._items_of([lease])
        last = self.end_record(lease, self._parts.core.clock.now_ms(), given_up=given_up)
        records = [*(record for record, _ in more), last]
        topics = [*(topic for _, topic in more), self._group.name]
        stored = self.submit(records, topics, items)
        self.watch([lease], stored, done=True)
        return stored

    def end_record(self, lease: Lease, now_ms: int, *, given_up: bool = False) -> bytes:
        """Return the record that ends the message of a lease, or with `given_up` gives it up in place."""
        item = self._group.items.get(lease.key)
        if item is not None:
            return lease_records.end(self._name, item, now_ms, given_up=given_up)
        place = (lease.queue, lease.queue_offset, lease.queue_offset + 1)
        return lease_records.ack(self._name, *place, now_ms, given_up=given_up)

    def _items_of(self, leases: Sequence[Lease]) -> list[Item]:
        """Return the items among these messages; nobody else gets them from now on."""
        items = [item for lease in leases if (item := self._group.items.get(lease.key)) is not None]
        for item in items:
            if item.state == ItemState.READY:
                self._group.lend(item)
        return items

    def _end_fresh(self, leases: Sequence[Lease]) -> asyncio.Future[int]:
        """End fresh messages; those of one turn of the loop are stored together, as few stretches."""
        loop = asyncio.get_running_loop()
        if self._acks is None:
            gathered, stored = self._acks = ([], loop.create_future())
            # The callbacks of a future run back to back, and this is the first; callers note what they have
            # acknowledged in theirs. So nobody can find a lease that is over and not yet noted.
            stored.add_done_callback(partial(self._acks_stored, gathered))
            # Of no call: each call that shares the write notes it for itself.
            loop.call_soon(self._store_turn, context=Context())
        gathered, stored = self._acks
        gathered += leases
        self.busy.update(dict.fromkeys([lease.key for lease in leases], stored))
        if (call := CALL.get()) is not None:
            call.note(stored)
        return stored

    def _store_turn(self) -> None:
        assert self._acks is not None
        (leases, stored), self._acks = self._acks, None
        self._store_acks(leases, stored)

    def _acks_stored(self, leases: Sequence[Lease], stored: asyncio.Future[int]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            self._over(leases, done=True)
        self._unbusy(leases)

    def _store_acks(self, leases: Sequence[Lease], stored: asyncio.Future[int] | None = None) -> None:
        """Store ACK records of these and of what was skipped; `stored` takes the outcome."""
        skipped = self.chooser.take_skipped()
        keys = sorted([lease.key for lease in leases])
        now_ms = self._parts.core.clock.now_ms()
        records = [lease_records.ack(self._name, *stretch, now_ms) for stretch in stretches(keys)]
        records += [lease_records.skip(self._name, *stretch, now_ms) for stretch in skipped]
        done = self._parts.core.commit.submit(records, [self._group.name] * len(records))

        def finish(done: asyncio.Future[int]) -> None:
            error = done.exception()
            if error is not None:
                for stretch in skipped:
                    self.chooser.skip(*stretch)
            if stored is None:
                self._freed()
            elif error is None:
                stored.set_result(done.result())
            else:
                stored.set_exception(error)
                stored.exception()  # marks the error as retrieved, waiter or not

        done.add_done_callback(finish)

    def fail(
        self, leases: Sequence[Lease], dues_ms: Sequence[int], *, ended: bool, reason: str | None = None
    ) -> list[asyncio.Future[int]]:
        """The attempts of these leases failed, the next are due then; `ended` if they were given back.

        Returns the outcomes, which share a commit.
        """
        logged: list[tuple[Item, int]] = []
        rest: list[tuple[Lease, int]] = []
        for lease, due_ms in zip(leases, dues_ms, strict=True):
            item = self._group.items.get(lease.key)
            if item is not None and is_in_log(item):
                logged.append((item, due_ms))
            else:
                rest.append((lease, due_ms))
        stored = [self._fail(rest, ended=ended, reason=reason)] if rest else []
        if logged:
            items, again_ms = zip(*logged, strict=True)
            stored.append(self.retime(items, again_ms, ended=ended, reason=reason))
        return stored

    def _fail(
        self, failed: Sequence[tuple[Lease, int]], *, ended: bool, reason: str | None
    ) -> asyncio.Future[int]:
        now_ms = self._parts.core.clock.now_ms()
        records: list[bytes] = []
        for lease, due_ms in failed:
            place = (lease.queue, lease.queue_offset)
            if lease.lane and lease.key not in self._group.items:
                records.append(lease_records.hold(self._name, place, now_ms, lease.lane))
            retry = lease_records.retry(self._name, place, lease.attempt, now_ms, due_ms, ended=ended)
            records.append(retry)
        leases = [lease for lease, _ in failed]
        stored = self._submit_with_reason(records, leases, (), reason)
        self.watch(leases, stored, done=False)
        return stored

    def _submit_with_reason(
        self, records: list[bytes], leases: Sequence[Lease], items: Sequence[Item], reason: str | None
    ) -> asyncio.Future[int]:
        """Submit records, followed by one that keeps the failure reason, and changes nothing."""
        topics = [self._group.name] * len(records)
        if reason is not None:
            places = [(lease.queue, lease.queue_offset) for lease in leases]
            failure = {"places": places, "reason": reason[:REASON_CHARACTERS_MAX]}
            now_ms = self._parts.core.clock.now_ms()
            records.append(encode_puts([Put(ConfigTable.FAILURE, self._group.name, failure)], now_ms))
            topics.append(CONTROL_TOPIC)
        return self.submit(records, topics, items)

    def retime(
        self, items: Sequence[Item], dues_ms: Sequence[int], *, ended: bool, reason: str | None = None
    ) -> asyncio.Future[int]:
        """Do what `fail` does, or without `ended` what `extend` does, for items whose lease is in the log."""
        now_ms = self._parts.core.clock.now_ms()
        records = [
            lease_records.retime(self._name, item, now_ms, due_ms, ended=ended)
            for item, due_ms in zip(items, dues_ms, strict=True)
        ]
        leases = [Lease(item.key, item.attempt, 0, 0) for item in items]
        stored = self._submit_with_reason(records, leases, items, reason)
        self.watch(leases, stored, done=False)
        return stored

    def expire(self, leases: Sequence[Lease]) -> asyncio.Future[int]:
        """The TTL of these messages is over, so the group is done with them; as `end`."""
        held = self._items_of(leases)
        now_ms = self._parts.core.clock.now_ms()
        keys = sorted(lease.key for lease in leases if lease.key not in self._group.items)
        records = [lease_records.end(self._name, item, now_ms, expired=True) for item in held]
        records += [lease_records.expire(self._name, *stretch, now_ms) for stretch in stretches(keys)]
        stored = self.submit(records, [self._group.name] * len(records), held)
        self.watch(leases, stored, done=True)
        stored.add_done_callback(lambda done: self._count_expired(done, len(leases)))
        return stored

    def _count_expired(self, stored: asyncio.Future[int], count: int) -> None:
        if not stored.cancelled() and stored.exception() is None:
            self._parts.core.counters.expired += count

    def take_back(self, lease: Lease) -> None:
        """Nobody has this message, and it need not be ended any more: it may be leased."""
        self.leases.remove(lease.key)
        self.chooser.give_back(lease.key, lease.lane)

    @staticmethod
    def is_unknown(config: GroupConfig, lease: Lease) -> bool:
        """Whether the message must be read to know what limits its attempts."""
        return lease.limits is UNREAD or (lease.limits is None and config.max_age_ms is not None)

    async def look_into(self, config: GroupConfig, leases: Iterable[Lease]) -> None:
        """Find out the limits of the messages of these leases, as far as nobody has."""
        for lease in leases:
            if not self.is_unknown(config, lease):
                continue
            topic, queue = self._parts.place_of(self._group, lease.queue)
            found = await self._parts.read(topic, queue, lease.queue_offset, 1)
            data = found.data[0] if found.has(lease.queue_offset) else None
            lease.limits = limits_of(data) if isinstance(data, bytes) else None

    def outlook(self, config: GroupConfig, lease: Lease, wait_ms: int) -> Outlook:
        """What becomes of a message if this attempt has failed, whose next one comes after `wait_ms`."""
        limits = None if lease.limits is UNREAD else lease.limits
        age_ms = 0 if limits is None else self._parts.ages.age_ms(limits.from_ms)
        return outlook(config, limits, lease.attempt, age_ms, wait_ms)

    def submit(
        self, records: Sequence[bytes], topics: Sequence[str], items: Sequence[Item]
    ) -> asyncio.Future[int]:
        """Store a unit that ends or replaces the timers of those items that have one."""
        timed = [item for item in items if item.timed]
        unit = unit_of(list(records))
        if not timed:
            return self._parts.core.commit.submit(unit, topics)
        return self._parts.core.in_flight.take(self._parts.entries(self._group, timed)).submit(unit, topics)

    def _end_lost(self, choices: Choices) -> None:
        """End items whose message retention has removed, or that was dealt with as a dead letter."""
        lost = [*choices.gone, *choices.dealt]
        if not lost:
            return
        if choices.gone:
            lost_messages = (len(choices.gone), self._group.name)
            logger.warning("retention removed %d messages that group %s had not acknowledged", *lost_messages)
        now_ms = self._parts.core.clock.now_ms()
        records = [lease_records.end(self._name, item, now_ms) for item in lost]
        stored = self.submit(records, [self._group.name] * len(records), ())
        self.watch([pending_of(item) for item in lost], stored, done=True)

    def watch(self, leases: Sequence[Lease], stored: asyncio.Future[int], *, done: bool) -> None:
        """Records are being stored that make these messages `done`, or wait: keep others from them."""
        self.busy.update(dict.fromkeys([lease.key for lease in leases], stored))

        def finish(stored: asyncio.Future[int]) -> None:
            if not stored.cancelled() and stored.exception() is None:
                self._over(leases, done=done)
            else:
                for lease in leases:
                    item = self._group.items.get(lease.key)
                    if item is not None and lease.key not in self.leases.by_key:
                        self._group.give_back(item)
            self._unbusy(leases)

        stored.add_done_callback(finish)

    def _over(self, leases: Iterable[Lease], *, done: bool) -> None:
        self.leases.remove_all(leases)
        for lease in leases if done else ():
            if lease.lane:
                self.chooser.leave_lane(lease.key, lease.lane)

    def _unbusy(self, leases: Iterable[Lease]) -> None:
        no_longer = self.busy.pop
        for lease in leases:
            no_longer(lease.key, None)
        self._freed()

    # ------------------------------------------------------------------ starting over

    async def restart(self, stored: asyncio.Future[int]) -> None:
        """Forget all leases, and what was looked at, once the cursors are stored; until then receipts wait.

        Raises what kept them from being stored; then nothing is forgotten.
        """
        self.resetting = stored
        try:
            await stored_offset(stored)
            self.leases.clear()
            self.chooser.restart()
        finally:
            self.resetting = None

    async def settle(self) -> None:
        """Wait until nothing is being stored about any message."""
        while self.busy:
            await asyncio.wait(set(self.busy.values()))


class ReceiptLeases(NamedTuple):
    """What receipts say, and the lease of each that is good."""

    receipts: Sequence[str]
    named: Sequence[Lease | int | None]
    held: Sequence[Lease | None]

    @property
    def leases(self) -> list[Lease]:
        """The leases, each once."""
        return list({lease.key: lease for lease in self.held if lease is not None}.values())

    def results(self) -> list[ReceiptResult]:
        """One result for each receipt."""
        return [
            _result(receipt, one, ok=lease is not None)
            for receipt, one, lease in zip(self.receipts, self.named, self.held, strict=True)
        ]


class Ending(NamedTuple):
    """Messages whose acknowledgement is on its way into the log."""

    receipts: Sequence[str]
    named: Sequence[Lease | int | None]
    held: Sequence[Lease | None]
    stored: asyncio.Future[int] | None
    """None if no receipt is good."""
    acknowledged: Acknowledged

    async def results(self) -> list[ReceiptResult]:
        """One result for each receipt, when the acknowledgements are durable."""
        if self.stored is not None:
            await stored_offset(self.stored)
        return [
            ReceiptResult(receipt, ok=True)
            if lease is not None
            else _result(receipt, one, ok=_identity(one) in self.acknowledged)
            for receipt, one, lease in zip(self.receipts, self.named, self.held, strict=True)
        ]


def _identity(named: Lease | int | None) -> int:
    """What no other receipt says; 0 is none."""
    return named.identity if isinstance(named, Lease) else ~named if named is not None else 0


def _result(receipt: str, named: Lease | int | None, *, ok: bool) -> ReceiptResult:
    if ok:
        return ReceiptResult(receipt, ok=True)
    return ReceiptResult(receipt, ok=False, code=ILLEGAL if named is None else ENDED)


def pending_of(item: Item) -> Lease:
    """An item that no consumer has, as the attempt that it failed."""
    return Lease(item.key, item.attempt, 0, 0, lane=item.lane)


def stretches(keys: Sequence[int]) -> list[tuple[int, int, int]]:
    """Ascending keys as stretches: queue, first queue offset, one past the last."""
    found: list[tuple[int, int, int]] = []
    first = end = -1
    for key in keys:
        if key != end:
            if first >= 0:
                found.append((ItemKey.queue(first), ItemKey.offset(first), ItemKey.offset(end - 1) + 1))
            first = key
        end = key + 1
    if first >= 0:
        found.append((ItemKey.queue(first), ItemKey.offset(first), ItemKey.offset(end - 1) + 1))
    return found


def is_in_log(item: Item) -> bool:
    """Whether a consumer has it by a lease that an earlier version stored."""
    return item.state == ItemState.LEASED
