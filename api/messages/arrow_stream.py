"""The Arrow stream of a bulk send: what it may hold, and its columns, once nothing in it can do harm.

    bytes -> messages of the stream: counted, and their sizes added up -> schema: known columns, right types
          -> record batches: validated -> one array for each column

1. Nothing is decoded before its size is known: the rows, the batches, and the bytes of each buffer, unpacked,
   are in the metadata of the stream's messages, which are read first. Buffers that share bytes count each.
2. Only flat types that are named here are decoded. Every array is validated in full, so that its offsets and
   indexes lie inside its buffers and its text is UTF-8.
3. A dictionary may stand for more bytes than it has, and one that record batches share is worked through with
   each. What the columns stand for together may not have more bytes than a request may have.
4. A key or property may have next to no bytes, but costs memory and time, so each counts `ENTRY_BYTES` more,
   and a row has no more of them than a message in JSON may have values.

Belongs to the thread that decodes; pyarrow holds no interpreter lock for most of it.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from timerwheel.api.http.problems import RequestError

BATCHES_MAX = 1_000
"""Most record batches, and most dictionaries, of a stream; each costs about as much as a hundred rows."""
MESSAGES_MAX = {
    "schema": (1, "schema"),
    "dictionary": (BATCHES_MAX, "dictionaries"),
    "record batch": (BATCHES_MAX, "record batches"),
}
"""What a stream consists of: how many messages of each kind it has at most, and what they are."""
ENTRY_BYTES = 32
"""What a key of a list, or a property, counts besides its text; about what it takes while it is read."""
STRUCT_FIELDS_MAX = 1_000
"""Most fields of a struct of properties; a map has no such limit."""
INDEX_PREFIX = "__index_level_"  # how pandas calls the column of a DataFrame's index

_MS_PER = {"s": 1_000, "ms": 1}
_UNITS_IN_MS = {"us": 1_000, "ns": 1_000_000}
_INT64_MAX = 2**63 - 1
_UNPACKED = -1  # the length of a buffer that is left as it was in a stream that compresses the others


class Limits(NamedTuple):
    """What a stream may hold: rows, and bytes once it is unpacked; and keys and properties of each row."""

    rows_max: int
    bytes_max: int
    entries_max: int


def unpacked_bytes(pa: Any, body: Any, limits: Limits) -> int:  # noqa: ANN401 - pyarrow, a buffer
    """Return how many bytes the stream has once its buffers are unpacked, from the metadata of its messages.

    A dictionary counts again with each further record batch, and with what is added to it.

    Raises `RequestError` malformed_arrow, too_many_messages or request_too_large.
    """
    source = pa.BufferReader(body)
    size_bytes, rows, counts = 0, 0, Counter[str]()
    dictionaries = _Dictionaries()
    with refusing(pa):
        reader = pa.ipc.MessageReader.open_stream(source)
        for message in iter(_next_of(reader), None):
            _count(message.type, counts)
            if message.type == "schema":
                continue
            batch = _batch_of(message)
            size_bytes += batch.size_bytes
            if message.type == "record batch":
                rows += batch.rows
                size_bytes += dictionaries.again_bytes()
            else:
                dictionaries.add(_dictionary_of(message), batch.size_bytes)
            if rows > limits.rows_max:
                raise RequestError(
                    "too_many_messages", f"more than messages_per_request_max = {limits.rows_max} messages"
                )
            _check_size(size_bytes, limits)
        if source.tell() < source.size():
            raise _malformed(f"{source.size() - source.tell()} bytes follow the end of the stream")
    return size_bytes


def _count(kind: str, counts: Counter[str]) -> None:
    """Count a message of this kind; each takes time, whatever it holds."""
    counts[kind] += 1
    if kind not in MESSAGES_MAX:
        raise _malformed(f"a {kind}, which a stream of record batches does not have")
    most, what = MESSAGES_MAX[kind]
    if counts[kind] > most:
        raise _malformed(f"more than {most} {what}; combine them into fewer")


def _check_size(size_bytes: int, limits: Limits) -> None:
    if size_bytes > limits.bytes_max:
        raise RequestError(
            "request_too_large",
            f"the stream stands for more than request_size_max = {limits.bytes_max} bytes when unpacked",
        )


class _Batch(NamedTuple):
    rows: int
    size_bytes: int


class _Dictionary(NamedTuple):
    id: int
    is_delta: bool


class _Dictionaries:
    """The dictionaries that are in force at a place of the stream, by their sizes."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._total_bytes = 0
        self._new_bytes = 0  # since the last record batch

    def add(self, one: _Dictionary, size_bytes: int) -> None:
        """Take a new dictionary, or an addition to one, which pyarrow copies together with it."""
        before = self._sizes.get(one.id, 0)
        self._sizes[one.id] = size_bytes + (before if one.is_delta else 0)
        self._total_bytes += self._sizes[one.id] - before
        self._new_bytes += size_bytes

    def again_bytes(self) -> int:
        """Return what a record batch costs besides its own bytes and those of new dictionaries."""
        again_bytes, self._new_bytes = max(self._total_bytes - self._new_bytes, 0), 0
        return again_bytes


