"""Limits of attempts on the real engine against a list of messages: who gets what, and what ends how."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.harness.drive import settle
from tests.harness.engine_machine import EngineMachine, thorough
from tests.harness.group_checks import check_groups
from timerwheel.groups.config import Exponential, GroupConfig
from timerwheel.model.messages import Outgoing
from timerwheel.runtime.ages import Ages

BACKOFF = Exponential(initial_ms=1_500, factor=2.0, max_ms=12_000)
INVISIBLE_MS = 5_000
PLACE = ("orders", "g")
TIMES_MS = st.one_of(st.none(), st.integers(1, 4_000), st.integers(1, 60_000))


def backoff_ms(attempt: int) -> int:
    return min(1_500 * 2 ** (attempt - 1), 12_000)


class Sent:
    """A message: fresh, held, waiting or ready, until it is done, dead or expired.

    `at_ms` is when its lease ends, by the clock that never steps, or when its retry is due, by the other one.
    """

    def __init__(self, body: str, delivered_ms: int, ttl_ms: int | None, attempts: int | None) -> None:
        self.body = body
        self.delivered_ms = delivered_ms
        self.ttl_ms = ttl_ms
        self.own_attempts = attempts
        self.attempt = 0
        self.state = "fresh"
        self.at_ms = 0
        self.receipt = ""

    def ending(self, config: GroupConfig, age_ms: int, wait_ms: int) -> str | None:
        """What becomes of it when an attempt failed and the next comes after a wait; None if it has that."""
        if self.ttl_ms is not None and age_ms >= self.ttl_ms:
            return "expired"
        if self.attempt >= (self.own_attempts or config.max_attempts):
            return "dead"
        if self.ttl_ms is not None and age_ms + wait_ms >= self.ttl_ms:
            return "expired"
        too_old = config.max_age_ms is not None and age_ms + wait_ms >= config.max_age_ms
        return "dead" if self.attempt and too_old else None


class LimitsModel(EngineMachine):
    """Every rule does the same to the engine and to the model, and compares what they say."""

    @initialize()
    def start(self) -> None:
        self.sent: list[Sent] = []
        self.config = GroupConfig(backoff=BACKOFF, invisible_ms=INVISIBLE_MS, max_attempts=3)
        self.open()
        self.run(self.engine.groups.put(*PLACE, self.config))

    def open(self) -> None:
        self.open_engine(retention_ms=10**12)
        self.ages = Ages(self.clock)  # steps of an earlier run are forgotten
        self.settle()

    def settle(self) -> None:
        self.run(settle(self.engine))
        now_ms = self.clock.now_ms()
        for one in self.sent:
            if one.state == "held" and one.at_ms <= self.clock.monotonic_ms():
                ended_ms = one.at_ms + now_ms - self.clock.monotonic_ms()
                self.fail(one, ended_ms + backoff_ms(one.attempt))
            if one.state == "waiting" and one.at_ms <= now_ms:
                one.state = "ready"
            allowed = one.own_attempts or self.config.max_attempts
            if one.state == "ready" and one.attempt >= allowed:
                one.state = self.end_of("dead")

    def age_ms(self, one: Sent) -> int:
        return self.ages.age_ms(one.delivered_ms)

    def fail(self, one: Sent, next_ms: int) -> None:
        ending = one.ending(self.config, self.age_ms(one), next_ms - self.clock.now_ms())
        one.state = "waiting" if ending is None else self.end_of(ending)
        one.at_ms = next_ms

    def end_of(self, ending: str) -> str:
        return "dead" if ending == "expired" and self.config.expired == "dead_letter" else ending

    @rule(ttl_ms=TIMES_MS, attempts=st.one_of(st.none(), st.integers(1, 5)), count=st.integers(1, 3))
    def send(self, ttl_ms: int | None, attempts: int | None, count: int) -> None:
        properties = {} if ttl_ms is None else {"TIMER_TTL_MS": str(ttl_ms)}
        properties |= {} if attempts is None else {"TIMER_MAX_ATTEMPTS": str(attempts)}
        for _ in range(count):
            one = Sent(f"m{len(self.sent)}", self.clock.now_ms(), ttl_ms, attempts)
            self.sent.append(one)
            self.run(self.engine.sender.send([Outgoing("orders", one.body.encode(), dict(properties))]))

    @rule()
    def receive(self) -> None:
        found = self.run(self.engine.groups.receive(*PLACE, count_max=1_000))
        got = {delivery.message.body.decode(): delivery for delivery in found}
        for one in self.sent:
            if one.state not in ("fresh", "ready"):
                continue
            if (ending := one.ending(self.config, self.age_ms(one), 0)) is not None:
                one.state = self.end_of(ending)
                continue
            one.attempt += 1
            one.state, one.at_ms = "held", self.clock.monotonic_ms() + INVISIBLE_MS
            delivery = got.pop(one.body)
            assert delivery.attempt == one.attempt
            one.receipt = delivery.receipt
        assert not got, "a message that nobody should get"
        self.settle()

    @precondition(lambda self: any(one.state == "held" for one in self.sent))
    @rule(data=st.data(), acks=st.booleans(), delay_ms=TIMES_MS)
    def answer(self, data: st.DataObject, acks: bool, delay_ms: int | None) -> None:
        one = data.draw(st.sampled_from([one for one in self.sent if one.state == "held"]))
        if acks:
            [result] = self.run(self.engine.groups.ack(*PLACE, [one.receipt]))
            one.state = "done"
        else:
            [result] = self.run(self.engine.groups.nack(*PLACE, [one.receipt], delay_ms))
            wait_ms = backoff_ms(one.attempt) if delay_ms is None else max(delay_ms, 1_000)
            self.fail(one, self.clock.now_ms() + wait_ms)
        assert result.ok
        self.settle()

    @rule(duration_ms=st.one_of(st.integers(1, 3_000), st.integers(1, 70_000)))
    def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.settle()

    @rule(by_ms=st.one_of(st.integers(-100_000, -20_000), st.integers(20_000, 100_000)))
    def step_clock(self, by_ms: int) -> None:
        """Engine and model look at the clock at the same times; what that tells them is tested of `Ages`."""
        self.run(self.engine.watch_once())
        self.ages.look()
        self.clock.step(by_ms)
        self.run(self.engine.watch_once())
        self.ages.look()
        self.settle()

    @rule(
        max_attempts=st.integers(1, 4),
        max_age_ms=TIMES_MS,
        expired=st.sampled_from(("drop", "dead_letter")),
    )
    def change_config(self, max_attempts: int, max_age_ms: int | None, expired: str) -> None:
        self.config = GroupConfig(
            backoff=BACKOFF,
            invisible_ms=INVISIBLE_MS,
            max_attempts=max_attempts,
            max_age_ms=max_age_ms,
            expired=expired,
        )
        self.run(self.engine.groups.put(*PLACE, self.config))
        self.settle()

    @rule(seed=st.integers(0, 1 << 30), index=st.sampled_from(("kept", "older", "lost")))
    def crash_and_reopen(self, seed: int, index: str) -> None:
        self.crash(seed, index)
        for one in self.sent:
            if one.state == "held":
                one.attempt -= 1
                one.state = "ready" if one.attempt else "fresh"
        self.open()

    @rule()
    def stop_and_start(self) -> None:
        self.run(self.engine.close())
        self.open()

    @invariant()
    def the_group_is_what_the_model_says(self) -> None:
        check_groups(self.engine)
        info = self.engine.groups.info(*PLACE)
        states = [one.state for one in self.sent]
        counted = (info.lag, info.in_flight, info.waiting, info.ready)
        assert counted == tuple(states.count(name) for name in ("fresh", "held", "waiting", "ready"))
        letters = self.run(self.engine.groups.dead.page("g", limit=10_000)).letters
        dead = sorted((one.body, one.attempt) for one in self.sent if one.state == "dead")
        assert sorted((one.message.body.decode(), one.attempts) for one in letters) == dead


LimitsModel.TestCase.settings = thorough(60)


class TestLimitsAgreeWithTheModel(LimitsModel.TestCase):
    """Hypothesis drives it."""
