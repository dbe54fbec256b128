"""Parses and formats times and delays, for people and programs. Exact to the millisecond.

1. A delay is a duration (`90s`, `1h30m`, `PT90S`), a time is a point (RFC 3339, for people `tomorrow 9am`).
2. What is not exact is refused, not guessed: a delay of months, half a millisecond, `05/06/2027`.
3. A time finer than a millisecond is rounded up, so that nothing is early.
4. Every refusal is an AdmissionError illegal_delay that says what is wrong with which text.

Only `parse_human_ms` and `format_ms` without a zone use the machine's time zone.
"""

import calendar
import datetime as dt
import re
import warnings

from timerwheel.errors import AdmissionError

_INT64_MAX = 2**63 - 1
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS, _WEEK_MS = 1_000, 60_000, 3_600_000, 86_400_000, 604_800_000
_UNITS_MS = {"w": _WEEK_MS, "d": _DAY_MS, "h": _HOUR_MS, "m": _MINUTE_MS, "s": _SECOND_MS, "ms": 1}
_MS = dt.timedelta(milliseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_TEXT_CHARACTERS_MAX = 100  # longer than any sensible time, short enough that no pattern is slow

_NUMBER = r"([0-9]{1,19}(?:\.[0-9]{1,19})?)"
_ISO_NUMBER = r"([0-9]{1,19}(?:[.,][0-9]{1,19})?)"  # only here: 1,500s could be meant as fifteen hundred
# White space belongs to the part before it, so there is only one way to match, and no backtracking.
_SHORT = re.compile("".join(rf"(?:{_NUMBER}{unit}\s*)?" for unit in _UNITS_MS))
_ISO = re.compile(
    "P"
    + "".join(rf"(?:{_ISO_NUMBER}{unit})?" for unit in "YMWD")
    + "(?:T(?=[0-9])"
    + "".join(rf"(?:{_ISO_NUMBER}{unit})?" for unit in "HMS")
    + ")?",
    re.IGNORECASE | re.ASCII,
)
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_LOCAL = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?)?"
)
_EPOCH_MS = re.compile(r"0|[0-9]{12,19}")
_DAY_AND_MONTH = re.compile(r"\b([0-9]{1,2})[./-]([0-9]{1,2})[./-][0-9]{2,4}\b")
_MONTHS_IN_YEAR = 12
_CLOCK_WORD = re.compile("h|hrs?|hours?|m|mins?|minutes?|s|secs?|seconds?")
_LENGTH_WORD = re.compile(rf"in|an?|and|ago|d|days?|w|weeks?|{_CLOCK_WORD.pattern}")


def parse_delay_ms(text: str) -> int:
    """Parse a delay such as `90s`, `1h30m`, `250ms`, `1w`, `PT90S` or `P1DT2H` into milliseconds.

    Units are w d h m s ms, largest first, each at most once; a day is 24 hours. The last number may have a
    fraction if the result is in whole milliseconds (`1.5s`). ISO 8601 years and months are refused, as is a
    sign. Raises AdmissionError illegal_delay.
    """
    stripped = text.strip()
    if len(stripped) > _TEXT_CHARACTERS_MAX:
        raise _illegal(text, "is too long for a delay")
    if stripped[:1] in ("P", "p"):
        return _iso_delay_ms(stripped)
    found = _SHORT.fullmatch(stripped)
    if found is None or not stripped:
        raise _illegal(text, _delay_fault(stripped))
    return _total_ms(text, found.groups(), tuple(_UNITS_MS.values()))


def parse_shift_ms(text: str) -> int:
    """Parse a delay with a sign, such as `+2h` or `-30m`; without one it is a plus. As `parse_delay_ms`."""
    stripped = text.strip()
    if stripped[:1] not in ("+", "-"):
        return parse_delay_ms(stripped)
    length_ms = parse_delay_ms(stripped[1:])
    return -length_ms if stripped[0] == "-" else length_ms


def _delay_fault(text: str) -> str:
    if re.fullmatch(r"[+-].*", text, re.DOTALL):
        return "has a sign; write a delay without one, such as 90s"
    if re.fullmatch(_NUMBER, text):
        return f"has no unit; write for example {text[:20]}ms or {text[:20]}s"
    return "is not a length of time; write 90s, 1h30m, 250ms (units w d h m s ms, largest first) or PT90S"


def _iso_delay_ms(text: str) -> int:
    found = _ISO.fullmatch(text)
    if found is None or not any(found.groups()):
        raise _illegal(text, "is not an ISO 8601 duration such as PT90S or P1DT2H")
    years, months, *parts = found.groups()
    if years is not None or months is not None:
        raise _illegal(
            text, "counts years or months, whose length varies; give weeks, days, hours, minutes, seconds"
        )
    return _total_ms(text, tuple(parts), (_WEEK_MS, _DAY_MS, _HOUR_MS, _MINUTE_MS, _SECOND_MS))


