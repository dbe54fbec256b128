"""Choosing: which messages of a group come next. Stores nothing.

First the messages that are ready again, in that order, then those that were given back or whose turn in
their lane has come, then what the group has not seen, queue by queue.

The place up to which a queue was looked through is in memory only; a start begins at the group's cursor. What
lies behind the cursor and is done, or held, is left out then. Messages that the filter leaves out are
*skipped*: they are acknowledged together with those of consumers.
"""

import functools
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2s
from typing import NamedTuple

import msgspec
import orjson

from timerwheel.groups.config import GroupConfig
from timerwheel.groups.leases import Leases
from timerwheel.groups.outlook import Outlook, outlook
from timerwheel.groups.parts import Found, GroupParts
from timerwheel.model.limits import Limits
from timerwheel.model.properties import SHARDING_KEY, TAGS
from timerwheel.model.tags import TagFilter
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.state.groups import DEAD_QUEUE, GroupState, Item, ItemKey
from timerwheel.state.limited_records import is_limited, limits_of
from timerwheel.state.offset_set import OffsetSet
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import decode, root_crc_of

AHEAD_MESSAGES = 256
AHEAD_BYTES = 256 << 10
SCAN_MESSAGES = 1_000
SCAN_MESSAGES_MAX = 10_000
SKIPPED_MESSAGES = 1_000
STALE_SPARED = 64
RUN_GAP_MESSAGES = 8  # read over so many that are not wanted, rather than once more


class Lanes:
    """The sharding keys of one group's messages on an ordered topic, as numbers.

    Of each key's messages one is in work, and the rest are parked behind it. In memory only: after a start
    the messages are looked at again, and parked again. Invariant: a lane's first message is in work, or may
    be leased now, or fails its attempts and waits. So an item of the group with a lane is the first of it.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, list[int]] = {}  # not deques: those take 600 bytes more, and lanes are short
        self._parked: set[int] = set()

    def __contains__(self, lane: int) -> bool:
        """Whether a message of this lane is in work, or may be leased."""
        return lane in self._lanes

    @property
    def parked(self) -> int:
        """How many messages are parked."""
        return len(self._parked)

    def join(self, lane: int, key: int, *, behind: bool = False) -> bool:
        """A message of a lane was seen; whether it is the first, and `behind` no other in work."""
        queue = self._lanes.get(lane)
        if queue is None and not behind:
            self._lanes[lane] = [key]
            return True
        if queue is None:
            queue = self._lanes[lane] = []
        queue.append(key)
        self._parked.add(key)
        return False

    def done(self, lane: int, key: int) -> int | None:
        """The first message of a lane is done; returns the next, which is the first now."""
        queue = self._lanes.get(lane)
        if queue is None:
            return None
        if queue[0] == key:
            del queue[0]
        if not queue:
            del self._lanes[lane]
            return None
        if queue[0] not in self._parked:
            return None
        self._parked.discard(queue[0])
        return queue[0]

    def clear(self) -> None:
        """Forget all of them."""
        self._lanes.clear()
        self._parked.clear()


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A message to lease: its key, its record, which attempt this will be, its lane, its limits if known."""

    key: int
    root: int
    data: bytes | CorruptionError
    attempt: int
    lane: int
    limits: Limits | None = None


