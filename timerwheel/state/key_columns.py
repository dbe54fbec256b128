"""Deduplication keys in columns: what `timerwheel.state.dedup_key` says of one message, said of thousands.

Both mean the same: the same digests, hashes and stored properties, byte for byte. Most of the work are two
BLAKE2s for each key.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import blake2s
from itertools import repeat
from typing import NamedTuple

import msgspec
import numpy as np
import orjson

from timerwheel.model.columns import NOW, SPELLED, MessageColumns
from timerwheel.model.trace_context import CONTEXT_PROPERTIES
from timerwheel.state.dedup_key import HASH_BYTES, HASH_NAME, KEY_NAME, KeyEntry, hash_of_key
from timerwheel.store.rows import join

KEY_DTYPE = np.dtype(
    [
        ("high", "<u8"),
        ("low", "<u8"),
        ("root", "<u8"),
        ("due_ms", "<i8"),
        ("content", f"V{HASH_BYTES}"),
        ("root_crc", "<u4"),
        ("zero", "<u4"),
    ]
)
"""A key as a row: the two halves of its digest, big-endian numbers, and the fields of its `KeyEntry`."""

_HOW_BITS, _HOW_MASK = 2, 3
_AT_ONCE = 256  # hashes that fit the processor's nearest cache
_Hash = type(blake2s())
_EMPTY = blake2s(digest_size=HASH_BYTES)
_packed = msgspec.msgpack.Encoder().encode
_PAIR = b"\x92"  # how an array of two begins in MessagePack
_END = b'"}'


class KeyColumns(NamedTuple):
    """The keys of some messages: `rows` are their places, `names` the keys in UTF-8.

    `digests` has the digest of each topic and key, and `contents` the hashes of what was sent, one behind the
    other.
    """

    rows: np.ndarray
    names: list[bytes]
    digests: list[bytes]
    contents: bytes


class KnownKeys(NamedTuple):
    """What records with these places in a table register: digests, and rows (KEY_DTYPE) in the same order."""

    places: np.ndarray
    digests: list[bytes]
    rows: np.ndarray


def halves_of(digests: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the two halves of each digest as numbers (uint64) that sort as the bytes do."""
    pairs = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)
    return pairs[:, 0].astype(np.uint64), pairs[:, 1].astype(np.uint64)


def digests_in(rows: np.ndarray) -> list[bytes]:
    """Return the digests of rows."""
    pairs = np.stack([rows["high"], rows["low"]], axis=1).astype(">u8")
    raw = pairs.tobytes()
    return [raw[at : at + HASH_BYTES] for at in range(0, len(raw), HASH_BYTES)]


def key_rows(keys: KeyColumns, offsets: np.ndarray, crcs: np.ndarray, dues_ms: np.ndarray) -> np.ndarray:
    """Return the rows of keys whose records have these offsets, CRCs and due times."""
    rows = np.zeros(len(keys.digests), KEY_DTYPE)
    rows["high"], rows["low"] = halves_of(keys.digests)
    rows["root"], rows["root_crc"], rows["due_ms"] = offsets, crcs, dues_ms
    rows["content"] = np.frombuffer(keys.contents, rows.dtype["content"])
    return rows


def rows_of_entries(entries: dict[bytes, KeyEntry]) -> np.ndarray:
    """Return the rows of keys that are not carried."""
    rows = np.zeros(len(entries), KEY_DTYPE)
    if entries:
        rows["high"], rows["low"] = halves_of(list(entries))
        roots, crcs, contents, dues_ms, _ = zip(*entries.values(), strict=True)
        rows["root"] = np.fromiter(roots, np.uint64, len(rows))
        rows["root_crc"], rows["due_ms"] = crcs, dues_ms
        rows["content"] = np.frombuffer(b"".join(contents), rows.dtype["content"])
    return rows


def entry_of(row: np.void) -> KeyEntry:
    """Return the entry of a row."""
    return KeyEntry(int(row["root"]), int(row["root_crc"]), row["content"].tobytes(), int(row["due_ms"]))


def newest_of(rows: np.ndarray) -> np.ndarray:
    """Return rows in the order of their digests, of each digest the row with the last root."""
    order = np.argsort(rows["high"], kind="stable")
    rows = rows[order]
    if not (rows["high"][1:] == rows["high"][:-1]).any():
        return rows
    rows = rows[np.lexsort((rows["root"], rows["low"], rows["high"]))]
    is_last = np.ones(len(rows), bool)
    is_last[:-1] = (rows["high"][1:] != rows["high"][:-1]) | (rows["low"][1:] != rows["low"][:-1])
    return rows.compress(is_last)


