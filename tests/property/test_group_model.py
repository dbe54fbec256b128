"""Consumer groups on the real engine against a dictionary of who holds what until when.

Leases are timed by a clock that is never set, retries by the wall clock. With `flush=async` a power cut may
take what was stored since the last sync, and other messages get its places: the model is then as it was.
"""

import asyncio
import copy
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.harness.drive import settle
from tests.harness.engine_machine import EngineMachine, thorough
from tests.harness.group_checks import check_groups
from timerwheel.groups.config import INVISIBLE_MS_MAX, Exponential, GroupConfig
from timerwheel.model.messages import Delivery, Outgoing, ReceiptResult
from timerwheel.store.errors import NoSpaceError

BACKOFF = Exponential(initial_ms=500, factor=3.0, max_ms=40_000)
MINIMUM_MS = 1_000
INVISIBLE_MS = 5_000
GROUPS = (("orders", "g"), ("lanes", "o"))
DURATIONS_MS = st.one_of(st.integers(1, 1_500), st.integers(1, 60_000), st.integers(1, 10_000_000))
DOWN_MS = st.one_of(st.just(0), DURATIONS_MS)
STEPS_MS = st.one_of(
    st.integers(2_000, 100_000), st.integers(-100_000, -2_000), st.integers(2_000, 10_000_000)
)


class Held:
    """What a group holds of one message; `place` is its queue offset, None if it was redriven.

    `ended` if its last attempt was given back. `end_ms` is when its lease ends, monotonic, or when its
    retry is due, by the wall clock.
    """

    def __init__(self, place: int | None, body: str, lane: str | None) -> None:
        self.place = place
        self.body = body
        self.lane = lane
        self.attempt = 0
        self.state = "parked"
        self.end_ms = 0
        self.receipt = ""
        self.ended = False

    @property
    def timed(self) -> bool:
        return self.state == "waiting"


class Given(NamedTuple):
    """What a receipt was given out for: message, attempt, and which life of the group and of the engine."""

    place: int | None
    body: str
    attempt: int
    life: int
    run: int


