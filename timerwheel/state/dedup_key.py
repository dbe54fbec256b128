"""Deduplication keys: a client's own name for a message, under which it is stored once.

A keyed message's record has FLAG_KEYED and two properties: DEDUP_KEY, and DEDUP_HASH of what was sent, so
that a second send is known to be the same or another. The index maps the digest of topic and key to the
message's root. A key lives as long as its message is pending and KEY_KEPT_MS longer; whether it still does is
asked of the message itself, so recall and reschedule need not touch the key. What has ended is swept out
by `timerwheel.runtime.dedup_keys`.

A recalled message frees its key for another one. So that a late repeat of a recalled send is known, the next
record under the key keeps the hashes of up to RECALLED_KEPT_MAX recalled sends: they follow its own hash in
DEDUP_HASH. The log alone thus says which sends a key has seen, also after the index was lost.

A key may outlive the records of its message, when retention is shorter than KEY_KEPT_MS. Before those go,
retention *carries* the key: it stores what the key stands for, and how and when the message ended, in a
CONTROL record with FLAG_KEYED at the tail. From then on the key no longer asks for its message.

The runs of schedules have keys too. Their records have the property DEDUP_DOMAIN, and the domain goes into
the digest, so no key of a client can stand for a run.

Sends without a key come past none of this.
"""

from __future__ import annotations

import logging
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2s
from typing import NamedTuple

import msgspec
import numpy as np
import orjson

from timerwheel.model.admission import DOMAIN_PROPERTY, HASH_PROPERTY, KEY_PROPERTY, TASK_PREFIX
from timerwheel.model.messages import Outgoing
from timerwheel.model.trace_context import has_context, without_context
from timerwheel.state.config_table import ConfigTable, Put, decode_puts, encode_puts
from timerwheel.store.errors import CorruptionError
from timerwheel.store.record import FLAG_KEYED, HEADER_SIZE, NO_OFFSET, Kind, decode, unpack_header

logger = logging.getLogger("timerwheel")

KEY_KEPT_MS = 86_400_000
RECALLED_KEPT_MAX = 16
SCHEDULE_DOMAIN = "schedule"
CARRIED_BYTES = 72  # what it takes to carry the key of a delivered message: 53 bytes as base64
HASH_BYTES = 16
_CONTROL = int(Kind.CONTROL)  # faster to compare with than a member of the enumeration
_packed = msgspec.msgpack.Encoder().encode
KEY_NAME = f'"{KEY_PROPERTY}":'.encode()
HASH_NAME = f',"{HASH_PROPERTY}":"'.encode()
_ENTRY = struct.Struct("<QI16sq")
_ENDED = struct.Struct("<qB")


class Ended(NamedTuple):
    """How the message of a carried key ended: when, at the latest, and the recalled sends, if any."""

    at_ms: int
    recalled: tuple[bytes, ...] = ()


class KeyEntry(NamedTuple):
    """The message of a key: its root, the root's CRC, a hash of its content, and its first due time.

    Only carried keys have `ended`.
    """

    root: int
    root_crc: int
    content: bytes
    due_ms: int
    ended: Ended | None = None

    @property
    def last_ms(self) -> int:
        """Return when to first check whether the key still counts; for a carried key, its end."""
        return (self.due_ms if self.ended is None else self.ended.at_ms) + KEY_KEPT_MS


def digest_of(topic: str, key: str, domain: str = "") -> bytes:
    """Return the digest of a topic and key in a domain: clients, or another one. About 0.5 µs."""
    digest = hash_of_key(topic, domain).copy()
    digest.update(key.encode())
    return digest.digest()


@lru_cache(maxsize=1_000)
def hash_of_key(topic: str, domain: str = "") -> blake2s:
    """Return the hash that gives the digest once it has seen the key too; copy it first."""
    return blake2s(f"{topic}\0".encode(), digest_size=HASH_BYTES, person=domain.encode())


def domain_of(message: Outgoing) -> str:
    """Return the domain of the message's key: clients, or the service's own runs of schedules."""
    return SCHEDULE_DOMAIN if message.own else ""


def key_properties(message: Outgoing, contents: Sequence[bytes]) -> dict[str, str]:
    """Return the properties that store the key in the record.

    `contents` are the hash of the message's content and those of the recalled sends under its key.
    """
    assert message.dedup_key is not None
    hashes = b"".join(contents[: 1 + RECALLED_KEPT_MAX])
    properties = {KEY_PROPERTY: message.dedup_key, HASH_PROPERTY: hashes.hex()}
    return properties | {DOMAIN_PROPERTY: SCHEDULE_DOMAIN} if message.own else properties


