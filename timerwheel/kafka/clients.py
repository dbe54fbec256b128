"""What all clients of librdkafka have in common: the file of properties, and what they write to the log.

A client is *dry* if it is given no brokers: it checks its properties, and connects to nothing.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from timerwheel.errors import SettingsError

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
        return said(error)
    except (TypeError, ValueError, AttributeError) as error:  # for what wants a number or a function
        return str(error)
    return None


def said(error: KafkaException) -> str:
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
        _refuse(name, f"kafka_properties: line {number} of {path} sets {name}")
        found[name] = value.strip()
    return found


def _refuse(name: str, what: str) -> None:
    """Raise SettingsError for a property that a file may not set; `what` says where it does."""
    if name in OF_THE_SERVICE:
        raise SettingsError(f"{what}; the service sets that itself: leave the line out")
    if name in HARMFUL:
        raise SettingsError(f"{what}; the service does not work with it, for {HARMFUL[name]}: leave it out")
