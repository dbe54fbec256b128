"""Users of a guarded broker, and what an ACL lets them do."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.harness.kafka.broker import Broker

_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}
_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


class Right(NamedTuple):
    """As a row of the documents says it."""

    kind: str
    name: str
    operation: str
    is_prefix: bool = False

    def __str__(self) -> str:
        return f"{self.operation} {self.kind} {self.name}".strip()


class User:
    """A user who may do nothing until rights are given."""

    def __init__(self, broker: Broker, name: str, password: str, authority: Path) -> None:
        self.name = name
        self.properties = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": name,
            "sasl.password": password,
        }
        self._admin = AdminClient({"bootstrap.servers": broker.internal})
        credential = UserScramCredentialUpsertion(
            name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
        )
        for made in self._admin.alter_user_scram_credentials([credential]).values():
            made.result()

    def may(self, rights: Iterable[Right]) -> None:
        """Give exactly these rights; those from before are taken away."""
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{self.name}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for gone in self._admin.delete_acls([everything]).values():
            gone.result()
        bindings = [
            AclBinding(
                _KINDS[right.kind],
                right.name,
                ResourcePatternType.PREFIXED if right.is_prefix else ResourcePatternType.LITERAL,
                f"User:{self.name}",
                "*",
                _OPERATIONS[right.operation],
                AclPermissionType.ALLOW,
            )
            for right in rights
        ]
        for made in self._admin.create_acls(bindings).values():
            made.result()

    def write_properties(self, path: Path) -> Path:
        """Write the file for `kafka_properties`."""
        path.write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))
        return path
