"""What an Arrow stream says of its size is read before anything in it is decoded."""

import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
import pytest

from tests.harness.arrow_rows import stream_of, table_of
from timerwheel.api.http.problems import RequestError
from timerwheel.api.messages.arrow_stream import BATCHES_MAX, Limits, columns_of, unpacked_bytes

LIMITS = Limits(10_000, 1 << 20)
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
    assert code_of(stream_of(table_of(ROWS)), Limits(99, 1 << 20)) == "too_many_messages"
    table = table_of([{"topic": "t"}])
    many = pa.Table.from_batches(table.to_batches() * (BATCHES_MAX + 1))
    assert code_of(stream_of(many)) == "malformed_arrow"
    assert size_of(stream_of(many.slice(0, BATCHES_MAX))) > 0


def test_a_column_is_one_array_however_many_batches_it_came_in():
    table = table_of(ROWS, tags=pa.dictionary(pa.int8(), pa.string()))
    stream = stream_of(pa.concat_tables([table, table]), 7)
    arrays, size_bytes = columns_of(pa, pa.py_buffer(stream), LIMITS)
    assert {len(array) for array in arrays.values()} == {200}
    assert size_bytes == 200 * len("orders" + "x" * 1_000 + "ab" + "t")
