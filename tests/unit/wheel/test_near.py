import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from timerwheel.wheel.near import GONE_AT_ONCE, NearWheel
from timerwheel.wheel.slot_table import ENTRY_DTYPE

UNTIL_MS = 1000
DUES = st.integers(0, UNTIL_MS - 1) | st.integers(400, 404)


def entries(timers: list[tuple[int, int, int]]) -> np.ndarray:
    """Entries of (due, root, offset)."""
    found = np.zeros(len(timers), ENTRY_DTYPE)
    for place, (due_ms, root, offset) in enumerate(timers):
        found[place]["due_ms"], found[place]["root"], found[place]["offset"] = due_ms, root, offset
        found[place]["size"] = offset % 1000
        found[place]["topic"] = topic_of(offset)
    return found


def topic_of(offset: int) -> int:
    return offset // 8 % 3


def key(timer: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """What the near wheel is asked about it by."""
    due_ms, root, offset = timer
    return offset, due_ms, root, topic_of(offset)


def by_topic(timers: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int, int]]]:
    found: dict[int, list[tuple[int, int, int]]] = {}
    for timer in timers:
        found.setdefault(topic_of(timer[2]), []).append(timer)
    return found


def timers_of(found: np.ndarray) -> list[tuple[int, int, int]]:
    assert (found["size"] == found["offset"] % 1000).all()
    return list(zip(found["due_ms"].tolist(), found["root"].tolist(), found["offset"].tolist(), strict=True))


