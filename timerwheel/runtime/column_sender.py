"""Sending in columns: what `Sender` does with messages one by one, done with arrays of them.

Both mean the same, which a property test holds: the same records, receipts and faults. Deduplication keys are
looked up at once; if any of them is not new, `Sender` decides about the messages one by one.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from timerwheel.errors import Fault, RefusedError
from timerwheel.model.admission import Plan
from timerwheel.model.columns import (
    ColumnReceipts,
    MessageColumns,
    admit_sets,
    dues_of,
    faults_of,
    wrong_rows,
)
from timerwheel.model.messages import Outgoing
from timerwheel.runtime.core import Core
from timerwheel.runtime.dedup_keys import DedupKeys
from timerwheel.runtime.group_commit import Columns
from timerwheel.runtime.sender import Sender, accepted_at, explain, number_of_key
from timerwheel.runtime.shielded import finished
from timerwheel.runtime.steps import AT_ONCE_BYTES, AT_ONCE_MAX, size_of_properties
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.state.key_columns import KeyColumns, content_hashes, digests_of, head_of, stored_texts
from timerwheel.state.limited_records import flag_of
from timerwheel.store.block import Block, Prefixes, encode_part, new_headers
from timerwheel.store.record import FLAG_KEYED, FLAG_MORE, Kind, encode_properties

ROWS_AT_ONCE = 1_000
"""Most rows to process without a pause, about 1 ms; more would not fit the processor's cache."""
_TIMER, _MESSAGE = int(Kind.TIMER), int(Kind.MESSAGE)


