"""Converts stored records into the `MessageView` that clients see."""

import logging
from collections.abc import Sequence

import numpy as np
import orjson

from timerwheel.model.admission import DOMAIN_PROPERTY, ENVELOPE_PROPERTY, HASH_PROPERTY
from timerwheel.model.ids import Ids
from timerwheel.model.messages import MessageView, State
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import (
    HEADER_SIZE,
    NO_OFFSET,
    Header,
    Kind,
    Record,
    header_in,
    unpack_header,
)

logger = logging.getLogger("timerwheel")

PAGE_BYTES_MAX = 16 << 20
# Looking up an enumeration member costs as much as reading a header.
_DELIVERED = State.DELIVERED
_CRC, _ROOT_CRC, _ROOT = (Header._fields.index(name) for name in ("crc", "root_crc", "root"))


def rows_within(sizes: np.ndarray, bytes_max: int = PAGE_BYTES_MAX) -> int:
    """Return how many records of these sizes have at most `bytes_max` together, at least one."""
    return max(int(np.searchsorted(np.cumsum(sizes.astype(np.int64)), bytes_max, side="right")), 1)


def damaged_id(ids: Ids, root: int, remains: bytes) -> str:
    """Return the id under which a message is listed whose record is damaged; right if its header is whole."""
    return ids.encode(root, header_in(remains).identity(root).root_crc)


def damaged_view(ids: Ids, root: int, error: CorruptionError) -> MessageView:
    """Build the view of a record that is damaged; see `damaged_id` for its id."""
    header, message_id = header_in(error.remains), damaged_id(ids, root, error.remains)
    logger.error("message %s cannot be read: %s", message_id, error)
    return MessageView(
        message_id, "", header.queue, State.SCHEDULED, header.due_ms, 0, 0, {}, b"", problem=str(error)
    )


def id_of(ids: Ids, record: Record, root: int) -> str:
    """Return the id of the message that a record belongs to."""
    return ids.encode(root, record.header.identity(root).root_crc)


def ids_of(ids: Ids, headers: Sequence[tuple[int, ...]], roots: Sequence[int]) -> list[str]:
    """Return the ids of the messages that records with these headers belong to; their roots are here."""
    crcs = [header[_CRC] if header[_ROOT] == NO_OFFSET else header[_ROOT_CRC] for header in headers]
    return ids.encode_each(roots, crcs)


def message_view(
    record: Record,
    message_id: str,
    state: State,
    *,
    delivered_ms: int | None = None,
    queue_offset: int | None = None,
    recalled_ms: int | None = None,
) -> MessageView:
    """Build the view of a record, with the properties that the service sets."""
    header = record.header
    properties: dict[str, str] = orjson.loads(record.properties) if record.properties else {}
    if properties.pop(HASH_PROPERTY, None) is not None:
        properties.pop(DOMAIN_PROPERTY, None)
    envelope = properties.pop(ENVELOPE_PROPERTY, "")
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
        envelope=envelope,
    )


def delivered_views(
    ids: Ids, records: Sequence[bytes], roots: Sequence[int], queue_offsets: Sequence[int]
) -> list[MessageView]:
    """Build the views of delivered messages from their whole records, as `message_view` would.

    About 1 µs for each of many. `roots` are the offsets of the messages' first records.
    """
    headers = list(map(unpack_header, records))
    views: list[MessageView] = []
    made_ids = ids_of(ids, headers, roots)
    for header, data, made_id, queue_offset in zip(headers, records, made_ids, queue_offsets, strict=True):
        # fmt: off
        (_, _, _, _, _, level, queue, rolls, topic_len, _, properties_len, body_len,
         _, _, origin, store_ms, due_ms, enqueue_ms, _) = header
        # fmt: on
        properties_at = HEADER_SIZE + topic_len
        body_at = properties_at + properties_len
        properties: dict[str, str] = {}
        envelope = ""
        if properties_len:
            properties = orjson.loads(data[properties_at:body_at])
            if properties.pop(HASH_PROPERTY, None) is not None:
                properties.pop(DOMAIN_PROPERTY, None)
            envelope = properties.pop(ENVELOPE_PROPERTY, "")
        if origin != NO_OFFSET:
            properties["TIMER_ENQUEUE_MS"] = str(enqueue_ms)
            properties["TIMER_DEQUEUE_MS"] = str(store_ms)
            properties["TIMER_ROLL_TIMES"] = str(rolls)
        views.append(
            MessageView(
                made_id,
                data[HEADER_SIZE:properties_at].decode(),
                queue,
                _DELIVERED,
                due_ms,
                level,
                enqueue_ms,
                properties,
                data[body_at : body_at + body_len],
                store_ms,
                queue_offset,
                envelope=envelope,
            )
        )
    return views
