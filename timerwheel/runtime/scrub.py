"""Reads the whole log once, after the index was lost.

The rebuild reads the sidecars of sealed segments, so it does not notice damage in the records behind them.
They would be found damaged one by one, when they are due or requested. This check runs beside normal work, in
steps, because it takes as long as the disk needs.
"""

import itertools
import logging
from collections.abc import Iterator
from typing import TypeAlias

from timerwheel.runtime.threads import Threads
from timerwheel.store.errors import OffsetError
from timerwheel.store.log import CommitLog
from timerwheel.store.segment import SEGMENT_HEADER_SIZE, Gap, walk

Place: TypeAlias = tuple[Gap, int]

BLOCKS_AT_ONCE = 4  # each of about a mebibyte
PLACES_LOGGED_MAX = 20

logger = logging.getLogger("timerwheel")


async def check_log(log: CommitLog, threads: Threads) -> None:
    """Read every sealed segment and log each damaged place; the start has already read the last one."""
    places = 0
    for base in log.bases[:-1]:
        found = _damages(log, base)
        while step := await threads.read(_step, found):
            for gap, end in filter(None, step):
                places += 1
                if places <= PLACES_LOGGED_MAX:
                    _log_damage(log, base, gap, end)
    if places:
        logger.error(
            "the log is damaged in %d place(s); the records there cannot be read. Delete nothing. "
            "`timerwheel fsck` lists the damage; check whether a backup has these records",
            places,
        )
    else:
        logger.info("checked the log after the index rebuild: no sealed segment is damaged")


def _step(found: Iterator[Place | None]) -> list[Place | None]:
    return list(itertools.islice(found, BLOCKS_AT_ONCE))


def _damages(log: CommitLog, base: int) -> Iterator[Place | None]:
    """Yield None for each intact part of the segment, and (gap, end of the segment) for each damaged one."""
    at = end = base + SEGMENT_HEADER_SIZE
    try:
        end = log.end_of(base)
        for found in walk(log.file(base), base, at, end):
            if isinstance(found, Gap):
                at = found.end
                yield found, end
            else:
                at = found.offset
                yield None
    except OffsetError:
        return  # retention has just removed it
    except OSError as error:
        yield Gap(at, end, f"it cannot be read: {error}"), end


def _log_damage(log: CommitLog, base: int, gap: Gap, end: int) -> None:
    goes_on = (
        f"intact records continue at offset {gap.end}"
        if gap.end < end
        else "no intact record follows in this file"
    )
    logger.error("%s: damaged at log offset %d: %s; %s", log.path(base), gap.start, gap.reason, goes_on)
