"""Deduplication keys at work: who was first, which message a key names now, and when it is forgotten.

A key is *taken* while it is being sent. A second sender waits until the first one's message is stored or
refused, and then looks. So of any number of senders exactly one stores.

The state of the message that the key names decides about a send:

    none, or ended a day ago              stored
    scheduled or delivered                a duplicate if the content is the same, else key_reused
    recalled                              key_recalled if the content is that of a recalled send under this
                                          key, unless `after_recall` names the message; else stored

A message that `replaces` is stored whatever the state. If the key's message is scheduled, its timer is taken,
and its CANCEL is in the same unit as the new message. So the log has both or neither.

A run of a schedule that was recalled stays recalled: sending the run again is a duplicate.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import NamedTuple

import orjson

from timerwheel.errors import (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    Fault,
    RefusedError,
    UnknownMessageError,
)
from timerwheel.index import dedup
from timerwheel.model.admission import KEY_PROPERTY, SCHEDULE_KEY_PREFIX, TASK_PREFIX
from timerwheel.model.messages import MessageView, Outgoing, Receipt, State
from timerwheel.runtime.core import Core
from timerwheel.runtime.current_record import cancel_of
from timerwheel.runtime.in_flight import Taken
from timerwheel.runtime.key_lookups import KeyLookups
from timerwheel.runtime.message_reader import Current, MessageReader
from timerwheel.runtime.pending_timers import take_pending
from timerwheel.runtime.steps import steps
from timerwheel.state.config_table import CONTROL_TOPIC
from timerwheel.state.dedup_key import (
    KEY_KEPT_MS,
    SCHEDULE_DOMAIN,
    KeyEntry,
    carried_record,
    content_of,
    contents_in,
    digest_of,
    domain_of,
    is_content,
)
from timerwheel.store.errors import CorruptionError, NoSpaceError
from timerwheel.store.record import Kind

logger = logging.getLogger("timerwheel")

SWEEP_INTERVAL_MS = 60_000
SWEEP_KEYS = 500


class Known(NamedTuple):
    """What the keys say about an array of messages.

    Some places are not to be stored: each repeats a receipt or an earlier place. For the other places with a
    key, this has hashes: of the place's own content, and of the recalled sends under its key. `replaced` has
    the ids of the scheduled messages that some of these places replace.
    """

    earlier: dict[int, Receipt | int]
    contents: dict[int, list[bytes]]
    replaced: dict[int, str]


class Replaced(NamedTuple):
    """A scheduled message that another one replaces; its timer is in flight."""

    current: Current
    taken: Taken

    def cancel(self, now_ms: int, flags: int) -> bytes:
        """Return the CANCEL that ends it."""
        current = self.current
        topic = current.record.topic.encode()
        return cancel_of(current.record.header, topic, current.root, current.offset, now_ms, flags)


class Holder(NamedTuple):
    """The message that a key names, and the contents of recalled sends if it was recalled itself."""

    content: bytes
    receipt: Receipt
    recalled: list[bytes]

    def is_repeated_by(self, message: Outgoing, own: bytes) -> bool:
        """Whether this may be a late repeat of a recalled send, from before the recall."""
        if message.after_recall == self.receipt.id:
            return False
        return any(is_content(content, message, own) for content in self.recalled)


class _Decisions:
    """What is known of the messages of one array, decided in their order."""

    def __init__(self) -> None:
        self.known = Known({}, {}, {})
        self.faults: list[Fault] = []
        self._first: dict[bytes, tuple[bytes, Receipt | int]] = {}

    def decide(self, place: int, message: Outgoing, digest: bytes, own: bytes, holder: Holder | None) -> None:
        """Decide about a message that is stored only if its key is free."""
        first, recalled = self._first, []
        if digest not in first and holder is not None and (message.own or not holder.recalled):
            first[digest] = (holder.content, holder.receipt)
        elif digest not in first and holder is not None:
            if holder.is_repeated_by(message, own):
                self.faults.append(_repeats_recalled(place, message, holder))
                return
            recalled = holder.recalled
        content, earlier = first.setdefault(digest, (own, place))
        if not is_content(content, message, own):
            detail = f"the key {message.dedup_key!r} is already used by a different message of this topic"
            self.faults.append(Fault(place, "key_reused", detail))
        elif earlier != place:
            self.known.earlier[place] = earlier
        else:
            self.known.contents[place] = [own, *recalled]

    def replace(
        self, place: int, digest: bytes, own: bytes, holder: Holder | None, before: Sequence[bytes]
    ) -> None:
        """Note that a message replaces what its key names: an earlier place of the array, or `holder`."""
        known = self.known
        earlier = self._first[digest][1] if digest in self._first else None
        self._first[digest] = (own, place)
        if isinstance(earlier, int):
            known.earlier[earlier] = place
            known.contents[place] = [own, *known.contents.pop(earlier)[1:]]
            if earlier in known.replaced:
                known.replaced[place] = known.replaced.pop(earlier)
            return
        known.contents[place] = [own, *dict.fromkeys(before)]
        if holder is not None and holder.receipt.state is State.SCHEDULED:
            known.replaced[place] = holder.receipt.id


class _Taking:
    """A block in which keys are taken; it begins when no other sender has any of them."""

    def __init__(self, sending: dict[bytes, asyncio.Future[None]], wanted: Set[bytes]) -> None:
        self._sending = sending
        self._wanted = wanted
        self._released: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        sending, wanted = self._sending, self._wanted
        while not sending.keys().isdisjoint(wanted):
            await asyncio.wait({sending[digest] for digest in wanted & sending.keys()})
        self._released = asyncio.get_running_loop().create_future()
        sending.update(dict.fromkeys(wanted, self._released))

    async def __aexit__(self, *_: object) -> None:
        for digest in self._wanted:
            del self._sending[digest]
        assert self._released is not None
        self._released.set_result(None)


class DedupKeys:
    """Decides about keyed sends; `messages` reads the state of a message. Belongs to the event loop."""

    def __init__(self, core: Core, messages: MessageReader) -> None:
        self._state = core.state
        self._index = core.index
        self._threads = core.threads
        self._lookups = KeyLookups(core.index.index, core.threads)
        self._clock = core.clock
        self._ages = core.log_ages
        self._ids = core.ids
        self._commit = core.commit
        self._messages = messages
        self._core = core
        self.sending: dict[bytes, asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def taken(self, messages: Sequence[Outgoing]) -> AsyncIterator[Known]:
        """Take the keys of these messages until the block ends, and say which of them are repeats.

        Raises RefusedError with a fault for each message whose key names another message (key_reused), or
        that repeats a send whose message was recalled (key_recalled).
        """
        digests: list[bytes | None] = []
        contents: list[bytes] = []
        for part in steps(messages):
            if part.start:
                await self._clock.breathe()
            for message in messages[part]:
                key, topic = message.dedup_key, message.topic
                digests.append(None if key is None else digest_of(topic, key, domain_of(message)))
                contents.append(b"" if key is None else content_of(message))
        async with self._take({digest for digest in digests if digest is not None}):
            yield await self._known(messages, digests, contents)

    @contextlib.asynccontextmanager
    async def taken_if_new(self, digests: Sequence[bytes]) -> AsyncIterator[bool]:
        """Take these keys until the block ends, and say whether all are new and no two are the same."""
        wanted = set(digests)
        async with self._take(wanted):
            yield len(wanted) == len(digests) and not await self._has_any(wanted)

    def _take(self, wanted: Set[bytes]) -> "_Taking":
        return _Taking(self.sending, wanted)

    async def carry(self, ended: Mapping[bytes, KeyEntry]) -> None:
        """Carry these keys to the tail, because the records that prove or carry them will go.

        A key that names another message by now is left out, and so is a key that ended long ago.
        """
        async with self._take(ended.keys()):
            current = await self._entries(list(ended))
            kept = {
                digest: entry
                for digest, entry in ended.items()
                if self._counts(entry) and _carries_on(current.get(digest), entry)
            }
            if kept:
                now_ms = self._clock.now_ms()
                kept = {digest: _ended_by(entry, now_ms) for digest, entry in kept.items()}
                record = carried_record(kept, now_ms)
                await self._commit.submit([record], [CONTROL_TOPIC])

    async def _known(
        self, messages: Sequence[Outgoing], digests: Sequence[bytes | None], contents: Sequence[bytes]
    ) -> Known:
        holders = await self._holders(messages, digests)
        decisions = _Decisions()
        pauses = {part.start for part in steps(messages)} - {0}
        for place, (message, digest, own) in enumerate(zip(messages, digests, contents, strict=True)):
            if place in pauses:
                await self._clock.breathe()
            if digest is None:
                continue
            holder = holders.get(digest)
            if message.replaces:
                before = [] if holder is None else await self._contents_before(holder)
                decisions.replace(place, digest, own, holder, before)
            else:
                decisions.decide(place, message, digest, own, holder)
        if decisions.faults:
            raise RefusedError(decisions.faults)
        return decisions.known

    async def _contents_before(self, holder: Holder) -> list[bytes]:
        """Return the contents that late repeats must not restore once the holder is replaced."""
        if holder.receipt.state is not State.SCHEDULED:
            return [holder.content, *holder.recalled]
        with contextlib.suppress(UnknownMessageError, CorruptionError):
            current = await self._messages.current(holder.receipt.id)
            if current.state is State.RECALLED:
                return contents_in(await self._messages.recalled_properties(holder.receipt.id))
            return contents_in(orjson.loads(current.record.properties))
        return [holder.content]

    async def take_replaced(self, known: Known) -> dict[str, Replaced]:
        """Take the timers of the messages that are replaced, by id, without those that have ended."""
        found: dict[str, Replaced] = {}
        try:
            for message_id in known.replaced.values():
                with contextlib.suppress(UnknownMessageError, AlreadyDeliveredError, AlreadyRecalledError):
                    found[message_id] = Replaced(*await take_pending(self._core, self._messages, message_id))
        except BaseException:
            for one in found.values():
                one.taken.put_back()
            raise
        return found

    async def _holders(
        self, messages: Sequence[Outgoing], digests: Sequence[bytes | None]
    ) -> dict[bytes, Holder]:
        """Return the messages that these keys name, without keys that have ended."""
        topics = dict(zip(digests, (message.topic for message in messages), strict=True))
        entries = await self._entries([digest for digest in topics if digest is not None])
        found = [(digest, await self._holder(topics[digest], entry)) for digest, entry in entries.items()]
        return {digest: holder for digest, holder in found if holder is not None}

    async def _holder(self, topic: str, entry: KeyEntry) -> Holder | None:
        """Return the message that a key of this topic names; None if the key has ended."""
        receipt = await self._alive(topic, entry)
        if receipt is None:
            return None
        recalled: list[bytes] = []
        if entry.ended is not None:
            recalled = list(entry.ended.recalled)
        elif receipt.state is State.RECALLED:
            recalled = [entry.content]
            with contextlib.suppress(UnknownMessageError, CorruptionError):
                recalled = contents_in(await self._messages.recalled_properties(receipt.id))
        return Holder(entry.content, receipt, list(dict.fromkeys(recalled)))

    async def _entries(self, digests: Sequence[bytes]) -> dict[bytes, KeyEntry]:
        """Return the index entries of these keys, alive or not."""

        async def read(staged: dict[bytes, KeyEntry | None]) -> dict[bytes, KeyEntry | None]:
            missing = [digest for digest, entry in staged.items() if entry is None]
            return staged | (await self._lookups.find(missing) if missing else {})

        found = await self._state.consistent_read(
            read, lambda: {digest: self._state.key_of(digest) for digest in digests}
        )
        return {digest: entry for digest, entry in found.items() if entry is not None}

    async def _has_any(self, wanted: set[bytes]) -> bool:
        """Whether there is an entry, alive or not, of any of these keys."""

        async def read(known: bool) -> bool:  # noqa: FBT001 - of `consistent_read`
            return known or await self._threads.read(self._find_any, wanted)

        return await self._state.consistent_read(read, lambda: self._state.has_any_key(wanted))

    def _find_any(self, digests: set[bytes]) -> bool:
        with self._index.read() as txn:
            return dedup.has_any(txn, sorted(digests))

    async def _alive(self, topic: str, entry: KeyEntry) -> Receipt | None:
        """Return the message of a key of this topic, None if the key has ended."""
        message_id = self._ids.encode(entry.root, entry.root_crc)
        if entry.ended is not None:
            state = State.RECALLED if entry.ended.recalled else State.DELIVERED
            counts = self._counts(entry) and self._state.end_of(topic, entry.root) is None
            return Receipt(message_id, topic, entry.due_ms, state) if counts else None
        try:
            current = await self._messages.current(message_id)
            due_ms = current.record.header.due_ms
            if current.state is State.SCHEDULED or self._has_just_ended(current):
                return Receipt(message_id, topic, due_ms, current.state)
            view = await self._messages.get(message_id)
        except UnknownMessageError:
            return None  # removed by retention, long after it ended
        except CorruptionError as error:
            # Its outcome is unknown; storing it again might deliver it twice.
            logger.warning("the message of a deduplication key cannot be read: %s", error)
            return Receipt(message_id, topic, entry.due_ms, State.SCHEDULED)
        if self._left_ms(view) <= 0:
            return None
        return Receipt(message_id, topic, view.due_ms, view.state)

    def _counts(self, carried: KeyEntry) -> bool:
        assert carried.ended is not None
        return self._core.ages.age_ms(carried.ended.at_ms) < KEY_KEPT_MS

    def _has_just_ended(self, current: Current) -> bool:
        """Whether an ended message has certainly ended within the time; most repeats need no more."""
        header = current.record.header
        not_before_ms = header.due_ms if header.kind == Kind.TIMER else header.store_ms
        return 0 <= self._core.ages.age_ms(not_before_ms) < KEY_KEPT_MS

    def _left_ms(self, view: MessageView) -> int:
        """Return for how long at least the key of a message still counts; 0 or less if it has ended."""
        ended_ms = view.delivered_ms or view.recalled_ms
        if ended_ms is not None:
            left_ms = KEY_KEPT_MS - self._ages.age_ms(ended_ms)
            if view.properties.get(KEY_PROPERTY, "").startswith(SCHEDULE_KEY_PREFIX):
                # A run that a clock delivered which was ahead must not be sent again when its time comes.
                left_ms = max(left_ms, KEY_KEPT_MS + view.due_ms - self._clock.now_ms())
            return left_ms
        due_ago_ms = self._core.ages.age_ms(view.due_ms)
        return KEY_KEPT_MS - (min(due_ago_ms, 0) if view.state is State.SCHEDULED else due_ago_ms)

    async def id_of(self, topic: str, key: str) -> str:
        """Return the id of the message that a key names, a client's key or a run's; UnknownMessageError."""
        receipt = await self.find(topic, key)
        if receipt is None:
            raise UnknownMessageError(key)
        return receipt.id

    async def find(self, topic: str, key: str) -> Receipt | None:
        """Return the message that a key names, a client's key or a run's; None if it names none."""
        digests = [digest_of(topic, key)]
        if key.startswith(SCHEDULE_KEY_PREFIX):
            # Runs that were sent before schedules had a separate digest domain have keys like clients' keys.
            digests.insert(0, digest_of(topic, key, SCHEDULE_DOMAIN))
        while under_way := [self.sending[digest] for digest in digests if digest in self.sending]:
            await asyncio.wait(under_way)
        entries = await self._entries(digests)
        for digest in digests:
            if digest in entries and (receipt := await self._alive(topic, entries[digest])) is not None:
                return receipt
        return None

    async def run(self) -> None:
        """Forget keys that have ended, until cancelled."""
        while True:
            await self._clock.sleep_for(SWEEP_INTERVAL_MS)
            with contextlib.suppress(NoSpaceError):
                while await self.sweep() == SWEEP_KEYS:
                    await self._clock.breathe()

    async def sweep(self) -> int:
        """Check the keys whose end may have come; returns how many those were."""
        # A key is gone for good: after a step forward, those that the clock has skipped wait until it has run
        # for as long as they count.
        now_ms = self._core.ages.unstepped_now_ms(KEY_KEPT_MS)
        await self._threads.index(self._index.sweep_keys, now_ms)
        found = await self._threads.read(self._ending, now_ms)
        ends = [(row, entry, await self._later(entry, now_ms)) for row, entry in found]
        if ends:
            await self._threads.index(self._end, ends)
        return len(found)

    async def _later(self, entry: KeyEntry | None, now_ms: int) -> int | None:
        """Return when to check a key again, as `now_ms` counts; None if it has ended."""
        if entry is None:
            return None
        if entry.ended is not None:
            left_ms = KEY_KEPT_MS - self._core.ages.age_ms(entry.ended.at_ms)
            return now_ms + left_ms if left_ms > 0 else None
        try:
            view = await self._messages.get(self._ids.encode(entry.root, entry.root_crc))
        except UnknownMessageError:
            return None
        except CorruptionError as error:
            logger.warning("keeping a deduplication key whose message cannot be read: %s", error)
            return now_ms + KEY_KEPT_MS
        left_ms = self._left_ms(view)
        return now_ms + left_ms if left_ms > 0 else None

    def _ending(self, now_ms: int) -> list[tuple[bytes, KeyEntry | None]]:
        with self._index.read() as txn:
            return dedup.ending(txn, now_ms, SWEEP_KEYS)

    def _end(self, ends: list[tuple[bytes, KeyEntry | None, int | None]]) -> None:
        with self._index.write() as txn:
            for row, entry, later_ms in ends:
                dedup.end(txn, row, entry, later_ms)


def _carries_on(current: KeyEntry | None, ended: KeyEntry) -> bool:
    """Whether the key still names this message, and no record carries it except the one that will go."""
    return current is not None and current[:2] == ended[:2] and current.ended in (None, ended.ended)


def _ended_by(entry: KeyEntry, now_ms: int) -> KeyEntry:
    """Return a key whose message ended by now: a later end was stored while the clock was ahead."""
    assert entry.ended is not None
    return entry._replace(ended=entry.ended._replace(at_ms=min(entry.ended.at_ms, now_ms)))


def _repeats_recalled(place: int, message: Outgoing, holder: Holder) -> Fault:
    if message.topic.startswith(TASK_PREFIX):  # a task names no message that it follows
        detail = (
            f"the same call was made a task with the key {message.dedup_key!r} before, and cancelled, so "
            "nothing was stored. To have it made on purpose, give another dedup_key"
        )
        return Fault(place, "key_recalled", detail)
    detail = (
        f"the message with the key {message.dedup_key!r} was sent before and recalled or replaced, so "
        f"nothing was stored. To send it again on purpose, give after_recall = {holder.receipt.id}"
    )
    return Fault(place, "key_recalled", detail)
