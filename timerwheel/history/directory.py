"""Reads the history of a message from a data directory, whether its service runs or not."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from timerwheel.errors import DeletedMessageError, UnknownMessageError
from timerwheel.history.groups import groups_now
from timerwheel.history.history import Found, MessageHistory, Question
from timerwheel.history.log_steps import RECORDS_MAX, slot_starts, step, steps
from timerwheel.index import forwarding, queues
from timerwheel.index.lookups import Window
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.ids import Ids, root_of
from timerwheel.model.messages import SlotInfo, State
from timerwheel.offline.snapshot import Snapshot, manifest_of, open_snapshot
from timerwheel.state.log_manifest import log_directory
from timerwheel.state.memtable import Topic
from timerwheel.state.positions import Positions
from timerwheel.store.errors import OffsetError
from timerwheel.store.record import FLAG_LEASE, Kind, decode

SAME_DUE_MAX = 1 << 20
_OF_A_MESSAGE = (Kind.TIMER, Kind.MESSAGE, Kind.CANCEL)


def offline_history(data: Path, message_id: str, records_max: int = RECORDS_MAX) -> MessageHistory:
    """Return the history of a message in a data directory, whether its service runs or not.

    Reads at most `records_max` records after the delivery; `complete` is False if the log has more. Raises
    UnknownMessageError, FormatError if `data` is not a data directory, and IndexDamagedError.
    """
    while True:
        before = manifest_of(log_directory(data))
        try:
            return _read(data, message_id, records_max)
        except OffsetError:
            # Otherwise retention has just moved the message, or removed it.
            if manifest_of(log_directory(data)) == before:
                raise UnknownMessageError(message_id) from None


def _read(data: Path, message_id: str, records_max: int) -> MessageHistory:
    """Read the history from one snapshot. Raises as above, and OffsetError if the log has no such record."""
    with open_snapshot(data) as snapshot:
        places = _Places(snapshot)
        reading = steps(snapshot.log, places.find(message_id), records_max)
        answer: int | None = None
        while not isinstance(asked := step(reading, answer), MessageHistory):
            answer = None if asked is None else places.queue_offset(asked)
        return asked


class _Places:
    """Finds the records of a message in a snapshot of log and index."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._log = snapshot.log
        self._txn = snapshot.txn
        self._snapshot = snapshot
        self._state = snapshot.log_state

    def find(self, message_id: str) -> Found:
        root = root_of(message_id)
        offset = self._staged_current(root)
        staged = offset is not None
        if offset is None:
            pointing = None if self._txn is None else forwarding.find(self._txn, root)
            offset = root if pointing is None else pointing
        record = decode(self._log.read(offset))
        header = record.header
        found = header.identity(offset)
        right = found.root == root and Ids(self._log.log_id).encode(*found) == message_id
        if not right or header.flags & FLAG_LEASE or header.kind not in _OF_A_MESSAGE:
            raise UnknownMessageError(message_id)
        if (end := self._state.end_of(record.topic, root)) is not None:
            raise DeletedMessageError(message_id, record.topic, end.at_ms)
        if header.kind == Kind.CANCEL:
            return Found(message_id, State.RECALLED, offset, None, {})
        if header.kind == Kind.TIMER and (staged or self._waits(root, header.due_ms)):
            return Found(message_id, State.SCHEDULED, offset, None, {}, self._slot(header.due_ms))
        topic = self._state.topics[record.topic]
        for first, positions in self._queue(topic, header.queue, header.due_ms):
            hits = np.flatnonzero(positions["root"] == root)
            if len(hits):
                place = int(hits[0])
                at = int(positions["offset"][place])
                groups = groups_now(self._state, record, first + place, lambda group: group.cursors)
                return Found(message_id, State.DELIVERED, at, first + place, groups)
        raise UnknownMessageError(message_id)

    def queue_offset(self, asked: Question) -> int | None:
        """Return the queue offset that `steps` asks for, None if the queue does not have it."""
        topic = self._state.topics.get(asked.topic)
        for first, positions in () if topic is None else self._queue(topic, 0, 0):
            hits = np.flatnonzero(positions["offset"] == asked.log_offset)
            if len(hits):
                return first + int(hits[0])
        return None

    def _staged_current(self, root: int) -> int | None:
        """Return the offset of the message's newest record that the index does not have yet, else None."""
        found = None
        for rows in self._state.memtable.rows:
            own = rows["offset"][(rows["root"] == root) & (rows["flags"] & FLAG_LEASE == 0)]
            found = int(own[-1]) if len(own) else found
        return found

    def _slot(self, due_ms: int) -> SlotInfo | None:
        if self._txn is None or due_ms == HALF_DUE_MS:
            return None
        for level, start_ms in slot_starts(due_ms):
            for slot in self._snapshot.reader.slots(level, start_ms, start_ms + 1):
                return slot
        return None

    def _waits(self, root: int, due_ms: int) -> bool:
        entries = self._snapshot.reader.pending(Window(due_ms - 1, -1, due_ms + 1), SAME_DUE_MAX)
        return bool((entries["root"] == root).any())

    def _queue(self, topic: Topic, queue: int, due_ms: int) -> Iterator[tuple[int, Positions]]:
        """Yield runs of positions and the queue offset of the first: from `due_ms` on, then all."""
        tail = topic.queues.get(queue)
        if tail is None:
            return
        yield from tail.tail
        if self._txn is None:
            return
        end = tail.tail[0][0] if tail.tail else tail.next_offset
        yield from queues.around(self._txn, topic.id, queue, (tail.min_offset, end), due_ms)
