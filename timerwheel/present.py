"""Records as clients see them: the way from stored bytes to a `MessageView`."""

import numpy as np
import orjson

from store.errors import CorruptionError
from store.record import HEADER_SIZE, NO_OFFSET, Kind, Record, decode_header
from timerwheel.admission import HASH_PROPERTY
from timerwheel.ids import Ids
from timerwheel.message import MessageView, State

PAGE_BYTES_MAX = 16 << 20


def rows_within(sizes: np.ndarray) -> int:
    """How many records fit one page of PAGE_BYTES_MAX, at least one."""
    return max(int(np.searchsorted(np.cumsum(sizes.astype(np.int64)), PAGE_BYTES_MAX, side="right")), 1)


def damaged_view(ids: Ids, raw: bytes, root: int, error: CorruptionError) -> MessageView:
    """What can be told of a record that fails its CRC; its id is right if its header is whole."""
    header = decode_header(raw.ljust(HEADER_SIZE, b"\0"))
    message_id = ids.encode(root, header.crc if header.root == NO_OFFSET else header.root_crc)
    return MessageView(
        message_id, "", header.queue, State.SCHEDULED, header.due_ms, 0, 0, {}, b"", problem=str(error)
    )


def id_of(ids: Ids, record: Record, root: int) -> str:
    """The id of the message that a record belongs to."""
    header = record.header
    return ids.encode(root, header.crc if header.root == NO_OFFSET else header.root_crc)


def message_view(
    record: Record,
    message_id: str,
    state: State,
    *,
    delivered_ms: int | None = None,
    queue_offset: int | None = None,
    recalled_ms: int | None = None,
) -> MessageView:
    """A record as the client sees it, with the properties that the service sets."""
    header = record.header
    properties: dict[str, str] = orjson.loads(record.properties) if record.properties else {}
    properties.pop(HASH_PROPERTY, None)
    if header.kind == Kind.TIMER:
        properties["REAL_TOPIC"] = record.topic
        properties["REAL_QID"] = str(header.queue)
        properties["TIMER_OUT_MS"] = str(header.due_ms)
        properties["TIMER_ENQUEUE_MS"] = str(header.enqueue_ms)
        properties["TIMER_ROLL_TIMES"] = str(header.rolls)
    elif header.origin != NO_OFFSET:
        properties["TIMER_ENQUEUE_MS"] = str(header.enqueue_ms)
        properties["TIMER_DEQUEUE_MS"] = str(header.store_ms)
        properties["TIMER_ROLL_TIMES"] = str(header.rolls)
    return MessageView(
        message_id,
        record.topic,
        header.queue,
        state,
        header.due_ms,
        header.level,
        header.enqueue_ms,
        properties,
        record.body,
        delivered_ms,
        queue_offset,
        recalled_ms,
    )
