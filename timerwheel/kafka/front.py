"""The bridge to Kafka as a front of the service: `bind` first, `open` once the engine is ready, then `close`.

confluent-kafka is imported only when the bridge is asked for: the extra `kafka` has it.
"""

import asyncio
import hashlib
import importlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from timerwheel.clock import SystemClock
from timerwheel.engine import Engine
from timerwheel.errors import SettingsError
from timerwheel.kafka.names import KafkaTopics, is_kafka_topic
from timerwheel.runtime.election import Election
from timerwheel.settings import Serving, Settings, journal_of
from timerwheel.store.journal import Journal
from timerwheel.store.journaled_log import JournaledLog

if TYPE_CHECKING:
    from timerwheel.kafka.inlet import Inlet
    from timerwheel.kafka.outlet import Outlet

INLET_CHARACTERS_MAX: Final = 200
"""Longest inlet name that leaves room for the suffixes of the topics beside it."""


class KafkaFront:
    """See the module. Event loop only."""

    def __init__(self, serving: Serving) -> None:
        """Raises SettingsError if the package is not installed, or for a property that it does not know."""
        _check_installed()
        from timerwheel.kafka.clients import read_properties  # noqa: PLC0415 - needs confluent-kafka
        from timerwheel.kafka.cluster import Cluster  # noqa: PLC0415 - as above

        self._servers = serving.kafka
        log = journal_of(serving.journal).topic if serving.journal else None
        self._topics = KafkaTopics(serving.kafka_inlet, log)
        self._named = [name.strip() for name in serving.kafka_outlets.split(",") if name.strip()]
        self._properties = read_properties(serving.kafka_properties)
        self._check_names()
        Cluster(self._servers, self._properties, self._topics).check()
        self._inlet: Inlet | None = None
        self._outlet: Outlet | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    def of(cls, settings: Settings, serving: Serving) -> "KafkaFront":
        """Return the bridge that the settings ask for; SettingsError."""
        if settings.flush != "sync":
            raise SettingsError(
                "kafka: it needs flush = sync; with async, a power cut could take back messages that are in "
                "Kafka already"
            )
        return cls(serving)

    def _check_names(self) -> None:
        inlet = self._topics.inlet
        if not is_kafka_topic(inlet) or len(inlet) > INLET_CHARACTERS_MAX:
            raise SettingsError(
                f"kafka_inlet = {inlet!r} is not the name of a Kafka topic: use up to {INLET_CHARACTERS_MAX} "
                "characters of A-Z a-z 0-9 . _ -"
            )
        if inlet == self._topics.log:
            raise SettingsError(f"kafka_inlet = {inlet!r} is the topic of the log; give another name")
        for name in self._named:
            if not is_kafka_topic(name) or self._topics.is_own(name):
                raise SettingsError(f"kafka_outlets: {name!r} is not a Kafka topic to which messages can go")

    def bind(self) -> None:
        """Do nothing: nobody connects to the bridge."""

    async def open(self, engine: Engine, _callers: object) -> None:
        """Begin to take and to send; does not wait for Kafka."""
        from timerwheel.kafka.cluster import Cluster  # noqa: PLC0415 - needs confluent-kafka
        from timerwheel.kafka.inlet import Inlet  # noqa: PLC0415 - as above
        from timerwheel.kafka.outlet import Outlet  # noqa: PLC0415 - as above
        from timerwheel.kafka.outlets import Outlets  # noqa: PLC0415 - as above
        from timerwheel.kafka.positions import Run  # noqa: PLC0415 - as above

        counts = engine.counters.begin_kafka()
        cluster = Cluster(self._servers, self._properties, self._topics, service_name(engine.core.log.log_id))
        log = engine.core.log
        run = Run(secrets.token_hex(8), log.journal_name if isinstance(log, JournaledLog) else None)
        outlets = Outlets(engine, self._topics, self._named)
        await outlets.open()
        self._inlet = Inlet(engine, cluster, outlets, counts)
        self._outlet = Outlet(engine, cluster, outlets, counts, run)
        self._tasks = [
            asyncio.create_task(self._inlet.run(), name="kafka inlet"),
            asyncio.create_task(self._outlet.run(), name="kafka outlet"),
        ]

    async def close(self) -> None:
        """End both sides. What they had not finished is done after the next start."""
        if self._inlet is None or self._outlet is None:
            return
        inlet, outlet = self._inlet, self._outlet
        self._inlet = self._outlet = None
        inlet.stop()
        outlet.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(inlet.close(), outlet.close())


def journal_from(settings: Settings, serving: Serving) -> tuple[Journal, Callable[[str], Election]]:
    """Return the journal that the settings name, and what makes its election for the node with a URL.

    Does not wait for Kafka. SettingsError.
    """
    if settings.flush != "sync":
        raise SettingsError("journal: it needs flush = sync; a journal stores nothing later")
    _check_installed()
    from timerwheel.kafka.clients import read_properties  # noqa: PLC0415 - needs confluent-kafka
    from timerwheel.kafka.election import KafkaElection, check_voter  # noqa: PLC0415 - as above
    from timerwheel.kafka.journal import KafkaJournal  # noqa: PLC0415 - as above

    properties = read_properties(serving.kafka_properties)
    replicas = serving.journal_replicas
    address, clock = journal_of(serving.journal), SystemClock()
    journal = KafkaJournal(address, properties, clock, replication=replicas)
    check_voter(address, properties)
    return journal, lambda url: KafkaElection(address, properties, clock, url)


def leader_finder(serving: Serving) -> Callable[[], str | None]:
    """Return what asks Kafka who leads the journal that the settings name; it waits for the brokers.

    SettingsError.
    """
    _check_installed()
    from timerwheel.kafka import clients, election  # noqa: PLC0415 - needs confluent-kafka

    properties = clients.read_properties(serving.kafka_properties)
    address = journal_of(serving.journal)
    return lambda: election.leader_of(address, properties)


def service_name(log_id: bytes) -> str:
    """Return the name of the service in Kafka: always the same for one data directory.

    Not the log's id itself, which is the secret of message ids.
    """
    return hashlib.blake2s(log_id, digest_size=8, person=b"kafka").hexdigest()


def _check_installed() -> None:
    try:
        importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise SettingsError(
            "kafka: the package confluent-kafka is not installed; run pip install 'timerwheel[kafka]', or "
            "leave the setting out"
        ) from error