class NearWheelAgainstSortedSet(RuleBasedStateMachine):
    """A near wheel does what a sorted set of (due, root, offset) does."""

    def __init__(self):
        super().__init__()
        self.near = NearWheel()
        self.near.until_ms = UNTIL_MS
        self.model: set[tuple[int, int, int]] = set()
        self.popped: list[tuple[int, int, int]] = []
        self.count = 0

    def new(self, dues: list[int], roots: list[int]) -> list[tuple[int, int, int]]:
        found = []
        for due_ms, root in zip(dues, roots, strict=True):
            self.count += 1
            found.append((due_ms, root * 10_000 + self.count, (1 << 40) + self.count * 8))
        self.model |= set(found)
        return found

    @rule(data=st.data(), count=st.sampled_from([1, 2, 5, 32, 33, 60]))
    def add(self, data, count):
        dues = data.draw(st.lists(DUES, min_size=count, max_size=count))
        roots = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        self.near.add(entries(self.new(dues, roots)))

    @rule(dues=st.lists(DUES, max_size=20))
    def add_run(self, dues):
        self.near.add_run(entries(sorted(self.new(dues, [0] * len(dues)))))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        timer = data.draw(st.sampled_from(sorted(self.model)))
        assert self.near.remove(*key(timer))
        self.model.discard(timer)
        assert not self.near.contains(*key(timer))
        assert not self.near.remove(*key(timer))

    @rule(due_ms=DUES)
    def remove_what_was_never_there(self, due_ms):
        assert not self.near.remove(8, due_ms, 8, topic_of(8))

    @precondition(lambda self: self.popped)
    @rule(data=st.data())
    def remove_what_was_taken_out(self, data):
        timer = data.draw(st.sampled_from(self.popped))
        assert self.near.remove(*key(timer)) == (timer in self.model)
        self.model.discard(timer)

    @rule(now_ms=DUES | st.just(-1), count_max=st.sampled_from([1, 2, 7, 40, 1000]))
    def pop(self, now_ms, count_max):
        some_are_gone = bool(self.near.gone)
        found = timers_of(self.near.pop_due(now_ms, count_max))
        due = sorted(timer for timer in self.model if timer[0] <= now_ms)
        waiting, came = by_topic(due), by_topic(found)
        for topic, timers in came.items():
            assert timers == waiting[topic][: len(timers)], "a topic's timers come out in order"
        assert len(found) <= count_max
        if not some_are_gone:
            assert len(found) == min(count_max, len(due))
            for topic, timers in waiting.items():
                share = min(len(timers), count_max // len(waiting))
                assert len(came.get(topic, [])) >= share, "each topic gets its share"
        self.model -= set(found)
        self.popped += found

    @rule(now_ms=DUES, count_max=st.sampled_from([1, 3, 100]))
    def drain(self, now_ms, count_max):
        due = sorted(timer for timer in self.model if timer[0] <= now_ms)
        found = []
        while (next_ms := self.near.next_due_ms()) is not None and next_ms <= now_ms:
            before = self.near.next_due_ms(), len(self.near)
            taken = timers_of(self.near.pop_due(now_ms, count_max))
            found += taken
            assert taken or before[0] is not None
        assert by_topic(found) == by_topic(due)
        self.model -= set(found)
        self.popped += found

    @precondition(lambda self: self.popped)
    @rule(data=st.data())
    def give_back(self, data):
        """As after a write that found no space."""
        chosen = set(data.draw(st.lists(st.sampled_from(self.popped), max_size=40))) - self.model
        self.near.add(entries(sorted(chosen)))
        self.model |= chosen
        self.popped = [timer for timer in self.popped if timer not in chosen]

    @invariant()
    def length_and_next_agree(self):
        assert len(self.near) == len(self.model)
        if self.model:
            next_ms = self.near.next_due_ms()
            assert next_ms is not None
            assert next_ms <= min(self.model)[0]

    @invariant()
    def what_is_there_is_contained(self):
        for timer in sorted(self.model)[:5]:
            assert self.near.contains(*key(timer))
            assert not self.near.contains(timer[2] + 4, *key(timer)[1:])


TestNearWheelAgainstSortedSet = NearWheelAgainstSortedSet.TestCase
TestNearWheelAgainstSortedSet.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def near_with(*timers: tuple[int, int, int]) -> NearWheel:
    near = NearWheel()
    near.until_ms = UNTIL_MS
    near.add(entries(list(timers)))
    return near


def test_timer_due_now_comes_out_and_one_a_millisecond_later_does_not():
    near = near_with((500, 8, 8), (501, 16, 16))
    assert timers_of(near.pop_due(499, 10)) == []
    assert timers_of(near.pop_due(500, 10)) == [(500, 8, 8)]
    assert near.next_due_ms() == 501


@pytest.mark.parametrize("many", [1, 40])
def test_same_due_time_comes_out_in_the_order_of_the_roots(many):
    near = near_with(*[(500, 8 * number, 8000 - 8 * number) for number in range(many, 0, -1)])
    near.add(entries([(500, 4, 9000), (500, 9999, 9008)]))
    roots = near.pop_due(500, 1000)["root"].tolist()
    assert roots == sorted(roots)
    assert len(roots) == many + 2


def test_moved_timer_keeps_its_place_among_equal_due_times():
    """A moved or rescheduled timer has a late offset and an early root: the root decides."""
    near = near_with((500, 16, 16), (500, 24, 24))
    near.add_run(entries([(500, 8, 9000)]))
    assert near.pop_due(500, 10)["root"].tolist() == [8, 16, 24]


def test_timer_removed_and_stored_again_comes_out_once_with_its_new_time():
    near = near_with((500, 8, 8))
    assert near.remove(*key((500, 8, 8)))
    near.add(entries([(300, 8, 64)]))
    assert timers_of(near.pop_due(999, 10)) == [(300, 8, 64)]
    assert len(near) == 0


def test_empty_wheel_has_nothing_due():
    near = NearWheel()
    near.add(entries([]))
    near.add_run(entries([]))
    assert (len(near), near.next_due_ms(), len(near.pop_due(10**15, 5))) == (0, None, 0)


@given(st.integers(UNTIL_MS, 10**15))
def test_timer_due_after_the_loaded_range_is_not_here(due_ms):
    assert not near_with((5, 8, 8)).contains(8, due_ms, 8, topic_of(8))


def test_a_topic_with_many_due_does_not_hold_up_another():
    many = [(500, 8 * number, 24 * number) for number in range(1, 10_001)]
    near = near_with(*many, (501, 8, 8), (502, 8, 16))
    first = timers_of(near.pop_due(502, 100))
    assert len(first) == 100
    assert {(501, 8, 8), (502, 8, 16)} <= set(first)
    assert [timer for timer in first if timer in set(many)] == many[:98]


def test_no_topic_gets_more_than_its_share_while_others_wait():
    timers = [(500, number, 8 * number) for number in range(1, 301)]
    near = near_with(*timers)
    counts = {topic: len(found) for topic, found in by_topic(timers_of(near.pop_due(500, 90))).items()}
    assert counts == {0: 30, 1: 30, 2: 30}


def test_a_batch_ends_before_its_records_have_too_many_bytes():
    timers = [(500, number, 8 * 3 * number) for number in range(1, 40)]
    near = near_with(*timers)
    sizes = [offset % 1000 for _, _, offset in timers]
    taken = []
    while found := timers_of(near.pop_due(500, 1000, 2_000)):
        size = sum(offset % 1000 for _, _, offset in found)
        assert size <= 2_000
        assert size + max(sizes) > 2_000 or len(taken) + len(found) == len(timers)
        taken += found
    assert taken == timers


def test_a_record_larger_than_a_batch_still_comes_out():
    near = near_with((500, 1, 240), (500, 2, 480))
    assert timers_of(near.pop_due(500, 10, 5)) == [(500, 1, 240)]
    assert timers_of(near.pop_due(500, 10, 5)) == [(500, 2, 480)]


def test_what_was_given_back_comes_before_what_waits_behind_it():
    timers = [(500, number, 8 * 3 * number) for number in range(1, 301)]
    near = near_with(*timers)
    first = near.pop_due(500, 100)
    near.add(first)
    assert timers_of(near.pop_due(500, 100)) == timers[:100]
    assert timers_of(near.pop_due(500, 1000)) == timers[100:]


@pytest.mark.parametrize("is_met", [True, False])
def test_a_timer_that_is_put_back_is_there_once(is_met):
    """Whether or not its turn came while it was out."""
    near = near_with((500, 1, 8), (600, 2, 16))
    assert near.remove(*key((500, 8, 8)))
    if is_met:
        assert timers_of(near.pop_due(500, 10)) == []
    near.put_back(entries([(500, 1, 8)]))
    assert len(near) == 2
    assert timers_of(near.pop_due(700, 10)) == [(500, 1, 8), (600, 2, 16)]
    assert len(near) == 0


def test_clock_that_steps_back_puts_off_what_was_overdue():
    near = near_with(*[(500 + number % 2, number, 8 * number) for number in range(1, 201)])
    assert len(near.pop_due(501, 10)) == 10
    assert len(near.pop_due(499, 1000)) == 0
    assert set(near.pop_due(500, 1000)["due_ms"].tolist()) == {500}
    assert near.next_due_ms() == 501
    assert set(near.pop_due(501, 1000)["due_ms"].tolist()) == {501}
    assert len(near) == 0


def test_many_small_sends_leave_few_runs():
    near = NearWheel()
    near.until_ms = 10**6
    for at in range(1_000):
        near.add(entries([(at * 40 + one, at, 8 * (at * 40 + one)) for one in range(40)]))
    assert len(near.runs) <= 16
    assert len(near.pop_due(10**6, 10**6)) == 40_000


def test_a_topic_that_came_in_pieces_gets_its_share_too():
    near = NearWheel()
    near.until_ms = UNTIL_MS
    for number in range(1, 41):
        near.add(entries([(500 + number, number, 8 * (3 * number))]))  # one at a time, each due later
        near.pop_due(500 + number, 0)
    near.add(entries([(600, 1_000 + number, 8 * (3 * number + 1)) for number in range(100, 200)]))
    counts = {topic: len(found) for topic, found in by_topic(timers_of(near.pop_due(700, 60))).items()}
    assert counts == {0: 30, 1: 30}


@pytest.mark.parametrize("batch", [3, 1000], ids=["some overdue", "none overdue"])
def test_what_is_due_in_one_millisecond_is_known_by_topic_wherever_it_waits(batch):
    """In runs, in the heap and among the overdue: against a plain set of what has not been taken."""
    dice = random.Random(8)
    for _ in range(60):
        near = NearWheel()
        near.until_ms = 1_000
        held: set[tuple[int, int, int]] = set()
        for number in range(dice.randint(1, 6)):
            part = np.zeros(dice.choice((1, 5, 40, 90)), ENTRY_DTYPE)
            part["due_ms"] = [dice.randint(0, 12) for _ in part]
            part["topic"] = [dice.randint(0, 2) for _ in part]
            part["root"] = part["offset"] = np.arange(len(part)) * 8 + number * 1_000
            near.add(part)
            held |= set(zip(*(part[name].tolist() for name in ("topic", "due_ms", "root")), strict=True))
        for now_ms in range(0, 13, 3):
            taken = near.pop_due(now_ms, batch)
            held -= set(zip(*(taken[name].tolist() for name in ("topic", "due_ms", "root")), strict=True))
            for topic in range(4):
                for due_ms in range(14):
                    expected = any((topic, due_ms) == one[:2] for one in held)
                    assert near.has_due(topic, due_ms) == expected


def crowd(count: int) -> np.ndarray:
    """This many timers of one topic at 500 ms."""
    found = np.zeros(count, ENTRY_DTYPE)
    found["due_ms"] = 500
    found["offset"] = found["root"] = 24 * np.arange(1, count + 1)
    found["size"] = found["offset"] % 1000
    return found


class Unwalked(set[int]):
    """A set that nobody goes through."""

    def __iter__(self):
        raise AssertionError("it may be large")


def test_a_crowd_that_is_gone_is_passed_over_in_few_calls_however_small_the_batches_are():
    near = near_with()
    near.add_run(crowd(3 * GONE_AT_ONCE))
    for offset in (24 * np.arange(1, 3 * GONE_AT_ONCE)).tolist():
        near.gone.add(offset)
    calls = 0
    found = []
    while near.next_due_ms() is not None:
        found += timers_of(near.pop_due(500, 64))
        calls += 1
    assert [root for _, root, _ in found] == [24 * 3 * GONE_AT_ONCE]
    assert calls <= 4
    assert not near.gone


@pytest.mark.parametrize("batch", [64, 1_000], ids=["some overdue", "none overdue"])
def test_a_batch_costs_no_look_at_all_that_is_gone(batch):
    near = near_with()
    near.add_run(crowd(1_000))
    near.gone = Unwalked({24, 48, *range(10**6, 10**6 + 50)})
    assert near.pop_due(500, batch)["root"].tolist() == [24 * number for number in range(3, batch + 1)]
    assert len(near.gone) == 50


class Watched(np.ndarray):
    """An array that counts what is compared of it one by one."""

    compared = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        Watched.compared += max(np.size(one) for one in inputs)
        plain = [np.asarray(one) if isinstance(one, Watched) else one for one in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)


@pytest.mark.parametrize("are_overdue", [False, True], ids=["in a run", "overdue"])
def test_a_timer_is_found_in_a_crowd_without_a_look_at_the_others(are_overdue):
    timers = crowd(100_000)
    near = near_with()
    near.add_run(timers.view(Watched))
    if are_overdue:
        near.pop_due(500, 0)
        assert near.overdue == 100_000
    Watched.compared = 0
    for timer in timers_of(timers[::1_000]):
        assert near.contains(*key(timer))
        assert near.remove(*key(timer))
    assert Watched.compared <= 200


@pytest.mark.parametrize("are_overdue", [False, True], ids=["in runs", "overdue"])
def test_each_timer_of_a_crowd_is_found_and_no_other(are_overdue):
    """Several may have one root: of a message that was moved, or whose leases have timers."""
    dice = random.Random(3)
    timers = [(500 + number % 2, 8 * (number // 5), 8 * number) for number in range(3_000)]
    near = near_with()
    for part in range(0, 3_000, 700):
        near.add(entries(dice.sample(timers[part : part + 700], len(timers[part : part + 700]))))
    held = set(timers)
    if are_overdue:
        held -= set(timers_of(near.pop_due(500, 0)))
        held -= set(timers_of(near.pop_due(501, 100)))
    for due_ms, root, offset in timers:
        assert near.contains(*key((due_ms, root, offset))) == ((due_ms, root, offset) in held)
        assert not near.contains(*key((due_ms ^ 1, root, offset)))


def test_a_timer_is_found_among_many_pieces_of_its_topic():
    """They came due one after the other, faster than they fire."""
    timers = [(500 + number // 3, 24 * number, 24 * number) for number in range(1, 61)]
    near = near_with()
    for at in range(0, 60, 2):
        near.add(entries(timers[at : at + 2]))
        near.pop_due(600, 0)
    held = set(timers) - set(timers_of(near.pop_due(600, 7)))
    for timer in timers:
        assert near.contains(*key(timer)) == (timer in held)
        assert near.has_due(topic_of(timer[2]), timer[0]) == any(one[0] == timer[0] for one in held)
    assert not near.contains(8, 700, 8, 0)
    assert not near.has_due(0, 700)
