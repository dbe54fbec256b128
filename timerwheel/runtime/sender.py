"""Sending: messages are admitted, encoded and submitted to group commit; receipts follow durability."""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np
import orjson

from timerwheel.clock import CLOCK_STEP_MS
from timerwheel.errors import AdmissionError, Fault, RefusedError, TopicEndingError
from timerwheel.model import admission
from timerwheel.model.admission import ENVELOPE_PROPERTY, Plan, Rules
from timerwheel.model.messages import Alike, Outgoing, Receipt, State
from timerwheel.model.properties import SHARDING_KEY
from timerwheel.runtime.core import Core
from timerwheel.runtime.dedup_keys import DedupKeys, Replaced
from timerwheel.runtime.disk_space import DiskSpace
from timerwheel.runtime.firing import Firing
from timerwheel.runtime.outcome import failure_of
from timerwheel.runtime.shielded import finished
from timerwheel.runtime.steps import AT_ONCE_BYTES, AT_ONCE_MAX, is_one_step, steps
from timerwheel.runtime.topic_options import TopicOptions
from timerwheel.state.config_table import CONTROL_TOPIC, Put, encode_puts
from timerwheel.state.dedup_key import key_properties
from timerwheel.state.limited_records import flag_of
from timerwheel.store.errors import LogFailedError, NoSpaceError
from timerwheel.store.record import (
    FLAG_KEYED,
    FLAG_MORE,
    FLAG_RUN,
    Kind,
    crc_of,
    encode,
    encode_alike,
    encode_properties,
)

# Looking up an enumeration member costs as much as checking a topic.
_TIMER, _MESSAGE = int(Kind.TIMER), int(Kind.MESSAGE)
_SCHEDULED, _DELIVERED = State.SCHEDULED, State.DELIVERED


def _dues_ms(plans: Sequence[Plan]) -> list[int]:
    """Return the due times of the delayed ones."""
    return [plan.due_ms for plan in plans if plan.waits]


def accepted_at(plan: Plan, admitted_ms: int, store_ms: int) -> Plan:
    """Return the plan of a message whose keys, or whose array, took from admission until `store_ms`.

    Its due time stays; what is due by now is delivered at once. A delay level counts from the store time, so
    that messages of a level fire in the order stored, and what has no delay is due when it is stored.
    """
    if store_ms == admitted_ms:
        return plan
    if not plan.waits:
        return msgspec.structs.replace(plan, due_ms=store_ms)
    due_ms = plan.due_ms + store_ms - admitted_ms if plan.level else plan.due_ms
    return msgspec.structs.replace(plan, due_ms=due_ms, waits=due_ms > store_ms)


class PendingSend(NamedTuple):
    """Messages on their way into the log; `stored` gives the offset of the first record, or fails."""

    stored: asyncio.Future[int]
    messages: Sequence[Outgoing]
    plans: list[Plan]
    records: list[bytes]
    release: Callable[[], None]


def number_of_key(properties: dict[str, str]) -> int | None:
    """Return a number for the sharding key among the properties, modulo which it has its queue, or None."""
    key = properties.get(SHARDING_KEY)
    return None if key is None else zlib.crc32(key.encode())


def _plain(message: Outgoing) -> dict[str, str]:
    """Return the properties of a message that has them as the log stores them; none for any other."""
    properties: dict[str, str] = orjson.loads(message.plain) if message.plain else {}
    return properties


def is_keyed(messages: Iterable[Outgoing]) -> bool:
    """Whether any of the messages has a deduplication key."""
    return any([message.dedup_key is not None for message in messages])  # noqa: C419 - twice as fast so


class _Keyed(NamedTuple):
    """For each message with a key what `key_properties` takes, and the messages that are replaced."""

    contents: Sequence[Sequence[bytes]]
    replaced: Sequence[Replaced]

    @property
    def leaving_ms(self) -> list[int]:
        """Return the due times that the replaced messages give up."""
        return [one.current.record.header.due_ms for one in self.replaced]


_NOT_KEYED = _Keyed((), ())


def _release_nothing() -> None:
    """Release nothing: no place was held."""


