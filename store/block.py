"""Blocks: many new records one behind the other, encoded as columns.

What `timerwheel.store.record.encode` does for one record, a few array operations do for all headers at once.
A record costs one copy of its body and its CRC, about 0.5 µs together.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

import numpy as np

from timerwheel.store.record import (
    FORMAT_VERSION,
    HEADER_DTYPE,
    HEADER_SIZE,
    NO_OFFSET,
    RECORD_SIZE_MAX,
    decode_header,
)
from timerwheel.store.table import Table, rows_of

_CRC_FROM = 8
_ALIGNED = 7
_WORD, _HALF = 8, 4
_WORDS = HEADER_SIZE // _WORD


class Prefixes:
    """What records have between header and body: pairs of a topic and properties, each shared by many."""

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self.texts = [topic + properties for topic, properties in pairs]
        self.topic_len = np.array([len(topic) for topic, _ in pairs], np.int64)
        self.properties_len = np.array([len(properties) for _, properties in pairs], np.int64)

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Return the pairs."""
        return [
            (text[:cut], text[cut:]) for text, cut in zip(self.texts, self.topic_len.tolist(), strict=True)
        ]

    def followed_by(self, texts: list[bytes], like: np.ndarray) -> "Prefixes":
        """Return these and more, each of which has the topic of one of these, by its place."""
        both = Prefixes(())
        both.texts = self.texts + texts
        topic_len = self.topic_len[like]
        properties_len = np.fromiter(map(len, texts), np.int64, len(texts)) - topic_len
        both.topic_len = np.concatenate([self.topic_len, topic_len])
        both.properties_len = np.concatenate([self.properties_len, properties_len])
        return both


class Block(NamedTuple):
    """Records that follow each other in the log: `parts` are their bytes, cut between records.

    The last part is the last record alone, which the log may replace by a padded one: `padded` then updates
    its header. `headers` are all headers (HEADER_DTYPE), and `topic` (uint32) the places in `topics`.
    """

    parts: list[bytes]
    headers: np.ndarray
    topics: list[str]
    topic: np.ndarray

    def padded(self) -> None:
        """Update the header of the last record to what was stored."""
        stored = decode_header(self.parts[-1])
        self.headers["size"][-1], self.headers["crc"][-1] = stored.size, stored.crc

    def offsets(self, first: int) -> np.ndarray:
        """Return the log offset of each record, given that of the first."""
        sizes = self.headers["size"].astype(np.uint64)
        return np.cumsum(sizes) - sizes + np.uint64(first)

    def table(self, first: int) -> Table:
        """Return the table of the records, the first of which has this log offset."""
        return Table(rows_of(self.headers, self.offsets(first), self.topic), self.topics)

    def records(self, places: np.ndarray) -> list[bytes]:
        """Return some of the records, by their places in order."""
        begins = self.offsets(0).astype(np.int64)
        starts = np.array(list(accumulate(map(len, self.parts[:-1]), initial=0)))
        found = begins[places]
        part_of = np.searchsorted(starts, found, side="right") - 1
        within = found - starts[part_of]
        ends = within + self.headers["size"][places]
        return [
            self.parts[part][begin:end]
            for part, begin, end in zip(part_of.tolist(), within.tolist(), ends.tolist(), strict=True)
        ]


def new_headers(count: int) -> np.ndarray:
    """Return headers of records that are the first of their message, with zeros in all other fields."""
    headers = np.zeros(count, HEADER_DTYPE)
    headers["version"] = FORMAT_VERSION
    headers["root"] = headers["origin"] = np.uint64(NO_OFFSET)
    return headers


def encode_part(
    headers: np.ndarray,
    prefixes: Prefixes,
    prefix: np.ndarray,
    bodies: memoryview,
    begins: np.ndarray,
    ends: np.ndarray,
) -> bytes:
    """Return the bytes of records with these headers, in which it fills in sizes and CRCs.

    `prefix` has a place in `prefixes` for each record, whose body is `bodies[begins[i]:ends[i]]`. Raises
    ValueError for a record of more than RECORD_SIZE_MAX bytes.
    """
    headers["topic_len"] = prefixes.topic_len[prefix]
    headers["properties_len"] = prefixes.properties_len[prefix]
    headers["body_len"] = ends - begins
    lengths = prefixes.topic_len[prefix] + prefixes.properties_len[prefix]
    sizes = HEADER_SIZE + lengths + (ends - begins)
    sizes += -sizes & _ALIGNED
    if len(sizes) and int(sizes.max()) > RECORD_SIZE_MAX:
        raise ValueError(f"a record of {sizes.max()} bytes is over RECORD_SIZE_MAX = {RECORD_SIZE_MAX}")
    headers["size"] = sizes
    edges = np.cumsum(sizes)
    first = edges - sizes
    data = bytearray(int(edges[-1]) if len(edges) else 0)
    words = np.frombuffer(data, "<u8")
    words[(first // _WORD)[:, None] + np.arange(_WORDS)] = headers.view("<u8").reshape(-1, _WORDS)
    _put_payload(data, first + HEADER_SIZE, prefixes.texts, prefix, lengths, bodies, begins, ends)
    crcs = _crcs(data, first, edges)
    headers["crc"] = crcs
    np.frombuffer(data, "<u4")[first // _HALF + 1] = crcs
    return bytes(data)


def _put_payload(  # noqa: PLR0913, PLR0917 - columns of the same records
    data: bytearray,
    at: np.ndarray,
    texts: Sequence[bytes],
    text: np.ndarray,
    lengths: np.ndarray,
    bodies: memoryview,
    begins: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Copy topic, properties and body of each record behind its header."""
    middle = at + lengths
    if len(texts) == 1 and len(texts[0]) <= HEADER_SIZE:
        octets = np.frombuffer(data, np.uint8)
        octets[at[:, None] + np.arange(len(texts[0]))] = np.frombuffer(texts[0], np.uint8)
    else:
        for begin, end, place in zip(at.tolist(), middle.tolist(), text.tolist(), strict=True):
            data[begin:end] = texts[place]
    target = memoryview(data)
    for to, to_end, begin, end in zip(
        middle.tolist(), (middle + (ends - begins)).tolist(), begins.tolist(), ends.tolist(), strict=True
    ):
        target[to:to_end] = bodies[begin:end]


def _crcs(data: bytearray, first: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the CRC of each record: of all that follows the field itself."""
    view = memoryview(data)
    return np.array(
        [
            crc32(view[begin:end])
            for begin, end in zip((first + _CRC_FROM).tolist(), edges.tolist(), strict=True)
        ],
        np.uint32,
    )
