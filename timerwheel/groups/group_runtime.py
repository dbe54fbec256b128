"""The runtime of one group: its parts, its consumers that wait, and its work in the background.

In the background attempts end that were not acknowledged in time. After the last one a message becomes a dead
letter, and so does one that is ready again and has no attempt left (*exhausted*): the limit was lowered.
What cannot be stored now is tried again. After a start the runtime looks for exhausted messages again.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from timerwheel.errors import NotReadyError, OutcomeUnknownError
from timerwheel.groups.config import INVISIBLE_MS_MAX, GroupConfig
from timerwheel.groups.dead_lettering import DeadLettering
from timerwheel.groups.forgotten import end_timers
from timerwheel.groups.leases import UNREAD, Lease
from timerwheel.groups.leasing import Leasing, pending_of
from timerwheel.groups.outlook import Outlook, attempts_max_of, sorted_out
from timerwheel.groups.parts import GroupParts, stored_offset
from timerwheel.model.messages import Delivery, ReceiptResult
from timerwheel.state import lease_records
from timerwheel.state.config_table import CONTROL_TOPIC, ConfigTable, Put, encode_puts
from timerwheel.state.groups import DEAD_QUEUE, GroupState, Item, ItemKey
from timerwheel.store.errors import NoSpaceError
from timerwheel.store.record import unit_of

logger = logging.getLogger("timerwheel")

RETRY_MS = 1_000
EXPIRED_LEASES = 1_000
"""How many leases that ended are dealt with together."""
STEP_MESSAGES = 500
"""How many messages a purge ends together."""


class Look:
    """One consumer that looks for messages, and waits for them when there are none.

    What arrives while it looks has it look again. If it is woken and leaves without looking, the next who
    waits is woken in its place.
    """

    def __init__(self, runtime: "GroupRuntime") -> None:
        self._runtime = runtime
        self._arrivals = 0
        self.woken = False

    def begin(self) -> None:
        """Begin a look for messages."""
        self._arrivals = self._runtime.arrivals

    def end(self, *, found: bool) -> None:
        """End a look; if it found messages and left some, wake the next waiter."""
        self.woken = False
        if found and self._runtime.waiting and self._runtime.leasing.chooser.left:
            self._runtime.notify(1)

    async def wait(self, wait_ms: int) -> None:
        """Return when something arrived since `begin`, at the latest after `wait_ms`."""
        if self._runtime.arrivals != self._arrivals:
            return
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runtime.waiting[arrived] = None
        try:
            await self._runtime.clock.wait_for(arrived, wait_ms)
        finally:
            self._runtime.waiting.pop(arrived, None)
            self.woken = arrived.done()


class GroupRuntime:
    """Belongs to the event loop."""

    def __init__(self, state: GroupState, parts: GroupParts) -> None:
        self.state = state
        self._parts = parts
        self.leasing = Leasing(state, parts, self._freed, self._watch_from)
        self.dead_lettering = DeadLettering(state, parts, self.leasing)
        self.clock = parts.core.clock
        self.waiting: dict[asyncio.Future[None], None] = {}
        self.arrivals = 0
        self._exhausted: set[int] = set()
        self._failing = False  # leases that ended are being dealt with
        self._watching: asyncio.Task[None] | None = None
        self._nudge: asyncio.Future[None] | None = None
        self._nudge_before_ms = 0  # while it waits: a lease that ends sooner must wake it
        self._look_again = False  # while it works: something came up that it may not have seen

    @contextmanager
    def looking(self) -> Iterator[Look]:
        """For one receive. A caller that leaves it has looked since it was woken, or wakes another."""
        look = Look(self)
        try:
            yield look
        finally:
            if look.woken:
                self.notify(1)

    def wake(self, count: int | None = None) -> None:
        """Notify waiting receivers of `count` arrivals, or all of them; a look in progress looks again."""
        self.arrivals += 1
        self.notify(len(self.waiting) if count is None else count)

    def notify(self, count: int) -> None:
        """Wake up to `count` waiters, those that have waited longest first."""
        for waiting in list(itertools.islice(self.waiting, count)):
            del self.waiting[waiting]
            if not waiting.done():
                waiting.set_result(None)

    @property
    def busy(self) -> bool:
        """Whether it has failed attempts to deal with right now."""
        end_ms = self.leasing.leases.next_end_ms
        due = end_ms is not None and end_ms <= self.clock.monotonic_ms()
        pending = due or self._failing or bool(self._exhausted) or bool(self.leasing.busy)
        return self._watching is not None and pending

    # ------------------------------------------------------------------ consuming

    async def take(self, count_max: int, invisible_ms: int, bytes_max: int) -> list[Delivery]:
        """Call `Leasing.take`, and have its leases end in time."""
        found = await self.leasing.take(count_max, invisible_ms, bytes_max)
        if (end_ms := self.leasing.leases.next_end_ms) is not None:
            self._watch_from(end_ms)
        return found

    async def extend(
        self, config: GroupConfig, receipts: Sequence[str], invisible_ms: int
    ) -> list[ReceiptResult]:
        """Call `Leasing.extend`, and have its leases end in time."""
        results = await self.leasing.extend(config, receipts, invisible_ms)
        self._watch_from(self.clock.monotonic_ms() + invisible_ms)
        return results

    async def nack(
        self, config: GroupConfig, receipts: Sequence[str], delay_ms: int | None, reason: str | None
    ) -> list[ReceiptResult]:
        """Give these messages back: each is ready again after the delay, or goes to the dead letters."""
        leasing = self.leasing
        found = await leasing.leases_of(receipts)
        unknown = [lease for lease in found.leases if leasing.is_unknown(config, lease)]
        if unknown:
            await leasing.look_into(config, unknown)
            found = await leasing.leases_of(receipts)
        now_ms = self.clock.now_ms()

        def due_ms(attempt: int) -> int:
            if delay_ms is None:
                return now_ms + self._parts.backoff_ms(config, attempt)
            return now_ms + max(delay_ms, self._parts.core.settings.redelivery_delay_ms)

        again, endings = sorted_out(
            (lease, leasing.outlook(config, lease, due_ms(lease.attempt) - now_ms)) for lease in found.leases
        )
        stored = leasing.fail(again, [due_ms(lease.attempt) for lease in again], ended=True, reason=reason)
        await self._end_attempts(config, stored, endings, reason or "nacked without a reason")
        return found.results()

    async def give_up(self, receipts: Sequence[str], reason: str) -> list[ReceiptResult]:
        """Make these messages dead letters, with the reason."""
        found = await self.leasing.leases_of(receipts)
        await self.dead_lettering.give_up(found.leases, reason)
        return found.results()

    async def _end_attempts(
        self,
        config: GroupConfig,
        stored: list[asyncio.Future[int]],
        endings: dict[Outlook, list[Lease]],
        reason: str | None,
    ) -> None:
        """Wait for what is stored of failed attempts, and end the messages that get no other one."""
        if config.expired == "drop" and (over := endings.pop(Outlook.EXPIRED, None)):
            stored.append(self.leasing.expire(over))
        for one in stored:
            await stored_offset(one)
        await self.dead_lettering.end_all(config, endings, reason)

    def _freed(self) -> None:
        """Records about messages were stored, or could not be: others may be had, or be given up."""
        chooser = self.leasing.chooser
        if self.waiting and (chooser.at_capacity or chooser.loose or self.state.ready):
            self.wake(None if chooser.at_capacity else len(chooser.loose) + len(self.state.ready))
        if self._exhausted:
            self._watch_from(0)

    # ------------------------------------------------------------------ failed attempts

    def ready_again(self, roots: Iterable[int]) -> None:
        """The retries with these roots have come: see which of them have no attempt left."""
        items = (self.state.by_root.get(root) for root in roots)
        self._note(item.key for item in items if item is not None)

    def look_over(self) -> None:
        """Find the exhausted messages among those ready again: after a start, or a change of the limit."""
        self._note(self.state.ready)

    def _note(self, keys: Iterable[int]) -> None:
        attempts_max = self._parts.config(self.state).max_attempts
        self._exhausted.update(key for key in keys if self._is_exhausted(key, attempts_max))
        if self._exhausted:
            self._watch_from(0)

    def _is_exhausted(self, key: int, attempts_max: int) -> bool:
        item = self.state.items.get(key)
        is_last = item is not None and key in self.state.ready and item.attempt >= attempts_max
        return is_last and key not in self.leasing.chooser.spared

    def _watch_from(self, at_ms: int) -> None:
        """Something is to be done at this monotonic time."""
        if self._watching is None:
            if self._parts.is_kept(self.state) and self._parts.core.life.ready:
                self._watching = asyncio.create_task(self._watch(), name=f"timerwheel {self.state.name}")
                self._watching.add_done_callback(self._watched)
        elif self._nudge is None:
            self._look_again = True
        elif at_ms < self._nudge_before_ms and not self._nudge.done():
            self._nudge.set_result(None)

    def _watched(self, task: asyncio.Task[None]) -> None:
        if self._watching is task:
            self._watching = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("retries of %s failed", self.state.name, exc_info=error)

    async def _watch(self) -> None:
        """End attempts that were not acknowledged in time, and give up what has no attempt left."""
        while self._parts.is_kept(self.state):
            self._look_again = False
            try:
                await self._give_up_exhausted()
                await self._fail_expired()
            except (NoSpaceError, NotReadyError, OutcomeUnknownError) as error:
                logger.warning("retries of %s are delayed: %s", self.state.name, error)
                await self.clock.sleep_for(RETRY_MS)
                continue
            except Exception:  # leases must end, and messages be given up, whatever one of them met
                logger.exception("retries of %s failed", self.state.name)
                await self.clock.sleep_for(RETRY_MS)
                continue
            end_ms = self.leasing.leases.next_end_ms
            if self._look_again:
                continue
            if end_ms is None:
                self._watching = None  # at once: who comes before this task is over begins another
                return
            now_ms = self.clock.monotonic_ms()
            if end_ms > now_ms:
                self._nudge, self._nudge_before_ms = asyncio.get_running_loop().create_future(), end_ms
                await self.clock.wait_for(self._nudge, end_ms - now_ms)
                self._nudge = None

    async def _give_up_exhausted(self) -> None:
        """Give up what is exhausted and nobody is changing; who is changing the others calls when done."""
        if not self._exhausted:
            return  # whenever an attempt ends, and the group may hold a million messages
        await self._spare()
        attempts_max = self._parts.config(self.state).max_attempts
        self._exhausted = {key for key in self._exhausted if self._is_exhausted(key, attempts_max)}
        items = [self.state.items[key] for key in sorted(self._exhausted)]
        for item in items:
            self.state.lend(item)
        try:
            # The limit was lowered since they were given back. The others failed when their time was over.
            reason = f"nacked, and max_attempts was lowered to {attempts_max}"
            for ended, why in ((False, None), (True, reason)):
                leases = [pending_of(item) for item in items if item.ended is ended]
                await self.dead_lettering.give_up(leases, why)
        finally:
            for item in items:  # those that could not be stored
                if item.lent and item.key not in self.leasing.busy:
                    self.state.give_back(item)

    async def _spare(self) -> None:
        """Find the exhausted messages that set a higher number of attempts themselves."""
        config = self._parts.config(self.state)
        items = [self.state.items[key] for key in sorted(self._exhausted & self.state.items.keys())]
        for item in items:
            lease = pending_of(item)
            lease.limits = UNREAD
            await self.leasing.look_into(config, [lease])
            if attempts_max_of(config, lease.limits) > item.attempt:
                self.leasing.chooser.spare(item.key)
                self.wake(1)

    async def _fail_expired(self) -> None:
        """Have the messages of leases that ended retried, or end them."""
        now_ms = self.clock.monotonic_ms()
        expired = self.leasing.leases.expired(now_ms, EXPIRED_LEASES)
        config, leases = self._parts.config(self.state), self.leasing.leases
        self._failing = bool(expired)
        try:
            await self.leasing.look_into(config, expired)
            if self.leasing.resetting is not None:
                await asyncio.wait([self.leasing.resetting])
            still = [lease for lease in expired if leases.by_key.get(lease.key) is lease]
            await self._fail(config, [lease for lease in still if lease.key not in self.leasing.busy])
        finally:
            self._failing = False
            # What could not be stored, or is being settled by its consumer, is looked at again.
            for lease in expired:
                if leases.by_key.get(lease.key) is lease and lease.end_ms <= now_ms:
                    leases.extend(lease, now_ms + RETRY_MS)

    async def _fail(self, config: GroupConfig, ours: Sequence[Lease]) -> None:
        ahead_ms = self.clock.now_ms() - self.clock.monotonic_ms()
        # From when the attempt ended: this may be noticed late, as after a planned stop.
        dues_ms = {
            lease.key: lease.end_ms + ahead_ms + self._parts.backoff_ms(config, max(lease.attempt, 1))
            for lease in ours
        }
        now_ms = self.clock.now_ms()
        again, endings = sorted_out(
            (
                lease,
                self.leasing.outlook(config, lease, 0 if lease.is_of_nobody else dues_ms[lease.key] - now_ms),
            )
            for lease in ours
        )
        for lease in again:
            if lease.is_of_nobody:  # the group has other limits now
                self.leasing.take_back(lease)
        again = [lease for lease in again if not lease.is_of_nobody]
        stored = self.leasing.fail(again, [dues_ms[lease.key] for lease in again], ended=False)
        await self._end_attempts(config, stored, endings, None)

    # ------------------------------------------------------------------ ending what it holds

    async def rewind(self, cursors: Mapping[int, int]) -> None:
        """Set these queues' cursors; see `Groups.rewind` for the queues that are not among them."""
        state = self.state

        def change(now_ms: int) -> tuple[list[bytes], list[str]]:
            others = state.done_with(state.passed.keys() - cursors.keys())
            packed = {queue: done.pack() for queue, done in others.items()} | dict(cursors)
            texts = {str(queue): value for queue, value in packed.items()}
            records = [encode_puts([Put(ConfigTable.CURSOR, state.name, texts)], now_ms)]
            if len(cursors) < self._parts.queues.queues_of(state.topic):
                places = [(DEAD_QUEUE, ItemKey.offset(key)) for key in state.redriven]
                records += [lease_records.redrive(state.name.encode(), place, now_ms) for place in places]
            return records, [CONTROL_TOPIC, *[state.name] * (len(records) - 1)]

        await self._forget_items(change)

    async def delete(self) -> None:
        """Remove the group."""
        put = Put(ConfigTable.GROUP, self.state.name, None)
        await self._forget_items(lambda now_ms: ([encode_puts([put], now_ms)], [CONTROL_TOPIC]))

    async def _forget_items(self, change: Callable[[int], tuple[list[bytes], list[str]]]) -> None:
        """Store a change that makes the group forget what it holds; then end the timers of that.

        `change` gives its records and their topics, for this time. It is called once nothing is being stored
        about any message, so the acknowledgements that came before are in the state.
        """
        leasing, state, in_flight = self.leasing, self.state, self._parts.core.in_flight
        forgotten: list[Item] = []

        def note() -> None:
            # Those in flight fire, or are moved by retention: they are left. From here on nobody takes
            # any of these timers for that of an item.
            timed = (item for item in state.items.values() if item.timed)
            forgotten.extend(item for item in timed if item.offset not in in_flight)

        async with leasing.turn:
            while True:
                await leasing.settle()
                under_way = in_flight.outcomes(item.offset for item in state.items.values() if item.timed)
                if not under_way:
                    break
                await asyncio.wait(under_way)
            records, places = change(self.clock.now_ms())
            await leasing.restart(self._parts.core.commit.submit(unit_of(records), places, note))
        await end_timers(self._parts, state, forgotten)

    async def end_held(self, ends: Mapping[int, int]) -> None:
        """End leases and items of messages before these queue offsets; NoSpaceError, NotReadyError and so on.

        The messages themselves are hidden before that, so the group passes over those that are fresh. What is
        left are leases, items, parked messages and redriven dead letters. If this is broken off, the group
        finds that the messages of its items are gone once their retries fall due.
        """
        leasing = self.leasing
        async with leasing.turn:
            while held := self._held_before(ends):
                under_way: set[asyncio.Future[Any]] = set()
                for at in range(0, len(held), STEP_MESSAGES):
                    await self.clock.breathe()
                    free, busy = self._free(held[at : at + STEP_MESSAGES])
                    under_way |= busy
                    if free:
                        await stored_offset(leasing.end(free))
                under_way = {outcome for outcome in under_way if not outcome.done()}
                if under_way:
                    await asyncio.wait(under_way)
            leasing.chooser.drop_before(ends)

    def _held_before(self, ends: Mapping[int, int]) -> list[int]:
        keys = self.leasing.leases.by_key.keys() | self.state.items.keys()
        return sorted(key for key in keys if is_before(key, ends))

    def _free(self, keys: list[int]) -> tuple[list[Lease], set[asyncio.Future[Any]]]:
        """Return what can be ended in this step of the loop, and the outcomes to wait for of the rest."""
        leasing, items, in_flight = self.leasing, self.state.items, self._parts.core.in_flight
        free: list[Lease] = []
        under_way: set[asyncio.Future[Any]] = set()
        for key in keys:
            lease, item = leasing.leases.by_key.get(key), items.get(key)
            timer = in_flight.outcome(item.offset) if item is not None and item.timed else None
            if key in leasing.busy:
                under_way.add(leasing.busy[key])
            elif timer is not None:
                under_way.add(timer)
            elif lease is not None:
                free.append(lease)
            elif item is not None:
                free.append(pending_of(item))
        return free, under_way

    # ------------------------------------------------------------------ across a planned restart

    def kept_leases(self) -> tuple[list[list[int]], list[int | None]]:
        """What consumers have, as JSON values, `end_ms` by the wall clock; and the mark of each."""
        ahead_ms = self.clock.now_ms() - self.clock.monotonic_ms()
        kept = [
            lease
            for lease in self.leasing.leases
            if lease.key not in self.leasing.busy and not lease.is_of_nobody
        ]
        values = [
            [lease.key, lease.attempt, lease.run, lease.number, lease.end_ms + ahead_ms, lease.lane]
            for lease in kept
        ]
        return values, [lease.mark for lease in kept]

    def restore_leases(self, kept: Iterable[Sequence[int]], marks: Iterable[int | None]) -> None:
        """Take over what consumers had when the service stopped, as far as it is not done.

        `marks` are those of their messages; an earlier version noted none.

        If the wall clock was set back since, they have it for no longer than a lease may last.
        """
        now_ms = self.clock.monotonic_ms()
        ahead_ms, end_ms_max = self.clock.now_ms() - now_ms, now_ms + INVISIBLE_MS_MAX
        for noted, mark in zip(kept, itertools.chain(marks, itertools.repeat(None)), strict=False):
            key, attempt, run, number, end_ms, lane = noted
            lease = Lease(key, attempt, run, number, min(end_ms - ahead_ms, end_ms_max), lane, mark=mark)
            if self.leasing.is_free(lease):
                self.leasing.restore(lease)

    async def close(self) -> None:
        """Stop what runs in the background; the next start goes on with it."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)


def is_before(key: int, ends: Mapping[int, int]) -> bool:
    """Whether a message lies before the end of its queue, or is a redriven dead letter."""
    queue = ItemKey.queue(key)
    return queue == DEAD_QUEUE or ItemKey.offset(key) < ends.get(queue, 0)


def count_held(state: GroupState, ends: Mapping[int, int]) -> int:
    """Count the items of a group that `end_held` up to these queue offsets would end."""
    return sum(is_before(key, ends) for key in state.items)
