"""The log fails while writes of every kind are under way: each answer is true, or says that it is unknown."""

import asyncio
import errno
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.harness.consumers import put, receive, send
from tests.harness.faulty import FaultyFiles
from tests.harness.world import World
from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError, OutcomeUnknownError
from timerwheel.groups.config import GroupConfig
from timerwheel.model.messages import Delivery, Outgoing, State
from timerwheel.runtime.outcome import one_call
from timerwheel.runtime.recall_filter import RecallFilter
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec
from timerwheel.state.offset_set import OffsetSet

HOUR_MS = 3_600_000
STEPS = 40  # writes and syncs of the log that the burst takes
NOT_STORED = {"not_ready", "log_failed", "no_space"}


class FailingFiles(FaultyFiles):
    """A disk of which one write or sync of the log fails, and which is readable all the time."""

    fail_at: int | None = None

    def step(self, what: str) -> bool:
        crash = super().step(what)
        if self.fail_at is not None and self.steps >= self.fail_at and what.endswith(".log"):
            self.fail_at = None
            raise OSError(errno.EIO, "Input/output error")
        return crash


class Write(NamedTuple):
    """A write, and whether it is found stored."""

    call: Callable[[], Awaitable[Any]]
    is_stored: Callable[[Engine], Awaitable[bool]]


async def pending(engine: Engine, topic: str) -> int:
    return len((await engine.messages.pending(topic, limit=1_000)).messages)


async def sent(engine: Engine, topic: str, count: int) -> bool:
    found = await pending(engine, topic)
    assert found in {0, count}, "a part of an array was stored"
    return found > 0


def now(check: Callable[[Engine], bool]) -> Callable[[Engine], Awaitable[bool]]:
    async def is_stored(engine: Engine) -> bool:
        return check(engine)

    return is_stored


def timer(topic: str, size: int = 1, **options: Any) -> Outgoing:
    return Outgoing(topic, b"x" * size, {"TIMER_DELAY_MS": str(HOUR_MS)}, **options)


async def writes_of(world: World) -> dict[str, Write]:
    """One of every kind, on what it needs."""
    engine = world.engine
    timers = await world.send_ids(*[HOUR_MS] * 8, topic="timers")
    await world.send(*[HOUR_MS] * 40, topic="bulk")
    await put(world, "orders", "g", invisible_ms=HOUR_MS)
    await put(world, "orders", "once", invisible_ms=HOUR_MS, max_attempts=1)
    await put(world, "orders", "gone")
    await send(world, "a", "b", "c", "d")
    held = await receive(world)
    last = await receive(world, group="once")
    await engine.groups.nack("orders", "once", [last[0].receipt, last[1].receipt])

    def offset(delivery: Delivery) -> int:
        assert delivery.message.queue_offset is not None
        return delivery.message.queue_offset

    def done(delivery: Delivery, group: str = "g") -> Callable[[Engine], bool]:
        def check(engine: Engine) -> bool:
            state = engine.core.state.groups.by_name[f"orders/{group}"]
            return (
                offset(delivery) in state.passed.get(0, OffsetSet()) and offset(delivery) not in state.items
            )

        return check

    def given_back(engine: Engine) -> bool:
        item = engine.core.state.groups.by_name["orders/g"].items.get(offset(held[1]))
        return item is not None and item.ended

    def acknowledged_again(engine: Engine) -> bool:
        return retried.key not in engine.core.state.groups.by_name["orders/g"].items

    await engine.groups.nack("orders", "g", [held[2].receipt], delay_ms=1_000)
    await world.advance(1_000)
    [again] = await receive(world)
    [retried] = engine.core.state.groups.by_name["orders/g"].items.values()

    async def later(engine: Engine) -> bool:
        return (await engine.messages.get(timers[3])).due_ms > (await engine.messages.get(timers[4])).due_ms

    every_hour = ScheduleSpec(topic="runs", body=b"", recurrence=Recurrence(every_ms=HOUR_MS))
    return {
        "send": Write(lambda: engine.sender.send([timer("one")]), lambda e: sent(e, "one", 1)),
        "array": Write(lambda: engine.sender.send([timer("five", 300)] * 5), lambda e: sent(e, "five", 5)),
        "key": Write(lambda: engine.sender.send([timer("key", dedup_key="k")]), lambda e: sent(e, "key", 1)),
        "recall": Write(
            lambda: engine.recalls.recall(timers[0]), lambda e: _is(e, timers[0], State.RECALLED)
        ),
        "reschedule": Write(lambda: engine.recalls.reschedule(timers[3], {"TIMER_DELAY_SEC": "9000"}), later),
        "condition": Write(
            lambda: engine.bulk_recalls.recall_where(RecallFilter(topic="bulk")),
            lambda e: _less(pending(e, "bulk"), 40),
        ),
        "ack": Write(lambda: engine.groups.ack("orders", "g", [held[0].receipt]), now(done(held[0]))),
        "ack of a retry": Write(
            lambda: engine.groups.ack("orders", "g", [again.receipt]), now(acknowledged_again)
        ),
        "give back": Write(
            lambda: engine.groups.nack("orders", "g", [held[1].receipt], delay_ms=9 * HOUR_MS),
            now(given_back),
        ),
        "give up": Write(
            lambda: engine.groups.nack("orders", "once", [last[2].receipt, last[3].receipt]),
            now(done(last[2], "once")),
        ),
        "group": Write(
            lambda: engine.groups.put("orders", "new", GroupConfig()),
            now(lambda e: "orders/new" in e.core.state.groups.by_name),
        ),
        "no group": Write(
            lambda: engine.groups.delete("orders", "gone"),
            now(lambda e: "orders/gone" not in e.core.state.groups.by_name),
        ),
        "order": Write(
            lambda: engine.topics.change("orders", ordered=True),
            now(lambda e: e.control.get("topic", "orders") is not None),
        ),
        "schedule": Write(
            lambda: engine.schedules.put("hourly", every_hour),
            now(lambda e: e.control.get("schedule", "hourly") is not None),
        ),
    }