class refusing:  # noqa: N801 - reads as a statement
    """Turn whatever a malformed stream makes pyarrow raise into `RequestError` malformed_arrow."""

    def __init__(self, pa: Any) -> None:  # noqa: ANN401 - pyarrow
        self._errors = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, NotImplementedError)

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise `RequestError` for an error of pyarrow's or of reading metadata."""
        if isinstance(error, (*self._errors, struct.error, OverflowError)):
            raise _malformed(str(error) or type(error).__name__) from None


def _malformed(detail: str) -> RequestError:
    return RequestError("malformed_arrow", detail)


def _next_of(reader: Any) -> Callable[[], Any]:  # noqa: ANN401 - a MessageReader
    def following() -> Any:  # noqa: ANN401 - a Message
        try:
            return reader.read_next_message()
        except StopIteration:
            return None

    return following


# ---------------------------------------------------------------------- metadata: flatbuffers


class _FlatTable:
    """A table of a flatbuffer, as far as Arrow's Message.fbs needs it; struct.error if it is cut."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields_at = at - self._number("<i", at)
        self._fields_end = self._fields_at + self._number("<H", self._fields_at)

    @classmethod
    def root(cls, data: bytes) -> "_FlatTable":
        """Return the table of a whole flatbuffer."""
        return cls(data, struct.unpack_from("<I", data)[0])

    def _number(self, form: str, at: int) -> int:
        if at < 0:
            raise ValueError("the metadata of a message points before its beginning")
        return int(struct.unpack_from(form, self._data, at)[0])

    def _place(self, field: int) -> int | None:
        entry = self._fields_at + 4 + 2 * field
        if entry + 2 > self._fields_end:
            return None
        return (self._at + offset) if (offset := self._number("<H", entry)) else None

    def flag(self, field: int) -> bool:
        """Return a Boolean, False if it is left out."""
        place = self._place(field)
        return place is not None and self._number("<B", place) != 0

    def int64(self, field: int) -> int:
        """Return a number, 0 if it is left out."""
        place = self._place(field)
        return 0 if place is None else self._number("<q", place)

    def table(self, field: int) -> "_FlatTable | None":
        """Return a table, None if it is left out."""
        place = self._place(field)
        return None if place is None else _FlatTable(self._data, place + self._number("<I", place))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """Yield the structs of a vector, each two numbers of 64 bits."""
        place = self._place(field)
        if place is None:
            return
        at = place + self._number("<I", place)
        for number in range(self._number("<I", at)):
            yield struct.unpack_from("<qq", self._data, at + 4 + 16 * number)


_HEADER = 2  # a field of Message,
_ID, _DATA, _IS_DELTA = 0, 1, 2  # of DictionaryBatch,
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3  # and of RecordBatch


def _dictionary_of(message: Any) -> _Dictionary:  # noqa: ANN401 - a Message
    header = _FlatTable.root(message.metadata.to_pybytes()).table(_HEADER)
    assert header is not None, "_batch_of would have raised"
    return _Dictionary(header.int64(_ID), header.flag(_IS_DELTA))


def _batch_of(message: Any) -> _Batch:  # noqa: ANN401 - a Message
    """Return the rows of a record batch or dictionary, and its bytes once they are unpacked."""
    header = _FlatTable.root(message.metadata.to_pybytes()).table(_HEADER)
    batch = header.table(_DATA) if header is not None and message.type == "dictionary" else header
    if batch is None:
        raise _malformed(f"a {message.type} lacks its header")
    rows = batch.int64(_LENGTH)
    if rows < 0:
        raise _malformed(f"a {message.type} of {rows} rows")
    body = memoryview(b"" if message.body is None else message.body).cast("B")
    is_packed = batch.table(_COMPRESSION) is not None
    size_bytes = 0
    for at, packed_bytes in batch.pairs(_BUFFERS):
        if packed_bytes < 0:
            raise _malformed(f"a buffer of {packed_bytes} bytes")
        if not is_packed:
            size_bytes += packed_bytes
        elif packed_bytes:
            length: int = struct.unpack_from("<q", body, at)[0] if at >= 0 else _UNPACKED - 1
            if length < _UNPACKED:
                raise _malformed(f"a compressed buffer of {length} bytes")
            size_bytes += packed_bytes if length == _UNPACKED else length
    return _Batch(rows, size_bytes if is_packed else max(size_bytes, len(body)))


# ---------------------------------------------------------------------- columns


def _is_text(types: Any, kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_texts(types: Any, kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    """Whether it is text, plain or in a dictionary."""
    return _is_text(types, kind) or (types.is_dictionary(kind) and _is_text(types, kind.value_type))


def _is_body(types: Any, kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return _is_text(types, kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _is_number(types: Any, kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    return types.is_signed_integer(kind) or (types.is_unsigned_integer(kind) and not types.is_uint64(kind))


def _is_time(types: Any, kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    return _is_texts(types, kind) or (types.is_timestamp(kind) and kind.tz is not None)


def _is_length(types: Any, kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    return _is_texts(types, kind) or types.is_duration(kind)


def _is_list(types: Any, kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _is_keys(types: Any, kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    return _is_texts(types, kind) or (_is_list(types, kind) and _is_texts(types, kind.value_type))


def _is_properties(types: Any, kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    if types.is_map(kind):
        return _is_texts(types, kind.key_type) and _is_texts(types, kind.item_type)
    if not types.is_struct(kind):
        return False
    if kind.num_fields > STRUCT_FIELDS_MAX:
        return False
    fields = list(kind)
    is_text = all(_is_texts(types, field.type) or types.is_null(field.type) for field in fields)
    return is_text and len({field.name for field in fields}) == len(fields)


_TEXT = "string, large_string, or a dictionary of them"
_NUMBER = "int64, or an integer type within it"
COLUMNS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "topic": (_is_texts, _TEXT),
    "body": (_is_body, "string, binary, large_string, large_binary, or a dictionary of them"),
    "properties": (
        _is_properties,
        f"map<string, string>, or a struct of strings with up to {STRUCT_FIELDS_MAX} distinct names",
    ),
    "tags": (_is_texts, _TEXT),
    "keys": (_is_keys, "string, or list<string>"),
    "dedup_key": (_is_texts, _TEXT),
    "after_recall": (_is_texts, _TEXT),
    "delay_ms": (_is_number, _NUMBER),
    "delay": (_is_length, "string, or duration"),
    "deliver_at_ms": (_is_number, _NUMBER),
    "deliver_at": (_is_time, "timestamp with a zone, or string"),
    "delay_level": (_is_number, _NUMBER),
    "ttl_ms": (_is_number, _NUMBER),
    "ttl": (_is_length, "string, or duration"),
    "max_attempts": (_is_number, _NUMBER),
}
"""Each column that a send may have: whether a type will do, and the types in words."""


def check_schema(pa: Any, schema: Any) -> None:  # noqa: ANN401 - pyarrow, a Schema
    """Raise `RequestError` invalid_field unless every column is known, once, and of a type that will do."""
    seen: set[str] = set()
    for field in schema:
        if field.name not in COLUMNS:
            raise _invalid(_unknown(field.name))
        if field.name in seen:
            raise _invalid(f"column {field.name} is there twice")
        seen.add(field.name)
        suits, types = COLUMNS[field.name]
        if not suits(pa.types, field.type) and not (pa.types.is_null(field.type) and field.name != "topic"):
            raise _invalid(f"column {field.name}: type {_short(str(field.type))}; send {types}")
    if "topic" not in seen:
        raise _invalid("column topic is missing")


def _invalid(detail: str) -> RequestError:
    return RequestError("invalid_field", detail)


def _unknown(name: str) -> str:
    if name.startswith(INDEX_PREFIX):
        return f"unknown column {name}, the index of a DataFrame; convert it with preserve_index=False"
    if name == "body_base64":
        return "unknown column body_base64: the column body may be binary"
    return f"unknown column {_short(repr(name))}; columns are {', '.join(COLUMNS)}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."  # noqa: PLR2004 - enough to recognize it


def columns_of(pa: Any, body: Any, limits: Limits) -> tuple[dict[str, Any], int]:  # noqa: ANN401 - as above
    """Return the columns of a stream whose `unpacked_bytes` were found to fit, by name, each one array.

    Returns also how many bytes they stand for: of text, each value of a dictionary as often as it is used,
    and `ENTRY_BYTES` for each key and property. Times and lengths of time that came as such are numbers then,
    of milliseconds. Raises `RequestError` malformed_arrow, invalid_field, request_too_large or
    too_many_values.
    """
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with refusing(pa), pa.ipc.open_stream(pa.BufferReader(body), options=options) as reader:
        check_schema(pa, reader.schema)
        batches = []
        for batch in reader:
            batch.validate(full=True)
            batches.append(batch)
        table = pa.Table.from_batches(batches, reader.schema)
        chunks = [chunk for column in table.columns for chunk in column.chunks]
        size_bytes = sum(ENTRY_BYTES * _entries(pa, chunk) for chunk in chunks)
        _check_size(size_bytes, limits)  # before the texts are looked at, which takes memory for each
        size_bytes += sum(_leaf_bytes(pa, chunk) for chunk in chunks)
        _check_size(size_bytes, limits)
        found = {name: _in_one(pa, table.column(name)) for name in table.column_names}
        for name, array in found.items():
            _check_entries(pa, name, array, limits)
        return {name: _in_ms(pa, array) for name, array in found.items()}, size_bytes


def _in_one(pa: Any, column: Any) -> Any:  # noqa: ANN401 - pyarrow, arrays
    """Return a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return pa.concat_arrays(column.unify_dictionaries().chunks)


