"""Working with dead letters: list them, send them back to their group, or drop them.

A dead letter stays in its queue as long as retention keeps it; which ones were redriven or dropped is noted
in the log, so that each is dealt with once.
"""

from array import array
from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np
import orjson

from timerwheel.groups.dead_letter_filter import ALL_LETTERS, DeadLetterFilter
from timerwheel.groups.dead_letter_properties import (
    ATTEMPTS,
    ORIGIN_ID,
    ORIGIN_TOPIC,
    REASON,
    message_properties,
)
from timerwheel.groups.parts import GroupParts
from timerwheel.groups.retries import copy_record
from timerwheel.model.messages import DeadLetter, DeadPage, MessageView
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.runtime.shielded import shielded
from timerwheel.state import lease_records
from timerwheel.state.groups import DEAD_QUEUE, DeadLetters, dead_topic, group_topic, retry_topic
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import decode

PAGE_MESSAGES = 500
PASSED_OVER_MAX = 1_000
"""Letters that one page reads without listing them, since they do not meet its conditions."""
REDRIVE_MESSAGES = 500
REDRIVE_BYTES = 4 << 20
"""About how large a unit of redriven letters gets: those of a group that commits offsets have bodies."""


class Redriven(NamedTuple):
    """How many dead letters were sent back, and how many stay since their group is gone or is full."""

    redriven: int
    left: int


class _Place(NamedTuple):
    """A dead letter: where it is, and whose message it was."""

    offset: int
    origin_topic: str


class Origins:
    """Which topics the letters of a dead-letter topic came from, at offsets from `first` to `next_offset`.

    A dead-letter topic takes the letters of every group of one name. Each letter is read once while the
    service runs, when it is first asked for, and takes 4 bytes from then on.
    """

    def __init__(self) -> None:
        self.first = 0
        self._codes = array("I")
        self._topics: list[str] = []
        self._code_of: dict[str, int] = {}
        self._counted: tuple[object, ...] = ()  # what `_counts` was counted from
        self._counts: dict[str, int] = {}

    @property
    def next_offset(self) -> int:
        """The offset of the first letter that was not read yet."""
        return self.first + len(self._codes)

    def add(self, offset: int, topic: str) -> None:
        """A letter was read; offsets come in order. What lies between two of them is gone."""
        if not self._codes:
            self.first = offset
        elif offset > self.next_offset:
            self._codes.extend([self._code("")] * (offset - self.next_offset))
        self._codes.append(self._code(topic))

    def forget_before(self, offset: int) -> None:
        """Retention has removed the letters before this one."""
        if offset > self.first:
            del self._codes[: offset - self.first]
            self.first = offset

    def counts(self, letters: DeadLetters | None) -> dict[str, int]:
        """How many there are of each topic, without those that were dealt with."""
        asked = (self.first, self.next_offset, letters and letters.low, letters and len(letters.removed))
        if asked != self._counted:
            self._counted, self._counts = asked, self._count(letters)
        return self._counts

    def _count(self, letters: DeadLetters | None) -> dict[str, int]:
        codes = np.array(self._codes, np.uint32)
        if letters is not None:
            is_dead = np.arange(self.first, self.next_offset) >= letters.low
            is_dead[[at - self.first for at in letters.removed if self.first <= at < self.next_offset]] = (
                False
            )
            codes = codes[is_dead]
        counts = np.bincount(codes, minlength=len(self._topics)).tolist()
        return {topic: count for topic, count in zip(self._topics, counts, strict=True) if count}

    def find(self, topics: Container[str], offset: int) -> int:
        """The offset of the next letter of these topics; if there is none, the next to be read."""
        wanted = [code for code, topic in enumerate(self._topics) if topic in topics]
        codes = np.array(self._codes[max(offset - self.first, 0) :], np.uint32)
        hits = np.flatnonzero(np.isin(codes, wanted))
        return max(offset, self.first) + int(hits[0]) if len(hits) else max(offset, self.next_offset)

    def _code(self, topic: str) -> int:
        code = self._code_of.get(topic)
        if code is None:
            code = self._code_of[topic] = len(self._topics)
            self._topics.append(topic)
        return code


