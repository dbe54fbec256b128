"""From the columns of an Arrow stream to messages: checked as columns, exact when they are wrong.

    columns -> topics, bodies, due times: as arrays | everything else: distinct combinations of values
            -> each combination read as a JSON message's fields are (`intake.outgoing`) -> `MessageColumns`

What is wrong with a row is found out by reading that row as a JSON message, so it is refused with the code
that the JSON call gives. Sends with the column `after_recall`, which are rare, are read that way as a whole.

`read` belongs to the thread that decodes; the rest is done on the event loop, in steps.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from timerwheel.api.http.json_steps import Breathe
from timerwheel.api.http.problems import RequestError
from timerwheel.api.messages import intake
from timerwheel.api.messages.arrow_stream import Limits, columns_of, entries_of_rows
from timerwheel.api.messages.intake import Intake
from timerwheel.errors import AdmissionError, Fault
from timerwheel.model.admission import DELAY_PROPERTIES
from timerwheel.model.columns import AFTER, AT, NOW, MessageColumns
from timerwheel.model.messages import Outgoing
from timerwheel.model.properties import TAGS
from timerwheel.wire.delays import Delays
from timerwheel.wire.messages import NewMessage

ROWS_PER_BREATH = 500
ENTRIES_PER_BREATH = 10_000
"""Most keys and properties of rows that are read one by one without a pause; one row may have more."""

_NUMBERS = {"delay_ms": AFTER, "delay": AFTER, "deliver_at_ms": AT, "deliver_at": AT}
_WHEN = Delays.__struct_fields__
# Their combinations are few.
_SHARED = (
    *("delay", "deliver_at", "delay_level", "tags", "keys", "properties"),
    *("ttl_ms", "ttl", "max_attempts"),
)
_PLAIN = {"properties", "tags"}
_COMBINATIONS_MAX = 1 << 31

# Which column a code is about; those that are not here are about one of several.
_COLUMN_OF = {
    **dict.fromkeys(("illegal_topic", "system_topic", "too_many_topics"), "topic"),
    **dict.fromkeys(("illegal_key", "reserved_key", "key_reused", "key_recalled"), "dedup_key"),
    **dict.fromkeys(
        ("too_many_properties", "properties_too_large", "reserved_property", "illegal_property"), "properties"
    ),
    "transactional": "properties",
    "conflicting_tags": "tags",
    "conflicting_keys": "keys",
    "body_too_large": "body",
}


class Rows(NamedTuple):
    """The rows of a stream: as a table, and as columns unless they have the column `after_recall`.

    `size_bytes` is what they stand for. `combinations` are the fields of each set of properties, still to be
    read. `wrong` (bool) says which rows are wrong whatever those say, and `timed` whose due time is a number.
    `entries` says how many keys and properties each row may have, which it costs to read it by itself.
    """

    table: Any
    size_bytes: int
    columns: MessageColumns | None
    combinations: list[dict[str, Any]]
    wrong: np.ndarray
    timed: np.ndarray
    entries: np.ndarray


class Taken(NamedTuple):
    """The good messages of a stream, as columns, with their rows, and what is wrong with the others."""

    good: MessageColumns
    good_index: np.ndarray
    faults: list[Fault]


def read(pa: Any, body: Any, limits: Limits) -> Rows:  # noqa: ANN401 - pyarrow, a buffer
    """Return the rows of a stream; raises what `arrow_stream.columns_of` does."""
    arrays, size_bytes = columns_of(pa, body, limits)
    count = len(arrays["topic"])
    arrays = {name: array for name, array in arrays.items() if name == "topic" or array.null_count < count}
    table = pa.table(arrays)
    entries = np.sum([entries_of_rows(pa, array) for array in arrays.values()], axis=0)
    if "after_recall" in arrays:
        nothing = np.zeros(count, bool)
        return Rows(table, size_bytes, None, [], nothing, nothing, entries)
    topic, topics = _texts(pa, arrays["topic"])
    how, ms, given = _times(pa, arrays, count)
    place, combinations = _combinations(pa, arrays, count)
    bodies, begins, ends = _bodies(pa, arrays.get("body"), count)
    wrong = (topic < 0) | (given > 1)
    columns = MessageColumns(
        topics,
        np.maximum(topic, 0),
        bodies,
        begins,
        ends,
        [],
        place,
        how.astype(np.uint8),
        ms,
        arrays["dedup_key"].to_pylist() if "dedup_key" in arrays else None,
    )
    return Rows(table, size_bytes, columns, combinations, wrong, given > 0, entries)


def _is_number(pa: Any, array: Any) -> bool:  # noqa: ANN401 - pyarrow, an array
    return bool(pa.types.is_integer(array.type))


def _times(pa: Any, arrays: dict[str, Any], count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # noqa: ANN401
    """Return how each row says when, the number, and how many columns say so by a number."""
    how, ms, given = np.full(count, NOW), np.zeros(count, np.int64), np.zeros(count, np.int64)
    for name, kind in _NUMBERS.items():
        array = arrays.get(name)
        if array is None or not _is_number(pa, array):
            continue
        there = array.is_valid().to_numpy(zero_copy_only=False)
        values = array.fill_null(0).to_numpy(zero_copy_only=False)
        how, ms = np.where(there, kind, how), np.where(there, values, ms)
        given += there
    return how, ms, given


def _texts(pa: Any, array: Any) -> tuple[np.ndarray, list[Any]]:  # noqa: ANN401 - pyarrow, an array
    """Return the distinct values of a column that are in use, and the place of each row's, -1 for null."""
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    indices = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    values = encoded.dictionary
    if values.null_count:
        null = values.is_null().to_numpy(zero_copy_only=False)
        indices = np.where((indices >= 0) & null[indices], -1, indices)
    used, places = np.unique(indices, return_inverse=True)
    missing = int(len(used) > 0 and used[0] < 0)
    return places - missing, values.take(pa.array(used[missing:])).to_pylist()


