"""The records by which a group's items change: see `timerwheel.groups.state` for what each does. Pure."""

from store.record import FLAG_ENDED, FLAG_LEASE, HEADER_SIZE, NO_OFFSET, Kind, encode
from timerwheel.groups.state import Item

_NOTHING = b""


def lease(name: bytes, place: tuple[int, int], now_ms: int, due_ms: int, *, ended: bool = False) -> bytes:
    """A message at (queue, queue offset) is leased until `due_ms`; with `ended` it waits without receipt."""
    return encode(
        Kind.TIMER,
        name,
        _NOTHING,
        _NOTHING,
        store_ms=now_ms,
        due_ms=due_ms,
        enqueue_ms=now_ms,
        flags=FLAG_LEASE | (FLAG_ENDED if ended else 0),
        queue=place[0],
        prior_due_ms=place[1],
    )


def hold(name: bytes, place: tuple[int, int], now_ms: int, lane: int) -> bytes:
    """A message at (queue, queue offset) belongs to a lane."""
    return encode(
        Kind.HOLD,
        name,
        _NOTHING,
        _NOTHING,
        store_ms=now_ms,
        due_ms=lane,
        enqueue_ms=now_ms,
        flags=FLAG_LEASE,
        queue=place[0],
        prior_due_ms=place[1],
    )


def retime(name: bytes, item: Item, now_ms: int, due_ms: int, *, ended: bool) -> bytes:
    """The timer of a lease is replaced; with `ended` its receipt ends."""
    return encode(
        Kind.TIMER,
        name,
        _NOTHING,
        _NOTHING,
        store_ms=now_ms,
        due_ms=due_ms,
        enqueue_ms=now_ms,
        flags=FLAG_LEASE | (FLAG_ENDED if ended else 0),
        queue=item.queue,
        root=item.root,
        origin=item.offset,
        prior_due_ms=item.due_ms,
    )


def came_back(name: bytes, queue: int, root: int, offset: int, due_ms: int, now_ms: int) -> bytes:
    """The timer of a lease has fired."""
    return encode(
        Kind.MESSAGE,
        name,
        _NOTHING,
        _NOTHING,
        store_ms=now_ms,
        due_ms=due_ms,
        enqueue_ms=now_ms,
        flags=FLAG_LEASE,
        queue=queue,
        root=root,
        origin=offset,
        prior_due_ms=due_ms,
    )


def end(name: bytes, item: Item, now_ms: int) -> bytes:
    """The message of an item is done; ends its timer if one waits."""
    return encode(
        Kind.CANCEL,
        name,
        _NOTHING,
        _NOTHING,
        store_ms=now_ms,
        due_ms=item.due_ms,
        enqueue_ms=now_ms,
        flags=FLAG_LEASE,
        queue=item.queue,
        root=item.root,
        origin=item.offset if item.timed else NO_OFFSET,
        prior_due_ms=item.due_ms if item.timed else item.queue_offset,
    )


def take_dead(topic: bytes, queue_offset: int, now_ms: int) -> bytes:
    """A dead letter is redriven or dropped."""
    return encode(
        Kind.CANCEL,
        topic,
        _NOTHING,
        _NOTHING,
        store_ms=now_ms,
        due_ms=now_ms,
        enqueue_ms=now_ms,
        flags=FLAG_LEASE,
        prior_due_ms=queue_offset,
    )


def timer_size(name: bytes) -> int:
    """Bytes of a lease's timer record."""
    size = HEADER_SIZE + len(name)
    return size + (-size & 7)
