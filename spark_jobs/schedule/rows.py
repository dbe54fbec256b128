"""Turns the rows of a table into messages: the columns of `POST /v1/messages`. Runs in executors.

Each message has a deduplication key, so that a row which is sent again, by another attempt of a task or
another run of the job, is stored once. The key is that of the row's key column, or else a digest of the
message: equal rows are one message then.
"""

import base64
import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from timerwheel.spark_jobs.errors import JobError

DIGEST_BYTES = 16
DIGITS_MIN, DIGITS_MAX = 12, 18
"""A text with more digits is not taken for epoch milliseconds, as they have 64 bits; nor one with fewer."""
EPOCH_MS_MIN = 10 ** (DIGITS_MIN - 1)
"""In 1973: a lower number but for 0 is epoch seconds or something else, as on the command line."""
_LOCAL_TIME = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?$"
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
BODY = "body"
_VALUE_SHOWN = 60
_ROW_SHOWN = 300


class RowMapping(NamedTuple):
    """Which columns of a table become what; names of columns but for `topic` and `zone`.

    `topic` is the topic of all rows; without it `topic_column` has that of each. `due` has times with a zone,
    text such as 2027-01-15T08:00:00Z, or epoch milliseconds; `zone` is that of times without one. Without
    `body`, the column `body` is the body, and without that the whole row as JSON. `properties` are columns:
    one of a map, or each a property under its own name.
    """

    due: str
    topic: str | None = None
    topic_column: str | None = None
    body: str | None = None
    key: str | None = None
    tags: str | None = None
    keys: str | None = None
    properties: Sequence[str] = ()
    zone: str | None = None

    def source_of(self, field: str) -> str | None:
        """The column of the table that a field of the messages comes from; None if none in particular."""
        sources = {
            "deliver_at": self.due,
            "deliver_at_ms": self.due,
            "topic": self.topic_column,
            "body": self.body,
            "dedup_key": self.key,
            "tags": self.tags,
            "keys": self.keys,
        }
        return sources.get(field)

    @property
    def columns(self) -> list[str]:
        """The columns that it names."""
        single = (self.due, self.topic_column, self.body, self.key, self.tags, self.keys)
        return [name for name in (*single, *self.properties) if name is not None]

    def check(self, names: Sequence[str]) -> None:
        """Raises JobError if the table has not the columns, or the mapping contradicts itself."""
        if (self.topic is None) == (self.topic_column is None):
            raise JobError("give the topic of all rows, or the column that has the topic of each; not both")
        again = [name for name, count in Counter(names).items() if count > 1]
        if again:
            raise JobError(f"the table has several columns {again[0]!r}: give each a name of its own")
        missing = [name for name in self.columns if name not in names]
        if missing:
            raise JobError(f"the table has no column {missing[0]!r}; it has {', '.join(names)}")
        twice = [name for name, count in Counter(self.properties).items() if count > 1]
        if twice:
            raise JobError(f"the column {twice[0]!r} is given twice as a property")
        if self.zone is not None:
            _with_zone(pa.array([0], pa.timestamp("s")), self)


class Sorted(NamedTuple):
    """The rows of a batch that have a time, in parts that a request can have, and the others with why not."""

    parts: list[pa.RecordBatch]
    without_time: pa.RecordBatch
    reasons: list[str]


def sort_out(batch: pa.RecordBatch, mapping: RowMapping) -> Sorted:
    """Take out the rows whose due times do not exist once in the zone, and give the others to `alike`.

    The clocks skip such a time or the calendar has no such day, or it exists twice.
    """
    batch = pa.record_batch([_plain(column) for column in batch.columns], batch.schema.names)
    column = batch[mapping.due]
    if mapping.zone is None or not (_is_text(column.type) or _is_naive(column.type)):
        return Sorted(alike(batch, mapping), batch.slice(0, 0), [])
    reasons = _faults(column, mapping)
    if not reasons:
        return Sorted(alike(batch, mapping), batch.slice(0, 0), [])
    good = [at not in reasons for at in range(batch.num_rows)]
    kept = batch.filter(pa.array(good))
    left = batch.take(pa.array(sorted(reasons), pa.int64()))
    return Sorted(
        alike(kept, mapping) if kept.num_rows else [], left, [reasons[at] for at in sorted(reasons)]
    )


