import numpy as np

from timerwheel.rocketmq.read_ahead import AHEAD_BYTES, KEPT_BYTES_MAX, PAGES_MAX, ReadAhead
from timerwheel.runtime.queue_reader import RecordPage
from timerwheel.state.positions import POSITION_DTYPE

ONE, OTHER = ("readers", "orders", 0), ("readers", "orders", 1)


def page(first, count, size_bytes=10):
    positions = np.zeros(count, POSITION_DTYPE)
    positions["size"] = size_bytes
    return RecordPage(first, positions, [b"%d" % number for number in range(first, first + count)], 0, 100)


def test_a_reader_goes_on_in_what_was_read_for_it():
    ahead = ReadAhead()
    ahead.keep(ONE, page(10, 5))
    found = ahead.from_offset(ONE, 12, 2)
    assert found is not None
    assert (found.first, found.records, len(found.positions)) == (12, [b"12", b"13"], 2)
    assert ahead.from_offset(ONE, 13, 1).records == [b"13"]


def test_a_page_that_was_used_up_is_forgotten():
    ahead = ReadAhead()
    ahead.keep(ONE, page(10, 5))
    assert ahead.from_offset(ONE, 10, 4) is not None
    assert ahead.kept_bytes > 0
    assert ahead.from_offset(ONE, 14, 4).records == [b"14"]
    assert ahead.kept_bytes == 0


def test_the_more_consumers_read_the_less_is_read_for_each():
    ahead = ReadAhead()
    assert ahead.page_bytes == AHEAD_BYTES
    for queue in range(2 * PAGES_MAX):
        ahead.keep(("readers", "orders", queue), page(0, 2))
    assert ahead.page_bytes == KEPT_BYTES_MAX // PAGES_MAX
    assert ahead.kept_bytes == 2 * 10 * PAGES_MAX


def test_nobody_reads_what_was_read_for_another():
    ahead = ReadAhead()
    ahead.keep(ONE, page(10, 5))
    assert ahead.from_offset(OTHER, 10, 1) is None


def test_a_reader_that_leaves_its_page_makes_room():
    for offset in (9, 15):
        ahead = ReadAhead()
        ahead.keep(ONE, page(10, 5))
        assert ahead.from_offset(ONE, offset, 1) is None
        assert ahead.kept_bytes == 0


def test_the_page_that_was_used_least_recently_makes_room():
    ahead = ReadAhead(bytes_max=100)
    ahead.keep(ONE, page(0, 5))
    ahead.keep(OTHER, page(0, 5))
    assert ahead.from_offset(ONE, 0, 1) is not None
    ahead.keep(("more", "orders", 0), page(0, 5))
    assert ahead.kept_bytes == 100
    assert ahead.from_offset(OTHER, 0, 1) is None
    assert ahead.from_offset(ONE, 0, 1) is not None


def test_a_page_that_is_larger_than_all_room_is_not_kept():
    ahead = ReadAhead(bytes_max=100)
    ahead.keep(ONE, page(0, 1, size_bytes=101))
    assert ahead.kept_bytes == 0
