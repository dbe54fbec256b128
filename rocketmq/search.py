"""Searches for messages by key: no index of keys is kept, so the log is read, in small steps.

A search looks at the record with which each message of its topic began; what became of the message is asked
after that. A key of an application is searched from the newest segment to the oldest. A UNIQ_KEY says when
its client made it: that search begins in the segment of this time, goes on to the newest, and then looks at
those before.

1. A search ends after RECORDS_MAX records of all topics or BYTES_MAX bytes of its own. It says so.
2. A step reads the table of at most 50,000 records, or PAGE_BYTES of messages, in a reader thread. One
   search runs at a time; the others wait.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import orjson

from timerwheel.engine import Engine
from timerwheel.model.properties import KEYS
from timerwheel.rocketmq.translation import UNIQ_KEY
from timerwheel.store.errors import CorruptionError, OffsetError
from timerwheel.store.log_reader import LogReader, Span
from timerwheel.store.record import FLAG_LEASE, HEADER_SIZE, Kind, decode, decode_header
from timerwheel.store.segment import SEGMENT_HEADER_SIZE
from timerwheel.store.table import Rows, Table

RECORDS_MAX: Final = 20_000_000
BYTES_MAX: Final = 512 << 20
PAGE_BYTES: Final = 1 << 20
BEFORE_MS: Final = 2_000
"""How much earlier, by the clock of the service, a message may be stored than its client made it."""
_KINDS: Final = (Kind.MESSAGE, Kind.TIMER)
_IDS_OF_CLIENTS: Final = (32, 56)
Take = Callable[[int], Awaitable[bool]]


class Query(NamedTuple):
    """What is searched: messages of a topic, stored in `begin_ms` ≤ time ≤ `end_ms`."""

    topic: str
    key: str
    is_unique: bool
    begin_ms: int
    end_ms: int

    def matches(self, properties: dict[str, str]) -> bool:
        """Whether a message with these properties has the key."""
        if self.is_unique:
            return properties.get(UNIQ_KEY) == self.key
        return self.key in properties.get(KEYS, "").split(" ")


class Search:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()

    async def find(self, query: Query, wanted: Callable[[], bool], take: Take) -> bool:
        """Give `take` the log offset at which each message begins; returns whether all was searched.

        It ends when `take` has enough and returns False, or `wanted` does, which is asked before each step.
        """
        async with self._turn:
            core = self._engine.core
            spans = await core.threads.read(_ordered, core.log, query, self._engine.clock.now_ms())
            steps = _steps(core.log, query, spans)
            records, size_bytes = 0, 0
            while wanted() and (step := await core.threads.read(next, steps, None)) is not None:
                for log_offset in step.log_offsets:
                    if not await take(log_offset):
                        return True
                records += step.records
                size_bytes += step.size_bytes
                if records >= RECORDS_MAX or size_bytes >= BYTES_MAX:
                    return False
            return wanted()


def born_ms(unique_key: str, now_ms: int) -> int | None:
    """Return when a client made a UNIQ_KEY, None if it cannot be read.

    Digits 4 to 12 from the end count milliseconds of its month, as the client's clock says: here as if it was
    set to UTC. Source: MessageClientIDSetter of RocketMQ 5.3.
    """
    if len(unique_key) not in _IDS_OF_CLIENTS:
        return None
    try:
        of_month_ms = int(unique_key[-12:-4], 16)
    except ValueError:
        return None
    today = datetime.fromtimestamp(now_ms / 1000, UTC)
    month = today.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    found_ms = int(month.timestamp()) * 1000 + of_month_ms
    if found_ms <= now_ms:
        return found_ms
    before = (month - timedelta(days=1)).replace(day=1)
    return int(before.timestamp()) * 1000 + of_month_ms


class _Step(NamedTuple):
    log_offsets: list[int]
    records: int
    size_bytes: int


def _ordered(log: LogReader, query: Query, now_ms: int) -> list[Span]:
    """Return the segments that may hold what is searched, in the order in which they are read."""
    spans = log.spans()
    first = max(bisect_right(spans, query.begin_ms, key=lambda span: _began_ms(log, span)) - 1, 0)
    last = bisect_right(spans, query.end_ms, key=lambda span: _began_ms(log, span))
    spans = spans[first:last]
    if not query.is_unique:
        return spans[::-1]
    time_ms = born_ms(query.key, now_ms)
    if time_ms is None:
        return spans
    at = max(bisect_right(spans, time_ms - BEFORE_MS, key=lambda span: _began_ms(log, span)) - 1, 0)
    return spans[at:] + spans[:at]


def _began_ms(log: LogReader, span: Span) -> int:
    """Return when the first record of a segment was stored; the end of time if it has none yet.

    Its header is not checked: if it is damaged, the segment may be read too late or too early.
    """
    first = span.base + SEGMENT_HEADER_SIZE
    if first >= span.end:
        return 1 << 63
    try:
        return decode_header(log.read_raw(first, HEADER_SIZE)).store_ms
    except OffsetError:  # retention removed the segment
        return 0


def _steps(log: LogReader, query: Query, spans: Sequence[Span]) -> Iterator[_Step]:
    """Yield after each page of messages, and after each table; damaged records are left out."""
    for span in spans:
        try:
            for table in log.tables(span.base, span.end, lost=[]):
                yield from _pages(log, query, _begun(log, query, table))
                yield _Step([], len(table.rows), 0)
        except OffsetError:  # retention removed the segment
            continue


def _begun(log: LogReader, query: Query, table: Table) -> Rows:
    """Return the rows with which messages of the topic begin.

    A timer that retention has moved begins with the first record that is kept.
    """
    if query.topic not in table.topics:
        return table.rows[:0]
    rows = table.rows[table.rows["topic"] == table.topics.index(query.topic)]
    is_first = (rows["root"] == rows["offset"]) | (rows["root"] < log.start)
    is_message = np.isin(rows["kind"], _KINDS) & (rows["flags"] & FLAG_LEASE == 0)
    is_within = (rows["store_ms"] >= query.begin_ms) & (rows["store_ms"] <= query.end_ms)
    begun: Rows = rows[is_first & is_message & is_within]
    return begun


def _pages(log: LogReader, query: Query, rows: Rows) -> Iterator[_Step]:
    needle = orjson.dumps(query.key)[1:-1]
    while len(rows):
        sizes = np.cumsum(rows["size"].astype(np.int64))
        count = max(int(np.searchsorted(sizes, PAGE_BYTES, side="right")), 1)
        page, rows = rows[:count], rows[count:]
        found: list[int] = []
        records = log.read_many(page["offset"], page["size"])
        for data, offset in zip(records, page["offset"].tolist(), strict=True):
            if not isinstance(data, CorruptionError) and needle in data:
                properties = decode(data).properties
                if properties and query.matches(orjson.loads(properties)):
                    found.append(offset)
        yield _Step(found, 0, int(page["size"].sum()))
