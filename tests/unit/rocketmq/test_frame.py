import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from timerwheel.rocketmq.frame import (
    FIELDS_MAX,
    FRAME_BYTES_MAX,
    Form,
    Frame,
    FrameError,
    FrameReader,
    encode,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
FRAMES = st.builds(
    Frame,
    code=st.integers(0, 2**15 - 1),
    opaque=INT32,
    fields=st.dictionaries(TEXT, TEXT, max_size=5),
    body=st.binary(max_size=50),
    flag=st.integers(0, 3),
    remark=st.none() | TEXT.filter(bool),
    form=st.sampled_from([0, 1]),
)


@given(st.lists(FRAMES, max_size=4), st.integers(1, 64))
def test_frames_come_back_whole_however_their_bytes_arrive(frames, step):
    data = b"".join(map(encode, frames))
    reader, found = FrameReader(), []
    for at in range(0, len(data), step):
        found += reader.feed(data[at : at + step])
    assert [replace(one, size_bytes=0) for one in found] == frames
    assert sum(8 + one.size_bytes for one in found) == len(data)
    assert len(reader) == 0


@given(st.binary(max_size=200))
def test_bytes_that_are_no_frame_are_one_kind_of_error_or_wait_for_more(data):
    reader = FrameReader()
    try:
        reader.feed(data)
    except FrameError:
        return
    assert len(reader) <= len(data)


@given(FRAMES, st.data())
def test_a_frame_with_a_changed_byte_is_a_frame_or_one_kind_of_error(frame, data):
    bad = bytearray(encode(frame))
    at = data.draw(st.integers(0, len(bad) - 1))
    bad[at] = data.draw(st.integers(0, 255))
    try:
        FrameReader().feed(bytes(bad))
    except FrameError:
        return


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 3, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_length_out_of_bounds_is_refused_at_once(length):
    with pytest.raises(FrameError, match=f"a frame of {length} bytes"):
        FrameReader().feed(struct.pack(">i", length))


def test_a_length_alone_takes_no_memory():
    reader = FrameReader()
    assert reader.feed(struct.pack(">i", FRAME_BYTES_MAX)) == []
    assert len(reader) == 4


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (struct.pack(">I", 100), "a header of 100 bytes"),
        (struct.pack(">I", 7 << 24), "unknown form 7"),
        (struct.pack(">I", 1), "a header of 1 bytes"),
        (struct.pack(">I", 2) + b"{}", "JSON header is malformed"),
        (struct.pack(">I", 3) + b"[1]", "JSON header is malformed"),
        (struct.pack(">I", 35) + b'{"code":1,"opaque":1,"remark":"\x80\xff"}', "JSON header is malformed"),
        (struct.pack(">I", 1 << 24), "binary header is malformed"),
        (struct.pack(">I", 1 << 24 | 17) + struct.pack(">hBhiii", 1, 0, 0, 1, 0, -1), "a text of -1 bytes"),
        (struct.pack(">I", 1 << 24 | 17) + struct.pack(">hBhiii", 1, 0, 0, 1, 0, 2**30), "a text of"),
        (
            struct.pack(">I", 1 << 24 | 21) + struct.pack(">hBhiiii", 1, 0, 0, 1, 0, 0, -1),
            "-1 bytes of fields",
        ),
        (struct.pack(">I", 1 << 24 | 21) + struct.pack(">hBhiiii", 1, 0, 0, 1, 0, 0, 9), "9 bytes of fields"),
        (
            struct.pack(">I", 1 << 24 | 24) + struct.pack(">hBhiiiiHB", 1, 0, 0, 1, 0, 0, 3, 1, 65),
            "malformed|a text",
        ),
    ],
)
def test_every_length_field_is_checked(content, reason):
    with pytest.raises(FrameError, match=reason):
        FrameReader().feed(struct.pack(">i", len(content)) + content)


def test_a_header_as_the_java_client_writes_it():
    header = (
        b'{"code":310,"extFields":{"a":"group","m":"false","n":null},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    data = struct.pack(">iI", 4 + len(header) + 2, len(header)) + header + b"hi"
    size_bytes = len(header) + 2
    frame = Frame(310, 7, {"a": "group", "m": "false"}, b"hi", size_bytes=size_bytes)
    assert FrameReader().feed(data) == [frame]


@pytest.mark.parametrize("form", [0, 1])
def test_a_header_has_no_more_fields_than_the_most(form):
    fields = {str(number): "" for number in range(FIELDS_MAX)}
    assert len(FrameReader().feed(encode(Frame(1, 1, fields, form=form)))[0].fields) == FIELDS_MAX
    with pytest.raises(FrameError):
        FrameReader().feed(encode(Frame(1, 1, fields | {"more": ""}, form=form)))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b'"language":"CPP","version":399', ("CPP", 399)),
        (b'"language":"KLINGON","version":-1', ("KLINGON", -1)),
        (b'"flag":0', ("OTHER", 0)),
        (b'"language":7,"version":"479"', ("OTHER", 0)),
        (b'"language":null,"version":[]', ("OTHER", 0)),
        (b'"language":"GO","version":1.5', ("GO", 0)),
    ],
)
def test_a_json_header_says_who_wrote_it_and_anything_else_does_no_harm(written, read):
    header = b'{"code":34,"opaque":7,%b}' % written
    [frame] = FrameReader().feed(struct.pack(">iI", 4 + len(header), len(header)) + header)
    assert (frame.code, frame.language, frame.version) == (34, *read)


@pytest.mark.parametrize(
    ("number", "language"), [(0, "JAVA"), (1, "CPP"), (9, "GO"), (13, "NODE_JS"), (255, "OTHER")]
)
def test_a_binary_header_says_who_wrote_it(number, language):
    header = struct.pack(">hBhiiii", 34, number, 399, 7, 0, 0, 0)
    [frame] = FrameReader().feed(struct.pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header)
    assert (frame.language, frame.version) == (language, 399)


@pytest.mark.parametrize("form", Form)
def test_a_frame_beyond_the_limit_is_not_sent(form):
    with pytest.raises(FrameError, match="the protocol allows"):
        encode(Frame(0, 1, body=bytes(FRAME_BYTES_MAX), form=form))


def test_a_code_that_does_not_fit_a_binary_header_is_not_sent():
    with pytest.raises(FrameError, match="code 200050"):
        encode(Frame(200_050, 1, form=Form.BINARY))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0", "0"),
        ("-7", "-7"),
        ("1764123456789", "1764123456789"),
        ("true", "true"),
        ("1.5", "1.5"),
        ('"x"', "x"),
    ],
)
def test_a_field_that_is_no_text_is_read_as_its_json(written, read):
    header = b'{"code":10,"extFields":{"queueId":%b,"none":null},"flag":0,"opaque":5}' % written.encode()
    data = struct.pack(">iI", 4 + len(header), len(header)) + header
    [frame] = FrameReader().feed(data)
    assert (frame.code, frame.opaque, frame.fields) == (10, 5, {"queueId": read})


@pytest.mark.parametrize("written", ["[]", "{}", '["a"]', "9" * 5_000, "1e999"])
def test_a_field_that_is_neither_text_nor_number_is_an_error(written):
    header = b'{"code":10,"extFields":{"queueId":%b},"opaque":5}' % written.encode()
    with pytest.raises(FrameError, match="malformed"):
        FrameReader().feed(struct.pack(">iI", 4 + len(header), len(header)) + header)