class Choices:
    """What one receive found: messages to lease, and items whose message is gone or dealt with.

    `over` are messages that get no attempt any more; their `attempt` is the last one that failed.
    """

    def __init__(self, count_max: int, bytes_max: int = PAGE_BYTES_MAX) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.found: list[Choice] = []
        self.over: list[Choice] = []
        self.gone: list[Item] = []
        self.dealt: list[Item] = []
        self.fresh = 0  # how many messages the group holds more
        self.parked = 0
        self._bytes = 0

    def add(self, choice: Choice) -> None:
        """One more to lease."""
        self.found.append(choice)
        if isinstance(choice.data, bytes):
            self._bytes += len(choice.data)

    def take(
        self, key: int, roots: Sequence[int], records: Sequence[bytes | CorruptionError], limit: int
    ) -> int:
        """Add up to `limit` first attempts, keys from `key` on, until it is full; returns how many."""
        if self.full:
            return 0
        count = 0
        for data in records[: max(limit, 0)]:
            if self._bytes >= self.bytes_max:
                break
            self._bytes += len(data) if isinstance(data, bytes) else 0
            count += 1
        keys = range(key, key + count)
        self.found += [
            Choice(one, root, data, 1, 0) for one, root, data in zip(keys, roots, records, strict=False)
        ]
        return count

    @property
    def full(self) -> bool:
        """Whether an answer should not grow any more."""
        return (
            len(self.found) >= self.count_max
            or self._bytes >= self.bytes_max
            or self.parked >= SCAN_MESSAGES
            or len(self.over) >= SCAN_MESSAGES
        )


_filter_of = functools.lru_cache(maxsize=1_024)(TagFilter.parse)


class _Wanted(NamedTuple):
    """What of the fresh messages a group takes, and how."""

    tags: TagFilter
    ordered: bool
    config: GroupConfig

    @property
    def all(self) -> bool:
        """Whether no message need be looked into that sets no limits itself."""
        return self.tags.tags is None and not self.ordered


