from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.store.record import (
    FLAG_EARLY,
    FLAG_MORE,
    FLAGS_KEPT,
    FORMAT_VERSION,
    HEADER_DTYPE,
    HEADER_SIZE,
    NO_OFFSET,
    Header,
    Kind,
    decode,
    decode_header,
    encode,
    encode_alike,
    fault,
    replace,
    unit_of,
)

GOLDEN = Path(__file__).parents[1] / "golden"

U8 = st.integers(0, 2**8 - 1)
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
PARTS = {
    "kind": st.sampled_from(Kind),
    "topic": st.text(max_size=60).map(str.encode),
    "properties": st.binary(max_size=60),
    "body": st.binary(max_size=200),
}
FIELDS = {
    "store_ms": I64,
    "due_ms": I64,
    "enqueue_ms": I64,
    "flags": U8,
    "level": U8,
    "queue": U16,
    "rolls": U16,
    "root": U64,
    "root_crc": U32,
    "origin": U64,
    "prior_due_ms": I64,
    "prior_level": U16,
}


def golden(name: str) -> bytes:
    lines = (GOLDEN / name).read_text().splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


def sample(body: bytes = b"hello", **fields) -> bytes:
    given_fields = {"store_ms": 1, "due_ms": 2, "enqueue_ms": 1, **fields}
    return encode(Kind.TIMER, b"orders", b'{"A":"b"}', body, **given_fields)


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), min_size=1, max_size=5),
    st.sampled_from([b"t", b"orders"]),
    I64,
    U16,
)
def test_records_that_are_alike_are_those_of_encode_as_one_unit(pairs, topic, store_ms, queue):
    texts, bodies = [text for text, _ in pairs], [body for _, body in pairs]
    times = {"store_ms": store_ms, "due_ms": store_ms, "enqueue_ms": store_ms}
    apart = [encode(Kind.MESSAGE, topic, text, body, **times, queue=queue) for text, body in pairs]
    assert encode_alike(Kind.MESSAGE, topic, texts, bodies, store_ms, queue) == unit_of(apart)


@given(st.fixed_dictionaries(PARTS), st.fixed_dictionaries(FIELDS))
def test_every_field_comes_back_from_a_record(parts, fields):
    data = encode(**parts, **fields)
    assert fault(data) is None
    record = decode(data)
    assert record.topic.encode() == parts["topic"]
    assert (record.properties, record.body) == (parts["properties"], parts["body"])
    assert {name: getattr(record.header, name) for name in fields} == fields
    assert record.header.kind == parts["kind"]
    assert record.header.version == FORMAT_VERSION
    assert record.header.size == len(data)
    assert len(data) % 8 == 0
    used = HEADER_SIZE + sum(len(parts[name]) for name in ("topic", "properties", "body"))
    assert data[used:] == bytes(len(data) - used)
    assert len(data) - used < 8


@given(st.fixed_dictionaries(PARTS), st.fixed_dictionaries(FIELDS), st.integers(0, 40))
def test_a_record_is_decoded_at_any_position(parts, fields, position):
    data = encode(**parts, **fields)
    surrounded = b"\xa5" * position + data + b"\x5a" * 9
    assert fault(surrounded, position) is None
    assert fault(surrounded, position, position + len(data)) is None
    assert decode(surrounded, position) == decode(data)


@given(st.fixed_dictionaries(PARTS), st.fixed_dictionaries(FIELDS), st.data())
def test_replace_is_decode_and_encode_with_the_prior_values_kept(parts, fields, data):
    old = encode(**parts, **fields)
    header = decode_header(old)
    new = {
        name: data.draw(FIELDS[name], name)
        for name in ("origin", "root", "root_crc", "store_ms", "due_ms", "rolls", "level", "flags")
    }
    kind = data.draw(st.sampled_from(Kind))
    expected = encode(
        kind,
        parts["topic"],
        parts["properties"],
        parts["body"],
        **(new | {"flags": new["flags"] | fields["flags"] & FLAGS_KEPT}),
        queue=fields["queue"],
        enqueue_ms=fields["enqueue_ms"],
        prior_level=fields["level"],
        prior_due_ms=fields["due_ms"],
    )
    assert replace(old, header, kind=kind, **new) == expected


def test_every_flipped_byte_is_a_fault():
    record = sample(b"payload of a record, not a multiple of eight")
    following = sample(b"another")
    for at in range(len(record)):
        for change in (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF):
            damaged = bytearray(record + following)
            damaged[at] ^= change
            assert fault(bytes(damaged)) is not None, f"byte {at} xor {change:#x}"