def _entries(pa: Any, array: Any) -> int:  # noqa: ANN401 - pyarrow, an array
    """Return how many keys or properties an array has, also those that no row has."""
    types, kind = pa.types, array.type
    if types.is_struct(kind):
        return sum(len(child) - child.null_count for child in map(array.field, range(kind.num_fields)))
    if types.is_map(kind):
        return len(array.keys)
    return len(array.values) if _is_list(types, kind) else 0


def entries_of_rows(pa: Any, array: Any) -> np.ndarray:  # noqa: ANN401 - pyarrow, an array
    """Return how many keys or properties each row has; for a struct, how many it may have."""
    types, kind = pa.types, array.type
    if _is_list(types, kind) or types.is_map(kind):
        lengths: np.ndarray = np.diff(array.offsets.to_numpy(zero_copy_only=False)).astype(np.int64)
        return lengths
    return np.full(len(array), kind.num_fields if types.is_struct(kind) else 0, np.int64)


def _check_entries(pa: Any, name: str, array: Any, limits: Limits) -> None:  # noqa: ANN401 - pyarrow, an array
    """Raise `RequestError` too_many_values if a row has too many keys or properties."""
    entries = entries_of_rows(pa, array)
    if len(entries) and entries.max() > limits.entries_max:
        row = int(entries.argmax())
        raise RequestError(
            "too_many_values",
            f"column {name}: row {row} has {entries[row]} values, more than {limits.entries_max}",
        )


