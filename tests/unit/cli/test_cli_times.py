"""Times as people read them."""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.cli.options import parse_range_ms
from timerwheel.cli.times import full_time, short_moment, short_time
from timerwheel.model.durations import parse_human_ms

BERLIN = ZoneInfo("Europe/Berlin")
NOW_MS = int(dt.datetime(2026, 11, 25, 14, 9, tzinfo=BERLIN).timestamp() * 1000)  # a Wednesday


def ms(*numbers, zone=BERLIN):
    return int(dt.datetime(*numbers, tzinfo=zone).timestamp() * 1000)


@pytest.mark.parametrize(
    ("at_ms", "shown"),
    [
        (ms(2026, 11, 29, 19), "Sun 19:00"),
        (ms(2026, 11, 25, 14, 9, 7), "Wed 14:09:07"),
        (ms(2026, 11, 19, 0), "Thu 00:00"),
        (ms(2026, 12, 1, 23, 59), "Tue 23:59"),
        (ms(2026, 12, 2, 0), "2 Dec 00:00"),
        (ms(2026, 11, 18, 12), "18 Nov 12:00"),
        (ms(2027, 1, 2, 9), "2 Jan 2027 09:00"),
    ],
)
def test_a_short_time_leaves_out_what_the_reader_knows(at_ms, shown):
    assert short_time(at_ms, NOW_MS, BERLIN) == shown


def test_a_short_time_in_utc_says_so():
    assert short_time(ms(2026, 11, 29, 19), NOW_MS, dt.UTC) == "Sun 18:00 UTC"
    assert short_moment(NOW_MS, NOW_MS, dt.UTC) == "25 Nov 13:09:00.000 UTC"


def test_the_moment_of_an_event_has_its_milliseconds():
    assert short_moment(NOW_MS + 5, NOW_MS, BERLIN) == "25 Nov 14:09:00.005"
    assert short_moment(ms(2025, 11, 25), NOW_MS, BERLIN) == "25 Nov 2025 00:00:00.000"


def test_a_full_time_names_its_zone():
    assert full_time(NOW_MS, BERLIN) == "Wed 25 Nov 2026 14:09:00 CET"
    assert full_time(ms(2026, 7, 1, 12) + 250, BERLIN) == "Wed 1 Jul 2026 12:00:00.250 CEST"


@pytest.mark.parametrize("at_ms", [2**62, -(2**62)])
def test_a_time_that_no_calendar_holds_is_shown_as_milliseconds(at_ms):
    for shown in (short_time(at_ms, NOW_MS, dt.UTC), full_time(at_ms, None), short_moment(at_ms, 0, None)):
        assert shown == f"{at_ms} ms since 1970"


@given(st.integers(0, 4_000_000_000_000))
def test_a_full_time_can_be_given_back_to_a_flag(at_ms):
    assert parse_human_ms(full_time(at_ms, dt.UTC), NOW_MS, dt.UTC) == at_ms


def test_a_range_that_ends_before_it_begins_is_refused_with_both_times_as_people_read_them():
    assert parse_range_ms("2026-11-25 09:00", None, BERLIN) == (ms(2026, 11, 25, 9), None)
    assert parse_range_ms("2026-11-25 09:00", "2026-11-25 09:00", BERLIN) == (ms(2026, 11, 25, 9),) * 2
    with pytest.raises(typer.BadParameter) as refused:
        parse_range_ms("2026-11-26 09:00", "2026-11-25 23:59", BERLIN)
    for shown in ("Thu 26 Nov 2026 09:00:00 CET", "Wed 25 Nov 2026 23:59:00 CET", "write the day"):
        assert shown in str(refused.value)