def _lists(pa: Any, array: Any, flat: list[Any]) -> tuple[np.ndarray, list[Any]]:  # noqa: ANN401 - as above
    """Return the same of a column of lists or maps; `flat` are the arrays of what they hold.

    A value is a list of tuples then, one text or None from each of the arrays.
    """
    parts = [_texts(pa, one) for one in flat]
    codes = np.stack([places for places, _ in parts], axis=1)
    offsets = array.offsets.to_numpy(zero_copy_only=False).tolist()
    valid = array.is_valid().to_numpy(zero_copy_only=False).tolist()
    known: dict[bytes, int] = {}
    first: list[tuple[int, int]] = []  # where the first of each distinct value begins and ends
    place: list[int] = []
    for begin, end, is_there in zip(offsets, offsets[1:], valid, strict=False):
        if not is_there:
            place.append(-1)
            continue
        number = known.setdefault(codes[begin:end].tobytes(), len(known))
        if number == len(first):
            first.append((begin, end))
        place.append(number)
    # The place of a null, -1, is that of the None behind the texts.
    columns = [list(map([*texts, None].__getitem__, places.tolist())) for places, texts in parts]
    values = [list(zip(*[column[begin:end] for column in columns], strict=True)) for begin, end in first]
    return np.array(place, np.int64), values


def _distinct(pa: Any, name: str, array: Any) -> Iterator[tuple[str, str | None, np.ndarray, list[Any]]]:  # noqa: ANN401
    """Yield for a column, or each field of a struct, the field it sets, its name, places and values."""
    types, kind = pa.types, array.type
    if types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            if child.null_count < len(child):
                yield name, field.name, *_texts(pa, child)
    elif types.is_map(kind):
        yield name, None, *_lists(pa, array, [array.keys, array.items])
    elif types.is_list(kind) or types.is_large_list(kind):
        place, values = _lists(pa, array, [array.values])
        yield name, None, place, [[text for (text,) in one] for one in values]
    else:
        yield name, None, *_texts(pa, array)


