"""Settings that live in the log: tables of named JSON values, changed by CONTROL records.

Groups, topics' options, push subscriptions and schedules are such settings. Because a change is a record, it
is as durable as a message, can be stored in one unit with messages, and is there after the index is lost. All
of it is held in memory: it is meant for thousands of values, not for millions.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from timerwheel.errors import TimerwheelError
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import Kind, decode, encode

CONTROL_TOPIC = "/control"
VALUE_BYTES_MAX = 1 << 20


class ConfigTable(StrEnum):
    """The tables that this program knows. Entries of other tables in a log are kept as settings too."""

    GROUP = "group"
    TOPIC = "topic"
    TOPIC_ENDING = "topic_ending"
    """The topics that are being deleted, with the time since when."""
    TOPIC_END = "topic_end"
    """The topics that were deleted, with the last `TopicEnd` of each."""
    TOPIC_PURGE = "topic_purge"
    """The topics that were purged, with the last `TopicPurge` of each."""
    SCHEDULE = "schedule"
    SUBSCRIPTION = "push"
    LEASES = "leases"
    """The leases of a group when the service stopped; the next start takes them over and removes them."""
    TASK_QUEUE = "task_queue"
    """The queues of one-call tasks: their limits and signing secrets."""
    KAFKA_INLET = "kafka_inlet"
    """The next offset of each partition of the topic from which Kafka's records come."""
    KAFKA_OUTLET = "kafka_outlet"
    """The topics that go out to Kafka, and the queue offsets from which they do."""
    KAFKA_POSITIONS = "kafka_positions"
    """The Kafka topic that notes how far the topics have gone out, and whether its positions were checked."""
    KAFKA_SENT = "kafka_sent"
    """How far the topics have gone out for certain; a little behind what Kafka has noted."""
    CURSOR = "cursor"
    """An event: a group's cursors are set. Not kept."""
    PASSED = "passed"
    """An event: a group's cursors move forward. Not kept."""
    FAILURE = "failure"
    """Why a group's attempts failed, for the history of a message only. Not kept."""
    CARRIED_KEYS = "carried_keys"
    """Deduplication keys whose messages retention removes; see `timerwheel.state.dedup_key`. Not kept."""


NO_SETTINGS = frozenset({ConfigTable.FAILURE, ConfigTable.CARRIED_KEYS})
"""Tables that hold no settings."""
EVENTS = frozenset({ConfigTable.CURSOR, ConfigTable.PASSED}) | NO_SETTINGS
"""Tables that are not kept."""


class TopicEnd(msgspec.Struct, frozen=True):
    """The end of a topic: its messages whose first record lies before the log offset `until` are deleted.

    `queues` has the offset at which each queue goes on if the topic is used again.
    """

    at_ms: int
    until: int
    queues: dict[int, int]


class TopicPurge(msgspec.Struct, frozen=True):
    """The messages of a topic before these queue offsets were purged at `at_ms`."""

    at_ms: int
    queues: dict[int, int]


class Put(msgspec.Struct, frozen=True):
    """One change: the value of a key in a table; None removes it."""

    table: str
    key: str
    value: Any


class ControlValueError(TimerwheelError):
    """A value is too large to be kept as a setting."""

    code = "setting_too_large"


def encode_puts(puts: Sequence[Put], now_ms: int, flags: int = 0) -> bytes:
    """Encode changes as a CONTROL record; ControlValueError if they are over VALUE_BYTES_MAX."""
    body = msgspec.json.encode(puts)
    if len(body) > VALUE_BYTES_MAX:
        raise ControlValueError(f"a setting of {len(body)} bytes is over {VALUE_BYTES_MAX} bytes")
    topic = CONTROL_TOPIC.encode()
    return encode(
        Kind.CONTROL, topic, b"", body, store_ms=now_ms, due_ms=now_ms, enqueue_ms=now_ms, flags=flags
    )


def decode_puts(record: bytes | CorruptionError) -> list[Put]:
    """Decode the changes in a CONTROL record; raises the error if it cannot be read.

    The service can go on without a message, but not without a setting: later records depend on it.
    """
    if isinstance(record, CorruptionError):
        raise record
    return msgspec.json.decode(decode(record).body, type=list[Put])


class Control:
    """Reads and changes the tables for the rest of the service; `store` is the engine's `send`."""

    def __init__(self, tables: "ControlTables", store: Callable[[Sequence[Put]], Awaitable[object]]) -> None:
        self._tables = tables
        self._store = store
        self.get = tables.get
        self.items = tables.items

    async def put(self, puts: Sequence[Put]) -> None:
        """Store these changes as one unit; durable and in effect when this returns."""
        await self._store(puts)


class ControlTables:
    """The tables as of the end of the log. Part of the log state."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Any]] = {}
        self.topic_ends: dict[str, TopicEnd] = {}
        """The table `topic_end`, decoded."""

    def apply(self, put: Put) -> None:
        """Apply one change."""
        table = self._tables.setdefault(put.table, {})
        if put.value is None:
            table.pop(put.key, None)
        else:
            table[put.key] = put.value
        if put.table == ConfigTable.TOPIC_END and put.value is None:
            self.topic_ends.pop(put.key, None)
        elif put.table == ConfigTable.TOPIC_END:
            self.topic_ends[put.key] = msgspec.convert(put.value, TopicEnd, strict=False)

    def get(self, table: str, key: str) -> Any | None:  # noqa: ANN401 - a JSON value
        """Return the value of a key, or None."""
        return self._tables.get(table, {}).get(key)

    def items(self, table: str) -> dict[str, Any]:
        """Return every key and value of a table, in the order of the first put."""
        return dict(self._tables.get(table, {}))

    def all(self) -> Iterator[Put]:
        """Yield every value of every table."""
        for table, values in self._tables.items():
            for key, value in values.items():
                yield Put(table, key, value)
