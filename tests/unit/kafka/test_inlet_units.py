from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from timerwheel.kafka.inlet import UNIT_BYTES_MAX, Item, units_of
from timerwheel.kafka.names import KafkaTopics
from timerwheel.kafka.translation import Refusal, Taken, wanted_of
from timerwheel.model.admission import Rules
from timerwheel.model.messages import Outgoing
from timerwheel.runtime.steps import AT_ONCE_BYTES, steps
from timerwheel.settings import Settings

RULES = Rules.of(Settings(data=Path("data")))
TOPICS = KafkaTopics("timers")
OWN = [("TIMER_TOPIC", b"orders"), ("TIMER_DELAY_MS", b"1")]
LARGE = 30_000
RECORDS = {
    "value": (None, bytes(LARGE), OWN),
    "text": (None, b"", [*OWN, ("h", b"x" * LARGE)]),
    "bytes": (None, None, [*OWN, ("h", b"\xff" * LARGE)]),
    "key": (b"\xff" * LARGE, b"", OWN),
    "refused": (None, b"", [*OWN[:1], ("h", b"x" * LARGE)]),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_unit_is_bounded_whatever_is_large_in_its_records(kind):
    key, value, headers = RECORDS[kind]
    records = [Taken("timers", 0, offset, key, value, headers) for offset in range(500)]
    items = [Item(taken, wanted_of(taken, TOPICS, RULES)) for taken in records]
    units = list(units_of(items))
    assert [item for unit in units for item in unit] == items
    assert max(map(len, units)) <= UNIT_BYTES_MAX // LARGE
    if kind == "refused":
        assert isinstance(items[0].wanted, Refusal)
        return
    messages = [item.wanted for item in items if isinstance(item.wanted, Outgoing)]
    longest = max(part.stop - part.start for part in steps(messages))
    assert longest <= AT_ONCE_BYTES // LARGE
