"""What records mean, as questions to rows of a record table (`store.table.ROW_DTYPE`). Pure.

The service (`timerwheel.view`), its check (`timerwheel.fsck`) and the jobs on Spark ask the same ones.
"""

import numpy as np

from store.record import FLAG_EARLY, FLAG_LEASE, NO_OFFSET, Kind
from store.table import Rows

_NONE = np.uint64(NO_OFFSET)


def is_visible(rows: Rows) -> np.ndarray:
    """Which rows are of messages that consumers can read."""
    messages: np.ndarray = rows["kind"] == Kind.MESSAGE
    return messages & (rows["flags"] & FLAG_LEASE == 0) if messages.any() else messages


def visible_rows(rows: Rows) -> Rows:
    """The rows of messages that consumers can read."""
    visible: Rows = rows[is_visible(rows)]
    return visible


def has_origin(rows: Rows) -> np.ndarray:
    """Which rows end or replace an earlier record."""
    found: np.ndarray = rows["origin"] != _NONE
    return found


def forget_origins(rows: Rows, floor: int) -> None:
    """For a log that begins at `floor`: what a timer replaced before that is as if it had never been."""
    rows["origin"][rows["origin"] < floor] = _NONE


def marked_rows(rows: Rows) -> Rows:
    """The rows that speak for their message from now on: all but ordinary deliveries, and leases."""
    leads = (rows["kind"] != Kind.MESSAGE) | (rows["flags"] & FLAG_EARLY != 0)
    leads &= has_origin(rows) & (rows["flags"] & FLAG_LEASE == 0)
    marked: Rows = rows[leads]
    return marked


def fired_until_ms(rows: Rows) -> int:
    """One past the latest due time of the timers that fired when they were due; 0 if none did."""
    fired = (rows["kind"] == Kind.MESSAGE) & has_origin(rows) & (rows["flags"] & FLAG_EARLY == 0)
    return int(rows["due_ms"][fired].max()) + 1 if fired.any() else 0
