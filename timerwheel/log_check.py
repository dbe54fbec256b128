"""Reading the whole log once, after its index was lost.

The rebuild takes sealed segments from their sidecars, so it does not meet damage in what they stand for; the
messages there would be found damaged one by one, each when it is due or asked for. Runs beside the work, in
steps, since it takes as long as the disk needs.
"""

import itertools
import logging
from collections.abc import Iterator
from typing import TypeAlias

from store.errors import OffsetError
from store.log import CommitLog
from store.segment import SEGMENT_HEADER_SIZE, Damage, blocks, resume
from timerwheel.threads import Threads

Place: TypeAlias = tuple[Damage, int | None]  # with where whole records go on

BLOCKS_AT_ONCE = 4  # each of about a mebibyte
PLACES_TOLD_MAX = 20

logger = logging.getLogger("timerwheel")


async def check_log(log: CommitLog, threads: Threads) -> None:
    """Look at every sealed segment, and tell of each damaged place; the last one was read at the start."""
    places = 0
    for base in log.bases[:-1]:
        found = _damages(log, base)
        while step := await threads.read(_step, found):
            for damage, later in filter(None, step):
                places += 1
                if places <= PLACES_TOLD_MAX:
                    _tell(log, base, damage, later)
    if places:
        logger.error(
            "the log is damaged in %d place(s): what was stored there cannot be read. Delete nothing; "
            "`timerwheel fsck` lists the places; see whether a backup has them whole",
            places,
        )
    else:
        logger.info("the log was read after the index was made anew: no sealed segment is damaged")


def _step(found: Iterator[Place | None]) -> list[Place | None]:
    return list(itertools.islice(found, BLOCKS_AT_ONCE))


def _damages(log: CommitLog, base: int) -> Iterator[Place | None]:
    """None for each part that is whole; damage with where whole records go on in this segment, if they do."""
    at: int | None = base + SEGMENT_HEADER_SIZE
    while at is not None:
        begin, at = at, None
        try:
            end = log.end_of(base)
            file = log.file(base)
            for found in blocks(file, base, begin, end):
                begin = found.offset
                if isinstance(found, Damage):
                    at = resume(file, base, begin, end)
                    yield found, at
                else:
                    yield None
        except OffsetError:
            return  # retention has just removed it
        except OSError as error:
            yield Damage(begin, f"it cannot be read: {error}"), None


def _tell(log: CommitLog, base: int, damage: Damage, later: int | None) -> None:
    goes_on = "nothing whole follows in this file" if later is None else f"whole records go on at {later}"
    told = (log.path(base), damage.offset, damage.reason, goes_on)
    logger.error("%s: damaged at log offset %d: %s; %s", *told)
