"""Dead letters: messages that a group gave up, copied whole to its dead-letter topic with the reason.

1. The copy and the end of the item are one unit, so a message is never in both places or in neither. From
   there it can be redriven, which makes it an item of the group again, dropped, or drained by the group.
2. A message of a dead-letter topic is not copied: whichever group gives it up, it stays the dead letter that
   it is, with its origin. So groups that read each other's dead letters, or their own, never multiply them.
"""

import logging
from collections.abc import Sequence

import orjson

from timerwheel.groups.config import REASON_CHARACTERS_MAX
from timerwheel.groups.dead_letter_properties import ATTEMPTS, ORIGIN_ID, ORIGIN_TOPIC, REASON
from timerwheel.groups.leasing import Leasing
from timerwheel.groups.parts import GroupParts, stored_or_told
from timerwheel.model.admission import DEAD_PREFIX
from timerwheel.runtime.message_views import id_of
from timerwheel.state import lease_records
from timerwheel.state.groups import DEAD_QUEUE, GroupState, Item, ItemState, dead_topic
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import Kind, decode, encode, unit_of

logger = logging.getLogger("timerwheel")

BURY_MESSAGES = 100
BURY_BYTES = 4 << 20


class DeadLettering:
    """Gives up messages of one group. Belongs to the event loop."""

    def __init__(self, group: GroupState, parts: GroupParts, leasing: Leasing) -> None:
        self._group = group
        self._parts = parts
        self._leasing = leasing
        self._name = group.name.encode()

    async def bury(self, roots: Sequence[int], reason: str | None) -> set[int]:
        """Copy the messages of these leases to the dead letters and end them; returns those it did.

        Without a reason it is that the last attempt was not acknowledged in time.
        """
        buried: set[int] = set()
        copies: dict[int, bytes | None] = {}
        size_bytes = 0
        for root in roots:
            item = self._group.by_root.get(root)
            if item is None:
                continue
            copies[root] = copy = await self._copy(item, reason)
            size_bytes += len(copy or b"")
            if len(copies) >= BURY_MESSAGES or size_bytes >= BURY_BYTES:
                buried |= await self._store(copies)
                copies, size_bytes = {}, 0
        return buried | await self._store(copies)

    async def _store(self, copies: dict[int, bytes | None]) -> set[int]:
        """Store the copies and end their items, as one unit."""
        # In one step of the loop: which of them are still ours to give up, and taking those.
        items = {root: item for root in copies if (item := self._group.by_root.get(root)) is not None}
        free = [item for root, item in items.items() if self._free(root, item)]
        if not free:
            return set()
        now_ms = self._parts.core.clock.now_ms()
        unit: list[bytes] = []
        topics: list[str] = []
        for item in free:
            copy = copies[item.root]
            if copy is not None:
                unit.append(copy)
                topics.append(dead_topic(self._group.group))
            stays = self._is_letter(item)
            unit.append(lease_records.end(self._name, item, now_ms, given_up=stays))
            topics.append(self._group.name)
        keys = [item.key for item in free if not item.timed]
        self._leasing.claim(keys)
        taken = self._parts.core.in_flight.take(self._parts.entries(self._group, free))
        done = taken.submit(unit_of(unit), topics)
        done.add_done_callback(lambda _: self._leasing.release(keys))
        await stored_or_told(done)
        what = "were given up and stay" if self._group.topic.startswith(DEAD_PREFIX) else "are"
        logger.warning("%d messages of group %s %s dead letters", len(free), self._group.name, what)
        return {item.root for item in free}

    def _free(self, root: int, item: Item) -> bool:
        if self._group.by_root.get(root) is not item or item.root != root:
            return False
        if item.timed:
            return item.state == ItemState.LEASED and item.offset not in self._parts.core.in_flight
        return item.state == ItemState.READY and item.key not in self._leasing.claimed

    def _is_letter(self, item: Item) -> bool:
        """Whether it lies in a dead-letter topic, and was not redriven: that took the letter away."""
        return item.queue != DEAD_QUEUE and self._group.topic.startswith(DEAD_PREFIX)

    async def _copy(self, item: Item, reason: str | None) -> bytes | None:
        """The dead letter of an item; None if it is one already, or if retention has removed the message."""
        if self._is_letter(item):
            return None
        topic, queue = self._parts.place_of(self._group, item)
        found = await self._parts.read(topic, queue, item.queue_offset, 1)
        if found.first != item.queue_offset or not found.data:
            return None
        now_ms = self._parts.core.clock.now_ms()
        why = reason or f"attempt {item.attempt} was not acknowledged in time"
        data = found.data[0]
        if isinstance(data, CorruptionError):
            view = self._parts.queues.delivered_view(data, found.roots[0], item.queue_offset)
            body, properties, message_id = b"", dict[str, str](), view.id
            why = f"{why}; {data.reason}"
        else:
            record = decode(data)
            body = record.body
            properties = orjson.loads(record.properties) if record.properties else {}
            message_id = id_of(self._parts.core.ids, record, found.roots[0])
        if item.queue != DEAD_QUEUE:
            properties[ORIGIN_TOPIC] = self._group.topic
            properties[ORIGIN_ID] = message_id
        properties[REASON] = why[:REASON_CHARACTERS_MAX]
        properties[ATTEMPTS] = str(item.attempt)
        return encode(
            Kind.MESSAGE,
            dead_topic(self._group.group).encode(),
            orjson.dumps(properties),
            body,
            store_ms=now_ms,
            due_ms=now_ms,
            enqueue_ms=now_ms,
        )
