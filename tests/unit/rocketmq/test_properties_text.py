import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.rocketmq.properties_text import TEXT_BYTES_MAX, decode, encode, from_json

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


AWKWARD = st.text(st.sampled_from('a:,"\\{}[] \x01\x02\x03é€'), max_size=4)


@given(st.lists(st.dictionaries(AWKWARD, AWKWARD, max_size=4), max_size=4))
def test_stored_json_becomes_the_texts_that_its_properties_have(each):
    texts = from_json([orjson.dumps(properties) for properties in each])
    assert texts is None or [text.decode() for text in texts] == list(map(encode, each))


def test_ordinary_json_needs_no_parsing():
    properties = {"UNIQ_KEY": "7F00", "KEYS": "a b", "note": "50 % : {x}, [é]"}
    assert from_json([orjson.dumps(properties)]) == [encode(properties).encode()]


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b'{"a": "b"}', b'{"a":1}', b'{"a":["b"]}', b'{"a":"\\u0001"}', b'{":":"b"}', b'{"a":""}'],
)
def test_other_json_is_left_to_the_parser(data):
    assert from_json([data]) in (None, [b":\x01b\x02"])
