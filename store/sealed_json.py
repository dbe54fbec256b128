"""A JSON object that carries its own checksum: for manifests, where a flipped byte must not pass as a number.

The last member is `"checksum"`, the SHA-256 of all bytes before it. It detects damage and manual edits,
not forgery. Objects of earlier versions have none.
"""

import hashlib

_MEMBER = b',"checksum":"'


class SealError(ValueError):
    """The content of an object does not match its checksum."""


def seal(encoded: bytes) -> bytes:
    """Append the checksum to an encoded object, which must have a member already."""
    body = encoded[:-1]
    return body + _MEMBER + hashlib.sha256(body).hexdigest().encode() + b'"}'


def check_seal(raw: bytes, *, required: bool = False) -> None:
    """Return if the checksum is right, or there is none and none is required; else SealError."""
    body, member, rest = raw.rpartition(_MEMBER)
    if member and rest != hashlib.sha256(body).hexdigest().encode() + b'"}':
        raise SealError("its checksum is not that of its content: it was damaged or edited")
    if required and not member:
        raise SealError("it has no checksum: it was damaged or edited")
