import base64
import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.rocketmq.checkpoint import (
    ACKNOWLEDGED_MAX,
    CHARACTERS_MAX,
    Checkpoint,
    CheckpointError,
    acknowledged,
)
from timerwheel.state.groups import DEAD_QUEUE, OFFSET_BITS

OFFSETS = st.integers(0, (1 << OFFSET_BITS) - 1)
TIMES = st.integers(0, 1 << 50)


@given(
    st.builds(
        Checkpoint,
        OFFSETS,
        TIMES,
        TIMES,
        st.integers(0, (1 << 31) - 1),
        st.just("broker-a"),
        st.integers(0, DEAD_QUEUE),
        OFFSETS,
        st.text("0123456789abcdef", min_size=60, max_size=60),
    )
)
def test_a_checkpoint_is_read_as_it_was_written(checkpoint):
    text = checkpoint.encode()
    assert len(text) <= CHARACTERS_MAX
    assert Checkpoint.decode(text) == checkpoint
    assert Checkpoint.decode(text.rpartition(" ")[0]) == checkpoint._replace(receipt="")


def test_the_parts_stand_in_the_order_of_rocketmq():
    assert Checkpoint(40, 170, 600, 5, "b", 3, 41, "ab").encode() == "40 170 600 5 0 b 3 41 ab"


@given(st.text(max_size=2_000))
def test_any_text_is_a_checkpoint_or_is_refused(text):
    with contextlib.suppress(CheckpointError):
        assert Checkpoint.decode(text).queue <= DEAD_QUEUE


def body(*parts):
    return orjson.dumps({"brokerName": "b", "acks": parts})


def part(bits, start=0, queue=0):
    text = base64.b64encode(bits).decode()
    return {"c": "g", "t": "orders", "r": "0", "so": start, "q": queue, "rq": 7, "pt": 1, "it": 1, "b": text}


@given(st.sets(st.integers(0, 5_000), max_size=100), st.integers(0, 1 << 40))
def test_each_bit_is_a_message_counted_from_the_start(bits, start):
    number = sum(1 << bit for bit in bits)
    data = number.to_bytes(-(-number.bit_length() // 8), "little")
    [(found, offsets)] = acknowledged(body(part(data, start)))
    assert (found.group, found.topic, found.queue, found.pop) == ("g", "orders", 0, 7)
    assert offsets == [start + bit for bit in sorted(bits)]


def test_all_parts_together_have_at_most_the_most_messages():
    half = b"\xff" * (ACKNOWLEDGED_MAX // 16)
    assert len(acknowledged(body(part(half), part(half, queue=1)))) == 2
    with pytest.raises(CheckpointError, match="more than"):
        acknowledged(body(part(half), part(half, queue=1), part(b"\x01", queue=2)))


def test_bits_far_apart_cost_no_more_than_their_bytes():
    far = b"\x01" + bytes(1 << 20) + b"\x80"
    [(_, offsets)] = acknowledged(body(part(far)))
    assert offsets == [0, ((1 << 20) + 1) * 8 + 7]