def _total_ms(text: str, numbers: tuple[str | None, ...], units_ms: tuple[int, ...]) -> int:
    """Return the sum of numbers times units, in whole numbers only."""
    parts = [
        (number, unit_ms) for number, unit_ms in zip(numbers, units_ms, strict=True) if number is not None
    ]
    total_ms = 0
    for place, (number, unit_ms) in enumerate(parts, 1):
        whole, _, fraction = number.replace(",", ".").partition(".")
        if fraction and place < len(parts):
            raise _illegal(text, "has a fraction before its last unit")
        part_ms, rest = divmod(int(whole + fraction) * unit_ms, 10 ** len(fraction))
        if rest:
            raise _illegal(text, "is not a whole number of milliseconds")
        total_ms += part_ms
    if total_ms > _INT64_MAX:
        raise _illegal(text, "is longer than 64 bits of milliseconds")
    return total_ms


def parse_rfc3339_ms(text: str) -> int:
    """Parse an RFC 3339 time into epoch milliseconds; the zone is required, years are 0001 to 9999.

    Digits past the millisecond round up. A leap second (`:60`, only where UTC ends a month) is the first
    second of the next minute, as on a clock without leap seconds. Times before 1970 are negative. Raises
    AdmissionError illegal_delay.
    """
    found = _RFC3339.fullmatch(text) if len(text) <= _TEXT_CHARACTERS_MAX else None
    if found is None:
        local = len(text) <= _TEXT_CHARACTERS_MAX and _LOCAL.fullmatch(text)
        fault = "lacks a zone or seconds" if local else "is not an RFC 3339 time"
        raise _illegal(text, f"{fault}; write it like 2026-12-24T18:00:00+01:00")
    *date_time, fraction, sign, offset_hours, offset_minutes = found.groups()
    year, month, day, hour, minute, second = map(int, date_time)
    offset_min = _offset_min(text, offset_hours, offset_minutes) * (-1 if sign == "-" else 1)
    day_number = _day_number(text, year, month, day)
    if hour > 23 or minute > 59 or second > 60:  # noqa: PLR2004 - the clock's own numbers
        raise _illegal(text, "has no such time of day")
    at_s = day_number * 86_400 + hour * 3_600 + (minute - offset_min) * 60 + second
    if second == 60 and not _ends_utc_month(at_s):  # noqa: PLR2004
        raise _illegal(text, "has second 60, but leap seconds come only at the end of a month of UTC")
    return at_s * 1_000 + _fraction_ms(fraction)


def _offset_min(text: str, hours: str | None, minutes: str | None) -> int:
    if hours is None or minutes is None:
        return 0
    if int(hours) > 23 or int(minutes) > 59:  # noqa: PLR2004
        raise _illegal(text, "has no such zone offset")
    return int(hours) * 60 + int(minutes)


