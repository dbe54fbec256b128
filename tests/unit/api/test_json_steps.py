"""Large JSON is looked at in steps, and what is found is what a decoder finds."""

import asyncio
import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from timerwheel.api.http import json_steps
from timerwheel.api.http.json_steps import STEP_BYTES, after_space, check_values, end_of_object
from timerwheel.api.http.problems import RequestError
from timerwheel.api.messages import intake
from timerwheel.api.messages.intake import Bounds
from timerwheel.settings import Settings

TEXTS = st.text(st.sampled_from('ab"\\{}[],: \n\u00e9\u20ac\x01'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
STEPS = (2, 3, 7, 64, STEP_BYTES)
BOUNDS = Bounds(bytes_max=1 << 20, values_max=1_000)


class Steps:
    """Counts breaths."""

    def __init__(self):
        self.count = 0

    async def breathe(self):
        self.count += 1


@pytest.fixture
def small_steps(monkeypatch):
    """Sets the sizes of a step, so that small texts take many."""

    def change(size):
        monkeypatch.setattr(json_steps, "STEP_BYTES", size)
        monkeypatch.setattr(json_steps, "DIRECT_BYTES", 4 * size)
        monkeypatch.setattr(intake, "DIRECT_BYTES", 4 * size)

    return change


def count_of(value):
    """Commas, colons and opening brackets."""
    if isinstance(value, dict):
        return 1 + max(len(value) - 1, 0) + len(value) + sum(map(count_of, value.values()))
    if isinstance(value, list):
        return 1 + max(len(value) - 1, 0) + sum(map(count_of, value))
    return 0


def run(awaitable):
    return asyncio.run(awaitable)


@pytest.mark.parametrize("size", STEPS)
def test_values_are_counted_and_ends_are_found_wherever_a_step_ends(small_steps, size):
    small_steps(size)

    @examples(max_examples=40, deadline=None)
    @given(st.dictionaries(TEXTS, VALUES, max_size=4), st.booleans())
    def check(value, ascii_only):
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
        steps = Steps()
        assert run(end_of_object(text + b',{"a":"}"}]', 0, 1 << 20, steps.breathe)) == len(text)
        count = count_of(value)
        run(check_values(text, count, steps.breathe))
        with pytest.raises(RequestError, match="more than"):
            run(check_values(text, count - 1, steps.breathe))

    check()


@pytest.mark.parametrize("size", STEPS[:-1])
def test_an_array_that_is_cut_is_the_array_that_was_sent(small_steps, size):
    small_steps(size)
    message = st.fixed_dictionaries(
        {"topic": TEXTS},
        optional={"body": TEXTS, "tags": TEXTS, "properties": st.dictionaries(TEXTS, TEXTS, max_size=3)},
    )

    @examples(max_examples=40, deadline=None)
    @given(st.lists(message, min_size=1, max_size=12), st.sampled_from([None, 1]))
    def check(messages, indent):
        messages = [one for one in messages if "TAGS" not in one.get("properties", {})]
        body = json.dumps(messages, indent=indent, ensure_ascii=False).encode()
        if len(body) <= 4 * size or not messages:
            return
        taken = run(intake.array(bytearray(body), 12, BOUNDS, Steps().breathe))
        assert taken.faults == []
        assert taken.good == [intake.single(json.dumps(one).encode()) for one in messages]
        assert taken.good_index == list(range(len(messages)))
        assert taken.texts is None

    check()


@pytest.mark.parametrize("form", ["array", "lines"])
@pytest.mark.parametrize("size", STEPS)
def test_the_text_of_each_message_is_there_if_it_is_wanted_also_of_a_bad_one(small_steps, size, form):
    small_steps(size)

    @examples(max_examples=40, deadline=None)
    @given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), min_size=1, max_size=12))
    def check(items):
        texts = [json.dumps(one, ensure_ascii=False).encode() for one in items]
        if form == "array":
            body, read = b"[%b]" % b" ,\n".join(texts), intake.array
        else:
            body, read = b"\n\n".join(texts), intake.lines
        taken = run(read(bytearray(body), 12, BOUNDS, Steps().breathe, with_texts=True))
        assert taken.texts is not None
        assert [bytes(one).strip() for one in taken.texts] == texts

    check()


