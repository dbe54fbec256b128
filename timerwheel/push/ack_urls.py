"""The URLs at which a receiver acknowledges later: each is good for one message, one attempt. Pure.

    PUBLIC_URL/v1/acks/TOKEN

TOKEN is the base64url, without padding, of

    2 bytes  number of the shard, so that a node in front of shards knows where it goes
    34       the receipt of the message, which holds its queue, queue offset and attempt; 30 in tokens of
             earlier versions
    16       a tag over the others, keyed with the log's id
    rest     topic, a zero byte, group: UTF-8

Who has it may settle this one attempt, and nothing else: so it needs no API token. A token ends when its
receipt does.
"""

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple

from timerwheel.groups.receipts import RECEIPT_BYTES, UNMARKED_BYTES

ACK_URL_HEADER = "timerwheel-ack-url"
PATH = "/v1/acks/"
TOKEN_CHARACTERS_MAX = 1_024
_SHARD_BYTES = 2
_TAG_BYTES = 16
_HEAD_BYTES_MIN = _SHARD_BYTES + UNMARKED_BYTES + _TAG_BYTES


class Attempted(NamedTuple):
    """The attempt that a token names."""

    topic: str
    group: str
    receipt: str


class AckUrls:
    """Makes the URLs of one log, and reads their tokens."""

    def __init__(self, secret: bytes, shard: int, public_url: str) -> None:
        """With an empty `public_url` there are none: nobody knows where the service is reached."""
        self._keyed = {  # each its own, so that no token of one form is one of the other
            receipt_bytes: hashlib.blake2s(key=secret, digest_size=_TAG_BYTES, person=person)
            for receipt_bytes, person in ((RECEIPT_BYTES, b"ack-url2"), (UNMARKED_BYTES, b"ack-url"))
        }
        self._shard = shard.to_bytes(_SHARD_BYTES, "big")
        self._base = public_url.rstrip("/") + PATH if public_url else ""

    def headers(self, topic: str, group: str, receipt: str) -> dict[str, str]:
        """Return the header with the URL of an attempt; none if the service has no public URL."""
        if not self._base:
            return {}
        return {ACK_URL_HEADER: self._base + self.token(Attempted(topic, group, receipt))}

    def token(self, attempted: Attempted) -> str:
        """Return the token of an attempt."""
        head = self._shard + bytes.fromhex(attempted.receipt)
        name = f"{attempted.topic}\0{attempted.group}".encode()
        return base64.urlsafe_b64encode(head + self._tag(head, name) + name).rstrip(b"=").decode()

    def read(self, token: str) -> Attempted | None:
        """Return the attempt of a token that this log made; None for any other text."""
        raw = _raw(token)
        for receipt_bytes in self._keyed:
            head, rest = raw[: _SHARD_BYTES + receipt_bytes], raw[_SHARD_BYTES + receipt_bytes :]
            tag, name = rest[:_TAG_BYTES], rest[_TAG_BYTES:]
            if name and hmac.compare_digest(self._tag(head, name), tag):
                topic, _, group = name.decode().partition("\0")
                return Attempted(topic, group, head[_SHARD_BYTES:].hex())
        return None

    def _tag(self, head: bytes, name: bytes) -> bytes:
        tag = self._keyed[len(head) - _SHARD_BYTES].copy()
        tag.update(head + name)
        return tag.digest()


def shard_of(token: str) -> int:
    """Return the shard that a token names; 0 for what is not a token. The shard checks it."""
    raw = _raw(token)
    return int.from_bytes(raw[:_SHARD_BYTES], "big") if len(raw) > _HEAD_BYTES_MIN else 0


def _raw(token: str) -> bytes:
    if len(token) > TOKEN_CHARACTERS_MAX:
        return b""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
    # Bits behind the end would give one token several spellings.
    return raw if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() == token else b""
