"""The current records of many messages, read together, and the CANCEL for a timer.

Called in reader threads. `MessageReader.current` does the same for one message.
"""

from collections.abc import Sequence
from typing import NamedTuple

from timerwheel.store.errors import CorruptionError, OffsetError
from timerwheel.store.log_reader import LogReader
from timerwheel.store.record import (
    HEADER_SIZE,
    Header,
    Kind,
    Record,
    decode_header,
    encode,
    is_whole,
)

_SPAN_BYTES = 65_536
_GAP_BYTES = 8_192

_CANCEL = int(Kind.CANCEL)


class Successor(NamedTuple):
    """The record that follows a message's current record; `due_ms` if the message is still scheduled then."""

    record: bytes
    due_ms: int | None


class CurrentRecord(NamedTuple):
    """The current record of a message, without its payload; what follows it, or the code of why nothing."""

    root: int
    offset: int
    record: Record
    successor: Successor | str = ""


def current_record_of(data: bytes, root: int, offset: int) -> CurrentRecord:
    """Build the CurrentRecord from a whole record."""
    header = decode_header(data)
    topic = data[HEADER_SIZE : HEADER_SIZE + header.topic_len].decode()
    return CurrentRecord(root, offset, Record(header, topic, b"", b""))


def cancel_of(header: Header, topic: bytes, root: int, offset: int, now_ms: int, flags: int = 0) -> bytes:
    """Return the CANCEL that ends the timer with this header at `offset`."""
    due_ms, root_crc = header.due_ms, header.identity(root).root_crc
    return encode(  # by place, which is faster: a bulk recall makes thousands at once
        *(_CANCEL, topic, b"", b"", now_ms, due_ms, header.enqueue_ms, flags, 0, header.queue, 0),
        *(root, root_crc, offset, due_ms, header.level),
    )


def read_at(log: LogReader, offsets: Sequence[int]) -> list[bytes | CorruptionError | None]:
    """Read the records at these offsets, in the order given; neighbours are read together.

    An item is None where no record can be, and an error where the record is damaged.
    """
    found: list[bytes | CorruptionError | None] = [b""] * len(offsets)
    order = sorted(range(len(offsets)), key=offsets.__getitem__)
    span, begin = b"", 0
    for place, following in zip(order, [*order[1:], None], strict=False):
        offset = offsets[place]
        try:
            log.base_of(offset)
            at = offset - begin
            if at >= len(span) and following is not None and offsets[following] - offset < _GAP_BYTES:
                span, begin, at = log.read_raw(offset, _SPAN_BYTES), offset, 0
            size = int.from_bytes(span[at : at + 4], "little")
            record = span[at : at + size]
            found[place] = record if offset % 8 == 0 and is_whole(record, size) else log.read(offset)
        except OffsetError:
            found[place] = None
        except CorruptionError as error:
            found[place] = error
    return found
