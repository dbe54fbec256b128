"""Timers copied forward under the same id, as retention and restore write them. Pure."""

from timerwheel.store.record import HEADER_SIZE, Kind, decode_header, replace

_ROLLS_MAX = 0xFFFF


def moved(record: bytes, offset: int, now_ms: int) -> bytes:
    """Builds the TIMER that replaces the timer `record` at a log offset: same message, id, due and key."""
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
    """The topic of an intact record."""
    return record[HEADER_SIZE : HEADER_SIZE + int.from_bytes(record[16:18], "little")].decode()
