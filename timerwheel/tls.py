"""TLS as the service offers it: 1.2 and up, the ciphers of Python, and clients' certificates if wanted."""

import contextlib
import ssl
from hashlib import blake2s
from pathlib import Path

from timerwheel.errors import SettingsError
from timerwheel.settings import Serving

HANDSHAKE_TURNS = 3
"""How often each side of a handshake has to speak at most."""

Digests = dict[str, bytes]  # of what a file held, by its setting


def digests(serving: Serving) -> Digests:
    """Return the digests of the TLS files; a file that is not set or not readable has none."""
    found: Digests = {}
    for name in ("tls_certificate", "tls_key", "tls_client_ca"):
        path: Path | None = getattr(serving, name)
        if path is not None:
            with contextlib.suppress(OSError):
                found[name] = blake2s(path.read_bytes()).digest()
    return found


def news(before: Digests, now: Digests) -> str:
    """Return which files have changed, as text for the log."""
    changed = [name for name, digest in now.items() if before.get(name) != digest]
    return f"reloaded: {', '.join(changed)}" if changed else "the certificate has not changed"


def ssl_context(serving: Serving, *protocols: str) -> ssl.SSLContext | None:
    """Return the context to listen with, and offer these protocols (ALPN); None without a certificate.

    SettingsError names an unusable file.
    With `tls_client_ca` a client that shows no certificate of it is refused in the handshake.
    """
    if serving.tls_certificate is None or serving.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if protocols:
        context.set_alpn_protocols(list(protocols))
    _load(context, serving.tls_certificate, serving.tls_key)
    if serving.tls_client_ca is not None:
        try:
            context.load_verify_locations(cafile=serving.tls_client_ca)
        except OSError as error:
            raise _unusable("tls_client_ca", serving.tls_client_ca, error) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def own_context(serving: Serving) -> ssl.SSLContext | None:
    """Return the context to call a service with these settings on this machine; None without a certificate.

    It trusts this very certificate, whatever host name it is for. SettingsError.
    """
    if serving.tls_certificate is None or serving.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load(context, serving.tls_certificate, serving.tls_key)  # first: it says what is wrong with a file
    context.load_verify_locations(cafile=serving.tls_certificate)
    return context


def peer_context(serving: Serving) -> ssl.SSLContext | None:
    """Return the context to call other nodes, showing the own certificate; None without one.

    It trusts the system's authorities, those of clients, and what the file of the own certificate holds.
    SettingsError.
    """
    if serving.tls_certificate is None or serving.tls_key is None:
        return None
    context = ssl.create_default_context()
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load(context, serving.tls_certificate, serving.tls_key)  # first: it says what is wrong with a file
    context.load_verify_locations(cafile=serving.tls_certificate)
    if serving.tls_client_ca is not None:
        context.load_verify_locations(cafile=serving.tls_client_ca)
    return context


def check_own(serving: Serving) -> None:
    """Raise SettingsError if a service with these settings would refuse its own certificate from a client."""
    served, own = ssl_context(serving), own_context(serving)
    if served is None or own is None:
        return
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = own.wrap_bio(to_client, to_server)
    server = served.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(HANDSHAKE_TURNS):
            for side in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        if serving.tls_client_ca is None:
            raise SettingsError(
                f"tls_certificate = {serving.tls_certificate}: a node cannot call its shards with it: "
                f"{reason}"
            ) from error
        raise SettingsError(
            f"tls_client_ca = {serving.tls_client_ca}: a node is a client of its shards and shows them its "
            f"own certificate, which this authority does not confirm for clients ({reason}); use one that it "
            "does"
        ) from error


def reload(context: ssl.SSLContext, serving: Serving) -> None:
    """Use the current certificate and key files from the next connection on.

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
            f"tls_certificate = {certificate} and tls_key = {key} cannot be used together: {error}"
        ) from error


def _no_password() -> str:
    """Refuse an encrypted key: nobody is there to type a password."""
    raise ValueError("the key is protected by a password; use a key without one")


def _unusable(name: str, path: Path, error: OSError) -> SettingsError:
    return SettingsError(f"{name} = {path}: {error.strerror or error}")
