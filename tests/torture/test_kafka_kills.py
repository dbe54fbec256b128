"""The real service and a real broker, killed thirty times under load; and what an audit says afterwards."""

import os
from pathlib import Path

import pytest

from tests.harness.kafka.broker import missing
from tests.harness.kafka.kills import INLET, JOURNAL, TARGET, Survivors, survived
from tests.torture.audited import Auditor

pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
]

SEED = int(os.environ.get("SEED", "1"))
KILLS = int(os.environ.get("TIMERWHEEL_TORTURE_KILLS") or 30)


def test_after_thirty_kills_each_message_came_once(tmp_path: Path) -> None:
    with survived(tmp_path, kills=KILLS, seed=SEED, rate=1_650) as after:
        joined(after, Auditor(tmp_path, after.clients.address, data=after.data))


def test_after_kills_that_take_the_disk_along_log_inlet_and_target_agree(tmp_path: Path) -> None:
    """The log is in Kafka too."""
    with survived(tmp_path, kills=KILLS, seed=SEED, rate=500, in_kafka=True) as after:
        joined(after, Auditor(tmp_path, after.clients.address, cluster=JOURNAL))


def test_after_a_minute_without_brokers_everything_goes_on_by_itself(tmp_path: Path) -> None:
    with survived(tmp_path, kills=1, seed=1, away_s=65):
        pass


def joined(after: Survivors, auditor: Auditor) -> None:
    """An audit of inlet, log and target counts each message, finds nothing, and then what is put there."""
    found = auditor.audit("--kafka-inlet", INLET)
    assert found["balanced"], (found["rules"], found["kafka"]["rules"], found["kafka"]["findings"][:5])
    inlet = found["kafka"]["inlet"]
    assert (inlet["records"], inlet["messages"], inlet["rejected"]) == (after.count, after.count, 0)
    target = next(one for one in found["kafka"]["outlets"] if one["topic"] == TARGET)
    assert (target["owed"], target["found"], target["others"]) == (after.count, after.count, 0)
    print(f"audited {inlet['records']:,} records of inlet, log and target: nothing is wrong")
    twice = after.found[0]
    after.clients.send(TARGET, b"again", twice.headers)
    after.clients.flush()
    found = auditor.audit("--kafka-inlet", INLET)
    assert found["kafka"]["rules"] == {"twice_in_kafka": 1}
    assert found["kafka"]["findings"][0]["what"] == twice.header("TIMER_ID")
