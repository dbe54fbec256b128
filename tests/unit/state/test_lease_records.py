"""Each record of a group has its values in the fields of the header where readers look for them."""

import pytest

from timerwheel.state import lease_records
from timerwheel.state.groups import DEAD_QUEUE, Item, ItemState, LeaseRow, lease_rows
from timerwheel.store.record import (
    FLAG_ENDED,
    FLAG_LEASE,
    NO_DUE_TIME,
    NO_OFFSET,
    AckReason,
    Kind,
    decode_header,
    encode,
)
from timerwheel.store.table import table_of

NAME = b"orders/g"
NOW_MS, DUE_MS = 1_800_000_000_000, 1_800_000_060_000
TIMED = Item(2, 7, ItemState.WAITING, 1, 64, 128, DUE_MS)
READY = Item(2, 7, ItemState.READY, 1, 64, 128, DUE_MS)


def row_of(record: bytes) -> LeaseRow:
    [row] = lease_rows(table_of([record], ["orders/g"], [512]).rows)
    return row


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (
            lease_records.ack(NAME, 2, 5, 9, NOW_MS),
            {"kind": Kind.ACK, "queue": 2, "due_ms": 9, "prior_due_ms": 5},
        ),
        (
            lease_records.ack(NAME, 2, 5, 9, NOW_MS, given_up=True),
            {"kind": Kind.ACK, "queue": 2, "due_ms": 9, "prior_due_ms": 5, "flags": FLAG_ENDED},
        ),
        (
            lease_records.skip(NAME, 2, 5, 9, NOW_MS),
            {"kind": Kind.ACK, "queue": 2, "due_ms": 9, "prior_due_ms": 5, "rolls": 1},
        ),
        (
            lease_records.expire(NAME, 2, 0, 9, NOW_MS),
            {"kind": Kind.ACK, "queue": 2, "due_ms": 9, "rolls": 2},
        ),
        (
            lease_records.retry(NAME, (2, 7), 3, NOW_MS, DUE_MS, ended=True),
            {
                "kind": Kind.TIMER,
                "queue": 2,
                "due_ms": DUE_MS,
                "prior_due_ms": 7,
                "rolls": 3,
                "flags": FLAG_ENDED,
            },
        ),
        (
            lease_records.redrive(NAME, (DEAD_QUEUE, 7), NOW_MS),
            {
                "kind": Kind.TIMER,
                "queue": DEAD_QUEUE,
                "due_ms": NOW_MS,
                "prior_due_ms": 7,
                "flags": FLAG_ENDED,
            },
        ),
        (
            lease_records.hold(NAME, (2, 7), NOW_MS, -77),
            {"kind": Kind.HOLD, "queue": 2, "due_ms": -77, "prior_due_ms": 7, "rolls": 1},
        ),
        (
            lease_records.retime(NAME, TIMED, NOW_MS, DUE_MS + 1, ended=False),
            {
                "kind": Kind.TIMER,
                "queue": 2,
                "due_ms": DUE_MS + 1,
                "prior_due_ms": DUE_MS,
                "root": 64,
                "origin": 128,
            },
        ),
        (
            lease_records.ready_again(NAME, 2, 64, 128, DUE_MS, NOW_MS),
            {
                "kind": Kind.MESSAGE,
                "queue": 2,
                "due_ms": DUE_MS,
                "prior_due_ms": DUE_MS,
                "root": 64,
                "origin": 128,
            },
        ),
        (
            lease_records.end(NAME, TIMED, NOW_MS),
            {
                "kind": Kind.CANCEL,
                "queue": 2,
                "due_ms": DUE_MS,
                "prior_due_ms": DUE_MS,
                "root": 64,
                "origin": 128,
            },
        ),
        (
            lease_records.end(NAME, READY, NOW_MS, expired=True),
            {"kind": Kind.CANCEL, "queue": 2, "due_ms": DUE_MS, "prior_due_ms": 7, "root": 64, "rolls": 2},
        ),
        (
            lease_records.take_dead(NAME, 7, NOW_MS),
            {"kind": Kind.CANCEL, "due_ms": NOW_MS, "prior_due_ms": 7},
        ),
    ],
)
def test_a_record_is_the_same_bytes_as_from_the_first_version(record, fields):
    kind, due_ms, flags = fields.pop("kind"), fields.pop("due_ms"), fields.pop("flags", 0)
    assert record == encode(kind, NAME, b"", b"", NOW_MS, due_ms, NOW_MS, flags=flags | FLAG_LEASE, **fields)


def test_a_row_has_what_was_written():
    row = row_of(lease_records.expire(NAME, 2, 5, 9, NOW_MS))
    assert (row.queue_offset, row.end_offset, row.rolls) == (5, 9, AckReason.EXPIRED)
    row = row_of(lease_records.hold(NAME, (2, 7), NOW_MS, -77))
    assert (row.queue_offset, row.key_hash, row.retry_follows) == (7, -77, True)
    row = row_of(lease_records.retry(NAME, (2, 7), 3, NOW_MS, DUE_MS, ended=False))
    assert (row.queue_offset, row.attempt, row.due_ms) == (7, 3, DUE_MS)


@pytest.mark.parametrize("kind", Kind)
def test_a_header_has_a_due_time_only_if_its_field_is_one(kind):
    header = decode_header(encode(kind, NAME, b"", b"", NOW_MS, 9, NOW_MS))
    assert header.origin == NO_OFFSET
    assert header.due_time_ms == (None if kind in NO_DUE_TIME else 9)