async def _is(engine: Engine, message_id: str, state: State) -> bool:
    return (await engine.messages.get(message_id)).state is state


async def _less(count: Awaitable[int], than: int) -> bool:
    return await count < than


async def _called(write: Write) -> Any:
    with one_call():
        return await write.call()


async def burst(world: World, fail_in: int) -> tuple[dict[str, Write], dict[str, Any]]:
    """All writes at once, in the middle of which the log fails; what each was answered."""
    writes = await writes_of(world)
    world.files.fail_at = world.files.steps + fail_in
    answers = await asyncio.gather(*map(_called, writes.values()), return_exceptions=True)
    return writes, dict(zip(writes, answers, strict=True))


def said(answer: Any) -> str:
    """What an answer says: stored, not stored, or unknown."""
    if not isinstance(answer, BaseException):
        return "stored"
    code = getattr(answer, "code", None)
    if code in NOT_STORED:
        return "not stored"
    assert code == "outcome_unknown", repr(answer)
    return "unknown"


async def test_what_is_answered_when_the_log_fails_is_true_or_says_that_it_is_unknown(tmp_path):
    told: dict[str, set[str]] = defaultdict(set)
    found: dict[str, set[bool]] = defaultdict(set)
    for fail_in in range(1, STEPS):
        world = World(tmp_path / str(fail_in))
        world.files = FailingFiles()
        await world.open(batch_bytes_max=2_560)
        writes, answers = await burst(world, fail_in)
        engine = await world.crash(random.Random(fail_in))
        for name, answer in answers.items():
            is_stored = await writes[name].is_stored(engine)
            told[name].add(said(answer))
            if said(answer) == "unknown":
                found[name].add(is_stored)
            else:
                assert is_stored == (said(answer) == "stored"), (name, fail_in, repr(answer))
        await engine.close()
    assert all(answers >= {"stored", "unknown"} for answers in told.values()), str(dict(told))
    assert any("not stored" in answers for answers in told.values())
    assert any(len(outcomes) == 2 for outcomes in found.values()), "it was always known, in truth"


async def test_a_bulk_recall_says_of_each_message_whether_it_is_known(tmp_path):
    seen = set()
    for fail_in in range(1, 8):
        world = World(tmp_path / str(fail_in))
        world.files = FailingFiles()
        await world.open(batch_bytes_max=1024)
        ids = await world.send_ids(*[HOUR_MS] * 30)
        world.files.fail_at = world.files.steps + fail_in
        try:
            results = await world.engine.bulk_recalls.recall_many(ids)
        except (NotReadyError, OutcomeUnknownError) as error:
            results = []
            seen.add(error.code)
        engine = await world.crash(random.Random(fail_in))
        for result in results:
            seen.add(result.code)
            state = (await engine.messages.get(result.id)).state
            if result.code is None:
                assert state is State.RECALLED
            elif result.code != "outcome_unknown":
                assert state is State.SCHEDULED
        await engine.close()
    assert seen >= {None, "outcome_unknown"}
