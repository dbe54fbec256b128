"""The leases of a group against a plain dictionary of when each ends."""

import tracemalloc

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from timerwheel.groups.leases import Lease, Leases
from timerwheel.groups.receipts import Receipts
from timerwheel.state.groups import OFFSET_BITS

KEYS = st.integers(0, 12).map(lambda n: (n % 3) << OFFSET_BITS | n)
ENDS_MS = st.integers(0, 20)


class LeasesModel(RuleBasedStateMachine):
    """`ends` has every lease, `told` the keys that `expired` returned since they were extended last."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.ends: dict[int, int] = {}
        self.told: set[int] = set()

    @rule(key=KEYS, end_ms=ENDS_MS)
    def add(self, key: int, end_ms: int) -> None:
        if key not in self.ends:
            self.leases.add(Lease(key, 1, 2, 3, end_ms))
            self.ends[key] = end_ms

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        lease = self.leases.remove(key)
        assert (lease is not None) == (key in self.ends)
        if lease is not None:
            assert (lease.key, lease.end_ms) == (key, self.ends.pop(key))
        self.told.discard(key)

    @rule(keys=st.lists(KEYS))
    def remove_all(self, keys: list[int]) -> None:
        self.leases.remove_all([Lease(key, 1, 2, 3) for key in keys])
        for key in keys:
            self.ends.pop(key, None)
            self.told.discard(key)

    @precondition(lambda self: self.ends)
    @rule(data=st.data(), end_ms=ENDS_MS)
    def extend(self, data: st.DataObject, end_ms: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.ends)))
        lease = self.leases.by_key[key]
        self.leases.extend(lease, end_ms)
        assert self.leases.by_key[key] is lease
        self.ends[key] = end_ms
        self.told.discard(key)

    @rule(now_ms=ENDS_MS, count_max=st.integers(0, 5))
    def expire(self, now_ms: int, count_max: int) -> None:
        over = sorted(end for key, end in self.ends.items() if key not in self.told and end <= now_ms)
        found = self.leases.expired(now_ms, count_max)
        assert [lease.end_ms for lease in found] == over[:count_max]
        for lease in found:
            assert self.leases.by_key[lease.key] is lease
            assert lease.key not in self.told
            self.told.add(lease.key)

    @rule()
    def clear(self) -> None:
        self.leases.clear()
        self.ends.clear()
        self.told.clear()

    @invariant()
    def they_are_what_the_model_says(self) -> None:
        assert {key: lease.end_ms for key, lease in self.leases.by_key.items()} == self.ends
        assert len(self.leases) == len(self.ends)
        assert {lease.key for lease in self.leases} == set(self.ends)
        waiting = (end for key, end in self.ends.items() if key not in self.told)
        assert self.leases.next_end_ms == min(waiting, default=None)


LeasesModel.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


class TestLeasesAgreeWithTheModel(LeasesModel.TestCase):
    """Hypothesis drives it."""


def test_a_lease_tells_its_queue_and_queue_offset_and_has_an_identity_of_its_own():
    lease = Lease(0xFFFF << OFFSET_BITS | 77, 1, run=5, number=6)
    assert (lease.queue, lease.queue_offset) == (0xFFFF, 77)
    others = [Lease(lease.key, 1, run=6, number=5), Lease(lease.key, 1, run=5, number=7)]
    assert len({lease.identity, *(other.identity for other in others)}) == 3


def test_a_lease_is_found_by_the_receipt_that_was_given_out_for_it_and_by_no_other():
    receipts = Receipts(bytes(16), "orders/g", 0)
    lease, again = Lease(1 << OFFSET_BITS | 77, 1, run=5, number=6), Lease(1 << OFFSET_BITS | 77, 2, 5, 7)
    lease.receipt, again.receipt = receipts.encode_all([lease, again])
    leases = Leases()
    assert leases.of_receipt(lease.receipt) is None
    leases.add(lease)
    assert leases.of_receipt(lease.receipt) is lease
    illegal = [again.receipt, lease.receipt.upper(), lease.receipt[:-1], lease.receipt + "0", "", "x", "-1"]
    assert [leases.of_receipt(one) for one in illegal] == [None] * len(illegal)
    leases.remove(lease.key)
    leases.add(Lease(lease.key, 1, 5, 6))  # restored: who has it can prove it by the tag alone
    assert leases.of_receipt(lease.receipt) is None
    assert leases.of_receipt("") is None


def test_leases_that_are_over_leave_nothing_behind_while_an_earlier_one_goes_on():
    leases = Leases()
    leases.add(Lease(0, 1, 1, 0, end_ms=10))
    tracemalloc.start()
    try:
        for number in range(1, 50_000):
            leases.add(Lease(number, 1, 1, number, end_ms=1_000 + number))
            leases.remove(number)
        left_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert left_bytes < 100_000
    assert leases.next_end_ms == 10
