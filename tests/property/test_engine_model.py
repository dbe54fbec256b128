"""The real engine against a plain dictionary of what should be waiting and what should have come out."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.harness.columns import send_in_columns
from tests.harness.drive import read_all, settle
from tests.harness.engine_machine import EngineMachine, thorough
from timerwheel.errors import (
    AlreadyDeliveredError,
    AlreadyRecalledError,
    DeletedMessageError,
    NoOpenTransactionError,
    OpenTransactionError,
    UnknownTopicError,
)
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.messages import Outgoing, State

TOPICS = ("orders", "tickets")
DELAYS_MS = st.one_of(
    st.integers(0, 5),
    st.integers(1, 3_000),
    st.integers(1, 400_000),
    st.integers(1, 30_000_000),
    st.integers(1, 40 * 86_400_000),
)
ADVANCES_MS = st.one_of(
    st.integers(1, 1_500), st.integers(1, 300_000), st.integers(1, 90_000_000), st.integers(1, 10**10)
)


class Waiting:
    """What the model knows of one message."""

    def __init__(self, topic: str, due_ms: int, order: int) -> None:
        self.topic = topic
        self.due_ms = due_ms
        self.order = order


class EngineModel(EngineMachine):
    """Messages wait in a dictionary; `advance` takes out, in order, what is due."""

    @initialize()
    def start(self) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.delivered: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        self.recalled: set[str] = set()
        self.recalled_of: dict[str, set[str]] = {topic: set() for topic in TOPICS}
        self.dues: dict[str, int] = {}
        self.halves: dict[str, int] = {}
        self.ended: set[str] = set()
        self.deleted: set[str] = set()
        self.order = 0
        self.open()

    def open(self) -> None:
        self.open_engine(retention_ms=10**12, transaction_checks_max=1_000_000)
        self.come_due()

    def come_due(self) -> None:
        """Move what is due in the model, then let the engine do the same."""
        now_ms = self.clock.now_ms()
        due = [(w.due_ms, w.order, i) for i, w in self.waiting.items() if w.due_ms <= now_ms]
        for _, _, message_id in sorted(due):
            self.delivered[self.waiting.pop(message_id).topic].append(message_id)
        self.run(settle(self.engine))

    @rule(
        topic=st.sampled_from(TOPICS),
        delays_ms=st.lists(DELAYS_MS, min_size=1, max_size=12),
        in_columns=st.booleans(),
    )
    def send(self, topic: str, delays_ms: list[int], in_columns: bool) -> None:
        messages = [Outgoing(topic, b"x" * (d % 50), {"TIMER_DELAY_MS": str(d)}) for d in delays_ms]
        sending = send_in_columns(self.engine, messages) if in_columns else self.engine.sender.send(messages)
        receipts = self.run(sending)
        for delay_ms, receipt in zip(delays_ms, receipts, strict=True):
            self.order += 1
            assert receipt.due_ms == self.clock.now_ms() + delay_ms
            self.dues[receipt.id] = receipt.due_ms
            if delay_ms == 0:
                assert receipt.state is State.DELIVERED
                self.delivered[topic].append(receipt.id)
            else:
                self.waiting[receipt.id] = Waiting(topic, receipt.due_ms, self.order)

    @precondition(lambda self: self.dues)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.dues)))
        if message_id in self.halves:
            with pytest.raises(OpenTransactionError):
                self.run(self.engine.recalls.recall(message_id))
            return
        if message_id in self.waiting:
            view = self.run(self.engine.recalls.recall(message_id))
            assert view.state is State.RECALLED
            self.recalled_of[self.waiting.pop(message_id).topic].add(message_id)
            self.recalled.add(message_id)
            return
        wrong = AlreadyRecalledError if message_id in self.recalled else AlreadyDeliveredError
        with pytest.raises(wrong):
            self.run(self.engine.recalls.recall(message_id))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), delay_ms=DELAYS_MS)
    def reschedule(self, data: st.DataObject, delay_ms: int) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.waiting)))
        if message_id in self.halves:
            with pytest.raises(OpenTransactionError):
                self.run(self.engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": str(delay_ms)}))
            return
        receipt = self.run(self.engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": str(delay_ms)}))
        assert receipt.id == message_id
        waiting = self.waiting[message_id]
        waiting.due_ms = self.dues[message_id] = self.clock.now_ms() + delay_ms
        if delay_ms == 0:
            self.delivered[waiting.topic].append(message_id)
            del self.waiting[message_id]

    @rule(topic=st.sampled_from(TOPICS), delay_ms=DELAYS_MS)
    def begin(self, topic: str, delay_ms: int) -> None:
        half = self.run(self.engine.transactions.begin(Outgoing(topic, b"half", after_ms=delay_ms)))
        self.order += 1
        self.halves[half.id] = delay_ms
        self.dues[half.id] = HALF_DUE_MS
        self.waiting[half.id] = Waiting(topic, HALF_DUE_MS, self.order)

    @precondition(lambda self: self.halves)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.halves)))
        receipt = self.run(self.engine.transactions.commit(message_id))
        delay_ms, waiting = self.halves.pop(message_id), self.waiting[message_id]
        self.ended.add(message_id)
        waiting.due_ms = self.dues[message_id] = self.clock.now_ms() + delay_ms
        assert (receipt.id, receipt.due_ms) == (message_id, waiting.due_ms)
        if delay_ms == 0:
            self.delivered[waiting.topic].append(message_id)
            del self.waiting[message_id]

    @precondition(lambda self: self.halves)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.halves)))
        assert self.run(self.engine.transactions.rollback(message_id)).state is State.RECALLED
        del self.halves[message_id]
        self.recalled_of[self.waiting.pop(message_id).topic].add(message_id)
        self.recalled.add(message_id)
        self.ended.add(message_id)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), by_commit=st.booleans())
    def end_again(self, data: st.DataObject, by_commit: bool) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.ended)))
        transactions = self.engine.transactions
        end = transactions.commit if by_commit else transactions.rollback
        wrong: type[Exception] = AlreadyDeliveredError
        if message_id in self.recalled:
            wrong = AlreadyRecalledError
        elif message_id in self.waiting:
            wrong = NoOpenTransactionError
        with pytest.raises(wrong):
            self.run(end(message_id))

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        if topic not in self.engine.queues.topic_names():
            with pytest.raises(UnknownTopicError):
                self.run(self.engine.topic_deletions.delete(topic))
            return
        self.run(self.engine.topic_deletions.delete(topic))
        assert self.run(read_all(self.engine, topic)) == []
        gone = {i for i, w in self.waiting.items() if w.topic == topic}
        gone.update(self.delivered[topic], self.recalled_of[topic])
        self.deleted |= gone
        self.delivered[topic].clear()
        self.recalled_of[topic].clear()
        for message_id in gone:
            for known in (self.waiting, self.halves, self.dues):
                known.pop(message_id, None)
        self.ended -= gone
        self.recalled -= gone
        self.come_due()  # the deletion goes on until its end

    @precondition(lambda self: self.deleted)
    @rule(data=st.data())
    def ask_for_a_deleted_message(self, data: st.DataObject) -> None:
        with pytest.raises(DeletedMessageError):
            self.run(self.engine.messages.get(data.draw(st.sampled_from(sorted(self.deleted)))))

    @rule(duration_ms=ADVANCES_MS)
    def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.come_due()

    @rule(by_ms=st.sampled_from((-3_600_000, -1_500, 1_500, 3_600_000)))
    def step_clock(self, by_ms: int) -> None:
        self.clock.step(by_ms)
        self.run(self.engine.watch_once())
        self.come_due()

    @rule(seed=st.integers(0, 1 << 30), index=st.sampled_from(("kept", "older", "lost", "garbage")))
    def crash_and_reopen(self, seed: int, index: str) -> None:
        self.crash(seed, index)
        self.open()

    @rule()
    def stop_and_start(self) -> None:
        self.run(self.engine.close())
        self.open()

    @rule()
    def retention_turn(self) -> None:
        self.run(self.engine.retention.turn())
        self.run(settle(self.engine))

    @invariant()
    def what_waits_is_what_the_model_says(self) -> None:
        page = self.run(self.engine.messages.pending(limit=100_000))
        expected = sorted((w.due_ms, w.order, i) for i, w in self.waiting.items())
        assert [m.id for m in page.messages] == [i for _, _, i in expected]
        for topic in TOPICS:
            waiting = sum(w.topic == topic for w in self.waiting.values())
            if topic in self.engine.queues.topic_names():
                assert self.engine.queues.topic(topic).pending == waiting
            else:
                assert not waiting

    @invariant()
    def what_is_open_is_what_the_model_says(self) -> None:
        assert {one.id for one in self.engine.transactions.page().transactions} == self.halves.keys()

    @invariant()
    def what_came_out_came_once_in_order_and_never_early(self) -> None:
        for topic in TOPICS:
            messages = self.run(read_all(self.engine, topic))
            assert [m.id for m in messages] == self.delivered[topic]
            assert all(m.delivered_ms >= m.due_ms == self.dues[m.id] for m in messages)


EngineModel.TestCase.settings = thorough(150)


class TestEngineAgreesWithTheModel(EngineModel.TestCase):
    """Hypothesis drives it."""
