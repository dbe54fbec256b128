"""Dead letters: messages that a group gave up, copied whole to its dead-letter topic with the reason.

1. The copy and the end of the message are one unit, so a message is never in both places or in neither. From
   there it can be redriven, which makes it an item of the group again, dropped, or drained by the group.
2. A message of a dead-letter topic is not copied: whichever group gives it up, it stays the dead letter that
   it is, with its origin. So groups that read each other's dead letters, or their own, never multiply them.
"""

import logging
from collections.abc import Mapping, Sequence

import orjson

from timerwheel.groups.config import GroupConfig
from timerwheel.groups.dead_letter_properties import DeadLetterOrigin, letter_properties
from timerwheel.groups.leases import Lease
from timerwheel.groups.leasing import Leasing, is_in_log
from timerwheel.groups.outlook import Outlook, reason_of
from timerwheel.groups.parts import GroupParts, stored_offset
from timerwheel.model.admission import DEAD_PREFIX
from timerwheel.runtime.message_views import id_of
from timerwheel.state.groups import DEAD_QUEUE, GroupState, Item, dead_topic
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import Kind, decode, encode, encode_properties

logger = logging.getLogger("timerwheel")

UNIT_MESSAGES_MAX = 100
UNIT_BYTES = 4 << 20


class DeadLettering:
    """Gives up messages of one group. Belongs to the event loop."""

    def __init__(self, group: GroupState, parts: GroupParts, leasing: Leasing) -> None:
        self._group = group
        self._parts = parts
        self._leasing = leasing

    async def give_up(self, leases: Sequence[Lease], reason: str | None) -> None:
        """Copy the messages of these failed attempts to the dead letters and end them.

        Those that somebody settles in the meantime are left to them. Without a reason it is that the last
        attempt was not acknowledged in time.
        """
        copies: list[tuple[Lease, bytes | None]] = []
        size_bytes = 0
        for lease in leases:
            copy = await self._copy(lease, reason)
            copies.append((lease, copy))
            size_bytes += len(copy or b"")
            if len(copies) >= UNIT_MESSAGES_MAX or size_bytes >= UNIT_BYTES:
                await self._store(copies)
                copies, size_bytes = [], 0
        await self._store(copies)

    async def end_all(
        self, config: GroupConfig, endings: Mapping[Outlook, Sequence[Lease]], reason: str | None
    ) -> None:
        """Make dead letters of messages that get no other attempt; `reason` is that of the last attempt."""
        for ending, leases in endings.items():
            await self.give_up(leases, reason_of(ending, config) or reason)
            if ending is Outlook.EXPIRED:
                self._parts.core.counters.expired += len(leases)

    async def _store(self, copies: list[tuple[Lease, bytes | None]]) -> None:
        """Store the copies and end their messages, as one unit."""
        # In one step of the loop: which of them are still ours to give up, and taking those.
        free = [(lease, copy) for lease, copy in copies if self._is_ours(lease)]
        if not free:
            return
        now_ms = self._parts.core.clock.now_ms()
        records: list[bytes] = []
        topics: list[str] = []
        items: list[Item] = []
        for lease, copy in free:
            if copy is not None:
                records.append(copy)
                topics.append(dead_topic(self._group.group))
            item = self._group.items.get(lease.key)
            if item is not None:
                items.append(item)
            records.append(self._leasing.end_record(lease, now_ms, given_up=self._is_letter(lease)))
            topics.append(self._group.name)
        stored = self._leasing.submit(records, topics, items)
        self._leasing.watch([lease for lease, _ in free], stored, done=True)
        await stored_offset(stored)
        what = "were given up and stay" if self._group.topic.startswith(DEAD_PREFIX) else "are"
        logger.warning("%d messages of group %s %s dead letters", len(free), self._group.name, what)

    def _is_ours(self, lease: Lease) -> bool:
        """Whether nobody settles the message of a failed attempt, and it still is that attempt."""
        if lease.key in self._leasing.busy or self._leasing.resetting is not None:
            return False
        if self._leasing.leases.by_key.get(lease.key) is lease:
            return True
        item = self._group.items.get(lease.key)
        if item is None or item.attempt != lease.attempt:
            return False
        return item.lent or (is_in_log(item) and item.offset not in self._parts.core.in_flight)

    def _is_letter(self, lease: Lease) -> bool:
        """Whether it lies in a dead-letter topic, and was not redriven: that took the letter away."""
        return lease.queue != DEAD_QUEUE and self._group.topic.startswith(DEAD_PREFIX)

    async def _copy(self, lease: Lease, reason: str | None) -> bytes | None:
        """The dead letter of a message; None if it is one already, or if retention has removed it."""
        if self._is_letter(lease):
            return None
        topic, queue = self._parts.place_of(self._group, lease.queue)
        found = await self._parts.read(topic, queue, lease.queue_offset, 1)
        if found.first != lease.queue_offset or not found.data:
            return None
        now_ms = self._parts.core.clock.now_ms()
        why = reason or f"attempt {lease.attempt} was not acknowledged in time"
        data = found.data[0]
        if isinstance(data, CorruptionError):
            view = self._parts.queues.delivered_view(data, found.roots[0], lease.queue_offset)
            body, properties, message_id = b"", dict[str, str](), view.id
            why = f"{why}; {data.reason}"
        else:
            record = decode(data)
            body = record.body
            properties = orjson.loads(record.properties) if record.properties else {}
            message_id = id_of(self._parts.core.ids, record, found.roots[0])
        topic_of_origin = None if lease.queue == DEAD_QUEUE else self._group.topic
        origin = DeadLetterOrigin(message_id, why, lease.attempt)
        properties = letter_properties(properties, topic_of_origin, origin)
        return encode(
            Kind.MESSAGE,
            dead_topic(self._group.group).encode(),
            encode_properties(properties),
            body,
            store_ms=now_ms,
            due_ms=now_ms,
            enqueue_ms=now_ms,
        )
