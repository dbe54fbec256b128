"""Leasing: the leases of chosen messages are stored, then the consumer gets the messages.

A crash keeps a prefix of the log, and a lease moves the cursor past all that lies before it. So leases of
fresh messages must be stored in the order in which they were chosen, or a message between two of them would
be passed over. Therefore one receive at a time chooses and submits (`turn`), and if a unit was refused, all
that was chosen after it is chosen again, also if it was chosen before the refusal (`_choose`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from timerwheel.groups.choosing import Choices, Chooser
from timerwheel.groups.config import GroupConfig
from timerwheel.groups.dead_letter_properties import redriven_view
from timerwheel.groups.parts import GroupParts, stored_or_told
from timerwheel.model.messages import Delivery
from timerwheel.runtime.message_views import PAGE_BYTES_MAX
from timerwheel.state import lease_records
from timerwheel.state.config_table import CONTROL_TOPIC, ConfigTable, Put, encode_puts
from timerwheel.state.groups import DEAD_QUEUE, GroupState
from timerwheel.store.record import unit_of

logger = logging.getLogger("timerwheel")


class _Unit(NamedTuple):
    """Submitted leases: where the first of them lies within the unit, and their sizes."""

    stored: asyncio.Future[int]
    choices: Choices
    first_byte: int
    sizes: list[int]


def _nobody() -> None:
    """Nobody needs to know."""


class Leasing:
    """Leases the messages of one group. Belongs to the event loop.

    `turn` is held while messages are chosen; a change of cursors holds it, too.
    """

    def __init__(self, group: GroupState, parts: GroupParts) -> None:
        self._group = group
        self._parts = parts
        self._name = group.name.encode()
        self._chooser = Chooser(group, parts)
        self._under_way: deque[_Unit] = deque()
        self._refusals = 0
        self._tags: str | None = None
        self.turn = asyncio.Lock()
        self.released: Callable[[], None] = _nobody

    @property
    def claimed(self) -> set[int]:
        """Keys of items that somebody is changing."""
        return self._chooser.claimed

    def claim(self, keys: Iterable[int]) -> None:
        """Keep these items, which are ready again, from being received; `release` must follow."""
        self._chooser.claimed.update(keys)

    def release(self, keys: Iterable[int]) -> None:
        """These items are changed, or could not be."""
        self._chooser.claimed.difference_update(keys)
        self.released()

    @property
    def more(self) -> bool:
        """Whether the last `take` left messages that were not looked at."""
        return self._chooser.more

    @property
    def cramped(self) -> bool:
        """Whether the last `take` found the group with as many messages as it may hold."""
        return self._chooser.cramped

    @property
    def left(self) -> bool:
        """Whether there is something that nobody has looked at since it arrived."""
        return self._chooser.left

    async def take(
        self, count_max: int, invisible_ms: int, bytes_max: int = PAGE_BYTES_MAX
    ) -> list[Delivery]:
        """Lease up to `count_max` messages; durable when this returns. Nothing if there is none now.

        No more follow once they have `bytes_max`.

        Raises NoSpaceError, NotReadyError; then nothing was leased.
        """
        async with self.turn:
            if not self._parts.is_kept(self._group):
                return []
            config = self._parts.config(self._group)  # as it is now that it is our turn
            if config.tags != self._tags:
                # Looked over by another filter: what that left out counts from the cursors on.
                await self.settle()
                self._chooser.restart()
                self._tags = config.tags
            choices = await self._choose(config, count_max, bytes_max)
            if not choices or not self._parts.is_kept(self._group):
                self._chooser.let_go(choices)
                return []
            now_ms = self._parts.core.clock.now_ms()
            unit = self._submit(choices, config, invisible_ms, now_ms)
        offset = await stored_or_told(unit.stored) + unit.first_byte
        deliveries: list[Delivery] = []
        for choice, size in zip(choices.leases, unit.sizes, strict=True):
            message = self._parts.queues.delivered_view(choice.data, choice.root, choice.queue_offset)
            if choice.queue == DEAD_QUEUE:
                message = redriven_view(message)
            receipt = self._parts.receipts.encode(self._group.name, offset)
            deliveries.append(Delivery(message, receipt, choice.attempt, now_ms + invisible_ms))
            offset += size
        return deliveries

    async def _choose(self, config: GroupConfig, count_max: int, bytes_max: int) -> Choices:
        while True:
            self._let_go()
            refusals = self._refusals
            try:
                choices = await self._chooser.choose(config, count_max, bytes_max)
            finally:
                self._let_go()
                if self._refusals != refusals:
                    # It looked past what was refused in between: a cursor there would skip that.
                    self._chooser.restart()
            if self._refusals == refusals:
                return choices
            self._chooser.let_go(choices)

    def _submit(self, choices: Choices, config: GroupConfig, invisible_ms: int, now_ms: int) -> _Unit:
        # A hold makes the lane of which the lease takes the first: it comes before it in the log.
        held = [
            lease_records.hold(self._name, (queue, at), now_ms, lane) for queue, at, lane in choices.holds
        ]
        back_ms = {
            attempt: self._parts.comes_back_ms(config, attempt, invisible_ms, now_ms)
            for attempt in {choice.attempt for choice in choices.leases}
        }
        leased = [
            lease_records.lease(
                self._name, (choice.queue, choice.queue_offset), now_ms, back_ms[choice.attempt]
            )
            for choice in choices.leases
        ]
        rest = [lease_records.end(self._name, item, now_ms) for item in (*choices.gone, *choices.dealt)]
        topics = [self._group.name] * (len(held) + len(leased) + len(rest))
        if choices.gone:
            lost = (len(choices.gone), self._group.name)
            logger.warning("retention removed %d messages that group %s had not acknowledged", *lost)
        if choices.passed:
            passed = {str(queue): offset for queue, offset in choices.passed.items()}
            rest.append(encode_puts([Put(ConfigTable.PASSED, self._group.name, passed)], now_ms))
            topics.append(CONTROL_TOPIC)
        stored = self._parts.core.commit.submit(unit_of(held + leased + rest), topics)
        unit = _Unit(stored, choices, sum(map(len, held)), [len(record) for record in leased])
        self._under_way.append(unit)
        stored.add_done_callback(lambda _: self._let_go())
        return unit

    def _let_go(self) -> None:
        """Let go of what units claim that were stored or refused.

        Those submitted behind a refused one were refused, too: what comes next is chosen from the cursors.
        """
        refusals = self._refusals
        while self._under_way and self._under_way[0].stored.done():
            unit = self._under_way.popleft()
            self._chooser.let_go(unit.choices)
            self._refusals += unit.stored.cancelled() or unit.stored.exception() is not None
        if self._refusals != refusals:
            self._chooser.restart()

    def restart(self) -> None:
        """The cursors were set: what was looked at last no longer counts."""
        self._chooser.restart()

    async def settle(self) -> None:
        """Wait for the leases that are under way; with the turn held, none follow."""
        while self._under_way:
            await asyncio.wait([unit.stored for unit in self._under_way])
            self._let_go()
