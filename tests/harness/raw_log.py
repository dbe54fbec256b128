"""All records of a log, to compare two logs byte for byte."""

from timerwheel.engine import Engine
from timerwheel.store.segment import SEGMENT_HEADER_SIZE


def raw_log(engine: Engine) -> bytes:
    """Return what follows the headers of the segments; two new logs begin at the same offset."""
    log = engine.core.log
    parts = ((base + SEGMENT_HEADER_SIZE, log.end_of(base)) for base in log.bases)
    return b"".join(log.read_raw(begin, end - begin) for begin, end in parts if begin < end)
