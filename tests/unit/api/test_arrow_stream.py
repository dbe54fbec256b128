"""What an Arrow stream says of its size is read before anything in it is decoded."""

import itertools
import struct

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
import pytest

from tests.harness.arrow_rows import stream_of, table_of
from timerwheel.api.http.problems import RequestError
from timerwheel.api.messages.arrow_stream import (
    _BUFFERS,
    _HEADER,
    BATCHES_MAX,
    ENTRY_BYTES,
    Limits,
    _FlatTable,
    columns_of,
    unpacked_bytes,
)

LIMITS = Limits(10_000, 1 << 20, 100)
ROWS = [{"topic": "orders", "body": "x" * 1_000, "properties": {"a": "b"}, "tags": "t"}] * 100


def size_of(stream: bytes, limits: Limits = LIMITS) -> int:
    return unpacked_bytes(pa, pa.py_buffer(stream), limits)


def code_of(stream: bytes, limits: Limits = LIMITS) -> str:
    with pytest.raises(RequestError) as caught:
        size_of(stream, limits)
    return caught.value.code


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("rows_per_batch", [None, 7])
def test_the_unpacked_size_of_a_stream_is_about_that_of_the_stream_without_compression(
    compression, rows_per_batch
):
    dictionary = pa.dictionary(pa.int32(), pa.string())
    table = table_of(ROWS, tags=dictionary)
    packed = stream_of(table, rows_per_batch, compression=compression)
    plain = size_of(stream_of(table, rows_per_batch))
    assert len(packed) < plain // 2
    assert 0.9 * plain < size_of(packed) <= plain
    assert plain > 100_000


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_bomb_is_refused_by_what_its_metadata_say(compression):
    bomb = stream_of(table_of([{"topic": "t", "body": "x" * (1 << 20)}] * 4), compression=compression)
    assert len(bomb) < 1 << 16
    assert code_of(bomb) == "request_too_large"


def test_rows_and_batches_are_counted_before_they_are_read():
    assert code_of(stream_of(table_of(ROWS)), Limits(99, 1 << 20, 100)) == "too_many_messages"
    table = table_of([{"topic": "t"}])
    many = pa.Table.from_batches(table.to_batches() * (BATCHES_MAX + 1))
    assert code_of(stream_of(many)) == "malformed_arrow"
    assert size_of(stream_of(many.slice(0, BATCHES_MAX))) > 0


def test_a_column_is_one_array_however_many_batches_it_came_in():
    table = table_of(ROWS, tags=pa.dictionary(pa.int8(), pa.string()))
    stream = stream_of(pa.concat_tables([table, table]), 7)
    arrays, size_bytes = columns_of(pa, pa.py_buffer(stream), LIMITS)
    assert {len(array) for array in arrays.values()} == {200}
    assert size_bytes == 200 * (len("orders" + "x" * 1_000 + "ab" + "t") + ENTRY_BYTES)


def code_of_columns(table: pa.Table, limits: Limits = LIMITS) -> str:
    with pytest.raises(RequestError) as caught:
        columns_of(pa, pa.py_buffer(stream_of(table)), limits)
    return caught.value.code


