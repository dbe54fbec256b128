"""The file of properties: what it may say. A wrong line is named before anything waits for brokers."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from timerwheel.errors import SettingsError
from timerwheel.kafka.clients import HARMFUL, HARMLESS, read_properties
from timerwheel.kafka.cluster import Cluster
from timerwheel.kafka.front import KafkaFront, journal_from
from timerwheel.kafka.names import KafkaTopics
from timerwheel.settings import Serving, Settings

NOBODY = "127.0.0.1:1"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return path


def test_a_file_of_properties_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "# ours\n\nsecurity.protocol = SASL_SSL\nsasl.password=a=b#c\n")
    assert read_properties(path) == {"security.protocol": "SASL_SSL", "sasl.password": "a=b#c"}
    assert read_properties(None) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "line 1"),
        ("=x", "line 1"),
        ("\ntransactional.id=x", "line 2 .* sets transactional.id; the service sets that itself"),
        ("isolation.level=read_uncommitted", "isolation.level"),
        ("session.timeout.ms=60000", "sets session.timeout.ms; the service sets that itself"),
        *(
            (f"{name}=x", f"sets {name}; the service does not work with it, because .*: leave")
            for name in HARMFUL
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        read_properties(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="absent"):
        read_properties(tmp_path / "absent")


def test_a_property_that_librdkafka_does_not_know_is_a_wrong_setting() -> None:
    with pytest.raises(
        SettingsError, match=r"No such configuration property.* correct no\.such\.property, or"
    ):
        Cluster(NOBODY, {"no.such.property": "1"}, KafkaTopics("timers")).check()


def bridge(path: Path) -> None:
    KafkaFront.of(Settings(data=Path("data")), Serving(kafka=NOBODY, kafka_properties=path))


def journal(path: Path) -> None:
    serving = Serving(journal=f"kafka://{NOBODY}/shop", kafka_properties=path)
    journal_from(Settings(data=Path("data")), serving)


@pytest.mark.parametrize("use", [bridge, journal])
def test_such_a_property_may_have_the_value_that_it_has_anyway(
    use: Callable[[Path], None], tmp_path: Path
) -> None:
    use(written(tmp_path, "".join(f"{name}={value}\n" for name, value in HARMLESS.items())))


@pytest.mark.parametrize("use", [bridge, journal])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("message.timeout.ms=90000", "transaction.timeout.ms`: correct message.timeout.ms, or leave it out"),
        ("max.poll.interval.ms=1000", "session.timeout.ms`: correct max.poll.interval.ms, or"),
        ("queuing.strategy=lifo", "fifo.*: correct queuing.strategy, or"),
        ("receive.message.max.bytes=1000", "fetch.max.bytes.*: correct receive.message.max.bytes, or"),
        ("error_cb=x", "correct error_cb, or"),
        ("client.id=a\nretries=0\n", "must be set >= 1.*: correct retries, or"),
        (
            "message.timeout.ms=30000\ntransaction.timeout.ms=20000",
            "correct message.timeout.ms or transaction.timeout.ms, or",
        ),
        ("retries=0\nqueuing.strategy=lifo", "correct what this names"),
    ],
)
def test_a_value_with_which_no_client_can_be_made_is_a_wrong_setting(
    tmp_path: Path, use: Callable[[Path], None], text: str, said: str
) -> None:
    with pytest.raises(SettingsError, match=f"kafka_properties: .*{said}"):
        use(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("transaction.timeout.ms=2000", "message.timeout.ms`.*: correct transaction.timeout.ms, or"),
        ("message.timeout.ms=0", "message.timeout.ms=0 would let an append wait forever"),
        ("delivery.timeout.ms=0", "correct delivery.timeout.ms, or"),
    ],
)
def test_times_with_which_a_journal_cannot_work_are_wrong_settings(
    tmp_path: Path, text: str, said: str
) -> None:
    bridge(written(tmp_path, text))
    with pytest.raises(SettingsError, match=f"kafka_properties: .*{said}"):
        journal(written(tmp_path, text))


@pytest.mark.parametrize("use", [bridge, journal])
def test_a_longer_wait_for_brokers_needs_longer_transactions(
    tmp_path: Path, use: Callable[[Path], None]
) -> None:
    use(written(tmp_path, "message.timeout.ms=90000\ntransaction.timeout.ms=90000\nclient.id=shop\n"))
