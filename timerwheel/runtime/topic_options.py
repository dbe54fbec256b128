"""The options of topics: how many queues, whether ordered by sharding key, paused, or being deleted.

1. A topic has the number of queues that its option says, else that of `queues_per_topic`, but at least one
   more than the highest queue that a message went to. All that need this number take it from here.
2. The option only grows, so each queue keeps its messages, and each offset its meaning.
3. Messages go to the first `send_queues_of` queues, those of one sharding key to one of them, which follows
   from that number. So another number moves keys: on an ordered topic only if the call says so.
4. So an ordered topic has a number of its own, stored in the change that makes it ordered: no other setting
   of `queues_per_topic` moves its keys. Those from before get theirs at the first start.
5. From the step of the loop in which a topic is in `ending`, nothing is submitted to the log that adds
   something to it. All that adds calls `check_open` in the step in which it submits.
6. All that delivers messages of a topic to consumers asks `paused` in the step in which it does. All that
   waits for some is woken by `watch_resumes`.
7. A topic goes to Kafka from the queue offsets that `kafka_outlet` has of it, unless its option forbids it.
   The option counts though an offset was stored at the same time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from timerwheel.errors import (
    Fault,
    FixedOutletError,
    KeysMoveError,
    NotReadyError,
    OutcomeUnknownError,
    QueuesShrinkError,
    RefusedError,
    TopicEndingError,
    TopicOptionError,
)
from timerwheel.model.admission import check_topic
from timerwheel.model.precondition import ALWAYS, Precondition, tag_of
from timerwheel.runtime.core import Core
from timerwheel.runtime.shielded import finished
from timerwheel.settings import TOPIC_QUEUES_MAX
from timerwheel.state.config_table import ConfigTable, Control, Put
from timerwheel.store.errors import NoSpaceError

logger = logging.getLogger("timerwheel")

_PUTS_MAX = 1_000
"""Most topics in one record at the start."""


class TopicConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of a topic, as they are stored."""

    ordered: bool  # without a default, so it is always stored
    queues: int | None = None
    paused: bool = False
    to_kafka: bool = True


_DEFAULTS = TopicConfig(ordered=False)


class _Change(NamedTuple):
    """The options that change; None leaves one as it is."""

    ordered: bool | None = None
    queues: int | None = None
    paused: bool | None = None
    to_kafka: bool | None = None

    def of(self, config: TopicConfig) -> TopicConfig:
        """Return the options after the change."""
        return TopicConfig(
            config.ordered if self.ordered is None else self.ordered,
            config.queues if self.queues is None else self.queues,
            config.paused if self.paused is None else self.paused,
            config.to_kafka if self.to_kafka is None else self.to_kafka,
        )