def empty_texts(count: int) -> pa.Array:
    """Texts that have one byte each in a stream, and none once they are read."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int8()), pa.array([""]))


def lists_of(lengths: list[int]) -> pa.Array:
    ends = pa.array([0, *itertools.accumulate(lengths)], pa.int32())
    return pa.ListArray.from_arrays(ends, empty_texts(sum(lengths)))


def maps_of(lengths: list[int]) -> pa.Array:
    ends, texts = pa.array([0, *itertools.accumulate(lengths)], pa.int32()), empty_texts(sum(lengths))
    return pa.MapArray.from_arrays(ends, texts, texts)


def structs_of(rows: int, fields: int) -> pa.Array:
    return pa.StructArray.from_arrays([empty_texts(rows)] * fields, names=[f"f{at}" for at in range(fields)])


ENTRIES = LIMITS.bytes_max // ENTRY_BYTES


@pytest.mark.parametrize(
    "column",
    [
        {"keys": lists_of([ENTRIES // 100 + 1] * 100)},
        {"properties": maps_of([ENTRIES // 100 + 1] * 100)},
        {"properties": structs_of(100, ENTRIES // 100 + 1)},
    ],
    ids=["list", "map", "struct"],
)
def test_keys_and_properties_without_bytes_count_towards_the_size_of_a_request(column):
    table = pa.table({"topic": ["t"] * 100, **column})
    assert len(stream_of(table)) < LIMITS.bytes_max // 2
    assert code_of_columns(table) == "request_too_large"


@pytest.mark.parametrize("make", [lists_of, maps_of])
def test_a_row_has_no_more_keys_or_properties_than_a_message_may_have(make):
    name = "keys" if make is lists_of else "properties"
    lengths = [0, 7, LIMITS.entries_max + 1]
    table = pa.table({"topic": ["t"] * 3, name: make(lengths)})
    assert code_of_columns(table) == "too_many_values"
    columns_of(pa, pa.py_buffer(stream_of(table.slice(0, 2))), LIMITS)


def stream_of_dictionaries(texts: list[list[str]], **options: object) -> bytes:
    """A stream of record batches of one row whose body is the last value of a dictionary."""
    schema = pa.schema({"topic": pa.string(), "body": pa.dictionary(pa.int16(), pa.string())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for values in texts:
            body = pa.DictionaryArray.from_arrays(pa.array([len(values) - 1], pa.int16()), pa.array(values))
            writer.write_batch(pa.record_batch([pa.array(["t"]), body], schema=schema))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_dictionary_that_grows_counts_as_often_as_it_is_copied(compression):
    large = "x" * (LIMITS.bytes_max // 20)
    values = [[large, *map(str, range(count))] for count in range(1, 31)]
    stream = stream_of_dictionaries(values, emit_dictionary_deltas=True, compression=compression)
    assert len(stream) < LIMITS.bytes_max // 5
    assert code_of(stream) == "request_too_large"
    few = stream_of_dictionaries(values[:10], emit_dictionary_deltas=True, compression=compression)
    assert size_of(few) < LIMITS.bytes_max


def test_a_dictionary_counts_with_each_record_batch_that_it_is_decoded_with():
    values = ["x" * (LIMITS.bytes_max // 20), "y"]
    assert code_of(stream_of_dictionaries([values] * 30)) == "request_too_large"
    once, twice = (size_of(stream_of_dictionaries([values] * count)) for count in (1, 2))
    assert once < 1.1 * len(values[0])
    assert 2 * len(values[0]) < twice < 2.2 * len(values[0])


def test_a_dictionary_in_place_of_another_counts_for_itself():
    texts = [["x" * (LIMITS.bytes_max // 20), str(count)] for count in range(10)]
    assert size_of(stream_of_dictionaries(texts)) < LIMITS.bytes_max * 0.6


ENDS = (-(1 << 63), 1 - (1 << 63), -1_001, -1_000, -999, -1, 0, 1, 999, 1_000, 1_001, (1 << 63) - 1)


@pytest.mark.parametrize(("unit", "per_ms"), [("us", 1_000), ("ns", 1_000_000)])
@pytest.mark.parametrize("column", ["deliver_at", "delay"])
def test_every_time_finer_than_a_millisecond_is_rounded_up(column, unit, per_ms):
    kind = pa.timestamp(unit, tz="UTC") if column == "deliver_at" else pa.duration(unit)
    table = pa.table({"topic": ["t"] * len(ENDS), column: pa.array(ENDS, pa.int64()).view(kind)})
    arrays, _ = columns_of(pa, pa.py_buffer(stream_of(table)), LIMITS)
    assert arrays[column].to_pylist() == [-(-end // per_ms) for end in ENDS]


def sharing(fields: int, size: int) -> bytes:
    """A stream with a row whose properties are texts of this size that all lie in the same bytes."""
    texts = [pa.array(["x" * size]), *[pa.array([""])] * (fields - 1)]
    properties = pa.StructArray.from_arrays(texts, names=[f"f{number}" for number in range(fields)])
    stream = stream_of(pa.table({"topic": ["t"], "properties": properties}))
    messages = iter(pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)))
    batch = next(message for message in messages if message.type == "record batch")
    pairs = list(_FlatTable.root(batch.metadata.to_pybytes()).table(_HEADER).pairs(_BUFFERS))
    own = 4  # of the topic: nulls, offsets, text; of the struct: nulls
    shared = pairs[:own] + pairs[own : own + 3] * fields
    before, after = (b"".join(struct.pack("<qq", *pair) for pair in each) for each in (pairs, shared))
    assert len(before) == len(after)
    assert stream.count(before) == 1
    return stream.replace(before, after)


def test_buffers_that_share_bytes_count_as_often_as_they_are_used():
    stream = sharing(50, LIMITS.bytes_max // 40)
    assert len(stream) < LIMITS.bytes_max // 10
    assert code_of(stream) == "request_too_large"
    few = sharing(5, LIMITS.bytes_max // 40)
    [batch] = pa.ipc.open_stream(few)
    batch.validate(full=True)
    assert {len(text) for text in batch["properties"].to_pylist()[0].values()} == {LIMITS.bytes_max // 40}
    assert 5 * LIMITS.bytes_max // 40 < size_of(few) < 6 * LIMITS.bytes_max // 40


def with_message(message: bytes) -> bytes:
    """A stream with one message more before its end, which has eight bytes."""
    stream = stream_of(table_of(ROWS))
    return stream[:-8] + message + stream[-8:]


def test_messages_that_a_stream_does_not_have_are_refused_before_they_cost_anything():
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(np.zeros(1)), sink)
    assert code_of(with_message(sink.getvalue().to_pybytes())) == "malformed_arrow"
    assert code_of(with_message(table_of(ROWS).schema.serialize().to_pybytes())) == "malformed_arrow"