class ModelGroup:
    """One group: what it is done with, what it holds, what it gave up."""

    def __init__(self, max_attempts: int) -> None:
        self.max_attempts = max_attempts
        self.done: set[int] = set()
        self.items: list[Held] = []
        self.dead: list[str] = []
        self.life = 0
        self.given: dict[str, Given] = {}
        self.acked: set[str] = set()

    def unseen(self, count: int) -> list[int]:
        """Of so many messages those that nobody has looked at."""
        held = {item.place for item in self.items}
        return [place for place in range(count) if place not in self.done and place not in held]

    def first_of(self, lane: str | None) -> Held | None:
        return next((item for item in self.items if lane is not None and item.lane == lane), None)

    def ready(self) -> list[Held]:
        """What may be leased: what is not leased, does not wait, and is not behind another of its lane."""
        return [
            item
            for item in self.items
            if item.state in ("ready", "parked") and (item.lane is None or self.first_of(item.lane) is item)
        ]

    def lease(self, item: Held, receipt: str, end_ms: int, run: int) -> None:
        item.attempt += 1
        item.state, item.receipt, item.end_ms = "held", receipt, end_ms
        self.given[receipt] = Given(item.place, item.body, item.attempt, self.life, run)

    def fail(self, item: Held, due_ms: int, *, ended: bool) -> None:
        item.state, item.end_ms, item.ended, item.receipt = "waiting", due_ms, ended, ""

    def pass_time(self, now_ms: int, monotonic_ms: int) -> None:
        """End leases and bring back what is due; what had its last attempt is dead."""
        for item in list(self.items):
            if item.state == "held" and item.end_ms <= monotonic_ms:
                if item.attempt >= self.max_attempts:
                    self.give_up(item)
                    continue
                ended_ms = item.end_ms + now_ms - monotonic_ms
                self.fail(item, ended_ms + backoff_ms(item.attempt), ended=False)
            if item.state == "waiting" and item.end_ms <= now_ms:
                item.state = "ready"
        while lost := [item for item in self.ready() if item.attempt >= self.max_attempts]:
            for item in lost:
                self.give_up(item)

    def give_up(self, item: Held) -> None:
        self.finish(item)
        self.dead.append(item.body)

    def finish(self, item: Held) -> None:
        """It is done, or dead."""
        self.items.remove(item)
        if item.place is not None:
            self.done.add(item.place)

    def crash(self) -> None:
        """Leases are lost, and with them what was only seen."""
        for item in list(self.items):
            if item.state == "held":
                item.attempt -= 1
                item.state = "ready" if item.attempt or item.place is None else "parked"
        self.stop()

    def stop(self) -> None:
        """What was parked is looked at again."""
        self.items = [item for item in self.items if item.state != "parked"]

    def good(  # noqa: PLR0911 - a case each
        self, receipt: str, run: int, count: int, messages, *, late: bool
    ) -> Held | None:
        """The item that a receipt is good for, which may become one by that."""
        given = self.given[receipt]
        if given.life != self.life:
            return None
        item = next(
            (item for item in self.items if (item.place, item.body) == (given.place, given.body)), None
        )
        if item is None:
            unseen = given.place is not None and given.place not in self.done and given.place < count
            if not unseen or given.run == run or given.attempt != 1:
                return None
            body, lane = messages[given.place]
            if body != given.body or self.first_of(lane) is not None:
                return None
            item = Held(given.place, body, lane)
            self.items.append(item)
            return self.adopt(item, receipt)
        if item.state == "held":
            return item if item.receipt == receipt else None
        if given.run != run and item in self.ready() and item.attempt + 1 == given.attempt:
            return self.adopt(item, receipt)
        if late and item.state in ("waiting", "ready") and not item.ended and item.attempt == given.attempt:
            return item
        return None

    def adopt(self, item: Held, receipt: str) -> Held:
        """A receipt of an earlier run shows who has it."""
        item.attempt += 1
        item.state, item.receipt, item.end_ms = "held", receipt, -1
        return item


def backoff_ms(attempt: int) -> int:
    return max(int(min(500 * 3.0 ** (attempt - 1), 40_000)), MINIMUM_MS)


