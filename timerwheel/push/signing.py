"""Signatures of Standard Webhooks, version 1. Pure, but for `random_secret`.

A signature is the HMAC-SHA256 of `id.timestamp.body` under a secret, in base64 after `v1,`. While two
secrets are valid there are two signatures, a space between them, so that a receiver can change over in peace.
A secret is written `whsec_` and the base64 of 24 to 64 bytes. See https://www.standardwebhooks.com.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

from timerwheel.errors import TimerwheelError

SECRET_PREFIX = "whsec_"  # noqa: S105 - how secrets begin, none itself
SECRET_BYTES = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64


class SecretError(TimerwheelError):
    """A signing secret is malformed by Standard Webhooks; the message never repeats it."""

    code = "illegal_secret"


def new_secret(random: bytes) -> str:
    """Make a secret of these random bytes; SecretError unless they are 24 to 64."""
    _check_size(random)
    return SECRET_PREFIX + base64.b64encode(random).decode()


def random_secret() -> str:
    """Make a secret that nobody can guess."""
    return new_secret(secrets.token_bytes(SECRET_BYTES))


def key_of(secret: str) -> bytes:
    """Return the bytes of a secret; SecretError says what is wrong with it."""
    if not secret.startswith(SECRET_PREFIX):
        raise SecretError(f"a secret must begin with {SECRET_PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise SecretError(f"the part of a secret after {SECRET_PREFIX} must be base64 with padding") from None
    _check_size(key)
    return key


def signature(valid: Sequence[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: one signature for each secret, in their order."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    digests = (hmac.digest(key_of(secret), signed, hashlib.sha256) for secret in valid)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def _check_size(key: bytes) -> None:
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise SecretError(
            f"a secret must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes before base64, not {len(key)}"
        )