def _day_number(text: str, year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01."""
    try:
        return dt.date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        raise _illegal(text, "has no such date") from None


def _ends_utc_month(at_s: int) -> bool:
    """Tell whether an epoch second is the first of a month of UTC, from the date of the day before it."""
    days, second_of_day = divmod(at_s, 86_400)
    if second_of_day:
        return False
    try:
        last = dt.date.fromordinal(days - 1 + _EPOCH_DAY)
    except ValueError:
        return False
    return last.day == calendar.monthrange(last.year, last.month)[1]


def _fraction_ms(digits: str | None) -> int:
    """Return the milliseconds of the digits after the point, rounded up; 1000 if that fills the second."""
    if digits is None:
        return 0
    return int(digits[:3].ljust(3, "0")) + (digits[3:].strip("0") != "")


def parse_human_ms(text: str, now_ms: int, zone: dt.tzinfo | None = None) -> int:
    """Parse a time as a person writes it into epoch milliseconds; for the command line, not for the API.

    These are tried in order: epoch milliseconds (12 digits or more, or 0), `now`, RFC 3339, ISO without a
    zone, and English as dateparser reads it (`tomorrow 9am`, `in 5 minutes`), taking the future one of two
    readings. A time without a zone is local to `zone`; None is the machine's zone. If clocks go back, it is
    the first of the two; if they go forward, it moves on by the gap. Raises AdmissionError illegal_delay.
    """
    stripped = text.strip()
    if not stripped or len(stripped) > _TEXT_CHARACTERS_MAX:
        raise _illegal(text, "is not a time")
    if stripped.isdecimal():
        return _epoch_ms(stripped)
    if stripped.lower() == "now":
        return now_ms
    if _RFC3339.fullmatch(stripped):
        return parse_rfc3339_ms(stripped)
    local = _LOCAL.fullmatch(stripped)
    try:
        at = _spoken(stripped, now_ms, zone) if local is None else _written(stripped, local, zone)
        return -((_EPOCH - at) // _MS)  # rounded up
    except OverflowError:
        raise _illegal(text, "is not within the years 1 to 9999") from None


def _epoch_ms(text: str) -> int:
    if not _EPOCH_MS.fullmatch(text) or int(text) > _INT64_MAX:
        # Ten digits are epoch seconds, eight a date, four a year: read as milliseconds all are January 1970.
        raise _illegal(text, "is not epoch milliseconds; they have 13 digits now")
    return int(text)


def _written(text: str, found: re.Match[str], zone: dt.tzinfo | None) -> dt.datetime:
    """Parse a local date, or date and time, in ISO form."""
    *numbers, fraction = found.groups(default="0")
    year, month, day, hour, minute, second = map(int, numbers)
    try:
        at = dt.datetime(year, month, day, hour, minute, second)  # noqa: DTZ001 - the zone is put on next
    except ValueError:
        raise _illegal(text, "has no such date or time of day") from None
    return _in_zone(at, zone) + _fraction_ms(fraction) * _MS


def _spoken(text: str, now_ms: int, zone: dt.tzinfo | None) -> dt.datetime:
    """Parse a time in words."""
    mixed = _DAY_AND_MONTH.search(text)
    if mixed and mixed[1] != mixed[2] and max(int(mixed[1]), int(mixed[2])) <= _MONTHS_IN_YEAR:
        raise _illegal(text, "could mean either of two days; write the date like 2026-12-24")
    words = re.findall(r"[a-z]+", text.lower())
    if all(map(_LENGTH_WORD.fullmatch, words)) and any(map(_CLOCK_WORD.fullmatch, words)):
        zone = dt.UTC  # five minutes are five minutes, even if local clocks change on the way
    base = (_EPOCH + now_ms * _MS).astimezone(zone).replace(tzinfo=None)
    at = _ask_dateparser(text, base)
    if at is None:
        raise _illegal(text, "is not a time; write 2026-12-24 18:00, 'tomorrow 9am' or 'in 5 minutes'")
    return at if at.tzinfo is not None else _in_zone(at, zone)


def _ask_dateparser(text: str, base: dt.datetime) -> dt.datetime | None:
    import dateparser  # noqa: PLC0415 - slow to import, and the service never needs it

    settings = {"PREFER_DATES_FROM": "future", "RELATIVE_BASE": base}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"dateparser(\..*)?$")
        at = dateparser.parse(text, languages=["en"], settings=settings)
    return at if isinstance(at, dt.datetime) else None


def _in_zone(local: dt.datetime, zone: dt.tzinfo | None) -> dt.datetime:
    """Convert a local time to UTC: subtracting within one zone would ignore a change of clocks."""
    aware = local.astimezone() if zone is None else local.replace(tzinfo=zone)
    return aware.astimezone(dt.UTC)


def format_ms(ms: int, zone: dt.tzinfo | None = None) -> str:
    """Format a time in ISO 8601 with milliseconds and offset, `2026-12-24T18:00:00.000+01:00`.

    Without a zone the machine's is used. A time whose offset has seconds is given in UTC. A time past the
    year 9999 (or before the year 1) is given as plain milliseconds.
    """
    try:
        utc = _EPOCH + ms * _MS
    except OverflowError:
        return f"{ms} ms since 1970"
    try:
        local = utc.astimezone(zone)
    except (OverflowError, ValueError, OSError):
        local = utc
    offset = local.utcoffset() or dt.timedelta()
    if offset % dt.timedelta(minutes=1):
        local = utc
    return local.isoformat(timespec="milliseconds")


def format_duration(ms: int) -> str:
    """Format a duration in d h m s ms without empty units: `1h30m`, `0ms`, `-5s`."""
    if ms == 0:
        return "0ms"
    rest, parts = abs(ms), []
    for unit, unit_ms in _UNITS_MS.items():
        if unit == "w":
            continue  # 3650d is clearer than 521w3d
        count, rest = divmod(rest, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if ms < 0 else "") + "".join(parts)


def _illegal(text: str, fault: str) -> AdmissionError:
    shown = text if len(text) <= _TEXT_CHARACTERS_MAX else text[:40] + "..."
    return AdmissionError("illegal_delay", f"{shown!r} {fault}")
