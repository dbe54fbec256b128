"""The parts of the log state, and the shapes in which it goes to the index and comes back.

Plain shapes; `timerwheel.state.state` fills them, `timerwheel.index.writer` writes and reads them.
"""

from typing import Any, NamedTuple

import msgspec
import numpy as np

from timerwheel.state.config_table import Put
from timerwheel.state.groups import Changed, DeadLetters, Writes
from timerwheel.state.key_columns import NewKeys
from timerwheel.state.positions import Positions
from timerwheel.wheel.geometry import Horizons


class QueueTail(msgspec.Struct):
    """One consume queue: readable offsets, and the positions that are not yet in the index."""

    min_offset: int = 0
    next_offset: int = 0
    tail: list[tuple[int, Positions]] = []


class Topic(msgspec.Struct):
    """One topic's counts and queues; an internal one holds the leases of a group."""

    id: int
    name: str
    pending: int = 0
    queues: dict[int, QueueTail] = {}
    internal: bool = False


class SegmentCount(msgspec.Struct):
    """The pending timers of one segment, its newest store time, and when one of its timers last ended.

    `keyed` if it has a message with a client's deduplication key, or carried keys: retention carries those
    that still count before it removes the segment.
    """

    pending: int = 0
    last_store_ms: int = 0
    last_end_ms: int = 0
    keyed: bool = False


class QueuePages(NamedTuple):
    """The positions to append to a queue in the index."""

    topic_id: int
    queue: int
    first: int
    positions: Positions


class Memtable:
    """Applied records that the index does not have yet."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.until = start
        self.rows: list[np.ndarray] = []
        self.count = 0
        self.pointers: dict[int, int] = {}
        self.queues: list[QueuePages] = []
        self.topics: set[int] = set()
        self.segments: set[int] = set()
        self.control: dict[tuple[str, str], Put] = {}
        self.groups = Changed()
        self.keys = NewKeys()


def joined_memtables(first: Memtable, second: Memtable) -> Memtable:
    """Join two memtables, the second of which follows the first; both stay unchanged."""
    joined = Memtable(first.start)
    joined.until = second.until
    joined.rows = first.rows + second.rows
    joined.count = first.count + second.count
    joined.pointers = first.pointers | second.pointers
    joined.queues = first.queues + second.queues
    joined.topics = first.topics | second.topics
    joined.segments = first.segments | second.segments
    joined.control = first.control | second.control
    joined.groups.add(first.groups)
    joined.groups.add(second.groups)
    joined.keys = first.keys.followed_by(second.keys)
    return joined


class IndexState(msgspec.Struct, frozen=True):
    """The single value that the index keeps beside its tables; the checkpoint is `until`.

    During a rebuild from a log whose beginning is gone, `origin_floor` and `settings_from` are those of the
    log state, so that an interrupted rebuild can continue; otherwise they are 0. `lost` has the ranges of the
    log that a replay with `--salvage` leaves out, also until it is done.
    """

    format: int
    log_id: bytes
    until: int
    horizons: Horizons
    sequence: int
    fired_until_ms: int
    level_pending: dict[int, int]
    origin_floor: int = 0
    settings_from: int = 0
    lost: list[tuple[int, int]] = []


class Snapshot(NamedTuple):
    """What the index writes besides the memtable's rows, taken when the memtable was frozen."""

    fired_until_ms: int
    level_pending: dict[int, int]
    topics: dict[int, bytes]
    segments: dict[int, bytes]
    groups: Writes


class Kept(NamedTuple):
    """The part of a log state that the index keeps and a start loads into memory."""

    topics: list[bytes]
    segments: dict[int, bytes]
    control: list[Put]
    groups: list[tuple[int, bytes]]
    items: list[tuple[int, int, bytes]]
    dead: list[tuple[int, bytes]]


class SettingsDump(msgspec.Struct, frozen=True):
    """Settings, groups and dead-letter queues as JSON values, by name."""

    control: list[Put]
    groups: dict[str, Any]
    dead: dict[str, DeadLetters]
