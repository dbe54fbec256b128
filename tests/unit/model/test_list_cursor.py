"""Pages of a list that is sorted by names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import IllegalCursorError
from timerwheel.model import list_cursor
from timerwheel.model.admission import SYSTEM_TOPIC_LEVELS, SYSTEM_TOPIC_TIMER

NAMES = st.sets(st.text(max_size=4), max_size=20)


def key(name: str) -> list_cursor.Key:
    return (name,)


@given(NAMES, NAMES, NAMES, st.integers(1, 6))
def test_what_is_there_all_the_time_is_listed_once_and_in_order(kept, gone, come, limit):
    gone, come = gone - kept, come - kept
    found, cursor, items = [], None, kept | gone
    while True:
        page, cursor = list_cursor.page(items, key, limit, cursor)
        assert len(page) <= limit
        found += page
        items = kept | come
        if cursor is None:
            break
    assert found == sorted(set(found))
    assert set(found) >= kept


def test_without_a_limit_everything_is_one_page():
    assert list_cursor.page(["b", "a"], key, None, None) == (["a", "b"], None)
    assert list_cursor.page(["b", "a"], key, None, list_cursor.encode(("a",))) == (["b"], None)


def test_topics_of_the_service_come_last():
    names = [SYSTEM_TOPIC_TIMER, SYSTEM_TOPIC_LEVELS, "z", "a"]
    assert sorted(names, key=list_cursor.topic_key) == ["a", "z", SYSTEM_TOPIC_TIMER, SYSTEM_TOPIC_LEVELS]


@pytest.mark.parametrize("text", ["", "a", "x_x", "WyJhIl", "WzFd", "e30", "ä", "WyJh\n"])
def test_what_is_not_a_cursor_is_refused(text):
    with pytest.raises(IllegalCursorError):
        list_cursor.decode(text)


@pytest.mark.parametrize("text", ["9" * 5_000, "9" * 21, "-1", "1_0", "٣", ""])
def test_what_is_no_number_of_a_cursor_is_refused(text):
    with pytest.raises(IllegalCursorError):
        list_cursor.number_of(list_cursor.encode((text,)))


def test_the_number_of_a_cursor_comes_back():
    assert list_cursor.number_of(list_cursor.encode(list_cursor.number_key(2**63))) == 2**63
