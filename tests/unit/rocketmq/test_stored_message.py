import struct
from binascii import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.stored_messages import BatchedMessage, decode_all, encode_batch
from timerwheel.rocketmq.frame import FrameError
from timerwheel.rocketmq.stored_message import (
    MAGIC,
    MAGIC_LONG_TOPIC,
    Host,
    StoredMessage,
    decode_batch,
    encode,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
HOSTS = st.builds(Host, st.ip_addresses().map(str), st.integers(0, 65_535))
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**63 - 1)
MESSAGES = st.builds(
    StoredMessage,
    topic=st.text("abc%_-", min_size=1, max_size=200),
    queue=st.integers(0, 2**16),
    queue_offset=INT64,
    log_offset=INT64,
    born_ms=INT64,
    store_ms=INT64,
    born_host=HOSTS,
    store_host=HOSTS,
    body=st.binary(max_size=50),
    properties=TEXT,
    flag=INT32,
    sys_flag=st.sampled_from([0, 2, 1 | 2]),
    consumed_before=st.integers(0, 100),
    half_offset=INT64,
)
BATCHED = st.builds(BatchedMessage, INT32, st.binary(max_size=50), TEXT.map(str.encode))


@given(st.lists(MESSAGES, max_size=3))
def test_stored_messages_come_back(messages):
    assert decode_all(b"".join(map(encode, messages))) == messages


@given(MESSAGES, st.data())
def test_a_stored_message_that_is_cut_is_one_kind_of_error(message, data):
    whole = encode(message)
    with pytest.raises(FrameError):
        decode_all(whole[: data.draw(st.integers(1, len(whole) - 1))])


@given(st.lists(BATCHED, max_size=4))
def test_batches_come_back(messages):
    found = decode_batch(encode_batch(messages), 4)
    assert list(zip(*found, strict=True)) == messages


@given(st.lists(BATCHED, min_size=1, max_size=4), st.data())
def test_a_batch_with_a_changed_byte_is_a_batch_or_one_kind_of_error(messages, data):
    bad = bytearray(encode_batch(messages))
    at = data.draw(st.integers(0, len(bad) - 1))
    bad[at] = data.draw(st.integers(0, 255))
    try:
        decode_batch(bytes(bad), 10)
    except FrameError:
        return


def test_a_batch_of_too_many_messages_is_refused():
    with pytest.raises(FrameError, match="more than 2 messages"):
        decode_batch(encode_batch([BatchedMessage(0, b"x", b"")] * 3), 2)


def test_of_a_batch_of_too_many_messages_the_rest_is_not_looked_at():
    with pytest.raises(FrameError, match="more than 2 messages"):
        decode_batch(encode_batch([BatchedMessage(0, b"x", b"")] * 2) + b"no message", 2)


@pytest.mark.parametrize("size", [-1, 0, 21])
def test_a_message_of_a_batch_that_ends_before_its_text_is_malformed(size):
    with pytest.raises(FrameError):
        decode_batch(struct.pack(">iiiiiH", size, 0, 0, 0, 0, 0), 9)


@pytest.mark.parametrize(("length", "magic"), [(127, MAGIC), (128, MAGIC_LONG_TOPIC)])
def test_a_long_topic_changes_the_magic(length, magic):
    message = message_with(topic="t" * length)
    assert struct.unpack_from(">i", encode(message), 4)[0] == magic
    assert decode_all(encode(message)) == [message]


def test_the_fields_stand_where_the_page_says():
    data = encode(message_with(body=b"body", properties="A\x01b\x02"))
    assert struct.unpack_from(">i", data, 0)[0] == len(data)
    assert struct.unpack_from(">i", data, 8)[0] == crc32(b"body") & 0x7FFF_FFFF
    assert struct.unpack_from(">q", data, 20)[0] == 7
    assert struct.unpack_from(">q", data, 28)[0] == 4096
    assert data[48:56] == bytes((10, 0, 0, 1, 0, 0, 0, 9))
    assert struct.unpack_from(">q", data, 56)[0] == 2
    assert struct.unpack_from(">i", data, 84)[0] == 4
    assert data[88:92] == b"body"
    assert data[92:] == b"\x05topic\x00\x04A\x01b\x02"


def message_with(**fields):
    found = {
        "topic": "topic",
        "queue": 3,
        "queue_offset": 7,
        "log_offset": 4096,
        "born_ms": 1,
        "store_ms": 2,
        "born_host": Host("10.0.0.1", 9),
        "store_host": Host("127.0.0.1", 9876),
        "body": b"x",
    }
    return StoredMessage(**(found | fields))
