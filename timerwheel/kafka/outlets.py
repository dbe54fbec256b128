"""The topics that go out to Kafka: those that records of the inlet named, and those that the settings name.

A topic goes out from the queue offsets that it had when it became one of them. They are a setting in the log,
stored in one unit with the first record. A topic is no longer one of them once it is deleted, or its option
says so (`timerwheel.runtime.topic_options`); one of the settings always is.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from timerwheel.engine import Engine
from timerwheel.kafka.names import KafkaTopics, topic_of
from timerwheel.kafka.positions import Noted
from timerwheel.state.config_table import ConfigTable, Put

_PLACE: Final = "topic"
_UNCHECKED: Final = "unchecked"

logger = logging.getLogger(__name__)


class Outlets:
    """See the module. Event loop only."""

    def __init__(self, engine: Engine, topics: KafkaTopics, named: Iterable[str]) -> None:
        self._engine = engine
        self._options = engine.topics
        self._named = frozenset({topic_of(topics.rejected), *map(topic_of, named)})
        self._seen: Collection[str] = ()
        self._on_change: Callable[[], None] = lambda: None

    def watch(self, notify: Callable[[], None]) -> None:
        """Have this called, and nothing else any more, when there are other topics."""
        self._on_change = notify

    async def open(self) -> None:
        """Store the topics of the settings that are new, and from where on in the log nothing went out."""
        self._options.bridge(self._named, self._changed)
        for topic in self._named - self._options.ending:
            if self._options.to_kafka(topic) is False:
                logger.warning("topic %s goes to Kafka again, because the settings name it", topic)
                await self._options.change(topic, to_kafka=True)
        puts = self.puts_of(self._named)
        if self.unchecked() is None:
            puts.append(Put(ConfigTable.KAFKA_POSITIONS, _UNCHECKED, self._engine.recovered.end))
        if puts:
            await self._engine.control.put(puts)

    def topics(self) -> dict[str, dict[int, int]]:
        """Return the topics with the offsets from which their queues go out; a queue without one from 0."""
        offsets = self._offsets(ConfigTable.KAFKA_OUTLET)
        return {topic: starts for topic, starts in offsets.items() if self.is_one(topic)}

    def is_one(self, topic: str) -> bool:
        """Whether a topic goes out."""
        return bool(self._options.to_kafka(topic))

    def kept(self, topics: Iterable[str]) -> set[str]:
        """Return those of these topics that shall not go out."""
        return {topic for topic in topics if self._options.to_kafka(topic) is False}

    def noted(self) -> Noted:
        """Return what the log knows of the positions."""
        place = self._engine.control.get(ConfigTable.KAFKA_POSITIONS, _PLACE)
        return Noted(place, self._offsets(ConfigTable.KAFKA_SENT))

    async def note_place(self, kafka_topic: str) -> None:
        """Note in which Kafka topic the positions are."""
        if self._engine.control.get(ConfigTable.KAFKA_POSITIONS, _PLACE) != kafka_topic:
            await self._engine.control.put([Put(ConfigTable.KAFKA_POSITIONS, _PLACE, kafka_topic)])

    def unchecked(self) -> int | None:
        """Return the log offset from which on nothing has gone out; None once the positions are checked.

        It is kept from start to start until they are.
        """
        found: int | None = self._engine.control.get(ConfigTable.KAFKA_POSITIONS, _UNCHECKED)
        return found

    async def note_checked(self) -> None:
        """Note that the positions are checked: what is stored from here on may go out."""
        await self._engine.control.put([Put(ConfigTable.KAFKA_POSITIONS, _UNCHECKED, None)])

    async def note_sent(self, sent: Mapping[str, Mapping[int, int]]) -> None:
        """Note how far topics have gone out."""
        for topic, offsets in sent.items():  # one by one: a topic may have many queues, a unit has a limit
            if not self.is_one(topic):
                continue
            texts = {str(queue): offset for queue, offset in offsets.items()}
            await self._engine.control.put([Put(ConfigTable.KAFKA_SENT, topic, texts)])

    def _offsets(self, table: ConfigTable) -> dict[str, dict[int, int]]:
        stored = self._engine.control.items(table)
        return {topic: {int(q): offset for q, offset in starts.items()} for topic, starts in stored.items()}

    def puts_of(self, topics: Iterable[str]) -> list[Put]:
        """Return the settings to store with the first records of these topics."""
        return [self._options.outlet_put(one) for one in topics if self._options.to_kafka(one) is None]

    def notice(self) -> None:
        """Have the outlet look if there are more topics now."""
        if self._stored() != self._seen:
            self._changed()

    def _changed(self) -> None:
        self._seen = self._stored()
        self._on_change()

    def _stored(self) -> Collection[str]:
        return self._engine.control.items(ConfigTable.KAFKA_OUTLET).keys()
