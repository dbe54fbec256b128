"""Times as aware datetimes, beside the epoch milliseconds in which everything is counted."""

import datetime as dt

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def instant(time_ms: int) -> dt.datetime:
    """Return epoch milliseconds as an aware datetime in UTC, exact to the millisecond."""
    return _EPOCH + dt.timedelta(milliseconds=time_ms)


def instant_or_none(time_ms: int | None) -> dt.datetime | None:
    """Return what `instant` does, or None for None."""
    return None if time_ms is None else instant(time_ms)
