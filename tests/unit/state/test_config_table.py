"""Settings that live in the log."""

import pytest

from timerwheel.state.config_table import (
    CONTROL_TOPIC,
    VALUE_BYTES_MAX,
    Control,
    ControlTables,
    ControlValueError,
    Put,
    decode_puts,
    encode_puts,
)
from timerwheel.store.record import Kind, decode, fault

PUTS = [Put("group", "orders/g", {"tags": "*", "n": [1, 2.5, None, "ä"]}), Put("topic", "orders", None)]


def test_changes_come_back_from_their_record():
    record = encode_puts(PUTS, 1_000)
    assert fault(record) is None
    header = decode(record).header
    assert (header.kind, header.store_ms, decode(record).topic) == (Kind.CONTROL, 1_000, CONTROL_TOPIC)
    assert decode_puts(record) == PUTS


def test_a_value_that_is_too_large_is_refused():
    encode_puts([Put("t", "k", "x" * (VALUE_BYTES_MAX - 100))], 0)
    with pytest.raises(ControlValueError, match=str(VALUE_BYTES_MAX)):
        encode_puts([Put("t", "k", "x" * VALUE_BYTES_MAX)], 0)


def test_tables_hold_what_was_put_last_and_nothing_of_what_was_removed():
    tables = ControlTables()
    for key, value in (("a", 1), ("b", {"x": 1}), ("a", 2), ("c", 0), ("b", None), ("none", None)):
        tables.apply(Put("t", key, value))
    tables.apply(Put("other", "a", False))
    assert tables.items("t") == {"a": 2, "c": 0}
    assert (tables.get("t", "a"), tables.get("t", "b"), tables.get("no table", "a")) == (2, None, None)
    assert sorted(put.table for put in tables.all()) == ["other", "t", "t"]
    tables.items("t").clear()
    assert tables.get("t", "a") == 2


async def test_a_change_is_stored_before_it_is_in_effect():
    tables, stored = ControlTables(), []

    async def store(puts):
        assert tables.get("t", "k") is None
        stored.extend(puts)
        for put in puts:
            tables.apply(put)

    control = Control(tables, store)
    await control.put([Put("t", "k", 1)])
    assert stored == [Put("t", "k", 1)]
    assert control.get("t", "k") == 1
    assert control.items("t") == {"k": 1}
