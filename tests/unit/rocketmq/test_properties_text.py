import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.rocketmq.properties_text import TEXT_BYTES_MAX, decode, encode

PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)


@given(st.dictionaries(PLAIN, PLAIN, max_size=6))
def test_properties_come_back(properties):
    assert decode(encode(properties)) == properties


@given(st.text(max_size=60))
def test_any_text_is_read(text):
    assert decode(encode(decode(text))) == {
        name: value for name, value in decode(text).items() if "\x01" not in value
    }


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("A\x01b\x02", {"A": "b"}),
        ("A\x01b", {"A": "b"}),  # older clients leave out the last separator
        ("A\x01b\x02\x02C\x01d\x02", {"A": "b", "C": "d"}),
        ("A\x01\x02\x01b\x02plain\x02", {}),
        ("A\x01b\x01c\x02", {"A": "b\x01c"}),
        ("A\x01b\x02A\x01c\x02", {"A": "c"}),
    ],
)
def test_texts_are_read_as_rocketmq_reads_them(text, properties):
    assert decode(text) == properties


@pytest.mark.parametrize("properties", [{"": "b"}, {"A": ""}, {"A": "\x01"}, {"A": "\x02"}, {"A\x01": "b"}])
def test_what_the_text_cannot_hold_is_left_out(properties):
    assert encode(properties | {"B": "c"}) == "B\x01c\x02"


@pytest.mark.parametrize("letter", ["a", "ä", "€"])
def test_a_text_that_is_too_long_leaves_out_the_longest(letter):
    size_bytes = len(letter.encode())
    longest, short = letter * (24_000 // size_bytes), letter * (12_000 // size_bytes)
    text = encode({"LONGEST": longest, "SHORT": short, "LAST": "x"})
    assert decode(text) == {"SHORT": short, "LAST": "x"}
    whole = {"A": "a" * (TEXT_BYTES_MAX - 3)}
    assert decode(encode(whole)) == whole
    assert len(encode(whole).encode()) == TEXT_BYTES_MAX
    assert encode({"A": "a" * (TEXT_BYTES_MAX - 2)}) == ""
