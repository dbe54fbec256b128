"""RocketMQ's ids of a message: the offset id of a stored one, the handle that recalls a delayed one. Pure.

An offset id is 32 hex digits: IPv4 address (4 bytes) and port (4) of the broker, log offset (8). A client
asks the broker at that address for the message. With an IPv6 address it has 56 digits.

A recall handle is `v1 topic broker due_ms uniq_key id`, separated by spaces, as base64url. The sixth part is
the id of timerwheel; RocketMQ's clients read the first five.
"""

import base64
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from struct import pack
from typing import Final, NamedTuple

from timerwheel.errors import TimerwheelError
from timerwheel.rocketmq.stored_message import Host, packed

HANDLE_CHARACTERS_MAX: Final = 1_024
_VERSION = "v1"
_PARTS = 6
_OFFSET_BYTES = 8


class HandleError(TimerwheelError):
    """The text is not a recall handle of this service."""

    code = "illegal_handle"


class RecallHandle(NamedTuple):
    """See the module."""

    topic: str
    broker: str
    due_ms: int
    uniq_key: str
    message_id: str

    def encode(self) -> str:
        """Return the handle as a client gets it."""
        text = " ".join((_VERSION, self.topic, self.broker, str(self.due_ms), self.uniq_key, self.message_id))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Return the handle in a text; HandleError."""
        if len(text) > HANDLE_CHARACTERS_MAX:
            raise HandleError(
                f"a recall handle of {len(text)} characters; use the one that the send returned"
            )
        padded = text + "=" * (-len(text) % 4)
        with suppress(ValueError):  # of base64, of UTF-8, of a number with too many digits
            parts = base64.b64decode(padded.encode(), b"-_", validate=True).decode().split(" ")
            if len(parts) == _PARTS and parts[0] == _VERSION and parts[3].isdecimal():
                return cls(parts[1], parts[2], int(parts[3]), parts[4], parts[5])
        raise HandleError("this is not a recall handle of this service; use the one that the send returned")


def offset_id(store_host: Host, log_offset: int) -> str:
    """Return the offset id of the record at a log offset."""
    return f"{_hex(store_host)}{log_offset:016X}"


def offset_ids(store_host: Host, log_offsets: Sequence[int]) -> str:
    """Return the offset ids of several, separated by commas."""
    host = _hex(store_host)
    offsets = pack(f">{len(log_offsets)}Q", *log_offsets).hex(",", _OFFSET_BYTES).upper()
    return host + offsets.replace(",", "," + host)


@lru_cache(maxsize=1024)
def _hex(host: Host) -> str:
    return packed(host).hex().upper()