def test_of_an_array_that_is_cut_each_bad_message_is_named_by_its_place(small_steps):
    small_steps(8)
    items = [
        {"topic": "t", "body": '"},{"' * (n % 3)} | ({"delay_ms": "x"} if n % 5 == 2 else {})
        for n in range(40)
    ]
    for body in (json.dumps(items).encode(), json.dumps(items, indent=2).encode()):
        taken = run(intake.array(body, 40, BOUNDS, Steps().breathe))
        assert [fault.index for fault in taken.faults] == [n for n in range(40) if n % 5 == 2]
        assert {fault.code for fault in taken.faults} == {"invalid_field"}
        assert taken.good_index == [n for n in range(40) if n % 5 != 2]


@pytest.mark.parametrize(
    "body",
    [
        b'[{"topic":"t"},{"topic":"t"}',
        b'[{"topic":"t"},{"topic":"t"},]',
        b'[{"topic":"t"} {"topic":"t"},{"topic":"t"}]',
        b'[{"topic":"t"},{"topic":"t"}]]',
        b'[{"topic":"t"},7,{"topic":"t"}]',
        b'[{"topic":"t"},{"topic":"t',
        b'[{"topic":"t"},{"topic":"t\\',
        b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        b'{"topic":"t"},{"topic":"t"},{"topic":"t"}]',
    ],
)
def test_what_is_no_array_of_objects_is_refused_as_a_whole(small_steps, body):
    small_steps(2)
    with pytest.raises(RequestError) as caught:
        run(intake.array(body, 40, BOUNDS, Steps().breathe))
    assert caught.value.code in {"malformed_json", "invalid_field"}


HOSTILE = {
    "properties": b'{"topic":"t","properties":{%b"z":""}}'
    % b"".join(b'"%d":"",' % n for n in range(300_000)),
    "keys": b'{"topic":"t","keys":[%b""]}' % (b'"",' * 1_000_000),
    "brackets": b'{"topic":"t","properties":%b' % (b"[" * 3_000_000),
    "objects": b'{"topic":"t","properties":{%b"z":{}}}' % (b'"a":{},' * 400_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_of_very_many_values_is_refused_within_a_few_steps(name):
    steps = Steps()
    bounds = Bounds.of(Settings(data=None))
    with pytest.raises(RequestError) as caught:
        run(intake.single_in_steps(bytearray(HOSTILE[name]), bounds, steps.breathe))
    assert caught.value.code == "too_many_values"
    assert steps.count <= 20


@pytest.mark.parametrize("filling", [b"a", b'\\"', b"\\\\", b"\\u0001", b" "])
def test_a_step_looks_at_no_more_than_its_bytes(filling):
    text = b'{"topic":"t","body":"%b"}' % (filling * (3_000_000 // len(filling)))
    for looked in (
        check_values(text, 1_000, (first := Steps()).breathe),
        end_of_object(text, 0, 1 << 30, (second := Steps()).breathe),
    ):
        run(looked)
    assert min(first.count, second.count) >= len(text) // STEP_BYTES - 1
    spaces = Steps()
    assert run(after_space(b" " * 3_000_000, 0, spaces.breathe)) == 3_000_000
    assert spaces.count >= 3_000_000 // STEP_BYTES


def test_every_message_that_the_settings_allow_fits_its_bounds():
    settings = Settings(data=None, body_bytes_max=1_000_000)
    bounds = Bounds.of(settings)
    names = [f"{n:02x}" for n in range(128)]
    messages = [
        {"topic": "t", "body": "\u0416" * 500_000},
        {"topic": "t", "body": "\U0001f600" * 250_000, "properties": dict.fromkeys(names, "\u0416" * 60)},
        {"topic": "t", "body": '"' * 1_000_000, "keys": ["k"] * 8_000},
    ]
    for message, ascii_only in itertools.product(messages, (True, False)):
        body = json.dumps(message, ensure_ascii=ascii_only).encode()
        assert run(intake.single_in_steps(body, bounds, Steps().breathe)).body == message["body"].encode()


def test_a_message_whose_json_is_too_large_for_any_message_is_refused_before_it_is_decoded():
    bounds = Bounds.of(Settings(data=None, body_bytes_max=1_000_000))
    body = msgspec.json.encode({"topic": "t", "body": "b" * bounds.bytes_max})
    steps = Steps()
    with pytest.raises(RequestError) as caught:
        run(intake.single_in_steps(body, bounds, steps.breathe))
    assert (caught.value.code, steps.count) == ("body_too_large", 0)
