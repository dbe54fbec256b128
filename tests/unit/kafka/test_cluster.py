from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException

from timerwheel.errors import SettingsError
from timerwheel.kafka.cluster import Cluster, read_properties, why_not
from timerwheel.kafka.front import KafkaFront, service_name
from timerwheel.kafka.names import KafkaTopics
from timerwheel.settings import Serving, Settings

NOBODY = "127.0.0.1:1"


def written(tmp_path, text):
    path = tmp_path / "client.properties"
    path.write_text(text)
    return path


def test_a_file_of_properties_is_read(tmp_path):
    path = written(tmp_path, "# ours\n\nsecurity.protocol = SASL_SSL\nsasl.password=a=b#c\n")
    assert read_properties(path) == {"security.protocol": "SASL_SSL", "sasl.password": "a=b#c"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "line 1"),
        ("=x", "line 1"),
        ("\ntransactional.id=x", "line 2 .* sets transactional.id"),
        ("isolation.level=read_uncommitted", "isolation.level"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, text, said):
    with pytest.raises(SettingsError, match=said):
        read_properties(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match="absent"):
        read_properties(tmp_path / "absent")


def test_a_property_that_librdkafka_does_not_know_is_a_wrong_setting():
    with pytest.raises(SettingsError, match="No such configuration property"):
        Cluster(NOBODY, {"no.such.property": "1"}, KafkaTopics("timers")).check()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kafka_inlet": "a b"}, "kafka_inlet = 'a b'"),
        ({"kafka_inlet": "x" * 201}, "up to 200"),
        ({"kafka_outlets": "ok, a b"}, "'a b'"),
        ({"kafka_outlets": "timers"}, "'timers'"),
    ],
)
def test_names_that_cannot_be_used_are_wrong_settings(changed, said):
    with pytest.raises(SettingsError, match=said):
        KafkaFront.of(Settings(data=Path("data")), Serving(kafka=NOBODY, **changed))


def test_the_longest_name_of_an_inlet_is_taken():
    KafkaFront.of(Settings(data=Path("data")), Serving(kafka=NOBODY, kafka_inlet="x" * 200))


def test_without_a_sync_for_each_answer_there_is_no_bridge():
    with pytest.raises(SettingsError, match="flush = sync"):
        KafkaFront.of(Settings(data=Path("data"), flush="async"), Serving(kafka=NOBODY))


def test_the_name_of_a_service_is_not_the_secret_that_it_comes_from():
    assert service_name(b"a" * 16) == service_name(b"a" * 16) != service_name(b"b" * 16)
    assert (b"a" * 16).hex() not in service_name(b"a" * 16)


def test_a_record_that_is_refused_for_its_time_says_to_set_the_clock():
    refused = KafkaException(KafkaError(KafkaError.INVALID_TIMESTAMP))
    assert "the clock of this node is far from theirs" in why_not(
        refused, NOBODY, "which keeps the log there"
    )
