import datetime as dt
import sys
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import AdmissionError
from timerwheel.model.durations import (
    format_duration,
    format_ms,
    parse_delay_ms,
    parse_human_ms,
    parse_rfc3339_ms,
)

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
INT64_MAX = 2**63 - 1
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def ms_of(iso: str) -> int:
    since = dt.datetime.fromisoformat(iso) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return since // dt.timedelta(milliseconds=1)


NOW_MS = ms_of("2026-11-20T10:30:00.250+01:00")  # a Friday


def refusal_of(parse, *arguments) -> str:
    with pytest.raises(AdmissionError) as caught:
        parse(*arguments)
    assert caught.value.code == "illegal_delay"
    caught.value.detail.encode()
    assert len(caught.value.detail) < 400
    return caught.value.detail


# -------------------------------------------------------------------------------------------- delays


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("250ms", 250),
        ("5m250ms", 300_250),
        ("1d", DAY_MS),
        ("1w", 7 * DAY_MS),
        ("1w1d1h1m1s1ms", 8 * DAY_MS + HOUR_MS + 61_001),
        (" 0s ", 0),
        ("007s", 7_000),
    ],
)
def test_short_delay_is_the_sum_of_its_units(text, ms):
    assert parse_delay_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT90S", 90_000),
        ("P1DT2H", DAY_MS + 2 * HOUR_MS),
        ("P2W", 14 * DAY_MS),
        ("P1W2DT3H4M5S", 9 * DAY_MS + 3 * HOUR_MS + 245_000),
        ("PT0S", 0),
        ("pt5m", 300_000),
        ("PT1.5S", 1_500),
        ("PT1,25S", 1_250),
        ("PT0.001S", 1),
        ("PT1.50000S", 1_500),
        ("PT1.5H", 5_400_000),
    ],
)
def test_iso_duration_is_the_sum_of_its_units(text, ms):
    assert parse_delay_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"), [("1.5s", 1_500), ("0.001s", 1), ("1.5h", 5_400_000), ("1m1.5s", 61_500)]
)
def test_fraction_of_the_last_unit_is_allowed_when_exact(text, ms):
    assert parse_delay_ms(text) == ms


@pytest.mark.parametrize("text", ["1.0005s", "0.5ms", "PT0.0001S", "0.0000001m", "PT1.0000000000000000001S"])
def test_delay_that_is_not_whole_milliseconds_is_refused(text):
    assert "not a whole number of milliseconds" in refusal_of(parse_delay_ms, text)


@pytest.mark.parametrize("text", ["1.5h30m", "PT1.5H30M", "P0.5DT1S"])
def test_fraction_before_the_last_unit_is_refused(text):
    assert "fraction before its last unit" in refusal_of(parse_delay_ms, text)


@pytest.mark.parametrize("text", ["P1Y", "P1M", "P1Y2M3DT4H", "p3m"])
def test_iso_years_and_months_are_refused_because_their_length_varies(text):
    assert "length varies" in refusal_of(parse_delay_ms, text)


@pytest.mark.parametrize("text", ["-5s", "+5s", "-PT5S", "- 5s"])
def test_delay_with_a_sign_is_refused(text):
    assert "sign" in refusal_of(parse_delay_ms, text)


@pytest.mark.parametrize("text", ["90", "1.5", "0"])
def test_delay_without_a_unit_is_refused(text):
    assert "has no unit" in refusal_of(parse_delay_ms, text)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "s", "h30m", "30m1h", "1h1h", "1H", "1M"),
        *("1y", "90 s", "1e3s", "1,500s", ".5s", "1.s", "\u0661s"),
        *("P", "PT", "P1DT", "P1", "PT1", "P1S", "PT1D", "P1D2H", "P-1D", "PT1S1M", "P1H", "PT 1S", "PxS"),
        *("five seconds", "1s\x00", "\ud800", "1s" * 30),
    ],
)
def test_text_that_is_no_delay_is_refused(text):
    refusal_of(parse_delay_ms, text)


def test_delay_may_be_as_long_as_64_bits_and_not_longer():
    assert parse_delay_ms(f"{INT64_MAX}ms") == INT64_MAX
    assert "64 bits" in refusal_of(parse_delay_ms, f"{INT64_MAX + 1}ms")
    assert "64 bits" in refusal_of(parse_delay_ms, "9" * 19 + "w")