def contents_in(properties: Mapping[str, str]) -> list[bytes]:
    """Return the hashes under a message's key: its own first, then the recalled sends, latest first."""
    hashes = bytes.fromhex(properties[HASH_PROPERTY])
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def contents_of(record: bytes) -> list[bytes]:
    """Return `contents_in` of a whole record."""
    return contents_in(orjson.loads(decode(record).properties))


def content_of(message: Outgoing) -> bytes:
    """Hash what the client sent under the key: the body and the properties, with delays as given.

    The trace context is left out, because a repeat may come from another span.
    """
    body = message.body
    if message.topic.startswith(TASK_PREFIX):  # what is called is what makes a task the same
        body = b"".join((message.envelope.encode(), b"\0", body))
    return content_hash(body, message.properties)


def content_hash(body: bytes, properties: Mapping[str, str]) -> bytes:
    """Return `content_of` a message with this body and these properties."""
    return _hash_of(body, sorted(without_context(properties).items()))


def is_content(content: bytes, message: Outgoing, own: bytes) -> bool:
    """Whether the hash is this message's, whose own is `content_of`.

    Versions before tracing hashed the trace context too.
    """
    if content == own or not has_context(message.properties):
        return content == own
    return content == _hash_of(message.body, sorted(message.properties.items()))


def _hash_of(body: bytes | memoryview, properties: list[tuple[str, str]]) -> bytes:
    """Hash a body and properties in the order of their names."""
    return blake2s(_packed((body, properties)), digest_size=HASH_BYTES).digest()


def keys_of(rows: np.ndarray, records: Sequence[bytes | CorruptionError]) -> dict[bytes, KeyEntry]:
    """Return the keys that records with FLAG_KEYED register or carry; those of damaged records are logged."""
    found: dict[bytes, KeyEntry] = {}
    for data, root, due_ms in zip(records, rows["root"].tolist(), rows["due_ms"].tolist(), strict=True):
        if isinstance(data, CorruptionError):
            logger.error("the deduplication key of a damaged message is lost: %s", data)
            continue
        _, crc, _, kind, *_, topic_len, _, properties_len, _, root_crc, of_root, _, _, _, _, _ = (
            unpack_header(data)
        )
        if kind == _CONTROL:
            found.update(_carried_in(data))
            continue
        middle = HEADER_SIZE + topic_len
        properties = orjson.loads(data[middle : middle + properties_len])
        # Before the name was reserved a client may have given the property any other value.
        domain = SCHEDULE_DOMAIN if properties.get(DOMAIN_PROPERTY) == SCHEDULE_DOMAIN else ""
        digest = digest_of(data[HEADER_SIZE:middle].decode(), properties[KEY_PROPERTY], domain)
        content = bytes.fromhex(properties[HASH_PROPERTY][: 2 * HASH_BYTES])
        found[digest] = KeyEntry(root, crc if of_root == NO_OFFSET else root_crc, content, due_ms)
    return found


def carried_record(keys: Mapping[bytes, KeyEntry], now_ms: int) -> bytes:
    """Encode the CONTROL record that carries keys, all of which have ended.

    For each key its value has the digest and the packed entry, all in base64.
    """
    packed_keys = b"".join([digest + pack(entry) for digest, entry in keys.items()])
    value = b64encode(packed_keys).decode()
    return encode_puts([Put(ConfigTable.CARRIED_KEYS, "", value)], now_ms, FLAG_KEYED)


def _carried_in(record: bytes) -> Iterator[tuple[bytes, KeyEntry]]:
    for put_keys in decode_puts(record):
        if put_keys.table == ConfigTable.CARRIED_KEYS:
            raw = b64decode(put_keys.value)
            at = 0
            while at < len(raw):
                digest = raw[at : at + HASH_BYTES]
                entry, at = _unpack_from(raw, at + HASH_BYTES, carried=True)
                yield digest, entry


def pack(entry: KeyEntry) -> bytes:
    """Pack an entry for the index."""
    base = _ENTRY.pack(*entry[:-1])
    if entry.ended is None:
        return base
    at_ms, recalled = entry.ended
    return b"".join([base, _ENDED.pack(at_ms, len(recalled)), *recalled])


def unpack(raw: bytes) -> KeyEntry:
    """Unpack an entry."""
    return _unpack_from(raw, 0, carried=len(raw) > _ENTRY.size)[0]


def _unpack_from(raw: bytes, at: int, *, carried: bool) -> tuple[KeyEntry, int]:
    """Unpack the entry that begins at `at`; returns it and where it ends."""
    entry = KeyEntry(*_ENTRY.unpack_from(raw, at))
    at += _ENTRY.size
    if not carried:
        return entry, at
    ended_ms, count = _ENDED.unpack_from(raw, at)
    begin = at + _ENDED.size
    end = begin + count * HASH_BYTES
    recalled = tuple(raw[place : place + HASH_BYTES] for place in range(begin, end, HASH_BYTES))
    return entry._replace(ended=Ended(ended_ms, recalled)), end
