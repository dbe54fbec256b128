"""Deduplication keys against a dictionary: whom a key stands for, through crashes and lost indexes."""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.harness.drive import read_all, settle
from tests.harness.engine_machine import EngineMachine, thorough
from tests.harness.key_runs import WAYS_TO_KEEP_KEYS, keep_keys
from timerwheel.errors import RefusedError, UnknownMessageError
from timerwheel.model.messages import Outgoing, State
from timerwheel.state.dedup_key import KEY_KEPT_MS

TOPICS = ("orders", "tickets")
PLACES = st.tuples(st.sampled_from(TOPICS), st.sampled_from("ab"))
DELAYS_MS = st.sampled_from((0, 1_500, 7_200_000, 3 * KEY_KEPT_MS))
RETENTION_MS = 1_000  # so a key seldom finds the records of its message


@dataclass
class Held:
    """The message that a key stands for; `ended_ms` is None while it waits.

    `recalled` are the contents of recalled sends under the key, its own among them if it was recalled.
    """

    id: str
    content: tuple[bytes, int]
    due_ms: int
    ended_ms: int | None
    recalled: frozenset[tuple[bytes, int]] = frozenset()
    is_recalled: bool = False


class KeysModel(EngineMachine):
    """A key is in the dictionary from its send until KEY_KEPT_MS after its message ended.

    Once that was recalled the key takes another message, or the same again from who names the recalled one.
    """

    @initialize(how=st.sampled_from(WAYS_TO_KEEP_KEYS))
    def start(self, how: str) -> None:
        self.patch = pytest.MonkeyPatch()
        keep_keys(how, self.patch)
        self.held: dict[tuple[str, str], Held] = {}
        self.replaced: set[str] = set()
        self.open()

    def open(self) -> None:
        self.open_engine(retention_ms=RETENTION_MS)
        self.come_due()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "patch"):
            self.patch.undo()

    def come_due(self) -> None:
        """End in the model what is due, and forget what has ended long ago."""
        now_ms = self.clock.now_ms()
        for held in self.held.values():
            if held.ended_ms is None and held.due_ms <= now_ms:
                held.ended_ms = now_ms
        self.held = {
            place: held
            for place, held in self.held.items()
            if held.ended_ms is None or held.ended_ms + KEY_KEPT_MS > now_ms
        }
        self.run(settle(self.engine))

    @rule(
        place=PLACES,
        body=st.sampled_from((b"1", b"1", b"2")),
        delay_ms=DELAYS_MS,
        names_recalled=st.sampled_from((False, False, True)),
    )
    def send(self, place: tuple[str, str], body: bytes, delay_ms: int, names_recalled: bool) -> None:
        self.send_one(place, body, delay_ms, names_recalled=names_recalled)

    @rule(place=PLACES, delays_ms=st.permutations((1_500, 7_200_000, 3 * KEY_KEPT_MS)))
    def send_and_recall_one_after_the_other(self, place: tuple[str, str], delays_ms: list[int]) -> None:
        """Late repeats of what was recalled are what random sends come to seldom."""
        for delay_ms in delays_ms[:2]:
            self.send_one(place, b"1", delay_ms, names_recalled=False)
            self.recall_one(place, bulk=False)

    @rule(place=PLACES, data=st.data())
    def repeat_a_recalled_send(self, place: tuple[str, str], data: st.DataObject) -> None:
        if (held := self.held.get(place)) is not None and held.recalled:
            body, delay_ms = data.draw(st.sampled_from(sorted(held.recalled)))
            self.send_one(place, body, delay_ms, names_recalled=False)

    def send_one(self, place: tuple[str, str], body: bytes, delay_ms: int, *, names_recalled: bool) -> None:
        topic, key = place
        held, content = self.held.get(place), (body, delay_ms)
        after_recall = held.id if names_recalled and held is not None else None
        delay = {"TIMER_DELAY_MS": str(delay_ms)}
        message = Outgoing(topic, body, delay, dedup_key=key, after_recall=after_recall)
        tail = self.engine.core.log.tail
        if (code := _refusal(held, content, names_recalled=names_recalled)) is not None:
            with pytest.raises(RefusedError) as refused:
                self.run(self.engine.sender.send([message]))
            assert {fault.code for fault in refused.value.faults} == {code}
            assert self.engine.core.log.tail == tail
            return
        is_repeat = held is not None and not held.is_recalled
        first, second = self.run(self.engine.sender.send([message, message]))
        assert first.duplicate == is_repeat
        assert not is_repeat or first.state is (State.SCHEDULED if held.ended_ms is None else State.DELIVERED)
        assert second.duplicate
        assert first.id == second.id
        if held is not None and is_repeat:
            assert first.id == held.id
            assert self.engine.core.log.tail == tail
            return
        ended_ms = None if delay_ms else self.clock.now_ms()
        recalled = frozenset() if held is None else held.recalled
        self.held[place] = Held(first.id, content, first.due_ms, ended_ms, recalled)

    @rule(place=PLACES, body=st.sampled_from((b"1", b"2")), delay_ms=DELAYS_MS, count=st.sampled_from((1, 3)))
    def replace(self, place: tuple[str, str], body: bytes, delay_ms: int, count: int) -> None:
        """Of an array of sends that replace, the last one is stored; the earlier ones name it."""
        topic, key = place
        held = self.held.get(place)
        messages = [
            Outgoing(topic, one, {"TIMER_DELAY_MS": str(delay_ms)}, dedup_key=key, replaces=True)
            for one in [b"earlier"] * (count - 1) + [body]
        ]
        receipts = self.run(self.engine.sender.send(messages))
        *earlier, last = receipts
        waits = held is not None and held.ended_ms is None
        assert last.replaced == (held.id if waits else None)
        assert not last.duplicate
        assert [(one.id, one.duplicate, one.replaced) for one in earlier] == [(last.id, True, None)] * len(
            earlier
        )
        if waits:
            assert self.run(self.engine.messages.get(held.id)).state is State.RECALLED
        seen: frozenset[tuple[bytes, int]] = frozenset()
        if held is not None:
            is_delivered = held.ended_ms is not None and not held.is_recalled
            seen = frozenset({held.content}) if is_delivered else held.recalled | {held.content}
        ended_ms = None if delay_ms else self.clock.now_ms()
        self.held[place] = Held(last.id, (body, delay_ms), last.due_ms, ended_ms, seen)
        self.replaced |= {held.id} if waits and held is not None else set()

    @rule(place=PLACES, bulk=st.booleans())
    def recall(self, place: tuple[str, str], bulk: bool) -> None:
        self.recall_one(place, bulk=bulk)

    def recall_one(self, place: tuple[str, str], *, bulk: bool) -> None:
        held = self.held.get(place)
        if held is None:
            with pytest.raises(UnknownMessageError):
                self.run(self.engine.recalls.recall_key(*place))
        elif held.ended_ms is None:
            if bulk:
                [result] = self.run(self.engine.bulk_recalls.recall_many([held.id]))
                assert result.code is None
            else:
                assert self.run(self.engine.recalls.recall_key(*place)).state is State.RECALLED
            held.ended_ms = self.clock.now_ms()
            held.is_recalled, held.recalled = True, held.recalled | {held.content}

    @rule(place=PLACES, delay_ms=DELAYS_MS)
    def reschedule(self, place: tuple[str, str], delay_ms: int) -> None:
        held = self.held.get(place)
        if held is None or held.ended_ms is not None:
            return
        receipt = self.run(self.engine.recalls.reschedule(held.id, {"TIMER_DELAY_MS": str(delay_ms)}))
        held.due_ms = receipt.due_ms
        if not delay_ms:
            held.ended_ms = self.clock.now_ms()

    @rule(duration_ms=st.sampled_from((1, 1_500, 7_200_000, KEY_KEPT_MS // 2, KEY_KEPT_MS)))
    def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.come_due()

    @rule()
    def sweep(self) -> None:
        self.run(self.engine.keys.sweep())

    @rule()
    def retention_turn(self) -> None:
        self.run(self.engine.sender.send([Outgoing("filler", b"f" * 900) for _ in range(5)]))
        self.run(self.engine.retention.turn())
        self.run(settle(self.engine))

    @rule(seed=st.integers(0, 1 << 30), index=st.sampled_from(("kept", "lost")))
    def crash_and_reopen(self, seed: int, index: str) -> None:
        self.crash(seed, index)
        self.open()

    @rule()
    def stop_and_start(self) -> None:
        self.run(self.engine.close())
        self.open()

    @invariant()
    def what_was_replaced_is_not_delivered(self) -> None:
        for topic in TOPICS:
            for message in self.run(read_all(self.engine, topic)):
                assert message.id not in self.replaced

    @invariant()
    def each_key_stands_for_the_message_that_the_model_says(self) -> None:
        for topic in TOPICS:
            for key in "ab":
                held = self.held.get((topic, key))
                if held is not None:
                    assert self.run(self.engine.keys.id_of(topic, key)) == held.id
                    continue
                with pytest.raises(UnknownMessageError):
                    self.run(self.engine.keys.id_of(topic, key))


def _refusal(held: Held | None, content: tuple[bytes, int], *, names_recalled: bool) -> str | None:
    """The code that a send is refused with under a key that stands for this message; None if it is not."""
    if held is None:
        return None
    if held.is_recalled:
        return "key_recalled" if content in held.recalled and not names_recalled else None
    return None if content == held.content else "key_reused"


KeysModel.TestCase.settings = thorough(100)


class TestKeysAgreeWithTheModel(KeysModel.TestCase):
    """Hypothesis drives it."""