@pytest.mark.parametrize(
    "text",
    ["9" * 10**6 + "s", "1w" + " " * 97 + "x", " " * 10**6, "P" + "9" * 10**6 + "D"],
    ids=["digits", "spaces inside", "spaces", "iso"],
)
def test_long_text_is_refused_without_being_read(text):
    refusal_of(parse_delay_ms, text)


@given(st.integers(0, INT64_MAX))
def test_formatted_duration_parses_back(ms):
    assert parse_delay_ms(format_duration(ms)) == ms


@given(st.integers(0, 10**15))
def test_iso_seconds_with_milliseconds_parse_exactly(ms):
    assert parse_delay_ms(f"PT{ms // 1000}.{ms % 1000:03}S") == ms


@given(st.text(max_size=30) | st.text("PT0123456789.,WDHMSwdhms ", max_size=120))
def test_any_text_is_a_delay_or_an_admission_error(text):
    try:
        assert 0 <= parse_delay_ms(text) <= INT64_MAX
    except AdmissionError as error:
        code = error.code
    else:
        code = "illegal_delay"
    assert code == "illegal_delay"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (250, "250ms"),
        (1_500, "1s500ms"),
        (5_400_000, "1h30m"),
        (DAY_MS, "1d"),
        (3650 * DAY_MS, "3650d"),
        (-5_000, "-5s"),
    ],
)
def test_duration_is_written_without_empty_units(ms, text):
    assert format_duration(ms) == text


# -------------------------------------------------------------------------------------------- RFC 3339


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-12-24T18:00:00+01:00", 1_798_131_600_000),
        ("2026-12-24t17:00:00z", 1_798_131_600_000),
        ("2026-12-24 17:00:00Z", 1_798_131_600_000),
        ("2026-12-24T11:30:00.5-05:30", 1_798_131_600_500),
        ("2026-12-24T17:00:00-00:00", 1_798_131_600_000),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("2028-02-29T00:00:00Z", 1_835_395_200_000),
    ],
)
def test_rfc3339_time_is_epoch_milliseconds(text, ms):
    assert parse_rfc3339_ms(text) == ms


@pytest.mark.parametrize(
    ("fraction", "ms"),
    [
        ("1", 100),
        ("12", 120),
        ("123", 123),
        ("1230000", 123),
        ("1230001", 124),
        ("0000000001", 1),
        ("9991", 1_000),
    ],
)
def test_digits_past_the_millisecond_round_up_so_that_nothing_is_early(fraction, ms):
    assert parse_rfc3339_ms(f"1970-01-01T00:00:00.{fraction}Z") == ms


@pytest.mark.parametrize(
    "text", ["2016-12-31T23:59:60Z", "2017-01-01T00:59:60+01:00", "2016-12-31T18:29:60-05:30"]
)
def test_leap_second_is_the_first_second_of_the_next_minute(text):
    assert parse_rfc3339_ms(text) == ms_of("2017-01-01T00:00:00Z")
    assert parse_rfc3339_ms("9999-12-31T23:59:60.25Z") == 253_402_300_800_250


@pytest.mark.parametrize(
    "text",
    [
        "2016-12-30T23:59:60Z",
        "2016-12-31T22:59:60Z",
        "2016-12-31T23:59:60+01:00",
        "0001-01-01T00:59:60+01:00",
    ],
)
def test_second_60_away_from_the_end_of_a_utc_month_is_refused(text):
    assert "leap seconds" in refusal_of(parse_rfc3339_ms, text)


@pytest.mark.parametrize("text", ["2026-12-24T18:00:00", "2026-12-24 18:00", "2026-12-24"])
def test_rfc3339_time_without_a_zone_is_refused_and_says_so(text):
    assert "zone" in refusal_of(parse_rfc3339_ms, text)


