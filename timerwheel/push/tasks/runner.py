"""Calls the tasks of one queue: leases them from its group, sorts them by host, calls, stores the outcome.

    receive --> lane of the host --turn, rate, place--> call --2xx------> outcome, callback and end: one unit
                                                         |---failed-----> retry, after Retry-After or backoff
                                                         |---last, 410--> outcome, failure callback and end
                                         `---later------> waits for a call of its receiver, or its time

1. A task that was called is not called again after its end is stored. The outcome, the callback and the end
   of the task in its group are one unit of the log, so a crash leaves all of them or none. A call begins only
   under a lease that has not ended: else the group may have given the task out again.
2. A task waits for its host in memory, under a lease that is renewed. A lease is nothing in the log: after a
   crash the task is as it was, and no attempt counts that was not made. After a planned stop the leases are
   as before: those tasks had been called, and are waited for as those of invariant 4.
3. An answer whose outcome cannot be stored yet, as on a full disk, is kept and stored when that is possible.
4. A task whose receiver acknowledges it later holds no place and no turn of its host, but counts among those
   that are held in memory. If that is not called in time, the attempt failed.
5. What is remembered of hosts without a task is bounded: those that failed longest ago are forgotten.

Belongs to the event loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from heapq import nsmallest
from typing import NamedTuple

import msgspec
from yarl import URL

from timerwheel.clock import Clock
from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError, TimerwheelError
from timerwheel.groups.config import INVISIBLE_MS_MAX, UnknownGroupError
from timerwheel.groups.receipts import attempt_in, place_in
from timerwheel.model.messages import Delivery, MessageView, ReceiptResult
from timerwheel.push.ack_urls import AckUrls
from timerwheel.push.dispatcher import RETRY_MS
from timerwheel.push.endpoint import Caller, Reply
from timerwheel.push.flight import Flight
from timerwheel.push.outcome import Outcome, Taken, failed
from timerwheel.push.rate_limit import RateLimit
from timerwheel.push.subscription import LEASE_MARGIN_MS
from timerwheel.push.tasks.call import call_of
from timerwheel.push.tasks.lane import Lane, Places, Waiting
from timerwheel.push.tasks.outcome import Ended, records_of
from timerwheel.push.tasks.task import GROUP, End, Task, TaskOutcome, topic_of
from timerwheel.push.tasks.task_queue import TaskQueue
from timerwheel.push.traces import Traces
from timerwheel.store.errors import StoreError
from timerwheel.store.record import Identity
from timerwheel.telemetry.background import in_background

LEASE_MS = 3_600_000
"""A waiting task is leased for so long, and again when half of it is over: longer than any call takes."""
HELD_MAX = 20_000
"""Tasks of a queue that wait for their hosts or a later acknowledgement; beyond that no more are leased."""
RECEIVE_MAX = 200
RECEIVE_WAIT_MS = 20_000
LAST_MAX = 10_000
"""Tasks whose last failure is remembered, to show it."""
HOSTS_REMEMBERED_MAX = 1_000
"""Hosts without a task whose failures are remembered."""
FAILING_HOSTS_SHOWN_MAX = 100

logger = logging.getLogger(__name__)

TAKEN = 202
"""The status with which a receiver takes what it acknowledges later."""
NOT_A_TASK = failed("the message is not a task, or is damaged")
NOT_ACKNOWLEDGED = Outcome("failed", "it was taken, but not acknowledged in time", TAKEN)
NOT_SETTLED = failed("the service has no answer to the last attempt")
CUT_OFF = failed("the service stopped before there was an answer")
_NOT_CALLED = (NOT_A_TASK, NOT_SETTLED)
_NO_TASK = Task(url="")


class LastFailure(NamedTuple):
    """The last failed attempt of a task in this run of the service."""

    status: int | None
    reason: str


class Found(NamedTuple):
    """A leased task, read again for its call."""

    message: MessageView
    identity: Identity
    task: Task | None


async def _ended(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Cancel tasks, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def host_of(url: str) -> str:
    """Return host and port of a URL."""
    parsed = URL(url)
    return f"{parsed.raw_host}:{parsed.port}"


class RunnerParts(NamedTuple):
    """What the runners of all queues work with."""

    engine: Engine
    caller: Caller
    places: Places
    ack_urls: AckUrls
    traces: Traces | None


class QueueRunner:
    """The calls of one queue."""

    def __init__(self, name: str, queue: TaskQueue, parts: RunnerParts, *, restarted: bool = False) -> None:
        """With `restarted`, an earlier run of the service may just have used up the rate limit."""
        self.name = name
        self.queue = queue
        self.topic = topic_of(name)
        self.calling: set[tuple[int, int]] = set()
        """Queue and queue offset of the tasks that are being called."""
        self.last: dict[tuple[int, int], LastFailure] = {}
        self._engine = parts.engine
        self._groups = parts.engine.groups
        self._clock: Clock = parts.engine.clock
        self._caller = parts.caller
        self._traces = parts.traces
        self._ack_urls = parts.ack_urls
        self._later: dict[str, asyncio.Task[None]] = {}  # receipt -> what ends it when its time is over
        self._settling: dict[tuple[int, int], asyncio.Task[bool]] = {}
        self._all_places = parts.places
        self._places = Places(queue.concurrency)
        self._limit = RateLimit(queue.rate_limit, self._clock.monotonic_ms() if restarted else None)
        self._rate_turn = asyncio.Lock()
        self._rate_changed: asyncio.Future[None] | None = None
        self._lanes: dict[str, Lane] = {}
        self._resting: dict[str, None] = {}  # hosts without a task that failed, in the order of that
        self._granted: dict[str, int] = {}  # receipt of a call in progress -> until when it was extended
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._calls: dict[asyncio.Task[None], Waiting] = {}
        self._held = 0
        self._loops: list[asyncio.Task[None]] = []
        self._room: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ starting and stopping

    def start(self) -> None:
        """Begin to call, and wait for those who were called before a planned stop."""
        if not self._loops:
            for receipt, left_ms in self._groups.leased(self.topic, GROUP):
                self.calling.add(place_in(receipt))
                self._hold_for(receipt, max(left_ms - LEASE_MARGIN_MS, 0))
            what = f"task queue {self.name}"
            self._loops = [in_background(self._run(), what), in_background(self._keep(), what)]

    def replace(self, queue: TaskQueue) -> None:
        """Have other limits or secrets from the next request on."""
        if queue.rate_limit != self.queue.rate_limit:
            self._limit.change(queue.rate_limit, self._clock.monotonic_ms())
            if self._rate_changed is not None and not self._rate_changed.done():
                self._rate_changed.set_result(None)
        if queue.concurrency != self.queue.concurrency:
            self._places.change(queue.concurrency)
        self.queue = queue
        for lane in self._lanes.values():
            lane.notify()

    async def halt(self) -> None:
        """Begin no more calls and give back the tasks that wait; calls in progress continue."""
        stopped = [*self._loops, *self._workers.values()]
        self._loops = []
        await asyncio.gather(_ended(stopped), self._let_go())
        for lane in self._lanes.values():
            self._give_back(lane)

    async def _let_go(self) -> None:
        """Wait no longer for later acknowledgements; their leases are noted at a planned stop."""
        waiting = list(self._later.values())
        self._later.clear()
        await _ended(waiting)

    async def close(self, grace_ms: int) -> None:
        """Halt, give calls in progress the grace, then cut them off.

        With a grace these attempts count as failed. Without one they are as in a crash.
        """
        await self.halt()
        if self._calls and grace_ms:
            finished = asyncio.ensure_future(self._finish())
            await self._clock.wait_for(finished, grace_ms)
            finished.cancel()
            await asyncio.gather(finished, return_exceptions=True)
        calls = dict(self._calls)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, *self._settling.values(), return_exceptions=True)
        await self._let_go()  # of those that were taken during the grace
        if grace_ms:
            await asyncio.gather(*(self._cut_off(one) for one in calls.values()), return_exceptions=True)

    async def _cut_off(self, one: Waiting) -> None:
        """Count an attempt as failed, or its lease would keep the task for long after the next start."""
        found = await self._read(one)
        if found is not None:
            await self._store(found, one, Reply(CUT_OFF))

    async def _finish(self) -> None:
        await asyncio.wait(set(self._calls))

    @property
    def waiting(self) -> int:
        """How many tasks were leased and wait for their host."""
        return self._held

    @property
    def failing_hosts(self) -> list[str]:
        """Return the first hosts that failed so often in a row that they are called less."""
        failing = (host for host, lane in self._lanes.items() if lane.is_failing)
        return nsmallest(FAILING_HOSTS_SHOWN_MAX, failing)

    def take_back(self, place: tuple[int, int]) -> str | None:
        """Take a task that waits for its host out of its lane; returns its receipt, None if there is none."""
        for lane in self._lanes.values():
            for one in lane.waiting:
                if one.place == place:
                    lane.waiting.remove(one)
                    self._left(1)
                    return one.receipt
        return None

    def look_over(self) -> None:
        """Let go of tasks whose leases the group has ended; calls in progress end by themselves."""
        waiting = [one.receipt for lane in self._lanes.values() for one in lane.waiting]
        ended = set(self._groups.ended(self.topic, GROUP, (*waiting, *self._later)))
        for lane in self._lanes.values():
            kept = [one for one in lane.waiting if one.receipt not in ended]
            self._left(len(lane.waiting) - len(kept))
            lane.waiting.clear()
            lane.waiting.extend(kept)
        for receipt in ended & self._later.keys():
            self._end_later(receipt)

    # ------------------------------------------------------------------ taking

    async def _run(self) -> None:
        while True:
            try:
                await self._take()
            except (TimerwheelError, StoreError) as error:
                logger.warning("task queue %s cannot receive: %s", self.name, error)
                await self._clock.sleep_for(RETRY_MS)
            except Exception:  # a fault of ours must not end a queue for good
                logger.exception("task queue %s cannot receive", self.name)
                await self._clock.sleep_for(RETRY_MS)

    async def _take(self) -> None:
        room = HELD_MAX - self._held
        if room <= 0:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
            return
        deliveries = await self._groups.receive(
            self.topic,
            GROUP,
            count_max=min(room, RECEIVE_MAX),
            invisible_ms=LEASE_MS,
            wait_ms=RECEIVE_WAIT_MS,
        )
        for delivery in deliveries:
            self._sort(delivery)

    def _sort(self, delivery: Delivery) -> None:
        task = Task.of(delivery.message.envelope)
        host = "" if task is None else host_of(task.url)
        lane = self._lanes.get(host)
        if lane is None:
            lane = self._lanes[host] = Lane(self._clock, lambda: self.queue.host_concurrency)
        self._resting.pop(host, None)
        lane.waiting.append(Waiting(delivery.receipt, delivery.attempt, place_in(delivery.receipt)))
        self._held += 1
        if host not in self._workers:
            worker = asyncio.create_task(self._work(host, lane))
            self._workers[host] = worker
            worker.add_done_callback(lambda done: self._worked(host, lane, done))

    async def _keep(self) -> None:
        """Renew the leases of those that wait."""
        while True:
            await self._clock.sleep_for(LEASE_MS // 2)
            receipts = [one.receipt for lane in self._lanes.values() for one in lane.waiting]
            for at in range(0, len(receipts), RECEIVE_MAX):
                part = receipts[at : at + RECEIVE_MAX]
                try:
                    await self._groups.extend(self.topic, GROUP, part, LEASE_MS)
                except (TimerwheelError, StoreError) as error:
                    logger.warning("task queue %s cannot renew its leases: %s", self.name, error)

    # ------------------------------------------------------------------ the turn of a host

    async def _work(self, host: str, lane: Lane) -> None:
        """Begin the calls of a host, each in its turn, while there are tasks."""
        while lane.waiting:
            await lane.turn()
            if self._is_paused:
                self._give_back(lane)
                return
            failing = lane.failures_in_row > 0
            await self._places.take(failing=failing)
            try:
                await self._begin(failing=failing)
            except BaseException:
                self._places.give(failing=failing)
                raise
            if not lane.waiting or self._is_paused:  # by now
                self._give_places(failing=failing)
                self._give_back(lane)
                return
            one = lane.waiting.popleft()
            self._left(1)
            flight = Flight(self._limit, self._clock)
            lane.began()
            self.calling.add(one.place)
            call = asyncio.create_task(self._call(host, lane, one, flight, failing=failing))
            self._calls[call] = one
            call.add_done_callback(self._called)

    @property
    def _is_paused(self) -> bool:
        return self._engine.topics.paused(self.topic)

    def _give_back(self, lane: Lane) -> None:
        """Let the group have the tasks of a host again, as if they had not been leased."""
        receipts = [one.receipt for one in lane.waiting]
        lane.waiting.clear()
        self._left(len(receipts))
        self._groups.put_back(self.topic, GROUP, receipts)

    async def _begin(self, *, failing: bool) -> None:
        """Wait for a place of the service at a time at which the rate limit allows a request."""
        while True:
            await self._all_places.take(failing=failing)
            if not self._limit.wait_ms(self._clock.monotonic_ms()):
                return
            self._all_places.give(failing=failing)
            async with self._rate_turn:
                while (wait_ms := self._limit.wait_ms(self._clock.monotonic_ms())) > 0:
                    self._rate_changed = asyncio.get_running_loop().create_future()
                    await self._clock.wait_for(self._rate_changed, wait_ms)

    def _worked(self, host: str, lane: Lane, done: "asyncio.Task[None]") -> None:
        del self._workers[host]
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.error("task queue %s: the calls of %s failed", self.name, host, exc_info=error)
        if lane.waiting and self._loops:
            worker = asyncio.create_task(self._work(host, lane))
            self._workers[host] = worker
            worker.add_done_callback(lambda again: self._worked(host, lane, again))
        else:
            self._rest(host, lane)

    def _rest(self, host: str, lane: Lane) -> None:
        """Forget a host that has nothing to do, unless it failed lately."""
        if lane.idle:
            self._lanes.pop(host, None)
        elif lane.has_no_task:
            self._resting.pop(host, None)
            self._resting[host] = None
            if len(self._resting) > HOSTS_REMEMBERED_MAX:
                longest_ago = next(iter(self._resting))
                del self._resting[longest_ago]
                self._lanes.pop(longest_ago, None)

    def _called(self, call: "asyncio.Task[None]") -> None:
        del self._calls[call]
        if not call.cancelled() and (error := call.exception()) is not None:
            logger.error("task queue %s: a call failed", self.name, exc_info=error)

    def _give_places(self, *, failing: bool) -> None:
        self._all_places.give(failing=failing)
        self._places.give(failing=failing)

    def _left(self, count: int) -> None:
        self._held -= count
        if self._room is not None and not self._room.done() and self._held <= HELD_MAX // 2:
            self._room.set_result(None)

    # ------------------------------------------------------------------ calling

    async def _call(self, host: str, lane: Lane, one: Waiting, flight: Flight, *, failing: bool) -> None:
        try:
            reply, found = None, None
            try:
                await self._assured()
                found = await self._read(one)
                if found is not None and await self._extend(one.receipt, LEASE_MS):
                    reply = await self._attempt(found, one, flight)
            except UnknownGroupError:
                return  # the queue was deleted
            finally:
                flight.end()
                self._give_places(failing=failing)
                lane.ended(None if reply is None or reply.outcome in _NOT_CALLED else reply.outcome)
            if found is not None and reply is not None:
                if isinstance(reply.outcome, Taken):
                    await self._hold(found, one, reply.outcome)
                else:
                    await self._settle(found, one, reply)
        finally:
            self._granted.pop(one.receipt, None)
            if one.receipt not in self._later:
                self.calling.discard(one.place)
            if host not in self._workers:
                self._rest(host, lane)

    async def _assured(self) -> None:
        """Return once it is certain that no other process calls the tasks by now."""
        while True:
            try:
                return await self._engine.lead.assure()
            except NotReadyError:
                await self._clock.sleep_for(RETRY_MS)

    async def _read(self, one: Waiting) -> Found | None:
        found = await self._groups.message_of(self.topic, GROUP, one.receipt)
        if found is None:  # retention has removed it
            await self._groups.ack(self.topic, GROUP, [one.receipt])
            return None
        message, identity = found
        return Found(message, identity, Task.of(message.envelope))

    async def _attempt(self, found: Found, one: Waiting, flight: Flight) -> Reply:
        if found.task is None:
            return Reply(NOT_A_TASK)
        if one.attempt > found.task.max_attempts:  # the lease of its last attempt ended in another run
            return Reply(NOT_SETTLED)
        ack_headers = self._ack_urls.headers(self.topic, GROUP, one.receipt)
        call = call_of(found.message, found.task, self.name, self.queue.secrets, one.attempt, ack_headers)
        make = partial(self._caller.call, msgspec.structs.replace(call, flight=flight))
        reply = await (
            make() if self._traces is None else self._traces.call(found.message, one.attempt, make)
        )
        self._engine.counters.called(reply.outcome.kind, reply.outcome.latency_ms)
        return reply

    async def _settle(self, found: Found, one: Waiting, reply: Reply) -> None:
        """Store what came of a call, as soon as that is possible."""
        while True:
            try:
                await self._store(found, one, reply)
            except UnknownGroupError:
                return  # the queue was deleted
            except (TimerwheelError, StoreError) as error:
                logger.warning("task queue %s cannot store an outcome yet: %s", self.name, error)
            else:
                return
            await self._clock.sleep_for(RETRY_MS)
            with contextlib.suppress(TimerwheelError, StoreError):
                await self._groups.extend(self.topic, GROUP, [one.receipt], LEASE_MS)

    async def _store(self, found: Found, one: Waiting, reply: Reply) -> ReceiptResult:
        outcome = reply.outcome
        attempts_max = 1 if found.task is None else found.task.max_attempts
        if outcome.is_delivered:
            return await self._end(found, one, reply, "succeeded")
        if outcome.is_gone or one.attempt >= attempts_max or found.task is None:
            return await self._end(found, one, reply, "failed")
        backoff_ms = found.task.backoff.delay_ms(one.attempt, self._engine.rules.levels)
        delay_ms = backoff_ms if outcome.retry_after_ms is None else outcome.retry_after_ms
        (result,) = await self._groups.nack(self.topic, GROUP, [one.receipt], delay_ms, outcome.reason)
        if result.ok:  # else it says nothing of the attempt that counts now
            self._note(one.place, LastFailure(outcome.status, outcome.reason))
        return result

    async def _end(self, found: Found, one: Waiting, reply: Reply, state: End) -> ReceiptResult:
        """Store the end of a task, with its outcome and its callback."""
        outcome = reply.outcome
        ended = Ended(found.message, found.identity, found.task or _NO_TASK, self.name, reply)
        what = TaskOutcome(
            state=state,
            finished_ms=self._clock.now_ms(),
            attempts=one.attempt if found.task is None else min(one.attempt, found.task.max_attempts),
            status=outcome.status,
            reason=None if state == "succeeded" else outcome.reason,
            latency_ms=outcome.latency_ms,
        )
        more = records_of(ended, what)
        given_up = state == "failed"
        result = await self._groups.conclude(self.topic, GROUP, one.receipt, more, given_up=given_up)
        if result.ok:  # else it has ended before
            self.last.pop(one.place, None)
            self._engine.counters.task_ended(state)
        return result

    # ------------------------------------------------------------------ acknowledging later

    async def _hold(self, found: Found, one: Waiting, outcome: Taken) -> None:
        """Let a task that its receiver acknowledges later wait for that."""
        assert found.task is not None
        within_ms = outcome.ack_within_ms or found.task.timeout_ms + LEASE_MARGIN_MS
        # What its receiver asked for before it answered counts, if that is longer.
        within_ms = max(within_ms, self._granted.get(one.receipt, 0) - self._clock.monotonic_ms())
        try:
            if await self._extend(one.receipt, within_ms):  # else it was settled before its answer came
                self._hold_for(one.receipt, within_ms)
        except UnknownGroupError:
            return  # the queue was deleted

    async def _extend(self, receipt: str, within_ms: int) -> bool:
        # The lease is longer: when the time is over, this decides what comes next, not the group.
        lease_ms = min(within_ms + LEASE_MARGIN_MS, INVISIBLE_MS_MAX)
        (result,) = await self._groups.extend(self.topic, GROUP, [receipt], lease_ms)
        return result.ok

    def _hold_for(self, receipt: str, within_ms: int) -> None:
        """Hold a task for so long, for its receiver to acknowledge it."""
        self._held += 1
        self._later[receipt] = in_background(self._expire(receipt, within_ms), f"task queue {self.name}")

    async def _expire(self, receipt: str, within_ms: int) -> None:
        """Count an attempt as failed when the time to acknowledge it is over."""
        await self._clock.sleep_for(within_ms)
        while receipt in self._later:
            try:
                await self.settle_later(receipt, Reply(NOT_ACKNOWLEDGED))
            except UnknownGroupError:
                self._end_later(receipt)
            except (TimerwheelError, StoreError) as error:
                logger.warning("task queue %s cannot store an outcome yet: %s", self.name, error)
                await self._clock.sleep_for(RETRY_MS)
            else:
                self._end_later(receipt)

    async def extend_later(self, receipt: str, within_ms: int) -> bool:
        """Give the receiver of a task that long from now; False if its receipt has ended."""
        return await self._in_turn(place_in(receipt), self._extend_later(receipt, within_ms))

    async def _extend_later(self, receipt: str, within_ms: int) -> bool:
        # A call in progress needs its lease, however little its receiver asks for.
        is_called = receipt not in self._later and place_in(receipt) in self.calling
        if not await self._extend(receipt, max(within_ms, LEASE_MS) if is_called else within_ms):
            return False
        waiting = self._later.get(receipt)
        if waiting is not None:
            waiting.cancel()
            self._later[receipt] = in_background(self._expire(receipt, within_ms), f"task queue {self.name}")
        elif place_in(receipt) in self.calling:
            self._granted[receipt] = self._clock.monotonic_ms() + within_ms
        return True

    async def settle_later(self, receipt: str, reply: Reply) -> bool:
        """Store what came of a task that was called before; False if its receipt has ended."""
        return await self._in_turn(place_in(receipt), self._settle_later(receipt, reply))

    async def _in_turn(self, place: tuple[int, int], said: Coroutine[None, None, bool]) -> bool:
        """Carry out a call by the URL of a task, or the end of its time, to the end.

        One at a time of each task: an acknowledgement that comes second finds that it has ended, and the end
        of a time that was extended is not noticed any more.
        """
        try:
            while (other := self._settling.get(place)) is not None:
                await asyncio.wait([other])
        except BaseException:
            said.close()
            raise
        task = self._settling[place] = asyncio.create_task(said)
        task.add_done_callback(lambda _: self._settling.pop(place, None))
        return await asyncio.shield(task)

    async def _settle_later(self, receipt: str, reply: Reply) -> bool:
        one = Waiting(receipt, attempt_in(receipt), place_in(receipt))
        if self._groups.held(self.topic, GROUP, one.place).done:
            return False
        found = await self._read(one)
        if found is None or not (await self._store(found, one, reply)).ok:
            return False
        self._end_later(receipt)
        return True

    def _end_later(self, receipt: str) -> None:
        waiting = self._later.pop(receipt, None)
        if waiting is None:
            return
        if waiting is not asyncio.current_task():
            waiting.cancel()
        self.calling.discard(place_in(receipt))
        self._left(1)

    def _note(self, place: tuple[int, int], failure: LastFailure) -> None:
        self.last.pop(place, None)
        self.last[place] = failure
        if len(self.last) > LAST_MAX:
            del self.last[next(iter(self.last))]
