"""A JSON object that carries its own checksum: manifests, in which a wrong byte must not pass for a number.

The last member is `"checksum"`, the SHA-256 of all bytes before it. It finds what was damaged or edited by
hand, not what somebody forged. Objects of earlier versions have none.
"""

import hashlib

_MEMBER = b',"checksum":"'


class SealError(ValueError):
    """The bytes of an object are not those that were sealed."""


def seal(encoded: bytes) -> bytes:
    """The encoded object with its checksum; it must have a member already."""
    body = encoded[:-1]
    return body + _MEMBER + hashlib.sha256(body).hexdigest().encode() + b'"}'


def check_seal(raw: bytes) -> None:
    """Return if the checksum is right or there is none; SealError if it is wrong."""
    body, member, rest = raw.rpartition(_MEMBER)
    if member and rest != hashlib.sha256(body).hexdigest().encode() + b'"}':
        raise SealError("its checksum is not that of its content: it was damaged or edited")
