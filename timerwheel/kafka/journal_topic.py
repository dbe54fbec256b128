"""The settings of a journal's topic: those it is made with, and those that a start refuses or warns about.

The journal is all that there is of a log whose disk is lost, so nothing but retention of the service may
delete from it.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from timerwheel.kafka.cluster import CALL_S, said
from timerwheel.store.errors import JournalAwayError, JournalMismatchError

REPLICAS: Final = 3
MESSAGE_BYTES_MAX: Final = 80 << 20
"""`max.message.bytes` of a topic that the service makes: more than a request of the default size has."""
VERIFICATION: Final = "transaction.partition.verification.enable"
WANTED: Final = {
    "cleanup.policy": ("delete", "the cleaner would drop parts of the log"),
    "retention.ms": ("-1", "Kafka would delete the beginning of the log"),
    "retention.bytes": ("-1", "Kafka would delete the beginning of the log"),
    "unclean.leader.election.enable": ("false", "an election could lose acknowledged messages"),
}
"""What the topic must be set to, and what happens otherwise."""
RIGHTS: Final = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Delete": AclOperation.DELETE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}
"""Rights to the topic without which a leader could not work; deleting records is a part of retention."""

logger = logging.getLogger(__name__)


def config(replicas: int) -> dict[str, str]:
    """Return the settings of a new topic with so many replicas."""
    values = {name: value for name, (value, _) in WANTED.items()}
    return values | {
        "message.timestamp.type": "LogAppendTime",  # so that no broker refuses the time of a node's clock
        "min.insync.replicas": str(max(replicas - 1, 1)),
        "max.message.bytes": str(MESSAGE_BYTES_MAX),
    }


def check(admin: AdminClient, topic: str, user: str) -> int:
    """Check a topic that exists; returns its `max.message.bytes`. `user` is this service's, if known.

    Raises JournalMismatchError for a setting with which messages would be lost, JournalAwayError if this user
    lacks a right, and KafkaException.
    """
    described = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=CALL_S
    )[topic].result()
    _check_rights(topic, described.authorized_operations)
    if len(described.partitions) != 1:
        raise JournalMismatchError(
            f"the Kafka topic {topic} has {len(described.partitions)} partitions; a log has one. Give "
            "another name with --journal"
        )
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource], request_timeout=CALL_S)[resource].result()
    values = {name: str(entry.value) for name, entry in found.items()}
    refuse_lossy(topic, values)
    if (warning := doubt(topic, values, len(described.partitions[0].replicas))) is not None:
        logger.warning("%s", warning)
    _check_verification(admin, described.partitions[0].leader.id)
    _check_readers(admin, topic, user)
    return int(values["max.message.bytes"])


def _check_rights(topic: str, granted: Collection[AclOperation] | None) -> None:
    """Raise JournalAwayError for rights to the topic that this user lacks: it may get them at any time."""
    missing = [name for name, right in RIGHTS.items() if granted and right not in granted]
    if missing:
        raise JournalAwayError(
            f"the Kafka user of this service lacks rights to the topic {topic}: {', '.join(missing)}; "
            "doc/cluster.md lists those that it needs"
        )


def refuse_lossy(topic: str, values: Mapping[str, str]) -> None:
    """Raise JournalMismatchError for the first setting with which messages would be lost."""
    for name, (wanted, otherwise) in WANTED.items():
        if values.get(name, wanted) != wanted:
            raise JournalMismatchError(
                f"the Kafka topic {topic} has {name}={values[name]}: {otherwise}; set it to {wanted}"
            )


def doubt(topic: str, values: Mapping[str, str], replicas: int) -> str | None:
    """Return a sentence about replicas that are fewer than a journal deserves."""
    in_sync = int(values["min.insync.replicas"])
    if replicas == 1:
        return f"the Kafka topic {topic} has one replica: if that broker loses its disk, the log is lost"
    if in_sync == 1:
        return (
            f"the Kafka topic {topic} has min.insync.replicas=1: a message is acknowledged when one broker "
            "has it; with three replicas, set it to 2"
        )
    if in_sync > replicas - 1:
        return (
            f"the Kafka topic {topic} has min.insync.replicas={in_sync} and {replicas} replicas: without one "
            "broker, nothing is stored"
        )
    return None


def _check_verification(admin: AdminClient, broker: int) -> None:
    """Raise JournalMismatchError if brokers append for producers without asking their coordinator."""
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    try:
        found = admin.describe_configs([resource], request_timeout=CALL_S)[resource].result()
    except KafkaException as error:
        logger.warning("cannot check that the brokers have %s=true: %s", VERIFICATION, said(error))
        return
    if VERIFICATION not in found:
        logger.warning("the brokers have no setting %s: a journal needs Kafka 3.6 or later", VERIFICATION)
    elif str(found[VERIFICATION].value) != "true":
        raise JournalMismatchError(
            f"the brokers have {VERIFICATION}=false: a leader that was paused could write after its "
            "successor; set it to true"
        )


def _check_readers(admin: AdminClient, topic: str, user: str) -> None:
    """Warn if others can read the topic: anyone who has the log can forge message ids and receipts."""
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.MATCH,
        None,  # type: ignore[arg-type]  # of anybody
        None,  # type: ignore[arg-type]  # from anywhere
        AclOperation.ANY,
        AclPermissionType.ALLOW,
    )
    try:
        rules = admin.describe_acls(wanted, request_timeout=CALL_S).result()
    except KafkaException as error:
        logger.warning(
            "anyone who reaches the brokers may be able to read the Kafka topic %s, and so forge message "
            "ids: they have no authorizer, or do not say: %s",
            topic,
            said(error),
        )
        return
    readers = {rule.principal for rule in rules if rule.operation in (AclOperation.READ, AclOperation.ALL)}
    others = readers - {f"User:{user}"} if user else set()
    if others and "User:*" not in others:
        logger.warning(
            "%s can read the Kafka topic %s, and so forge message ids; let only the service read it",
            ", ".join(sorted(others)),
            topic,
        )
    elif not readers or "User:*" in readers:
        logger.warning(
            "anyone can read the Kafka topic %s, and so forge message ids%s; let only the service read and "
            "write it, with an ACL",
            topic,
            "" if readers else ", as far as this user sees, unless it lacks the right to see who can",
        )
