"""Choosing: which messages of a group come next. Stores nothing.

First the messages that are ready again, in that order, then what the group has not seen, queue by queue. What
is chosen is *claimed* until its records have taken effect or were refused: nobody else may choose it.
"""

import itertools
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2s
from typing import NamedTuple

import orjson

from timerwheel.groups.config import GroupConfig
from timerwheel.groups.parts import Found, GroupParts
from timerwheel.model.tags import TagFilter
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.state.groups import DEAD_QUEUE, GroupState, Item
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import decode

AHEAD_MESSAGES = 256
AHEAD_BYTES = 256 << 10
SCAN_MESSAGES = 1_000
SCAN_MESSAGES_MAX = 10_000
PASSED_MESSAGES = 1_000
RUN_GAP_MESSAGES = 8  # read over so many that are not wanted, rather than once more
SHARDING_KEY = "__SHARDINGKEY"


class Choice(NamedTuple):
    """A message to lease: where it is, its record, and which attempt this will be."""

    queue: int
    queue_offset: int
    root: int
    data: bytes | CorruptionError
    attempt: int


class Choices:
    """What one receive found: messages to lease, to hold back, gone, dealt with, or passed over."""

    def __init__(self, count_max: int, bytes_max: int = PAGE_BYTES_MAX) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.leases: list[Choice] = []
        self.holds: list[tuple[int, int, int]] = []
        self.gone: list[Item] = []
        self.dealt: list[Item] = []
        self.keys: list[int] = []
        self.lanes: set[int] = set()
        self.passed: dict[int, int] = {}
        self._bytes = 0

    def add(self, choice: Choice) -> None:
        """One more to lease."""
        self.leases.append(choice)
        if isinstance(choice.data, bytes):
            self._bytes += len(choice.data)

    @property
    def full(self) -> bool:
        """Whether an answer should not grow any more."""
        return (
            len(self.leases) >= self.count_max
            or self._bytes >= self.bytes_max
            or len(self.holds) >= SCAN_MESSAGES
        )

    @property
    def new(self) -> int:
        """How many items the group will have more."""
        return max(len(self.leases), len(self.holds))

    def __bool__(self) -> bool:
        """Whether there is anything to store."""
        return bool(self.leases or self.holds or self.gone or self.dealt or self.passed)


class _Wanted(NamedTuple):
    """What of the fresh messages a group takes, and how."""

    tags: TagFilter
    ordered: bool

    @property
    def all(self) -> bool:
        """Whether no message need be looked into."""
        return self.tags.tags is None and not self.ordered