def _faults(column: pa.Array, mapping: RowMapping) -> dict[int, str]:
    """Why rows have no time in the zone, by their place; cheap if all have one."""
    zone = mapping.zone
    assert zone is not None
    if _is_text(column.type):
        local = pc.fill_null(_are_local(column, zone), fill_value=False)
        places = pc.indices_nonzero(pc.and_(local, pc.invert(_are_numbers(column))))
    else:
        places = pc.indices_nonzero(pc.is_valid(column))
    if _fault(column.take(places), mapping.due, zone) is None:
        return {}
    found = {}
    for at in places.to_pylist():
        one = column.slice(at, 1)
        reason = _fault(one, mapping.due, zone)
        if reason is not None:
            found[at] = f"column {mapping.due}: {one.cast(pa.string())[0].as_py()!r} {reason}"
    return found


def _fault(column: pa.Array, name: str, zone: str) -> str | None:
    """What is wrong with the first of these times that is none in the zone, None if all are."""
    try:
        times = column if pa.types.is_timestamp(column.type) else column.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return "is not a time of the calendar"
    try:
        pc.assume_timezone(times, zone, nonexistent="earliest")
    except pa.ArrowInvalid as error:
        if "ambiguous" not in str(error):
            raise JobError(f"column {name!r}: {error}") from None
        return f"occurs twice in {zone}, as the clocks are set back: write it with its offset from UTC"
    try:
        pc.assume_timezone(times, zone, ambiguous="earliest")
    except pa.ArrowInvalid:
        return f"does not exist in {zone}: the clocks skip it"
    return None


def _is_naive(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None))


def row_text(row: pa.RecordBatch) -> str:
    """One row as text by which somebody finds it in the table: its columns as JSON, cut if they are long."""
    values = {name: _short(row[at]) for at, name in enumerate(row.schema.names)}
    text = orjson.dumps(values).decode()
    return text if len(text) <= _ROW_SHOWN else text[: _ROW_SHOWN - 1] + "…"


def _short(column: pa.Array) -> int | str | None:
    try:
        value = column[0].as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        return "(not shown)"  # such as a time after the year 9999
    if value is None or isinstance(value, bool | int):
        return value if value is None or abs(value) < 1 << 63 else str(value)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _VALUE_SHOWN else text[: _VALUE_SHOWN - 1] + "…"


def messages_of(batch: pa.RecordBatch, mapping: RowMapping) -> pa.RecordBatch:
    """The messages of rows, one each, of a batch that `alike` gave.

    Raises JobError for what no message can be made of.
    """
    columns = {
        "topic": _topics(batch, mapping),
        "body": _bodies(batch, mapping),
        **_dues(batch[mapping.due], mapping),
    }
    if mapping.tags is not None:
        columns["tags"] = _text(batch[mapping.tags], mapping.tags)
    if mapping.keys is not None:
        columns["keys"] = _keys(batch[mapping.keys], mapping.keys)
    if mapping.properties:
        columns["properties"] = _properties(batch, mapping.properties)
    key = _digests(columns) if mapping.key is None else _text(batch[mapping.key], mapping.key)
    if mapping.key is not None and key.null_count:
        raise JobError(f"column {mapping.key!r} has rows without a value, and so no key")
    return pa.record_batch(columns | {"dedup_key": key})


def alike(batch: pa.RecordBatch, mapping: RowMapping) -> list[pa.RecordBatch]:
    """The batch in parts whose due times have one form each, as a request wants them.

    Texts may be epoch milliseconds, times, or with the zone of the mapping times without one. What is neither
    is sent with the times, and refused by itself.
    """
    batch = pa.record_batch([_plain(column) for column in batch.columns], batch.schema.names)
    column = batch[mapping.due]
    if not _is_text(column.type):
        return [batch]
    is_number = _are_numbers(column)
    is_local = pc.and_(_are_local(column, mapping.zone), pc.invert(is_number))
    masks = (is_number, is_local, pc.invert(pc.or_(is_number, is_local)))
    parts = [batch.filter(pc.fill_null(mask, fill_value=mask is masks[-1])) for mask in masks]
    return [part for part in parts if part.num_rows]


