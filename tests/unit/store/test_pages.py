import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.store import pages
from timerwheel.store.errors import IndexDamagedError

ROW = np.dtype([("a", "<u8"), ("b", "<i4"), ("c", "<u4")])
ROWS = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1)),
    max_size=30,
).map(lambda rows: np.array(rows, ROW))


KEY = b"key"


def page(value: bytes, table: str = "wheel", key: bytes = KEY) -> pages.Page:
    return pages.Page(table, key, value)


def stored(rows: np.ndarray, **facts: int) -> bytes:
    return pages.seal("wheel", KEY, pages.pack(rows, **facts))


@given(ROWS, st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1))
def test_rows_weight_and_mask_come_back_from_a_page(rows, weight, mask):
    value = stored(rows, weight=weight, mask=mask)
    assert page(value).head() == (len(rows), weight, mask)
    assert page(value).rows(ROW).tolist() == rows.tolist()
    assert page(memoryview(value)).rows(ROW).tolist() == rows.tolist()


def test_unpacked_rows_do_not_point_into_the_page():
    value = bytearray(stored(np.array([(1, 2, 3)], ROW)))
    rows = page(memoryview(value)).rows(ROW)
    value[:] = bytes(len(value))
    assert rows.tolist() == [(1, 2, 3)]
    rows["a"] = 9


def test_every_flipped_bit_of_a_page_is_damage():
    value = stored(np.array([(1, 2, 3), (4, 5, 6)], ROW), weight=-1, mask=7)
    for at in range(len(value)):
        for bit in range(8):
            damaged = bytearray(value)
            damaged[at] ^= 1 << bit
            with pytest.raises(IndexDamagedError):
                page(bytes(damaged)).rows(ROW)


def test_every_flipped_bit_of_a_page_header_is_damage_before_a_row_is_read():
    value = stored(np.array([(1, 2, 3), (4, 5, 6)], ROW), weight=-1, mask=7)
    for at in range(pages.HEAD_SIZE):
        for bit in range(8):
            damaged = bytearray(value)
            damaged[at] ^= 1 << bit
            with pytest.raises(IndexDamagedError):
                page(bytes(damaged)).head()


@pytest.mark.parametrize("table", ["wheel", "topics"])
def test_a_value_is_believed_under_its_own_key_and_in_its_own_table_alone(table):
    value = pages.seal(table, KEY, pages.pack(np.array([(1, 2, 3)], ROW)))
    assert pages.unseal(table, KEY, value)
    for other, key in (
        ("queues", KEY),
        ("control", KEY),
        (table, b"kez"),
        (table, KEY + b"\0"),
        (table, b""),
    ):
        with pytest.raises(IndexDamagedError, match="fails its check"):
            pages.unseal(other, key, value)


def test_every_flipped_bit_of_a_single_value_is_damage():
    value = pages.seal("topics", KEY, b"something")
    for at in range(len(value)):
        for bit in range(8):
            damaged = bytearray(value)
            damaged[at] ^= 1 << bit
            with pytest.raises(IndexDamagedError):
                pages.unseal("topics", KEY, bytes(damaged))


def test_every_shortened_page_is_damage():
    value = stored(np.array([(1, 2, 3), (4, 5, 6)], ROW))
    for size in range(len(value)):
        with pytest.raises(IndexDamagedError):
            page(value[:size]).rows(ROW)


def test_page_read_as_rows_of_another_width_is_damage():
    value = stored(np.array([(1, 2, 3), (4, 5, 6)], ROW))
    with pytest.raises(IndexDamagedError, match="does not have 2 rows"):
        page(value).rows(np.dtype([("a", "<u8")]))


@pytest.mark.parametrize(
    "count", [0, 1, pages.PAGE_ROWS_MAX, pages.PAGE_ROWS_MAX + 1, 3 * pages.PAGE_ROWS_MAX]
)
def test_chunks_are_the_rows_in_order_none_over_the_limit(count):
    rows = np.zeros(count, ROW)
    rows["a"] = np.arange(count)
    parts = list(pages.chunks(rows))
    assert all(0 < len(part) <= pages.PAGE_ROWS_MAX for part in parts)
    assert [a for part in parts for a in part["a"].tolist()] == list(range(count))
