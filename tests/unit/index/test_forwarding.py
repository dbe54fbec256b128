import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.undone import undone
from timerwheel.index import forwarding
from timerwheel.store.index import Index
from timerwheel.store.pages import PAGE_ROWS_MAX

MEBIBYTE = 1 << 20
ROOTS = st.builds(
    lambda block, at: block * MEBIBYTE + at * 8, st.integers(0, 4), st.integers(0, 3)
) | st.sampled_from([MEBIBYTE - 8, 5 * MEBIBYTE - 8, (1 << 63), (1 << 64) - 16])


@pytest.fixture(scope="module")
def committed_index(tmp_path_factory):
    index = Index(tmp_path_factory.mktemp("committed") / "index", 1 << 26)
    yield index
    index.close()


@settings(max_examples=80)
@given(st.lists(st.lists(st.tuples(ROOTS, ROOTS), max_size=8), max_size=6), st.lists(ROOTS, max_size=6))
def test_last_mark_of_a_root_wins(index, batches, others):
    model: dict[int, int] = {}
    with undone(index) as txn:
        sequence = 7
        for batch in batches:
            before, sequence = sequence, forwarding.put(txn, batch, sequence)
            assert sequence - before == len({root >> 20 for root, _ in batch})
            model.update(batch)
        for root in [*model, *others]:
            assert forwarding.find(txn, root) == model.get(root)
        roots = np.array(others, np.uint64)
        found = forwarding.find_many(txn, roots)
        assert found == {root: target for root, target in model.items() if root in others}


@settings(max_examples=80)
@given(st.lists(st.lists(st.tuples(ROOTS, st.integers(0, 1000)), max_size=8), max_size=6), ROOTS)
def test_dropping_forgets_only_marks_from_dropped_roots_to_dropped_records(committed_index, batches, offset):
    """Each mark leads past its root, and later marks of a root lead further."""
    model: dict[int, int] = {}
    sequence = 0
    with committed_index.write() as txn:
        txn.remove("marks", [key for key, _ in txn.items("marks")])
        for batch in batches:
            pairs = {}
            for root, step in batch:
                pairs[root] = max(model.get(root, root), pairs.get(root, root)) + 8 * step + 8
            pairs = {root: target for root, target in pairs.items() if target < 1 << 64}
            sequence = forwarding.put(txn, pairs.items(), sequence)
            model.update(pairs)
    with undone(committed_index) as txn:
        # In a transaction of its own, as retention does it.
        forwarding.drop_before(txn, offset)
        for root, target in model.items():
            found = forwarding.find(txn, root)
            if target >= offset or root >= offset:
                assert found == target
            elif root >> 20 < offset >> 20:
                assert found is None


def test_dropping_in_the_transaction_that_put_the_marks_drops_the_right_ones(index):
    """LMDB's values point into pages that this very transaction changes in place."""
    with undone(index) as txn:
        sequence = 0
        for block in range(6):
            for far in (0, 50):
                pairs = [(block * MEBIBYTE + 8 * n, (block + far) * MEBIBYTE + 4096 + n) for n in range(20)]
                sequence = forwarding.put(txn, pairs[far // 50 :: 2], sequence)
        forwarding.drop_before(txn, 6 * MEBIBYTE)
        for block in range(6):
            for n in range(20):
                wanted = (block + 50) * MEBIBYTE + 4096 + n if n % 2 else None
                assert forwarding.find(txn, block * MEBIBYTE + 8 * n) == wanted


def test_dropping_a_moved_message_later_finds_its_newest_mark(index):
    with undone(index) as txn:
        sequence = forwarding.put(txn, [(64, 5 * MEBIBYTE)], 0)
        forwarding.put(txn, [(64, 9 * MEBIBYTE)], sequence)
        forwarding.drop_before(txn, 6 * MEBIBYTE)
        assert forwarding.find(txn, 64) == 9 * MEBIBYTE
        forwarding.drop_before(txn, 10 * MEBIBYTE)
        assert forwarding.find(txn, 64) is None
        assert list(txn.items("marks")) == []


def test_marks_of_one_block_may_fill_many_pages(index):
    count = 2 * PAGE_ROWS_MAX + 5
    pairs = [(8 * number, 16 * number) for number in range(count)]
    with undone(index) as txn:
        assert forwarding.put(txn, pairs, 3) == 6
        assert [forwarding.find(txn, root) for root, _ in pairs[::501]] == [
            target for _, target in pairs[::501]
        ]
        assert forwarding.find_many(txn, np.array([root for root, _ in pairs], np.uint64)) == dict(pairs)


def test_no_marks_write_nothing(index):
    with undone(index) as txn:
        assert forwarding.put(txn, [], 3) == 3
        assert list(txn.items("marks")) == []
        assert forwarding.find_many(txn, np.zeros(0, np.uint64)) == {}
