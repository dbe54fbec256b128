"""The shape of the wheel: which slot a due time belongs to, and which slot cascades next. Pure.

    level     slot   holds due times                          cascades into
    second    1 s    before second_until                      memory (the near wheel)
    minute    1 min  second_until ≤ due < minute_until        second slots
    hour      1 h    minute_until ≤ due < hour_until          minute slots
    day       1 d    hour_until ≤ due, without end            hour slots

The three horizons are stored with the index. Each advances by whole slots of the level above it, so the
slot of a timer is a function of its due time and the horizons alone, whatever the clock does:

    now      second_until         minute_until              hour_until
     |-seconds-|------minutes-------|---------hours-----------|------days----->

Invariants:
1. second_until ≤ minute_until ≤ hour_until; each is a multiple of the slot width of the level it opens.
2. Horizons only grow. A clock that steps back leaves them where they are.
3. A slot cascades only when its start is the horizon, so each entry moves down at most three times.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000

# How far ahead of the clock each horizon is kept: enough time to move a large slot in small steps.
SECONDS_AHEAD_MS = 3 * MINUTE_MS
MINUTES_AHEAD_MS = 2 * HOUR_MS
HOURS_AHEAD_MS = 2 * DAY_MS


class Level(IntEnum):
    """The levels of the wheel, finest first."""

    SECOND = 0
    MINUTE = 1
    HOUR = 2
    DAY = 3


SLOT_MS = (SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS)
LEVEL_NAMES = ("second", "minute", "hour", "day")


class Horizons(NamedTuple):
    """The due time at which each level ends and the next coarser one begins, epoch milliseconds."""

    second_until: int
    minute_until: int
    hour_until: int


class Cascade(NamedTuple):
    """One step: move the slot at `start_ms` of `level` down; the horizons become `after`."""

    level: Level
    start_ms: int
    after: Horizons


def round_up(value: int, width: int) -> int:
    """Round up to a multiple of `width`."""
    return -(-value // width) * width


def first_horizons(now_ms: int) -> Horizons:
    """Return the horizons of an empty wheel."""
    hour_until = round_up(now_ms + HOURS_AHEAD_MS, DAY_MS)
    minute_until = round_up(now_ms + MINUTES_AHEAD_MS, HOUR_MS)
    return Horizons(round_up(now_ms + SECONDS_AHEAD_MS, MINUTE_MS), minute_until, hour_until)


def place(due_ms: np.ndarray, horizons: Horizons) -> tuple[np.ndarray, np.ndarray]:
    """Return the level and slot start of each due time."""
    levels = (
        (due_ms >= horizons.second_until).astype(np.int64)
        + (due_ms >= horizons.minute_until)
        + (due_ms >= horizons.hour_until)
    )
    widths = np.array(SLOT_MS, np.int64)[levels]
    return levels, due_ms // widths * widths


def next_cascade(
    horizons: Horizons, now_ms: int, first_slot: Callable[[Level], int | None]
) -> Cascade | Horizons | None:
    """Return the next step that keeps the horizons ahead of the clock; None if they are far enough ahead.

    `first_slot` returns the first slot in use of a level. A `Horizons` answer skips empty time at no cost, so
    the wheel catches up after an outage of years in a few steps.
    """
    second, minute, hour = horizons
    seconds_wanted = now_ms + SECONDS_AHEAD_MS
    minutes_wanted = max(now_ms + MINUTES_AHEAD_MS, second + 1)
    hours_wanted = max(now_ms + HOURS_AHEAD_MS, minute + 1)
    if second < seconds_wanted and second < minute:
        return _step(Level.MINUTE, second, seconds_wanted, minute, horizons, first_slot)
    if (second < seconds_wanted or minute < minutes_wanted) and minute < hour:
        return _step(Level.HOUR, minute, max(minutes_wanted, seconds_wanted), hour, horizons, first_slot)
    if second < seconds_wanted or minute < minutes_wanted or hour < hours_wanted:
        return _step(Level.DAY, hour, max(hours_wanted, minutes_wanted), None, horizons, first_slot)
    return None


def _step(
    level: Level,
    at: int,
    wanted: int,
    bound: int | None,
    horizons: Horizons,
    first_slot: Callable[[Level], int | None],
) -> Cascade | Horizons:
    """Cascade the slot at the horizon `at`, or skip to the next slot in use if that one is empty."""
    width = SLOT_MS[level]
    first = first_slot(level)
    if first is not None and first <= at:
        return Cascade(level, at, _advanced(level, at + width, horizons))
    until = round_up(wanted, width)
    if first is not None:
        until = min(until, first)
    if bound is not None:
        until = min(until, bound)
    return _advanced(level, until, horizons)


def _advanced(level: Level, until: int, horizons: Horizons) -> Horizons:
    if level == Level.MINUTE:
        return horizons._replace(second_until=until)
    if level == Level.HOUR:
        return horizons._replace(minute_until=until)
    return horizons._replace(hour_until=until)
