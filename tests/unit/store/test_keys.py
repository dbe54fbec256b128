from hypothesis import given
from hypothesis import strategies as st

from timerwheel.store.keys import block_prefix, queue_prefix, sequence_key, sequence_of, slot_of, slot_prefix

U64 = st.integers(0, 2**64 - 1)
SLOTS = st.tuples(st.integers(0, 3), U64, U64)
QUEUES = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1), U64)


@given(st.lists(SLOTS, max_size=20))
def test_wheel_keys_sort_as_level_slot_sequence(slots):
    assert sorted(slots, key=lambda s: slot_prefix(s[0], s[1]) + sequence_key(s[2])) == sorted(slots)


@given(st.lists(QUEUES, max_size=20))
def test_queue_keys_sort_as_topic_queue_offset(found):
    assert sorted(found, key=lambda q: queue_prefix(q[0], q[1]) + sequence_key(q[2])) == sorted(found)


@given(st.lists(U64, max_size=20))
def test_mark_keys_sort_as_blocks_of_the_log(offsets):
    blocks = sorted(offset >> 20 for offset in offsets)
    assert sorted(map(block_prefix, offsets)) == [block_prefix(block << 20) for block in blocks]


@given(SLOTS)
def test_slot_and_sequence_come_back_from_a_wheel_key(slot):
    key = slot_prefix(slot[0], slot[1]) + sequence_key(slot[2])
    assert (*slot_of(key), sequence_of(key)) == slot


@given(QUEUES)
def test_sequence_comes_back_from_a_queue_key(found):
    assert sequence_of(queue_prefix(found[0], found[1]) + sequence_key(found[2])) == found[2]


def test_offsets_of_one_mebibyte_share_a_mark_prefix():
    mebibyte = 1 << 20
    assert block_prefix(5 * mebibyte) == block_prefix(6 * mebibyte - 1)
    assert block_prefix(5 * mebibyte) != block_prefix(6 * mebibyte)


def test_prefixes_of_a_table_have_one_width():
    assert {len(slot_prefix(level, ms)) for level in range(4) for ms in (0, 2**63)} == {9}
    assert {len(queue_prefix(topic, queue)) for topic in (0, 2**32 - 1) for queue in (0, 65_535)} == {6}
    assert {len(block_prefix(offset)) for offset in (0, 2**64 - 1)} == {8}