class Sender:
    """Accepts new messages. Belongs to the event loop."""

    def __init__(
        self, core: Core, rules: Rules, firing: Firing, keys: DedupKeys, topics: TopicOptions
    ) -> None:
        self._clock = core.clock
        self._settings = core.settings
        self._life = core.life
        self._disk = core.disk
        self._state = core.state
        self._near = core.near
        self._ids = core.ids
        self._commit = core.commit
        self._slot_limit = core.slot_limit
        self.rules = rules
        self._firing = firing
        self._keys = keys
        self._topics = topics
        self._turns: dict[str, int] = {}  # of topics with several queues
        self._level_due_ms: dict[int, int] = {}

    def check(self, messages: Sequence[Outgoing]) -> list[Fault]:
        """Return the faults for which `send` would refuse these messages; stores nothing."""
        return self._admit(messages, self._clock.now_ms())[1]

    def _admit(self, messages: Sequence[Outgoing], now_ms: int) -> tuple[list[Plan], list[Fault]]:
        plans: list[Plan] = []
        faults: list[Fault] = []
        admit, rules, ending = admission.admit, self.rules, self._topics.ending
        checked: tuple[str, int | None] | None = None
        for index, message in enumerate(messages):
            try:
                plans.append(admit(message, now_ms, rules))
                place = message.topic, message.queue
                if message.queue is not None and place != checked:  # most batches go to one queue
                    self._check_queue(message.topic, message.queue)
                    checked = place
                if message.topic in ending:
                    faults.append(Fault(index, TopicEndingError.code, str(TopicEndingError(message.topic))))
            except AdmissionError as error:
                faults.append(Fault(index, error.code, error.detail))
        return plans, faults

    def _check_queue(self, topic: str, queue: int) -> None:
        if not self._topics.has_queue(topic, queue):
            count = self._topics.queues_of(topic)
            detail = f"queue = {queue}: topic {topic!r} has the queues 0 to {count - 1}"
            raise AdmissionError("illegal_queue", detail)

    async def send(self, messages: Sequence[Outgoing], puts: Sequence[Put] = ()) -> list[Receipt]:
        """Store messages and changes of settings as one unit; returns a receipt per message, once durable.

        A message that was sent before under its deduplication key is not stored again, and its receipt says
        so. Raises RefusedError with every fault (key_reused: the key names another message, key_recalled: it
        repeats a recalled one), CongestedError, DiskReserveError, NotReadyError or NoSpaceError; then nothing
        is stored. After an OutcomeUnknownError the log failed during the write: all are stored, or none.
        """
        if not puts and is_one_step(messages) and not is_keyed(messages):
            begun = self.begin(messages)
            try:
                await begun.stored
            except (NoSpaceError, LogFailedError):
                pass  # `receipts` raises it in the sender's terms
            except BaseException:
                begun.release()
                raise
            return self.receipts(begun)
        if not messages and not puts:
            self._life.check_ready()
            return []
        plans, now_ms = await self._admitted(messages)
        if is_keyed(messages):
            # Shielded: a cancelled sender must not release its keys before its messages are stored.
            return await finished(self._send_keyed(messages, plans, now_ms, puts))
        stored = await self._send_all(messages, plans, now_ms, puts)
        return self._receipts(messages, *stored)

    async def store(self, messages: Sequence[Outgoing], puts: Sequence[Put]) -> int:
        """Do what `send` does, and return how many of the messages had been sent before.

        For callers who need no receipts.
        """
        if is_keyed(messages):
            return sum([receipt.duplicate for receipt in await self.send(messages, puts)])
        await self._send_all(messages, *await self._admitted(messages), puts)
        return 0

    async def _admitted(self, messages: Sequence[Outgoing]) -> tuple[list[Plan], int]:
        """Return the plans of messages, and the time for which they are made. Raises what `send` raises."""
        if messages:
            self.check_accepting()
        else:  # a change of settings may be what stops the disk from filling: a full disk must not refuse it
            self._life.check_ready()
        now_ms = self._clock.now_ms()
        plans: list[Plan] = []
        faults: list[Fault] = []
        for part in steps(messages):
            if part.start:
                await self._clock.breathe()  # a large array must not make a due message late
            more, wrong = self._admit(messages[part], now_ms)
            plans += more
            faults += [Fault(fault.index + part.start, fault.code, fault.detail) for fault in wrong]
        if faults:
            raise RefusedError(faults)
        self._check_topics(messages)
        return plans, now_ms

    def begin(self, messages: Sequence[Outgoing], *, separate: bool = False) -> PendingSend:
        """Check and encode up to AT_ONCE_MAX messages without keys, and queue them for the log as one unit.

        With `separate` a crash may keep only some of them, as if each had been sent by itself. Raises
        what `send` raises, and then nothing is stored. Otherwise call `receipts` once `stored` is done.
        """
        self.check_accepting()
        now_ms = self._clock.now_ms()
        plans, faults = self._admit(messages, now_ms)
        if faults:
            raise RefusedError(faults)
        self._check_topics(messages)
        plans = self._in_level_order(plans)
        dues_ms = _dues_ms(plans)
        release = self._slot_limit.admit(dues_ms)
        try:
            plans, dues_ms = self._in_turn(messages, plans, dues_ms, now_ms)
            records = self._encode(messages, plans, now_ms, now_ms, 0 if separate else len(messages) - 1)
            topics = [message.topic for message in messages]
            stored = self._commit.submit(records, topics, release, dues_ms)
            return PendingSend(stored, messages, plans, records, release)
        except BaseException:
            release()
            raise

    def begin_alike(self, alike: Alike) -> PendingSend | None:
        """Do what `begin` does with these messages as one unit, at a third of the cost; it has no plans.

        Returns None, and nothing is done, if only `begin` or `send` can decide about them: they are more than
        one step, break a rule, are the first of their topic, or have to queue behind timers. Raises as
        `begin`, and property tests hold that both store the same records.
        """
        self.check_accepting()
        now_ms = self._clock.now_ms()
        if not self._are_ordinary(alike) or self.has_due(now_ms):
            return None
        records = encode_alike(_MESSAGE, alike.topic.encode(), alike.plain, alike.bodies, now_ms, alike.queue)
        stored = self._commit.submit(records, [alike.topic] * len(records), is_patient=True)
        return PendingSend(stored, (), [], records, _release_nothing)

    def _are_ordinary(self, alike: Alike) -> bool:
        topic, bodies, shard = alike.topic, alike.bodies, self.rules.shard
        return (
            len(bodies) <= AT_ONCE_MAX
            and sum(map(len, bodies)) + sum(map(len, alike.plain)) <= AT_ONCE_BYTES
            and max(map(len, bodies)) <= self.rules.body_bytes_max
            and (shard is None or shard.holds(topic))
            and topic in self._state.topics
            and topic not in self._topics.ending
            and admission.is_sendable(topic)
            and self._topics.has_queue(topic, alike.queue)
        )

    def receipts(self, pending: PendingSend) -> list[Receipt]:
        """Return the receipts of stored messages; raises like `send` if they are not, or may not be."""
        offset = self._first_offset(pending)
        return self._receipts(pending.messages, pending.plans, pending.records, offset)

    def offsets(self, pending: PendingSend) -> list[int]:
        """Return the log offsets of stored messages, which their ids contain; raises as `receipts` does."""
        return list(accumulate(map(len, pending.records[:-1]), initial=self._first_offset(pending)))

    def _first_offset(self, pending: PendingSend) -> int:
        try:
            return pending.stored.result()
        except BaseException as error:
            pending.release()  # what takes effect does so itself
            explain(error, self._disk)
            raise

    async def _send_keyed(
        self, messages: Sequence[Outgoing], plans: list[Plan], now_ms: int, puts: Sequence[Put]
    ) -> list[Receipt]:
        """Store the messages whose keys are new, and those that replace what their keys name."""
        replaced: dict[str, Replaced] = {}
        async with self._keys.taken(messages) as known:
            fresh = [place for place in range(len(messages)) if place not in known.earlier]
            stored: list[Receipt] = []
            if fresh or puts:
                chosen, their_plans = [messages[place] for place in fresh], [plans[place] for place in fresh]
                contents = [known.contents.get(place, ()) for place in fresh]
                replaced = await self._keys.take_replaced(known)
                keyed = _Keyed(contents, list(replaced.values()))
                stored = self._receipts(
                    chosen, *await self._send_all(chosen, their_plans, now_ms, puts, keyed)
                )
            receipts: dict[int, Receipt] = dict(zip(fresh, stored, strict=True))
            for place, message_id in known.replaced.items():
                if message_id in replaced:
                    receipts[place] = msgspec.structs.replace(receipts[place], replaced=message_id)
            for place, first in known.earlier.items():
                while isinstance(first, int) and first in known.earlier:
                    first = known.earlier[first]  # noqa: PLW2901 - each was replaced by a later place
                receipt = receipts[first] if isinstance(first, int) else first
                receipts[place] = msgspec.structs.replace(receipt, duplicate=True, replaced=None)
        return [receipts[place] for place in range(len(messages))]

    async def _send_all(
        self,
        messages: Sequence[Outgoing],
        plans: list[Plan],
        now_ms: int,
        puts: Sequence[Put],
        keyed: _Keyed = _NOT_KEYED,
    ) -> tuple[list[Plan], list[bytes], int]:
        """Store messages that were admitted at `now_ms` and passed every check; they are accepted now.

        Returns what `_receipts` takes.
        """
        topics = [message.topic for message in messages]
        store_ms = self._clock.now_ms()
        plans = self._in_level_order([accepted_at(plan, now_ms, store_ms) for plan in plans])
        dues_ms = _dues_ms(plans)
        release = _release_nothing
        try:
            release = self._slot_limit.admit(dues_ms, keyed.leaving_ms)
            plans, dues_ms = self._in_turn(messages, plans, dues_ms, store_ms)
            # All records of the unit but the last have FLAG_MORE, so a torn unit is cut whole.
            more = len(messages) - (not puts)
            records = [one.cancel(store_ms, FLAG_MORE) for one in keyed.replaced]
            topics[:0] = [one.current.record.topic for one in keyed.replaced]
            for part in steps(messages):
                if part.start:
                    await self._clock.breathe()
                records += self._encode(
                    messages[part], plans[part], now_ms, store_ms, more - part.start, keyed.contents[part]
                )
            if puts:
                records.append(encode_puts(puts, store_ms))
                topics.append(CONTROL_TOPIC)
            self._check_still_open(messages)
            stored = self._commit.submit(records, topics, release, dues_ms)
            for one in keyed.replaced:
                one.taken.follow(stored)
            offset = await self._stored(stored)
        except BaseException:
            release()  # what takes effect does so itself
            for one in keyed.replaced:
                one.taken.put_back()
            raise
        cancels = len(keyed.replaced)
        return plans, records[cancels:], offset + sum(map(len, records[:cancels]))

    def _receipts(
        self, messages: Sequence[Outgoing], plans: list[Plan], records: list[bytes], offset: int
    ) -> list[Receipt]:
        """Build the receipts of messages whose records, as stored, follow each other from this offset on."""
        receipts: list[Receipt] = []
        encode_id = self._ids.encode
        for message, plan, record in zip(messages, plans, records, strict=False):
            state = _SCHEDULED if plan.waits else _DELIVERED
            receipts.append(Receipt(encode_id(offset, crc_of(record)), message.topic, plan.due_ms, state))
            offset += len(record)
        return receipts

    def _encode(
        self,
        messages: Sequence[Outgoing],
        plans: Sequence[Plan],
        admitted_ms: int,
        store_ms: int,
        more: int,
        contents: Sequence[Sequence[bytes]] = (),
    ) -> list[bytes]:
        """Encode the records; the first `more` of them say that their unit continues.

        `contents` has for each message with a key what `key_properties` takes.
        """
        topics: dict[str, tuple[bytes, int]] = {}  # most arrays are for one topic
        records: list[bytes] = []
        for place, (message, plan) in enumerate(zip(messages, plans, strict=True)):
            topic, properties = message.topic, plan.properties
            flags = FLAG_MORE if place < more else 0
            if properties:
                flags |= flag_of(properties)
            if message.dedup_key is not None:
                flags |= FLAG_KEYED | FLAG_RUN if message.own else FLAG_KEYED
                properties = properties | key_properties(message, contents[place])
            if message.envelope:
                properties = properties | {ENVELOPE_PROPERTY: message.envelope}
            known = topics.get(topic)
            if known is None:
                known = topics[topic] = (topic.encode(), self._topics.send_queues_of(topic))
            name, queues = known
            queue = message.queue
            if queue is None:
                queue = 0 if queues == 1 else self._queue_for(topic, properties or _plain(message), queues)
            text = encode_properties(properties) if properties else message.plain
            kind = _TIMER if plan.waits else _MESSAGE
            # From here its delay counts, so that of a message which waits is what its sender asked for.
            enqueue_ms = admitted_ms if plan.waits and not plan.level else store_ms
            times_ms = (store_ms, plan.due_ms, enqueue_ms)
            records.append(encode(kind, name, text, message.body, *times_ms, flags, plan.level, queue))
        return records

    def _in_turn(
        self, messages: Sequence[Outgoing], plans: list[Plan], dues_ms: list[int], now_ms: int
    ) -> tuple[list[Plan], list[int]]:
        """Queue messages without delay behind timers of their topic that are due in this millisecond.

        Such a message becomes a timer that is due now, so it fires in order of acceptance. The send itself
        does not wait, and such timers are rare.
        """
        if len(dues_ms) == len(plans) or not self.has_due(now_ms):
            return plans, dues_ms
        behind = {topic: self.must_wait(topic, now_ms) for topic in {message.topic for message in messages}}
        if not any(behind.values()):
            return plans, dues_ms
        plans = [
            msgspec.structs.replace(plan, waits=True, due_ms=max(plan.due_ms, now_ms))
            if behind[message.topic]
            else plan
            for message, plan in zip(messages, plans, strict=True)
        ]
        return plans, _dues_ms(plans)

    def has_due(self, now_ms: int) -> bool:
        """Whether a timer may be due now and not submitted yet."""
        next_ms = self._near.next_due_ms()
        is_due = next_ms is not None and next_ms <= now_ms
        return is_due or self._firing.is_busy or self._commit.is_storing(now_ms)

    def must_wait(self, topic: str, due_ms: int) -> bool:
        """Whether a timer of this topic is due now and not submitted yet, so nothing may overtake it."""
        if self._commit.is_storing(due_ms):
            return True
        known = self._state.topics.get(topic)
        if known is None:
            return False
        return self._near.has_due(known.id, due_ms) or self._firing.is_leaving(known.id, due_ms)

    def _in_level_order(self, plans: list[Plan]) -> list[Plan]:
        return [self.after_its_level(plan) if plan.level else plan for plan in plans]

    def after_its_level(self, plan: Plan) -> Plan:
        """Keep the order of acceptance within one delay level, even if the clock steps back a little.

        After a larger step `level_guard` delivers the pending ones, so they cannot be overtaken.
        """
        if not plan.waits:
            return plan
        last_ms = self._level_due_ms.get(plan.level, 0)
        if 0 < last_ms - plan.due_ms <= CLOCK_STEP_MS:
            return msgspec.structs.replace(plan, due_ms=last_ms)
        self._level_due_ms[plan.level] = plan.due_ms
        return plan

    def queue_of(self, message: Outgoing) -> int:
        """Return the queue that a message names, or choose one for it."""
        queues = self._topics.send_queues_of(message.topic)
        if message.queue is not None:
            return message.queue
        properties = message.properties or _plain(message)
        return 0 if queues == 1 else self._queue_for(message.topic, properties, queues)

    def _queue_for(self, topic: str, properties: dict[str, str], queues: int) -> int:
        """Choose the queue: by sharding key if there is one, so a key keeps its order; else round robin."""
        if (number := number_of_key(properties)) is not None:
            return number % queues
        turn = self._turns[topic] = self._turns.get(topic, 0) + 1
        return turn % queues

    def next_turns(self, topic: str, count: int) -> np.ndarray:
        """Return numbers for so many messages without a sharding key; modulo the queues, they take turns."""
        last = self._turns.get(topic, 0)
        self._turns[topic] = last + count
        return last + np.arange(1, count + 1)

    def check_accepting(self) -> None:
        """Raise NotReadyError, DiskReserveError or IndexFullError if new messages are not accepted now."""
        self._life.check_ready()
        if (refusal := self._disk.refusal) is not None:
            raise refusal

    def _check_still_open(self, messages: Sequence[Outgoing]) -> None:
        """Raise RefusedError if the deletion of a topic has begun since the messages were admitted."""
        if ending := self._topics.ending:
            faults = [
                Fault(index, TopicEndingError.code, str(TopicEndingError(message.topic)))
                for index, message in enumerate(messages)
                if message.topic in ending
            ]
            if faults:
                raise RefusedError(faults)

    def check_open(self, topics: Iterable[str]) -> None:
        """Raise TopicEndingError if one of these topics is being deleted."""
        self._topics.check_open(topics)

    def _check_topics(self, messages: Sequence[Outgoing]) -> None:
        new = self.topics_without_room([message.topic for message in messages])
        if new:
            first = next(i for i, message in enumerate(messages) if message.topic in new)
            raise RefusedError([self.too_many_topics(first)])

    def topics_without_room(self, topics: Iterable[str]) -> set[str]:
        """Return those of these topics that are new, if there is no room for them."""
        known = self._state.topics
        new = {topic for topic in topics if topic not in known}
        return new if new and self._state.client_topics + len(new) > self._settings.topics_max else set()

    def too_many_topics(self, index: int) -> Fault:
        """Return the fault of a message whose topic is new and has no room."""
        detail = f"the limit of topics_max = {self._settings.topics_max} topics is reached"
        return Fault(index, "too_many_topics", detail)

    async def _stored(self, stored: asyncio.Future[int]) -> int:
        try:
            return await stored
        except BaseException as error:
            explain(error, self._disk)
            raise


def explain(error: BaseException, disk: DiskSpace) -> None:
    """React to a failed write; raises NotReadyError or OutcomeUnknownError if the log has failed."""
    if isinstance(error, NoSpaceError):
        disk.refresh()
    elif isinstance(error, LogFailedError):
        raise failure_of(error) from error
