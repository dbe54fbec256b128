"""Settling: what consumers say of the messages they hold: acknowledged, given back, needed for longer.

A receipt is good as long as its lease is the message's newest and was not given back. It is still good for an
acknowledgement when the message is ready again but was not received: then the work need not be done twice.
Only `ack` may be repeated. After it a `nack` or `extend` finds the receipt ended: it would change nothing.
"""

import asyncio
from collections.abc import Callable, Sequence

from timerwheel.groups.config import REASON_CHARACTERS_MAX, GroupConfig
from timerwheel.groups.dead_lettering import DeadLettering
from timerwheel.groups.leasing import Leasing
from timerwheel.groups.parts import GroupParts, stored_or_told
from timerwheel.model.messages import ReceiptResult
from timerwheel.runtime.shielded import finished
from timerwheel.state import lease_records
from timerwheel.state.config_table import CONTROL_TOPIC, ConfigTable, Put, encode_puts
from timerwheel.state.groups import DEAD_QUEUE, GroupState, Item, ItemState
from timerwheel.store.record import unit_of

ENDED = "receipt_ended"
ILLEGAL = "illegal_receipt"

UnitOf = Callable[[Item], list[tuple[str, bytes]]]  # the records that settle an item, each with its topic


class Acknowledging:
    """Settles the receipts of one group. Belongs to the event loop."""

    def __init__(
        self, group: GroupState, parts: GroupParts, leasing: Leasing, dead_lettering: DeadLettering
    ) -> None:
        self._group = group
        self._parts = parts
        self._leasing = leasing
        self._dead_lettering = dead_lettering
        self._name = group.name.encode()

    async def ack(self, receipts: Sequence[str]) -> list[ReceiptResult]:
        """These messages are done, for good when this returns; one that was acknowledged before is ok."""
        if not self._parts.drains(self._group):
            return await self._ack(receipts)
        return await finished(self._drain(receipts))

    async def _drain(self, receipts: Sequence[str]) -> list[ReceiptResult]:
        """Acknowledge the group's own dead letters, which are dead letters no more."""
        async with self._parts.letters_turn:
            return await self._ack(receipts)

    async def _ack(self, receipts: Sequence[str]) -> list[ReceiptResult]:
        now_ms = self._parts.core.clock.now_ms()

        def unit(item: Item) -> list[tuple[str, bytes]]:
            found = [(self._group.name, lease_records.end(self._name, item, now_ms))]
            if self._parts.drains(self._group) and item.queue != DEAD_QUEUE:
                topic = self._group.topic
                found.append((topic, lease_records.take_dead(topic.encode(), item.queue_offset, now_ms)))
            return found

        roots = self._roots(receipts)
        settled = await self._settle(receipts, roots, unit, came_back=True)
        results = [
            ReceiptResult(result.receipt, ok=True) if root in self._parts.acknowledged else result
            for root, result in zip(roots, settled, strict=True)
        ]
        done = zip(roots, results, strict=True)
        self._parts.acknowledged.add(root for root, result in done if result.ok and root is not None)
        return results

    async def nack(
        self, config: GroupConfig, receipts: Sequence[str], delay_ms: int | None, reason: str | None
    ) -> list[ReceiptResult]:
        """Give these messages back: each is ready again after the delay, or goes to the dead letters."""
        roots = self._roots(receipts)
        last = [
            root
            for root in roots
            if root is not None
            and (item := self._group.by_root.get(root)) is not None
            and item.state == ItemState.LEASED
            and item.attempt >= config.max_attempts
        ]
        buried = await self._dead_lettering.bury(last, reason or "not acknowledged: returned by its consumer")
        now_ms = self._parts.core.clock.now_ms()

        def unit(item: Item) -> list[tuple[str, bytes]]:
            if delay_ms is None:
                wait_ms = self._parts.backoff_ms(config, item.attempt)
            else:
                wait_ms = max(delay_ms, self._parts.core.settings.redelivery_delay_ms)
            record = lease_records.retime(self._name, item, now_ms, now_ms + wait_ms, ended=True)
            return [(self._group.name, record)]

        results = await self._settle(receipts, roots, unit, reason=reason)
        return [
            ReceiptResult(result.receipt, ok=True) if root in buried else result
            for root, result in zip(roots, results, strict=True)
        ]

    async def extend(
        self, config: GroupConfig, receipts: Sequence[str], invisible_ms: int
    ) -> list[ReceiptResult]:
        """Keep these messages for `invisible_ms` from now; their receipts stay good."""
        now_ms = self._parts.core.clock.now_ms()

        def unit(item: Item) -> list[tuple[str, bytes]]:
            due_ms = self._parts.comes_back_ms(config, item.attempt, invisible_ms, now_ms)
            return [(self._group.name, lease_records.retime(self._name, item, now_ms, due_ms, ended=False))]

        return await self._settle(receipts, self._roots(receipts), unit)

    # ------------------------------------------------------------------ within

    def _roots(self, receipts: Sequence[str]) -> list[int | None]:
        return [self._parts.receipts.root_of(self._group.name, receipt) for receipt in receipts]

    async def _settle(
        self,
        receipts: Sequence[str],
        roots: Sequence[int | None],
        unit: UnitOf,
        *,
        came_back: bool = False,
        reason: str | None = None,
    ) -> list[ReceiptResult]:
        """Store the records of each receipt that is good, as one unit; `came_back` ones may be, too."""
        await self._nobody_else_has(roots)
        items: dict[int, Item] = {}
        for root in roots:
            item = None if root is None else self._group.by_root.get(root)
            if item is not None and self._good(item, came_back=came_back):
                items[item.root] = item
        if items:
            await self._store(list(items.values()), unit, reason)
        return [self._result(receipt, root, items) for receipt, root in zip(receipts, roots, strict=True)]

    async def _nobody_else_has(self, roots: Sequence[int | None]) -> None:
        """Wait until no timer of these leases is being fired or changed."""
        while True:
            held = [self._group.by_root.get(root) for root in roots if root is not None]
            under_way = self._parts.core.in_flight.outcomes(
                item.offset for item in held if item is not None and item.timed
            )
            if not under_way:
                return
            await asyncio.wait(under_way)

    def _good(self, item: Item, *, came_back: bool) -> bool:
        if item.state == ItemState.LEASED:
            return True
        free = item.state == ItemState.READY and item.key not in self._leasing.claimed
        return came_back and free and not item.ended

    async def _store(self, items: list[Item], unit: UnitOf, reason: str | None) -> None:
        keys = [item.key for item in items if not item.timed]
        self._leasing.claim(keys)
        taken = self._parts.core.in_flight.take(self._parts.entries(self._group, items))
        try:
            why = self._why(items, reason)
            topics, stored = zip(*(pair for item in items for pair in unit(item)), strict=True)
        except BaseException:
            taken.put_back()
            self._leasing.release(keys)
            raise
        # Queued before anything is awaited, so a receive of the same call shares the commit.
        done = taken.submit(unit_of([*stored, *why]), [*topics, *[CONTROL_TOPIC] * len(why)])
        done.add_done_callback(lambda _: self._leasing.release(keys))
        await stored_or_told(done)

    def _why(self, items: list[Item], reason: str | None) -> list[bytes]:
        """The record that says why these attempts failed: the last of their unit, and it changes nothing."""
        if reason is None:
            return []
        told = {"roots": [item.root for item in items], "reason": reason[:REASON_CHARACTERS_MAX]}
        return [
            encode_puts([Put(ConfigTable.FAILURE, self._group.name, told)], self._parts.core.clock.now_ms())
        ]

    def _result(self, receipt: str, root: int | None, done: dict[int, Item]) -> ReceiptResult:
        if root is None:
            return ReceiptResult(receipt, ok=False, code=ILLEGAL)
        if root in done:
            return ReceiptResult(receipt, ok=True)
        return ReceiptResult(receipt, ok=False, code=ENDED)
