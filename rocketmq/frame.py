"""Frames of the remoting protocol: requests and responses on one connection, in either direction. Pure.

Numbers are big-endian:

    4   length of what follows, at most FRAME_BYTES_MAX
    1   how the header is written: 0 JSON, 1 binary
    3   length of the header
    ..  header
    ..  body

A binary header has code 2, language 1, version 2, opaque 4, flag 4, a remark with 4 bytes of length, and 4
bytes of length before all fields; a field is a name with 2 bytes of length and a value with 4. Source:
RemotingCommand and RocketMQSerializable of RocketMQ 5.3.

1. A length that a peer announces reserves no memory: the reader holds only bytes that have arrived.
2. Whatever is wrong with a frame is a FrameError; the connection cannot go on after it.
"""

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Annotated, Final, cast

import msgspec
import orjson

from timerwheel.errors import TimerwheelError
from timerwheel.rocketmq.codes import FLAG_RESPONSE, LANGUAGES, OTHER_LANGUAGE, VERSION

FRAME_BYTES_MAX: Final = 16 << 20
HEADER_BYTES_MAX: Final = 256 << 10
"""A header with the longest properties, each character escaped, has fewer."""
FIELDS_MAX: Final = 512
"""Most fields of a header. No request has a tenth of them, and many short ones take 25 times their bytes."""
OWN_LANGUAGE: Final = "JAVA"
"""What the service says that it is written in: each client knows this one."""

_START = struct.Struct(">iI")
_LENGTH = struct.Struct(">i")
_NAME = struct.Struct(">H")
_FIXED = struct.Struct(">hBhii")
_LENGTH_SIZE = _LENGTH.size
_HEADER_LENGTH_MASK = (1 << 24) - 1
_LANGUAGE_NUMBER = LANGUAGES.index(OWN_LANGUAGE)
_CODE_MAX = (1 << 15) - 1

_JSON_HEADER = (
    b'{"code":%d,"extFields":%b,"flag":%d,"language":"'
    + OWN_LANGUAGE.encode()
    + b'","opaque":%d,"remark":%b,'
    b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
)

_FEW = msgspec.Meta(max_length=FIELDS_MAX)
Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]


class Form(IntEnum):
    """How a header is written. A response is written as its request was."""

    JSON = 0
    BINARY = 1


