"""Small JSON files with a check: an object whose first member is the CRC-32 of all that follows it.

A program that knows nothing of the check passes over the member. A file without one is of an earlier version.
"""

import re
from zlib import crc32

import msgspec

_match_crc = re.compile(rb'{"crc":"([0-9a-f]{8})",').match


def encode(value: msgspec.Struct) -> bytes:
    """The value as JSON, behind its check; it has one field at least."""
    rest = msgspec.json.encode(value)[1:]
    return b'{"crc":"%08x",' % crc32(rest) + rest


def is_sound(raw: bytes) -> bool:
    """Whether the check is right, or there is none."""
    stated = _match_crc(raw)
    return stated is None or int(stated[1], 16) == crc32(raw[stated.end() :])
