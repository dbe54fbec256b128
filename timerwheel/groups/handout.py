"""Handing out: which messages of a group are leased next, and leasing them.

First what came back, in the order in which it did, then what the group has not seen, queue by queue.

A crash keeps a prefix of the log, and a lease moves the cursor past all that lies before it. So leases of
fresh messages must be stored in the order in which they were chosen, or a message between two of them would
be passed over. Therefore one receive at a time chooses and submits (`_turn`), and if a unit was refused, all
that was chosen after it is chosen anew (`_forget_refused`).

What is chosen but has not taken effect is *claimed*: nobody else may choose it.
"""

import asyncio
import itertools
from collections import deque
from hashlib import blake2s
from typing import NamedTuple

import orjson

from store.errors import CorruptionError
from store.record import decode, unit_of
from timerwheel.control import CONTROL_TOPIC, Put, encode_puts
from timerwheel.groups import records
from timerwheel.groups.config import GroupConfig
from timerwheel.groups.parts import Found, GroupParts, stored_or_told
from timerwheel.groups.state import GroupState, Item
from timerwheel.groups.tags import TagFilter
from timerwheel.message import Delivery
from timerwheel.present import PAGE_BYTES_MAX

SCAN_MESSAGES = 1_000
SCAN_MESSAGES_MAX = 10_000
PASSED_MESSAGES = 1_000
SHARDING_KEY = "__SHARDINGKEY"


class _Choice(NamedTuple):
    """A message to lease: where it is, its record, and which attempt this will be."""

    queue: int
    queue_offset: int
    root: int
    data: bytes | CorruptionError
    attempt: int


class _Choices:
    """What one receive found: messages to lease, to hold back, or gone."""

    def __init__(self) -> None:
        self.leases: list[_Choice] = []
        self.holds: list[tuple[int, int, int]] = []
        self.gone: list[Item] = []
        self.keys: list[int] = []
        self.lanes: list[int] = []
        self.passed: dict[int, int] = {}
        self._bytes = 0

    def add(self, choice: _Choice) -> None:
        """One more to lease."""
        self.leases.append(choice)
        if isinstance(choice.data, bytes):
            self._bytes += len(choice.data)

    def full(self, count_max: int) -> bool:
        """Whether an answer should not grow any more."""
        return len(self.leases) >= count_max or self._bytes >= PAGE_BYTES_MAX

    @property
    def new(self) -> int:
        """How many items the group will have more."""
        return max(len(self.leases), len(self.holds))

    def __bool__(self) -> bool:
        """Whether there is anything to store."""
        return bool(self.leases or self.holds or self.gone or self.passed)


