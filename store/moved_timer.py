"""Timers stored again under the same id: what retention and a restore write. Pure."""

from timerwheel.store.record import HEADER_SIZE, Kind, decode_header, replace

_ROLLS_MAX = 0xFFFF


def moved(record: bytes, offset: int, now_ms: int) -> bytes:
    """The TIMER that replaces the timer `record` at a log offset: same message, id, due time and key."""
    header = decode_header(record)
    root, root_crc = header.identity(offset)
    return replace(
        record,
        header,
        kind=Kind.TIMER,
        origin=offset,
        root=root,
        root_crc=root_crc,
        store_ms=now_ms,
        due_ms=header.due_ms,
        rolls=min(header.rolls + 1, _ROLLS_MAX),
        level=header.level,
    )


def topic_of(record: bytes) -> str:
    """The topic that a whole record names."""
    return record[HEADER_SIZE : HEADER_SIZE + int.from_bytes(record[16:18], "little")].decode()