class FrameError(TimerwheelError):
    """The bytes are not a frame."""

    code = "illegal_frame"


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A request or a response; `opaque` is the number by which a response names its request.

    `language` and `version` are those of the peer that wrote it; what is encoded has those of the service.
    """

    code: int
    opaque: int
    fields: dict[str, str] = {}
    body: bytes = b""
    flag: int = 0
    remark: str | None = None
    form: int = 0  # a Form, as a plain number because looking up a member costs as much as the rest
    language: str = OWN_LANGUAGE
    version: int = VERSION
    size_bytes: int = 0  # of header and body, as they arrived

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return bool(self.flag & FLAG_RESPONSE)


class _JsonHeader(msgspec.Struct, frozen=True, gc=False):
    code: Int32
    opaque: Int32
    flag: Int32 = 0
    extFields: Annotated[dict[str, str | None], _FEW] | None = None  # noqa: N815 - the protocol's name
    remark: str | None = None
    language: str = OTHER_LANGUAGE
    version: int = 0


class _LooseJsonHeader(msgspec.Struct, frozen=True, gc=False):
    code: Int32
    opaque: Int32
    flag: Int32 = 0
    extFields: Annotated[dict[str, str | bool | int | float | None], _FEW] | None = None  # noqa: N815 - as above
    remark: str | None = None
    language: object = OTHER_LANGUAGE
    version: object = 0


_decode_json = msgspec.json.Decoder(_JsonHeader).decode
_decode_loose_json = msgspec.json.Decoder(_LooseJsonHeader).decode


class FrameReader:
    """Splits the bytes of a connection into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = 0  # bytes of the incomplete frame in `_rest`

    def __len__(self) -> int:
        """The number of bytes that wait for the rest of their frame."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now; FrameError."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        frames: list[Frame] = []
        at, available = 0, len(data)
        self._wanted = _LENGTH_SIZE
        while available - at >= _LENGTH_SIZE:
            (length,) = _LENGTH.unpack_from(data, at)
            if not _LENGTH_SIZE <= length <= FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes; the protocol allows 4 to {FRAME_BYTES_MAX}")
            end = at + _LENGTH_SIZE + length
            if end > available:
                self._wanted = end - at
                break
            frames.append(_decode(data, at, end))
            at = end
        self._rest += data[at:]
        return frames


def _decode(data: bytes, at: int, end: int) -> Frame:
    _, word = _START.unpack_from(data, at)
    begin = at + _START.size
    size_bytes = word & _HEADER_LENGTH_MASK
    body_at = begin + size_bytes
    if body_at > end:
        raise FrameError(f"a header of {size_bytes} bytes in a frame of {end - at} bytes")
    if size_bytes > HEADER_BYTES_MAX:
        raise FrameError(f"a header of {size_bytes} bytes; at most {HEADER_BYTES_MAX} are allowed")
    header, body = data[begin:body_at], data[body_at:end]
    form = word >> 24
    if form == Form.JSON:
        return _from_json(header, body)
    if form == Form.BINARY:
        return _from_binary(header, body)
    raise FrameError(f"a header of the unknown form {form}; use 0 (JSON) or 1 (binary)")


def _from_json(header: bytes, body: bytes) -> Frame:
    try:
        found = _decode_json(header)
    except (ValueError, RecursionError):
        return _from_loose_json(header, body)
    fields = found.extFields or {}
    if None in fields.values():
        fields = {name: value for name, value in fields.items() if value is not None}
    return Frame(
        found.code,
        found.opaque,
        cast("dict[str, str]", fields),
        body,
        found.flag,
        found.remark,
        0,
        found.language,
        found.version,
        len(header) + len(body),
    )


def _from_loose_json(header: bytes, body: bytes) -> Frame:
    """Return a frame whose fields may be numbers, as the C++ client writes them; RocketMQ accepts both."""
    try:
        found = _decode_loose_json(header)
        given = found.extFields or {}
        fields = {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in given.items()
            if value is not None
        }
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the JSON header is malformed: {error}") from None
    language = found.language if isinstance(found.language, str) else OTHER_LANGUAGE
    version = found.version if isinstance(found.version, int) else 0
    size_bytes = len(header) + len(body)
    return Frame(
        found.code, found.opaque, fields, body, found.flag, found.remark, 0, language, version, size_bytes
    )


def _from_binary(header: bytes, body: bytes) -> Frame:
    try:
        code, number, version, opaque, flag = _FIXED.unpack_from(header)
        remark, at = _text(header, _FIXED.size, _LENGTH)
        (size,) = _LENGTH.unpack_from(header, at)
        at += _LENGTH_SIZE
        if size < 0 or at + size > len(header):
            raise FrameError(f"{size} bytes of fields in a header of {len(header)} bytes")
        end = at + size
        fields: dict[str, str] = {}
        while at < end:
            name, at = _text(header, at, _NAME)
            fields[name], at = _text(header, at, _LENGTH)
            if len(fields) > FIELDS_MAX:
                raise FrameError(f"a header of more than {FIELDS_MAX} fields")
        if at != end:
            raise FrameError("the fields of the header do not end where it says")
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"the binary header is malformed: {error}") from None
    language = LANGUAGES[number] if number < len(LANGUAGES) else OTHER_LANGUAGE
    size_bytes = len(header) + len(body)
    return Frame(code, opaque, fields, body, flag, remark or None, 1, language, version, size_bytes)


def _text(data: bytes, at: int, length: struct.Struct) -> tuple[str, int]:
    (size,) = length.unpack_from(data, at)
    begin = at + length.size
    end = begin + size
    if size < 0 or end > len(data):
        raise FrameError(f"a text of {size} bytes in a header of {len(data)} bytes")
    return data[begin:end].decode(), end


def encode(frame: Frame) -> bytes:
    """Encode a frame; FrameError if it is larger than the protocol allows."""
    header = _json(frame) if frame.form == Form.JSON else _binary(frame)
    length = _LENGTH_SIZE + len(header) + len(frame.body)
    if length > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {length} bytes; the protocol allows {FRAME_BYTES_MAX}")
    return b"".join((_START.pack(length, frame.form << 24 | len(header)), header, frame.body))


def _json(frame: Frame) -> bytes:
    remark = b"null" if frame.remark is None else orjson.dumps(frame.remark)
    return _JSON_HEADER % (frame.code, orjson.dumps(frame.fields), frame.flag, frame.opaque, remark)


def _binary(frame: Frame) -> bytes:
    if frame.code > _CODE_MAX:
        raise FrameError(f"code {frame.code} does not fit a binary header; use JSON")
    remark = (frame.remark or "").encode()
    fields = _binary_fields(frame.fields)
    fixed = _FIXED.pack(frame.code, _LANGUAGE_NUMBER, VERSION, frame.opaque, frame.flag)
    return b"".join((fixed, _LENGTH.pack(len(remark)), remark, _LENGTH.pack(len(fields)), fields))


def _binary_fields(fields: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, value in fields.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        parts += (_NAME.pack(len(name_bytes)), name_bytes, _LENGTH.pack(len(value_bytes)), value_bytes)
    return b"".join(parts)


def encode_all(frames: Iterable[Frame]) -> bytes:
    """Encode frames, one behind the other."""
    return b"".join(map(encode, frames))