def _leaf_bytes(pa: Any, array: Any) -> int:  # noqa: ANN401 - pyarrow, an array
    """Return how many bytes of text an array stands for."""
    types, kind = pa.types, array.type
    if types.is_struct(kind):
        return sum(_leaf_bytes(pa, array.field(place)) for place in range(kind.num_fields))
    if types.is_map(kind):
        return _leaf_bytes(pa, array.keys) + _leaf_bytes(pa, array.items)
    if _is_list(types, kind):
        return _leaf_bytes(pa, array.values)
    if types.is_dictionary(kind):
        lengths = pa.compute.binary_length(array.dictionary)
        return int(pa.compute.sum(lengths.take(array.indices)).as_py() or 0)
    if _is_body(types, kind):
        return int(pa.compute.sum(pa.compute.binary_length(array)).as_py() or 0)
    return 0


def _in_ms(pa: Any, array: Any) -> Any:  # noqa: ANN401 - pyarrow, an array
    """Return numbers, times and lengths of time as int64, in ms, rounded up; other arrays as they are."""
    kind, types = array.type, pa.types
    if types.is_integer(kind):
        return array.cast(pa.int64())
    if not (types.is_timestamp(kind) or types.is_duration(kind)):
        return array
    missing = array.is_null().to_numpy(zero_copy_only=False)
    numbers = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if (per_ms := _UNITS_IN_MS.get(kind.unit)) is not None:
        numbers = numbers // per_ms + (numbers % per_ms > 0)  # rounded up, so that nothing is early
    else:
        times = _MS_PER[kind.unit]
        numbers = np.clip(numbers, -(_INT64_MAX // times), _INT64_MAX // times) * times
    return pa.array(numbers, pa.int64(), mask=missing)
