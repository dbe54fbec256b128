"""The records that earlier versions wrote for leases: logs still have them. See `timerwheel.state.groups`."""

from timerwheel.state.groups import Item
from timerwheel.store.record import FLAG_ENDED, FLAG_LEASE, NO_OFFSET, Kind, encode


def lease(name: bytes, place: tuple[int, int], now_ms: int, due_ms: int) -> bytes:
    """A message at (queue, queue offset) is leased until `due_ms`."""
    return _record(Kind.TIMER, name, now_ms, due_ms, queue=place[0], prior_due_ms=place[1])


def hold(name: bytes, place: tuple[int, int], now_ms: int, lane: int) -> bytes:
    """A message at (queue, queue offset) belongs to a lane."""
    return _record(Kind.HOLD, name, now_ms, lane, queue=place[0], prior_due_ms=place[1])


def retime(name: bytes, item: Item, now_ms: int, due_ms: int, *, ended: bool) -> bytes:
    """The timer of a lease is replaced; with `ended` its receipt ends."""
    flags = FLAG_ENDED if ended else 0
    return _record(
        Kind.TIMER,
        name,
        now_ms,
        due_ms,
        flags=flags,
        queue=item.queue,
        root=item.root,
        origin=item.offset,
        prior_due_ms=item.due_ms,
    )


def _record(kind: Kind, name: bytes, now_ms: int, due_ms: int, *, flags: int = 0, **fields: int) -> bytes:
    values = {"root": NO_OFFSET, "origin": NO_OFFSET} | fields
    return encode(
        kind,
        name,
        b"",
        b"",
        store_ms=now_ms,
        due_ms=due_ms,
        enqueue_ms=now_ms,
        flags=flags | FLAG_LEASE,
        **values,
    )
