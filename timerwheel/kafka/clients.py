"""What all clients of librdkafka have in common: properties, their log, and why they cannot connect.

A client is *dry* if it is given no brokers: it checks its properties, and connects to nothing.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from timerwheel.errors import SettingsError, TimerwheelError

CALL_S: Final = 5.0
"""How long a call waits for brokers; the stop of the service may wait so long for the call."""

OF_THE_SERVICE: Final = frozenset(
    {
        *("bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "isolation.level"),
        *("enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof"),
        *("transactional.id", "enable.idempotence", "acks", "request.required.acks", "partitioner"),
        *("batch.size", "message.max.bytes", "queue.buffering.max.messages", "queue.buffering.max.kbytes"),
        *("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"),
        *("queued.max.messages.kbytes", "topic.metadata.propagation.max.ms"),
        *("log_level", "log.connection.close", "log.queue", "logger"),
    }
)
"""Properties on which the guarantees rest, or that would have no effect: a file may not set them."""
HARMFUL: Final = {
    "delivery.report.only.error": "it would not hear where a record is stored",
    "group.protocol": "its elections use the classic protocol",
    "group.remote.assignor": "its elections use the classic protocol",
    "enable.gapless.guarantee": "a record that is refused would end all that goes to Kafka",
    "topic.blacklist": "it would not see its topics",
    "allow.auto.create.topics": "brokers would make its topics with settings that lose messages",
    "api.version.request": "there are no transactions without it",
    "broker.version.fallback": "there are no transactions with brokers that need it",
    "enabled_events": "it would not hear of errors",
}
"""Properties with which the service would not work, and why: a file may not set them either."""
HARMLESS: Final = {
    "group.protocol": "classic",
    "enable.gapless.guarantee": "false",
    "allow.auto.create.topics": "false",
    "api.version.request": "true",
}
"""Values of these with which it does work, as people copy them from elsewhere."""
NOT_LET_IN: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - so librdkafka's own errors are named
        KafkaError._SSL,  # noqa: SLF001 - as above
    }
)
"""Errors of a connection on which a broker, or this client, says that the other one is not to be trusted."""
NOT_REACHED: Final = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001 - as above
        KafkaError._RESOLVE,  # noqa: SLF001 - as above
    }
)

client_logger = logging.getLogger(__name__)


def _is_news(line: logging.LogRecord) -> bool:
    """Whether a line of librdkafka says more than the service says itself, once and in its own words.

    A transaction that was refused is reported with the reason, and brokers that are away as well. The file of
    properties is for producers and consumers alike.
    """
    return not line.getMessage().startswith(("TXNERR", "FAIL ", "CONFWARN"))


client_logger.addFilter(_is_news)


def client_properties(servers: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of every client of these brokers; of a dry one if there are none."""
    common = {
        **properties,
        "logger": client_logger,
        "log_level": 4 if servers else 0,
        "log.connection.close": False,
    }
    return common | ({"bootstrap.servers": servers} if servers else {})


class CannotConnectError(TimerwheelError):
    """No broker can be talked to; the message says why, as far as is known, and what to do."""

    code = "kafka"


class Connection:
    """An admin client, which says why it cannot connect; `with` closes it."""

    def __init__(self, servers: str, properties: Mapping[str, str]) -> None:
        self._servers = servers
        self._noted: dict[bool, set[str]] = {True: set(), False: set()}  # whether brokers are reached
        self.admin = AdminClient(client_properties(servers, properties) | {"error_cb": self._note})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.admin:
            pass

    def _note(self, error: KafkaError) -> None:
        if error.code() in NOT_LET_IN | NOT_REACHED:
            how_long = " (after "  # it differs from time to time
            self._noted[error.code() in NOT_LET_IN].add(error.str().partition(how_long)[0])

    def topics(self) -> Collection[str]:
        """Return the names of all topics that this user may see; CannotConnectError, KafkaException."""
        try:
            return self.admin.list_topics(timeout=CALL_S).topics
        except KafkaException as error:
            self.admin.poll(0)  # has `_note` called
            if refusals := self._noted[True]:
                raise CannotConnectError(
                    f"the brokers refused this service's connection: {min(refusals)}; check kafka_properties"
                ) from error
            if error.args[0].code() not in NOT_REACHED:
                raise
            why = min(self._noted[False], default="") or (
                "are these addresses of Kafka brokers that are up, and is security.protocol in "
                "kafka_properties what they want?"
            )
            raise CannotConnectError(
                f"Kafka at {self._servers} does not answer as it should: {error_text(error)}: {why}"
            ) from error


def check_properties(properties: Mapping[str, str], make: Callable[[Mapping[str, str]], None]) -> None:
    """Raise SettingsError for properties with which no client can be made.

    `make` makes each kind of client once, dry, with the properties that it is given.
    """
    error = _fault(properties, make)
    if error is None:
        return
    others = ({name: properties[name] for name in properties if name != each} for each in properties)
    at_fault = [each for each, rest in zip(properties, others, strict=True) if _fault(rest, make) is None]
    names = " or ".join(at_fault) or "what this names"
    raise SettingsError(f"kafka_properties: {error}: correct {names}, or leave it out")


def _fault(properties: Mapping[str, str], make: Callable[[Mapping[str, str]], None]) -> str | None:
    """Return why a client cannot be made; None if all can."""
    try:
        make(properties)
    except KafkaException as error:
        return error_text(error)
    except (TypeError, ValueError, AttributeError) as error:  # for what wants a number or a function
        return str(error)
    return None


def error_text(error: KafkaException) -> str:
    """Return what a client reports, in one line."""
    cause = error.args[0] if error.args else error
    return str(cause.str() if isinstance(cause, KafkaError) else cause).replace("\n", " ").rstrip(".")


def read_properties(path: Path | None) -> dict[str, str]:
    """Read a file with a librdkafka property `name=value` in each line, none without one; SettingsError."""
    if path is None:
        return {}
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"kafka_properties: cannot read {path}: {error}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        name, equals, value = bare.partition("=")
        name = name.strip()
        if not equals or not name:
            raise SettingsError(f"kafka_properties: line {number} of {path} is not name=value")
        _refuse(name, value.strip(), f"kafka_properties: line {number} of {path} sets {name}")
        found[name] = value.strip()
    return found


def _refuse(name: str, value: str, what: str) -> None:
    """Raise SettingsError for a property that a file may not set; `what` says where it does."""
    if name in OF_THE_SERVICE:
        raise SettingsError(f"{what}; the service sets that itself: leave the line out")
    if name in HARMFUL and value.lower() != HARMLESS.get(name):
        raise SettingsError(
            f"{what}; the service does not work with it, because {HARMFUL[name]}: leave it out"
        )
