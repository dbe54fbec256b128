"""Topics whose queues grow, and clients that choose a queue, against a dictionary of what each queue has."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.harness.columns import send_in_columns
from tests.harness.drive import read_all, settle
from tests.harness.engine_machine import EngineMachine, thorough
from timerwheel.errors import KeysMoveError, QueuesShrinkError, RefusedError
from timerwheel.model.messages import Outgoing

TOPICS = ("orders", "tickets")
QUEUES_MAX = 6


class QueuesModel(EngineMachine):
    """What is in a queue stays there, in its order; a queue that was named is the one it goes to."""

    @initialize()
    def start(self) -> None:
        self.queues: dict[str, int] = dict.fromkeys(TOPICS, 2)
        self.ordered: dict[str, bool] = dict.fromkeys(TOPICS, False)
        self.delivered: dict[tuple[str, int], list[str]] = {}
        self.waiting: list[tuple[int, int, str, int, str]] = []
        self.used: set[str] = set()
        self.key_queue: dict[tuple[str, str], int] = {}
        self.order = 0
        self.open()

    def open(self) -> None:
        self.open_engine(retention_ms=10**12, queues_per_topic=2)
        self.come_due()

    def come_due(self) -> None:
        now_ms = self.clock.now_ms()
        for one in sorted(self.waiting):
            if one[0] <= now_ms:
                self.delivered.setdefault(one[2:4], []).append(one[4])
        self.waiting = [one for one in self.waiting if one[0] > now_ms]
        self.run(settle(self.engine))

    def stored(self, message_id: str, topic: str, due_ms: int) -> int:
        """Note where a message went, or will go."""
        queue = self.run(self.engine.messages.get(message_id)).queue
        assert 0 <= queue < self.queues[topic]
        self.order += 1
        self.used.add(topic)
        if due_ms <= self.clock.now_ms():
            self.delivered.setdefault((topic, queue), []).append(message_id)
        else:
            self.waiting.append((due_ms, self.order, topic, queue, message_id))
        return queue

    @rule(topic=st.sampled_from(TOPICS), queue=st.integers(-1, QUEUES_MAX), delay_ms=st.integers(0, 5_000))
    def send_to_a_queue(self, topic: str, queue: int, delay_ms: int) -> None:
        message = Outgoing(topic, b"x", after_ms=delay_ms, queue=queue)
        if not 0 <= queue < self.queues[topic]:
            with pytest.raises(RefusedError, match="queue = "):
                self.run(self.engine.sender.send([message]))
            return
        [receipt] = self.run(self.engine.sender.send([message]))
        assert self.stored(receipt.id, topic, receipt.due_ms) == queue

    @rule(
        topic=st.sampled_from(TOPICS),
        keys=st.lists(st.sampled_from((None, "a", "b", "c")), min_size=1, max_size=6),
        delay_ms=st.integers(0, 200_000),
        in_columns=st.booleans(),
    )
    def send(self, topic: str, keys: list[str | None], delay_ms: int, in_columns: bool) -> None:
        when = {"TIMER_DELAY_MS": str(delay_ms)}
        messages = [Outgoing(topic, b"x", when | ({"__SHARDINGKEY": k} if k else {})) for k in keys]
        sending = send_in_columns(self.engine, messages) if in_columns else self.engine.sender.send(messages)
        for key, receipt in zip(keys, self.run(sending), strict=True):
            queue = self.stored(receipt.id, topic, receipt.due_ms)
            if key is not None:
                assert self.key_queue.setdefault((topic, key), queue) == queue

    @rule(
        topic=st.sampled_from(TOPICS),
        queues=st.none() | st.integers(1, QUEUES_MAX),
        ordered=st.none() | st.booleans(),
        move_keys=st.booleans(),
    )
    def change(self, topic: str, queues: int | None, ordered: bool | None, move_keys: bool) -> None:
        before = self.queues[topic]
        keeps = (self.ordered[topic] if ordered is None else ordered) and not move_keys
        try:
            self.run(self.engine.topics.change(topic, queues=queues, ordered=ordered, move_keys=move_keys))
        except QueuesShrinkError:
            assert queues is not None
            assert queues < before
            return
        except KeysMoveError:
            assert keeps
            assert queues != before
            assert topic in self.used
            return
        self.ordered[topic] = self.ordered[topic] if ordered is None else ordered
        if queues is not None:
            assert queues >= before
            self.queues[topic] = queues
            if queues != before:
                assert not keeps or topic not in self.used
                self.key_queue = {
                    place: queue for place, queue in self.key_queue.items() if place[0] != topic
                }

    @rule(duration_ms=st.one_of(st.integers(1, 5_000), st.integers(1, 300_000)))
    def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.come_due()

    @rule(seed=st.integers(0, 1 << 30), index=st.sampled_from(("kept", "older", "lost", "garbage")))
    def crash_and_reopen(self, seed: int, index: str) -> None:
        self.crash(seed, index)
        self.open()

    @rule()
    def stop_and_start(self) -> None:
        self.run(self.engine.close())
        self.open()

    @invariant()
    def each_topic_has_its_queues(self) -> None:
        for topic in TOPICS:
            assert self.engine.queues.queues_of(topic) == self.queues[topic]
            assert self.engine.topics.ordered(topic) is self.ordered[topic]

    @invariant()
    def each_queue_has_what_went_there_in_order(self) -> None:
        for topic in TOPICS:
            for queue in range(self.queues[topic]):
                messages = self.run(read_all(self.engine, topic, queue=queue))
                assert [m.id for m in messages] == self.delivered.get((topic, queue), [])


QueuesModel.TestCase.settings = thorough(60)


class TestQueuesAgreeWithTheModel(QueuesModel.TestCase):
    """Hypothesis drives it."""
