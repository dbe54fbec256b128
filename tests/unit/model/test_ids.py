import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import UnknownMessageError
from timerwheel.model.ids import Ids, root_of

SECRET = bytes(range(16))
ROOTS = st.integers(0, 2**48 - 1)
U32 = st.integers(0, 2**32 - 1)


@given(ROOTS, U32)
def test_root_comes_back_from_an_id(root, crc):
    assert root_of(Ids(SECRET).encode(root, crc)) == root


def test_id_is_24_lower_case_hex_digits_and_the_same_for_ever():
    assert Ids(SECRET).encode(64, 0xABC) == "0000000000000040" + "98ecfcbb"


@given(ROOTS, U32, U32)
def test_another_crc_or_another_log_gives_another_id(root, crc, other):
    ids = Ids(SECRET)
    assert (ids.encode(root, crc) == ids.encode(root, other)) == (crc == other)
    assert Ids(bytes(16)).encode(root, crc) != ids.encode(root, crc)


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
        root_of(text)
    assert repr(text) in str(caught.value)