class Chooser:
    """Chooses for one group. Belongs to the event loop; one call of `choose` at a time."""

    def __init__(self, group: GroupState, parts: GroupParts) -> None:
        self._group = group
        self._parts = parts
        self._next: dict[int, int] = {}
        self._ahead: dict[int, Found] = {}
        self._lanes: Counter[int] = Counter()
        self._rotation = 0
        self.claimed: set[int] = set()
        self.more = False
        self.cramped = False

    async def choose(self, config: GroupConfig, count_max: int, bytes_max: int = PAGE_BYTES_MAX) -> Choices:
        """What to lease now. The caller must call `let_go` once it has taken effect or was refused.

        `more` then tells whether there is something left to look through, `cramped` whether the group holds
        as many messages as it may.
        """
        choices = Choices(count_max, bytes_max)
        before = dict(self._next)
        try:
            await self._choose_ready(config, choices)
            await self._choose_fresh(config, choices)
        except BaseException:
            self._next = before
            self.let_go(choices)
            raise
        return choices

    def let_go(self, choices: Choices) -> None:
        """These are claimed no longer."""
        self.claimed.difference_update(choices.keys)
        if choices.lanes:
            self._lanes -= Counter(choices.lanes)

    @property
    def left(self) -> bool:
        """Whether a message is ready again that nobody claims, or a new one was not looked at."""
        if len(self._group.ready) > len(self.claimed):
            return True
        topic, queues = self._group.topic, self._parts.queues
        return any(self._at(at) < queues.queue_bounds(topic, at)[1] for at in range(queues.queues_of(topic)))

    def restart(self) -> None:
        """Go on from the group's cursors: they were set, or what was chosen after them was refused."""
        self._next.clear()
        self._ahead.clear()

    # ------------------------------------------------------------------ messages that are ready again

    async def _choose_ready(self, config: GroupConfig, choices: Choices) -> None:
        free = (self._group.items[key] for key in self._group.ready if key not in self.claimed)
        fit = (item for item in free if item.attempt < config.max_attempts)
        chosen = list(itertools.islice(fit, choices.count_max))
        choices.keys += [item.key for item in chosen]
        self.claimed.update(choices.keys)
        run: Found | None = None
        for place, item in enumerate(chosen):
            if choices.full:
                break
            if run is None or item.queue != chosen[place - 1].queue or not run.has(item.queue_offset):
                topic, queue = self._parts.place_of(self._group, item)
                run = await self._parts.read(topic, queue, item.queue_offset, _run_length(chosen, place))
            if self._group.items.get(item.key) is not item:
                continue
            if not run.has(item.queue_offset):
                choices.gone.append(item)  # retention has removed the message
                continue
            if item.queue != DEAD_QUEUE and self._is_dealt_with(item.queue_offset):
                choices.dealt.append(item)
                continue
            at = item.queue_offset - run.first
            choices.add(Choice(item.queue, item.queue_offset, run.roots[at], run.data[at], item.attempt + 1))

    # ------------------------------------------------------------------ what is new

    async def _choose_fresh(self, config: GroupConfig, choices: Choices) -> None:
        wanted = _Wanted(TagFilter.parse(config.tags), self._parts.ordered(self._group.topic))
        room = self._parts.core.settings.group_items_max - len(self._group.items)
        count = self._parts.queues.queues_of(self._group.topic)
        self._rotation += 1
        self.more = False
        for turn in range(count):
            queue = (self._rotation + turn) % count
            end = self._parts.queues.queue_bounds(self._group.topic, queue)[1]
            scanned = 0
            while not choices.full and choices.new < room and (at := self._at(queue)) < end:
                found = await self._read_ahead(queue, at, choices, wanted)
                looked = self._sift(queue, found, min(choices.count_max, room), choices, wanted)
                self._next[queue] = found.first + looked
                self._keep_ahead(queue, found.since(found.first + looked))
                scanned += looked
                if scanned >= SCAN_MESSAGES_MAX or self._next[queue] == at:
                    self.more = self.more or bool(found.data)
                    break
            self._note_passed(queue, choices)
        self.more = self.more or (choices.full and not choices.leases)
        self.cramped = choices.new >= room

    def _at(self, queue: int) -> int:
        # Not before what is kept: of what was read ahead and removed since, no second attempt could be made.
        low = self._parts.queues.queue_bounds(self._group.topic, queue)[0]
        return max(self._next.get(queue, 0), self._group.cursors.get(queue, 0), low)

    async def _read_ahead(self, queue: int, at: int, choices: Choices, wanted: _Wanted) -> Found:
        """Messages of a queue from an offset on: read before, or now and then at least as many as asked."""
        ahead = self._ahead.pop(queue, None)
        if ahead is None or not ahead.first <= at < ahead.first + len(ahead.data):
            count = choices.count_max - len(choices.leases) if wanted.all else SCAN_MESSAGES
            few = count <= AHEAD_MESSAGES
            ahead = await self._parts.read(
                self._group.topic,
                queue,
                at,
                max(count, AHEAD_MESSAGES),
                AHEAD_BYTES if few else choices.bytes_max,
            )
        return ahead.since(at)

    def _keep_ahead(self, queue: int, rest: Found) -> None:
        """Keep what was read and not looked at, no more than AHEAD_BYTES: a group may rest for long."""
        if not rest.bounded:
            sizes = (len(data) if isinstance(data, bytes) else 0 for data in rest.data)
            fit = sum(total <= AHEAD_BYTES for total in itertools.accumulate(sizes))
            rest = Found(rest.first, rest.roots[:fit], rest.data[:fit], bounded=True)
        if rest.data:
            self._ahead[queue] = rest

    def _sift(self, queue: int, found: Found, limit: int, choices: Choices, wanted: _Wanted) -> int:
        """Choose from messages of a queue; returns how many were looked at."""
        looked = 0
        for at, root, data in zip(itertools.count(found.first), found.roots, found.data, strict=False):
            if choices.full or len(choices.leases) >= limit:
                break
            looked += 1
            if self._is_dealt_with(at):
                continue
            tag, lane = (None, 0) if wanted.all else _tag_and_lane(data)
            if not wanted.tags.passes(tag):
                continue
            if wanted.ordered and lane:
                choices.holds.append((queue, at, lane))
                taken = lane in self._group.lanes or lane in self._lanes
                # Claimed also if nothing of it is leased: its first may be done before the holds take effect.
                if lane not in choices.lanes:
                    choices.lanes.add(lane)
                    self._lanes[lane] += 1
                if taken:
                    continue
            choices.add(Choice(queue, at, root, data, 1))
        return looked

    def _is_dealt_with(self, queue_offset: int) -> bool:
        """Whether it is one of the group's own dead letters that was redriven or dropped since."""
        group = self._group
        return self._parts.drains(group) and not self._parts.is_dead(group.topic, queue_offset)

    def _note_passed(self, queue: int, choices: Choices) -> None:
        """Have a cursor recorded that has gone far over messages which are not for this group."""
        at = self._next.get(queue, 0)
        leased = (choice.queue_offset + 1 for choice in choices.leases if choice.queue == queue)
        if at - _last(leased, self._group.cursors.get(queue, 0)) >= PASSED_MESSAGES:
            choices.passed[queue] = at


def _run_length(items: list[Item], place: int) -> int:
    """How many messages to read from that of an item on: those of the items that follow it closely."""
    first = last = items[place]
    for item in items[place + 1 :]:
        near = item.queue == last.queue and 0 < item.queue_offset - last.queue_offset <= RUN_GAP_MESSAGES
        if not near:
            break
        last = item
    return last.queue_offset - first.queue_offset + 1


def _last(offsets: Iterable[int], cursor: int) -> int:
    return max(offsets, default=cursor)


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
    digest = blake2s(key.encode(), digest_size=8).digest()
    return properties.get("TAGS"), int.from_bytes(digest, "big") >> 1 | 1
