"""Leasing: consumers are given messages of one group, and the log gets what came of them.

    take      the chooser finds messages -> leases in memory -> deliveries; nothing is stored
    end       ACK, or CANCEL of a retry  -> group commit     -> the leases are over, the messages done
    fail      RETRY                      -> group commit     -> the leases are over, the messages wait

While records about a message are being stored it is *busy*: other calls wait for the outcome and look again.
If nothing was stored, its lease is as it was.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context

from timerwheel.groups.choosing import Choice, Choices, Chooser
from timerwheel.groups.config import REASON_CHARACTERS_MAX, GroupConfig
from timerwheel.groups.dead_letter_properties import redriven_view
from timerwheel.groups.leases import UNREAD, Lease, Leases
from timerwheel.groups.outlook import Outlook, outlook
from timerwheel.groups.parts import GroupParts
from timerwheel.groups.receipts import Receipts
from timerwheel.model.messages import Delivery
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.runtime.outcome import CALL
from timerwheel.state import lease_records
from timerwheel.state.config_table import CONTROL_TOPIC, ConfigTable, Put, encode_puts
from timerwheel.state.groups import DEAD_QUEUE, OFFSET_BITS, GroupState, Item, ItemState
from timerwheel.state.limited_records import limits_of
from timerwheel.store.record import unit_of

logger = logging.getLogger("timerwheel")

STEP_MESSAGES = 256
"""Leased, or acknowledged, without a pause."""
_OFFSETS = (1 << OFFSET_BITS) - 1


class Leasing:
    """Leases the messages of one group. Belongs to the event loop.

    `turn` is held while messages are chosen; a change of cursors holds it, too. While that is being stored,
    `resetting` is its outcome: what is stored about a message behind it would outlive it. `freed` is called
    when records about messages were stored, or could not be.
    """

    def __init__(self, group: GroupState, parts: GroupParts, freed: Callable[[], None]) -> None:
        self._group = group
        self._parts = parts
        self._name = group.name.encode()
        self._freed = freed
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
            Lease(one.key, one.attempt, run, next(numbers), end_ms, one.lane, "", one.limits)
            for one in chosen
        ]
        for lease, receipt in zip(leases, self.receipts.encode_all(leases), strict=True):
            lease.receipt = receipt
        return leases

    def _deliveries(self, chosen: Sequence[Choice], leases: Sequence[Lease], until_ms: int) -> list[Delivery]:
        messages = self._parts.queues.delivered_views(
            [one.data for one in chosen],
            [one.root for one in chosen],
            [one.key & _OFFSETS for one in chosen],
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

    # ------------------------------------------------------------------ what became of them

    def end(self, leases: Sequence[Lease]) -> asyncio.Future[int]:
        """The messages of these leases are done; the future is done when that is durable, or fails."""
        held = [item for lease in leases if (item := self._group.items.get(lease.key)) is not None]
        if not held and not self._parts.drains(self._group):
            return self._end_fresh(leases)
        for item in held:
            if item.state == ItemState.READY:
                self._group.lend(item)
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

    def conclude(
        self, lease: Lease, more: Sequence[tuple[bytes, str]], *, given_up: bool = False
    ) -> asyncio.Future[int]:
        """As `end` of one message, in one unit with other records and in this order after them."""
        self._parts.topics.check_open([topic for _, topic in more])
        item = self._group.items.get(lease.key)
        if item is not None and item.state == ItemState.READY:
            self._group.lend(item)
        now_ms = self._parts.core.clock.now_ms()
        if item is None:
            place = (lease.queue, lease.queue_offset, lease.queue_offset + 1)
            last = lease_records.ack(self._name, *place, now_ms, given_up=given_up)
        else:
            last = lease_records.end(self._name, item, now_ms, given_up=given_up)
        records = [*(record for record, _ in more), last]
        topics = [*(topic for _, topic in more), self._group.name]
        stored = self.submit(records, topics, [] if item is None else [item])
        self.watch([lease], stored, done=True)
        return stored

    def _end_fresh(self, leases: Sequence[Lease]) -> asyncio.Future[int]:
        """As `end`: what is acknowledged in one turn of the loop is stored together, as few stretches."""
        loop = asyncio.get_running_loop()
        if self._acks is None:
            self._acks = ([], loop.create_future())
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

    def _store_acks(self, leases: Sequence[Lease], stored: asyncio.Future[int] | None = None) -> None:
        """Store ACK records of these and of what was skipped; `stored` takes the outcome."""
        skipped = self.chooser.take_skipped()
        keys = sorted([lease.key for lease in leases])
        now_ms = self._parts.core.clock.now_ms()
        records = [lease_records.ack(self._name, *stretch, now_ms) for stretch in stretches(keys)]
        records += [lease_records.skip(self._name, *stretch, now_ms) for stretch in skipped]
        done = self._parts.core.commit.submit(records, [self._group.name] * len(records))

        def finish(done: asyncio.Future[int]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is None:
                self._over(leases, done=True)
            else:
                for stretch in skipped:
                    self.chooser.skip(*stretch)
            self._unbusy(leases)
            if stored is None or stored.done():
                return
            if error is None:
                stored.set_result(done.result())
            else:
                stored.set_exception(error)
                stored.exception()  # marks the error as retrieved, waiter or not

        done.add_done_callback(finish)

    def fail(
        self, leases: Sequence[Lease], dues_ms: Sequence[int], *, ended: bool, reason: str | None = None
    ) -> asyncio.Future[int]:
        """The attempts of these leases failed, the next are due then; `ended` if they were given back."""
        now_ms = self._parts.core.clock.now_ms()
        records: list[bytes] = []
        for lease, due_ms in zip(leases, dues_ms, strict=True):
            place = (lease.queue, lease.queue_offset)
            if lease.lane and lease.key not in self._group.items:
                records.append(lease_records.hold(self._name, place, now_ms, lease.lane))
            retry = lease_records.retry(self._name, place, lease.attempt, now_ms, due_ms, ended=ended)
            records.append(retry)
        stored = self._submit_with_reason(records, leases, (), reason)
        self.watch(leases, stored, done=False)
        return stored

    def _submit_with_reason(
        self, records: list[bytes], leases: Sequence[Lease], items: Sequence[Item], reason: str | None
    ) -> asyncio.Future[int]:
        """As `_submit`; the record that says why these attempts failed is the last, and changes nothing."""
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
        """As `fail`, or with `ended` not set as `extend`, for items whose lease is in the log."""
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
        held = [item for lease in leases if (item := self._group.items.get(lease.key)) is not None]
        for item in held:
            if item.state == ItemState.READY:
                self._group.lend(item)
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

    def restart(self) -> None:
        """The cursors were set: nothing is leased, and what was looked at last no longer counts."""
        self.leases.clear()
        self.chooser.restart()

    async def settle(self) -> None:
        """Wait until nothing is being stored about any message."""
        while self.busy:
            await asyncio.wait(set(self.busy.values()))


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
                found.append((first >> OFFSET_BITS, first & _OFFSETS, (end - 1 & _OFFSETS) + 1))
            first = key
        end = key + 1
    if first >= 0:
        found.append((first >> OFFSET_BITS, first & _OFFSETS, (end - 1 & _OFFSETS) + 1))
    return found


def is_in_log(item: Item) -> bool:
    """Whether a consumer has it by a lease that an earlier version stored."""
    return item.state == ItemState.LEASED
