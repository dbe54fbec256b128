"""The set of queue offsets against Python's own set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.state.offset_set import OffsetSet

OFFSET_MAX = 40  # so low that stretches meet, touch and swallow each other
stretches = st.lists(
    st.tuples(st.integers(0, OFFSET_MAX - 1), st.integers(1, 8)).map(lambda one: (one[0], sum(one)))
)


def both(added: list[tuple[int, int]]) -> tuple[OffsetSet, set[int]]:
    """The stretches as an OffsetSet and as a set, checked after each."""
    found, plain = OffsetSet(), set()
    for first, end in added:
        found.add(first, end)
        plain.update(range(first, end))
        check_edges(found)
    return found, plain


def check_edges(found: OffsetSet) -> None:
    assert len(found.edges) % 2 == 0
    assert found.edges == sorted(set(found.edges)), "stretches that touch, or out of order"


@given(stretches)
def test_it_holds_what_was_added_and_nothing_else(added):
    found, plain = both(added)
    offsets = range(OFFSET_MAX + 10)
    assert {offset for offset in offsets if offset in found} == plain
    assert {at for first, end in found.stretches() for at in range(first, end)} == plain


@given(stretches)
def test_its_marks_and_counts_are_those_of_the_offsets_that_it_holds(added):
    found, plain = both(added)
    assert found.low == next(at for at in range(OFFSET_MAX + 20) if at not in plain)
    assert found.end == max(plain, default=-1) + 1
    for offset in range(OFFSET_MAX + 10):
        assert found.next_gap(offset) == next(at for at in range(offset, OFFSET_MAX + 20) if at not in plain)
        assert found.count(offset) == sum(at >= offset for at in plain)


@given(stretches, st.sets(st.integers(0, OFFSET_MAX + 10)))
def test_it_is_left_without_the_offsets_that_are_taken_out(added, taken):
    found, plain = both(added)
    left = found.without(sorted(taken))
    check_edges(left)
    assert {offset for offset in range(OFFSET_MAX + 20) if offset in left} == plain - taken


@given(stretches, st.randoms(use_true_random=False))
def test_the_order_in_which_stretches_are_added_does_not_matter(added, dice):
    mixed = list(added)
    dice.shuffle(mixed)
    assert both(added)[0] == both(mixed)[0]
    assert both(added)[0] == both(added + mixed)[0]


@given(stretches)
def test_what_is_packed_is_unpacked(added):
    found, _ = both(added)
    packed = found.pack()
    again = OffsetSet.unpack(packed)
    assert again == found
    assert isinstance(packed, int) == (list(found.stretches()) in ([], [(0, found.low)]))
    again.add(50, 60)
    assert 50 not in found, "a set that shares its edges with what it was packed to"


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        ([], (3, 5), [3, 5]),
        ([3, 5], (5, 7), [3, 7]),
        ([3, 5], (1, 3), [1, 5]),
        ([3, 5], (6, 7), [3, 5, 6, 7]),
        ([3, 5], (1, 2), [1, 2, 3, 5]),
        ([3, 5, 7, 9], (5, 7), [3, 9]),
        ([3, 5, 7, 9], (4, 8), [3, 9]),
        ([3, 5, 7, 9], (0, 20), [0, 20]),
        ([3, 9], (4, 6), [3, 9]),
        ([0, 4], (0, 9), [0, 9]),
    ],
)
def test_stretches_that_meet_become_one(before, added, after):
    found = OffsetSet(before)
    found.add(*added)
    assert found.edges == after


def test_a_low_water_mark_is_packed_as_its_number():
    assert OffsetSet().pack() == 0
    assert OffsetSet((0, 7)).pack() == 7
    assert OffsetSet((1, 7)).pack() == [1, 7]
    assert OffsetSet.unpack(0) == OffsetSet()
    assert OffsetSet.unpack(7) == OffsetSet((0, 7))


def test_it_is_equal_only_to_a_set_of_the_same_offsets_and_is_no_key():
    assert OffsetSet((0, 7)) != OffsetSet((0, 8))
    assert OffsetSet((0, 7)) != [0, 7]
    assert repr(OffsetSet((0, 7))) == "OffsetSet([0, 7])"
    with pytest.raises(TypeError):
        hash(OffsetSet())