class Handout:
    """Hands out the messages of one group. Belongs to the event loop."""

    def __init__(self, group: GroupState, parts: GroupParts) -> None:
        self._group = group
        self._parts = parts
        self._name = group.name.encode()
        self._turn = asyncio.Lock()
        self._next: dict[int, int] = {}
        self._rotation = 0
        self._under_way: deque[tuple[asyncio.Future[int], _Choices]] = deque()
        self._lanes: set[int] = set()
        self.claimed: set[int] = set()
        self.more = False

    async def take(self, config: GroupConfig, count_max: int, invisible_ms: int) -> list[Delivery]:
        """Lease up to `count_max` messages; durable when this returns. Nothing if there is none now.

        `more` then tells whether a filter left something to look through. Raises NoSpaceError, NotReadyError.
        """
        async with self._turn:
            stored, choices, due_ms = await self._choose_and_submit(config, count_max, invisible_ms)
        if stored is None:
            return []
        offset = await stored_or_told(stored)
        deliveries: list[Delivery] = []
        until_ms = due_ms[0]
        for choice, size in zip(choices.leases, due_ms[1], strict=True):
            message = self._parts.queues.delivered_view(choice.data, choice.root, choice.queue_offset)
            receipt = self._parts.receipts.encode(self._group.name, offset)
            deliveries.append(Delivery(message, receipt, choice.attempt, until_ms))
            offset += size
        return deliveries

    async def _choose_and_submit(
        self, config: GroupConfig, count_max: int, invisible_ms: int
    ) -> tuple[asyncio.Future[int] | None, _Choices, tuple[int, list[int]]]:
        while True:
            self._forget_refused()
            choices = _Choices()
            before = dict(self._next)
            try:
                await self._choose(config, count_max, choices)
            except BaseException:
                self._unclaim(choices)
                self._next = before
                raise
            if not choices:
                return None, choices, (0, [])
            if not self._forget_refused():
                break
            self._unclaim(choices)
        now_ms = self._parts.clock.now_ms()
        unit: list[bytes] = []
        for choice in choices.leases:
            due_ms = self._parts.comes_back_ms(config, choice.attempt, invisible_ms, now_ms)
            unit.append(records.lease(self._name, (choice.queue, choice.queue_offset), now_ms, due_ms))
        sizes = [len(record) for record in unit]
        # A hold makes the lane before the lease takes its first: it comes before it in the log.
        held = [records.hold(self._name, (queue, at), now_ms, lane) for queue, at, lane in choices.holds]
        rest = [records.end(self._name, item, now_ms) for item in choices.gone]
        topics = [self._group.name] * (len(held) + len(unit) + len(rest))
        if choices.passed:
            passed = {str(queue): offset for queue, offset in choices.passed.items()}
            rest.append(encode_puts([Put("passed", self._group.name, passed)], now_ms))
            topics.append(CONTROL_TOPIC)
        stored = self._parts.commit.submit(unit_of(held + unit + rest), topics)
        self._under_way.append((stored, choices))
        stored.add_done_callback(lambda _: self._forget_refused())
        if not choices.leases:
            await stored_or_told(stored)
            return None, choices, (0, [])
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        held_bytes = sum(map(len, held))
        stored.add_done_callback(lambda done: _shifted(done, first, held_bytes))
        return first, choices, (now_ms + invisible_ms, sizes)

    def _forget_refused(self) -> bool:
        """Let go of the claims of units that are stored or refused; True if one was refused.

        Then every unit that was submitted behind it was refused, too, or is still to be chosen.
        """
        refused = False
        while self._under_way and self._under_way[0][0].done():
            stored, choices = self._under_way.popleft()
            self._unclaim(choices)
            refused = refused or stored.cancelled() or stored.exception() is not None
        if refused:
            self._next.clear()
        return refused

    def _unclaim(self, choices: _Choices) -> None:
        self.claimed.difference_update(choices.keys)
        self._lanes.difference_update(choices.lanes)

    def start_anew(self) -> None:
        """The cursors were set: what was looked at last no longer counts."""
        self._next.clear()

    @property
    def turn(self) -> asyncio.Lock:
        """Held while messages are chosen; whoever sets cursors holds it."""
        return self._turn

    async def settle(self) -> None:
        """Wait for the leases that are under way; with the turn held, none follow."""
        while self._under_way:
            await asyncio.wait([stored for stored, _ in self._under_way])
            self._forget_refused()

    # ------------------------------------------------------------------ choosing

    async def _choose(self, config: GroupConfig, count_max: int, choices: _Choices) -> None:
        ready = (self._group.items[key] for key in self._group.ready if key not in self.claimed)
        chosen = list(
            itertools.islice((item for item in ready if item.attempt < config.max_attempts), count_max)
        )
        choices.keys += [item.key for item in chosen]
        self.claimed.update(choices.keys)
        for item in chosen:
            await self._choose_item(item, choices)
            if choices.full(count_max):
                break
        await self._choose_fresh(config, count_max, choices)

    async def _choose_item(self, item: Item, choices: _Choices) -> None:
        topic, queue = self._parts.place_of(self._group, item)
        found = await self._parts.read(topic, queue, item.queue_offset, 1)
        if self._group.items.get(item.key) is not item:
            return
        if found.first != item.queue_offset or not found.data:
            choices.gone.append(item)  # retention has removed the message
            return
        root = int(found.roots[0])
        choices.add(_Choice(item.queue, item.queue_offset, root, found.data[0], item.attempt + 1))

    async def _choose_fresh(self, config: GroupConfig, count_max: int, choices: _Choices) -> None:
        tags = TagFilter.parse(config.tags)
        ordered = self._parts.ordered(self._group.topic)
        room = self._parts.settings.group_items_max - len(self._group.items) - len(self.claimed)
        count = self._parts.queues.queues_of(self._group.topic)
        self._rotation += 1
        self.more = False
        for turn in range(count):
            queue = (self._rotation + turn) % count
            scanned = 0
            while not choices.full(count_max) and choices.new < room:
                wanted = count_max - len(choices.leases)
                if tags.tags is not None or ordered:
                    wanted = SCAN_MESSAGES
                at = max(self._next.get(queue, 0), self._group.cursors.get(queue, 0))
                if at >= self._parts.queues.queue_bounds(self._group.topic, queue)[1]:
                    break
                found = await self._parts.read(self._group.topic, queue, at, wanted)
                if not found.data:
                    break
                limit = min(count_max, room)
                taken = self._sift(found.first, queue, found, tags, choices, limit, ordered=ordered)
                self._next[queue] = found.first + taken
                scanned += taken
                if scanned >= SCAN_MESSAGES_MAX:
                    self.more = True
                    break
            self._note_passed(queue, choices)

    def _sift(  # noqa: PLR0913 - what is looked through, by what, and where to
        self,
        first: int,
        queue: int,
        found: Found,
        tags: TagFilter,
        choices: _Choices,
        limit: int,
        *,
        ordered: bool,
    ) -> int:
        """Choose from messages of a queue; returns how many were looked at."""
        looked = 0
        for at, root, data in zip(
            range(first, first + len(found.data)), found.roots.tolist(), found.data, strict=True
        ):
            if choices.full(limit) or len(choices.holds) >= SCAN_MESSAGES:
                break
            looked += 1
            tag, lane = _tag_and_lane(data) if tags.tags is not None or ordered else (None, 0)
            if not tags.passes(tag):
                continue
            if ordered and lane:
                choices.holds.append((queue, at, lane))
                if lane in self._group.lanes or lane in self._lanes:
                    continue
                self._lanes.add(lane)
                choices.lanes.append(lane)
            choices.add(_Choice(queue, at, root, data, 1))
        return looked

    def _note_passed(self, queue: int, choices: _Choices) -> None:
        """Have a cursor recorded that has gone far over messages which are not for this group."""
        at = self._next.get(queue, 0)
        last = max(
            [self._group.cursors.get(queue, 0)]
            + [choice.queue_offset + 1 for choice in choices.leases if choice.queue == queue]
        )
        if at - last >= PASSED_MESSAGES:
            choices.passed[queue] = at


def _tag_and_lane(data: bytes | CorruptionError) -> tuple[str | None, int]:
    """A message's tag, and the number of its sharding key, 0 without one."""
    if isinstance(data, CorruptionError):
        return None, 0
    raw = decode(data).properties
    if not raw:
        return None, 0
    properties = orjson.loads(raw)
    key = properties.get(SHARDING_KEY)
    if key is None:
        return properties.get("TAGS"), 0
    return properties.get("TAGS"), int.from_bytes(blake2s(key.encode(), digest_size=8).digest()) >> 1 | 1


def _shifted(done: asyncio.Future[int], first: asyncio.Future[int], by: int) -> None:
    if first.done():
        return
    if done.cancelled():
        first.cancel()
    elif (error := done.exception()) is not None:
        first.set_exception(error)
        first.exception()
    else:
        first.set_result(done.result() + by)
