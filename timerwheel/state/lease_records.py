"""The records by which a group's items change: see `timerwheel.state.groups` for what each does. Pure.

None has properties or a body. `name` is the group's, `topic/group`, as bytes.
"""

from timerwheel.state.groups import Item
from timerwheel.store.record import FLAG_ENDED, FLAG_LEASE, HEADER_SIZE, NO_OFFSET, Kind, encode

EXPIRED = 2
"""In an ACK or CANCEL, as `rolls`: no consumer acknowledged the message, its TTL was over."""


def ack(name: bytes, queue: int, first: int, end: int, now_ms: int, *, given_up: bool = False) -> bytes:
    """The fresh messages in [first, end) of a queue are done, or `given_up` without a copy."""
    flags = FLAG_ENDED if given_up else 0
    return _record(Kind.ACK, name, now_ms, end, flags=flags, queue=queue, prior_due_ms=first)


def skip(name: bytes, queue: int, first: int, end: int, now_ms: int) -> bytes:
    """The messages in [first, end) of a queue are excluded by the filter, or gone."""
    return _record(Kind.ACK, name, now_ms, end, queue=queue, prior_due_ms=first, rolls=1)


def expire(name: bytes, queue: int, first: int, end: int, now_ms: int) -> bytes:
    """The fresh messages in [first, end) of a queue are over their TTL."""
    return _record(Kind.ACK, name, now_ms, end, queue=queue, prior_due_ms=first, rolls=EXPIRED)


def retry(
    name: bytes, place: tuple[int, int], attempt: int, now_ms: int, due_ms: int, *, ended: bool
) -> bytes:
    """An attempt at the message at (queue, queue offset) failed; `ended` if it was given back."""
    flags = FLAG_ENDED if ended else 0
    return _record(
        Kind.TIMER, name, now_ms, due_ms, flags=flags, queue=place[0], prior_due_ms=place[1], rolls=attempt
    )


def redrive(name: bytes, place: tuple[int, int], now_ms: int) -> bytes:
    """The dead letter at (DEAD_QUEUE, queue offset) is redelivered, starting at the first attempt."""
    return _record(Kind.TIMER, name, now_ms, now_ms, flags=FLAG_ENDED, queue=place[0], prior_due_ms=place[1])


def hold(name: bytes, place: tuple[int, int], now_ms: int, lane: int) -> bytes:
    """The message at (queue, queue offset), whose retry follows, belongs to a lane."""
    return _record(Kind.HOLD, name, now_ms, lane, queue=place[0], prior_due_ms=place[1], rolls=1)


def retime(name: bytes, item: Item, now_ms: int, due_ms: int, *, ended: bool) -> bytes:
    """The timer of a lease stored by an earlier version is replaced; with `ended` its receipt ends."""
    return _record(
        Kind.TIMER,
        name,
        now_ms,
        due_ms,
        flags=FLAG_ENDED if ended else 0,
        queue=item.queue,
        root=item.root,
        origin=item.offset,
        prior_due_ms=item.due_ms,
    )


def came_back(name: bytes, queue: int, root: int, offset: int, due_ms: int, now_ms: int) -> bytes:
    """The timer of a lease has fired."""
    return _record(
        Kind.MESSAGE, name, now_ms, due_ms, queue=queue, root=root, origin=offset, prior_due_ms=due_ms
    )


def end(name: bytes, item: Item, now_ms: int, *, given_up: bool = False, expired: bool = False) -> bytes:
    """The message of an item is done, `given_up` without a copy, or over its TTL; ends its timer, if any."""
    return _record(
        Kind.CANCEL,
        name,
        now_ms,
        item.due_ms,
        flags=FLAG_ENDED if given_up else 0,
        queue=item.queue,
        root=item.root,
        origin=item.offset if item.timed else NO_OFFSET,
        prior_due_ms=item.due_ms if item.timed else item.queue_offset,
        rolls=EXPIRED if expired else 0,
    )


def take_dead(topic: bytes, queue_offset: int, now_ms: int) -> bytes:
    """A dead letter is redriven, dropped or drained; `topic` is that of the dead letters."""
    return _record(Kind.CANCEL, topic, now_ms, now_ms, prior_due_ms=queue_offset)


def timer_size(name: bytes) -> int:
    """Bytes of a lease's timer record."""
    size = HEADER_SIZE + len(name)
    return size + (-size & 7)


def _record(  # noqa: PLR0913 - the fields in which these records differ
    kind: Kind,
    name: bytes,
    now_ms: int,
    due_ms: int,
    *,
    flags: int = 0,
    queue: int = 0,
    root: int = NO_OFFSET,
    origin: int = NO_OFFSET,
    prior_due_ms: int = 0,
    rolls: int = 0,
) -> bytes:
    return encode(
        kind,
        name,
        b"",
        b"",
        store_ms=now_ms,
        due_ms=due_ms,
        enqueue_ms=now_ms,
        flags=flags | FLAG_LEASE,
        queue=queue,
        root=root,
        origin=origin,
        prior_due_ms=prior_due_ms,
        rolls=rolls,
    )
