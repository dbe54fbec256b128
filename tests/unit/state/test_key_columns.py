"""Keys in columns say what keys one by one say."""

import msgspec
import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.columns import columns_of
from timerwheel.model.admission import are_plain_keys, is_key
from timerwheel.model.messages import Outgoing
from timerwheel.state.dedup_key import KeyEntry, content_of, digest_of, key_properties
from timerwheel.state.key_columns import (
    KeyColumns,
    NewKeys,
    content_hashes,
    digests_in,
    digests_of,
    entry_of,
    head_of,
    key_rows,
    newest_of,
    rows_of_entries,
    stored_texts,
)

CONTEXT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=40)
MESSAGES = st.lists(
    st.builds(
        Outgoing,
        st.sampled_from(["orders", "tickets"]),
        st.binary(max_size=300),
        st.sampled_from([{}, {"a": "1"}, {"Z": "ü", "a": "2"}, {"a": "1", **CONTEXT}]),
        st.one_of(st.none(), KEYS),
    ),
    min_size=1,
    max_size=9,
)
TIMES = st.sampled_from([{}, {"after_ms": 0}, {"after_ms": 60_000}, {"at_ms": 1_800_000_000_000}])
ENTRIES = st.builds(
    KeyEntry,
    st.integers(0, 2**63),
    st.integers(0, 2**32 - 1),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**60),
    st.none(),
)
DIGESTS = st.integers(0, 9).map(lambda number: digest_of("orders", str(number)))


def spelled(message: Outgoing) -> Outgoing:
    """The message with its delay as a property, as a key's hash has it."""
    properties = dict(message.properties)
    if message.after_ms is not None:
        properties["TIMER_DELAY_MS"] = str(message.after_ms)
    if message.at_ms is not None:
        properties["TIMER_DELIVER_MS"] = str(message.at_ms)
    return msgspec.structs.replace(message, properties=properties, after_ms=None, at_ms=None)


@given(messages=MESSAGES, times=st.lists(TIMES, min_size=9, max_size=9))
def test_digests_hashes_and_stored_texts_are_those_of_the_messages_one_by_one(messages, times):
    messages = [msgspec.structs.replace(one, **when) for one, when in zip(messages, times, strict=False)]
    columns = columns_of(messages)
    hashes = content_hashes(columns, np.arange(len(messages)))
    assert hashes == [content_of(spelled(one)) for one in messages]
    keyed = [place for place, one in enumerate(messages) if one.dedup_key is not None]
    if not keyed:
        return
    names = [messages[place].dedup_key.encode() for place in keyed]
    digests = digests_of(columns.topics, columns.topic[keyed], names)
    assert digests == [digest_of(messages[place].topic, messages[place].dedup_key) for place in keyed]
    contents = [hashes[place] for place in keyed]
    keys = KeyColumns(np.array(keyed), names, digests, b"".join(contents))
    texts = [
        orjson.dumps(messages[place].properties) if messages[place].properties else b"" for place in keyed
    ]
    heads = [head_of(messages[place].topic.encode(), text) for place, text in zip(keyed, texts, strict=True)]
    for place, content, text in zip(
        keyed, contents, stored_texts(heads, keys, slice(0, len(keyed))), strict=True
    ):
        one = messages[place]
        assert text.startswith(one.topic.encode())
        stored = orjson.loads(text[len(one.topic.encode()) :])
        assert stored == dict(one.properties) | key_properties(one, [content])
        assert list(stored) == [*one.properties, *key_properties(one, [content])]


@given(st.lists(KEYS, max_size=5))
def test_keys_that_are_plain_together_are_keys_each(keys):
    if are_plain_keys(keys):
        assert all(map(is_key, keys))
    assert not are_plain_keys([*keys, ""])
    assert not are_plain_keys([*keys, "a\nb"])
    assert not are_plain_keys([*keys, "x" * 257])


@given(st.dictionaries(DIGESTS, ENTRIES, min_size=1))
def test_entries_and_their_rows_are_the_same(entries):
    rows = rows_of_entries(entries)
    assert dict(zip(digests_in(rows), map(entry_of, rows), strict=True)) == entries
    contents = b"".join(entry.content for entry in entries.values())
    of_columns = key_rows(
        KeyColumns(np.arange(len(rows)), [], list(entries), contents),
        rows["root"],
        rows["root_crc"],
        rows["due_ms"],
    )
    assert of_columns.tobytes() == rows.tobytes()


@given(st.lists(st.tuples(DIGESTS, ENTRIES), min_size=1, max_size=30))
def test_of_rows_of_one_key_that_with_the_last_root_counts_and_they_are_in_order(pairs):
    rows = newest_of(np.concatenate([rows_of_entries({digest: entry}) for digest, entry in pairs]))
    digests = digests_in(rows)
    assert digests == sorted({digest for digest, _ in pairs})
    for digest, row in zip(digests, rows, strict=True):
        assert int(row["root"]) == max(entry.root for other, entry in pairs if other == digest)


def test_new_keys_are_found_whichever_way_they_came_and_the_later_one_counts():
    first, later = (KeyEntry(root, 7, bytes([root]) * 16, root) for root in (1, 2))
    digests = [digest_of("orders", key) for key in "abc"]
    keys = NewKeys()
    keys.put_rows(digests, rows_of_entries(dict.fromkeys(digests, first)))
    keys.put({digests[1]: later})
    other = NewKeys()
    other.put({digests[2]: later})
    both = keys.followed_by(other)
    assert [keys.get(digest) for digest in digests] == [first, later, first]
    assert [both.get(digest) for digest in digests] == [first, later, later]
    assert len(both) == 3
    assert both.all_entries() == dict(zip(digests, (first, later, later), strict=True))
    assert both.has_any({digests[0], b""})
    assert not both.has_any({digest_of("orders", "d")})
    assert both.get(digest_of("orders", "d")) is None