class Chooser:
    """Chooses for one group. Belongs to the event loop; one call of `choose` at a time.

    `loose` are fresh messages that were looked at and may be leased now: the lane of each, by key. `more`
    says whether the last `choose` left something to look through, `at_capacity` whether it found the group
    with as many messages as it may hold, `overdue` whether very many were skipped since that was stored last.
    `spared` are items that have more attempts than the group grants, since their messages say so.
    """

    def __init__(self, group: GroupState, parts: GroupParts, leases: Leases) -> None:
        self._group = group
        self._parts = parts
        self._leases = leases
        self._next: dict[int, int] = {}
        self._chosen: dict[int, int] = {}  # by queue: one past the last that was chosen or parked
        self._known: dict[int, int] = {}  # by queue: from here on nothing is done or held
        self._past_known: dict[int, int] = {}  # by queue: so far all is done or held from where to look on
        self._ahead: dict[int, Found] = {}
        self._skipped: dict[int, OffsetSet] = {}
        self._rotation = 0
        self.lanes = Lanes()
        self.spared: set[int] = set()
        self._spared_max = STALE_SPARED
        self.loose: dict[int, int] = {}
        self.more = False
        self.at_capacity = False
        self.overdue = False

    async def choose(self, config: GroupConfig, count_max: int, bytes_max: int = PAGE_BYTES_MAX) -> Choices:
        """What to lease now. Nobody else is given it, unless `give_back` says so."""
        choices = Choices(count_max, bytes_max)
        try:
            await self._choose_ready(config, choices)
            await self._choose_loose(config, choices)
            await self._choose_fresh(config, choices)
        except BaseException:
            for choice in (*choices.found, *choices.over):
                self.give_back(choice.key, choice.lane)
            for item in (*choices.gone, *choices.dealt):
                self._group.give_back(item)
            raise
        return choices

    def spare(self, key: int) -> None:
        """This item has more attempts than the group grants."""
        self.spared.add(key)
        if len(self.spared) > self._spared_max:  # most of them may be done by now
            self.spared = {key for key in self.spared if key in self._group.items}
            self._spared_max = 2 * len(self.spared) + STALE_SPARED

    def give_back(self, key: int, lane: int) -> None:
        """Nobody has this message any more: it may be leased."""
        item = self._group.items.get(key)
        if item is not None:
            self._group.give_back(item)
        else:
            self.loose[key] = lane

    def leave_lane(self, key: int, lane: int) -> bool:
        """This message is done, or gone: the next of its lane may be leased; whether there is one."""
        if not lane or lane in self._group.lanes:
            return False
        following = self.lanes.done(lane, key)
        if following is None:
            return False
        self.loose[following] = lane
        return True

    def at(self, queue: int) -> int:
        """The offset of a queue up to which it was looked through."""
        return self._at(queue, self._parts.queues.queue_bounds(self._group.topic, queue)[0])

    def _at(self, queue: int, low: int) -> int:
        # Not before what is kept: of what was read ahead and removed since, no second attempt could be made.
        passed = self._group.passed.get(queue)
        at = max(self._next.get(queue, 0), passed.low if passed is not None else 0, low)
        known = self._known_until(queue)
        if at >= known:
            return at
        at = max(at, self._past_known.get(queue, 0))
        while at < known and self.is_known(queue, at):
            at += 1
        self._past_known[queue] = at
        return at

    def was_looked_at(self, queue: int, offset: int) -> bool:
        """Whether this run has looked at a message."""
        return offset < self._next.get(queue, 0)

    def places(self, bounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return for each queue, given its bounds, how far it was looked through, and its lag.

        The lag is how many of its messages nobody has looked at.
        """
        found: list[tuple[int, int]] = []
        leased: dict[int, list[int]] | None = None
        for queue, (low, end) in enumerate(bounds):
            at = self._at(queue, low)
            lag = end - at
            if at < self._known_until(queue):
                leased = self._leased() if leased is None else leased
                passed = self._group.passed.get(queue)
                lag -= passed.count(at) if passed is not None else 0
                lag -= sum(at <= offset for offset in leased.get(queue, ()))
            found.append((at, lag))
        return found

    def _leased(self) -> dict[int, list[int]]:
        """Return by queue the offsets of messages that are leased for the first time."""
        found: dict[int, list[int]] = {}
        for lease in self._leases:
            if lease.key not in self._group.items:
                found.setdefault(lease.queue, []).append(lease.queue_offset)
        return found

    @property
    def left(self) -> bool:
        """Whether a message may be leased, or a new one was not looked at."""
        if self._group.ready or self.loose:
            return True
        topic, queues = self._group.topic, self._parts.queues
        return any(self.at(at) < queues.queue_bounds(topic, at)[1] for at in range(queues.queues_of(topic)))

    @property
    def holds(self) -> int:
        """How many messages the group holds: leased, failed and not done, parked."""
        group = self._group
        return len(group.items) + len(self._leases) - group.lent + self.lanes.parked + len(self.loose)

    @property
    def read_ahead_bytes(self) -> int:
        """How many bytes of messages that were read and not looked at are kept for the next receive."""
        return sum(map(_bytes_of, self._ahead.values()))

    def look_again(self) -> None:
        """Another filter may let through what was skipped since a message was chosen last."""
        self._next = {queue: at for queue, at in self._chosen.items() if queue in self._next}
        self._past_known.clear()
        self._ahead.clear()
        for queue, skipped in self._skipped.items():
            self._skipped[queue] = _before(skipped, self._chosen.get(queue, 0))

    def restart(self) -> None:
        """The cursors were set: begin there, with nothing leased."""
        for place in (self._next, self._chosen, self._known, self._past_known):
            place.clear()
        self.spared.clear()
        self._spared_max = STALE_SPARED
        self._ahead.clear()
        self._skipped.clear()
        self.loose.clear()
        self.lanes.clear()

    def take_skipped(self) -> list[tuple[int, int, int]]:
        """What was skipped before a message that was chosen, as stretches: queue, first, end. Only once."""
        found: list[tuple[int, int, int]] = []
        for queue, skipped in self._skipped.items():
            done = _before(skipped, self._chosen.get(queue, 0))
            found += [(queue, first, end) for first, end in done.stretches()]
            self._skipped[queue] = _from(skipped, self._chosen.get(queue, 0))
        self.overdue = False
        return found

    def expect(self, key: int, lane: int) -> None:
        """This message, of this lane, was leased without being looked at."""
        if self.loose.pop(key, None) is None and lane:
            self.lanes.join(lane, key)
        queue = ItemKey.queue(key)
        self._known[queue] = max(self._known_until(queue), ItemKey.offset(key) + 1)

    def drop_before(self, ends: Mapping[int, int]) -> None:
        """None of the messages before these queue offsets is loose or parked any more: they are purged."""
        while stale := [key for key in self.loose if ItemKey.offset(key) < ends.get(ItemKey.queue(key), 0)]:
            for key in stale:
                offset, lane = ItemKey.offset(key), self.loose.pop(key)
                self.skip(ItemKey.queue(key), offset, offset + 1)
                self.leave_lane(key, lane)

    def skipped_within(self, queue: int, first: int, end: int) -> int:
        """Count the messages of a queue in [first, end) that were skipped, and are not recorded yet."""
        skipped = self._skipped.get(queue)
        return skipped.count(first) - skipped.count(end) if skipped is not None and first < end else 0

    async def look_up(self, keys: Iterable[int]) -> dict[int, tuple[int, int]]:
        """The mark and the lane of messages by key, looked at or not; without those that are gone.

        The lane is 0 if their topic is not ordered.
        """
        topic, found = self._group.topic, dict[int, tuple[int, int]]()
        ordered, queues = self._parts.topics.ordered(topic), self._parts.queues.queues_of(topic)
        there = (key for key in set(keys) if ItemKey.queue(key) < queues or ItemKey.queue(key) == DEAD_QUEUE)
        chosen = sorted(there)
        async for place, run in self._runs(Choices(len(chosen)), chosen):
            key = chosen[place]
            if run.has(ItemKey.offset(key)):
                data = run.data[ItemKey.offset(key) - run.first]
                is_in_lane = ordered and ItemKey.queue(key) != DEAD_QUEUE
                found[key] = mark_of(data), _tag_and_lane(data)[1] if is_in_lane else 0
        return found

    def skip(self, queue: int, first: int, end: int) -> None:
        """These messages are not for this group."""
        self._skipped.setdefault(queue, OffsetSet()).add(first, end)

    # ------------------------------------------------------------------ messages that were seen before

    async def _choose_ready(self, config: GroupConfig, choices: Choices) -> None:
        if not self._group.ready:
            return
        items = (self._group.items[key] for key in self._group.ready)
        fit = (item for item in items if item.attempt < config.max_attempts or item.key in self.spared)
        chosen = list(itertools.islice(fit, choices.count_max))
        async for place, run in self._runs(choices, [item.key for item in chosen]):
            item = chosen[place]
            if self._group.items.get(item.key) is not item or item.key not in self._group.ready:
                continue  # done, or given up, while others were read
            self._group.lend(item)
            if not run.has(item.queue_offset):
                choices.gone.append(item)  # retention has removed the message
            elif item.queue != DEAD_QUEUE and self._is_dealt_with(item.queue_offset):
                choices.dealt.append(item)
            else:
                at = item.queue_offset - run.first
                place_of = (item.key, run.roots[at], run.data[at], item.attempt, item.lane)
                self._add(config, choices, Choice(*place_of, _limits_of(run.data[at], config)))

    def _add(self, config: GroupConfig, choices: Choices, failed: Choice) -> None:
        """Add a message, after so many failed attempts: for the next attempt, or to those that are over."""
        if failed.limits is None:
            choices.add(msgspec.structs.replace(failed, attempt=failed.attempt + 1))
            return
        age_ms = self._parts.ages.age_ms(failed.limits.from_ms)
        if outlook(config, failed.limits, failed.attempt, age_ms, 0) is Outlook.AGAIN:
            choices.add(msgspec.structs.replace(failed, attempt=failed.attempt + 1))
        else:
            choices.over.append(failed)

    async def _choose_loose(self, config: GroupConfig, choices: Choices) -> None:
        if not self.loose:
            return
        chosen = list(itertools.islice(self.loose, choices.count_max))
        async for place, run in self._runs(choices, chosen):
            key = chosen[place]
            lane = self.loose.pop(key, None)
            if lane is None:
                continue
            offset = ItemKey.offset(key)
            if not run.has(offset) or self._is_dealt_with(offset):
                self.skip(ItemKey.queue(key), offset, offset + 1)
                self.leave_lane(key, lane)
                continue
            root, data = run.roots[offset - run.first], run.data[offset - run.first]
            self._add(config, choices, Choice(key, root, data, 0, lane, _limits_of(data, config)))

    async def _runs(self, choices: Choices, keys: Sequence[int]) -> AsyncIterator[tuple[int, Found]]:
        """The places of these messages, each with what was read around it, until the answer is full."""
        run: Found | None = None
        for place, key in enumerate(keys):
            if choices.full:
                return
            offset = ItemKey.offset(key)
            if run is None or ItemKey.queue(key) != ItemKey.queue(keys[place - 1]) or not run.has(offset):
                topic, queue = self._parts.place_of(self._group, ItemKey.queue(key))
                run = await self._parts.read(topic, queue, offset, _run_length(keys, place))
            yield place, run

    # ------------------------------------------------------------------ what is new

    async def _choose_fresh(self, config: GroupConfig, choices: Choices) -> None:
        ordered = self._parts.topics.ordered(self._group.topic)
        wanted = _Wanted(_filter_of(config.tags), ordered, config)
        room = self._parts.core.settings.group_items_max - self.holds - len(choices.found)
        count = self._parts.queues.queues_of(self._group.topic)
        self._rotation += 1
        self.more = False
        limit = min(choices.count_max, len(choices.found) + max(room, 0))
        for turn in range(count):
            queue = (self._rotation + turn) % count
            end = self._parts.queues.queue_bounds(self._group.topic, queue)[1]
            scanned = 0
            while not choices.full and choices.fresh < room and (at := self._begin(queue)) < end:
                found = await self._read_ahead(queue, at, choices, wanted)
                looked = self._sift(queue, found, limit, choices, wanted)
                self._next[queue] = found.first + looked
                self._keep_ahead(queue, found.since(found.first + looked))
                scanned += looked
                if scanned >= SCAN_MESSAGES_MAX or self._next[queue] == at:
                    self.more = self.more or bool(found.data)
                    break
            self._note_skipped(queue)
        self.more = self.more or bool((choices.full or choices.over) and not choices.found)
        self.at_capacity = choices.fresh >= room

    def _begin(self, queue: int) -> int:
        """Where to look on; what retention removed before anybody looked at it is skipped."""
        low = self._parts.queues.queue_bounds(self._group.topic, queue)[0]
        passed = self._group.passed.get(queue)
        begin = max(self._next.get(queue, 0), passed.low if passed is not None else 0)
        if begin < low:
            self.skip(queue, begin, low)
        at = self._next[queue] = self.at(queue)
        return at

    def _known_until(self, queue: int) -> int:
        """The offset of a queue from which on nothing is done or held that was not looked at."""
        known = self._known.get(queue)
        if known is None:
            passed = self._group.passed.get(queue)
            leased = (lease.queue_offset + 1 for lease in self._leases if lease.queue == queue)
            known = self._known[queue] = max(leased, default=0)
            if passed is not None:
                known = self._known[queue] = max(known, passed.end)
        return known

    async def _read_ahead(self, queue: int, at: int, choices: Choices, wanted: _Wanted) -> Found:
        """Messages of a queue from an offset on: read before, or now and then at least as many as asked."""
        ahead = self._ahead.pop(queue, None)
        if ahead is None or not ahead.first <= at < ahead.first + len(ahead.data):
            count = choices.count_max - len(choices.found) if wanted.all else SCAN_MESSAGES
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
        known = self._known_until(queue)
        plain = wanted.all and not any(map(_is_limited, found.data[: max(limit - len(choices.found), 0)]))
        if plain and found.first >= known and not self._parts.drains(self._group):
            return self._take_all(queue, found, limit, choices)
        for at, root, data in zip(itertools.count(found.first), found.roots, found.data, strict=False):
            if choices.full or len(choices.found) >= limit:
                break
            looked += 1
            if at < known and self.is_known(queue, at):
                continue
            tag, lane = (None, 0) if wanted.all else _tag_and_lane(data)
            if not wanted.tags.passes(tag) or self._is_dealt_with(at):
                self.skip(queue, at, at + 1)
                continue
            key = ItemKey.of(queue, at)
            choices.fresh += 1
            self._chosen[queue] = at + 1
            if wanted.ordered and lane and not self.lanes.join(lane, key, behind=lane in self._group.lanes):
                choices.parked += 1
                continue
            lane = lane if wanted.ordered else 0
            failed = Choice(key, root, data, 0, lane, _limits_of(data, wanted.config))
            self._add(wanted.config, choices, failed)
        return looked

    def _take_all(self, queue: int, found: Found, limit: int, choices: Choices) -> int:
        """Take fresh messages unfiltered, up to `limit`; return how many."""
        first = ItemKey.of(queue, found.first)
        taken = choices.take(first, found.roots, found.data, limit - len(choices.found))
        if taken:
            choices.fresh += taken
            self._chosen[queue] = found.first + taken
        return taken

    def is_known(self, queue: int, offset: int) -> bool:
        """Whether a message needs no first attempt any more, or is leased."""
        passed = self._group.passed.get(queue)
        return (passed is not None and offset in passed) or (ItemKey.of(queue, offset) in self._leases.by_key)

    def _is_dealt_with(self, queue_offset: int) -> bool:
        """Whether it is one of the group's own dead letters that was redriven or dropped since."""
        group = self._group
        return self._parts.drains(group) and not self._parts.is_dead(group.topic, queue_offset)

    def _note_skipped(self, queue: int) -> None:
        """Very many messages that are not for this group are recorded without a consumer's help."""
        skipped = self._skipped.get(queue)
        if skipped is not None and skipped.count(0) >= SKIPPED_MESSAGES:
            self._chosen[queue] = self._next.get(queue, 0)
            self.overdue = True


def _is_limited(data: bytes | CorruptionError) -> bool:
    return isinstance(data, bytes) and is_limited(data)


def mark_of(data: bytes | CorruptionError) -> int:
    """The mark of a message in receipts: the CRC of its first record, 0 if it cannot be read."""
    return 0 if isinstance(data, CorruptionError) else root_crc_of(data)


def is_other(mark: int | None, found: int) -> bool:
    """Whether the mark of a receipt is of another message than the one that is there now, as far as is known.

    A message that could not be read then, or cannot be read now, is taken for the same.
    """
    return bool(mark and found) and mark != found


def _limits_of(data: bytes | CorruptionError, config: GroupConfig) -> Limits | None:
    """Return the limits of a message, None if neither it nor its group sets any."""
    if isinstance(data, CorruptionError) or (config.max_age_ms is None and not is_limited(data)):
        return None
    return limits_of(data)


def _before(offsets: OffsetSet, end: int) -> OffsetSet:
    return OffsetSet(itertools.chain.from_iterable(_clipped(offsets, 0, end)))


def _from(offsets: OffsetSet, first: int) -> OffsetSet:
    return OffsetSet(itertools.chain.from_iterable(_clipped(offsets, first, offsets.end)))


def _clipped(offsets: OffsetSet, first: int, end: int) -> Iterator[tuple[int, int]]:
    for low, high in offsets.stretches():
        if max(low, first) < min(high, end):
            yield max(low, first), min(high, end)


def _run_length(keys: Sequence[int], place: int) -> int:
    """How many messages to read from one on: those that follow it closely."""
    first = last = keys[place]
    for key in keys[place + 1 :]:
        if not 0 < key - last <= RUN_GAP_MESSAGES:
            break
        last = key
    return last - first + 1


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
        return properties.get(TAGS), 0
    digest = blake2s(key.encode(), digest_size=8).digest()
    return properties.get(TAGS), int.from_bytes(digest, "big") >> 1 | 1


def _bytes_of(found: Found) -> int:
    return sum(len(data) for data in found.data if isinstance(data, bytes))
