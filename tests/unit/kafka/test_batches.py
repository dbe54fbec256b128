"""How records are put in groups for topics that refuse large batches."""

from hypothesis import given
from hypothesis import strategies as st

from tests.harness.clock import ManualClock
from timerwheel.kafka.batches import BATCH_BYTES, NARROW_MS, Batches
from timerwheel.kafka.translation import Produced


def record(size_bytes: int, topic: str = "small") -> Produced:
    return Produced(topic, None, bytes(size_bytes), ())


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["small", "other"]))))
def test_a_group_has_no_more_than_its_room_unless_it_is_one_record(
    room: int, records: list[tuple[int, str]]
) -> None:
    batches = Batches(ManualClock())
    batches.narrow("small", room)
    groups: list[list[int]] = [[]]
    for size_bytes, topic in records:
        if batches.begins_with(record(size_bytes, topic)):
            groups.append([])
        if topic == "small":
            groups[-1].append(size_bytes)
    assert all(sum(group) <= room or len([size for size in group if size]) == 1 for group in groups)
    before = [groups[at - 1] for at in range(1, len(groups))]
    assert all(sum(one) + next_[0] > room for one, next_ in zip(before, groups[1:], strict=True))


def test_each_transaction_begins_with_empty_groups() -> None:
    batches = Batches(ManualClock())
    batches.narrow("small", 10)
    assert [batches.begins_with(record(6)) for _ in range(2)] == [False, True]
    batches.clear()
    assert not batches.begins_with(record(6))


def test_a_topic_gets_large_batches_again_after_a_while() -> None:
    clock = ManualClock()
    batches = Batches(clock)
    assert batches.room("small") == BATCH_BYTES
    batches.narrow("small", 10)
    clock.advance(NARROW_MS - 1)
    assert batches.room("small") == 10
    clock.advance(1)
    assert batches.room("small") == BATCH_BYTES
    assert [batches.begins_with(record(10)) for _ in range(3)] == [False] * 3
