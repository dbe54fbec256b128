"""Delivers the messages of one subscription: receives from its group, calls, and reports the outcome.

    receive --> attempt --delivered--> ack
                   |------failed-----> nack, after Retry-After or the group's backoff
                   |------gone-------> nack, and the subscription is disabled
                   `------later------> the lease goes on, and the endpoint acknowledges by a call

1. Subscriptions share nothing that one could hold and another would have to wait for, see `slots`.
2. A lease lasts longer than an attempt, so no message is leased again while it is being delivered.
3. At most `concurrency` requests are in progress, and no more than its `Pace` allows, which also says when
   the next one may begin.
4. Retry-After delays the message by its full length, and all requests of the subscription by at most 60 s.
5. With a rate limit, no more requests arrive in any second, see `rate_limit`; a message waits for its turn in
   the group, without a lease. After a restart the limit is used up at first: the run before may have done so.
6. A message that its endpoint acknowledges later holds no request, slot or width. At most LATER_ACKS_MAX of
   a subscription are so; then it takes no more until one is settled, or its lease has ended.

Belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from timerwheel.clock import Clock
from timerwheel.errors import TimerwheelError
from timerwheel.groups.config import UnknownGroupError
from timerwheel.groups.groups import Groups
from timerwheel.model.messages import Delivery, MessageView
from timerwheel.push.ack_urls import AckUrls
from timerwheel.push.attempts import Attempt, AttemptLog
from timerwheel.push.flight import Flight
from timerwheel.push.outcome import Outcome, Taken
from timerwheel.push.pace import Pace
from timerwheel.push.rate_limit import RateLimit
from timerwheel.push.stats import Health, Stats, StatsView, SubscriptionCounts
from timerwheel.push.subscription import Subscription
from timerwheel.runtime.counters import Counters
from timerwheel.store.errors import StoreError
from timerwheel.telemetry.background import in_background

RECEIVE_WAIT_MS = 20_000
RETRY_MS = 1_000
BODY_BYTES_UNDER_WAY_MAX = 32 << 20
LATER_ACKS_MAX = 1_000
"""Messages of a subscription that its endpoint took, to acknowledge them later."""

logger = logging.getLogger(__name__)

SHARED_SLOTS = 1_024


class Slots:
    """A counter of shared slots; nobody ever waits for one.

    A subscription with nothing in progress needs no slot. So endpoints that hang and hold all slots limit the
    others to one request at a time each, but stop none.
    """

    def __init__(self, count: int = SHARED_SLOTS) -> None:
        self.free = count

    def take(self, wanted: int) -> int:
        """Take up to this many; returns how many there were."""
        taken = max(min(wanted, self.free), 0)
        self.free -= taken
        return taken

    def give(self, count: int) -> None:
        """Give back what was taken."""
        self.free += count


class Calls(Protocol):
    """The part of `timerwheel.push.endpoint.Caller` that a dispatcher uses."""

    async def attempt(
        self, subscription: Subscription, message: MessageView, number: int = 1, flight: Flight | None = None
    ) -> Outcome:
        """Deliver once; `number` counts the attempts from 1, `flight` notes when it is sent."""


class Counted:
    """Calls an endpoint, counts the outcomes over all subscriptions, and keeps the last attempts of each."""

    def __init__(
        self, calls: Calls, measures: Counters, log: AttemptLog, groups: Groups, clock: Clock
    ) -> None:
        self._calls = calls
        self._measures = measures
        self._log = log
        self._groups = groups
        self._clock = clock

    async def attempt(
        self, subscription: Subscription, message: MessageView, number: int = 1, flight: Flight | None = None
    ) -> Outcome:
        """Deliver once."""
        outcome = await self._calls.attempt(subscription, message, number, flight)
        self._measures.attempted(outcome.kind, outcome.latency_ms)
        now_ms = self._clock.now_ms()
        made = Attempt.of(outcome, message.id, number, now_ms)
        if not outcome.is_delivered:
            made = msgspec.structs.replace(
                made, next_attempt_ms=self._next_ms(subscription, outcome, number, now_ms)
            )
        self._log.add(subscription.id, made)
        return outcome

    def _next_ms(self, subscription: Subscription, outcome: Outcome, number: int, now_ms: int) -> int | None:
        """Return when the message is ready again; None after its last attempt, or without its group."""
        try:
            delay_ms = self._groups.retry_ms(
                subscription.topic, subscription.group, number, outcome.retry_after_ms
            )
        except TimerwheelError:  # the group is gone, or keeps offsets now
            return None
        return None if delay_ms is None else now_ms + delay_ms


class DispatcherParts(NamedTuple):
    """What all dispatchers work with. `on_gone` disables a subscription whose endpoint answered 410, and why.

    Without `ack_urls` endpoints are given no URLs to acknowledge later.
    """

    groups: Groups
    caller: Calls
    clock: Clock
    slots: Slots
    on_gone: Callable[[Subscription, str], Awaitable[None]]
    ack_urls: AckUrls | None = None


class Dispatcher:
    """The dispatcher of one subscription."""

    def __init__(
        self, subscription: Subscription, parts: DispatcherParts, *, restarted: bool = False
    ) -> None:
        """With `restarted`, an earlier run of the service may just have used up the rate limit."""
        self.subscription = subscription
        self._groups = parts.groups
        self._caller = parts.caller
        self._clock = parts.clock
        self._slots = parts.slots
        self._on_gone = parts.on_gone
        self._ack_urls = parts.ack_urls
        self._later: dict[str, int] = {}  # receipt -> when its lease ends, monotonic
        self._granted: dict[str, int] = {}  # the same for requests in progress: 0 unless it was extended
        self._needed: dict[str, int] = {}  # of requests in progress: until when they need their lease
        self._stats = Stats()
        self._largest_bytes = 1
        self._pace = Pace()
        self._limit = RateLimit(subscription.rate_limit, self._clock.monotonic_ms() if restarted else None)
        self._reserved = 0
        self._held = 0  # shared slots
        self._loop: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._changed: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ starting and stopping

    @property
    def running(self) -> bool:
        """Tell whether messages are taken."""
        return self._loop is not None

    def start(self) -> None:
        """Deliver from now on, ignoring a pause after past failures."""
        self._pace.resume_ms = 0
        self._notify()
        if self._loop is None:
            self._loop = in_background(self._run(), f"subscription {self.subscription.id}")

    def replace(self, subscription: Subscription) -> None:
        """Use this subscription from the next request on; another URL is tried at once."""
        if subscription.url != self.subscription.url:
            self._pace.resume_ms = 0
        if subscription.rate_limit != self.subscription.rate_limit:
            self._limit.change(subscription.rate_limit, self._clock.monotonic_ms())
        self.subscription = subscription
        self._notify()

    async def halt(self) -> None:
        """Take no more messages; requests in progress continue. A lease that is being granted expires."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)

    async def close(self, grace_ms: int) -> None:
        """Halt, give requests in progress the grace, then cut them off: their leases expire."""
        await self.halt()
        if self._under_way and grace_ms:
            finished = asyncio.ensure_future(self._finish())
            await self._clock.wait_for(finished, grace_ms)
            finished.cancel()
            await asyncio.gather(finished, return_exceptions=True)
        for task in self._under_way:
            task.cancel()
        await self._finish()

    async def _finish(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)

    def stats(self) -> StatsView:
        """Return the outcomes of the attempts so far."""
        return self._stats.view(len(self._under_way))

    def counts(self) -> SubscriptionCounts:
        """Return the number of attempts, for metrics."""
        stats, active = self._stats, self.running  # a paused subscription is not failing
        row = stats.failures_in_row if active else 0
        return SubscriptionCounts(
            self.subscription.topic, self.subscription.id, stats.delivered, stats.failed, row
        )

    def health(self, ready_ms: Callable[[], int | None]) -> Health:
        """Return the state of the endpoint; `ready_ms` says when its group has the next message, if any."""
        health = self._stats.health()
        if health.failing_since_ms is None or not self.running:
            return health
        next_ms = ready_ms()
        if next_ms is None:
            return health
        pause_ms = max(self._pace.resume_ms - self._clock.monotonic_ms(), 0)
        return self._stats.health(max(next_ms, self._clock.now_ms() + pause_ms))

    # ------------------------------------------------------------------ acknowledging later

    @property
    def later(self) -> int:
        """How many messages the endpoint took and has not settled yet."""
        now_ms = self._clock.monotonic_ms()
        self._later = {receipt: end_ms for receipt, end_ms in self._later.items() if end_ms > now_ms}
        return len(self._later)

    def settled(self, receipt: str) -> None:
        """Note that a message was acknowledged or given back by a call."""
        if self._later.pop(receipt, None) is not None:
            self._notify()

    def look_over(self) -> None:
        """Wait no longer for messages whose leases its group has ended."""
        subscription = self.subscription
        for receipt in self._groups.ended(subscription.topic, subscription.group, self._later):
            del self._later[receipt]
        self._notify()

    def left_ms(self, receipt: str) -> int:
        """Return for how long the lease under which a request is in progress must last; 0 if none is."""
        return max(self._needed.get(receipt, 0) - self._clock.monotonic_ms(), 0)

    def extended(self, receipt: str, invisible_ms: int) -> None:
        """Note that the lease of a message was extended by a call."""
        for ends_ms in (self._later, self._granted):
            if receipt in ends_ms:
                ends_ms[receipt] = self._clock.monotonic_ms() + invisible_ms

    async def _hold(self, subscription: Subscription, delivery: Delivery, outcome: Taken) -> None:
        """Let the lease of a message go on for as long as its endpoint may take to acknowledge it."""
        within_ms = outcome.ack_within_ms or subscription.lease_ms
        topic, group, receipt = subscription.topic, subscription.group, delivery.receipt
        # What the endpoint asked for before it answered counts, if that is longer.
        within_ms = max(within_ms, self._granted[receipt] - self._clock.monotonic_ms())
        try:
            (result,) = await self._groups.extend(topic, group, [receipt], within_ms)
        except (TimerwheelError, StoreError) as error:
            self._stats.last_error = f"extending a lease: {error}"
            logger.warning("subscription %s: extending a lease failed: %s", subscription.id, error)
            return
        if result.ok:  # else it was settled before its answer came
            self._later[receipt] = self._clock.monotonic_ms() + within_ms

    # ------------------------------------------------------------------ taking

    async def _run(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            pause_ms = max(self._pace.resume_ms - now_ms, self._limit.wait_ms(now_ms))
            if pause_ms > 0:
                await self._clock.wait_for(self._change(), pause_ms)
            else:
                await self._take_guarded()

    async def _take_guarded(self) -> None:
        try:
            await self._take()
        except (TimerwheelError, StoreError) as error:
            self._stats.last_error = f"receiving: {error}"
            logger.warning("subscription %s cannot receive: %s", self.subscription.id, error)
            await self._clock.sleep_for(RETRY_MS)
        except Exception as error:  # a fault of ours must not end a subscription for good
            self._stats.last_error = f"receiving: {type(error).__name__}"
            logger.exception("subscription %s cannot receive", self.subscription.id)
            await self._clock.sleep_for(RETRY_MS)

    async def _take(self) -> None:
        """Take as many messages as there is room for; if there is none, wait for one."""
        room = self._room()
        if room <= 0 or not self._reserve(room):
            await self._wait_for_room()
        elif not await self._receive(0) and self._reserve(1):
            await self._receive(RECEIVE_WAIT_MS)

    async def _wait_for_room(self) -> None:
        """Wait for a change, or until a lease has ended if too many messages are acknowledged later."""
        change = self._change()
        if len(self._under_way) + len(self._later) < LATER_ACKS_MAX or not self._later:
            await change
        else:
            left_ms = min(self._later.values()) - self._clock.monotonic_ms()
            await self._clock.wait_for(change, max(left_ms, 1))

    def _room(self) -> int:
        """Return how many more requests may be in progress."""
        by_size = max(BODY_BYTES_UNDER_WAY_MAX // self._largest_bytes, 1)
        later = len(self._later)
        if later + len(self._under_way) >= LATER_ACKS_MAX:
            later = self.later  # which forgets those whose lease has ended
        most = min(self._pace.width, self.subscription.concurrency, by_size, LATER_ACKS_MAX - later)
        room = most - len(self._under_way)
        by_rate = self._limit.room(self._clock.monotonic_ms())
        return room if by_rate is None else min(room, by_rate)

    def _reserve(self, wanted: int) -> int:
        """Reserve this many requests, or as many as there are shared slots for; returns how many."""
        missing = max(len(self._under_way) + wanted - 1, 0) - self._held
        got = self._slots.take(missing)
        self._held += got
        self._reserved = wanted - max(missing - got, 0)
        return self._reserved

    def _free_slots(self) -> None:
        """Give back the shared slots that neither a request in progress nor a reserved one needs."""
        spare = self._held - max(len(self._under_way) + self._reserved - 1, 0)
        if spare > 0:
            self._held -= spare
            self._slots.give(spare)

    async def _receive(self, wait_ms: int) -> int:
        """Receive as many messages as are reserved and begin to deliver them; returns how many."""
        subscription = self.subscription
        try:
            deliveries = await self._groups.receive(
                subscription.topic,
                subscription.group,
                count_max=self._reserved,
                invisible_ms=subscription.lease_ms,
                wait_ms=wait_ms,
            )
            now_ms = self._clock.monotonic_ms()
            room = self._limit.room(now_ms)
            if room is not None and room < len(deliveries):  # the limit was lowered, or a request repeated
                beyond = [delivery.receipt for delivery in deliveries[room:]]
                self._groups.put_back(subscription.topic, subscription.group, beyond)
                deliveries = deliveries[:room]
            for delivery in deliveries:
                flight = Flight(self._limit, self._clock)
                task = asyncio.create_task(self._deliver(delivery, now_ms + subscription.lease_ms, flight))
                self._under_way.add(task)
                task.add_done_callback(self._ended)
        finally:
            self._reserved = 0
            self._free_slots()
        return len(deliveries)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Clean up after a request."""
        self._under_way.discard(task)
        self._free_slots()
        self._notify()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("subscription %s: a delivery failed", self.subscription.id, exc_info=error)

    def _change(self) -> "asyncio.Future[None]":
        """Return what is done when `_notify` is called next."""
        self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # ------------------------------------------------------------------ delivering

    async def _deliver(self, delivery: Delivery, lease_end_ms: int, flight: Flight) -> None:
        """Deliver a message whose lease ends then, by the monotonic clock."""
        self._granted[delivery.receipt] = 0
        self._needed[delivery.receipt] = lease_end_ms
        try:
            await self._attempt(delivery, lease_end_ms, flight)
        finally:
            flight.end()
            del self._granted[delivery.receipt], self._needed[delivery.receipt]

    async def _attempt(self, delivery: Delivery, lease_end_ms: int, flight: Flight) -> None:
        subscription = self.subscription
        self._largest_bytes = max(len(delivery.message.body), self._largest_bytes * 7 // 8, 1)
        called = subscription
        if self._ack_urls is not None:
            place = (subscription.topic, subscription.group)
            called = subscription.with_headers(self._ack_urls.headers(*place, delivery.receipt))
        outcome = await self._caller.attempt(called, delivery.message, delivery.attempt, flight)
        flight.end()
        self._stats.record(outcome, self._clock.now_ms())
        failures, width_max = self._stats.failures_in_row, self.subscription.concurrency
        self._pace.steer(outcome, failures, width_max, self._clock.monotonic_ms())
        if outcome.is_gone:
            await self._report_gone(subscription, outcome)
        if isinstance(outcome, Taken):
            await self._hold(subscription, delivery, outcome)
        else:
            await self._report(subscription, delivery.receipt, outcome, lease_end_ms)

    async def _report_gone(self, subscription: Subscription, outcome: Outcome) -> None:
        try:
            await self._on_gone(subscription, outcome.reason)
        except (TimerwheelError, StoreError) as error:
            logger.warning(
                "subscription %s was answered with 410 Gone but cannot be disabled: %s",
                subscription.id,
                error,
            )

    async def _report(
        self, subscription: Subscription, receipt: str, outcome: Outcome, lease_end_ms: int
    ) -> None:
        """Report to the group, retrying until the lease ends: a full disk must not cause a second attempt."""
        topic, group, receipts = subscription.topic, subscription.group, [receipt]
        while True:
            try:
                if outcome.is_delivered:
                    results = await self._groups.ack(topic, group, receipts)
                else:
                    wait_ms, reason = outcome.retry_after_ms, outcome.reason
                    results = await self._groups.nack(topic, group, receipts, wait_ms, reason)
            except UnknownGroupError:
                return  # it was deleted, and the lease with it
            except (TimerwheelError, StoreError) as error:
                self._stats.last_error = f"reporting to the group: {error}"
                logger.warning("subscription %s: reporting to the group failed: %s", subscription.id, error)
            else:
                if not results[0].ok:
                    self._stats.last_error = f"reporting to the group: {results[0].code}"
                return
            if self._clock.monotonic_ms() >= max(lease_end_ms, self._granted[receipt]):
                return
            await self._clock.sleep_for(RETRY_MS)
