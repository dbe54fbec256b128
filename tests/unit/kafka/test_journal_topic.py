"""What is thought of the settings of a journal's topic."""

import re

import pytest

pytest.importorskip("confluent_kafka")

from timerwheel.kafka.journal_topic import doubt, doubt_of_readers, principal_of, refuse_lossy
from timerwheel.store.errors import JournalMismatchError


@pytest.mark.parametrize(
    ("replicas", "in_sync", "said"),
    [
        (3, 2, None),
        (5, 3, None),
        (3, 1, "min.insync.replicas=1: a message is acknowledged when one broker has it"),
        (3, 3, "min.insync.replicas=3 and 3 replicas: without one broker, nothing is stored"),
        (3, 4, "min.insync.replicas=4, and 3 of replicas: nothing is stored"),
        (1, 1, "one replica: if that broker loses its disk, the log is lost"),
        (1, 2, "min.insync.replicas=2, and 1 of replicas: nothing is stored"),
    ],
)
def test_fewer_replicas_than_a_journal_deserves_are_told(
    replicas: int, in_sync: int, said: str | None
) -> None:
    told = doubt("shop-log", {"min.insync.replicas": str(in_sync)}, replicas)
    assert told is said is None or said in (told or "")


def test_a_setting_that_brokers_do_not_show_refuses_nothing() -> None:
    refuse_lossy("shop-log", {"cleanup.policy": "delete"})
    with pytest.raises(JournalMismatchError, match=r"cleanup\.policy=compact,delete"):
        refuse_lossy("shop-log", {"cleanup.policy": "compact,delete"})


@pytest.mark.parametrize(
    ("readers", "own", "said"),
    [
        (set(), "User:us", "anyone can read the Kafka topic shop-log"),
        ({"User:*", "User:us"}, "User:us", "anyone can read the Kafka topic shop-log"),
        ({"User:us"}, "User:us", None),
        ({"User:us", "User:b", "User:a"}, "User:us", "User:a, User:b can read the Kafka topic shop-log"),
        ({"User:a"}, "User:ANONYMOUS", "User:a can read the Kafka topic shop-log"),
        ({"User:CN=us"}, None, None),
        ({"User:CN=us", "User:a"}, None, "User:CN=us, User:a can read .* Which of these the service is"),
    ],
)
def test_others_who_may_read_the_topic_are_named_also_if_only_brokers_know_who_the_service_is(
    readers: set[str], own: str | None, said: str | None
) -> None:
    told = doubt_of_readers("shop-log", readers, own)
    assert told is said is None or re.match(said or "", told or "")


@pytest.mark.parametrize(
    ("properties", "principal"),
    [
        ({}, "User:ANONYMOUS"),
        ({"security.protocol": "PLAINTEXT", "sasl.username": "us"}, "User:ANONYMOUS"),
        ({"security.protocol": "SSL", "sasl.username": "us"}, None),
        ({"security.protocol": "SASL_SSL", "sasl.username": "us", "sasl.mechanism": "PLAIN"}, "User:us"),
        (
            {"security.protocol": "sasl_ssl", "sasl.username": "us", "sasl.mechanisms": "scram-sha-256"},
            "User:us",
        ),
        ({"security.protocol": "SASL_SSL"}, None),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, None),
    ],
)
def test_a_user_is_known_only_where_it_logs_in_with_a_password(
    properties: dict[str, str], principal: str | None
) -> None:
    assert principal_of(properties) == principal
