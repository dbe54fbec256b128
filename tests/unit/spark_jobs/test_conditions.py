"""Conditions of queries on whole columns, against the same question to each value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from timerwheel.spark_jobs.conditions import conditions_of, mask_of, may_hold
from timerwheel.store.table import ROW_DTYPE, Table

COLUMNS = {"topic": str, "kind": str, "node": str, "due_ms": int, "flags": int, "offset": int}
IN_TABLES = {name: name for name in COLUMNS if name != "node"}
TOPICS = ["orders", "tickets", "ä", ""]
KINDS = {1: "message", 2: "timer", 99: "kind 99"}
ORDERS = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
NUMBERS = st.one_of(st.integers(0, 5), st.integers(-(2**63), 2**63 - 1))


def compared(column, values, *others):
    one = st.builds(
        lambda make, value: make((column,), value), st.sampled_from((EqualTo, EqualNullSafe, *others)), values
    )
    many = st.lists(values, min_size=1, max_size=3).map(lambda found: In((column,), tuple(found)))
    return st.one_of(one, many)


FILTERS = st.one_of(
    *(compared(name, NUMBERS, *ORDERS) for name in ("due_ms", "flags", "offset")),
    compared("topic", st.sampled_from(TOPICS), StringStartsWith),
    compared("kind", st.sampled_from(tuple(KINDS.values()))),
    compared("node", st.sampled_from(("node-1", "node-2"))),
).flatmap(lambda found: st.sampled_from((found, Not(found))))

ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(tuple(KINDS)),
        st.integers(-2, 6),
        st.integers(0, 255),
        st.integers(0, 6),
    ),
    max_size=20,
)


def table_of(rows):
    found = np.zeros(len(rows), ROW_DTYPE)
    for place, (topic, kind, due_ms, flags, offset) in enumerate(rows):
        found[place]["topic"], found[place]["kind"] = topic, kind
        found[place]["due_ms"], found[place]["flags"], found[place]["offset"] = due_ms, flags, offset
    return Table(found, TOPICS)


def in_python(found, row):
    """What SQL says of one row without nulls."""
    if isinstance(found, Not):
        return not in_python(found.child, row)
    value = row[found.attribute[0]]
    return {
        In: lambda: value in found.value,
        StringStartsWith: lambda: value.startswith(found.value),
        GreaterThan: lambda: value > found.value,
        GreaterThanOrEqual: lambda: value >= found.value,
        LessThan: lambda: value < found.value,
        LessThanOrEqual: lambda: value <= found.value,
    }.get(type(found), lambda: value == found.value)()


@given(st.lists(FILTERS, max_size=3), ROWS)
def test_a_mask_has_the_rows_for_which_all_conditions_hold(filters, rows):
    conditions = conditions_of(filters, COLUMNS)
    assert len(conditions) == len(filters)
    expected = [
        all(
            in_python(
                one,
                {
                    "topic": TOPICS[topic],
                    "kind": KINDS[kind],
                    "due_ms": due_ms,
                    "flags": flags,
                    "offset": offset,
                    "node": "node-1",
                },
            )
            for one in filters
        )
        for topic, kind, due_ms, flags, offset in rows
    ]
    may = may_hold(conditions, {"node": "node-1"})
    assert (mask_of(conditions, table_of(rows), IN_TABLES) & may).tolist() == expected


@pytest.mark.parametrize(
    "unclear",
    [
        EqualTo(("due_ms",), None),
        EqualTo(("due_ms",), 1.0),
        EqualTo(("due_ms",), True),
        EqualTo(("due_ms",), "1"),
        EqualTo(("topic",), 1),
        GreaterThan(("topic",), "a"),
        In(("flags",), (1, None)),
        Not(In(("topic",), ("orders", None))),
        In(("flags",), ()),
        IsNull(("topic",)),
        IsNotNull(("topic",)),
        StringContains(("topic",), "r"),
        StringStartsWith(("due_ms",), "1"),
        EqualTo(("body",), b"x"),
        EqualTo(("properties", "topic"), "x"),
    ],
)
def test_a_condition_that_is_not_clear_is_left_to_spark(unclear):
    assert conditions_of([unclear], COLUMNS) == []
