"""Deduplication keys at work: who was first, which message a key stands for now, and when it is forgotten.

A key that is being sent is *taken*: a second sender waits until the first one's message is stored or refused,
and then looks. So of any number of senders exactly one stores.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from store.errors import CorruptionError, NoSpaceError
from store.record import Kind
from timerwheel import dedup
from timerwheel.clock import Clock
from timerwheel.dedup import KEY_KEPT_MS, KeyEntry, content_of, digest_of, is_content
from timerwheel.errors import Fault, RefusedError, UnknownMessageError
from timerwheel.ids import Ids
from timerwheel.indexer import IndexWriter
from timerwheel.message import MessageView, Outgoing, Receipt, State
from timerwheel.queries import Current, Queries
from timerwheel.threads import Threads
from timerwheel.view import View

logger = logging.getLogger("timerwheel")

SWEEP_INTERVAL_MS = 60_000
SWEEP_KEYS = 500


class Known(NamedTuple):
    """Which places of an array are not to be stored: what each repeats, a receipt or an earlier place."""

    earlier: dict[int, Receipt | int]


class Keys:
    """Belongs to the event loop. `messages` tells how a message stands."""

    def __init__(
        self,
        *,
        view: View,
        writer: IndexWriter,
        threads: Threads,
        clock: Clock,
        ids: Ids,
        messages: Queries,
    ) -> None:
        self._view = view
        self._writer = writer
        self._threads = threads
        self._clock = clock
        self._ids = ids
        self._messages = messages
        self._taken: dict[bytes, asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def taken(self, messages: Sequence[Outgoing]) -> AsyncIterator[Known]:
        """Take the keys of these messages until the block ends, and say which of them are repeats.

        Raises RefusedError with a fault key_reused for each message whose key stands for another one.
        """
        digests = [
            None if message.dedup_key is None else digest_of(message.topic, message.dedup_key)
            for message in messages
        ]
        wanted = {digest for digest in digests if digest is not None}
        while under_way := [self._taken[digest] for digest in wanted if digest in self._taken]:
            await asyncio.wait(under_way)
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken.update(dict.fromkeys(wanted, released))
        try:
            yield await self._known(messages, digests)
        finally:
            for digest in wanted:
                del self._taken[digest]
            released.set_result(None)

    async def _known(self, messages: Sequence[Outgoing], digests: Sequence[bytes | None]) -> Known:
        entries = await self._entries([digest for digest in dict.fromkeys(digests) if digest is not None])
        first: dict[bytes, tuple[bytes, Receipt | int]] = {}
        topics = dict(zip(digests, (message.topic for message in messages), strict=True))
        for known_digest, entry in entries.items():
            receipt = await self._alive(topics[known_digest], entry)
            if receipt is not None:
                first[known_digest] = (entry.content, receipt)
        earlier: dict[int, Receipt | int] = {}
        faults: list[Fault] = []
        for place, (message, digest) in enumerate(zip(messages, digests, strict=True)):
            if digest is None:
                continue
            known = first.setdefault(digest, (content_of(message), place))
            if not is_content(known[0], message):
                detail = f"the key {message.dedup_key!r} stands for another message of this topic"
                faults.append(Fault(place, "key_reused", detail))
            elif known[1] != place:
                earlier[place] = known[1]
        if faults:
            raise RefusedError(faults)
        return Known(earlier)

    async def _entries(self, digests: Sequence[bytes]) -> dict[bytes, KeyEntry]:
        """What these keys stand for, alive or not."""
        while True:
            generation = self._view.generation
            staged = {digest: self._view.key_of(digest) for digest in digests}
            missing = [digest for digest, entry in staged.items() if entry is None]
            kept = await self._threads.read(self._find, missing) if missing else {}
            if generation == self._view.generation:
                found = {digest: entry or kept.get(digest) for digest, entry in staged.items()}
                return {digest: entry for digest, entry in found.items() if entry is not None}

    def _find(self, digests: list[bytes]) -> dict[bytes, KeyEntry | None]:
        with self._writer.index.read() as txn:
            return {digest: dedup.find(txn, digest) for digest in digests}

    async def _alive(self, topic: str, entry: KeyEntry) -> Receipt | None:
        """The message of a key of this topic, None if the key has ended."""
        message_id = self._ids.encode(entry.root, entry.root_crc)
        try:
            current = await self._messages.settled(message_id)
            due_ms = current.record.header.due_ms
            if current.state is State.SCHEDULED or self._ended_not_before_ms(current) > self._kept_from_ms():
                return Receipt(message_id, topic, due_ms, current.state)
            view = await self._messages.get(message_id)
        except UnknownMessageError:
            return None  # removed by retention, long after it ended
        except CorruptionError as error:
            # What became of it cannot be told; to store it again might deliver it twice.
            logger.warning("a key stands for a message that cannot be read: %s", error)
            return Receipt(message_id, topic, entry.due_ms, State.SCHEDULED)
        if self._ends_ms(view) <= self._clock.now_ms():
            return None
        return Receipt(message_id, topic, view.due_ms, view.state)

    def _kept_from_ms(self) -> int:
        return self._clock.now_ms() - KEY_KEPT_MS

    def _ended_not_before_ms(self, current: Current) -> int:
        """When a message that no longer waits ended at the earliest: all that most repeats need to know."""
        header = current.record.header
        return header.due_ms if header.kind == Kind.TIMER else header.store_ms

    def _ends_ms(self, view: MessageView) -> int:
        if view.state is State.SCHEDULED:
            return max(view.due_ms, self._clock.now_ms()) + KEY_KEPT_MS
        return (view.delivered_ms or view.recalled_ms or view.due_ms) + KEY_KEPT_MS

    async def id_of(self, topic: str, key: str) -> str:
        """The id of the message that a key stands for; UnknownMessageError."""
        digest = digest_of(topic, key)
        while digest in self._taken:
            await asyncio.wait([self._taken[digest]])
        entry = (await self._entries([digest])).get(digest)
        receipt = None if entry is None else await self._alive(topic, entry)
        if receipt is None:
            raise UnknownMessageError(key)
        return receipt.id

    async def run(self) -> None:
        """Forget keys that have ended, until cancelled."""
        while True:
            await self._clock.sleep_for(SWEEP_INTERVAL_MS)
            with contextlib.suppress(NoSpaceError):
                while await self.sweep() == SWEEP_KEYS:
                    await self._clock.breathe()

    async def sweep(self) -> int:
        """Look at the keys whose end may have come; returns how many those were."""
        now_ms = self._clock.now_ms()
        found = await self._threads.read(self._ending, now_ms)
        ends = [(row, entry, await self._later(entry, now_ms)) for row, entry in found]
        if ends:
            await self._threads.index(self._end, ends)
        return len(found)

    async def _later(self, entry: KeyEntry | None, now_ms: int) -> int | None:
        """When to look at a key again; None if it has ended."""
        if entry is None:
            return None
        try:
            view = await self._messages.get(self._ids.encode(entry.root, entry.root_crc))
        except UnknownMessageError:
            return None
        except CorruptionError as error:
            logger.warning("a key outlives its message: %s", error)
            return now_ms + KEY_KEPT_MS
        ends_ms = self._ends_ms(view)
        return ends_ms if ends_ms > now_ms else None

    def _ending(self, now_ms: int) -> list[tuple[bytes, KeyEntry | None]]:
        with self._writer.index.read() as txn:
            return dedup.ending(txn, now_ms, SWEEP_KEYS)

    def _end(self, ends: list[tuple[bytes, KeyEntry | None, int | None]]) -> None:
        with self._writer.index.write() as txn:
            for row, entry, later_ms in ends:
                dedup.end(txn, row, entry, later_ms)
