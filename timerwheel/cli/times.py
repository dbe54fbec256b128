"""Writes points in time for people: `Sun 19:00`, `24 Dec 18:00`, `Sun 29 Nov 2026 19:00:00 CET`.

A short time leaves out what the reader knows: the date within six days, the year within this one, and
seconds that are zero. Weekdays and months are English, whatever the locale.
"""

import datetime as dt

from timerwheel.model.durations import format_ms

WEEKDAY_DAYS_MAX = 6  # further away the name of a weekday could mean two days
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def short_time(ms: int, now_ms: int, zone: dt.tzinfo | None) -> str:
    """A time to the second, for a table: `Sun 19:00`, `24 Dec 18:00:07`, `24 Dec 2027 18:00`; names UTC."""
    at, now = _local(ms, zone), _local(now_ms, zone)
    if at is None or now is None:
        return format_ms(ms, zone)
    clock = f"{at:%H:%M:%S}" if at.second else f"{at:%H:%M}"
    return f"{_day(at, now)} {clock}{' UTC' if zone is dt.UTC else ''}"


def short_moment(ms: int, now_ms: int, zone: dt.tzinfo | None) -> str:
    """A time to the millisecond, for a table of events: `25 Nov 13:17:36.123`; names UTC."""
    at, now = _local(ms, zone), _local(now_ms, zone)
    if at is None or now is None:
        return format_ms(ms, zone)
    return f"{_date(at, now)} {_clock(at, always_ms=True)}{' UTC' if zone is dt.UTC else ''}"


def full_time(ms: int, zone: dt.tzinfo | None) -> str:
    """A time in full, exact to the millisecond: `Sun 29 Nov 2026 19:00:00.250 CET`."""
    at = _local(ms, zone)
    return (
        format_ms(ms, zone)
        if at is None
        else f"{at:%a} {at.day} {at:%b} {at.year} {_clock(at)} {at.tzname()}"
    )


def _local(ms: int, zone: dt.tzinfo | None) -> dt.datetime | None:
    """The time in a zone, None for the machine's; None for what no calendar holds."""
    try:
        return (_EPOCH + dt.timedelta(milliseconds=ms)).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return None


def _day(at: dt.datetime, now: dt.datetime) -> str:
    days = abs((at.date() - now.date()).days)
    return f"{at:%a}" if days <= WEEKDAY_DAYS_MAX else _date(at, now)


def _date(at: dt.datetime, now: dt.datetime) -> str:
    year = "" if at.year == now.year else f" {at.year}"
    return f"{at.day} {at:%b}{year}"


def _clock(at: dt.datetime, *, always_ms: bool = False) -> str:
    ms = at.microsecond // 1_000
    return f"{at:%H:%M:%S}.{ms:03}" if ms or always_ms else f"{at:%H:%M:%S}"
