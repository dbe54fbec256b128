"""Read-ahead: what was read of a queue behind the messages that a consumer asked for.

A consumer with a backlog asks for 32 messages at a time, one after the other. Reading two thousand at once
costs hardly more than reading 32, so most of its pulls are answered from memory. Records never change, so
what was read ahead is never out of date. The more consumers read a backlog, the less is read for each. A page
that was used up is forgotten, and the one that was used least recently makes room for a new one.
"""

from typing import Final

from timerwheel.runtime.queue_reader import RecordPage

AHEAD_RECORDS: Final = 2_048
"""Most records that are read at once."""
AHEAD_BYTES: Final = 1 << 20
"""Most bytes that are read at once; a larger record is read alone."""
KEPT_BYTES_MAX: Final = 32 << 20
"""Most bytes of records that are kept for all consumers."""
PAGES_MAX: Final = 256

Reader = tuple[str, str, int]
"""Group, topic and queue."""


class ReadAhead:
    """One page for each consumer of a queue. Event loop only."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pages: dict[Reader, tuple[RecordPage, int]] = {}  # with its size; the last used is at the end
        self._bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of the records that are kept."""
        return self._bytes

    @property
    def page_bytes(self) -> int:
        """How many bytes to read for the next page."""
        return min(AHEAD_BYTES, self._bytes_max // min(len(self._pages) + 1, PAGES_MAX))

    def keep(self, reader: Reader, page: RecordPage) -> None:
        """Keep a page in place of the one before; one that is too large is not kept."""
        self._forget(reader)
        size_bytes = int(page.positions["size"].sum())
        if size_bytes > self._bytes_max:
            return
        self._pages[reader] = page, size_bytes
        self._bytes += size_bytes
        while self._bytes > self._bytes_max or len(self._pages) > PAGES_MAX:
            self._forget(next(iter(self._pages)))

    def from_offset(self, reader: Reader, offset: int, count_max: int) -> RecordPage | None:
        """Return the kept records from an offset on; None if the first of them is not kept."""
        found = self._pages.get(reader)
        if found is None:
            return None
        page = found[0]
        place = offset - page.first
        if not 0 <= place < len(page.records):
            self._forget(reader)
            return None
        part = slice(place, place + count_max)
        if part.stop >= len(page.records):
            self._forget(reader)
        else:
            self._pages[reader] = self._pages.pop(reader)
        return page._replace(first=offset, positions=page.positions[part], records=page.records[part])

    def _forget(self, reader: Reader) -> None:
        found = self._pages.pop(reader, None)
        if found is not None:
            self._bytes -= found[1]
