"""What a key stands for, in the index: registering, finding, ending."""

from hashlib import blake2s

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.index import dedup
from timerwheel.model.admission import HASH_PROPERTY, KEY_PROPERTY
from timerwheel.model.messages import Outgoing
from timerwheel.state.dedup_key import KEY_KEPT_MS, KeyEntry, content_of, digest_of, is_content, keys_of
from timerwheel.state.key_columns import NewKeys
from timerwheel.store.index import Index
from timerwheel.store.record import FLAG_KEYED, Kind, decode_header, encode, replace
from timerwheel.store.table import table_of

ENTRY = KeyEntry(64, 0xFFFFFFFF, bytes(range(16)), 1_000)
DIGEST = digest_of("orders", "k")
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@pytest.fixture
def index(tmp_path):
    index = Index(tmp_path / "index", 1 << 24)
    yield index
    index.close()


def rows_of(index, table):
    with index.read() as txn:
        return list(txn.items(table))


@given(NAMES, NAMES, NAMES, NAMES)
def test_each_topic_and_key_has_a_digest_of_its_own(topic, key, other_topic, other_key):
    same = (topic, key) == (other_topic, other_key)
    assert (digest_of(topic, key) == digest_of(other_topic, other_key)) == same
    assert len(digest_of(topic, key)) == 16


def test_content_is_body_and_properties_in_any_order_and_not_topic_or_key():
    message = Outgoing("orders", b"x", {"a": "1", "b": "2"})
    assert content_of(message) == content_of(Outgoing("tickets", b"x", {"b": "2", "a": "1"}, "k"))
    others = [
        Outgoing("orders", b"y", {"a": "1", "b": "2"}),
        Outgoing("orders", b"x", {"a": "1", "b": "3"}),
        Outgoing("orders", b"x", {"a": "1"}),
        Outgoing("orders", b"x", {"a1": "", "b": "2"}),
        Outgoing("orders", b"x"),
    ]
    assert len({content_of(other) for other in [message, *others]}) == 6


def put(txn, entries):
    keys = NewKeys()
    keys.put(entries)
    assert dedup.put(txn, keys, 7) == 7


def test_a_key_is_found_as_it_was_put_until_it_is_ended(index):
    with index.write() as txn:
        put(txn, {DIGEST: ENTRY})
    with index.read() as txn:
        assert dedup.find(txn, [DIGEST]) == {DIGEST: ENTRY}
        assert dedup.find(txn, [digest_of("orders", "other")]) == {}
        end_ms = ENTRY.due_ms + KEY_KEPT_MS
        assert dedup.ending(txn, end_ms, 10) == []
        [(row, entry)] = dedup.ending(txn, end_ms + 1, 10)
    assert entry == ENTRY
    with index.write() as txn:
        dedup.end(txn, row, entry, None)
    assert rows_of(index, dedup.TABLE) == rows_of(index, dedup.ENDS_TABLE) == []


def test_a_key_that_goes_on_is_looked_at_again_at_its_new_end(index):
    with index.write() as txn:
        put(txn, {DIGEST: ENTRY})
        [(row, entry)] = dedup.ending(txn, 1 << 60, 10)
        dedup.end(txn, row, entry, 5 * KEY_KEPT_MS)
        assert dedup.ending(txn, 5 * KEY_KEPT_MS, 10) == []
        assert [found for _, found in dedup.ending(txn, 5 * KEY_KEPT_MS + 1, 10)] == [ENTRY]
        assert dedup.find(txn, [DIGEST]) == {DIGEST: ENTRY}


def test_a_key_taken_again_between_looking_and_ending_stays(index):
    newer = ENTRY._replace(root=128, due_ms=9_000)
    with index.write() as txn:
        put(txn, {DIGEST: ENTRY})
        [(row, entry)] = dedup.ending(txn, 1 << 60, 10)
        put(txn, {DIGEST: newer})
        dedup.end(txn, row, entry, None)
        assert dedup.find(txn, [DIGEST]) == {DIGEST: newer}
        assert [found for _, found in dedup.ending(txn, 1 << 60, 10)] == [newer]


def test_a_row_without_its_key_is_swept(index):
    with index.write() as txn:
        put(txn, {DIGEST: ENTRY})
        txn.delete(dedup.TABLE, DIGEST)
        [(row, entry)] = dedup.ending(txn, 1 << 60, 10)
        assert entry is None
        dedup.end(txn, row, entry, None)
        assert dedup.ending(txn, 1 << 60, 10) == []


def test_ending_gives_the_earliest_first_and_no_more_than_asked_for(index):
    entries = {digest_of("orders", str(n)): ENTRY._replace(due_ms=1_000 - n) for n in range(9)}
    with index.write() as txn:
        put(txn, entries)
        found = dedup.ending(txn, 1 << 60, 4)
    assert [entry.due_ms for _, entry in found] == [992, 993, 994, 995]


def test_records_register_the_message_of_their_root():
    content = content_of(Outgoing("orders", b"body"))
    properties = orjson.dumps({KEY_PROPERTY: "k", HASH_PROPERTY: content.hex()})
    fields = {"store_ms": 1, "due_ms": 77, "enqueue_ms": 1, "flags": FLAG_KEYED}
    first = encode(Kind.TIMER, b"orders", properties, b"body", **fields)
    crc = int.from_bytes(first[4:8], "little")
    rows = table_of([first], ["orders"], [640]).rows
    expected = {DIGEST: KeyEntry(640, crc, content, 77)}
    assert keys_of(rows, [first]) == expected
    header = decode_header(first)
    moved = replace(
        first,
        header,
        kind=Kind.TIMER,
        origin=640,
        root=640,
        root_crc=crc,
        store_ms=2,
        due_ms=77,
        rolls=1,
        level=0,
    )
    rows = table_of([moved], ["orders"], [1280]).rows
    assert keys_of(rows, [moved]) == expected


def test_a_hash_of_before_there_were_traces_is_that_of_the_same_message():
    context = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    message = Outgoing("orders", b"x", {"a": "1", **context})
    # What a program without traces stored: body and all properties, as MessagePack, in BLAKE2s of 16 bytes.
    before = blake2s(
        msgspec.msgpack.encode((b"x", sorted(message.properties.items()))), digest_size=16
    ).digest()
    assert before != content_of(message)
    repeat, other = (Outgoing("orders", b"x", given) for given in ({"a": "1"}, {"a": "2", **context}))
    assert is_content(before, message, content_of(message))
    assert is_content(content_of(message), repeat, content_of(repeat))
    assert not is_content(before, other, content_of(other))
