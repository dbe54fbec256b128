"""Receipts: what a consumer shows to acknowledge a message, 60 hex digits. Pure.

    8 bytes  queue and queue offset of the message
    2        attempt
    4        when the group was made or last rewound: the last bytes of that log offset
    4        the run of the service that gave it out
    4        a number that no other lease of that run has
    8        a tag over these and the group's name, keyed with the log's id

All big-endian. So a receipt cannot be made without the log, is good for one group only, and ends when the
group is rewound. Earlier versions kept leases in the log; their receipts, 32 digits, are the offset of the
lease's first record and such a tag over it and the group's name.
"""

import hashlib
import re
import struct
from collections import deque
from collections.abc import Sequence
from itertools import repeat

from timerwheel.groups.leases import KEY_DIGITS, Lease
from timerwheel.state.groups import OFFSET_BITS

_RECEIPT = re.compile(r"[0-9a-f]{60}", re.ASCII).fullmatch
_OLD_RECEIPT = re.compile(r"[0-9a-f]{32}", re.ASCII).fullmatch
_LEASE = struct.Struct(">QHIII")
_LOW = (1 << 32) - 1
_TAG_BYTES = 8
_Hash = type(hashlib.blake2s())


def place_in(receipt: str) -> tuple[int, int]:
    """Return queue and queue offset of the message of a receipt that this service gave out."""
    key = int(receipt[:KEY_DIGITS], 16)
    return key >> OFFSET_BITS, key & (1 << OFFSET_BITS) - 1


def attempt_in(receipt: str) -> int:
    """Return the attempt of a receipt that this service gave out."""
    return int(receipt[KEY_DIGITS : KEY_DIGITS + 4], 16)


class Receipts:
    """Makes and reads the receipts of one group."""

    def __init__(self, secret: bytes, group: str, since: int) -> None:
        blank = hashlib.blake2s(key=secret, digest_size=_TAG_BYTES, person=b"receipt")
        self._group = group
        self._since = since & _LOW
        self._blank = blank
        self._keyed = blank.copy()
        self._keyed.update(f"{group}\0".encode())

    def encode(self, lease: Lease) -> str:
        """The receipt of a lease."""
        return self.encode_all([lease])[0]

    def encode_all(self, leases: Sequence[Lease]) -> list[str]:
        """The receipts of leases."""
        since, pack = self._since, _LEASE.pack
        raws = [pack(lease.key, lease.attempt, since, lease.run, lease.number) for lease in leases]
        hashes = list(map(_Hash.copy, repeat(self._keyed, len(raws))))
        deque(map(_Hash.update, hashes, raws), 0)
        return [(raw + tag).hex() for raw, tag in zip(raws, map(_Hash.digest, hashes), strict=True)]

    def decode(self, receipt: str) -> Lease | int | None:
        """The lease in a receipt of this group, or the root of one in the log; None if it is not a receipt.

        Of one from before the group was rewound it is attempt 0, which no lease is of.
        """
        if _RECEIPT(receipt) is not None:
            raw = bytes.fromhex(receipt)
            if self._tag(raw[: _LEASE.size]) != raw[_LEASE.size :]:
                return None
            key, attempt, since, run, number = _LEASE.unpack_from(raw)
            return Lease(key, attempt if since == self._since else 0, run, number)
        if _OLD_RECEIPT(receipt) is None:
            return None
        root = int(receipt[:16], 16)
        return root if self.encode_root(root) == receipt else None

    def encode_root(self, root: int) -> str:
        """The receipt that earlier versions gave out for the lease whose first record lies at `root`."""
        tag = self._blank.copy()
        tag.update(f"{self._group}\0{root:x}".encode())
        return f"{root:016x}{tag.hexdigest()}"

    def _tag(self, raw: bytes) -> bytes:
        tag = self._keyed.copy()
        tag.update(raw)
        return tag.digest()
