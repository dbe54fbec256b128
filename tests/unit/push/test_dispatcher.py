"""The dispatcher with an endpoint under the test's hand and groups in memory."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from tests.harness.clock import ManualClock
from tests.harness.groups import MemoryGroups
from timerwheel.errors import NotReadyError
from timerwheel.model.messages import MessageView
from timerwheel.push.dispatcher import Dispatcher, DispatcherParts, Slots
from timerwheel.push.outcome import Outcome
from timerwheel.push.pace import PAUSE_MS_MAX
from timerwheel.push.stats import FAILURES_IN_ROW
from timerwheel.push.subscription import Subscription

OK = Outcome("delivered", "HTTP 200", 200)
BAD = Outcome("failed", "HTTP 500", 500)
GONE = Outcome("gone", "HTTP 410", 410)


class Endpoint:
    """Answers as `answer` says; while that is None, attempts wait for `end`."""

    def __init__(self, answer: Outcome | None) -> None:
        self.answer = answer
        self.attempts: list[str] = []
        self.numbers: list[int] = []
        self.under_way = 0
        self.most_under_way = 0
        self._waiting: list[asyncio.Future[Outcome]] = []

    async def attempt(
        self, _subscription: Subscription, message: MessageView, number: int = 1, _flight: object = None
    ) -> Outcome:
        self.attempts.append(message.id)
        self.numbers.append(number)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.answer is not None:
                await asyncio.sleep(0)
                return self.answer
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            return await waiting
        finally:
            self.under_way -= 1

    def end(self, outcome: Outcome, count: int = 10**6) -> None:
        """End attempts that wait, the oldest first."""
        ending, self._waiting = self._waiting[:count], self._waiting[count:]
        for waiting in ending:
            if not waiting.done():
                waiting.set_result(outcome)


class Bench:
    """One dispatcher and all that it sees."""

    def __init__(self, answer: Outcome | None = OK, slots: Slots | None = None, **fields: object) -> None:
        self.clock = ManualClock()
        self.groups = MemoryGroups(self.clock)
        self.endpoint = Endpoint(answer)
        self.gone: list[tuple[str, str]] = []
        self.slots = slots or Slots()
        values = {"id": "s", "topic": "orders", "group": "g", "url": "http://a/", "secrets": []}
        parts = DispatcherParts(self.groups, self.endpoint, self.clock, self.slots, self._gone)
        self.dispatcher = Dispatcher(Subscription(**(values | fields)), parts)

    async def _gone(self, subscription: Subscription, reason: str) -> None:
        self.gone.append((subscription.id, reason))
        await self.dispatcher.halt()

    def add(self, count: int, size_bytes: int = 1) -> list[str]:
        return self.groups.add("orders", "g", *[b"x" * size_bytes] * count)

    async def settle(self) -> None:
        for _ in range(300):
            await asyncio.sleep(0)

    async def advance(self, duration_ms: int) -> None:
        await self.settle()
        self.clock.advance(duration_ms)
        await self.settle()

    def told(self, kind: str) -> list[tuple]:
        return [told for told in self.groups.told if told[0] == kind]


@pytest.fixture
async def bench():
    made: list[Bench] = []

    def make(*args: object, **fields: object) -> Bench:
        made.append(Bench(*args, **fields))
        made[-1].dispatcher.start()
        return made[-1]

    yield make
    for one in made:
        await one.dispatcher.close(0)


Make = Callable[..., Bench]


async def test_what_is_delivered_is_acknowledged_once(bench: Make):
    b = bench()
    ids = b.add(100)
    await b.settle()
    assert sorted(b.endpoint.attempts) == sorted(ids)
    assert sorted(told[1] for told in b.told("ack")) == sorted(ids)
    assert b.groups.held["orders", "g"] == []
    assert b.dispatcher.stats().delivered == 100


async def test_messages_that_come_later_are_delivered_too(bench: Make):
    b = bench()
    await b.advance(60_000)
    ids = b.add(3)
    await b.settle()
    assert sorted(b.endpoint.attempts) == sorted(ids)


async def test_a_failure_comes_back_after_the_backoff_of_the_group(bench: Make):
    b = bench(BAD)
    (message_id,) = b.add(1)
    await b.settle()
    assert b.groups.told == [("nack", message_id, None, "HTTP 500")]
    b.endpoint.answer = OK
    await b.advance(10_000)
    assert b.told("ack") == [("ack", message_id)]
    assert b.endpoint.attempts == [message_id] * 2
    assert b.endpoint.numbers == [1, 2]


@pytest.mark.parametrize(("limit", "each_ms", "most"), [(5, 1_000, 5), (0.5, 2_000, 1), (2.5, 800, 2)])
async def test_no_more_requests_begin_in_any_second_than_the_limit(
    bench: Make, limit: float, each_ms: int, most: int
):
    b = bench(rate_limit=limit, concurrency=256)
    b.add(40)
    begun_ms: list[int] = []
    while len(begun_ms) < 40:
        await b.settle()
        begun_ms += [b.clock.monotonic_ms()] * (len(b.endpoint.attempts) - len(begun_ms))
        b.clock.advance(50)
    assert max(sum(at <= other < at + each_ms for other in begun_ms) for at in begun_ms) == most
    assert begun_ms[-1] - begun_ms[0] < (40 // most) * (each_ms + 50)


async def test_a_limit_that_is_changed_counts_from_the_next_request_on(bench: Make):
    b = bench(rate_limit=0.001)
    b.add(9)
    await b.advance(60_000)
    assert len(b.endpoint.attempts) == 1
    b.dispatcher.replace(msgspec.structs.replace(b.dispatcher.subscription, rate_limit=None))
    await b.settle()
    assert len(b.endpoint.attempts) == 9


async def test_a_message_that_waits_for_its_turn_is_not_leased(bench: Make):
    b = bench(rate_limit=1)
    b.add(3)
    await b.settle()
    assert [held.receipt for held in b.groups.held["orders", "g"]] == [None, None]
    assert len(b.endpoint.attempts) == 1


async def test_retry_after_delays_the_message_as_long_and_the_others_up_to_a_minute(bench: Make):
    b = bench(Outcome("failed", "HTTP 429", 429, 3_600_000))
    first, second = b.add(2)
    await b.settle()
    assert b.groups.told == [("nack", first, 3_600_000, "HTTP 429")]
    b.endpoint.answer = OK
    await b.advance(PAUSE_MS_MAX - 1)
    assert b.endpoint.attempts == [first]
    await b.advance(1)
    assert b.endpoint.attempts == [first, second]
    await b.advance(3_540_000)
    assert b.endpoint.attempts == [first, second, first]


async def test_gone_disables_and_gives_the_message_back(bench: Make):
    b = bench(GONE)
    first, *_ = b.add(3)
    await b.advance(100_000)
    assert b.gone == [("s", "HTTP 410")]
    assert b.groups.told == [("nack", first, None, "HTTP 410")]
    assert b.endpoint.attempts == [first]


async def test_requests_under_way_grow_with_success_up_to_the_concurrency(bench: Make):
    b = bench(None, concurrency=5)
    b.add(50)
    seen = []
    for _ in range(7):
        await b.settle()
        seen.append(b.endpoint.under_way)
        b.endpoint.end(OK)
    assert seen == [1, 2, 4, 5, 5, 5, 5]


async def test_an_endpoint_that_hangs_from_the_start_holds_one_request(bench: Make):
    b = bench(None, concurrency=256)
    b.add(1_000)
    await b.advance(100_000)
    assert b.endpoint.most_under_way == 1
    assert b.slots.free == Slots().free


async def test_a_dead_endpoint_is_probed_one_by_one_after_growing_pauses(bench: Make):
    b = bench(BAD)
    b.add(1_000)
    await b.settle()
    assert len(b.endpoint.attempts) == FAILURES_IN_ROW
    for pause_ms in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000):
        before = len(b.endpoint.attempts)
        await b.advance(pause_ms - 1)
        assert len(b.endpoint.attempts) == before
        await b.advance(1)
        assert len(b.endpoint.attempts) == before + 1
    assert b.endpoint.most_under_way == 1
    b.endpoint.answer = OK
    await b.advance(60_000)
    assert b.dispatcher.stats().failures_in_row == 0
    assert b.dispatcher.stats().delivered > 100


async def test_a_hole_in_the_middle_of_many_requests_narrows_them_to_one(bench: Make):
    b = bench(None, concurrency=8)
    b.add(500)
    for _ in range(8):
        await b.settle()
        b.endpoint.end(OK)
    await b.settle()
    assert b.endpoint.under_way == 8
    b.endpoint.end(BAD)
    b.endpoint.answer = BAD
    await b.settle()
    before = len(b.endpoint.attempts)
    await b.advance(999)
    assert len(b.endpoint.attempts) - before <= 1
    b.endpoint.most_under_way = 0
    for _ in range(5):
        await b.advance(60_000)
    assert b.endpoint.most_under_way == 1


async def test_resuming_does_not_wait_out_the_pause(bench: Make):
    b = bench(BAD)
    b.add(100)
    await b.settle()
    b.endpoint.answer = OK
    b.dispatcher.start()
    await b.settle()
    assert b.dispatcher.stats().delivered == 95


async def test_another_url_is_tried_at_once_and_other_changes_are_not(bench: Make):
    b = bench(BAD)
    b.add(100)
    await b.settle()
    b.endpoint.answer = OK
    b.dispatcher.replace(msgspec.structs.replace(b.dispatcher.subscription, timeout_ms=100))
    await b.settle()
    assert b.dispatcher.stats().delivered == 0
    b.dispatcher.replace(msgspec.structs.replace(b.dispatcher.subscription, url="http://b/"))
    await b.settle()
    assert b.dispatcher.stats().delivered == 95


async def test_halted_takes_nothing_more_and_ends_what_is_under_way(bench: Make):
    b = bench(None)
    b.add(10)
    await b.settle()
    await b.dispatcher.halt()
    assert not b.dispatcher.running
    b.endpoint.end(OK)
    await b.advance(100_000)
    assert len(b.told("ack")) == len(b.endpoint.attempts) == 1
    b.endpoint.answer = OK
    b.dispatcher.start()
    await b.settle()
    assert len(b.told("ack")) == 10


async def test_closing_waits_for_requests_as_long_as_the_grace(bench: Make):
    b = bench(None)
    b.add(1)
    await b.settle()
    closing = asyncio.ensure_future(b.dispatcher.close(2_000))
    await b.advance(1_999)
    assert not closing.done()
    b.endpoint.end(OK)
    await closing
    assert len(b.told("ack")) == 1


async def test_after_the_grace_requests_are_cut_off_and_their_leases_run_out(bench: Make):
    b = bench(None)
    b.add(1)
    await b.settle()
    closing = asyncio.ensure_future(b.dispatcher.close(2_000))
    await b.advance(2_000)
    await closing
    assert b.endpoint.under_way == 0
    assert b.groups.told == []
    (held,) = b.groups.held["orders", "g"]
    assert held.ready_ms > b.clock.now_ms()


async def test_a_message_is_leased_longer_than_its_attempt_may_last(bench: Make):
    b = bench(None, timeout_ms=300_000)
    b.add(1)
    await b.settle()
    (held,) = b.groups.held["orders", "g"]
    assert held.ready_ms > b.clock.now_ms() + 300_000


async def test_a_group_that_cannot_answer_is_asked_again(bench: Make):
    b = bench()
    b.groups.fail = NotReadyError("the service is stopping")
    await b.advance(20_000)
    b.add(3)
    await b.advance(5_000)
    assert b.endpoint.attempts == []
    assert "receiving" in (b.dispatcher.stats().last_error or "")
    b.groups.fail = None
    await b.advance(1_000)
    assert len(b.told("ack")) == 3


async def test_an_acknowledgement_that_fails_is_repeated_and_the_message_is_not(bench: Make):
    b = bench(None)
    b.add(1)
    await b.settle()
    b.groups.fail = NotReadyError("the disk is full")
    b.endpoint.end(OK)
    for _ in range(3):
        await b.advance(1_000)
    b.groups.fail = None
    for _ in range(3):
        await b.advance(1_000)
    assert len(b.told("ack")) == 1
    assert len(b.endpoint.attempts) == 1


async def test_an_acknowledgement_that_comes_too_late_is_in_the_statistics(bench: Make):
    b = bench(None)
    b.add(1)
    await b.settle()
    await b.dispatcher.halt()
    await b.advance(30_000)
    b.endpoint.end(OK)
    await b.settle()
    assert b.dispatcher.stats().last_error == "reporting to the group: receipt_ended"
    assert b.dispatcher.stats().in_flight == 0


async def test_large_bodies_narrow_the_requests_under_way(bench: Make):
    b = bench(None, concurrency=256)
    b.add(60, 8 << 20)
    for _ in range(8):
        await b.settle()
        assert b.endpoint.under_way <= 4
        b.endpoint.end(OK)
    assert b.endpoint.most_under_way == 4


async def test_without_shared_slots_each_subscription_still_has_one_request(bench: Make):
    slots = Slots(3)
    benches = [bench(None, slots, concurrency=50) for _ in range(4)]
    for _ in range(10):
        for b in benches:
            b.add(50)
            await b.settle()
            assert b.endpoint.under_way >= 1
            b.endpoint.end(OK)
    await benches[0].settle()
    assert sum(b.endpoint.under_way for b in benches) <= 4 + 3
    for b in benches:
        assert b.endpoint.under_way >= 1
        await b.dispatcher.close(0)
    assert slots.free == 3


async def test_slots_are_given_back_when_the_messages_run_out(bench: Make):
    b = bench(None, Slots(10), concurrency=8)
    b.add(40)
    for _ in range(12):
        await b.settle()
        b.endpoint.end(OK)
    await b.settle()
    assert b.dispatcher.stats().delivered == 40
    assert b.slots.free == 10