class DeadLetterStore:
    """The dead letters of all groups. Belongs to the event loop.

    `turn` is held while letters are sent back or dropped, to the end even if the caller goes away: each is
    dealt with once. Resetting or deleting a group takes it too, so that no letter goes to a group that is
    gone, and so does acknowledging letters.
    """

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts
        self._origins: dict[str, Origins] = {}
        self.turn = parts.letters_turn

    async def page(
        self, group: str, first: int = 0, limit: int = 100, wanted: DeadLetterFilter = ALL_LETTERS
    ) -> DeadPage:
        """Dead letters of a group's name from a queue offset on, oldest first, that are wanted.

        If few are, a page may be short or empty and not be the last.
        """
        topic = dead_topic(group)
        found: list[DeadLetter] = []
        size_bytes = passed_over = 0
        at = first
        while True:
            if wanted.topics is not None:
                at = (await self.look_through(group)).find(wanted.topics, at)
            read = await self._parts.read(topic, 0, at, PAGE_MESSAGES)
            if not read.data:
                return DeadPage(found, None)
            letters = self._letters(topic)
            for place, (root, data) in enumerate(zip(read.roots, read.data, strict=True)):
                at = read.first + place
                if letters is not None and not letters.has(at):
                    continue
                letter = _letter(self._parts.queues.delivered_view(data, root, at), at)
                if not wanted.has_topic(letter):
                    continue
                if not wanted.admits(letter):
                    passed_over += 1
                    if passed_over == PASSED_OVER_MAX:
                        return DeadPage(found, at + 1)
                    continue
                if len(found) == limit or size_bytes > PAGE_BYTES_MAX:
                    return DeadPage(found, at)
                size_bytes += len(letter.message.body)
                found.append(letter)
            at += 1

    async def counts(self, group: str) -> dict[str, int]:
        """How many dead letters the groups of a name have, by topic; those that cannot be read under ""."""
        return (await self.look_through(group)).counts(self._letters(dead_topic(group)))

    def count(self, topic: str, group: str) -> int:
        """How many dead letters a group has; those that were not looked through yet count for every topic."""
        name = dead_topic(group)
        origins = self._origins.get(name)
        if origins is None:
            return self._parts.dead_count(name)
        unread = max(self._parts.queues.queue_bounds(name, 0)[1] - origins.next_offset, 0)
        return origins.counts(self._letters(name)).get(topic, 0) + unread

    @shielded
    async def redrive(
        self, group: str, offsets: Sequence[int] | None = None, wanted: DeadLetterFilter = ALL_LETTERS
    ) -> Redriven:
        """Make these dead letters, or all, messages of their group again, from the first attempt on.

        A group of kind `offsets` gets a copy in its topic of retries. Only those that are wanted.
        """
        async with self.turn:
            redriven = left = 0
            for part in _parts_of(await self._chosen(group, offsets, wanted), REDRIVE_MESSAGES):
                now_ms = self._parts.core.clock.now_ms()
                unit: list[bytes] = []
                places: list[str] = []
                size_bytes = 0
                for letter in part:
                    again = await self._again(group, letter, now_ms, places)
                    if again is None:
                        left += 1
                        continue
                    unit += [again[1], self._taken(group, letter, now_ms)]
                    places += [again[0], dead_topic(group)]
                    redriven += 1
                    size_bytes += len(again[1])
                    if size_bytes >= REDRIVE_BYTES:
                        await self._parts.submit(unit, places)
                        unit, places, size_bytes = [], [], 0
                if unit:
                    await self._parts.submit(unit, places)
            return Redriven(redriven, left)

    async def _again(
        self, group: str, letter: _Place, now_ms: int, unit: Sequence[str]
    ) -> tuple[str, bytes] | None:
        """The record that has a group get a dead letter again, and its topic.

        None if the group is gone, or full with what the unit of these topics gives it, or the letter is
        damaged.
        """
        state = self._parts.tables.by_name.get(group_topic(letter.origin_topic, group))
        if state is None:
            return None
        if not self._parts.keeps_offsets(state):
            if len(state.items) + unit.count(state.name) >= self._parts.core.settings.group_items_max:
                return None
            place = (DEAD_QUEUE, letter.offset)
            return state.name, lease_records.redrive(state.name.encode(), place, now_ms)
        read = await self._parts.read(dead_topic(group), 0, letter.offset, 1)
        if not read.has(letter.offset) or isinstance(data := read.data[0], CorruptionError):
            return None
        record, topic = decode(data), retry_topic(group)
        properties = message_properties(orjson.loads(record.properties or b"{}"))
        return topic, copy_record(topic, record.body, properties, now_ms)

    @shielded
    async def drop(
        self, group: str, offsets: Sequence[int] | None = None, wanted: DeadLetterFilter = ALL_LETTERS
    ) -> int:
        """Forget these dead letters, or all, that are wanted; returns how many those were."""
        async with self.turn:
            count = 0
            for part in _parts_of(await self._chosen(group, offsets, wanted), REDRIVE_MESSAGES):
                now_ms = self._parts.core.clock.now_ms()
                unit = [self._taken(group, letter, now_ms) for letter in part]
                places = [dead_topic(group)] * len(unit)
                await self._parts.submit(unit, places)
                count += len(unit)
            return count

    def _taken(self, group: str, letter: _Place, now_ms: int) -> bytes:
        return lease_records.take_dead(dead_topic(group).encode(), letter.offset, now_ms)

    async def _chosen(
        self, group: str, offsets: Sequence[int] | None, wanted: DeadLetterFilter
    ) -> list[_Place]:
        """Where those of the offsets are that are still dead letters and wanted, or all that are."""
        found: list[_Place] = []
        if offsets is not None:
            for offset in sorted(set(offsets)):
                found += await self._letter_at(dead_topic(group), offset, wanted)
            return found
        at: int | None = 0
        while at is not None:
            page = await self.page(group, at, PAGE_MESSAGES, wanted)
            found += map(_place, page.letters)
            at = page.next_offset
        return found

    async def _letter_at(self, topic: str, offset: int, wanted: DeadLetterFilter) -> list[_Place]:
        """The dead letter at a queue offset, if there is one that is wanted."""
        read = await self._parts.read(topic, 0, offset, 1)
        letters = self._letters(topic)
        if not read.has(offset) or (letters is not None and not letters.has(offset)):
            return []
        letter = _letter(self._parts.queues.delivered_view(read.data[0], read.roots[0], offset), offset)
        return [_place(letter)] if wanted.has_topic(letter) and wanted.admits(letter) else []

    async def look_through(self, group: str) -> Origins:
        """Where the letters of a group's name came from, up to the last one there is."""
        topic = dead_topic(group)
        origins = self._origins.setdefault(topic, Origins())
        while True:
            low, high = self._parts.queues.queue_bounds(topic, 0)
            origins.forget_before(low)
            if origins.next_offset >= high:
                return origins
            read = await self._parts.read(topic, 0, origins.next_offset, PAGE_MESSAGES)
            for at, data in enumerate(read.data, read.first):
                if at >= origins.next_offset:  # another caller may have read it since
                    origins.add(at, _origin_of(data))
            if not read.data:
                return origins

    def _letters(self, topic: str) -> DeadLetters | None:
        """Which letters of a dead-letter topic are dealt with; None if none is."""
        return self._parts.tables.dead.get(self._parts.queues.topic_id(topic))


def _place(letter: DeadLetter) -> _Place:
    return _Place(letter.offset, letter.origin_topic)


def _letter(view: MessageView, offset: int) -> DeadLetter:
    properties = view.properties
    return DeadLetter(
        view,
        offset,
        properties.get(ORIGIN_TOPIC, ""),
        properties.get(ORIGIN_ID, ""),
        properties.get(REASON, ""),
        int(properties.get(ATTEMPTS, "0")),
        view.delivered_ms or 0,
    )


def _origin_of(data: bytes | CorruptionError) -> str:
    """The topic that a letter came from; "" if it cannot be read."""
    if isinstance(data, CorruptionError):
        return ""
    properties: dict[str, str] = orjson.loads(decode(data).properties or b"{}")
    return properties.get(ORIGIN_TOPIC, "")


def _parts_of(letters: list[_Place], count_max: int) -> list[list[_Place]]:
    return [letters[at : at + count_max] for at in range(0, len(letters), count_max)]