class GroupModel(EngineMachine):
    """Every rule does the same to the engine and to the model, and compares what they say."""

    flush = "sync"

    @initialize()
    def start(self) -> None:
        self.messages: dict[str, list[tuple[str, str | None]]] = {"orders": [], "lanes": []}
        self.model = {place: ModelGroup(3) for place in GROUPS}
        self.receipts: list[tuple[tuple[str, str], str]] = []
        self.paused: set[str] = set()
        self.purged = {"orders": 0, "lanes": 0}
        self.count = 0
        self.runs = 0
        self.open()
        self.run(self.engine.topics.change("lanes", ordered=True))
        for place in GROUPS:
            self.run(self.engine.groups.put(*place, self.config(place)))

    def config(self, place) -> GroupConfig:
        return GroupConfig(
            backoff=BACKOFF, invisible_ms=INVISIBLE_MS, max_attempts=self.model[place].max_attempts
        )

    def open(self) -> None:
        self.open_engine(retention_ms=10**12, flush=self.flush)
        self.runs += 1
        for group in self.model.values():
            group.acked.clear()
        self.settle()

    def settle(self) -> None:
        self.run(settle(self.engine))
        for group in self.model.values():
            group.pass_time(self.clock.now_ms(), self.clock.monotonic_ms())

    # ------------------------------------------------------------------ consuming

    @rule(
        topic=st.sampled_from(("orders", "lanes")),
        keys=st.lists(st.sampled_from("aab-"), min_size=1, max_size=8),
    )
    def send(self, topic: str, keys: list[str]) -> None:
        sent = []
        for key in keys:
            self.count += 1
            lane = key if topic == "lanes" and key != "-" else None
            self.messages[topic].append((f"m{self.count}", lane))
            properties = {} if key == "-" else {"__SHARDINGKEY": key}
            sent.append(Outgoing(topic, f"m{self.count}".encode(), properties))
        self.run(self.engine.sender.send(sent))

    @rule(
        place=st.sampled_from(GROUPS),
        count=st.integers(1, 6),
        invisible_ms=st.one_of(st.none(), st.integers(1, 90_000)),
    )
    def receive(self, place, count: int, invisible_ms: int | None) -> None:
        self.receive_some(place, count, invisible_ms)

    def receive_some(self, place, count: int, invisible_ms: int | None = None) -> None:
        got = self.run(self.engine.groups.receive(*place, count_max=count, invisible_ms=invisible_ms))
        self.expect(place, got, count, invisible_ms or INVISIBLE_MS)

    def expect(self, place, got: list[Delivery], count: int, invisible_ms: int) -> None:
        """What came back first, in any order, then what is new, in its order; nothing of a paused topic."""
        if place[0] in self.paused:
            assert got == []
            return
        group, now_ms, monotonic_ms = self.model[place], self.clock.now_ms(), self.clock.monotonic_ms()
        back = {item.body: item for item in group.ready()}
        again = min(count, len(back))
        chosen = [back.pop(delivery.message.body.decode()) for delivery in got[:again]]
        messages = self.messages[place[0]]
        for at in group.unseen(len(messages)):
            if len(chosen) >= count:
                break
            item = Held(at, *messages[at])
            free = group.first_of(item.lane) is None
            group.items.append(item)
            if free:
                chosen.append(item)
        assert [d.message.body.decode() for d in got] == [item.body for item in chosen]
        for delivery, item in zip(got, chosen, strict=True):
            group.lease(item, delivery.receipt, monotonic_ms + invisible_ms, self.runs)
            assert delivery.attempt == item.attempt
            assert delivery.invisible_until_ms == now_ms + invisible_ms
            self.receipts.append((place, delivery.receipt))

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), how=st.sampled_from(("ack", "ack", "nack", "extend")), wait_ms=DURATIONS_MS)
    def settle_receipts(self, data: st.DataObject, how: str, wait_ms: int) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.receipts[-8:]), min_size=1, max_size=4))
        place = chosen[0][0]
        receipts = [receipt for where, receipt in chosen if where == place]
        strange = [receipt for where, receipt in chosen if where != place]
        groups = self.engine.groups
        found, expected = self.said_by(place, receipts, late=how == "ack")
        expected += ["illegal_receipt"] * len(strange)
        if how == "ack":
            results = self.run(groups.ack(*place, receipts + strange))
        elif how == "nack":
            delay_ms = wait_ms if wait_ms % 2 else None
            results = self.run(groups.nack(*place, receipts + strange, delay_ms))
        else:
            wait_ms = min(wait_ms, 40_000_000)
            results = self.run(groups.extend(*place, receipts + strange, wait_ms))
        self.check(results, expected)
        self.take_effects(place, found, how, wait_ms)
        self.settle()

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), count=st.integers(1, 4), fast=st.booleans())
    def acknowledge_and_receive(self, data: st.DataObject, count: int, fast: bool) -> None:
        """As one call does: first the one, then the other; on the fast path while the first is stored."""
        chosen = data.draw(st.lists(st.sampled_from(self.receipts[-8:]), min_size=1, max_size=4))
        place = chosen[0][0]
        receipts = [receipt for where, receipt in chosen if where == place]
        found, expected = self.said_by(place, receipts, late=True)
        # Of a key, the next message follows what is stored: the fast path looks a second time for it.
        results, got = self.run(self.exchange(place, receipts, count, fast=fast and place[0] == "orders"))
        self.check(results, expected)
        self.take_effects(place, found, "ack", 0)
        self.expect(place, got, count, INVISIBLE_MS)
        self.settle()

    async def exchange(
        self, place, receipts: Sequence[str], count: int, *, fast: bool
    ) -> tuple[list[ReceiptResult], list[Delivery]]:
        groups = self.engine.groups
        ending = groups.begin_ack(*place, receipts) if fast else None
        if ending is None:
            results = await groups.ack(*place, receipts)
            return results, await groups.receive(*place, count_max=count)
        got = await groups.receive(*place, count_max=count)
        return await ending.results(), got

    def said_by(
        self, place, receipts: Sequence[str], *, late: bool
    ) -> tuple[dict[str, Held | None], list[str | None]]:
        """What each receipt is good for, and the codes to expect."""
        group, messages = self.model[place], self.messages[place[0]]
        found = {
            receipt: group.good(receipt, self.runs, len(messages), messages, late=late)
            for receipt in receipts
        }
        is_good = (found[one] is not None or (late and one in group.acked) for one in receipts)
        return found, [None if good else "receipt_ended" for good in is_good]

    def check(self, results: Sequence[ReceiptResult], expected: Sequence[str | None]) -> None:
        assert [result.code for result in results] == expected
        assert [result.ok for result in results] == [code is None for code in expected]

    def take_effects(self, place, found: dict[str, Held | None], how: str, wait_ms: int) -> None:
        group = self.model[place]
        for receipt, item in found.items():
            if item is not None:
                if how == "ack":
                    group.acked.add(receipt)
                if item in group.items:
                    self.take_effect(group, item, how, wait_ms)

    def take_effect(self, group: ModelGroup, item: Held, how: str, wait_ms: int) -> None:
        now_ms = self.clock.now_ms()
        if how == "ack":
            group.finish(item)
        elif how == "extend":
            item.end_ms = self.clock.monotonic_ms() + wait_ms
        elif item.attempt >= group.max_attempts:
            group.give_up(item)
        else:
            delay_ms = max(wait_ms, MINIMUM_MS) if wait_ms % 2 else backoff_ms(item.attempt)
            group.fail(item, now_ms + delay_ms, ended=True)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), digit=st.integers(0, 67), other=st.sampled_from("0123456789abcdef"))
    def forge(self, data: st.DataObject, digit: int, other: str) -> None:
        place, receipt = data.draw(st.sampled_from(self.receipts))
        forged = receipt[:digit] + other + receipt[digit + 1 :]
        if forged == receipt:
            return
        for call in (self.engine.groups.ack, self.engine.groups.nack):
            assert [r.code for r in self.run(call(*place, [forged]))] == ["illegal_receipt"]

    # ------------------------------------------------------------------ the groups

    @rule(place=st.sampled_from(GROUPS), max_attempts=st.integers(1, 5))
    def change_config(self, place, max_attempts: int) -> None:
        self.model[place].max_attempts = max_attempts
        self.run(self.engine.groups.put(*place, self.config(place)))
        self.settle()

    @rule(topic=st.sampled_from(("orders", "lanes")))
    def pause_or_resume(self, topic: str) -> None:
        if topic in self.paused:
            self.run(self.engine.topics.resume(topic))
        else:
            self.run(self.engine.topics.pause(topic))
        self.paused ^= {topic}
        self.settle()

    @rule(topic=st.sampled_from(("orders", "lanes")))
    def purge(self, topic: str) -> None:
        if not self.messages[topic]:
            return
        end = self.purged[topic] = len(self.messages[topic])
        left = {
            place[1]: len(group.unseen(end)) + len(group.items)
            for place, group in self.model.items()
            if place[0] == topic
        }
        done = self.run(self.engine.topic_purges.purge(topic, scheduled=True, delivered=True))
        assert {one.group: one.dropped for one in done.groups} == left
        for place, group in self.model.items():
            if place[0] == topic:
                group.items.clear()
                group.done = set(range(end))
        self.settle()

    @rule(place=st.sampled_from(GROUPS), data=st.data())
    def rewind(self, place, data: st.DataObject) -> None:
        group = self.model[place]
        offset = data.draw(st.integers(0, len(self.messages[place[0]])))
        self.run(self.engine.groups.rewind(*place, offsets={0: offset}))
        group.done = set(range(max(offset, self.purged[place[0]])))
        group.items.clear()
        group.life += 1
        self.settle()

    @rule(place=st.sampled_from(GROUPS), start=st.sampled_from(("head", "tail")))
    def delete_and_make_anew(self, place, start: str) -> None:
        before = self.model[place]
        group = self.model[place] = ModelGroup(3)
        group.dead, group.given, group.life = before.dead, before.given, before.life + 1
        group.acked = before.acked
        end = len(self.messages[place[0]]) if start == "tail" else self.purged[place[0]]
        group.done = set(range(end))
        self.run(self.engine.groups.delete(*place))
        assert self.engine.core.state.leases == sum(i.timed for g in self.model.values() for i in g.items)
        config = GroupConfig(backoff=BACKOFF, invisible_ms=INVISIBLE_MS, max_attempts=3, start=start)
        self.run(self.engine.groups.put(*place, config))
        self.settle()

    @precondition(lambda self: any(group.dead for group in self.model.values()))
    @rule(data=st.data(), every=st.booleans(), drop=st.booleans())
    def deal_with_dead(self, data: st.DataObject, every: bool, drop: bool) -> None:
        place = data.draw(st.sampled_from([p for p in GROUPS if self.model[p].dead]))
        group, office = self.model[place], self.engine.groups.dead
        letters = self.run(office.page(place[1])).letters
        if not every:
            letters = data.draw(st.lists(st.sampled_from(letters), min_size=1, max_size=3))
        offsets = None if every else [letter.offset for letter in letters]
        bodies = {letter.offset: letter.message.body.decode() for letter in letters}
        if drop:
            assert self.run(office.drop(place[1], offsets)) == len(bodies)
        else:
            assert self.run(office.redrive(place[1], offsets)) == (len(bodies), 0)
        for body in bodies.values():
            group.dead.remove(body)
            if not drop:
                item = Held(None, body, None)
                item.state, item.end_ms, item.ended = "waiting", self.clock.now_ms(), True
                group.items.append(item)
        self.settle()

    # ------------------------------------------------------------------ time, crashes, no space

    @rule(duration_ms=DURATIONS_MS)
    def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.settle()

    @precondition(lambda self: self.next_ms() is not None)
    @rule(short_ms=st.sampled_from((0, 0, 0, 1)))
    def advance_to_the_next(self, short_ms: int) -> None:
        """To the millisecond at which one comes back, or to the one before."""
        self.clock.advance(max(self.next_ms() - self.clock.now_ms() - short_ms, 0))
        self.settle()

    def next_ms(self) -> int | None:
        ahead_ms = self.clock.now_ms() - self.clock.monotonic_ms()
        items = [item for group in self.model.values() for item in group.items]
        ends = [item.end_ms + ahead_ms for item in items if item.state == "held"]
        return min(ends + [item.end_ms for item in items if item.state == "waiting"], default=None)

    @rule(by_ms=STEPS_MS)
    def step_the_wall_clock(self, by_ms: int) -> None:
        self.clock.step(by_ms)
        self.run(self.engine.watch_once())
        self.settle()

    @rule(seed=st.integers(0, 1 << 30), index=st.sampled_from(("kept", "older", "lost")), down_ms=DOWN_MS)
    def crash_and_reopen(self, seed: int, index: str, down_ms: int) -> None:
        if self.flush == "async":
            self.engine.core.log.sync()
        self.crash(seed, index)
        self.clock.advance(down_ms)
        for group in self.model.values():
            group.crash()
        self.open()

    @rule(down_ms=DOWN_MS, by_ms=st.one_of(st.just(0), STEPS_MS))
    def stop_and_start(self, down_ms: int, by_ms: int) -> None:
        """Leases are noted by the wall clock, which may be stepped while the service is down."""
        self.run(self.engine.close())
        self.clock.advance(down_ms)
        self.clock.step(by_ms)
        for group in self.model.values():
            group.stop()
            for item in group.items:
                if item.state == "held":
                    end_ms_max = self.clock.monotonic_ms() + INVISIBLE_MS_MAX
                    item.end_ms = min(item.end_ms - by_ms, end_ms_max)
        self.open()

    @rule(place=st.sampled_from(GROUPS))
    def no_space(self, place) -> None:
        group = self.model[place]
        space, self.files.space_bytes = self.files.space_bytes, 0
        held = [item for item in group.items if item.state == "held"]
        if held:
            for call in (self.engine.groups.ack, self.engine.groups.nack):
                with pytest.raises(NoSpaceError):
                    self.run(call(*place, [held[0].receipt]))
        self.receive_some(place, 1)  # stores nothing
        with pytest.raises(NoSpaceError):
            self.run(self.engine.groups.rewind(*place, to="head"))
        self.files.space_bytes = space
        self.settle()
        self.receive_some(place, 2)

    @rule(duration_ms=DURATIONS_MS)
    def advance_without_space(self, duration_ms: int) -> None:
        space, self.files.space_bytes = self.files.space_bytes, 0
        self.clock.advance(duration_ms)
        self.run(self.spin())
        self.files.space_bytes = space
        for _ in range(3):  # what waits for space tries again each second
            self.clock.advance(1_000)
            self.run(self.spin())
        self.settle()

    async def spin(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def the_group_is_what_the_model_says(self) -> None:
        check_groups(self.engine)
        for place, group in self.model.items():
            info = self.engine.groups.info(*place)
            assert info.paused == self.engine.topics.paused(place[0]) == (place[0] in self.paused)
            unseen = group.unseen(len(self.messages[place[0]]))
            assert info.lag == len(unseen)
            assert info.queues[0].cursor == min(unseen, default=len(self.messages[place[0]]))
            states = [item.state for item in group.items]
            assert info.in_flight == states.count("held")
            assert info.waiting == states.count("waiting")
            assert info.ready == states.count("ready")
            assert info.parked == states.count("parked")
            letters = self.run(self.engine.groups.dead.page(place[1], limit=10_000)).letters
            assert sorted(letter.message.body.decode() for letter in letters) == sorted(group.dead)
            assert info.dead_letters == len(group.dead)
            assert [letter.origin_topic for letter in letters] == [place[0]] * len(letters)


GroupModel.TestCase.settings = thorough(100)


class TestGroupsAgreeWithTheModel(GroupModel.TestCase):
    """Hypothesis drives it."""


class AsyncGroupModel(GroupModel):
    """The same with `flush=async`, where a power cut takes what was not synced."""

    flush = "async"

    @rule(
        place=st.sampled_from(GROUPS),
        keys=st.lists(st.sampled_from("aab-"), min_size=1, max_size=4),
        count=st.integers(1, 4),
        acked=st.integers(0, 4),
        after=st.lists(st.sampled_from("aab-"), max_size=4),
    )
    def lose_what_was_not_synced(self, place, keys, count: int, acked: int, after) -> None:
        """Send, receive, acknowledge, then cut the power; other messages get the places of the lost ones."""
        log = self.engine.core.log
        log.sync()
        before = copy.deepcopy((self.messages, self.model))
        synced = log.synced
        self.send(place[0], keys)
        self.receive_some(place, count)
        mine = [receipt for where, receipt in self.receipts if where == place][-count:]
        if acked and mine:
            found, expected = self.said_by(place, mine[:acked], late=True)
            self.check(self.run(self.engine.groups.ack(*place, mine[:acked])), expected)
            self.take_effects(place, found, "ack", 0)
        if log.synced != synced:
            self.settle()  # a segment was sealed, or the index was written: nothing is lost
            return
        given = {place: group.given for place, group in self.model.items()}
        self.run(self.engine.abandon())
        self.files.forget_unsynced()
        self.messages, self.model = before
        for where, group in self.model.items():
            group.given |= given[where]
            group.crash()
        self.open()
        if after:
            self.send(place[0], after)


AsyncGroupModel.TestCase.settings = thorough(50)


class TestGroupsAgreeWithTheModelAfterPowerCuts(AsyncGroupModel.TestCase):
    """Hypothesis drives it."""
