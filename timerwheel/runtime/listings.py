"""Lists messages by state, tag and key, in pages of bounded work.

    scheduled   the wheel, in due order, by `MessageReader.pending`
    ended       along the log, by `timerwheel.runtime.ended_messages`
    by key      along the roots, by `timerwheel.runtime.keyed_messages`

1. A page reads at most LOOKED_AT_MAX records, and takes at most STEPS_MAX steps or a scan of SCAN_BYTES_MAX
   to find them. So it can be short, or empty, and have a cursor all the same.
2. A message that is in one of the wanted states for the whole of a listing is listed once. One that goes from
   one wanted state to another is listed at least once; by key, once.
3. A message that `MessageReader.get` does not show is not listed: purged, deleted with its topic, or past its
   retention.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from timerwheel.errors import DeletedMessageError, UnknownMessageError
from timerwheel.model.ids import root_of
from timerwheel.model.listing import (
    ALWAYS,
    FAR,
    Listing,
    ended_cursor,
    is_of_ended,
    key_cursor,
    offset_in,
)
from timerwheel.model.messages import MessageView, PendingPage, State
from timerwheel.model.properties import TAGS
from timerwheel.runtime import ended_messages, keyed_messages
from timerwheel.runtime.core import Core
from timerwheel.runtime.ended_messages import Ends, QueueState, Range
from timerwheel.runtime.keyed_messages import SOURCES_AT_ONCE, Candidate, Roots
from timerwheel.runtime.message_reader import MessageReader, cursor_behind
from timerwheel.runtime.message_views import (
    PAGE_BYTES_MAX,
    damaged_view,
    id_of,
    message_view,
    rows_within,
)
from timerwheel.runtime.queue_reader import QueueReader
from timerwheel.runtime.registers import Registers
from timerwheel.state.groups import is_internal
from timerwheel.state.register_rows import hash_of
from timerwheel.store.errors import CorruptionError, OffsetError
from timerwheel.store.record import Kind, decode, header_in
from timerwheel.store.register import KEY_DTYPE, RegisterDamagedError, Source
from timerwheel.store.rows import join

LOOKED_AT_MAX = 1_000
"""Most records that are read for one page."""
STEPS_MAX = 32
"""Most stretches of the log that are walked for one page."""
SCAN_BYTES_MAX = 64 << 20
"""Most bytes of segments without a register that are scanned for one page, about."""
READ_AT_ONCE = 100

Visible = Callable[[str], bool]
"""Whether the caller has access to a topic."""


class Listings:
    """See the module. Belongs to the event loop."""

    def __init__(
        self, core: Core, messages: MessageReader, queues: QueueReader, registers: Registers
    ) -> None:
        self._core = core
        self._log = core.log
        self._state = core.state
        self._index = core.index
        self._threads = core.threads
        self._clock = core.clock
        self._messages = messages
        self._queues = queues
        self._registers = registers

    async def page(
        self,
        listing: Listing,
        limit: int = 100,
        cursor: str | None = None,
        visible: Visible = lambda _: True,
    ) -> PendingPage:
        """Return a page of at most `limit` messages; IllegalFilterError, IllegalCursorError."""
        listing.check()
        if listing.key is not None:
            return await self._by_key(listing, listing.key, limit, cursor, visible)
        found: list[MessageView] = []
        if State.SCHEDULED in listing.states and not (listing.ended and is_of_ended(cursor)):
            page = await self._scheduled(listing, limit, cursor)
            if page.cursor is not None or not listing.ended:
                return page
            found, cursor = page.messages, ended_cursor(0)
            if len(found) == limit:
                return PendingPage(found, cursor)
        rest = await self._ended(listing, limit - len(found), cursor)
        return PendingPage(found + rest.messages, rest.cursor)

    # ------------------------------------------------------------------ scheduled

    async def _scheduled(self, listing: Listing, limit: int, cursor: str | None) -> PendingPage:
        due = listing.due.within(listing.at)

        async def read(count: int, cursor: str | None) -> PendingPage:
            times_ms = due.from_ms, due.until_ms
            return await self._messages.pending(
                listing.topic, *times_ms, count, cursor, reserved=listing.reserved
            )

        if listing.tags.tags is None:
            return await read(limit, cursor)
        found = _Page(limit)
        while True:
            # All at once: each look at a far slot sorts all of its entries.
            page = await read(LOOKED_AT_MAX - found.looked_at, cursor)
            for view in page.messages:
                if listing.tags.passes(view.properties.get(TAGS)):
                    found.add(view)
                    if found.is_full and view is not page.messages[-1]:
                        return PendingPage(found.messages, cursor_behind(view))
            found.looked_at += len(page.messages)
            cursor = page.cursor
            if cursor is None or found.is_full or not found.looks_left:
                return PendingPage(found.messages, cursor)
            await self._clock.breathe()

    # ------------------------------------------------------------------ ended

    async def _ended(self, listing: Listing, limit: int, cursor: str | None) -> PendingPage:
        begin = FAR if listing.newest else 0
        if cursor is not None:
            begin = offset_in(cursor, "e")
        low, high = (0, begin) if listing.newest else (begin, FAR)
        wanted = Range(max(low, self._log.start), min(high, self._state.until), listing.newest)
        sources: list[Source] = []
        if State.RECALLED in listing.states or listing.at != ALWAYS:
            if not await self._registers.advance(SCAN_BYTES_MAX):
                return PendingPage([], ended_cursor(begin))
            sources = self._registers.sources()
        found = _Page(limit)
        try:
            for _ in range(STEPS_MAX):
                wanted = await self._ended_step(listing, wanted, sources, found)
                if wanted.is_empty or found.is_full or not found.looks_left:
                    break
                await self._clock.breathe()
        except RegisterDamagedError as error:
            await self._registers.rebuild(error.base)
        return PendingPage(found.messages, None if wanted.is_empty else ended_cursor(wanted.edge))

    async def _ended_step(
        self, listing: Listing, wanted: Range, sources: Sequence[Source], found: "_Page"
    ) -> Range:
        """Add what ended in the first part of a range, as far as there is room; returns the rest of it."""
        ends, covered = await self._ends(listing, wanted, sources)
        while len(ends):
            if found.is_full or not found.looks_left:
                return wanted
            count = found.looks_left if listing.tags.tags is not None else min(found.looks_left, found.room)
            part = ends[: min(count, rows_within(ends["size"]))]
            views = await self._views(listing, part)
            for offset, view in zip(part["offset"].tolist(), views, strict=True):
                ends = ends[1:]
                wanted = wanted.after(offset)
                found.looked_at += 1
                if view is not None:
                    found.add(view)
                if found.is_full:
                    break
        return wanted.rest(covered)

    async def _ends(self, listing: Listing, wanted: Range, sources: Sequence[Source]) -> tuple[Ends, Range]:
        """Return what ended in the first part of a range, in the order of the walk, and that part."""
        topic = listing.topic
        assert topic is not None
        states = self._queue_states(topic) if State.DELIVERED in listing.states else []

        def find() -> tuple[Ends, Range]:
            part = ended_messages.next_range(sources, wanted, listing.at) if sources else wanted
            both: list[Ends] = []
            if State.RECALLED in listing.states:
                ends, part = ended_messages.recalls(sources, hash_of(topic), part, LOOKED_AT_MAX)
                both.append(ends)
            if states:
                ends, part = ended_messages.deliveries(self._index, states, part, LOOKED_AT_MAX)
                both.append(ends)
            ends = join(both, ended_messages.END_DTYPE)
            chosen = (ends["offset"] >= part.low) & (ends["offset"] < part.high)
            chosen &= (ends["at_ms"] >= listing.at.from_ms) & (ends["at_ms"] < listing.at.until_ms)
            ends = ends[chosen]
            ends = ends[np.argsort(ends["offset"])]
            covered = wanted.cut(part.low if wanted.newest else part.high)
            return ends[::-1] if wanted.newest else ends, covered

        return await self._threads.read(find)

    def _queue_states(self, topic: str) -> list[QueueState]:
        """Return the queues of a topic that have messages for readers."""
        known = self._state.topics.get(topic)
        if known is None:
            return []
        bounds = self._queues.bounds_of(topic)
        return [
            QueueState(known.id, queue, *bounds[queue], list(tail.tail))
            for queue, tail in known.queues.items()
            if queue < len(bounds) and bounds[queue][0] < bounds[queue][1]
        ]

    async def _views(self, listing: Listing, ends: Ends) -> list[MessageView | None]:
        """Return these messages, None for one that is not wanted or that readers may not see."""
        topic = listing.topic
        assert topic is not None
        made = await self._threads.read(self._read_ends, ends)
        bounds = self._queues.bounds_of(topic)  # again: a purge may have come in between

        def is_wanted(view: MessageView) -> bool:
            if self._state.end_of(topic, root_of(view.id)) is not None:
                return False
            if view.queue_offset is not None and view.queue_offset < bounds[view.queue][0]:
                return False
            if not listing.due.has(view.due_ms):
                return False
            if view.problem is not None:
                return listing.tags.tags is None
            return view.topic == topic and listing.tags.passes(view.properties.get(TAGS))

        return [view if view is not None and is_wanted(view) else None for view in made]

    def _read_ends(self, ends: Ends) -> list[MessageView | None]:
        """Return the messages, None for what retention has removed in the meantime."""
        whole = ends["recalled"] == 0
        data = dict(
            zip(
                np.flatnonzero(whole).tolist(),
                self._log.read_many(ends["record"][whole], ends["size"][whole]),
                strict=True,
            )
        )
        found: list[MessageView | None] = []
        columns = (ends[name].tolist() for name in ("record", "root", "queue_offset", "at_ms"))
        for number, (offset, root, queue_offset, at_ms) in enumerate(zip(*columns, strict=True)):
            if offset < self._log.start:
                found.append(None)
            elif number in data:
                found.append(self._queues.delivered_view(data[number], root, queue_offset))
            else:
                found.append(self._recalled_view(offset, at_ms))
        return found

    def _recalled_view(self, offset: int, at_ms: int) -> MessageView | None:
        """Return a message by its timer, which was recalled."""
        try:
            record = decode(self._log.read(offset))
        except OffsetError:
            return None
        except CorruptionError as error:
            root = header_in(error.remains).identity(offset).root
            view = damaged_view(self._core.ids, min(root, offset), error)
            return msgspec.structs.replace(view, state=State.RECALLED, recalled_ms=at_ms)
        root = record.header.identity(offset).root
        message_id = id_of(self._core.ids, record, root)
        return message_view(record, message_id, State.RECALLED, recalled_ms=at_ms)

    # ------------------------------------------------------------------ by key

    async def _by_key(
        self, listing: Listing, key: str, limit: int, cursor: str | None, visible: Visible
    ) -> PendingPage:
        wanted = Range(0, FAR, listing.newest)
        if cursor is not None:
            root = offset_in(cursor, "k")
            wanted = wanted._replace(high=root) if listing.newest else wanted._replace(low=root)
        until = self._state.until
        if not await self._registers.advance(SCAN_BYTES_MAX):
            return PendingPage([], key_cursor(wanted.edge))
        try:
            roots, covered = await self._roots(listing, key, wanted)
        except RegisterDamagedError as error:
            await self._registers.rebuild(error.base)
            return PendingPage([], key_cursor(wanted.edge))
        found = _Page(limit)
        while roots and not found.is_full and found.looks_left:
            part = roots[: found.looks_left]
            candidates = await self._threads.read(
                keyed_messages.read_candidates, self._log, self._core.ids, part, key
            )
            for (root, _), one in zip(part, candidates, strict=True):
                roots, wanted = roots[1:], wanted.after(root)
                found.looked_at += 1
                view = None if one is None else await self._view_of(listing, one, visible, until)
                if view is not None:
                    found.add(view)
                if found.is_full:
                    break
            await self._clock.breathe()
        rest = wanted if roots else wanted.rest(covered)
        return PendingPage(found.messages, None if rest.is_empty else key_cursor(rest.edge))

    async def _roots(self, listing: Listing, key: str, wanted: Range) -> tuple[Roots, Range]:
        """Return the messages that may have the key, at the beginning of a range of roots, and that part."""
        sources = self._registers.sources()
        parts = []
        for at in range(0, len(sources), SOURCES_AT_ONCE):
            some = sources[at : at + SOURCES_AT_ONCE]
            rows, wanted = await self._threads.read(
                keyed_messages.entries, some, key, listing.topic, wanted, LOOKED_AT_MAX
            )
            parts.append(rows)
            await self._clock.breathe()
        rows = keyed_messages.within(join(parts, KEY_DTYPE), wanted)
        return keyed_messages.roots_of(rows, newest=listing.newest), wanted

    async def _view_of(
        self, listing: Listing, one: Candidate, visible: Visible, until: int
    ) -> MessageView | None:
        """Return a message with the key, if it is wanted and the caller may see it."""
        topic = one.record.topic
        wrong_topic = listing.topic is not None and topic != listing.topic
        if wrong_topic or is_internal(topic) or not visible(topic):
            return None
        if self._state.end_of(topic, one.root) is not None:
            return None
        view = await self._current_view(one, until)
        return view if view is not None and listing.admits(view) else None

    async def _current_view(self, one: Candidate, until: int) -> MessageView | None:
        """Return the message as `MessageReader.get` does, None for what that does not show.

        The registers had all records of the log up to `until`.
        """
        if one.record.header.kind == Kind.MESSAGE:
            return await self._delivered_view(one, one.offset, one.offset + 1)
        try:
            current = await self._messages.current(one.message_id)
            if current.state is not State.DELIVERED:
                return await self._messages.view(current)
            if current.record.header.kind == Kind.MESSAGE:
                return await self._delivered_view(one, current.offset, current.offset + 1)
            end = self._log.end_of(self._log.base_of(current.offset))
        except (UnknownMessageError, DeletedMessageError, OffsetError):
            return None
        except CorruptionError:
            return await self._messages.get(one.message_id)
        # No later segment had an entry of it: its MESSAGE is in this one, or was stored a moment ago.
        view = await self._delivered_view(one, current.offset, end)
        return view or await self._delivered_view(one, max(end, until), FAR)

    async def _delivered_view(self, one: Candidate, low: int, high: int) -> MessageView | None:
        """Return a delivered message whose MESSAGE is in this range of the log."""
        topic, queue = one.record.topic, one.record.header.queue
        state = next((state for state in self._queue_states(topic) if state.queue == queue), None)
        if state is None:
            return None
        end = await self._threads.read(self._end_of, state, one.root, low, high)
        return None if end is None else (await self._threads.read(self._read_ends, end))[0]

    def _end_of(self, state: QueueState, root: int, low: int, high: int) -> Ends | None:
        """Return where a message was delivered in a range of the log."""
        with self._index.read() as txn:
            for ends in ended_messages.of_queue(txn, state, Range(low, high, newest=False)):
                found: Ends = ends[ends["root"] == root][:1]
                if len(found):
                    return found
        return None


class _Page:
    """The messages of a page, while it is filled."""

    def __init__(self, limit: int) -> None:
        self.messages: list[MessageView] = []
        self.looked_at = 0
        self._limit = limit
        self._size_bytes = 0

    def add(self, view: MessageView) -> None:
        """Add a message."""
        self.messages.append(view)
        self._size_bytes += len(view.body)

    @property
    def looks_left(self) -> int:
        """How many more records may be read in one step."""
        return min(LOOKED_AT_MAX - self.looked_at, READ_AT_ONCE)

    @property
    def room(self) -> int:
        """How many more messages may come."""
        return self._limit - len(self.messages)

    @property
    def is_full(self) -> bool:
        """Whether no more messages may come."""
        return self.room <= 0 or self._size_bytes >= PAGE_BYTES_MAX
