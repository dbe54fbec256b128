"""Receipts: what a consumer shows to acknowledge a message, 68 hex digits. Pure.

    8 bytes  queue and queue offset of the message
    2        attempt
    4        when the group was made or last rewound: the last bytes of that log offset
    4        the run of the service that gave it out
    4        a number that no other lease of that run has
    4        the mark of the message: the CRC of its first record, 0 if that could not be read
    8        a tag over these and the group's name, keyed with the log's id

All big-endian. So a receipt cannot be made without the log, is good for one group only, and ends when the
group is rewound.

Invariant: a receipt is good for the message that it was given out for, and for no other. In one run of the
service the queue offset is enough for that, since queues only grow. The next run may have another message
there: after a power cut with `flush=async`, `--cut`, `--salvage`, or from a backup. So a receipt of another
run counts only if the message that is there now has its mark.

Receipts of earlier versions stay good, and are not compared: 60 digits are one without a mark. 32 digits are
of when leases were kept in the log: the offset of the lease's first record and such a tag over it and the
group's name.
"""

import hashlib
import re
import struct
from collections import deque
from collections.abc import Sequence
from itertools import repeat

from timerwheel.groups.leases import KEY_DIGITS, Lease
from timerwheel.state.groups import ItemKey

NO_ATTEMPT = 0
"""The attempt of a receipt that names no lease any more."""
RECEIPT_BYTES = 34
UNMARKED_BYTES = 30
_RECEIPT = re.compile(r"[0-9a-f]{68}", re.ASCII).fullmatch
_UNMARKED = re.compile(r"[0-9a-f]{60}", re.ASCII).fullmatch
_OLD_RECEIPT = re.compile(r"[0-9a-f]{32}", re.ASCII).fullmatch
_LEASE = struct.Struct(">QHIIII")
_UNMARKED_LEASE = struct.Struct(">QHIII")
_MARK_DIGITS = slice(2 * _UNMARKED_LEASE.size, 2 * _LEASE.size)
_LOW = (1 << 32) - 1
_TAG_BYTES = 8
_Hash = type(hashlib.blake2s())


def place_in(receipt: str) -> tuple[int, int]:
    """Return queue and queue offset of the message of a receipt that this service gave out."""
    key = int(receipt[:KEY_DIGITS], 16)
    return ItemKey.queue(key), ItemKey.offset(key)


def attempt_in(receipt: str) -> int:
    """Return the attempt of a receipt that this service gave out."""
    return int(receipt[KEY_DIGITS : KEY_DIGITS + 4], 16)


def mark_in(receipt: str) -> int | None:
    """Return the mark of the message of a receipt that this service gave out; None if it has none."""
    return int(receipt[_MARK_DIGITS], 16) if len(receipt) == 2 * RECEIPT_BYTES else None


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
        """The receipt of a lease; of one without a mark that which an earlier version gave out."""
        return self.encode_all([lease])[0]

    def encode_all(self, leases: Sequence[Lease]) -> list[str]:
        """The receipts of leases."""
        since, pack, pack_unmarked = self._since, _LEASE.pack, _UNMARKED_LEASE.pack
        raws = [
            pack_unmarked(lease.key, lease.attempt, since, lease.run, lease.number)
            if lease.mark is None
            else pack(lease.key, lease.attempt, since, lease.run, lease.number, lease.mark)
            for lease in leases
        ]
        hashes = list(map(_Hash.copy, repeat(self._keyed, len(raws))))
        deque(map(_Hash.update, hashes, raws), 0)
        return [(raw + tag).hex() for raw, tag in zip(raws, map(_Hash.digest, hashes), strict=True)]

    def decode(self, receipt: str) -> Lease | int | None:
        """The lease in a receipt of this group, or the root of one in the log; None if it is not a receipt.

        Of one from before the group was rewound it is NO_ATTEMPT, which no lease is of.
        """
        if _RECEIPT(receipt) is not None:
            return self._decoded(receipt, _LEASE)
        if _UNMARKED(receipt) is not None:
            return self._decoded(receipt, _UNMARKED_LEASE)
        if _OLD_RECEIPT(receipt) is None:
            return None
        root = int(receipt[:16], 16)
        return root if self.encode_root(root) == receipt else None

    def _decoded(self, receipt: str, form: struct.Struct) -> Lease | None:
        raw = bytes.fromhex(receipt)
        if self._tag(raw[: form.size]) != raw[form.size :]:
            return None
        key, attempt, since, run, number, *mark = form.unpack_from(raw)
        attempt = attempt if since == self._since else NO_ATTEMPT
        return Lease(key, attempt, run, number, mark=mark[0] if mark else None)

    def encode_root(self, root: int) -> str:
        """The receipt that earlier versions gave out for the lease whose first record lies at `root`."""
        tag = self._blank.copy()
        tag.update(f"{self._group}\0{root:x}".encode())
        return f"{root:016x}{tag.hexdigest()}"

    def _tag(self, raw: bytes) -> bytes:
        tag = self._keyed.copy()
        tag.update(raw)
        return tag.digest()
