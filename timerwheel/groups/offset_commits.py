"""Groups of kind `offsets`: their consumers read the queues themselves and commit how far they are.

    commit   checked, then kept in memory: counts at once
    flush    every `offset_commit_interval_ms`, and at a planned stop: what changed, as a CONTROL record for
             each RECORD_QUEUES_MAX queues

1. The state of such a group is an offset for each queue: that of the first message its consumers have not
   processed. A queue without one was never committed. The log has it as an event on the group's cursors.
2. A crash loses the commits since the last flush that ended, no others, and so does a planned stop whose
   flush fails. A cursor is always an offset that somebody committed or rewound to, or where a group that
   starts at the tail was made.
3. Cursors are stored, and groups rewound or deleted, one after the other: each record is made from what the
   one before left behind.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from timerwheel.errors import NotReadyError, OutcomeUnknownError
from timerwheel.groups.config import GroupFieldError, leases_only
from timerwheel.groups.parts import GroupParts, stored_offset
from timerwheel.state.config_table import CONTROL_TOPIC, ConfigTable, Put, encode_puts
from timerwheel.state.groups import GroupState
from timerwheel.store.errors import NoSpaceError, StoreError

logger = logging.getLogger("timerwheel")

RECORD_QUEUES_MAX = 1_000
"""Queues in a record of committed offsets, unless one group alone has more."""
LOST_NAMED_MAX = 10
"""How many groups a warning names whose commits were not stored."""


class _Change(NamedTuple):
    """What is stored of one group: these offsets, by this event."""

    group: GroupState
    offsets: dict[int, int]
    put: Put


class OffsetCommits:
    """The committed offsets of all groups. Belongs to the event loop."""

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts
        self._unstored: dict[GroupState, dict[int, int]] = {}
        self._turn = asyncio.Lock()
        self.on_rewind: list[Callable[[str, str, Mapping[int, int]], None]] = []
        """All are called with topic, group and new offsets: consumers are to read on from there."""

    def committed(self, topic: str, group: str, queue: int) -> int | None:
        """Return the offset of a queue that was committed last; None if none ever was.

        It may lie before the first message that is kept. Raises UnknownGroupError, GroupDiffersError.
        """
        return self.cursors(self._group(topic, group)).get(queue)

    def commit(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Note for some queues the first offset that is not processed, forward or back; all or none.

        It counts at once, and is durable after the next flush. Raises UnknownGroupError, GroupDiffersError,
        NotReadyError, and GroupFieldError for a queue that the topic does not have, or an offset beyond the
        end of its queue.
        """
        self._parts.check_ready()
        state = self._group(topic, group)
        self.check(topic, offsets)
        if offsets:
            self._unstored.setdefault(state, {}).update(offsets)

    def check(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Raise GroupFieldError for a queue that the topic does not have, or an offset beyond its end."""
        for queue, offset in offsets.items():
            if not self._parts.topics.has_queue(topic, queue):
                raise GroupFieldError(f"offsets: topic {topic!r} has no queue {queue}")
            end = self._parts.queues.queue_bounds(topic, queue)[1]
            if not 0 <= offset <= end:
                raise GroupFieldError(
                    f"offsets: {offset} is not an offset of queue {queue} of topic {topic!r}: "
                    f"must be from 0 to {end}"
                )

    def cursors(self, group: GroupState) -> dict[int, int]:
        """Return the committed offset of each queue that has one."""
        return group.cursors | self._unstored.get(group, {})

    async def rewind(self, group: GroupState, cursors: Mapping[int, int]) -> None:
        """Set the offsets of these queues, durably; those of the others stay.

        While the record is stored, consumers may commit: to a queue that is rewound this has no effect, since
        they read from the old place; to any other queue it counts, as ever.
        """
        async with self._turn:
            offsets = self.cursors(group) | dict(cursors)
            await self._parts.control.put([_reset(group, offsets)])
            unstored = self._unstored.get(group, {})
            for queue in cursors:
                unstored.pop(queue, None)
            self._forget(group, offsets)
        for rewound in self.on_rewind:
            rewound(group.topic, group.group, cursors)

    async def delete(self, group: GroupState) -> None:
        """Remove the group, durably."""
        async with self._turn:
            await self._parts.control.put([Put(ConfigTable.GROUP, group.name, None)])
            self._unstored.pop(group, None)

    # ------------------------------------------------------------------ to the log

    async def run(self) -> None:
        """Store what was committed, at the interval; on a full disk it is tried again."""
        while True:
            await self._parts.core.clock.sleep_for(self._parts.core.settings.offset_commit_interval_ms)
            try:
                await self.flush()
            except (NoSpaceError, NotReadyError, OutcomeUnknownError) as error:
                logger.warning("committed offsets are not stored yet: %s", error)

    async def flush(self) -> None:
        """Store what was committed and is not stored yet; durable when this returns. Writes nothing else.

        Each record is stored before the next is made, so that neither the loop nor a batch of the log has
        many of them to do in one step.
        """
        async with self._turn:
            for groups in self._steps():
                changes = [change for group in groups if (change := self._change(group)) is not None]
                if changes:
                    record = encode_puts([change.put for change in changes], self._parts.core.clock.now_ms())
                    await stored_offset(self._parts.core.commit.submit([record], [CONTROL_TOPIC]))
                for change in changes:
                    self._forget(change.group, change.offsets)
                await self._parts.core.clock.breathe()

    async def flush_at_stop(self) -> None:
        """Store what was committed, as the engine stops; log what is lost since it cannot be stored."""
        try:
            await self.flush()
        except (NotReadyError, OutcomeUnknownError, StoreError) as error:
            lost = [group.name for group in list(self._unstored) if self._change(group) is not None]
            more = f" and {len(lost) - LOST_NAMED_MAX} more" if len(lost) > LOST_NAMED_MAX else ""
            logger.warning(
                "shutting down without saving the last committed offsets of %d groups: %s%s; consumers will "
                "reread some messages: %s",
                len(lost),
                ", ".join(lost[:LOST_NAMED_MAX]),
                more,
                error,
            )

    def _steps(self) -> Iterator[list[GroupState]]:
        """Yield the groups that committed something, as many together as one record may have."""
        part: list[GroupState] = []
        queues = 0
        for group, offsets in list(self._unstored.items()):
            count = max(len(group.passed), len(offsets))
            if part and queues + count > RECORD_QUEUES_MAX:
                yield part
                part, queues = [], 0
            part.append(group)
            queues += count
        if part:
            yield part

    def _change(self, group: GroupState) -> _Change | None:
        """What is to be stored of a group; if that is nothing, its commits are forgotten."""
        known, offsets = group.cursors, self._unstored[group]
        moved = {queue: offset for queue, offset in offsets.items() if known.get(queue) != offset}
        if not moved or not self._parts.is_kept(group):
            del self._unstored[group]
            return None
        if all(offset > known.get(queue, 0) for queue, offset in moved.items()):
            texts = {str(queue): offset for queue, offset in moved.items()}
            return _Change(group, moved, Put(ConfigTable.PASSED, group.name, texts))
        # That event only moves cursors forward, from 0 where there is none.
        return _Change(group, moved, _reset(group, known | moved))

    def _forget(self, group: GroupState, stored: Mapping[int, int]) -> None:
        """These offsets are in the log now: keep only what was committed since."""
        unstored = self._unstored.get(group, {})
        for queue, offset in stored.items():
            if unstored.get(queue) == offset:
                del unstored[queue]
        if not unstored:
            self._unstored.pop(group, None)

    def _group(self, topic: str, group: str) -> GroupState:
        state = self._parts.state(topic, group)
        if not self._parts.keeps_offsets(state):
            raise leases_only(topic, group)
        return state


def _reset(group: GroupState, cursors: Mapping[int, int]) -> Put:
    return Put(ConfigTable.CURSOR, group.name, {str(queue): offset for queue, offset in cursors.items()})
