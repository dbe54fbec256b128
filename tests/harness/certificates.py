"""Certificates for tests, made by openssl: an authority, and what it signs."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

DAYS = "2"


class Issued(NamedTuple):
    """A certificate with its key, and both in one file."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates; skips the test where there is no openssl."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs openssl: apt install openssl")
        self._directory = directory
        self._count = 0
        self.certificate = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._run(
            *("req", "-x509", *_key_options(self._key), "-out", str(self.certificate), "-days", DAYS),
            *("-subj", "/CN=an authority for tests", "-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign"),
        )

    def issue(self, name: str, days: str = DAYS) -> Issued:
        """A certificate for a name and the loopback address, good for servers and clients."""
        self._count += 1
        stem = self._directory / f"{name}-{self._count}"
        request, certificate, key = (stem.with_suffix(end) for end in (".csr", ".pem", ".key"))
        extensions = stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1\nkeyUsage=digitalSignature\n")
        self._run("req", "-new", *_key_options(key), "-out", str(request), "-subj", f"/CN={name}")
        self._run(
            *("x509", "-req", "-in", str(request), "-out", str(certificate), "-days", days),
            *("-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial"),
            *("-extfile", str(extensions)),
        )
        both = stem.with_suffix(".both")
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
        return Issued(certificate, key, both)

    def protect(self, key: Path) -> Path:
        """The key, encrypted."""
        protected = key.with_suffix(".protected")
        self._run("pkcs8", "-topk8", "-in", str(key), "-out", str(protected), "-passout", "pass:secret")
        return protected

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=self._directory)


def _key_options(key: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key))
