"""A block is its records one behind the other, as `encode` writes each of them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.store.block import Block, Prefixes, encode_part, new_headers
from timerwheel.store.record import FLAG_MORE, RECORD_SIZE_MAX, Kind, encode, is_whole
from timerwheel.store.table import table_of

TEXTS = st.sampled_from([b"", b"{}", b'{"a":"1"}', b'{"a":"' + b"x" * 90 + b'"}'])
TOPICS = st.sampled_from([b"orders", b"t", b"x" * 127])
ROWS = st.lists(
    st.tuples(TOPICS, TEXTS, st.binary(max_size=20), st.integers(0, 2**40), st.booleans()), max_size=30
)


def block_of(rows, cuts=()):
    """These rows as a block in parts, and as records one by one."""
    pairs = list(dict.fromkeys((topic, text) for topic, text, *_ in rows))
    prefix = np.array([pairs.index((topic, text)) for topic, text, *_ in rows], np.int64)
    bodies = [body for _, _, body, _, _ in rows]
    ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
    begins = ends - np.array([len(body) for body in bodies], np.int64)
    headers = new_headers(len(rows))
    headers["kind"] = [Kind.TIMER if waits else Kind.MESSAGE for *_, waits in rows]
    headers["due_ms"] = [due_ms for *_, due_ms, _ in rows]
    headers["store_ms"] = headers["enqueue_ms"] = 7
    headers["level"], headers["queue"] = 3, 9
    headers["flags"][:-1] = FLAG_MORE
    prefixes, data = Prefixes(pairs), memoryview(b"".join(bodies))
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut <= len(rows))})
    parts = [
        encode_part(headers[low:high], prefixes, prefix[low:high], data, begins[low:high], ends[low:high])
        for low, high in pairwise(edges)
    ]
    names = list(dict.fromkeys(topic.decode() for topic, *_ in rows))
    topic = np.array([names.index(topic.decode()) for topic, *_ in rows], np.uint32)
    records = [
        encode(
            Kind.TIMER if waits else Kind.MESSAGE,
            topic,
            text,
            body,
            7,
            due_ms,
            7,
            flags=FLAG_MORE if place < len(rows) - 1 else 0,
            level=3,
            queue=9,
        )
        for place, (topic, text, body, due_ms, waits) in enumerate(rows)
    ]
    return Block(parts, headers, names, topic), records


@given(ROWS, st.lists(st.integers(0, 30), max_size=3))
def test_a_block_is_what_encode_writes_record_by_record(rows, cuts):
    block, records = block_of(rows, cuts)
    assert b"".join(block.parts) == b"".join(records)
    for record in block.records(np.arange(len(rows))):
        assert is_whole(record, len(record))


@given(ROWS, st.lists(st.integers(0, 30), max_size=3), st.data())
def test_some_records_of_a_block_are_read_from_its_parts(rows, cuts, data):
    block, records = block_of(rows, cuts)
    places = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1)))) if rows else []
    assert block.records(np.array(places, np.int64)) == [records[place] for place in places]


@given(ROWS.filter(len), st.integers(0, 2**50))
def test_the_table_of_a_block_is_that_of_its_records(rows, first):
    block, records = block_of(rows)
    table, offsets = block.table(first), block.offsets(first).tolist()
    wanted = table_of(records, [topic.decode() for topic, *_ in rows], offsets)
    assert offsets == [first + sum(map(len, records[:place])) for place in range(len(records))]
    assert [table.topics[place] for place in table.rows["topic"]] == [
        wanted.topics[place] for place in wanted.rows["topic"]
    ]
    for name in table.rows.dtype.names:
        if name != "topic":
            assert (table.rows[name] == wanted.rows[name]).all(), name


def test_a_record_that_is_too_large_is_refused():
    ends = np.array([RECORD_SIZE_MAX], np.int64)
    with pytest.raises(ValueError, match="over RECORD_SIZE_MAX"):
        encode_part(
            new_headers(1), Prefixes([(b"t", b"")]), np.zeros(1, np.int64), memoryview(b""), ends * 0, ends
        )
