"""Positions in logs, and the offset document that Spark keeps in a query's checkpoint.

    {"format": 1, "nodes": {"node-1": {"at": 8192, "last": [8072, 2823478], "log": "5be2...", "queues":
     {"orders": {"0": 17}}}}}

1. `at` is where a complete unit ends, or where a segment begins: rows before it have been read, none behind.
2. `log` is a digest of the log id, so a document is never taken for one of another log.
3. `last` is the record that ends at `at`: its log offset and CRC. A log that has another one there is not the
   log that was read. It is null where a segment begins, and after a part that was read from an archive.
4. `queues` numbers what follows: the queue offset of the next message of each queue.
5. Equal positions have equal bytes: Spark compares documents as text.
"""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from timerwheel.spark_jobs.errors import JobError

FORMAT = 1
QueueOffsets = dict[tuple[str, int], int]
"""A queue offset for each topic and queue."""


class DataLossError(JobError):
    """Messages that should be read are gone; the message says of which node, and where."""

    code = "data_loss"


class LogChangedError(JobError):
    """A log is not the one that a position is of."""

    code = "log_changed"


class Position(msgspec.Struct, frozen=True):
    """A place in the log of one node; the module's docstring describes the fields."""

    at: int
    last: tuple[int, int] | None
    log: str
    queues: dict[str, dict[int, int]]

    def __post_init__(self) -> None:
        """Raise ValueError for a place that no log has."""
        if self.at < 0 or (self.last is not None and not 0 <= self.last[0] < self.at):
            raise ValueError(f"no record before {self.at} can begin at {self.last and self.last[0]}")

    @property
    def numbers(self) -> QueueOffsets:
        """The queue offset of the next message of each queue."""
        return {(topic, queue): n for topic, queues in self.queues.items() for queue, n in queues.items()}


class OffsetDocument(msgspec.Struct, frozen=True):
    """The positions of all nodes that a query reads."""

    format: int
    nodes: dict[str, Position]


def position(at: int, last: tuple[int, int] | None, log: str, numbers: QueueOffsets) -> Position:
    """A position from the next queue offset of each queue; queues that have had no message are left out."""
    queues: dict[str, dict[int, int]] = {}
    for (topic, queue), number in numbers.items():
        if number:
            queues.setdefault(topic, {})[queue] = number
    return Position(at, last, log, queues)


def document(nodes: Mapping[str, Position]) -> dict[str, object]:
    """The offset document of these nodes, as Spark takes it."""
    found = msgspec.to_builtins(OffsetDocument(FORMAT, dict(nodes)), str_keys=True, order="sorted")
    assert isinstance(found, dict)
    return found


def nodes_of(found: object, name: str) -> dict[str, Position]:
    """The positions in an offset document; JobError if it is not one. `name` says where it is from."""
    try:
        decoded = msgspec.convert(found, OffsetDocument, strict=False)
    except msgspec.ValidationError as error:
        raise JobError(f"{name} is not an offset document of timerwheel.delivered: {error}") from None
    if decoded.format != FORMAT:
        raise JobError(f"{name} has format {decoded.format}; this program reads {FORMAT}")
    return decoded.nodes


def digest_of(log_id: bytes) -> str:
    """A name for a log that does not give its id away, which is the key of the message ids."""
    return hashlib.blake2s(log_id, digest_size=8, person=b"offsets").hexdigest()


def added(numbers: QueueOffsets, counts: Iterable[tuple[str, int, int]]) -> QueueOffsets:
    """Queue offsets after so many more messages: topic, queue and how many."""
    found = dict(numbers)
    for topic, queue, count in counts:
        found[topic, queue] = found.get((topic, queue), 0) + count
    return found