def _combinations(
    pa: Any,  # noqa: ANN401 - pyarrow
    arrays: dict[str, Any],
    count: int,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return the distinct combinations of what rows share, and the place of each row's."""
    shared = [
        one
        for name in _SHARED
        if name in arrays and (name not in _NUMBERS or not _is_number(pa, arrays[name]))
        for one in _distinct(pa, name, arrays[name])
    ]
    code, most = np.zeros(count, np.int64), 1
    for _, _, place, values in shared:
        if most * (len(values) + 1) > _COMBINATIONS_MAX:
            found, code = np.unique(code, return_inverse=True)
            most = len(found)
        code, most = code * (len(values) + 1) + place + 1, most * (len(values) + 1)
    _, first, places = np.unique(code, return_index=True, return_inverse=True)
    combinations: list[dict[str, Any]] = [{} for _ in first]
    for field, name, place, values in shared:
        for fields, at in zip(combinations, place[first].tolist(), strict=True):
            if at < 0:
                continue
            if name is not None:
                fields.setdefault(field, {})[name] = values[at]
            else:
                fields[field] = values[at]
    return places, combinations


def _bodies(pa: Any, array: Any, count: int) -> tuple[memoryview, np.ndarray, np.ndarray]:  # noqa: ANN401
    """Return the bytes of all bodies, and where each begins and ends in them."""
    if array is None:
        nothing = np.zeros(count, np.int64)
        return memoryview(b""), nothing, nothing
    is_shared = pa.types.is_dictionary(array.type)
    values = array.dictionary if is_shared else array
    _, offsets_buffer, data = values.buffers()
    is_large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    offsets = np.zeros(1, np.int64)
    if offsets_buffer is not None and offsets_buffer.size:
        offsets = np.frombuffer(offsets_buffer, np.int64 if is_large else np.int32).astype(np.int64)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    begins, ends = offsets[:-1], offsets[1:]
    if values.null_count:
        ends = np.where(values.is_null().to_numpy(zero_copy_only=False), begins, ends)
    if is_shared:
        indices = array.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        # One more, empty, for rows without a body.
        begins, ends = np.append(begins, 0)[indices], np.append(ends, 0)[indices]
    return memoryview(data if data is not None else b"").cast("B"), begins, ends


# ---------------------------------------------------------------------- on the event loop


async def take(rows: Rows, breathe: Breathe) -> Taken:
    """Return the messages of a stream without `after_recall`."""
    assert rows.columns is not None
    sets: list[dict[str, str]] = []
    refused: list[bool] = []
    for number, fields in enumerate(rows.combinations, start=1):
        try:
            sets.append(_set_of(fields))
            refused.append(False)
        except (RequestError, AdmissionError):
            sets.append({})
            refused.append(True)
        if number % ROWS_PER_BREATH == 0:
            await breathe()
    columns = msgspec.structs.replace(rows.columns, sets=sets)
    wrong = rows.wrong | np.array(refused, bool)[columns.properties]
    says_when = np.array([not DELAY_PROPERTIES.isdisjoint(one) for one in sets], bool)
    wrong |= rows.timed & says_when[columns.properties]
    if not wrong.any():
        return Taken(columns, np.arange(len(columns)), [])
    found = await _each(rows, np.flatnonzero(wrong), breathe)
    assert not found.good
    good = np.flatnonzero(~wrong)
    return Taken(columns.take(good), good, found.faults)


async def take_each(rows: Rows, breathe: Breathe) -> Intake:
    """Return all messages of a stream one by one, as those of a JSON array are."""
    return await _each(rows, np.arange(rows.table.num_rows), breathe)


async def _each(rows: Rows, places: np.ndarray, breathe: Breathe) -> Intake:
    found = Intake([], [], [])
    for part in _parts(places, rows.entries):
        for place, row in zip(part.tolist(), rows.table.take(part).to_pylist(), strict=True):
            try:
                found.good.append(_outgoing(row))
                found.good_index.append(place)
            except (RequestError, AdmissionError) as error:
                found.faults.append(Fault(place, error.code, str(error)))
        await breathe()
    return found


def _parts(places: np.ndarray, entries: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the places of rows in parts, each of which is read without a pause."""
    upto = np.cumsum(entries[places])
    begin, done = 0, 0
    while begin < len(places):
        end = int(np.searchsorted(upto, done + ENTRIES_PER_BREATH, side="right"))
        end = min(max(end, begin + 1), begin + ROWS_PER_BREATH, len(places))
        yield places[begin:end]
        begin, done = end, int(upto[end - 1])


def named(table: Any, faults: Iterable[Fault]) -> list[Fault]:  # noqa: ANN401 - a Table
    """Return the faults with the columns that they are about, as far as each is about one."""
    there = {name: table.column(name).is_valid().to_numpy() for name in _WHEN if name in table.column_names}

    def column_of(fault: Fault) -> str | None:
        if fault.code not in {"illegal_delay", "delay_too_long"}:
            return _COLUMN_OF.get(fault.code)
        return next((name for name, is_valid in there.items() if is_valid[fault.index]), "properties")

    return [
        fault
        if (column := column_of(fault)) is None or fault.detail.startswith("column ")
        else Fault(fault.index, fault.code, f"column {column}: {fault.detail}")
        for fault in faults
    ]


def _set_of(fields: dict[str, Any]) -> dict[str, str]:
    """Return the properties that fields stand for; raises `RequestError` or `AdmissionError`."""
    if _PLAIN.issuperset(fields):  # faster than the way below, since each row may have others
        properties = _properties(fields.get("properties", {}))
        tags = fields.get("tags")
        if tags is None:
            return properties
        if TAGS not in properties:
            properties[TAGS] = tags
            return properties
    return intake.outgoing(_new_message({"topic": "", **fields})).properties


def _outgoing(row: dict[str, Any]) -> Outgoing:
    """Return the message of a row; raises `RequestError` or `AdmissionError`."""
    if row.get("topic") is None:
        raise RequestError("invalid_field", "column topic: the value is null")
    return intake.outgoing(_new_message(row))


def _new_message(row: dict[str, Any]) -> NewMessage:
    """Return a row as the JSON call has it; raises `RequestError` for a null inside of a value."""
    fields = {name: value for name, value in row.items() if value is not None}
    if isinstance(fields.get("body"), bytes):
        fields["body_base64"] = fields.pop("body")
    if "properties" in fields:
        fields["properties"] = _properties(fields["properties"])
    if isinstance(keys := fields.get("keys"), list) and None in keys:
        raise RequestError("invalid_field", "column keys: a list contains null")
    properties = fields.get("properties", {})
    when = [name for name in _WHEN if name in fields] + sorted(DELAY_PROPERTIES & properties.keys())
    for name, in_ms in (("delay", "delay_ms"), ("deliver_at", "deliver_at_ms")):
        if isinstance(value := fields.get(name), int):
            if len(when) == 1:
                fields[in_ms] = fields.pop(name)
            else:
                fields[name] = str(value)  # beside another one it is refused by its name
    if isinstance(fields.get("ttl"), int) and "ttl_ms" not in fields:
        fields["ttl_ms"] = fields.pop("ttl")
    if isinstance(fields.get("ttl"), int):
        fields["ttl"] = str(fields["ttl"])  # beside the other one it is refused by its name
    return NewMessage(**fields)


def _properties(value: dict[str, str | None] | list[tuple[str, str | None]]) -> dict[str, str]:
    if isinstance(value, dict):  # of a struct: null stands for a field that this message does not have
        return {name: text for name, text in value.items() if text is not None}
    for name, text in value:
        if text is None:
            raise RequestError("invalid_field", f"column properties: the value of {name!r} is null")
    return dict(value)  # type: ignore[arg-type]
