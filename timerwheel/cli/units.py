"""Parses and formats sizes and durations for the command line, in whole bytes and milliseconds."""

import re
from collections.abc import Callable

import typer

from timerwheel.errors import AdmissionError
from timerwheel.model.durations import format_duration, parse_delay_ms

_SECOND_MS = 1_000
YEAR_MS = 365 * 86_400_000
_SIZE_BYTES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE = re.compile(r"([0-9]{1,19})\s*([a-z]{0,3})", re.ASCII)
_YEARS = re.compile(r"([0-9]{1,4})y\s*(.*)", re.ASCII)
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:/(s|m|h))?", re.ASCII)
_RATE_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}
_WHOLE_UNITS = ("TiB", "GiB", "MiB", "KiB")


def parse_length_ms(text: str) -> int:
    """Like `read_length_ms`, but raises BadParameter, as a flag needs."""
    try:
        return read_length_ms(text)
    except AdmissionError as error:
        raise typer.BadParameter(str(error)) from None


def length_between(low_ms: int, high_ms: int) -> Callable[[str], int]:
    """A parser of durations from `low_ms` to `high_ms`, both included; raises BadParameter."""

    def parse(text: str) -> int:
        length_ms = parse_length_ms(text)
        if not low_ms <= length_ms <= high_ms:
            bounds = f"{format_duration(low_ms)} to {format_duration(high_ms)}"
            raise typer.BadParameter(f"{text!r}: give a duration from {bounds}")
        return length_ms

    return parse


def read_length_ms(text: str) -> int:
    """Milliseconds of `90s`, `1h30m`, `PT90S`, and of years of 365 days: `10y`. Raises AdmissionError."""
    stripped = text.strip()
    years = _YEARS.fullmatch(stripped)
    years_ms, rest = (int(years[1]) * YEAR_MS, years[2]) if years else (0, stripped)
    if years and not rest:
        return years_ms
    if rest == "0":
        return years_ms
    return years_ms + parse_delay_ms(rest)


def parse_rate(text: str) -> float:
    """A number per second of `100/s`, `30/m`, `500/h`; without a unit per second. Raises BadParameter."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a rate; write 100/s, 30/m or 500/h")
    return float(found[1]) / _RATE_SECONDS[found[2]]


def format_rate(per_second: float) -> str:
    """A number per second in the unit in which it is at least one: `1,000/s`, `2/m`, `0.5/h`."""
    for unit, seconds in (("s", 1), ("m", 60)):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:,g}/{unit}"
    return f"{per_second * 3600:g}/h"


def read_size_bytes(text: str) -> int:
    """Bytes of `256MiB`, `64k`, `1GB` or a plain number. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _SIZE_BYTES:
        raise ValueError(f"{text!r} is not a size; write 256MiB, 64KiB, 1GB or a number of bytes")
    return int(found[1]) * _SIZE_BYTES[found[2]]


def format_size(size_bytes: int) -> str:
    """The size in the largest binary unit that is exact, `128MiB`."""
    for place, unit in enumerate(_WHOLE_UNITS):
        unit_bytes = 1 << (10 * (len(_WHOLE_UNITS) - place))
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return f"{size_bytes}B"


def format_about(ms: int) -> str:
    """A rounded duration: `2h40m` instead of `2h40m11s310ms`."""
    for from_ms, step_ms in ((2 * 86_400_000, 3_600_000), (3_600_000, 60_000), (10_000, 1_000)):
        if abs(ms) >= from_ms:
            return format_duration(ms // step_ms * step_ms)
    return format_duration(ms)


def format_distance(at_ms: int, now_ms: int) -> str:
    """The distance of a time from now: `in 2h40m`, `5s ago`, `now`."""
    if at_ms == now_ms:
        return "now"
    distance_ms = abs(at_ms - now_ms)
    about = format_about(distance_ms // _SECOND_MS * _SECOND_MS or distance_ms)
    return f"in {about}" if at_ms > now_ms else f"{about} ago"
