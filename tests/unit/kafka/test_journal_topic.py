"""What is thought of the settings of a journal's topic."""

import pytest

pytest.importorskip("confluent_kafka")

from timerwheel.kafka.journal_topic import doubt, refuse_lossy
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
