"""Recall against firing: real clock, real threads, every recall within a few milliseconds of the due time.

Messages are due within 10 ms of each other, as soon as they can be stored, and recalled at a random moment
within 5 ms of that: singly, in bulk and by condition. `check` says whether every answer was true: what was
recalled never became visible, what was too late is visible exactly once, and nothing is lost.
"""

import asyncio
import itertools
import random
from collections import Counter
from pathlib import Path

from tests.harness.drive import read_all
from timerwheel.clock import SystemClock
from timerwheel.engine import Engine
from timerwheel.errors import AlreadyDeliveredError
from timerwheel.model.messages import Outgoing, Receipt
from timerwheel.runtime.recall_filter import RecallCount, RecallFilter
from timerwheel.settings import Settings

TOPIC = "race"
SINGLE_MESSAGES = 40  # more could not be looked up, one by one, within their few milliseconds
BULK_MESSAGES = 240
DUE_WITHIN_MS = 10
RECALL_WITHIN_MS = 5
ROUNDS_AT_ONCE = 2


class Race:
    """One engine and what its answers to recalls were."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.settings = Settings(data=directory, disk_reserve_bytes=0, index_map_size_bytes=1 << 32)
        self.clock = SystemClock()
        self.random = random.Random(seed)
        self.recalled: set[str] = set()
        self.late: set[str] = set()
        self.counts: dict[str, RecallCount] = {}
        self.rounds: dict[str, list[str]] = {}
        self.duration_ms = 0
        self._lead_ms = 10

    async def run(self, count: int) -> None:
        """Race this many messages; the engine stays open."""
        self.engine = await Engine.open(self.settings)
        begin_ms = self.clock.monotonic_ms()
        numbers = itertools.count()

        async def rounds() -> None:
            while sum(map(len, self.rounds.values())) < count:
                await self._round(next(numbers))

        await asyncio.gather(*(rounds() for _ in range(ROUNDS_AT_ONCE)))
        self.duration_ms = self.clock.monotonic_ms() - begin_ms
        while self.engine.queues.topic(TOPIC).pending:
            await self.clock.sleep_for(1)

    async def _round(self, number: int) -> None:
        key = f"round-{number}"
        kind = number % 8
        size = SINGLE_MESSAGES if kind % 2 else BULK_MESSAGES
        first_ms = self.clock.now_ms() + self._lead_ms
        dues_ms = [first_ms + self.random.randint(0, DUE_WITHIN_MS) for _ in range(size)]
        receipts = await self.engine.sender.send(
            [Outgoing(TOPIC, b"x", {"TIMER_DELIVER_MS": str(due_ms), "KEYS": key}) for due_ms in dues_ms]
        )
        # So that the next round is stored a little before it is due, on a fast disk and on a slow one.
        taken_ms = self.clock.now_ms() - first_ms + self._lead_ms
        self._lead_ms = min(max((3 * self._lead_ms + taken_ms) // 4 + 2, 4), 100)
        self.rounds[key] = [receipt.id for receipt in receipts]
        if kind == 0:
            await self._by_condition(key, receipts)
        elif kind % 2:
            await asyncio.gather(*(self._singly(receipt) for receipt in receipts))
        else:
            dues = {receipt.due_ms for receipt in receipts}
            groups = ([r for r in receipts if r.due_ms == due_ms] for due_ms in dues)
            await asyncio.gather(*(self._in_bulk(group) for group in groups))

    async def _near(self, due_ms: int) -> None:
        """Wait until a random moment within RECALL_WITHIN_MS of a due time."""
        wait_ms = due_ms - self.clock.now_ms() + self.random.uniform(-RECALL_WITHIN_MS, RECALL_WITHIN_MS)
        if wait_ms > 0:
            await self.clock.sleep_for(wait_ms)  # type: ignore[arg-type]

    async def _singly(self, receipt: Receipt) -> None:
        await self._near(receipt.due_ms)
        try:
            await self.engine.recalls.recall(receipt.id)
        except AlreadyDeliveredError:
            self.late.add(receipt.id)
        else:
            self.recalled.add(receipt.id)

    async def _in_bulk(self, receipts: list[Receipt]) -> None:
        await self._near(receipts[0].due_ms)
        for result in await self.engine.bulk_recalls.recall_many([receipt.id for receipt in receipts]):
            assert result.code in (None, AlreadyDeliveredError.code)
            (self.recalled if result.code is None else self.late).add(result.id)

    async def _by_condition(self, key: str, receipts: list[Receipt]) -> None:
        await self._near(self.random.choice(receipts).due_ms)
        count = await self.engine.bulk_recalls.recall_where(RecallFilter(topic=TOPIC, key_prefix=key))
        assert count.matched == count.recalled + count.missed
        self.counts[key] = count

    async def check(self) -> None:
        """Compare what was answered with what is visible, and with what is answered now."""
        visible = Counter(message.id for message in await read_all(self.engine, TOPIC))
        sent = {message_id for ids in self.rounds.values() for message_id in ids}
        assert set(visible.values()) <= {1}
        assert visible.keys() <= sent
        assert not self.recalled & visible.keys()
        assert self.late <= visible.keys()
        for key, ids in self.rounds.items():
            if key in self.counts:
                assert self.counts[key].recalled == len(set(ids) - visible.keys())
            else:
                assert self.recalled | self.late >= set(ids)
        limit = self.settings.messages_per_request_max
        ids = sorted(sent)
        for at in range(0, len(ids), limit):
            for result in await self.engine.bulk_recalls.recall_many(ids[at : at + limit]):
                assert result.code == ("already_delivered" if result.id in visible else "already_recalled")

    async def reopen(self) -> None:
        """Close and start again."""
        await self.engine.close()
        self.engine = await Engine.open(self.settings)

    def summary(self) -> str:
        """How fast it was and how the races ended."""
        sent = sum(map(len, self.rounds.values()))
        won = len(self.recalled) + sum(count.recalled for count in self.counts.values())
        missed = sum(count.missed for count in self.counts.values())
        return (
            f"{sent} messages sent and recalled in {self.duration_ms / 1000:.1f} s, "
            f"{1000 * sent // max(self.duration_ms, 1)}/s; {won} recalled, {sent - won} delivered, "
            f"{missed} of them fired under a recall by condition"
        )
