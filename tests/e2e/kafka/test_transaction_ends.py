"""How long the outlet's producer waits for transactions to end, and whose, by a clock of the test's own."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import Producer

from tests.e2e.kafka.test_outlet_fences import NOTHING, Service
from tests.harness.kafka.clients import CALL_S, Clients
from timerwheel.clock import SystemClock
from timerwheel.kafka import positions
from timerwheel.kafka.cluster import StoppedError
from timerwheel.kafka.hanging import GRACE_MS, Ends
from timerwheel.kafka.names import ID
from timerwheel.kafka.positions import Run
from timerwheel.kafka.producer import (
    OTHERS_MS,
    TRIES_MAX,
    TransactionalProducer,
    UnsettledError,
)
from timerwheel.kafka.translation import Produced
from timerwheel.telemetry.throttled_log import Troubles

OURS = (ID, b"0" * 24)


class CountingClock(SystemClock):
    """A clock that goes on by a step each time that it is asked."""

    def __init__(self, step_ms: int) -> None:
        self.step_ms = step_ms
        self.at_ms = 0

    def monotonic_ms(self) -> int:
        self.at_ms += self.step_ms
        return self.at_ms


class Sender:
    """A service with a producer, and somebody else who writes to its target."""

    def __init__(self, kafka: Clients, step_ms: int) -> None:
        self.clock = CountingClock(step_ms)
        self.service = Service(kafka)
        self.target = self.service.target
        self.process = TransactionalProducer(self.service.cluster, self.clock, Run("one"))
        self._somebody = Producer({"bootstrap.servers": kafka.address, "transactional.id": self.target})
        self._somebody.init_transactions(CALL_S)

    def open(self) -> None:
        """Open the producer."""
        self.process.open(NOTHING, [self.target])

    def send(self, number: int) -> int:
        """Send the message at this place; returns how long it took by the clock, in milliseconds."""
        began_ms = self.clock.at_ms
        record = Produced(self.target, None, b"%d" % number, [OURS])
        assert self.process.send([record], {self.target: {0: number + 1}}) == []
        return self.clock.at_ms - began_ms

    @contextmanager
    def somebody(self) -> Iterator[None]:
        """Let somebody have a transaction open in the target that begins as one of ours."""
        self._somebody.begin_transaction()
        self._somebody.produce(self.target, b"somebody", headers=[OURS])
        assert self._somebody.flush(CALL_S) == 0
        yield
        self._somebody.commit_transaction(CALL_S)


def test_open_transactions_of_others_are_waited_for_once_in_a_while(kafka: Clients) -> None:
    sender = Sender(kafka, 5)
    sender.open()
    with sender.somebody():
        assert sender.send(0) >= GRACE_MS
        assert sender.send(1) < GRACE_MS
    sender.send(2)
    with sender.somebody():
        assert sender.send(3) < GRACE_MS
    sender.send(4)
    sender.clock.at_ms += OTHERS_MS
    with sender.somebody():
        assert sender.send(5) >= GRACE_MS
    assert len(sender.service.came(9)) == 9
    sender.process.close()


def test_an_open_transaction_of_others_does_not_stop_one_that_a_topic_refuses(kafka: Clients) -> None:
    sender = Sender(kafka, 50)
    kafka.make(closed := f"{sender.target}-closed")
    with sender.somebody():
        sender.open()
        assert sender.process.send([Produced(closed, None, b"1", [OURS])], {closed: {0: 1}}) == []
        kafka.forbid(closed)
        (refused,) = sender.process.send([Produced(closed, None, b"2", [OURS])], {closed: {0: 2}})
    assert refused.code == "forbidden_topic"
    sender.process.close()


def test_what_cannot_be_ended_is_tried_several_times_and_then_left(kafka: Clients) -> None:
    sender = Sender(kafka, 100)
    with sender.somebody():
        for _ in range(TRIES_MAX):
            opened = sender.process.open(NOTHING, [sender.target])
            with pytest.raises(UnsettledError, match=sender.target):
                sender.process.repeat(opened.hanging, opened.offsets, {})
        assert sender.process.open(NOTHING, [sender.target]).hanging == []
        sender.send(0)
    sender.process.close()


def test_reading_positions_ends_with_the_service(kafka: Clients) -> None:
    sender = Sender(kafka, 5)
    sender.open()

    def stopped() -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        positions.read(sender.service.cluster, check=stopped)
    sender.process.close()


def test_a_look_for_what_hangs_ends_with_the_service(kafka: Clients) -> None:
    sender = Sender(kafka, 0)  # so it would look for ever

    def stopped() -> None:
        raise StoppedError

    ends = Ends(sender.service.cluster, sender.clock, Troubles(sender.clock, 1), stopped)
    with sender.somebody(), pytest.raises(StoppedError):
        ends.find([sender.target])
    ends.close()
