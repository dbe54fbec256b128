import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import pages
from store.errors import IndexDamagedError

ROW = np.dtype([("a", "<u8"), ("b", "<i4"), ("c", "<u4")])
ROWS = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1)),
    max_size=30,
).map(lambda rows: np.array(rows, ROW))


@given(ROWS, st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1))
def test_rows_weight_and_mask_come_back_from_a_page(rows, weight, mask):
    value = pages.pack(rows, weight=weight, mask=mask)
    assert pages.head(value) == (len(rows), weight, mask)
    assert pages.unpack(value, ROW).tolist() == rows.tolist()
    assert pages.unpack(memoryview(value), ROW).tolist() == rows.tolist()


def test_unpacked_rows_do_not_point_into_the_page():
    value = bytearray(pages.pack(np.array([(1, 2, 3)], ROW)))
    rows = pages.unpack(memoryview(value), ROW)
    value[:] = bytes(len(value))
    assert rows.tolist() == [(1, 2, 3)]
    rows["a"] = 9


def test_every_flipped_bit_of_a_page_is_damage():
    value = pages.pack(np.array([(1, 2, 3), (4, 5, 6)], ROW), weight=-1, mask=7)
    for at in range(len(value)):
        for bit in range(8):
            damaged = bytearray(value)
            damaged[at] ^= 1 << bit
            with pytest.raises(IndexDamagedError):
                pages.unpack(bytes(damaged), ROW)


def test_every_shortened_page_is_damage():
    value = pages.pack(np.array([(1, 2, 3), (4, 5, 6)], ROW))
    for size in range(len(value)):
        with pytest.raises(IndexDamagedError):
            pages.unpack(value[:size], ROW)


def test_page_read_as_rows_of_another_width_is_damage():
    value = pages.pack(np.array([(1, 2, 3), (4, 5, 6)], ROW))
    with pytest.raises(IndexDamagedError, match="another number of rows"):
        pages.unpack(value, np.dtype([("a", "<u8")]))


@pytest.mark.parametrize(
    "count", [0, 1, pages.PAGE_ROWS_MAX, pages.PAGE_ROWS_MAX + 1, 3 * pages.PAGE_ROWS_MAX]
)
def test_chunks_are_the_rows_in_order_none_over_the_limit(count):
    rows = np.zeros(count, ROW)
    rows["a"] = np.arange(count)
    parts = list(pages.chunks(rows))
    assert all(0 < len(part) <= pages.PAGE_ROWS_MAX for part in parts)
    assert [a for part in parts for a in part["a"].tolist()] == list(range(count))
