"""How the service is reached and what it says of itself: what `serve` takes besides the engine's settings."""

from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from timerwheel.errors import SettingsError

PORT_MAX = 65_535


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
        if not 0 <= self.port <= PORT_MAX:
            raise SettingsError(f"port = {self.port}: must be from 0 to {PORT_MAX}")
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
