"""The lanes of a group against plain lists: of each key one message is in work, the others are parked."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from timerwheel.groups.choosing import Lanes

LANES = st.integers(1, 4)


class LanesModel(RuleBasedStateMachine):
    """`queues` has the messages of each lane in order, `working` those that are in work."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes()
        self.queues: dict[int, list[int]] = {}
        self.working: set[int] = set()
        self.number = 0

    @rule(lane=LANES, behind=st.booleans())
    def join(self, lane: int, behind: bool) -> None:
        self.number += 1
        queue = self.queues.setdefault(lane, [])
        first = not queue and not behind
        assert self.lanes.join(lane, self.number, behind=behind) == first
        queue.append(self.number)
        if first:
            self.working.add(self.number)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        [lane] = [lane for lane, queue in self.queues.items() if key in queue]
        self.working.discard(key)
        self.queues[lane].remove(key)
        self.expect_next(lane, self.lanes.done(lane, key))

    @rule(lane=LANES)
    def a_message_that_another_had_in_work_is_done(self, lane: int) -> None:
        """As an item of an old log, behind which the messages of its lane were parked."""
        if not set(self.queues.get(lane, ())) & self.working:
            self.expect_next(lane, self.lanes.done(lane, -1))

    def expect_next(self, lane: int, following: int | None) -> None:
        queue = self.queues.get(lane, [])
        assert following == (queue[0] if queue else None)
        if queue:
            self.working.add(queue[0])
        else:
            self.queues.pop(lane, None)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def what_was_done_before_lets_nothing_pass(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        [lane] = [lane for lane, queue in self.queues.items() if key in queue]
        assert self.lanes.done(lane, -1) is None

    @rule()
    def clear(self) -> None:
        self.lanes.clear()
        self.queues.clear()
        self.working.clear()

    @invariant()
    def they_are_what_the_model_says(self) -> None:
        assert self.lanes.parked == sum(map(len, self.queues.values())) - len(self.working)
        assert [lane in self.lanes for lane in range(6)] == [lane in self.queues for lane in range(6)]


LanesModel.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


class TestLanesAgreeWithTheModel(LanesModel.TestCase):
    """Hypothesis drives it."""


def test_the_messages_of_a_key_follow_one_another_in_their_order():
    lanes = Lanes()
    assert [lanes.join(1, key) for key in (10, 11, 12)] == [True, False, False]
    assert lanes.join(2, 20)
    assert lanes.done(1, 10) == 11
    assert lanes.done(1, 10) is None  # it was done before
    assert lanes.done(1, 11) == 12
    assert lanes.done(1, 12) is None
    assert 1 not in lanes
    assert 2 in lanes
