"""Working with dead letters: list them, send them back to their group, or drop them.

A dead letter stays in its queue as long as retention keeps it; which ones were redriven or dropped is noted
in the log, so that each is dealt with once.
"""

from collections.abc import Sequence
from typing import NamedTuple

from timerwheel.groups import records
from timerwheel.groups.burial import ATTEMPTS, ORIGIN_ID, ORIGIN_TOPIC, REASON
from timerwheel.groups.parts import GroupParts
from timerwheel.groups.state import DEAD_QUEUE, DeadLetters
from timerwheel.groups.tables import dead_topic, group_topic
from timerwheel.message import DeadLetter, DeadPage, MessageView
from timerwheel.present import PAGE_BYTES_MAX
from timerwheel.shielded import finished

PAGE_MESSAGES = 500
REDRIVE_MESSAGES = 500


class Redriven(NamedTuple):
    """How many dead letters were sent back, and how many stay since their group is gone or is full."""

    redriven: int
    left: int


class _Place(NamedTuple):
    """A dead letter: where it is, and whose message it was."""

    offset: int
    origin_topic: str


class DeadLetterOffice:
    """The dead letters of all groups. Belongs to the event loop.

    `turn` is held while letters are sent back or dropped, to the end even if the caller goes away: each is
    dealt with once. Whoever has a group forget what it holds takes it, too, and who acknowledges letters.
    """

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts
        self.turn = parts.letters_turn

    async def page(self, group: str, first: int = 0, limit: int = 100) -> DeadPage:
        """Dead letters of a group from a queue offset on, oldest first."""
        topic = dead_topic(group)
        found: list[DeadLetter] = []
        size_bytes = 0
        at = first
        while True:
            read = await self._parts.read(topic, 0, at, PAGE_MESSAGES)
            if not read.data:
                return DeadPage(found, None)
            letters = self._letters(topic)
            for place, (root, data) in enumerate(zip(read.roots, read.data, strict=True)):
                at = read.first + place
                if letters is not None and not letters.has(at):
                    continue
                if len(found) == limit or size_bytes > PAGE_BYTES_MAX:
                    return DeadPage(found, at)
                letter = _letter(self._parts.queues.delivered_view(data, root, at), at)
                size_bytes += len(letter.message.body)
                found.append(letter)
            at += 1

    async def redrive(self, group: str, offsets: Sequence[int] | None = None) -> Redriven:
        """Make these dead letters, or all, messages of their group again, from the first attempt on."""
        return await finished(self._redrive(group, offsets))

    async def _redrive(self, group: str, offsets: Sequence[int] | None) -> Redriven:
        async with self.turn:
            redriven = left = 0
            for part in _parts_of(await self._chosen(group, offsets), REDRIVE_MESSAGES):
                now_ms = self._parts.clock.now_ms()
                unit: list[bytes] = []
                topics: list[str] = []
                for letter in part:
                    state = self._parts.tables.by_name.get(group_topic(letter.origin_topic, group))
                    room = self._parts.settings.group_items_max
                    if state is None or len(state.items) + len(part) > room:
                        left += 1
                        continue
                    name = state.name
                    unit.append(
                        records.lease(name.encode(), (DEAD_QUEUE, letter.offset), now_ms, now_ms, ended=True)
                    )
                    unit.append(self._taken(group, letter, now_ms))
                    topics += [name, dead_topic(group)]
                    redriven += 1
                if unit:
                    await self._parts.submit(unit, topics)
            return Redriven(redriven, left)

    async def drop(self, group: str, offsets: Sequence[int] | None = None) -> int:
        """Forget these dead letters, or all; returns how many those were."""
        return await finished(self._drop(group, offsets))

    async def _drop(self, group: str, offsets: Sequence[int] | None) -> int:
        async with self.turn:
            count = 0
            for part in _parts_of(await self._chosen(group, offsets), REDRIVE_MESSAGES):
                now_ms = self._parts.clock.now_ms()
                unit = [self._taken(group, letter, now_ms) for letter in part]
                topics = [dead_topic(group)] * len(unit)
                await self._parts.submit(unit, topics)
                count += len(unit)
            return count

    def _taken(self, group: str, letter: _Place, now_ms: int) -> bytes:
        return records.take_dead(dead_topic(group).encode(), letter.offset, now_ms)

    async def _chosen(self, group: str, offsets: Sequence[int] | None) -> list[_Place]:
        """Where those of the offsets are that are still dead letters, or all there are now."""
        found: list[_Place] = []
        if offsets is not None:
            for offset in sorted(set(offsets)):
                found += await self._letter_at(dead_topic(group), offset)
            return found
        at: int | None = 0
        while at is not None:
            page = await self.page(group, at, PAGE_MESSAGES)
            found += map(_place, page.letters)
            at = page.next_offset
        return found

    async def _letter_at(self, topic: str, offset: int) -> list[_Place]:
        """The dead letter at a queue offset, if there is one."""
        read = await self._parts.read(topic, 0, offset, 1)
        letters = self._letters(topic)
        if not read.has(offset) or (letters is not None and not letters.has(offset)):
            return []
        return [
            _place(_letter(self._parts.queues.delivered_view(read.data[0], read.roots[0], offset), offset))
        ]

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


def _parts_of(letters: list[_Place], count_max: int) -> list[list[_Place]]:
    return [letters[at : at + count_max] for at in range(0, len(letters), count_max)]
