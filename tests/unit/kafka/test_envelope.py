from hypothesis import given
from hypothesis import strategies as st

from timerwheel.kafka.envelope import Envelope
from timerwheel.rocketmq import translation
from timerwheel.rocketmq.stored_message import Host

HEADERS = st.lists(st.tuples(st.text(), st.none() | st.binary()))


@given(st.none() | st.binary(), HEADERS, st.booleans())
def test_key_headers_and_null_come_back(key, headers, is_null):
    envelope = Envelope(key, headers, is_null)
    text = envelope.encode()
    assert Envelope.decode(text) == envelope
    assert text.isascii()


def test_the_text_is_as_documented():
    assert Envelope(None, [], is_null=True).encode() == "kafka - -"
    assert Envelope(b"", [("a", b"1"), ("a", None)]).encode() == "kafka  + YQ==:MQ== YQ==:-"


def test_each_protocol_leaves_the_others_envelope_alone():
    of_rocketmq = translation.Envelope(1, Host("127.0.0.1", 1)).encode()
    assert Envelope.decode(of_rocketmq) is None
    assert Envelope.decode("") is None
    assert translation.Envelope.of(Envelope(b"k", []).encode()) is None
    assert translation.Envelope.of("") is None
    assert translation.Envelope.of(of_rocketmq) == translation.Envelope(1, Host("127.0.0.1", 1))
