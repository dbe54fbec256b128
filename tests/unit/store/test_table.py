import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.store.record import NO_OFFSET, Kind, decode_header, encode
from timerwheel.store.table import FEW, ROW_DTYPE, merge, table_of, table_of_block

U16 = st.integers(0, 2**16 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.lists(
    st.builds(
        lambda kind, topic, body, fields: (topic, encode(kind, topic.encode(), b"", body, **fields)),
        st.sampled_from(Kind),
        st.sampled_from(["a", "b", "orders", "%RETRY%x"]),
        st.binary(max_size=40),
        st.fixed_dictionaries(
            {
                "store_ms": I64,
                "due_ms": I64,
                "enqueue_ms": I64,
                "flags": st.integers(0, 255),
                "level": st.integers(0, 255),
                "prior_level": st.integers(0, 255),
                "queue": U16,
                "rolls": U16,
                "root": U64 | st.just(NO_OFFSET),
                "origin": U64 | st.just(NO_OFFSET),
                "prior_due_ms": I64,
            }
        ),
    ),
    max_size=12,
)


def table(records, first=64):
    data = [record for _, record in records]
    offsets = list(itertools.accumulate(map(len, data), initial=first))[:-1]
    return table_of(data, [topic for topic, _ in records], offsets), offsets


def test_row_is_64_bytes():
    assert ROW_DTYPE.itemsize == 64


@given(RECORDS)
def test_row_says_what_the_header_says(records):
    found, offsets = table(records)
    assert len(found.rows) == len(records)
    for row, offset, (topic, data) in zip(found.rows, offsets, records, strict=True):
        header = decode_header(data)
        for name in ROW_DTYPE.names:
            if name not in {"offset", "root", "topic"}:
                assert row[name] == getattr(header, name), name
        assert row["offset"] == offset
        assert found.topics[row["topic"]] == topic


@given(RECORDS, st.data())
def test_few_records_and_many_make_the_same_rows(records, data):
    """Up to FEW records are packed one by one, more as columns: one meaning at two speeds."""
    more = data.draw(st.lists(st.sampled_from(records), min_size=FEW, max_size=FEW)) if records else []
    whole, _ = table([*records, *more])
    few, _ = table(records)
    assert whole.rows[: len(records)].tolist() == few.rows.tolist()
    few.rows["topic"] = 7
    assert set(few.rows["topic"].tolist()) <= {7}, "the state writes its own topic ids into them"


@given(RECORDS)
def test_record_without_a_root_is_its_own_root(records):
    found, offsets = table(records)
    for root, offset, (_, data) in zip(found.rows["root"].tolist(), offsets, records, strict=True):
        stated = decode_header(data).root
        assert root == (offset if stated == NO_OFFSET else stated)


@given(RECORDS)
def test_topics_are_named_once_in_the_order_of_appearance(records):
    found, _ = table(records)
    assert found.topics == list(dict.fromkeys(topic for topic, _ in records))


def named(found):
    return [(found.topics[row["topic"]], *row.item()[:7], *row.item()[8:]) for row in found.rows]


@given(st.lists(RECORDS, max_size=5))
def test_merged_tables_are_all_rows_in_order_with_their_topics(parts):
    tables = [table(records)[0] for records in parts]
    before = [t.rows.copy() for t in tables]
    whole = merge(tables)
    assert named(whole) == [row for t in tables for row in named(t)]
    assert len(set(whole.topics)) == len(whole.topics)
    assert all((t.rows == old).all() for t, old in zip(tables, before, strict=True))


@given(RECORDS)
def test_table_of_a_block_is_the_table_of_its_records(records):
    whole, _ = table(records, first=640)
    edges = np.cumsum([0, *(len(data) for _, data in records)]).tolist()
    found = table_of_block(b"".join(data for _, data in records), edges, 640)
    assert found.topics == whole.topics
    assert found.rows.tolist() == whole.rows.tolist()
