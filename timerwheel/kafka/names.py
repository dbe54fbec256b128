"""The names of Kafka topics and headers that the bridge uses. Pure.

A Kafka topic may have dots in its name, a topic of this service may not, but may have `%`, which Kafka's may
not. So `.` becomes `%2E` here and back there: two topics of one side never become one of the other.
"""

import re
from typing import Final, NamedTuple

from timerwheel.model.admission import ALIBABA_DELIVER_MS, TIMER_PROPERTIES

TOPIC: Final = "TIMER_TOPIC"
KEY: Final = "TIMER_KEY"
RECALL: Final = "TIMER_RECALL"
DELAY_MS: Final = "TIMER_DELAY_MS"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
DELAYS: Final = ("DELAY", *(name for name in TIMER_PROPERTIES if name != ALIBABA_DELIVER_MS))
"""Headers that say when. The bridge has no other name for a due time than its own."""
DUE_MS: Final = "TIMER_DUE_MS"
ID: Final = "TIMER_ID"
REJECTED: Final = "TIMER_REJECTED"
REASON: Final = "TIMER_REASON"
FROM: Final = "TIMER_FROM"
OWN_HEADERS: Final = frozenset({TOPIC, KEY, RECALL, *DELAYS, DUE_MS, ID, REJECTED, REASON, FROM})
"""Headers between clients and the service: they are not part of the message."""

NAME_CHARACTERS_MAX: Final = 249
_DOT: Final = "%2E"
_match_name = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARACTERS_MAX}}}").fullmatch


class KafkaTopics(NamedTuple):
    """The Kafka topics of the bridge itself, and that of the service's log if Kafka keeps it."""

    inlet: str
    log: str | None = None

    @property
    def rejected(self) -> str:
        """Where records go that are refused, with the reason."""
        return f"{self.inlet}.rejected"

    @property
    def positions(self) -> str:
        """Where the outlet keeps its positions; compacted."""
        return f"{self.inlet}.positions"

    def is_own(self, kafka_topic: str) -> bool:
        """Whether a Kafka topic is one of these, so no message may be sent to it.

        A record that is not of the log would make its topic unreadable for every other node.
        """
        return kafka_topic in {self.inlet, self.rejected, self.positions, self.log}


def is_kafka_topic(name: str) -> bool:
    """Whether Kafka accepts this as the name of a topic."""
    return _match_name(name) is not None and name not in {".", ".."}


def topic_of(kafka_topic: str) -> str:
    """Return the topic of this service that stands for a Kafka topic."""
    return kafka_topic.replace(".", _DOT)


def kafka_topic_of(topic: str) -> str:
    """Return the Kafka topic that a topic of this service stands for, which Kafka may not accept."""
    return topic.replace(_DOT, ".")