def test_every_shortened_record_is_a_fault():
    record = sample()
    for size in range(len(record)):
        assert fault(record[:size]) is not None
        assert fault(record, 0, size) is not None


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"\x50\0\0\0"])
def test_filled_space_is_a_fault(filler):
    assert fault((filler * 200)[:200]) is not None


def test_unknown_format_version_is_a_fault_that_names_it(monkeypatch):
    monkeypatch.setattr("timerwheel.store.record.FORMAT_VERSION", FORMAT_VERSION + 1)
    newer = sample()
    monkeypatch.undo()
    assert fault(newer) == f"unknown format version {FORMAT_VERSION + 1}"


@pytest.mark.parametrize("flag", [FLAG_MORE, FLAG_EARLY])
def test_flag_byte_is_at_offset_ten(flag):
    assert sample(flags=flag)[10] == flag


def test_record_over_the_size_limit_is_refused(monkeypatch):
    monkeypatch.setattr("timerwheel.store.record.RECORD_SIZE_MAX", 128)
    assert len(sample(bytes(128 - HEADER_SIZE - 15))) == 128
    with pytest.raises(ValueError, match="a record of 136 bytes is over RECORD_SIZE_MAX = 128"):
        sample(bytes(129 - HEADER_SIZE - 15))


@given(st.fixed_dictionaries(PARTS), st.fixed_dictionaries(FIELDS))
def test_numpy_header_equals_the_struct_header(parts, fields):

    data = encode(**parts, **fields)
    assert HEADER_DTYPE.itemsize == HEADER_SIZE
    assert HEADER_DTYPE.names == Header._fields
    assert np.frombuffer(data[:HEADER_SIZE], HEADER_DTYPE)[0].item() == tuple(decode_header(data))


GOLDEN_RECORDS = {
    "timer": (
        Header(
            size=144,
            crc=0xF2826360,
            version=1,
            kind=Kind.TIMER,
            flags=0,
            level=3,
            queue=5,
            rolls=0,
            topic_len=6,
            prior_level=0,
            properties_len=22,
            body_len=30,
            root_crc=0,
            root=NO_OFFSET,
            origin=NO_OFFSET,
            store_ms=1_700_000_000_001,
            due_ms=1_700_000_010_000,
            enqueue_ms=1_700_000_000_000,
            prior_due_ms=0,
        ),
        "orders",
        b'{"KEYS":"k1","a":"b"}\n',
        "order 7 is due — close it".encode() + b"\0\xff\n",
    ),
    "message": (
        Header(
            size=144,
            crc=0xE3BAC781,
            version=1,
            kind=Kind.MESSAGE,
            flags=FLAG_EARLY,
            level=3,
            queue=5,
            rolls=2,
            topic_len=6,
            prior_level=3,
            properties_len=22,
            body_len=30,
            root_crc=0xF2826360,
            root=64,
            origin=4096,
            store_ms=1_700_000_009_999,
            due_ms=1_700_000_009_999,
            enqueue_ms=1_700_000_000_000,
            prior_due_ms=1_700_000_010_000,
        ),
        "orders",
        b'{"KEYS":"k1","a":"b"}\n',
        "order 7 is due — close it".encode() + b"\0\xff\n",
    ),
    "cancel": (
        Header(
            size=80 + 8,
            crc=0x5B02229E,
            version=1,
            kind=Kind.CANCEL,
            flags=FLAG_MORE,
            level=0,
            queue=65_535,
            rolls=0,
            topic_len=3,
            prior_level=18,
            properties_len=0,
            body_len=0,
            root_crc=0xFFFFFFFF,
            root=2**64 - 2,
            origin=2**63,
            store_ms=-1,
            due_ms=0,
            enqueue_ms=2**63 - 1,
            prior_due_ms=-(2**63),
        ),
        "a%b",
        b"",
        b"",
    ),
}


@pytest.mark.parametrize("name", GOLDEN_RECORDS)
def test_golden_record_of_format_1_reads_field_by_field_and_is_written_alike(name):
    header, topic, properties, body = GOLDEN_RECORDS[name]
    data = golden(f"record-v1-{name}.hex")
    assert fault(data) is None
    found = decode(data)
    assert found.header._asdict() == header._asdict()
    assert (found.topic, found.properties, found.body) == (topic, properties, body)
    fields = {field: getattr(header, field) for field in FIELDS}
    assert encode(header.kind, topic.encode(), properties, body, **fields) == data


def test_golden_message_is_the_golden_timer_replaced():
    timer, message = golden("record-v1-timer.hex"), golden("record-v1-message.hex")
    wanted = decode_header(message)
    fields = {
        name: getattr(wanted, name)
        for name in ("kind", "origin", "root", "root_crc", "store_ms", "due_ms", "rolls", "level", "flags")
    }
    assert replace(timer, decode_header(timer), **fields) == message
