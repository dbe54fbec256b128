"""What the outlet remembers of its transactions until committed readers have passed them."""

from timerwheel.kafka.hanging import FIRSTS_MAX, GRACE_MS, GRACE_MS_MAX, Grace, Place, unpassed

PLACE, OTHER = Place("orders", 0), Place("orders", 1)


def test_all_first_offsets_behind_an_open_transaction_of_others_are_remembered() -> None:
    """Committed readers stop at any of them, once the other transaction has ended, if that one hangs."""
    blocked = unpassed({PLACE: 6}, {})
    blocked = unpassed({PLACE: 10, OTHER: 3}, blocked)
    assert blocked == {PLACE: (6, 10), OTHER: (3,)}
    assert unpassed({OTHER: 5}, blocked)[PLACE] == (6, 10)


def test_behind_a_transaction_that_stays_open_only_the_last_ones_are_remembered() -> None:
    blocked = unpassed({}, {})
    for first in range(3 * FIRSTS_MAX):
        blocked = unpassed({PLACE: first}, blocked)
    assert blocked == {PLACE: tuple(range(2 * FIRSTS_MAX, 3 * FIRSTS_MAX))}


def test_those_of_a_topic_that_was_made_again_are_forgotten() -> None:
    assert unpassed({PLACE: 2}, {PLACE: (1_000,)}) == {PLACE: (2,)}


def test_brokers_that_are_slow_get_longer_until_something_hangs() -> None:
    grace = Grace()
    assert grace.ms == GRACE_MS
    grace.over()
    assert grace.ms == 2 * GRACE_MS
    for _ in range(20):
        grace.over()
    assert grace.ms == GRACE_MS_MAX
    grace.hung()
    assert grace.ms == GRACE_MS