class TopicOptions:
    """Reads and changes the options of topics. Belongs to the event loop."""

    def __init__(self, core: Core, control: Control) -> None:
        self._settings = core.settings
        self._state = core.state
        self._control = control
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pinned: dict[str, int] = {}  # ordered topics from before that get their number of queues now
        self._configs: dict[str, tuple[object, TopicConfig]] = {}  # each with the value that it was read from
        self.ending = set(control.items(ConfigTable.TOPIC_ENDING))
        """The topics that are being deleted; `timerwheel.topic_deletion` changes it."""
        self._on_resume: tuple[Callable[[str], None], ...] = ()
        self._always_to_kafka: frozenset[str] = frozenset()
        self._on_kafka: tuple[Callable[[], None], ...] = ()

    def watch_resumes(self, *notify: Callable[[str], None]) -> None:
        """Have these called with each topic that is not paused any more."""
        self._on_resume += notify

    def bridge(self, always: frozenset[str], notify: Callable[[], None]) -> None:
        """Send messages of topics to Kafka: by the settings of the service, `always` those of these.

        `notify` is called when topics go there, or do not any more, by what this or a deletion has stored.
        """
        self._always_to_kafka = always
        self._on_kafka += (notify,)

    async def at_start(self) -> None:
        """Give ordered topics from before a number of queues: as many as are in use, else the setting.

        It counts before this first waits, so before anybody sends, and also if a full disk cannot store it.
        """
        for topic, value in self._control.items(ConfigTable.TOPIC).items():
            if (config := self._read(topic, value)).ordered and config.queues is None:
                self._pinned[topic] = self._used(topic) or self._settings.queues_per_topic
        puts = [Put(ConfigTable.TOPIC, topic, msgspec.to_builtins(self._of(topic))) for topic in self._pinned]
        try:
            for begin in range(0, len(puts), _PUTS_MAX):
                await self._control.put(puts[begin : begin + _PUTS_MAX])
        except (NoSpaceError, NotReadyError, OutcomeUnknownError) as error:
            logger.warning("the number of queues of ordered topics is not stored yet: %s", error)
        else:
            self._pinned.clear()

    def queues_of(self, topic: str) -> int:
        """Return the number of queues of a topic, numbered from 0."""
        return max(self._used(topic), self.send_queues_of(topic))

    def _used(self, topic: str) -> int:
        """Return one more than the highest queue that a message went to, 0 if there is none.

        Messages from before the topic was deleted do not count.
        """
        found = self._state.topics.get(topic)
        if found is None:
            return 0
        if topic not in self._state.control.topic_ends:
            return max(found.queues, default=-1) + 1
        return max((queue for queue in found.queues if self._state.is_used(found, queue)), default=-1) + 1

    def send_queues_of(self, topic: str) -> int:
        """Return over how many queues the service spreads new messages of a topic."""
        queues = self._of(topic).queues
        return self._settings.queues_per_topic if queues is None else queues

    def has_number(self, topic: str) -> bool:
        """Whether the number of queues of a topic was set; else it is that of `queues_per_topic`."""
        return self._of(topic).queues is not None

    def has_queue(self, topic: str, queue: int) -> bool:
        """Whether a topic has this queue."""
        return 0 <= queue < self.send_queues_of(topic) or 0 <= queue < self.queues_of(topic)

    def ordered(self, topic: str) -> bool:
        """Whether a group has no more than one message of each sharding key in flight."""
        return self._of(topic).ordered

    def paused(self, topic: str) -> bool:
        """Whether no consumer gets messages of a topic."""
        return self._of(topic).paused

    def to_kafka(self, topic: str) -> bool | None:
        """Whether messages of a topic go to Kafka; None if they do once a record of Kafka names it."""
        if not self._of(topic).to_kafka:
            return False
        return None if self._control.get(ConfigTable.KAFKA_OUTLET, topic) is None else True

    def outlet_put(self, topic: str) -> Put:
        """Return the change with which a topic goes to Kafka, from the offsets that its queues have now."""
        found = self._state.topics.get(topic)
        tails = {} if found is None else found.queues
        starts = {str(queue): tail.next_offset for queue, tail in tails.items()}
        return Put(ConfigTable.KAFKA_OUTLET, topic, starts)

    def end_puts(self, topic: str) -> list[Put]:
        """Return the changes that end the options of a topic which is deleted.

        It goes to Kafka no more, until a record names it again; unless it does by the settings.
        """
        puts = [Put(ConfigTable.TOPIC, topic, None)]
        if topic in self._always_to_kafka:
            puts.append(self.outlet_put(topic))
        elif self._control.get(ConfigTable.KAFKA_OUTLET, topic) is not None:
            puts += _no_outlet(topic)
        return puts

    def tell_kafka(self) -> None:
        """Have the bridge look which topics go to Kafka."""
        for notify in self._on_kafka:
            notify()

    def named(self) -> Iterable[str]:
        """Return the topics that have options or go to Kafka, with or without messages."""
        named = self._control.items(ConfigTable.TOPIC)
        return named.keys() | self._control.items(ConfigTable.KAFKA_OUTLET).keys()

    def has(self, topic: str) -> bool:
        """Whether a topic has options, or goes to Kafka."""
        return self._has_options(topic) or bool(self.to_kafka(topic))

    def _has_options(self, topic: str) -> bool:
        return self._control.get(ConfigTable.TOPIC, topic) is not None

    def check_open(self, topics: Iterable[str]) -> None:
        """Raise TopicEndingError if one of these topics is being deleted."""
        if self.ending:
            for topic in topics:
                if topic in self.ending:
                    raise TopicEndingError(topic)

    def turn(self, topic: str) -> asyncio.Lock:
        """Return the lock under which the options of a topic are changed, and its deletion begins."""
        return self._turns.setdefault(topic, asyncio.Lock())

    def check_as(self, when: Precondition, topic: str) -> None:
        """Raise PreconditionFailedError unless the topic is as `when` says. Call it under `turn`."""
        is_there = self._state.exists(topic) or self.has(topic)
        when.check(partial(self.tag, topic) if is_there else None)

    def tag(self, topic: str) -> str:
        """Return the tag of a topic's options; its counts are not part of it."""
        going_out = {"to_kafka": True} if self.to_kafka(topic) else {}
        return tag_of(msgspec.to_builtins(self._of(topic)) | going_out, self.queues_of(topic))

    async def change(
        self,
        topic: str,
        *,
        ordered: bool | None = None,
        queues: int | None = None,
        move_keys: bool = False,
        to_kafka: bool | None = None,
        when: Precondition = ALWAYS,
    ) -> None:
        """Change the options that are given; durable when this returns. The topic need not have messages.

        With `to_kafka`, what is delivered from now on goes to Kafka; without, nothing does, also what Kafka's
        records have scheduled, and records that name the topic are refused.

        Raises AdmissionError for the name, RefusedError if there are too many topics, TopicOptionError for a
        number of queues that is not allowed: QueuesShrinkError if it is less than now, KeysMoveError if
        messages of an ordered topic would get other queues than earlier ones of their sharding key, unless
        `move_keys` says that they may. FixedOutletError if the settings send the topic to Kafka. Raises
        TopicEndingError if the topic is being deleted, PreconditionFailedError if it is not as `when` says.
        """
        check_topic(topic, is_known=topic in self._state.topics)
        if queues is not None and not 1 <= queues <= TOPIC_QUEUES_MAX:
            raise TopicOptionError(f"queues = {queues}: must be from 1 to {TOPIC_QUEUES_MAX}")
        if to_kafka is False and topic in self._always_to_kafka:
            raise FixedOutletError(
                f"topic {topic!r} is in kafka_outlets, or has the rejected records: its messages go to Kafka"
            )
        change = _Change(ordered, queues, to_kafka=to_kafka)
        await finished(self._change(topic, change, move_keys=move_keys, when=when))

    async def pause(self, topic: str) -> None:
        """Keep the messages of a topic from consumers until `resume`; durable and in effect on return.

        The topic need not have messages, and may be paused already. Raises AdmissionError for the name,
        RefusedError if there are too many topics, TopicEndingError if the topic is being deleted.
        """
        check_topic(topic, is_known=topic in self._state.topics)
        if not self.paused(topic):
            await finished(self._change(topic, _Change(paused=True)))

    async def resume(self, topic: str) -> None:
        """Deliver messages of a topic to consumers again, if it is paused. Raises what `pause` does."""
        check_topic(topic, is_known=topic in self._state.topics)
        if self.paused(topic):
            await finished(self._change(topic, _Change(paused=False)))

    async def _change(
        self,
        topic: str,
        change: _Change,
        *,
        move_keys: bool = False,
        when: Precondition = ALWAYS,
    ) -> None:
        async with self.turn(topic):  # two changes at once: the later one must see the earlier one
            self.check_as(when, topic)
            before = self._of(topic)
            config = change.of(before)
            if config.ordered and config.queues is None:
                config = msgspec.structs.replace(config, queues=self.send_queues_of(topic))
            if change.queues is not None:
                self._check_queues(topic, change.queues, keeps_keys=config.ordered and not move_keys)
            if config != _DEFAULTS:
                self._check_room(topic, ConfigTable.TOPIC)
            self.check_open([topic])
            value = None if config == _DEFAULTS else msgspec.to_builtins(config)
            put = Put(ConfigTable.TOPIC, topic, value)
            await self._control.put([put, *self._kafka_puts(topic, to_kafka=change.to_kafka)])
        if before.paused and not self.paused(topic):
            for notify in self._on_resume:
                notify(topic)
        if change.to_kafka is not None:
            self.tell_kafka()

    def _kafka_puts(self, topic: str, *, to_kafka: bool | None) -> list[Put]:
        """Return what changes in the other tables; nothing if the topic goes to Kafka already."""
        if to_kafka is None or self.to_kafka(topic) == to_kafka:
            return []
        if not to_kafka:
            return _no_outlet(topic)
        self._check_room(topic, ConfigTable.KAFKA_OUTLET)
        return [self.outlet_put(topic)]

    def _check_queues(self, topic: str, queues: int, *, keeps_keys: bool) -> None:
        now = self.queues_of(topic)
        if queues < now:
            raise QueuesShrinkError(
                f"queues = {queues}: topic {topic!r} has {now} queues, and their number can only grow"
            )
        spread = self.send_queues_of(topic)
        if keeps_keys and queues != spread and self._state.exists(topic):
            raise KeysMoveError(
                f"queues = {queues}: topic {topic!r} is ordered and spreads sharding keys over "
                f"{spread} queues; with another number, messages of a key can go to another queue and "
                "overtake earlier ones; set move_keys to allow that"
            )

    def _check_room(self, topic: str, table: ConfigTable) -> None:
        limit = self._settings.topics_max
        if self._control.get(table, topic) is None and len(self._control.items(table)) >= limit:
            detail = f"the limit of topics_max = {limit} topics is reached"
            raise RefusedError([Fault(0, "too_many_topics", detail)])

    def _of(self, topic: str) -> TopicConfig:
        stored = self._control.get(ConfigTable.TOPIC, topic)
        if stored is None:
            self._configs.pop(topic, None)
            config = _DEFAULTS
        else:
            config = self._read(topic, stored)
        if config.queues is None and topic in self._pinned:
            return msgspec.structs.replace(config, queues=self._pinned[topic])
        return config

    def _read(self, topic: str, stored: object) -> TopicConfig:
        known = self._configs.get(topic)
        if known is None or known[0] is not stored:  # a change of settings stores another value
            # Earlier versions left `ordered` out of what was not ordered.
            config = msgspec.convert({"ordered": False} | msgspec.convert(stored, dict), TopicConfig)
            known = self._configs[topic] = (stored, config)
        return known[1]


def _no_outlet(topic: str) -> list[Put]:
    return [Put(ConfigTable.KAFKA_OUTLET, topic, None), Put(ConfigTable.KAFKA_SENT, topic, None)]
