"""Acknowledging: what consumers say of the messages they hold: done, given back, needed for longer.

A receipt is good as long as its lease is the message's newest and was not given back. It is still good for an
acknowledgement when the attempt was not acknowledged in time, and the message waits or is ready again but was
not received: then the work need not be done twice. A receipt of an earlier run of the service is good as long
as its message is not done and nobody else has it.

Only `ack` may be repeated. After it a `nack` or `extend` finds the receipt ended: it would change nothing.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

from timerwheel.groups.config import GroupConfig
from timerwheel.groups.dead_lettering import DeadLettering
from timerwheel.groups.leases import Lease
from timerwheel.groups.leasing import STEP_MESSAGES, Leasing, is_in_log, pending_of
from timerwheel.groups.outlook import Outlook, sorted_out
from timerwheel.groups.parts import Acknowledged, GroupParts, stored_offset
from timerwheel.model.messages import ReceiptResult
from timerwheel.runtime.shielded import finished
from timerwheel.state.groups import GroupState, ItemState

ENDED = "receipt_ended"
ILLEGAL = "illegal_receipt"


class Acknowledging:
    """Settles the receipts of one group. Belongs to the event loop."""

    def __init__(
        self, group: GroupState, parts: GroupParts, leasing: Leasing, dead_lettering: DeadLettering
    ) -> None:
        self._group = group
        self._parts = parts
        self._leasing = leasing
        self._dead_lettering = dead_lettering

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
        return await self._end(receipts, await self._decoded(receipts)).results()

    def begin(self, receipts: Sequence[str]) -> "Ending | None":
        """As `ack`, which has begun when this returns; None, with nothing done, if it must wait first."""
        if self._parts.drains(self._group) or len(receipts) > STEP_MESSAGES:
            return None
        named = self._read(receipts)
        if any(self._is_of_another_run(one) for one in named) or self._under_way(named):
            return None
        return self._end(receipts, named)

    def _end(self, receipts: Sequence[str], named: list[Lease | int | None]) -> "Ending":
        current = self._leasing.leases.by_key.get
        held = [
            one if isinstance(one, Lease) and current(one.key) is one else self._held(one, late=True)
            for one in named
        ]
        leases = {lease.key: lease for lease in held if lease is not None}
        stored = None
        if leases:
            stored = self._leasing.end(list(leases.values()))
            good = [_identity(one) for one, lease in zip(named, held, strict=True) if lease is not None]
            self._note_when(stored, good)
        return Ending(receipts, named, held, stored, self._parts.acknowledged)

    def _note_when(self, stored: asyncio.Future[int], identities: Sequence[int]) -> None:
        """Remember these as acknowledged once that is stored, whether or not their caller still waits."""

        def note(stored: asyncio.Future[int]) -> None:
            if not stored.cancelled() and stored.exception() is None:
                self._parts.acknowledged.add(identities)

        stored.add_done_callback(note)

    async def conclude(
        self, receipt: str, more: Sequence[tuple[bytes, str]], *, given_up: bool = False
    ) -> ReceiptResult:
        """As `ack` of one message, or with `given_up` of one that failed for good, in one unit with `more`.

        `more` are records and their topics. Raises TopicEndingError if one of these is being deleted.
        """
        (named,) = await self._decoded([receipt])
        lease = self._held(named, late=True)
        if lease is None:
            return _result(receipt, named, ok=_identity(named) in self._parts.acknowledged)
        stored = self._leasing.conclude(lease, more, given_up=given_up)
        self._note_when(stored, [_identity(named)])
        await stored_offset(stored)
        return ReceiptResult(receipt, ok=True)

    async def withdraw(self, key: int, more: Sequence[tuple[bytes, str]]) -> bool:
        """End a message that no consumer has, in one unit with `more`; False if one has it, or it is done."""
        async with self._leasing.turn:  # so that nobody receives it in the meantime
            named = Lease(key, 1, 0, 0)
            while under_way := self._under_way([named]):
                await asyncio.wait(under_way)
            item = self._group.items.get(key)
            if key in self._leasing.leases.by_key or (item is not None and item.lent):
                return False
            if item is None and self._leasing.chooser.is_known(named.queue, named.queue_offset):
                return False
            lease = named if item is None else pending_of(item)
            await stored_offset(self._leasing.conclude(lease, more))
            if item is None:  # only now: if that could not be stored, it may still be received
                self._leasing.chooser.expect(key, 0)
            return True

    async def hurry(self, key: int, due_ms: int) -> bool:
        """Give a message that was given back another time to come again; False if it does not wait."""
        named = Lease(key, 1, 0, 0)
        while under_way := self._under_way([named]):
            await asyncio.wait(under_way)
        item = self._group.items.get(key)
        if item is None or item.state != ItemState.WAITING or not item.ended:
            return False
        await stored_offset(self._leasing.retime([item], [due_ms], ended=True))
        return True

    async def nack(
        self, config: GroupConfig, receipts: Sequence[str], delay_ms: int | None, reason: str | None
    ) -> list[ReceiptResult]:
        """Give these messages back: each is ready again after the delay, or goes to the dead letters."""
        named, held, leases = await self._named(receipts)
        unknown = [lease for lease in leases if self._leasing.is_unknown(config, lease)]
        if unknown:
            await self._leasing.look_into(config, unknown)
            named, held, leases = await self._named(receipts)
        items = self._group.items
        now_ms = self._parts.core.clock.now_ms()

        def due_ms(attempt: int) -> int:
            if delay_ms is None:
                return now_ms + self._parts.backoff_ms(config, attempt)
            return now_ms + max(delay_ms, self._parts.core.settings.redelivery_delay_ms)

        again, endings = sorted_out(
            (lease, self._leasing.outlook(config, lease, due_ms(lease.attempt) - now_ms)) for lease in leases
        )
        logged = [items[one.key] for one in again if one.key in items and is_in_log(items[one.key])]
        kept = {item.key for item in logged}
        rest = [lease for lease in again if lease.key not in kept]
        # Queued before anything is awaited, so that they share a commit.
        stored = []
        if rest:
            dues_ms = [due_ms(lease.attempt) for lease in rest]
            stored.append(self._leasing.fail(rest, dues_ms, ended=True, reason=reason))
        if logged:
            stored.append(
                self._leasing.retime(
                    logged, [due_ms(item.attempt) for item in logged], ended=True, reason=reason
                )
            )
        if config.expired == "drop" and (expired := endings.pop(Outlook.EXPIRED, None)):
            stored.append(self._leasing.expire(expired))
        for one in stored:
            await stored_offset(one)
        why = reason or "not acknowledged: returned by its consumer"
        await self._dead_lettering.end_all(config, endings, why)
        return self._results(receipts, named, held)

    async def _named(
        self, receipts: Sequence[str]
    ) -> tuple[list[Lease | int | None], list[Lease | None], list[Lease]]:
        """Return what the receipts say, the lease of each that is good, and these leases once each."""
        named = await self._decoded(receipts)
        held = [self._held(one, late=False) for one in named]
        return named, held, list({lease.key: lease for lease in held if lease is not None}.values())

    async def give_up(self, receipts: Sequence[str], reason: str) -> list[ReceiptResult]:
        """Make these messages dead letters, with the reason."""
        named, held, leases = await self._named(receipts)
        await self._dead_lettering.bury(leases, reason)
        return self._results(receipts, named, held)

    async def extend(
        self, config: GroupConfig, receipts: Sequence[str], invisible_ms: int
    ) -> list[ReceiptResult]:
        """Keep these messages for `invisible_ms` from now; their receipts stay good."""
        named, held, leases = await self._named(receipts)
        end_ms = self._parts.core.clock.monotonic_ms() + invisible_ms
        logged = []
        for lease in leases:
            if lease.key in self._leasing.leases.by_key:
                self._leasing.leases.extend(lease, end_ms)
            else:
                logged.append(self._group.items[lease.key])
        if logged:
            now_ms = self._parts.core.clock.now_ms()
            again_ms = [
                self._parts.comes_back_ms(config, item.attempt, invisible_ms, now_ms) for item in logged
            ]
            await stored_offset(self._leasing.retime(logged, again_ms, ended=False))
        return self._results(receipts, named, held)

    # ------------------------------------------------------------------ within

    async def _decoded(self, receipts: Sequence[str]) -> list[Lease | int | None]:
        """What the receipts say, when nothing is being stored about their messages."""
        if len(receipts) > STEP_MESSAGES:
            await self._parts.core.clock.breathe()
        named = self._read(receipts)
        for one in named:
            if self._is_of_another_run(one):
                one.lane = await self._leasing.chooser.lane_of(one.queue, one.queue_offset)
        while under_way := self._under_way(named):
            await asyncio.wait(under_way)
        return named

    def _read(self, receipts: Sequence[str]) -> list[Lease | int | None]:
        current, decode = self._leasing.leases.of_receipt, self._leasing.receipts.decode
        return [current(receipt) or decode(receipt) for receipt in receipts]

    def _is_of_another_run(self, named: Lease | int | None) -> TypeGuard[Lease]:
        return isinstance(named, Lease) and named.run != self._parts.run

    def _under_way(self, named: Sequence[Lease | int | None]) -> set[asyncio.Future[Any]]:
        """The outcomes to wait for: records about these messages, timers of theirs that fire or are moved."""
        busy, group = self._leasing.busy, self._group
        if self._leasing.resetting is not None:
            return {self._leasing.resetting}
        if not group.items and busy.keys().isdisjoint([one.key for one in named if isinstance(one, Lease)]):
            return set()
        found: set[asyncio.Future[Any]] = set()
        for one in named:
            if one is None:
                continue
            item = group.by_root.get(one) if isinstance(one, int) else group.items.get(one.key)
            key = one.key if isinstance(one, Lease) else None if item is None else item.key
            if key in busy:
                found.add(busy[key])
            if item is not None and item.timed:
                outcome = self._parts.core.in_flight.outcome(item.offset)
                if outcome is not None:
                    found.add(outcome)
        return found

    def _held(self, named: Lease | int | None, *, late: bool) -> Lease | None:
        """The lease of a receipt that is good, for an acknowledgement also if it is `late`."""
        if isinstance(named, Lease):
            lease = self._leasing.leases.by_key.get(named.key)
            if lease is not None:
                # What has ended in time is about to be given up, or to wait: it can no longer be prolonged.
                good = late or lease.end_ms > self._parts.core.clock.monotonic_ms()
                return lease if good and lease.is_named_by(named) else None
            if named.run != self._parts.run and self._leasing.is_free(named):
                # For as long as its group leases by default: if nothing can be stored it is nobody's again.
                invisible_ms = self._parts.config(self._group).invisible_ms
                named.end_ms = self._parts.core.clock.monotonic_ms() + invisible_ms
                self._leasing.restore(named)
                return named
        if named is None:
            return None
        item = self._group.by_root.get(named) if isinstance(named, int) else self._group.items.get(named.key)
        if item is None or item.lent or item.ended:
            return None
        if isinstance(named, int):
            good = item.state == ItemState.LEASED or (late and item.state == ItemState.READY)
        else:
            good = late and item.state != ItemState.LEASED and item.attempt == named.attempt
        return pending_of(item) if good else None

    def _results(
        self, receipts: Sequence[str], named: Sequence[Lease | int | None], held: Sequence[Lease | None]
    ) -> list[ReceiptResult]:
        return [
            _result(receipt, one, ok=lease is not None)
            for receipt, one, lease in zip(receipts, named, held, strict=True)
        ]


class Ending(NamedTuple):
    """Messages whose acknowledgement is on its way into the log."""

    receipts: Sequence[str]
    named: Sequence[Lease | int | None]
    held: Sequence[Lease | None]
    stored: asyncio.Future[int] | None
    """None if no receipt is good."""
    acknowledged: Acknowledged

    async def results(self) -> list[ReceiptResult]:
        """One result for each receipt, when the acknowledgements are durable."""
        if self.stored is not None:
            await stored_offset(self.stored)
        return [
            ReceiptResult(receipt, ok=True)
            if lease is not None
            else _result(receipt, one, ok=_identity(one) in self.acknowledged)
            for receipt, one, lease in zip(self.receipts, self.named, self.held, strict=True)
        ]


def _identity(named: Lease | int | None) -> int:
    """What no other receipt says; 0 is none."""
    return named.identity if isinstance(named, Lease) else ~named if named is not None else 0


def _result(receipt: str, named: Lease | int | None, *, ok: bool) -> ReceiptResult:
    if ok:
        return ReceiptResult(receipt, ok=True)
    return ReceiptResult(receipt, ok=False, code=ILLEGAL if named is None else ENDED)
