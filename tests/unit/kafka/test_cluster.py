from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException

from timerwheel.errors import SettingsError
from timerwheel.kafka.cluster import why_not
from timerwheel.kafka.front import KafkaFront, service_name
from timerwheel.settings import Serving, Settings

NOBODY = "127.0.0.1:1"


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
