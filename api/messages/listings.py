"""Reads what a listing of messages asks for from its query."""

from msgspec import UNSET, UnsetType

from timerwheel.api.http import query
from timerwheel.api.http.problems import RequestError
from timerwheel.model.listing import FAR, Listing, Times
from timerwheel.model.messages import State
from timerwheel.model.tags import TagFilter
from timerwheel.wire.messages import PendingQuery


def of_query(wanted: PendingQuery) -> Listing:
    """Return the listing; RequestError invalid_parameter, IllegalFilterError."""
    query.check_range("from_ms", wanted.from_ms, "until_ms", wanted.until_ms)
    query.check_range("due_from_ms", wanted.due_from_ms, "due_to_ms", wanted.due_to_ms)
    return Listing(
        topic=None if wanted.topic is UNSET else wanted.topic,
        states=_states(wanted),
        tags=TagFilter(None) if wanted.tag is UNSET else TagFilter.parse(wanted.tag),
        key=None if wanted.key is UNSET else wanted.key,
        at=_times(wanted.from_ms, wanted.until_ms),
        due=_times(wanted.due_from_ms, wanted.due_to_ms),
        newest=wanted.order == "newest",
        reserved=wanted.reserved,
    )


def _states(wanted: PendingQuery) -> frozenset[State]:
    if wanted.state is UNSET:
        return frozenset({State.SCHEDULED} if wanted.key is UNSET else State)
    known = {state.value: state for state in State}
    names = wanted.state.split(",")
    for name in names:
        if name not in known:
            *others, last = known
            raise RequestError(
                "invalid_parameter",
                f"state = {wanted.state!r}: give {', '.join(others)} or {last}, or several with commas",
            )
    return frozenset(known[name] for name in names)


def _times(from_ms: int | UnsetType, until_ms: int | UnsetType) -> Times:
    low = 0 if from_ms is UNSET else from_ms
    return Times(min(low, FAR), FAR if until_ms is UNSET else min(until_ms, FAR))
