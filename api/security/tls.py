"""TLS as the service offers it: 1.2 and up, the ciphers of Python, and clients' certificates if wanted."""

import re
import ssl
from hashlib import blake2s
from pathlib import Path
from typing import NamedTuple

from timerwheel.errors import SettingsError
from timerwheel.serving import Serving

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION = 0xA0  # the tag of what a certificate begins with, unless it is of version 1
_UTC_TIME = 0x17  # the tag of a time whose year has two digits
_CENTURY_FROM = "50"


class TlsFiles(NamedTuple):
    """What the files of TLS held: a digest by setting, and when the certificate ends, if that can be read."""

    digests: dict[str, bytes]
    until: str | None

    def news(self, before: "TlsFiles") -> str:
        """What is another than before, and when the certificate ends, for the log."""
        changed = [name for name, digest in self.digests.items() if before.digests.get(name) != digest]
        news = f"read anew: {', '.join(changed)}" if changed else "the certificate is the same"
        return news if self.until is None else f"{news}; the certificate is good until {self.until}"


def tls_files(serving: Serving) -> TlsFiles | None:
    """What the files hold now, None without TLS; one that cannot be read has no digest."""
    if serving.tls_certificate is None:
        return None
    named = {"tls_certificate": serving.tls_certificate, "tls_key": serving.tls_key}
    named["tls_client_ca"] = serving.tls_client_ca
    held: dict[str, bytes] = {}
    for name, path in named.items():
        if path is not None:
            try:
                held[name] = path.read_bytes()
            except OSError:
                continue
    digests = {name: blake2s(data).digest() for name, data in held.items()}
    return TlsFiles(digests, _until(held.get("tls_certificate", b"")))


def ssl_context(serving: Serving) -> ssl.SSLContext | None:
    """What to listen with; None without a certificate. SettingsError names the file that cannot be used.

    With `tls_client_ca` a client that shows no certificate of it is refused in the handshake.
    """
    if serving.tls_certificate is None or serving.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load(context, serving.tls_certificate, serving.tls_key)
    if serving.tls_client_ca is not None:
        try:
            context.load_verify_locations(cafile=serving.tls_client_ca)
        except OSError as error:
            raise _unusable("tls_client_ca", serving.tls_client_ca, error) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def reload(context: ssl.SSLContext, serving: Serving) -> None:
    """Use the certificate and key that the files hold now, from the next connection on.

    SettingsError if they cannot be used: those from before stay. Authorities of clients are added; one that
    is gone from its file is trusted until a restart.
    """
    if ssl_context(serving) is None or serving.tls_certificate is None or serving.tls_key is None:
        return  # and if the files are wrong, that was said before the context in use was touched
    _load(context, serving.tls_certificate, serving.tls_key)
    if serving.tls_client_ca is not None:
        context.load_verify_locations(cafile=serving.tls_client_ca)


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    for name, path in (("tls_certificate", certificate), ("tls_key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise _unusable(name, path, error) from error
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise SettingsError(
            f"tls_certificate = {certificate}, tls_key = {key}: cannot be used together: {error}"
        ) from error


def _until(pem: bytes) -> str | None:
    """When the first certificate of a file ends, which is the one that is shown; ISO 8601."""
    found = _CERTIFICATE.search(pem)
    if found is None:
        return None
    try:
        tag, text = _not_after(ssl.PEM_cert_to_DER_cert(found[0].decode()))
    except (ValueError, IndexError):
        return None
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= _CENTURY_FROM else "20") + text
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:10]}:{text[10:12]}:{text[12:14]}Z"


def _not_after(der: bytes) -> tuple[int, str]:
    """The field of a certificate, with its tag: RFC 5280, 4.1. Python reads only what a peer has shown."""
    at, _ = _inside(der, 0)
    at, _ = _inside(der, at)  # of what is signed
    if der[at] == _VERSION:
        _, at = _inside(der, at)
    for _ in ("serial number", "algorithm", "issuer"):
        _, at = _inside(der, at)
    at, _ = _inside(der, at)  # of the validity
    _, at = _inside(der, at)  # behind `notBefore`
    begin, end = _inside(der, at)
    return der[at], der[begin:end].decode("ascii")


def _inside(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of an element begins, and where it ends."""
    size, begin = der[at + 1], at + 2
    if size & 0x80:
        digits = size & 0x7F
        size, begin = int.from_bytes(der[begin : begin + digits], "big"), begin + digits
    return begin, begin + size


def _no_password() -> str:
    """Called for a key that is encrypted: nobody is there to type a password."""
    raise ValueError("the key is protected by a password; give one that is not")


def _unusable(name: str, path: Path, error: OSError) -> SettingsError:
    return SettingsError(f"{name} = {path}: {error.strerror or error}")
