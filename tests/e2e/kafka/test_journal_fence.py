"""The fence of a claim in a real partition: where it is, who is refused behind it, who passes over it."""

import contextlib
import time
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")


from tests.harness.kafka.clients import Clients
from timerwheel.clock import SystemClock
from timerwheel.kafka.journal import HEADER, KafkaJournal
from timerwheel.settings import JournalAddress
from timerwheel.store.errors import JournalFencedError
from timerwheel.store.files import DiskFiles
from timerwheel.store.journal import FENCE, Placed, Run, RunKind, label
from timerwheel.store.journaled_log import JournaledLog


def run(base: int) -> Run:
    return Run(RunKind.RECORDS, base, b"x" * 10)


def journal_of(servers: str, cluster: str, **properties: str) -> KafkaJournal:
    settings = {name.replace("_", "."): value for name, value in properties.items()}
    return KafkaJournal(JournalAddress(servers, cluster), settings, SystemClock())


def copied(journal: KafkaJournal, directory: Path) -> JournaledLog:
    """A copy as a standby makes one."""
    log = JournaledLog(directory, DiskFiles(), 1 << 20, journal)
    log.attach(journal.extent())
    log.catch_up(journal.extent().end)
    return log


def test_a_claim_ends_where_its_fence_is_behind_all_that_the_earlier_leader_stored(
    kafka: Clients,
) -> None:
    cluster = f"shop-{time.time_ns()}"
    earlier, later = journal_of(kafka.address, cluster), journal_of(kafka.address, cluster)
    earlier.claim()
    positions = earlier.append([run(0), run(10)])  # its transaction stays open
    extent = later.claim()
    assert extent.end > positions[-1]
    [fence] = later.read(extent.end, extent.end + 1)
    assert fence == Placed(extent.end, FENCE)
    raw = kafka.read(f"{cluster}-log", lambda found: len(found) >= 4, committed=False)
    assert dict(raw[-1].headers)[HEADER] == label(FENCE)
    with pytest.raises(JournalFencedError, match="it leads now"):
        earlier.append([run(20)])


def test_a_claimed_topic_without_a_log_is_copied_as_an_empty_one_and_begun_by_the_next_leader(
    kafka: Clients, tmp_path: Path
) -> None:
    cluster = f"shop-{time.time_ns()}"
    for _ in range(2):
        journal_of(kafka.address, cluster).claim()  # and dies
    standby = journal_of(kafka.address, cluster)
    with contextlib.closing(copied(standby, tmp_path / "standby")) as log:
        assert log.bases == ()
    leader = JournaledLog(tmp_path / "leader", DiskFiles(), 1 << 20, journal_of(kafka.address, cluster))
    with contextlib.closing(leader):
        extent = leader.claim()
        leader.attach(extent)
        leader.catch_up(extent.end)
        leader.open(new_log_id=bytes(16), now_ms=7, keep_from=0)
        journal_of(kafka.address, cluster).claim()  # one more fence, behind the header
        with contextlib.closing(copied(standby, tmp_path / "other")) as log:
            assert log.bases == (0,)
            assert log.tail == leader.tail