class ColumnSender:
    """Accepts new messages in columns. Belongs to the event loop."""

    def __init__(self, core: Core, sender: Sender, keys: DedupKeys, topics: TopicOptions) -> None:
        self._clock = core.clock
        self._topics = topics
        self._disk = core.disk
        self._ids = core.ids
        self._commit = core.commit
        self._slot_limit = core.slot_limit
        self._sender = sender
        self._keys = keys

    async def check(self, columns: MessageColumns) -> list[Fault]:
        """Return the faults for which `send` would refuse these messages; stores nothing."""
        return (await self._admit(columns, self._clock.now_ms()))[1]

    async def send(self, columns: MessageColumns) -> ColumnReceipts:
        """Store messages as one unit; returns their receipts once they are durable.

        Raises RefusedError with every fault, CongestedError, DiskReserveError, NotReadyError or NoSpaceError;
        then nothing is stored. After an OutcomeUnknownError all are stored, or none. About 1.5 µs for each
        message with a body of 200 bytes.
        """
        self._sender.check_accepting()
        now_ms = self._clock.now_ms()
        admitted, faults = await self._admit(columns, now_ms)
        if faults:
            raise RefusedError(faults)
        self._check_topics(columns)
        plans = [plan for plan in admitted if plan is not None]
        if columns.keys is None:
            return await self._store(columns, plans, now_ms)
        # Shielded: a cancelled sender must not release its keys before its messages are stored.
        return await finished(self._send_keyed(columns, columns.keys, plans, now_ms))

    async def _send_keyed(
        self, columns: MessageColumns, keys: Sequence[str | None], plans: Sequence[Plan], now_ms: int
    ) -> ColumnReceipts:
        found = await self._keys_of(columns, keys)
        async with self._keys.taken_if_new(found.digests) as is_new:
            if is_new:
                return await self._store(columns, plans, now_ms, found)
        messages: list[Outgoing] = []
        for part in _steps(columns, AT_ONCE_MAX):
            await self._clock.breathe()
            messages += map(columns.outgoing, range(part.start, part.stop))
        return ColumnReceipts.of(await self._sender.send(messages), columns)

    async def _keys_of(self, columns: MessageColumns, keys: Sequence[str | None]) -> KeyColumns:
        names: list[bytes] = []
        digests: list[bytes] = []
        contents: list[bytes] = []
        rows: list[np.ndarray] = []
        for part in _steps(columns, ROWS_AT_ONCE):
            await self._clock.breathe()
            places = np.arange(part.start, part.stop)
            given = [key.encode() for key in keys[part] if key is not None]
            if len(given) < len(places):
                places = places[[key is not None for key in keys[part]]]
            names += given
            digests += digests_of(columns.topics, columns.topic[places], given)
            contents += content_hashes(columns, places)
            rows.append(places)
        return KeyColumns(np.concatenate(rows), names, digests, b"".join(contents))

    async def _store(
        self,
        columns: MessageColumns,
        plans: Sequence[Plan],
        now_ms: int,
        keys: KeyColumns | None = None,
    ) -> ColumnReceipts:
        """Store messages that were admitted at `now_ms` and have passed every check; they are accepted now.

        `keys` are new, and taken.
        """
        if keys is None:
            prefixes, prefix = await self._prefixes(columns, plans)
        else:
            prefixes, prefix = await self._keyed_prefixes(columns, plans, keys)
        store_ms = self._clock.now_ms()
        sets, due_ms, level, waits = self._accepted(columns, plans, now_ms, store_ms)
        release = self._slot_limit.admit(due_ms[waits].tolist())
        try:
            waits = self._in_turn(columns, waits, store_ms)
            due_ms = np.where(waits, np.maximum(due_ms, store_ms), due_ms)
            headers = self._headers(columns, sets, due_ms, level, waits, store_ms)
            headers["enqueue_ms"][waits & (level == 0)] = now_ms  # from which their delays count
            if keys is not None:
                headers["flags"][keys.rows] |= FLAG_KEYED
            block = await self._encode(columns, headers, prefixes, prefix)
            self._topics.check_open(columns.topics)  # it may have been deleted since admission
            columns_stored = Columns(block, keys)
            stored = self._commit.submit(block.parts, (), release, due_ms[waits].tolist(), columns_stored)
            offset = await stored
        except BaseException as error:
            release()  # what takes effect does so itself
            explain(error, self._disk)
            raise
        ids = await self._ids_of(block, offset)
        return ColumnReceipts(ids, columns.topics, columns.topic, due_ms, waits)

    def _accepted(
        self, columns: MessageColumns, plans: Sequence[Plan], now_ms: int, store_ms: int
    ) -> tuple[list[Plan], np.ndarray, np.ndarray, np.ndarray]:
        """Return the plans of the sets, due times, levels and which messages wait; see `accepted_at`."""
        after = self._sender.after_its_level
        sets = [after(accepted_at(plan, now_ms, store_ms)) if plan.level else plan for plan in plans]
        due_ms, level = dues_of(columns, sets, now_ms, self._sender.rules)
        delayed = due_ms > now_ms
        return sets, np.where(delayed, due_ms, store_ms), level, delayed & (due_ms > store_ms)

    async def _admit(self, columns: MessageColumns, now_ms: int) -> tuple[list[Plan | None], list[Fault]]:
        """Return the plans of the sets of properties, and what is wrong with messages."""
        rules = self._sender.rules
        sets: list[Plan | None] = []
        for part in _slices(len(columns.sets), AT_ONCE_MAX):
            if part.start:
                await self._clock.breathe()
            sets += admit_sets(columns.sets[part], now_ms, rules)
        due_ms, _ = dues_of(columns, sets, now_ms, rules)
        wrong = wrong_rows(columns, sets, due_ms, now_ms, rules)
        faults: list[Fault] = []
        for part in _slices(len(wrong), AT_ONCE_MAX):
            faults += faults_of(columns, wrong[part], now_ms, rules)
            await self._clock.breathe()
        return sets, faults

    def _check_topics(self, columns: MessageColumns) -> None:
        self._topics.check_open(columns.topics)
        new = self._sender.topics_without_room(columns.topics)
        if new:
            rows = np.array([topic in new for topic in columns.topics], bool)[columns.topic]
            raise RefusedError([self._sender.too_many_topics(int(np.flatnonzero(rows)[0]))])

    def _in_turn(self, columns: MessageColumns, waits: np.ndarray, now_ms: int) -> np.ndarray:
        """Return which messages wait, with those behind timers of their topic that are due now."""
        if waits.all() or not self._sender.has_due(now_ms):
            return waits
        behind = np.array([self._sender.must_wait(topic, now_ms) for topic in columns.topics], bool)
        changed: np.ndarray = waits | behind[columns.topic]
        return changed

    def _headers(
        self,
        columns: MessageColumns,
        sets: Sequence[Plan],
        due_ms: np.ndarray,
        level: np.ndarray,
        waits: np.ndarray,
        now_ms: int,
    ) -> np.ndarray:
        headers = new_headers(len(columns))
        headers["kind"] = np.where(waits, _TIMER, _MESSAGE)
        headers["flags"][:-1] = FLAG_MORE
        headers["flags"] |= np.array([flag_of(plan.properties) for plan in sets], np.uint8)[
            columns.properties
        ]
        headers["level"] = level
        headers["queue"] = self._queues(columns, sets)
        headers["store_ms"] = headers["enqueue_ms"] = now_ms
        headers["due_ms"] = due_ms
        return headers

    async def _encode(
        self, columns: MessageColumns, headers: np.ndarray, prefixes: Prefixes, prefix: np.ndarray
    ) -> Block:
        parts: list[bytes] = []
        for part in _steps(columns, ROWS_AT_ONCE):
            if part.start and part.stop < len(columns):
                await self._clock.breathe()
            place = (columns.begins[part], columns.ends[part])
            parts.append(encode_part(headers[part], prefixes, prefix[part], columns.bodies, *place))
        return Block(parts, headers, columns.topics, columns.topic)

    async def _prefixes(self, columns: MessageColumns, sets: Sequence[Plan]) -> tuple[Prefixes, np.ndarray]:
        """Return the pairs of a topic and properties that there are, and the place of each message's."""
        texts = await self._texts(sets)
        names = [topic.encode() for topic in columns.topics]
        if len(texts) == 1:
            return Prefixes([(name, texts[0]) for name in names]), columns.topic
        places, prefix = np.unique(
            columns.topic.astype(np.int64) * len(texts) + columns.properties, return_inverse=True
        )
        pairs = [(names[place // len(texts)], texts[place % len(texts)]) for place in places.tolist()]
        return Prefixes(pairs), prefix

    async def _keyed_prefixes(
        self, columns: MessageColumns, sets: Sequence[Plan], keys: KeyColumns
    ) -> tuple[Prefixes, np.ndarray]:
        """Return the same for messages with keys, each of which has one of its own."""
        prefixes, prefix = await self._prefixes(columns, sets)
        heads = [head_of(topic, properties) for topic, properties in prefixes.pairs()]
        shared = len(heads)
        texts: list[bytes] = []
        for part in _slices(len(keys.rows), ROWS_AT_ONCE):
            await self._clock.breathe()
            chosen = prefix[keys.rows[part]]
            texts += stored_texts([heads[place] for place in chosen.tolist()], keys, part)
        own = prefix.astype(np.int64)
        own[keys.rows] = np.arange(shared, shared + len(texts))
        return prefixes.followed_by(texts, prefix[keys.rows]), own

    async def _texts(self, sets: Sequence[Plan]) -> list[bytes]:
        """Return each set of properties as JSON; empty if there are none."""
        texts: list[bytes] = []
        for part in _slices(len(sets), ROWS_AT_ONCE):
            if part.start:
                await self._clock.breathe()
            texts += [encode_properties(plan.properties) if plan.properties else b"" for plan in sets[part]]
        return texts

    def _queues(self, columns: MessageColumns, sets: Sequence[Plan]) -> np.ndarray:
        """Return the queue of each message: by sharding key if it has one, else round robin."""
        counts = np.array([self._topics.send_queues_of(topic) for topic in columns.topics])
        if (counts == 1).all():
            return np.zeros(len(columns), np.uint16)
        keyed = [number_of_key(plan.properties) for plan in sets]
        of_set = np.array([-1 if number is None else number for number in keyed])
        count = counts[columns.topic]
        numbers: np.ndarray = of_set[columns.properties]
        free = (numbers < 0) & (count > 1)  # a topic with one queue takes no turn
        rows = np.flatnonzero(free)
        rows = rows[np.argsort(columns.topic[rows], kind="stable")]
        places, many = np.unique(columns.topic[rows], return_counts=True)
        turns = [
            self._sender.next_turns(columns.topics[place], each)
            for place, each in zip(places.tolist(), many.tolist(), strict=True)
        ]
        if turns:
            numbers[rows] = np.concatenate(turns)
        queues: np.ndarray = numbers % count
        return queues

    async def _ids_of(self, block: Block, offset: int) -> str:
        offsets, crcs = block.offsets(offset), block.headers["crc"]
        ids: list[str] = []
        for part in _slices(len(offsets), ROWS_AT_ONCE):
            if part.start:
                await self._clock.breathe()
            ids.append(self._ids.encode_many(offsets[part], crcs[part]))
        return "".join(ids)


def _slices(count: int, at_once: int) -> Iterator[slice]:
    for begin in range(0, count, at_once):
        yield slice(begin, min(begin + at_once, count))


def _steps(columns: MessageColumns, at_once: int) -> Iterator[slice]:
    """Yield slices of at most so many rows, the last row by itself; each is processed without a pause."""
    of_sets = np.array([size_of_properties(properties) for properties in columns.sets], np.int64)
    upto = np.cumsum(columns.ends - columns.begins + of_sets[columns.properties])
    begin, done_bytes, last = 0, 0, len(columns) - 1
    while begin < last:
        end = int(np.searchsorted(upto, done_bytes + AT_ONCE_BYTES, side="right"))
        end = min(max(end, begin + 1), begin + at_once, last)
        yield slice(begin, end)
        begin, done_bytes = end, int(upto[end - 1])
    yield slice(last, last + 1)
