"""How the service is reached and what it says of itself: what `serve` takes besides the engine's settings."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from timerwheel.errors import RangeError, SettingsError

PORT_MAX = 65_535

_match_name = re.compile(r"[\w-]+(\.[\w-]+)*\.?").fullmatch
_match_numbers = re.compile(r"[0-9.]+").fullmatch


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """See `doc/operations.md`; `check` raises SettingsError that names the wrong one."""

    RELOADABLE: ClassVar = frozenset({"log_level", "log_format"})

    host: str = "127.0.0.1"
    port: int = 8686
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    open_to_all: bool = False
    rocketmq_metrics: bool = False
    traces: Literal["off", "otlp"] = "off"

    def check(self) -> "Serving":
        """Return self if the values go together. Whether files can be read shows when they are opened."""
        if not _is_host(self.host):
            raise SettingsError(
                f"host = {self.host!r}: this is no address or name; give 127.0.0.1 for programs of this "
                "machine, 0.0.0.0 or :: to listen on all its addresses, or one of them; "
                "the port has a setting of its own"
            )
        if not 0 <= self.port <= PORT_MAX:
            raise RangeError("port", self.port, 0, PORT_MAX)
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise SettingsError(f"{missing}: give tls_certificate and tls_key together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise SettingsError(
                "tls_client_ca: certificates are shown over TLS only; give tls_certificate too"
            )
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return _match_name(text) is not None and _match_numbers(text) is None
    return True
