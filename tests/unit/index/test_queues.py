import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.undone import undone
from timerwheel.index import queues
from timerwheel.state.positions import POSITION_DTYPE, positions_of
from timerwheel.store.pages import PAGE_ROWS_MAX
from timerwheel.store.table import ROW_DTYPE


def positions(first: int, count: int) -> np.ndarray:
    """Rows whose log offset is 100 times their queue offset."""
    found = np.zeros(count, POSITION_DTYPE)
    found["offset"] = np.arange(first, first + count) * 100
    return found


def filled(txn, sizes: list[int], topic_id: int = 3, queue: int = 1, first: int = 0) -> int:
    for size in sizes:
        queues.put(txn, topic_id, queue, first, positions(first, size))
        first += size
    return first


def test_positions_are_taken_from_record_rows():
    rows = np.zeros(2, ROW_DTYPE)
    rows["offset"], rows["root"], rows["store_ms"], rows["size"] = (64, 160), (64, 8), (5, 6), (96, 104)
    assert positions_of(rows).tolist() == [(64, 64, 5, 96, 0), (160, 8, 6, 104, 0)]


@settings(max_examples=80)
@given(
    st.lists(st.integers(1, 7), max_size=8),
    st.integers(0, 1000),
    st.integers(0, 70),
    st.integers(0, 70),
)
def test_read_gives_the_positions_from_an_offset_on(index, sizes, begin, skip, count_max):
    with undone(index) as txn:
        filled(txn, [5], topic_id=2)
        filled(txn, [5], queue=0)
        filled(txn, [5], queue=2)
        end = filled(txn, sizes, first=begin)
        first = begin + skip
        wanted = [offset * 100 for offset in range(first, min(end, first + count_max))]
        assert queues.read(txn, 3, 1, first, count_max)["offset"].tolist() == wanted


def test_read_of_an_unknown_queue_is_empty(index):
    with undone(index) as txn:
        filled(txn, [5])
        for topic_id, queue in ((3, 0), (3, 2), (2, 1), (4, 1)):
            assert len(queues.read(txn, topic_id, queue, 0, 10)) == 0


def test_more_rows_than_a_page_holds_are_read_as_one_queue(index):
    count = 2 * PAGE_ROWS_MAX + 3
    with undone(index) as txn:
        filled(txn, [3, count, 3])
        found = queues.read(txn, 3, 1, 1, count + 100)
        assert found["offset"].tolist() == [offset * 100 for offset in range(1, count + 6)]


@settings(max_examples=80)
@given(st.lists(st.integers(1, 7), max_size=8), st.integers(0, 30), st.integers(0, 40))
def test_dropping_keeps_every_position_that_is_not_before_the_offset(index, sizes, begin, skip):
    with undone(index) as txn:
        filled(txn, [9], queue=0, first=begin)
        end = filled(txn, sizes, first=begin)
        filled(txn, [9], queue=2, first=begin)
        first = begin + skip
        queues.drop_before(txn, 3, 1, first)
        kept = queues.read(txn, 3, 1, first, 1000)["offset"].tolist()
        assert kept == [offset * 100 for offset in range(first, end)]
        edges = np.cumsum([begin, *sizes]).tolist()
        whole_pages_kept = [edge for edge, after in itertools.pairwise(edges) if after > first]
        assert len(list(txn.items("queues"))) == len(whole_pages_kept) + 2
        for queue in (0, 2):
            assert len(queues.read(txn, 3, queue, begin, 1000)) == 9


@settings(max_examples=80)
@given(st.lists(st.integers(1, 7), max_size=8), st.integers(0, 30), st.integers(0, 9000))
def test_first_at_finds_the_first_message_at_or_after_a_log_offset(index, sizes, begin, log_offset):
    with undone(index) as txn:
        end = filled(txn, sizes, first=begin)
        wanted = next((offset for offset in range(begin, end) if offset * 100 >= log_offset), end)
        assert queues.first_at(txn, 3, 1, end, log_offset) == wanted


@given(st.integers(0, 50), st.integers(0, 50), st.integers(-5, 110))
def test_search_finds_the_first_that_is_not_before(low, width, edge):
    found = queues.search(low, low + width, lambda offset: offset < edge)
    assert found == min(max(low, edge), low + width)
