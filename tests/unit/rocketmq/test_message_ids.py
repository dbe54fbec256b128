import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.rocketmq.message_ids import HANDLE_CHARACTERS_MAX, HandleError, RecallHandle, offset_id
from timerwheel.rocketmq.stored_message import Host

NOT_OURS = "not a recall handle of this service"
WORD = st.text("abcXYZ019%_-", min_size=1, max_size=30)


@given(WORD, WORD, st.integers(0, 2**63), WORD, WORD)
def test_a_recall_handle_comes_back(topic, broker, due_ms, key, message_id):
    handle = RecallHandle(topic, broker, due_ms, key, message_id)
    assert RecallHandle.decode(handle.encode()) == handle
    assert RecallHandle.decode(handle.encode().rstrip("=")) == handle


@given(st.text(max_size=60))
def test_a_text_that_is_no_handle_is_refused(text):
    with pytest.raises(HandleError, match=NOT_OURS):
        RecallHandle.decode(text)


@pytest.mark.parametrize("text", ["garbage", "ä", "AAAA=", "_" * 8, "\ud800"])
def test_the_refusal_says_nothing_of_codecs(text):
    with pytest.raises(HandleError) as refused:
        RecallHandle.decode(text)
    assert str(refused.value) == f"this is {NOT_OURS}; use the one that the send returned"


@pytest.mark.parametrize(
    "parts",
    ["v1 t b 1 key", "v2 t b 1 key id", "v1 t b soon key id", "v1 t b -1 key id", "v1 t b 1 key id more"],
)
def test_a_handle_of_another_make_is_refused(parts):
    with pytest.raises(HandleError, match=NOT_OURS):
        RecallHandle.decode(base64.urlsafe_b64encode(parts.encode()).decode())


def test_a_long_handle_is_refused_unread():
    with pytest.raises(HandleError, match=f"{HANDLE_CHARACTERS_MAX + 1} characters"):
        RecallHandle.decode("A" * (HANDLE_CHARACTERS_MAX + 1))


def test_an_offset_id_is_address_port_and_offset():
    assert offset_id(Host("127.0.0.1", 9876), 4096) == "7F000001" + "00002694" + "0000000000001000"
    assert len(offset_id(Host("::1", 9876), 4096)) == 56
