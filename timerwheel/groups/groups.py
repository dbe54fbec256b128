"""Consumer groups, as the rest of the service calls them.

    receive  the chooser finds messages -> leases in memory -> deliveries
    settle   the receipts' leases -> ACK or retry records -> group commit -> the leases are over
    return   the wheel fires a retry -> its message is ready -> waiting receivers are notified

A group belongs to one topic. `put` creates it, or a receive that asks for that. One of kind `offsets` has no
leases: see `timerwheel.groups.offset_commits`.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from timerwheel.groups.choosing import is_other, mark_of
from timerwheel.groups.config import (
    NO_TERMS,
    OFFSETS,
    RECEIVE_MAX,
    GroupConfig,
    GroupDiffersError,
    GroupFieldError,
    GroupNotFoundError,
    GroupTerms,
    Kind,
    Start,
    TooManyGroupsError,
    UnknownGroupError,
    check_group,
    check_not_of_tasks,
    checked_invisible,
    leases_nothing,
    value_of,
)
from timerwheel.groups.dead_letters import DeadLetterStore
from timerwheel.groups.forgotten import end_left
from timerwheel.groups.group_runtime import RETRY_MS, GroupRuntime, count_held
from timerwheel.groups.leases import Lease
from timerwheel.groups.leasing import Ending
from timerwheel.groups.offset_commits import OffsetCommits
from timerwheel.groups.parts import GroupParts
from timerwheel.groups.receipts import mark_in, place_in
from timerwheel.groups.retries import Retries
from timerwheel.model.admission import check_delay_ms, check_topic
from timerwheel.model.messages import (
    Delivery,
    GroupCounts,
    GroupInfo,
    GroupQueueInfo,
    MessageView,
    ReceiptResult,
)
from timerwheel.model.precondition import ALWAYS, Precondition, tag_of
from timerwheel.model.tags import TagFilter
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.runtime.shielded import finished, shielded
from timerwheel.state.batch import Batch
from timerwheel.state.config_table import CONTROL_TOPIC, ConfigTable, Put, encode_puts
from timerwheel.state.groups import (
    DEAD_QUEUE,
    OFFSET_BITS,
    SEPARATOR,
    GroupState,
    ItemKey,
    ItemState,
    dead_topic,
    group_topic,
)
from timerwheel.state.limited_records import is_limited, limits_of
from timerwheel.store.errors import NoSpaceError
from timerwheel.store.record import Identity

logger = logging.getLogger("timerwheel")

KEPT_LEASES = 10_000
"""How many leases a record has that notes them at a planned stop."""
MARKS = SEPARATOR * 2
"""Before a key of noted leases: the key of their marks. It names no group, so earlier versions remove it."""
COUNTED_QUEUES = 1_000
"""How many queues of groups are counted without a pause, unless one group alone has more."""
AGED_QUEUES = 100
"""In how many queues the oldest message of groups is looked for without a pause."""


class Held(NamedTuple):
    """What a group has of a message: failed attempts, when the next one is due, and whether somebody has it.

    `ended` says that the last attempt was given back. `done` says that the group needs it no more.
    """

    attempts: int
    waits_until_ms: int | None
    ended: bool
    leased: bool
    done: bool


class Groups:
    """See the module. Belongs to the event loop."""

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts
        self.runtimes: dict[str, GroupRuntime] = {}
        """Those of groups that somebody has used since the start, by name."""
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.dead = DeadLetterStore(parts)
        self.offsets = OffsetCommits(parts)
        self.retries = Retries(parts)
        self._forgetting: asyncio.Task[None] | None = None
        self.on_ended: list[Callable[[str, str], None]] = []
        """Called with topic and group once receipts of a group have ended that nobody gave back."""

    # ------------------------------------------------------------------ consuming

    async def receive(  # noqa: PLR0913 - all but two have a default
        self,
        topic: str,
        group: str,
        terms: GroupTerms = NO_TERMS,
        *,
        count_max: int = 1,
        bytes_max: int = PAGE_BYTES_MAX,
        invisible_ms: int | None = None,
        wait_ms: int = 0,
        wanted: Callable[[], bool] | None = None,
    ) -> list[Delivery]:
        """Up to `count_max` messages for a consumer, waiting up to `wait_ms` for the first. Stores nothing.

        No more follow once they have `bytes_max`. A topic that is paused has none for anyone. Each is
        invisible to others for `invisible_ms`, by default the group's. `wanted` is asked before anything is
        leased: a consumer that went away gets nothing. Raises GroupNotFoundError and GroupDiffersError if the
        group does not meet the terms, and IllegalGroupError, NoSpaceError, NotReadyError.
        """
        lead = self._parts.core.lead
        await lead.assure()
        runtime, config = await self._runtime(topic, group, terms)
        if not 1 <= count_max <= RECEIVE_MAX:
            raise GroupFieldError(f"max = {count_max}: must be from 1 to {RECEIVE_MAX}")
        invisible_ms = checked_invisible(config.invisible_ms if invisible_ms is None else invisible_ms)
        end_ms = self._parts.core.clock.monotonic_ms() + wait_ms
        with runtime.looking() as look:
            while wanted is None or wanted():
                look.begin()
                found = await runtime.take(count_max, invisible_ms, bytes_max)
                look.end(found=bool(found))
                left_ms = end_ms - self._parts.core.clock.monotonic_ms()
                more = runtime.leasing.chooser.more and not self._parts.topics.paused(topic)
                if found or (left_ms <= 0 and not more) or not self._parts.core.life.ready:
                    return found
                if not more:
                    await look.wait(left_ms)
                    await lead.assure()  # after a pause leases may only seem to have ended
                if runtime is not self.runtimes.get(group_topic(topic, group)):
                    return []  # the group was deleted
        return []

    async def wait_for_messages(self, topic: str, group: str, wait_ms: int) -> bool:
        """Whether a receive may find messages, waiting up to `wait_ms` for that. Leases nothing.

        Raises UnknownGroupError, GroupDiffersError, NotReadyError.
        """
        runtime = self._leasing(topic, group)
        end_ms = self._parts.core.clock.monotonic_ms() + wait_ms
        with runtime.looking() as look:
            while self._parts.core.life.ready and self._parts.is_kept(runtime.state):
                look.begin()
                if self.left(topic, group) and not self._parts.topics.paused(topic):
                    return True
                left_ms = end_ms - self._parts.core.clock.monotonic_ms()
                if left_ms <= 0:
                    break
                await look.wait(left_ms)
        return False

    async def ack(self, topic: str, group: str, receipts: Sequence[str]) -> list[ReceiptResult]:
        """These messages are done; durable when this returns. One result for each receipt, in order."""
        return await self._leasing(topic, group).leasing.ack(_bounded(receipts))

    def begin_ack(self, topic: str, group: str, receipts: Sequence[str]) -> Ending | None:
        """Start an `ack`; return None, with nothing done, if it must wait for another write."""
        return self._leasing(topic, group).leasing.begin(_bounded(receipts))

    async def nack(
        self,
        topic: str,
        group: str,
        receipts: Sequence[str],
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> list[ReceiptResult]:
        """Give messages back: each is retried after `delay_ms`, by default the backoff of its attempt.

        At least `redelivery_delay_ms`; after the last attempt they are dead letters, with the reason.
        """
        runtime = self._leasing(topic, group)
        if delay_ms is not None:
            check_delay_ms(delay_ms, self._parts.core.settings.max_delay_ms)
        config = self._parts.config(runtime.state)
        return await runtime.nack(config, _bounded(receipts), delay_ms, reason)

    async def conclude(
        self,
        topic: str,
        group: str,
        receipt: str,
        more: Sequence[tuple[bytes, str]],
        *,
        given_up: bool = False,
    ) -> ReceiptResult:
        """Acknowledge one message, or with `given_up` end its attempts, in one unit with `more`."""
        return await self._leasing(topic, group).leasing.conclude(receipt, more, given_up=given_up)

    async def withdraw(
        self,
        topic: str,
        group: str,
        place: tuple[int, int],
        more: Callable[[int], Sequence[tuple[bytes, str]]],
    ) -> bool:
        """End the message at (queue, queue offset), in one unit with records, unless somebody has it.

        `more` gives the records and their topics for the number of attempts that have failed by then.
        """
        key = ItemKey.of(*place)
        return await finished(self._leasing(topic, group).leasing.withdraw(key, more))

    async def reschedule_retry(self, topic: str, group: str, place: tuple[int, int], due_ms: int) -> bool:
        """Change when a message is retried; False if it has no retry pending."""
        key = ItemKey.of(*place)
        return await self._leasing(topic, group).leasing.reschedule_retry(key, due_ms)

    def held(self, topic: str, group: str, place: tuple[int, int]) -> Held:
        """What a group has of the message at (queue, queue offset)."""
        runtime = self._leasing(topic, group)
        key = ItemKey.of(*place)
        item = runtime.state.items.get(key)
        passed = runtime.state.passed.get(place[0])
        return Held(
            attempts=0 if item is None else item.attempt,
            waits_until_ms=None if item is None or not item.timed else item.due_ms,
            ended=item is not None and item.ended,
            leased=key in runtime.leasing.leases.by_key,
            done=item is None and passed is not None and place[1] in passed,
        )

    async def message_of(self, topic: str, group: str, receipt: str) -> tuple[MessageView, Identity] | None:
        """Return the message of a receipt that this service gave out, and which one it is; None if gone."""
        queue, queue_offset = place_in(receipt)
        place, number = self._parts.place_of(self._parts.state(topic, group), queue)
        found = await self._parts.read(place, number, queue_offset, 1)
        if not found.has(queue_offset):
            return None
        data, root = found.data[0], found.roots[0]
        crc = mark_of(data)
        if is_other(mark_in(receipt), crc):
            return None  # the receipt is of another run, and another message is there now
        return self._parts.queues.delivered_view(data, root, queue_offset), Identity(root, crc)

    def retry_ms(self, topic: str, group: str, attempt: int, delay_ms: int | None = None) -> int | None:
        """Return how long after a failed attempt the next one comes; None if it was the last."""
        config = self._parts.config(self._leasing(topic, group).state)
        if attempt >= config.max_attempts:
            return None
        if delay_ms is None:
            return self._parts.backoff_ms(config, attempt)
        return max(delay_ms, self._parts.core.settings.redelivery_delay_ms)

    async def give_up(
        self, topic: str, group: str, receipts: Sequence[str], reason: str
    ) -> list[ReceiptResult]:
        """Make these messages dead letters now, whatever attempts they have left."""
        return await self._leasing(topic, group).give_up(_bounded(receipts), reason)

    def leased(self, topic: str, group: str) -> list[tuple[str, int]]:
        """Return the receipt of each message that is leased, and for how many milliseconds it still is."""
        leasing = self._leasing(topic, group).leasing
        leases, now_ms = list(leasing.leases), self._parts.core.clock.monotonic_ms()
        receipts = leasing.receipts.encode_all(leases)
        return [
            (receipt, max(lease.end_ms - now_ms, 0)) for receipt, lease in zip(receipts, leases, strict=True)
        ]

    def ended(self, topic: str, group: str, receipts: Iterable[str]) -> list[str]:
        """Return those of these receipts of the group under which nobody has a message any more.

        Looks at nothing else, however much the group has leased.
        """
        leasing = self._leasing(topic, group).leasing
        return [receipt for receipt in receipts if not leasing.is_leased(receipt)]

    def has_expired(self, record: bytes) -> bool:
        """Whether the TTL of a delivered message is over; `record` is its record in the log."""
        if not is_limited(record):
            return False
        limits = limits_of(record)
        return limits.ttl_ms is not None and self._parts.ages.age_ms(limits.from_ms) >= limits.ttl_ms

    def put_back(self, topic: str, group: str, receipts: Sequence[str]) -> None:
        """Take back leases that no consumer has heard of; no attempt counts."""
        runtime = self.runtimes.get(group_topic(topic, group))
        if runtime is not None:
            runtime.leasing.put_back(receipts)

    async def extend(
        self, topic: str, group: str, receipts: Sequence[str], invisible_ms: int
    ) -> list[ReceiptResult]:
        """Hold these messages for `invisible_ms` from now."""
        runtime = self._leasing(topic, group)
        config = self._parts.config(runtime.state)
        return await runtime.extend(config, _bounded(receipts), checked_invisible(invisible_ms))

    # ------------------------------------------------------------------ the groups themselves

    async def put(self, topic: str, group: str, config: GroupConfig) -> GroupInfo:
        """Make a group or change its configuration; `start` counts only when it is made.

        Raises GroupDiffersError for another `kind` than it was made with, TaskGroupError for one of tasks.
        """
        info, _ = await self.put_or_make(topic, group, config)
        return info

    async def put_own(self, topic: str, group: str, config: GroupConfig) -> None:
        """`put` of a group that only the service makes and changes."""
        await finished(self._put(self._name(topic, group), topic, config.check(), ALWAYS))

    async def put_or_make(
        self, topic: str, group: str, config: GroupConfig, when: Precondition = ALWAYS
    ) -> tuple[GroupInfo, bool]:
        """`put`, and whether the group was made. PreconditionFailedError if it is not as `when` says."""
        check_not_of_tasks(topic, group)
        made = await finished(self._put(self._name(topic, group), topic, config.check(), when))
        return self.info(topic, group), made

    async def _put(self, name: str, topic: str, config: GroupConfig, when: Precondition) -> bool:
        async with self._lock(name):
            state = self._parts.tables.by_name.get(name)
            when.check(None if state is None else partial(tag_of, self._parts.config(state)))
            if state is None:
                await self._make(name, topic, config)
            elif (before := self._parts.config(state)) != config:
                if before.kind != config.kind:
                    raise GroupDiffersError(
                        f"group {state.group!r} of topic {topic!r} is of kind {before.kind!r}, which cannot "
                        "be changed; delete the group first"
                    )
                await self._parts.control.put([Put(ConfigTable.GROUP, name, value_of(config))])
            if config.kind == OFFSETS:
                return state is None
            runtime = self._runtime_of(name)
            runtime.look_over()
            runtime.wake()  # another filter may let through what was passed over
            return state is None

    @shielded
    async def delete(self, topic: str, group: str, when: Precondition = ALWAYS) -> None:
        """Forget a group and what it holds; its dead letters stay. UnknownGroupError."""
        state = self._known(topic, group)
        name = state.name
        async with self._lock(name):
            self._check_kept(state)
            when.check(partial(tag_of, self._parts.config(state)))
            if self._parts.keeps_offsets(state):
                async with self.dead.turn:
                    await self.offsets.delete(state)
                return
            runtime = self._runtime_of(name)
            async with self.dead.turn:
                await runtime.delete()
            self.runtimes.pop(name, None)
            runtime.wake()
            await runtime.close()

    @shielded
    async def rewind(
        self,
        topic: str,
        group: str,
        *,
        to: Start | None = None,
        time_ms: int | None = None,
        offsets: dict[int, int] | None = None,
    ) -> GroupInfo:
        """Have a group go on from the head, the tail, a time of delivery, or offsets by queue.

        It forgets what it holds: receipts end, and what lies behind the new place is delivered again, what
        lies before it is not. Of a queue that `offsets` does not name, it is still done with what it was done
        with, and what it held is fresh again; redriven dead letters then start over, from whichever queue
        they came. Offsets are kept within the queues. UnknownGroupError.
        """
        state = self._known(topic, group)
        async with self._lock(state.name):
            self._check_kept(state)
            cursors = await self._parts.cursors_for(state.topic, to=to, time_ms=time_ms, offsets=offsets)
            if self._parts.keeps_offsets(state):
                await self.offsets.rewind(state, cursors)
                return self.info(topic, group)
            runtime = self._runtime_of(state.name)
            async with self.dead.turn:
                await runtime.rewind(cursors)
            self._say_ended(state)
        runtime.wake()
        return self.info(topic, group)

    def left_before(self, topic: str, ends: Mapping[int, int]) -> list[tuple[str, int]]:
        """Return the groups of a topic, and how many messages before these queue offsets each has left.

        Redriven dead letters count, wherever they were.
        """
        bounds = self._parts.queues.bounds_of(topic)
        found: list[tuple[str, int]] = []
        for state in self._by_name(topic):
            if self._parts.keeps_offsets(state):
                cursors = self.offsets.cursors(state)
                firsts = [max(cursors.get(queue, 0), low) for queue, (low, _) in enumerate(bounds)]
                left = sum(max(ends.get(queue, 0) - first, 0) for queue, first in enumerate(firsts))
            else:
                left = count_held(state, ends) + sum(
                    self._fresh_within(state, queue, low, ends.get(queue, 0))
                    for queue, (low, _) in enumerate(bounds)
                )
            found.append((state.group, left))
        return found

    def _fresh_within(self, state: GroupState, queue: int, first: int, end: int) -> int:
        """Count the messages of a queue in [first, end) that the group has not, and is not done with."""
        if first >= end:
            return 0
        passed, runtime = state.passed.get(queue), self._running(state)
        done = 0 if passed is None else passed.count(first) - passed.count(end)
        skipped = 0 if runtime is None else runtime.leasing.chooser.skipped_within(queue, first, end)
        return end - first - done - skipped

    async def end_before(self, topic: str, ends: Mapping[int, int]) -> None:
        """Have every group of a topic end what it holds of messages before these queue offsets.

        Redriven dead letters end too. Receipts of what ends are no longer good.
        """
        for state in self._by_name(topic):
            async with self._lock(state.name), self.dead.turn:
                if self._parts.is_kept(state) and not self._parts.keeps_offsets(state):
                    await self._runtime_of(state.name).end_held(ends)
                    self._say_ended(state)

    def _say_ended(self, state: GroupState) -> None:
        for note in self.on_ended:
            note(state.topic, state.group)

    async def describe(self, topic: str, group: str) -> GroupInfo:
        """A group now, with what must be read from the log for that; UnknownGroupError."""
        self._parts.state(topic, group)
        await self.dead.look_through(group)
        return await self._aged(self.info(topic, group))

    def names(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Topic and group of every group, or of those of one topic."""
        return [(state.topic, state.group) for state in self._by_name(topic)]

    async def describe_each(self, names: Iterable[tuple[str, str]]) -> list[GroupInfo]:
        """Describe groups by topic and group; leaves out those that do not exist."""
        found: list[GroupInfo] = []
        by_name = self._parts.tables.by_name
        states = [state for name in names if (state := by_name.get(group_topic(*name))) is not None]
        async for state in self._in_steps(states, AGED_QUEUES):
            await self.dead.look_through(state.group)
            if self._parts.is_kept(state):
                found.append(await self._aged(self._info(state)))
        return found

    async def _aged(self, info: GroupInfo) -> GroupInfo:
        try:
            age_ms = await self.oldest_age_ms(info.topic, info.group)
        except UnknownGroupError:  # it was deleted since
            return info
        return msgspec.structs.replace(info, oldest_age_ms=age_ms)

    async def oldest_age_ms(self, topic: str, group: str) -> int | None:
        """How long ago the oldest message that the group is not done with was delivered; None if it has none.

        Of a redriven message it counts from its death. UnknownGroupError.
        """
        state = self._parts.state(topic, group)
        oldest: list[int] = []
        for number, (place, offset) in enumerate(self._oldest_places(state)):
            if number and number % AGED_QUEUES == 0:
                await self._parts.core.clock.breathe()
            first, positions = await self._parts.queues.positions(*place, offset, 1)
            if len(positions) and first == offset:
                oldest.append(int(positions["store_ms"][0]))
        return max(self._parts.core.clock.now_ms() - min(oldest), 0) if oldest else None

    def _oldest_places(self, state: GroupState) -> list[tuple[tuple[str, int], int]]:
        """In each queue the first message that the group holds or has not seen: topic and queue, offset."""
        found: dict[int, int] = {}
        keys = np.fromiter(state.items, np.uint64, len(state.items))
        queues = keys >> np.uint64(OFFSET_BITS)
        for queue in np.unique(queues).tolist():
            found[queue] = ItemKey.offset(int(keys[queues == queue].min()))
        commits, cursors = self._parts.keeps_offsets(state), self.offsets.cursors(state)
        for queue, (low, high) in enumerate(self._parts.queues.bounds_of(state.topic)):
            first = max(cursors.get(queue, 0), low) if commits else state.first_fresh(queue, low)
            if first < high:
                found[queue] = min(found.get(queue, first), first)
        dead = (dead_topic(state.group), 0)
        return [
            (dead if queue == DEAD_QUEUE else (state.topic, queue), offset) for queue, offset in found.items()
        ]

    def next_due_ms(self, topic: str, group: str) -> int | None:
        """When the next message of a group can be received: now or later; None if it waits for none.

        Of a topic that is paused, none can be received.
        """
        info, state = self.info(topic, group), self._parts.state(topic, group)
        if self._parts.topics.paused(topic):
            return None
        if info.lag or info.ready:
            return self._parts.core.clock.now_ms()
        waiting = (item.due_ms for item in state.items.values() if item.state == ItemState.WAITING)
        return min(waiting, default=None)

    def kind(self, topic: str, group: str) -> Kind | None:
        """The kind of a group; None if there is none."""
        state = self._parts.tables.by_name.get(group_topic(topic, group))
        return None if state is None else self._parts.config(state).kind

    def info(self, topic: str, group: str) -> GroupInfo:
        """A group by what is in memory; UnknownGroupError."""
        return self._info(self._parts.state(topic, group))

    def lease_of(self, topic: str, group: str, queue: int, queue_offset: int) -> Lease | None:
        """The lease of a message that a consumer has now; None if none has it, or there is no such group."""
        runtime = self.runtimes.get(group_topic(topic, group))
        if runtime is None:
            return None
        return runtime.leasing.leases.by_key.get(ItemKey.of(queue, queue_offset))

    def left(self, topic: str, group: str) -> int:
        """How many messages a group has not seen, or may receive again now; UnknownGroupError.

        Those that its filter will skip count too, since it has not looked at them.
        """
        state = self._parts.state(topic, group)
        counts = self._counts(state, self._places(state))
        return counts.lag + counts.ready

    async def counts(self) -> list[GroupCounts]:
        """How many messages every group holds, and has not seen; each group at its own moment."""
        return [
            self._counts(state, self._places(state))
            async for state in self._in_steps(self._parts.tables, COUNTED_QUEUES)
        ]

    async def _in_steps(self, states: Iterable[GroupState], queues_max: int) -> AsyncIterator[GroupState]:
        """Yield the groups that are still there; after those of so many queues, others have their turn."""
        queues = 0
        for state in states:
            if queues >= queues_max:
                await self._parts.core.clock.breathe()
                queues = 0
            if self._parts.is_kept(state):
                queues += self._parts.queues.queues_of(state.topic)
                yield state

    def _counts(self, state: GroupState, places: Sequence[GroupQueueInfo]) -> GroupCounts:
        counts, runtime = state.counts, self._running(state)
        leases = parked = 0  # in memory alone
        if runtime is not None:
            leases, chooser = len(runtime.leasing.leases), runtime.leasing.chooser
            parked = chooser.lanes.parked + len(chooser.loose)
        return GroupCounts(
            state.topic,
            state.group,
            lag=sum([place.lag for place in places]),
            in_flight=leases + counts[ItemState.LEASED],
            waiting=counts[ItemState.WAITING],
            ready=counts[ItemState.READY] - state.lent,
            parked=counts[ItemState.PARKED] + parked,
        )

    def _places(self, state: GroupState) -> list[GroupQueueInfo]:
        """Return cursor and lag of each queue."""
        bounds = self._parts.queues.bounds_of(state.topic)
        runtime = self._running(state)
        if self._parts.keeps_offsets(state):
            cursors = self.offsets.cursors(state)
            ats = [max(cursors.get(queue, 0), low) for queue, (low, _) in enumerate(bounds)]
            places = [(at, max(end - at, 0)) for at, (_, end) in zip(ats, bounds, strict=True)]
        elif runtime is not None:
            places = runtime.leasing.chooser.places(bounds)
        else:
            places = [state.fresh(queue, low, end) for queue, (low, end) in enumerate(bounds)]
        return [
            GroupQueueInfo(queue, at, end, lag)
            for queue, ((at, lag), (_, end)) in enumerate(zip(places, bounds, strict=True))
        ]

    def _running(self, state: GroupState) -> GroupRuntime | None:
        """The runtime of a group, which has what no record says; None if nobody received since the start."""
        runtime = self.runtimes.get(state.name)
        return runtime if runtime is not None and runtime.state is state else None

    def all(self, topic: str | None = None) -> list[GroupInfo]:
        """Every group, or those of one topic, by name."""
        return [self._info(state) for state in self._by_name(topic)]

    def _by_name(self, topic: str | None) -> list[GroupState]:
        states = self._parts.tables if topic is None else self._parts.tables.of_topic.get(topic, [])
        return sorted(states, key=lambda state: state.name)

    # ------------------------------------------------------------------ from the engine

    def notice(self, batch: Batch) -> None:
        """Records took effect: wake those who wait for what they brought."""
        if not batch.has_messages:
            return
        self.look_at_clock()  # before it can be stepped again: these count as delivered before that
        tables = self._parts.tables
        if not tables.by_name:
            return
        rows, visible = batch.rows, batch.messages
        topics = rows["topic"]
        if len(rows) > 1:
            topics = topics[visible]
        alike = (topics == topics[0]).all()
        for topic_id in topics[:1].tolist() if alike else np.unique(topics).tolist():
            state = tables.by_topic_id.get(topic_id)
            if state is not None:
                self._notice_group(state, rows[visible & (rows["topic"] == topic_id)])
                continue
            for state in tables.of_topic.get(self._parts.queues.topic_name(topic_id), ()):
                runtime = self.runtimes.get(state.name)
                if runtime is not None:
                    runtime.wake(int(np.count_nonzero(topics == topic_id)))

    def _notice_group(self, state: GroupState, ready_again: np.ndarray) -> None:
        runtime = self.runtimes.get(state.name)
        if runtime is None and len(ready_again):
            runtime = self._runtime_of(state.name)
        if runtime is None:
            return
        if runtime.leasing.chooser.at_capacity:
            runtime.wake()
        elif state.ready:
            runtime.wake(len(state.ready))
        if len(ready_again):
            runtime.ready_again(ready_again["root"].tolist())

    def look_at_clock(self) -> None:
        """Notice a step of the wall clock, so that it makes no message older."""
        self._parts.ages.look()

    def resume(self, topic: str) -> None:
        """A topic is not paused any more: let everyone who waits for its messages look again."""
        for state in self._parts.tables.of_topic.get(topic, ()):
            runtime = self.runtimes.get(state.name)
            if runtime is not None:
                runtime.wake()

    async def at_start(self) -> None:
        """Take over the leases of a planned stop, and what the last run has left to do."""
        await end_left(self._parts)
        kept = self._parts.control.items(ConfigTable.LEASES)
        for key, leases in kept.items():
            name = SEPARATOR.join(key.split(SEPARATOR)[:2])
            if name in self._parts.tables.by_name:
                self._runtime_of(name).restore_leases(leases, kept.get(MARKS + key, ()))
        for state in self._parts.tables:
            if state.ready:
                self._runtime_of(state.name).look_over()
        if kept:
            notes = [Put(ConfigTable.LEASES, key, None) for key in kept]
            try:
                await self._parts.control.put(notes)
            except NoSpaceError as error:
                logger.warning("cannot delete the leases saved at the last shutdown; trying again: %s", error)
                self._forgetting = asyncio.create_task(self._forget(notes), name="timerwheel notes of leases")

    async def _forget(self, notes: Sequence[Put]) -> None:
        """Remove the notes of leases as soon as there is space.

        A start after a crash would take them for leases that have ended, and count those attempts as failed.
        """
        while self._parts.core.life.ready:
            await self._parts.core.clock.sleep_for(RETRY_MS)
            with contextlib.suppress(NoSpaceError):
                await self._parts.control.put(notes)
                return

    async def keep_leases(self) -> None:
        """Save the leases, so that a planned restart redelivers nothing. The engine is stopping."""
        stored = []
        stale = self._parts.control.items(ConfigTable.LEASES)  # there was no space to remove these
        for name, runtime in list(self.runtimes.items()):
            async with runtime.leasing.turn:  # not in the midst of a receive, or of a rewind
                leases, marks = runtime.kept_leases() if self._parts.is_kept(runtime.state) else ([], [])
            for place in range(0, len(leases), KEPT_LEASES):
                key = f"{name}{SEPARATOR}{place // KEPT_LEASES}" if place else name
                part = leases[place : place + KEPT_LEASES]
                note = Put(ConfigTable.LEASES, key, part)
                more = Put(ConfigTable.LEASES, MARKS + key, marks[place : place + KEPT_LEASES])
                record = encode_puts([note, more], self._parts.core.clock.now_ms())
                stored.append(self._parts.core.commit.submit([record], [CONTROL_TOPIC]))
                stale.pop(note.key, None)
                stale.pop(more.key, None)
        if stale:
            ends = [Put(ConfigTable.LEASES, key, None) for key in stale]
            record = encode_puts(ends, self._parts.core.clock.now_ms())
            stored.append(self._parts.core.commit.submit([record], [CONTROL_TOPIC]))
        for outcome in await asyncio.gather(*stored, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.warning(
                    "cannot save leases; their messages are redelivered after the restart: %s", outcome
                )
                return

    @property
    def busy(self) -> bool:
        """Whether dead letters are being stored."""
        return any(runtime.busy for runtime in self.runtimes.values())

    def wake_all(self) -> None:
        """Let everyone who waits look again: the engine is stopping."""
        for runtime in self.runtimes.values():
            runtime.wake()

    async def close(self) -> None:
        """Stop what runs in the background; the next start goes on with it."""
        if self._forgetting is not None:
            self._forgetting.cancel()
            await asyncio.gather(self._forgetting, return_exceptions=True)
        for runtime in list(self.runtimes.values()):  # timers that fire during the loop may make others
            await runtime.close()

    # ------------------------------------------------------------------ within

    def _name(self, topic: str, group: str) -> str:
        self._check_topic(topic)
        return group_topic(topic, check_group(group))

    def _check_topic(self, topic: str) -> None:
        check_topic(topic, is_known=self._parts.queues.topic_id(topic) >= 0)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._making.setdefault(name, asyncio.Lock())

    def _known(self, topic: str, group: str) -> GroupState:
        self._parts.check_ready()
        return self._parts.state(topic, group)

    def _leasing(self, topic: str, group: str) -> GroupRuntime:
        """A group that leases messages; GroupDiffersError if it does not."""
        state = self._known(topic, group)
        if self._parts.keeps_offsets(state):
            raise leases_nothing(topic, group)
        return self._runtime_of(state.name)

    def _check_kept(self, state: GroupState) -> None:
        if not self._parts.is_kept(state):
            raise UnknownGroupError(
                f"group {state.group!r} of topic {state.topic!r} was deleted during the call"
            )

    def _runtime_of(self, name: str) -> GroupRuntime:
        runtime = self.runtimes.get(name)
        state = self._parts.tables.by_name[name]
        if runtime is None or runtime.state is not state:
            runtime = self.runtimes[name] = GroupRuntime(state, self._parts)
        return runtime

    async def _runtime(self, topic: str, group: str, terms: GroupTerms) -> tuple[GroupRuntime, GroupConfig]:
        """The group, which is created if it is not there and the terms say so."""
        self._parts.check_ready()
        name = group_topic(topic, group)
        if name not in self._parts.tables.by_name:
            name = self._name(topic, group)
            if terms.tags is not None:
                TagFilter.parse(terms.tags)  # a wrong filter is said even where there is no group yet
            if not terms.create:
                raise self._not_found(topic, group)
            check_not_of_tasks(topic, group)
            await finished(self._make_if_new(name, topic, terms.config()))
        runtime = self._leasing(topic, group)
        config = self._parts.config(runtime.state)
        tags, start = terms.tags, terms.start
        if tags is not None and TagFilter.parse(tags) != TagFilter.parse(config.tags):
            raise GroupDiffersError(
                f"group {group!r} of topic {topic!r} has the tags {config.tags!r}, not {tags!r}; "
                "messages that its filter skips are skipped for good, so all its consumers must "
                "use the same tags; change the group first"
            )
        if start is not None and start != config.start:
            raise GroupDiffersError(
                f"group {group!r} of topic {topic!r} has the start {config.start!r}, not "
                f"{start!r}; leave start out, or rewind the group"
            )
        return runtime, config

    def _not_found(self, topic: str, group: str) -> GroupNotFoundError:
        topics = self._parts.queues
        neither = "" if topics.exists(topic) else ", and the topic does not exist"
        return GroupNotFoundError(
            f"topic {topic!r} has no group {group!r}{neither}; create the group with PUT, or "
            "receive with create: true"
        )

    async def _make_if_new(self, name: str, topic: str, config: GroupConfig) -> None:
        async with self._lock(name):
            if name not in self._parts.tables.by_name:
                await self._make(name, topic, config)

    async def _make(self, name: str, topic: str, config: GroupConfig) -> None:
        if len(self._parts.tables.by_name) >= self._parts.core.settings.groups_max:
            raise TooManyGroupsError(
                f"the limit of groups_max = {self._parts.core.settings.groups_max} groups is reached"
            )
        puts = [Put(ConfigTable.GROUP, name, value_of(config))]
        if config.kind != OFFSETS or config.start == "tail":  # at the head, a queue has no committed offset
            cursors = await self._parts.cursors_for(topic, to=config.start)
            texts = {str(queue): offset for queue, offset in cursors.items()}
            puts.append(Put(ConfigTable.CURSOR, name, texts))
        self._parts.topics.check_open([topic])
        await self._parts.control.put(puts)

    def _info(self, state: GroupState) -> GroupInfo:
        queues = self._places(state)
        counts = self._counts(state, queues)
        return GroupInfo(
            state.topic,
            state.group,
            msgspec.to_builtins(self._parts.config(state)),
            self._parts.topics.ordered(state.topic),
            queues,
            counts.lag,
            counts.in_flight,
            counts.waiting,
            counts.ready,
            counts.parked,
            self.dead.count(state.topic, state.group),
            paused=self._parts.topics.paused(state.topic),
        )


def _bounded(receipts: Sequence[str]) -> Sequence[str]:
    if len(receipts) > RECEIVE_MAX:
        raise GroupFieldError(f"receipts: {len(receipts)} given; at most {RECEIVE_MAX} are allowed")
    return receipts
