"""Consumer groups in memory, for tests of what consumes: leases, attempts, delays by the manual clock."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from tests.harness.clock import ManualClock
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import UnknownGroupError
from timerwheel.model.messages import Delivery, GroupInfo, MessageView, ReceiptResult, State
from timerwheel.model.precondition import ALWAYS, Precondition
from timerwheel.runtime.counters import Counters
from timerwheel.state.config_table import Control, ControlTables, Put

BACKOFF_MS = 10_000


@dataclass
class HeldMessage:
    message: MessageView
    ready_ms: int = 0
    attempt: int = 0
    receipt: str | None = None


@dataclass
class MemoryGroups:
    """Obeys what `engine.groups` promises; `told` has every ack and nack in order."""

    clock: ManualClock
    held: dict[tuple[str, str], list[HeldMessage]] = field(default_factory=lambda: defaultdict(list))
    configs: dict[tuple[str, str], Any] = field(default_factory=dict)
    told: list[tuple[Any, ...]] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    on_ended: list[Any] = field(default_factory=list)
    fail: TimerwheelError | None = None

    def __post_init__(self) -> None:
        self._wake: dict[tuple[str, str], asyncio.Event] = defaultdict(asyncio.Event)
        self._numbers = count(1)

    def add(self, topic: str, group: str, *bodies: bytes, **properties: str) -> list[str]:
        """Deliver messages to a group; returns their ids."""
        ids = []
        for body in bodies:
            number = next(self._numbers)
            now_ms = self.clock.now_ms()
            message = MessageView(
                f"id{number}", topic, 0, State.DELIVERED, now_ms, 0, now_ms, properties, body, now_ms, number
            )
            self.held[topic, group].append(HeldMessage(message))
            ids.append(message.id)
        self._wake[topic, group].set()
        return ids

    async def receive(
        self, topic: str, group: str, *, count_max: int = 1, invisible_ms: int | None = None, wait_ms: int = 0
    ) -> list[Delivery]:
        self._check()
        key, until_ms = (topic, group), self.clock.now_ms() + wait_ms
        while True:
            now_ms = self.clock.now_ms()
            ready = [item for item in self.held[key] if item.ready_ms <= now_ms][:count_max]
            if ready or now_ms >= until_ms:
                return [self._lease(item, invisible_ms or 30_000) for item in ready]
            self._wake[key].clear()
            next_ms = min([until_ms, *(item.ready_ms for item in self.held[key])])
            await self.clock.wait_until(next_ms, self._wake[key])

    def _lease(self, item: HeldMessage, invisible_ms: int) -> Delivery:
        item.attempt += 1
        item.ready_ms = self.clock.now_ms() + invisible_ms
        item.receipt = f"r{next(self._numbers)}"
        return Delivery(item.message, item.receipt, item.attempt, item.ready_ms)

    async def ack(self, topic: str, group: str, receipts: list[str]) -> list[ReceiptResult]:
        self._check()
        return [self._end(topic, group, receipt) for receipt in receipts]

    def _end(self, topic: str, group: str, receipt: str) -> ReceiptResult:
        item = self._find(topic, group, receipt)
        if item is not None:
            self.told.append(("ack", item.message.id))
            self.held[topic, group].remove(item)
        return ReceiptResult(receipt, item is not None, None if item else "receipt_ended")

    async def nack(
        self,
        topic: str,
        group: str,
        receipts: list[str],
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> list[ReceiptResult]:
        self._check()
        for receipt in receipts:
            item = self._find(topic, group, receipt)
            if item is None:
                continue
            self.told.append(("nack", item.message.id, delay_ms, reason))
            item.receipt = None
            item.ready_ms = self.clock.now_ms() + (BACKOFF_MS if delay_ms is None else delay_ms)
            config = self.configs.get((topic, group))
            if config is not None and item.attempt >= config.max_attempts:
                self.dead.append(item.message.id)
                self.held[topic, group].remove(item)
            self._wake[topic, group].set()
        return [ReceiptResult(receipt, True) for receipt in receipts]

    def put_back(self, topic: str, group: str, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            item = self._find(topic, group, receipt)
            if item is not None:
                item.receipt, item.ready_ms, item.attempt = None, self.clock.now_ms(), item.attempt - 1
        self._wake[topic, group].set()

    def retry_ms(self, _topic: str, _group: str, _attempt: int, delay_ms: int | None = None) -> int | None:
        return BACKOFF_MS if delay_ms is None else delay_ms

    def _find(self, topic: str, group: str, receipt: str) -> HeldMessage | None:
        held = (item for item in self.held[topic, group] if item.receipt == receipt)
        return next((item for item in held if item.ready_ms > self.clock.now_ms()), None)

    async def put(self, topic: str, group: str, config: Any) -> None:
        self._check()
        self.configs[topic, group] = config

    def info(self, topic: str, group: str) -> GroupInfo:
        config = self.configs.get((topic, group))
        if config is None:
            raise UnknownGroupError(f"topic {topic!r} has no group {group!r}")
        builtins = msgspec.to_builtins(config)
        return GroupInfo(topic, group, builtins, False, [], *[0] * 6)

    def next_due_ms(self, topic: str, group: str) -> int | None:
        return min((item.ready_ms for item in self.held[topic, group]), default=None)

    async def delete(self, topic: str, group: str, when: Precondition = ALWAYS) -> None:  # noqa: ARG002
        self.info(topic, group)
        del self.configs[topic, group]
        self.held.pop((topic, group), None)

    def _check(self) -> None:
        if self.fail is not None:
            raise self.fail


class MemoryControl(Control):
    """Control tables that are only in memory."""

    fail: TimerwheelError | None = None

    def __init__(self) -> None:
        self._kept = ControlTables()
        super().__init__(self._kept, self._keep)

    async def _keep(self, puts: Sequence[Put]) -> None:
        if self.fail is not None:
            raise self.fail
        for put in puts:
            self._kept.apply(put)


class MemoryTopics:
    """Topics of which none is ever deleted."""

    def __init__(self) -> None:
        self.ending: set[str] = set()
        self.on_ending: list[Callable[[str], Awaitable[None]]] = []

    def check_open(self, topics: Iterable[str]) -> None:
        assert not self.ending.intersection(topics)


class MemoryEngine:
    """As much of an engine as a consumer sees."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.groups = MemoryGroups(self.clock)
        self.control = MemoryControl()
        self.topics = self.topic_deletions = MemoryTopics()
        self.counters = Counters(self.clock)