def _plain(column: pa.Array) -> pa.Array:
    """The column without an encoding that only some functions of Arrow know, and with zones as UTC.

    A row as JSON would have the zone of Spark's session, and another key with another session.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = _in_utc(column.type)
    return column if kind == column.type else column.cast(kind)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), _in_utc(kind.item_type))
    return list_of(kind, _in_utc(kind.value_type)) if is_list(kind) else kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is that of lists, of any length or of one."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def list_of(kind: pa.DataType, value: pa.DataType | pa.Field) -> pa.DataType:
    """The type of lists like those of `kind`, with other values."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)


def slices(batch: pa.RecordBatch, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch in parts of at most so many rows, and about so many bytes unless one row is larger."""
    if not batch.num_rows:
        return
    rows = max(1, min(rows_max, int(bytes_max * batch.num_rows / max(batch.nbytes, 1))))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def _topics(batch: pa.RecordBatch, mapping: RowMapping) -> pa.Array:
    if mapping.topic_column is not None:
        return _text(batch[mapping.topic_column], mapping.topic_column)
    indices = pa.array(bytes(batch.num_rows), pa.int8())
    return pa.DictionaryArray.from_arrays(indices, [mapping.topic])


def _bodies(batch: pa.RecordBatch, mapping: RowMapping) -> pa.Array:
    name = mapping.body or (BODY if BODY in batch.schema.names else None)
    if name is None:
        return pa.array(_rows_as_json(batch), pa.binary())
    column = batch[name]
    if pa.types.is_null(column.type) or (_is_text(column.type) and not _is_utf8(column)):
        return column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    if _is_binary(column.type) or _is_text(column.type):
        return column
    raise JobError(f"column {name!r} is {column.type}; a body is text or bytes: cast it")


def _rows_as_json(batch: pa.RecordBatch) -> list[bytes]:
    try:
        return [orjson.dumps(row, default=_json_value) for row in batch.to_pylist()]
    except (ValueError, OverflowError, TypeError, pa.ArrowException) as error:
        raise JobError(
            f"rows cannot be written as JSON, as bodies: {error}; name the column of bodies"
        ) from None


def _json_value(value: object) -> str:
    """What JSON has no form for: bytes as base64, as the API does; decimals and the like as text.

    Columns of nanoseconds have pandas' types, which orjson does not know. Their values have the text that
    they have in columns of other units: the key of a row must not depend on the unit.
    """
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        nanoseconds = getattr(value, "nanoseconds", 0)
        length = str(dt.timedelta(value.days, value.seconds, value.microseconds))
        return f"{length} and {nanoseconds} ns" if nanoseconds else length
    return str(value)


def _dues(column: pa.Array, mapping: RowMapping) -> dict[str, pa.Array]:
    name, kind = mapping.due, column.type
    if column.null_count:
        raise JobError(f"column {name!r} has {column.null_count:,} rows without a due time: filter them out")
    is_local = _is_text(kind) and pc.all(_are_local(column, mapping.zone)).as_py()
    if is_local or pa.types.is_date(kind):
        column = _checked(lambda: column.cast(pa.timestamp("us")), name)
    if pa.types.is_timestamp(column.type):
        return {"deliver_at": _with_zone(column, mapping)}
    is_number = pa.types.is_integer(kind) or pa.types.is_decimal(kind)  # as databases have long numbers
    if is_number or (_is_text(kind) and pc.all(_are_numbers(column)).as_py()):  # text: of a CSV file
        return {"deliver_at_ms": _epoch_ms(column, name)}
    if _is_text(kind):
        return {"deliver_at": _text(column, name)}
    raise JobError(f"column {name!r} is {kind}; a due time is a timestamp, text, or epoch milliseconds")


def _epoch_ms(column: pa.Array, name: str) -> pa.Array:
    """Epoch milliseconds. Raises JobError for numbers that are none, but for 0.

    Epoch seconds and days read as such would all be in January 1970, and delivered at once.
    """
    found = _checked(lambda: column.cast(pa.int64()), name)
    strange = found.filter(pc.and_(pc.less(found, EPOCH_MS_MIN), pc.not_equal(found, 0)))
    if len(strange):
        raise JobError(
            f"column {name!r} has {len(strange):,} rows such as {strange[0].as_py()}, which are not epoch "
            "milliseconds, as these have 13 digits now: multiply seconds by 1,000, and filter out rows "
            "without a time"
        )
    return found


def _with_zone(column: pa.Array, mapping: RowMapping) -> pa.Array:
    if column.type.tz is not None:
        return column
    if mapping.zone is None:
        raise JobError(
            f"the times in column {mapping.due!r} have no zone: say which, as in --zone Europe/Berlin"
        )
    return _checked(lambda: pc.assume_timezone(column, mapping.zone), mapping.due)


def _are_local(column: pa.Array, zone: str | None) -> pa.Array:
    """Which texts are times without a zone, if there is one to give them."""
    return pc.and_(pc.match_substring_regex(column, _LOCAL_TIME), zone is not None)


def _are_numbers(column: pa.Array) -> pa.Array:
    size = pc.binary_length(column)
    has_size = pc.and_(pc.greater_equal(size, DIGITS_MIN), pc.less_equal(size, DIGITS_MAX))
    return pc.or_(pc.and_(pc.ascii_is_decimal(column), has_size), pc.equal(column, "0"))


def _properties(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    first = batch[names[0]]
    if len(names) == 1 and pa.types.is_map(first.type):
        return _in_utf8(first, names[0])
    return pa.StructArray.from_arrays([_text(batch[name], name) for name in names], names=list(names))


def _keys(column: pa.Array, name: str) -> pa.Array:
    """Keys as the service takes them: text with spaces between, or lists."""
    kind = column.type
    if not is_list(kind):
        return _text(column, name)
    return _in_utf8(_checked(lambda: column.cast(pa.list_(pa.string())), name), name)


def _text(column: pa.Array, name: str) -> pa.Array:
    if _is_text(column.type):
        return _in_utf8(column, name)
    text = _checked(lambda: column.cast(pa.string()), name)
    if not (pa.types.is_timestamp(column.type) and column.type.unit == "ns"):
        return text
    # As text of microseconds where it is that time, so that keys do not depend on the unit.
    shorter = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return pc.if_else(pc.equal(shorter.cast(column.type), column), shorter.cast(pa.string()), text)


def _checked(convert: Callable[[], pa.Array], name: str) -> pa.Array:
    try:
        return convert()
    except (pa.ArrowException, ValueError) as error:
        raise JobError(f"column {name!r}: {error}") from None


def _is_utf8(column: pa.Array) -> bool:
    """Whether this text is UTF-8, which nothing checks that reads a Parquet file."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _in_utf8(column: pa.Array, name: str) -> pa.Array:
    if not _is_utf8(column):
        raise JobError(f"column {name!r} has text that is not UTF-8; only bodies may be such bytes")
    return column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _digests(columns: dict[str, pa.Array]) -> pa.Array:
    """A digest of each message: BLAKE2b of its fields in MessagePack, whatever types its columns have."""
    values = [_values(name, column) for name, column in columns.items()]
    encode, digest = msgspec.msgpack.Encoder(order="sorted").encode, hashlib.blake2b
    names = sorted(columns)
    order = [list(columns).index(name) for name in names]
    rows = zip(*(values[place] for place in order), strict=True)
    texts = [digest(encode((names, row)), digest_size=DIGEST_BYTES).hexdigest() for row in rows]
    return pa.array(texts, pa.string())


def _time(value: int, unit: str) -> int | str:
    """One value for one time in any unit: microseconds, or a text where they do not fit into 64 bits."""
    if unit == "ns" and value % 1_000:
        return f"{value} ns"
    found = value // 1_000 if unit == "ns" else value * _MICROSECONDS[unit]
    return found if -(1 << 63) <= found < 1 << 63 else str(found)


def _values(name: str, column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return [_time(value, column.type.unit) for value in column.cast(pa.int64()).to_pylist()]
    found: list[Any] = column.to_pylist()
    if name == "properties" and pa.types.is_map(column.type):
        return [None if one is None else dict(one) for one in found]
    if name == BODY:
        return [one.encode() if isinstance(one, str) else one for one in found]
    return found