@pytest.mark.parametrize(
    "text",
    [
        *("2026-02-29T00:00:00Z", "2026-00-01T00:00:00Z", "2026-13-01T00:00:00Z", "2026-04-31T00:00:00Z"),
        *("0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "-001-01-01T00:00:00Z", "26-12-24T00:00:00Z"),
        *("2026-12-24T24:00:00Z", "2026-12-24T18:60:00Z", "2026-12-24T18:00:61Z", "2026-12-24T18:00Z"),
        *("2026-12-24T18:00:00+24:00", "2026-12-24T18:00:00+01:60", "2026-12-24T18:00:00+0100"),
        *(
            "2026-12-24T18:00:00.Z",
            "2026-12-24T18:00:00,5Z",
            "2026-12-24T18:00:00 Z",
            " 2026-12-24T18:00:00Z",
        ),
        *(
            "",
            "tomorrow",
            "20261224T180000Z",
            "2026-12-24T18:00:00Z\n",
            "\u0662\u0660\u0662\u0666-12-24T18:00:00Z",
            "\ud800",
        ),
        pytest.param("2026-12-24T18:00:00." + "1" * 10**6 + "Z", id="long"),
    ],
)
def test_text_that_is_no_rfc3339_time_is_refused(text):
    refusal_of(parse_rfc3339_ms, text)


ZONES = st.timezones() | st.integers(-1439, 1439).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
CALENDAR_MS = st.integers(
    parse_rfc3339_ms("0001-01-01T00:00:00Z"), parse_rfc3339_ms("9999-12-31T23:59:59.999Z")
)


@given(CALENDAR_MS, ZONES)
def test_formatted_time_parses_back_in_every_zone(ms, zone):
    assert parse_rfc3339_ms(format_ms(ms, zone)) == ms


@given(CALENDAR_MS, st.integers(0, 999), ZONES)
def test_rfc3339_agrees_with_the_standard_library_to_the_microsecond(ms, microseconds, zone):
    text = format_ms(ms, zone)
    assert ms_of(text) == ms
    finer = f"{text[:23]}{microseconds:03}{text[23:]}"
    assert parse_rfc3339_ms(finer) == ms + (microseconds > 0)


@given(st.text(max_size=30) | st.text("0123456789-:.TZ+ ", max_size=40))
def test_any_text_is_a_time_or_an_admission_error(text):
    try:
        assert isinstance(parse_rfc3339_ms(text), int)
    except AdmissionError as error:
        code = error.code
    else:
        code = "illegal_delay"
    assert code == "illegal_delay"


def test_time_is_written_with_milliseconds_and_the_offset_of_its_zone():
    assert format_ms(1_798_131_600_000, BERLIN) == "2026-12-24T18:00:00.000+01:00"
    assert format_ms(1_798_131_600_007, dt.UTC) == "2026-12-24T17:00:00.007+00:00"
    assert format_ms(-1, dt.UTC) == "1969-12-31T23:59:59.999+00:00"


def test_time_without_a_zone_is_written_in_the_zone_of_the_machine():
    assert parse_rfc3339_ms(format_ms(NOW_MS)) == NOW_MS


def test_time_whose_offset_has_seconds_is_written_in_utc():
    assert format_ms(-4_000_000_000_000, BERLIN).endswith("+00:00")


@pytest.mark.parametrize("ms", [10**15, -(10**15), INT64_MAX, -(2**63), 10**40])
def test_time_past_the_calendar_is_written_as_milliseconds(ms):
    assert format_ms(ms, BERLIN) == f"{ms} ms since 1970"


# -------------------------------------------------------------------------------------------- people


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-12-24 18:00", "2026-12-24T18:00:00+01:00"),
        ("2026-12-24T18:00:05", "2026-12-24T18:00:05+01:00"),
        ("2026-12-24 18:00:05.25", "2026-12-24T18:00:05.250+01:00"),
        ("2026-12-24", "2026-12-24T00:00:00+01:00"),
        ("2026-07-01 12:00", "2026-07-01T12:00:00+02:00"),
        ("2026-12-24T18:00:00-05:00", "2026-12-24T18:00:00-05:00"),
        ("now", "2026-11-20T10:30:00.250+01:00"),
        ("tomorrow 9am", "2026-11-21T09:00:00+01:00"),
        ("tomorrow at 9am", "2026-11-21T09:00:00+01:00"),
        ("tomorrow 9am UTC", "2026-11-21T09:00:00+00:00"),
        ("in 5 minutes", "2026-11-20T10:35:00.250+01:00"),
        ("in 1 hour 30 minutes", "2026-11-20T12:00:00.250+01:00"),
        ("90s", "2026-11-20T10:31:30.250+01:00"),
        ("5 minutes ago", "2026-11-20T10:25:00.250+01:00"),
        ("in 2 days", "2026-11-22T10:30:00.250+01:00"),
        ("24 Dec 2026 18:00", "2026-12-24T18:00:00+01:00"),
        ("24.12.2026 18:00", "2026-12-24T18:00:00+01:00"),
        ("  Dec 24 6pm ", "2026-12-24T18:00:00+01:00"),
    ],
)
def test_time_as_people_write_it_is_local_to_the_zone(text, iso):
    assert parse_human_ms(text, NOW_MS, BERLIN) == ms_of(iso)


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("11am", "2026-11-20T11:00:00+01:00"),
        ("9am", "2026-11-21T09:00:00+01:00"),
        ("friday 9am", "2026-11-27T09:00:00+01:00"),
        ("March 3", "2027-03-03T00:00:00+01:00"),
    ],
)
def test_of_two_readings_the_one_in_the_future_is_taken(text, iso):
    assert parse_human_ms(text, NOW_MS, BERLIN) == ms_of(iso)