class NewKeys:
    """The keys that a memtable has: registered one by one, or in columns. The last one counts.

    A send in columns registers only keys that are new, so what is registered one by one is later.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, KeyEntry | np.ndarray] = {}
        self._parts: list[np.ndarray] = []

    def __len__(self) -> int:
        """How many keys."""
        return len(self._entries)

    def put(self, entries: dict[bytes, KeyEntry]) -> None:
        """Register keys."""
        self._entries.update(entries)

    def put_rows(self, digests: list[bytes], rows: np.ndarray) -> None:
        """Register keys by their rows (KEY_DTYPE), which belong to this object from now on."""
        self._entries.update(dict.fromkeys(digests, rows))
        self._parts.append(rows)

    def get(self, digest: bytes) -> KeyEntry | None:
        """Return the entry of a key, None if it has none."""
        found = self._entries.get(digest)
        if found is None or isinstance(found, KeyEntry):
            return found
        high, low = halves_of([digest])
        [place] = np.flatnonzero((found["high"] == high) & (found["low"] == low)).tolist()
        return entry_of(found[place])

    def has_any(self, digests: set[bytes]) -> bool:
        """Whether any of these keys is here."""
        return not self._entries.keys().isdisjoint(digests)

    def all_entries(self) -> dict[bytes, KeyEntry]:
        """Return all keys."""
        rows = newest_of(join(self._parts, KEY_DTYPE))
        return dict(zip(digests_in(rows), map(entry_of, rows), strict=True)) | self._single()

    def rows_and_carried(self) -> tuple[np.ndarray, dict[bytes, KeyEntry]]:
        """Return all keys, as rows and those that are carried; a key may have several rows."""
        single = self._single()
        carried = {digest: entry for digest, entry in single.items() if entry.ended is not None}
        rows = rows_of_entries({digest: entry for digest, entry in single.items() if entry.ended is None})
        return join([*self._parts, rows], KEY_DTYPE), carried

    def _single(self) -> dict[bytes, KeyEntry]:
        return {digest: entry for digest, entry in self._entries.items() if isinstance(entry, KeyEntry)}

    def followed_by(self, other: NewKeys) -> NewKeys:
        """Return the keys of both, which stay unchanged; those of `other` are later."""
        both = NewKeys()
        both._entries = self._entries | other._entries
        both._parts = self._parts + other._parts
        return both


# ---------------------------------------------------------------------- digests and hashes


def _hashed(first: blake2s, texts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the digest of each text behind what `first` has seen."""
    for begin in range(0, len(texts), _AT_ONCE):
        part = texts[begin : begin + _AT_ONCE]
        hashes = list(map(_Hash.copy, repeat(first, len(part))))
        deque(map(_Hash.update, hashes, part), 0)
        yield from map(_Hash.digest, hashes)


def digests_of(topics: Sequence[str], topic: np.ndarray, keys: Sequence[bytes]) -> list[bytes]:
    """Return `digest_of` each key of clients; `topic` has the place of its topic."""
    if len(topics) == 1 or (topic == topic[:1]).all():
        return list(_hashed(hash_of_key(topics[int(topic[0])]), keys)) if len(keys) else []
    digests: list[bytes] = [b""] * len(keys)
    for number in np.unique(topic).tolist():
        places = np.flatnonzero(topic == number).tolist()
        found = _hashed(hash_of_key(topics[number]), [keys[place] for place in places])
        for place, digest in zip(places, found, strict=True):
            digests[place] = digest
    return digests


def content_hashes(columns: MessageColumns, rows: np.ndarray) -> list[bytes]:
    """Return the `content_hash` of some messages."""
    codes = columns.properties[rows].astype(np.int64) << _HOW_BITS | columns.how[rows]
    kinds, kind = np.unique(codes, return_inverse=True)
    pieces = [_around_time(columns.sets[code >> _HOW_BITS], code & _HOW_MASK) for code in kinds.tolist()]
    kind_of = kind.tolist()
    ends = columns.ends[rows]
    begins = columns.begins[rows]
    sizes = (ends - begins).tolist()
    heads = {size: _head_of(size) for size in set(sizes)}
    bodies = columns.bodies
    texts = list(
        map(
            b"".join,
            zip(
                map(heads.__getitem__, sizes),
                [bodies[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)],
                map([before for before, _ in pieces].__getitem__, kind_of),
                _times(columns, rows),
                map([after for _, after in pieces].__getitem__, kind_of),
                strict=True,
            ),
        )
    )
    return list(_hashed(_EMPTY, texts))


def _head_of(size: int) -> bytes:
    """Return what stands before a body of this size where body and properties are packed."""
    packed = _packed(bytes(size))
    return _PAIR + packed[: len(packed) - size]


def _around_time(properties: dict[str, str], how: int) -> tuple[bytes, bytes]:
    """Return how properties are packed that include a delay, before and after its number."""
    items = [item for item in sorted(properties.items()) if item[0] not in CONTEXT_PROPERTIES]
    if how == NOW:
        return _packed(items), b""
    name = SPELLED[how]
    at = bisect.bisect(items, (name,))
    whole = _packed([*items[:at], (name, ""), *items[at:]])
    after = b"".join(map(_packed, items[at:]))
    return whole[: len(whole) - len(after) - len(_packed(""))], after


def _times(columns: MessageColumns, rows: np.ndarray) -> list[bytes]:
    """Return the packed number of each message's delay, nothing without one."""
    how = columns.how[rows]
    packed = list(map(_packed, map(str, columns.ms[rows].tolist())))
    if (how != NOW).all():
        return packed
    return [b"" if kind == NOW else text for kind, text in zip(how.tolist(), packed, strict=True)]


def stored_texts(heads: Sequence[bytes], keys: KeyColumns, part: slice) -> list[bytes]:
    """Return what the records of some keys have before their bodies: each of `heads`, and its key.

    A head has the topic, the properties and the opening of those of the key, see `head_of`.
    """
    names = keys.names[part]
    digits = keys.contents[part.start * HASH_BYTES : part.stop * HASH_BYTES].hex().encode()
    width = 2 * HASH_BYTES
    hashes = [digits[at : at + width] for at in range(0, len(digits), width)]
    quoted = map(orjson.dumps, map(bytes.decode, names))
    return list(map(b"".join, zip(heads, quoted, repeat(HASH_NAME), hashes, repeat(_END))))


def head_of(topic: bytes, properties: bytes) -> bytes:
    """Return the beginning of a keyed record's text: its topic and properties up to the key itself."""
    return topic + (properties[:-1] + b"," if properties else b"{") + KEY_NAME
