"""The records by which a group's items change: see `timerwheel.state.groups` for what each does. Pure.

None has properties or a body. `name` is the group's, `topic/group`, as bytes.
"""

from timerwheel.state.groups import Item
from timerwheel.store.record import FLAG_ENDED, FLAG_LEASE, HEADER_SIZE, NO_OFFSET, AckReason, Kind, encode

_RETRY_FOLLOWS = 1  # in a HOLD, in the field of the attempt; 0 in those of earlier versions


def ack(name: bytes, queue: int, first: int, end: int, now_ms: int, *, given_up: bool = False) -> bytes:
    """The fresh messages in [first, end) of a queue are done, or `given_up` without a copy."""
    flags = FLAG_ENDED if given_up else 0
    return _record(Kind.ACK, name, now_ms, queue=queue, queue_offset=first, end_offset=end, flags=flags)


def skip(name: bytes, queue: int, first: int, end: int, now_ms: int) -> bytes:
    """The messages in [first, end) of a queue are excluded by the filter, or gone."""
    reason = AckReason.PASSED_OVER
    return _record(Kind.ACK, name, now_ms, queue=queue, queue_offset=first, end_offset=end, reason=reason)


def expire(name: bytes, queue: int, first: int, end: int, now_ms: int) -> bytes:
    """The fresh messages in [first, end) of a queue are over their TTL."""
    reason = AckReason.EXPIRED
    return _record(Kind.ACK, name, now_ms, queue=queue, queue_offset=first, end_offset=end, reason=reason)


def retry(
    name: bytes, place: tuple[int, int], attempt: int, now_ms: int, due_ms: int, *, ended: bool
) -> bytes:
    """An attempt at the message at (queue, queue offset) failed; `ended` if it was given back."""
    flags = FLAG_ENDED if ended else 0
    return _record(
        Kind.TIMER,
        name,
        now_ms,
        due_ms=due_ms,
        queue=place[0],
        queue_offset=place[1],
        attempt=attempt,
        flags=flags,
    )


def redrive(name: bytes, place: tuple[int, int], now_ms: int) -> bytes:
    """The dead letter at (DEAD_QUEUE, queue offset) is redelivered, starting at the first attempt."""
    queue, queue_offset = place
    return _record(
        Kind.TIMER, name, now_ms, due_ms=now_ms, queue=queue, queue_offset=queue_offset, flags=FLAG_ENDED
    )


def hold(name: bytes, place: tuple[int, int], now_ms: int, lane: int) -> bytes:
    """The message at (queue, queue offset), whose retry follows, belongs to a lane."""
    return _record(
        Kind.HOLD,
        name,
        now_ms,
        key_hash=lane,
        queue=place[0],
        queue_offset=place[1],
        attempt=_RETRY_FOLLOWS,
    )


def retime(name: bytes, item: Item, now_ms: int, due_ms: int, *, ended: bool) -> bytes:
    """The timer of a lease stored by an earlier version is replaced; with `ended` its receipt ends."""
    return _record(
        Kind.TIMER,
        name,
        now_ms,
        due_ms=due_ms,
        flags=FLAG_ENDED if ended else 0,
        queue=item.queue,
        root=item.root,
        origin=item.offset,
        prior_due_ms=item.due_ms,
    )


def ready_again(name: bytes, queue: int, root: int, offset: int, due_ms: int, now_ms: int) -> bytes:
    """The timer of a lease has fired."""
    return _record(
        Kind.MESSAGE,
        name,
        now_ms,
        due_ms=due_ms,
        queue=queue,
        root=root,
        origin=offset,
        prior_due_ms=due_ms,
    )


def end(name: bytes, item: Item, now_ms: int, *, given_up: bool = False, expired: bool = False) -> bytes:
    """The message of an item is done, `given_up` without a copy, or over its TTL; ends its timer, if any."""
    return _record(
        Kind.CANCEL,
        name,
        now_ms,
        due_ms=item.due_ms,
        flags=FLAG_ENDED if given_up else 0,
        queue=item.queue,
        root=item.root,
        origin=item.offset if item.timed else NO_OFFSET,
        prior_due_ms=item.due_ms if item.timed else 0,
        queue_offset=0 if item.timed else item.queue_offset,
        reason=AckReason.EXPIRED if expired else AckReason.DONE,
    )


def take_dead(topic: bytes, queue_offset: int, now_ms: int) -> bytes:
    """A dead letter is redriven, dropped or drained; `topic` is that of the dead letters."""
    return _record(Kind.CANCEL, topic, now_ms, due_ms=now_ms, queue_offset=queue_offset)


def timer_size(name: bytes) -> int:
    """Bytes of a lease's timer record."""
    size = HEADER_SIZE + len(name)
    return size + (-size & 7)


def _record(  # noqa: PLR0913 - the fields in which these records differ
    kind: Kind,
    name: bytes,
    now_ms: int,
    *,
    due_ms: int = 0,
    end_offset: int = 0,
    key_hash: int = 0,
    queue_offset: int = 0,
    prior_due_ms: int = 0,
    attempt: int = 0,
    reason: AckReason = AckReason.DONE,
    flags: int = 0,
    queue: int = 0,
    root: int = NO_OFFSET,
    origin: int = NO_OFFSET,
) -> bytes:
    """Encode a record. Three fields of the header mean different things in different records.

    Give at most one of `due_ms`, `end_offset` and `key_hash`, one of `queue_offset` and `prior_due_ms`, and
    one of `attempt` and `reason`.
    """
    return encode(
        kind,
        name,
        b"",
        b"",
        store_ms=now_ms,
        due_ms=due_ms or end_offset or key_hash,
        enqueue_ms=now_ms,
        flags=flags | FLAG_LEASE,
        queue=queue,
        root=root,
        origin=origin,
        prior_due_ms=queue_offset or prior_due_ms,
        rolls=attempt or reason,
    )
