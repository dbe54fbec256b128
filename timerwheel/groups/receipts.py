"""Receipts: what a consumer shows to acknowledge a message, 32 hex digits. Pure.

The offset of the lease's first record and a keyed tag over it and the group's name, so that a receipt cannot
be made without the log and is good for one group only. Each attempt has a lease of its own: a receipt ends
when the message is received again.
"""

import hashlib
import re

_RECEIPT = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TAG_BYTES = 8


class Receipts:
    """Makes and reads the receipts of one log."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hashlib.blake2s(key=secret, digest_size=_TAG_BYTES, person=b"receipt")

    def encode(self, group: str, root: int) -> str:
        """The receipt of the lease whose first record lies at `root`, for the group `topic/group`."""
        tag = self._keyed.copy()
        tag.update(f"{group}\0{root:x}".encode())
        return f"{root:016x}{tag.hexdigest()}"

    def root_of(self, group: str, receipt: str) -> int | None:
        """The root in a receipt of this group; None if it is no receipt that was given out for it."""
        if _RECEIPT.fullmatch(receipt) is None:
            return None
        root = int(receipt[:16], 16)
        return root if self.encode(group, root) == receipt else None
