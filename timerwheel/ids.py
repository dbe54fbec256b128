"""Message ids: 24 hex digits, the log offset of the message's first record and that record's CRC. Pure.

A look-up needs no index, and an id that the service did not give out is refused but for one in 2^32.
"""

import re

from timerwheel.errors import UnknownMessageError

_ID = re.compile(r"[0-9a-f]{24}", re.ASCII)


def encode_id(root: int, crc: int) -> str:
    """The id of the message whose first record lies at `root`."""
    return f"{root:016x}{crc:08x}"


def decode_id(message_id: str) -> tuple[int, int]:
    """Root offset and CRC; UnknownMessageError if the text cannot be an id."""
    if _ID.fullmatch(message_id) is None:
        raise UnknownMessageError(message_id)
    return int(message_id[:16], 16), int(message_id[16:], 16)
