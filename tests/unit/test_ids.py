import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import UnknownMessageError
from timerwheel.ids import decode_id, encode_id

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


@given(U64, U32)
def test_root_and_crc_come_back_from_an_id(root, crc):
    assert decode_id(encode_id(root, crc)) == (root, crc)


@given(st.text("0123456789abcdef", min_size=24, max_size=24))
def test_every_id_is_written_in_one_way_only(text):
    assert encode_id(*decode_id(text)) == text


def test_id_is_24_lower_case_hex_digits():
    assert encode_id(64, 0xABC) == "000000000000004000000abc"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 23,
        "0" * 25,
        "0" * 24 + "\n",
        "\n" + "0" * 24,
        " " + "0" * 23,
        "A" * 24,
        "g" * 24,
        "0x" + "0" * 22,
        "+" + "0" * 23,
        "-" + "0" * 23,
        "0_" * 12,
        "\u0660" * 24,
        "\uff10" * 24,
        "0" * 23 + "\0",
        "\ud800" * 24,
    ],
)
def test_text_that_no_id_has_is_an_unknown_message(text):
    with pytest.raises(UnknownMessageError) as caught:
        decode_id(text)
    assert repr(text) in str(caught.value)


@given(st.text())
def test_any_other_text_is_an_unknown_message_and_no_other_error(text):
    try:
        root, crc = decode_id(text)
    except UnknownMessageError:
        return
    assert encode_id(root, crc) == text
