"""The settings of a journal's topic: those it is made with, and those that a start refuses or warns about.

The journal is all that there is of a log whose disk is lost, so nothing but retention of the service may
delete from it.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from timerwheel.kafka.clients import CALL_S, error_text
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
EVERYBODY: Final = "User:*"


def config(replicas: int) -> dict[str, str]:
    """Return the settings of a new topic with so many replicas."""
    values = {name: value for name, (value, _) in WANTED.items()}
    return values | {
        "message.timestamp.type": "LogAppendTime",  # so that no broker refuses the time of a node's clock
        "min.insync.replicas": str(max(replicas - 1, 1)),
        "max.message.bytes": str(MESSAGE_BYTES_MAX),
    }


class Checked(NamedTuple):
    """What is known of a topic that may be used: its `max.message.bytes`, and what to warn of."""

    message_bytes_max: int
    warnings: tuple[str, ...]


def check(admin: AdminClient, topic: str, own: str | None) -> Checked:
    """Check a topic that exists. `own` is the principal of this service, if known.

    Raises JournalMismatchError for a setting with which messages would be lost, JournalAwayError if this user
    lacks a right or no broker leads the partition, and KafkaException.
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
    leader = described.partitions[0].leader
    if leader is None:
        raise JournalAwayError(f"the partition of the Kafka topic {topic} has no leader now")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource], request_timeout=CALL_S)[resource].result()
    values = {name: str(entry.value) for name, entry in found.items()}
    refuse_lossy(topic, values)
    warnings = (
        doubt(topic, values, len(described.partitions[0].replicas)),
        _check_verification(admin, leader.id),
        _check_readers(admin, topic, own),
    )
    return Checked(int(values["max.message.bytes"]), tuple(filter(None, warnings)))


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
    if in_sync > replicas:
        return (
            f"the Kafka topic {topic} has min.insync.replicas={in_sync}, and {replicas} of replicas: "
            "nothing is stored"
        )
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


def _check_verification(admin: AdminClient, broker: int) -> str | None:
    """Raise JournalMismatchError if brokers append for producers without asking their coordinator.

    Returns a sentence if that cannot be seen.
    """
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    try:
        found = admin.describe_configs([resource], request_timeout=CALL_S)[resource].result()
    except KafkaException as error:
        return f"cannot check that the brokers have {VERIFICATION}=true: {error_text(error)}"
    if VERIFICATION not in found:
        return f"the brokers have no setting {VERIFICATION}: a journal needs Kafka 3.6 or later"
    if str(found[VERIFICATION].value) != "true":
        raise JournalMismatchError(
            f"the brokers have {VERIFICATION}=false: a leader that was paused could write after its "
            "successor; set it to true"
        )
    return None


def _check_readers(admin: AdminClient, topic: str, own: str | None) -> str | None:
    """Return a sentence if others can read the topic: then they can forge message ids and receipts."""
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
        return (
            f"anyone who reaches the brokers may be able to read the Kafka topic {topic}, and so forge "
            f"message ids: they have no authorizer, or do not say: {error_text(error)}"
        )
    readers = {rule.principal for rule in rules if rule.operation in (AclOperation.READ, AclOperation.ALL)}
    return doubt_of_readers(topic, readers, own)


def doubt_of_readers(topic: str, readers: Collection[str], own: str | None) -> str | None:
    """Return a sentence if the principals that may read a topic are more than this service's own.

    Of a client whose own principal is not known, one reader has to be it.
    """
    if not readers or EVERYBODY in readers:
        unseen = "" if readers else ", as far as this user sees, unless it lacks the right to see who can"
        return (
            f"anyone can read the Kafka topic {topic}, and so forge message ids{unseen}; let only the "
            "service read and write it, with an ACL"
        )
    others = {one for one in readers if one != own}
    if not others or (own is None and len(others) == 1):
        return None
    which = "" if own else ". Which of these the service is, brokers do not say"
    return (
        f"{', '.join(sorted(others))} can read the Kafka topic {topic}, and so forge message ids; let only "
        f"the service read it{which}"
    )


def principal_of(properties: Mapping[str, str]) -> str | None:
    """Return the principal that brokers give a client with these properties; None if only they know it.

    That of a certificate, of Kerberos or of OAuth follows from rules of the brokers.
    """
    protocol = properties.get("security.protocol", "plaintext").lower()
    if protocol == "plaintext":
        return "User:ANONYMOUS"
    mechanism = properties.get("sasl.mechanisms", properties.get("sasl.mechanism", "")).upper()
    if protocol.startswith("sasl_") and (mechanism == "PLAIN" or mechanism.startswith("SCRAM-")):
        return f"User:{properties.get('sasl.username', '')}"
    return None