def test_digits_are_epoch_milliseconds():
    assert parse_human_ms("1798131600000", NOW_MS, BERLIN) == 1_798_131_600_000
    assert parse_human_ms("0", NOW_MS, BERLIN) == 0


@pytest.mark.parametrize(
    "text",
    [
        "1798131600",
        "20261224",
        "2026",
        "9",
        str(2**63),
        "9" * 90,
        "\u0661\u0667\u0669\u0668\u0661\u0663\u0661\u0666\u0660\u0660\u0660\u0660\u0660",
    ],
)
def test_digits_that_look_like_seconds_a_date_or_a_year_are_refused(text):
    assert "epoch milliseconds" in refusal_of(parse_human_ms, text, NOW_MS, BERLIN)


def test_date_that_could_mean_two_days_is_refused():
    assert "either of two days" in refusal_of(parse_human_ms, "05/06/2027 9am", NOW_MS, BERLIN)
    assert parse_human_ms("05/05/2027", NOW_MS, BERLIN) == ms_of("2027-05-05T00:00:00+02:00")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "2026-13-01",
        "2026-12-24 25:00",
        "2026-02-29T00:00:00Z",
        pytest.param("x" * 10**6, id="long"),
        "\ud800",
        "0000-01-01",
    ],
)
def test_text_that_is_no_time_is_refused(text):
    refusal_of(parse_human_ms, text, NOW_MS, BERLIN)


def test_time_in_the_hour_that_comes_twice_is_the_first():
    assert parse_human_ms("2026-10-25 02:30", NOW_MS, BERLIN) == ms_of("2026-10-25T02:30:00+02:00")


def test_time_in_the_hour_that_is_skipped_moves_on_by_the_gap():
    assert parse_human_ms("2026-03-29 02:30", NOW_MS, BERLIN) == ms_of("2026-03-29T03:30:00+02:00")


@pytest.mark.parametrize("text", ["in 90 minutes", "in 1 hour and 30 minutes", "1h30m"])
@pytest.mark.parametrize("before", ["2026-03-29T01:15:00+01:00", "2026-10-25T02:15:00+02:00"])
def test_minutes_and_hours_from_now_do_not_bend_where_clocks_change(text, before):
    assert parse_human_ms(text, ms_of(before), BERLIN) == ms_of(before) + 90 * 60_000


def test_days_from_now_keep_the_time_of_day_where_clocks_change():
    before = ms_of("2026-03-28T18:00:00+01:00")
    assert parse_human_ms("in 1 day", before, BERLIN) == ms_of("2026-03-29T18:00:00+02:00")


def test_no_zone_is_the_zone_of_the_machine():
    local = dt.datetime(2026, 12, 24, 18).astimezone().isoformat()
    assert parse_human_ms("2026-12-24 18:00", NOW_MS) == ms_of(local)
    assert parse_human_ms("24 Dec 2026 6pm", NOW_MS) == ms_of(local)


def test_dateparser_is_imported_only_for_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "dateparser", None)  # now its import fails
    parse_human_ms("2026-12-24 18:00", NOW_MS, BERLIN)
    with pytest.raises(ImportError):
        parse_human_ms("tomorrow 9am", NOW_MS, BERLIN)


@given(CALENDAR_MS.filter(lambda ms: abs(ms) < 2 * 10**14), ZONES)
def test_formatted_time_is_read_back_by_the_parser_for_people(ms, zone):
    assert parse_human_ms(format_ms(ms, zone), NOW_MS, BERLIN) == ms
