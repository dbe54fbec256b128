"""Every setting of the engine: name, unit, default and bound, checked when made."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, TypeVar

import msgspec

from timerwheel.errors import RangeError, SettingsError

MIB = 1 << 20
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_match_origin = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII
).fullmatch
_match_usual_port = re.compile(r"http://.*:80|https://.*:443").fullmatch


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's settings; `check` raises `SettingsError` that names the wrong one.

    All parts of an engine hold the same object, and read those of RELOADABLE each time they need them.
    """

    RELOADABLE: ClassVar = frozenset(
        {
            *(
                "flush_interval_ms",
                "gather_ms",
                "index_interval_ms",
                "index_records_max",
                "near_ms",
                "near_entries_max",
            ),
            *("cascade_entries_max", "retention_ms", "retention_interval_ms", "retention_archived_only"),
            *("quarantine_retention_ms", "disk_reserve_bytes"),
        }
    )

    data: Path
    flush: Literal["sync", "async"] = "sync"
    flush_interval_ms: int = 200
    gather_ms: int = 0
    segment_size_bytes: int = 128 * MIB
    index_interval_ms: int = 5_000
    index_records_max: int = 100_000
    index_map_size_bytes: int = 1 << 38
    near_ms: int = 10_000
    near_entries_max: int = 250_000
    readahead_bytes_max: int = 64 * MIB
    cascade_entries_max: int = 32_768
    fire_records_max: int = 1_000
    batch_bytes_max: int = 4 * MIB
    max_delay_ms: int = 10 * YEAR_MS
    levels: str = DEFAULT_LEVELS
    body_bytes_max: int = 4 * MIB
    properties_max: int = 128
    properties_bytes_max: int = 16 * 1024
    messages_per_request_max: int = 10_000
    request_bytes_max: int = 64 * MIB
    in_progress_bytes_max: int = 128 * MIB
    queues_per_topic: int = 1
    topics_max: int = 100_000
    slot_messages_max: int = 0
    groups_max: int = 10_000
    group_items_max: int = 100_000
    redelivery_delay_ms: int = 1_000
    push_private_targets: bool = False
    cors_origins: str = ""
    retention_ms: int = 3 * DAY_MS
    retention_interval_ms: int = 60_000
    retention_archived_only: bool = False
    quarantine_retention_ms: int = 30 * DAY_MS
    disk_reserve_bytes: int = 512 * MIB

    def check(self) -> "Settings":
        """Return self if every value is in range."""
        bounds: dict[str, tuple[int, int]] = {
            "flush_interval_ms": (1, 60_000),
            "gather_ms": (0, 1_000),
            "segment_size_bytes": (4096, 1 << 40),
            "index_interval_ms": (1, 60_000),
            "index_records_max": (1, 10_000_000),
            "index_map_size_bytes": (1 << 20, 1 << 46),
            "near_ms": (1_000, 60_000),
            "near_entries_max": (1, 100_000_000),
            "readahead_bytes_max": (0, 1 << 40),
            "cascade_entries_max": (1, 10_000_000),
            "fire_records_max": (1, 100_000),
            "batch_bytes_max": (1, 1 << 30),
            "max_delay_ms": (0, 1000 * YEAR_MS),
            "body_bytes_max": (0, 1 << 30),
            "properties_max": (0, 65_535),
            "properties_bytes_max": (0, 16 * MIB),
            "messages_per_request_max": (1, 1_000_000),
            "request_bytes_max": (1, 1 << 31),
            "in_progress_bytes_max": (1, 1 << 40),
            "queues_per_topic": (1, 1024),
            "topics_max": (1, 10_000_000),
            "slot_messages_max": (0, 1 << 40),
            "groups_max": (1, 1_000_000),
            "group_items_max": (1, 10_000_000),
            "redelivery_delay_ms": (0, 3_600_000),
            "retention_ms": (0, 1000 * YEAR_MS),
            "retention_interval_ms": (1, DAY_MS),
            "quarantine_retention_ms": (0, 1000 * YEAR_MS),
            "disk_reserve_bytes": (0, 1 << 50),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise RangeError(name, value, low, high)
        _check_origins(self.cors_origins)
        return self


def _check_origins(text: str) -> None:
    """Origins are compared with what browsers send as they stand: one written otherwise would never match."""
    origins = text.split()
    for origin in origins:
        if origins != ["*"] and (_match_origin(origin) is None or _match_usual_port(origin)):
            raise SettingsError(
                f"cors_origins: {origin!r} is not an origin: write https://shop.example or "
                "http://localhost:3000, apart by spaces, lower case, without path or usual port; or * alone"
            )


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


S = TypeVar("S", Settings, Serving)


class Reloaded(NamedTuple):
    """Names of fields that changed: taken over, and those that need a restart."""

    applied: list[str]
    waiting: list[str]


def take_over(current: S, wanted: S) -> Reloaded:
    """Let `current`, which everyone holds, have what `wanted` says, as far as that can change in a run.

    Call it between two steps of the event loop's tasks, and with settings that were checked.
    """
    found = Reloaded([], [])
    for field in msgspec.structs.fields(type(current)):
        value = getattr(wanted, field.name)
        if value == getattr(current, field.name):
            continue
        if field.name in current.RELOADABLE:
            msgspec.structs.force_setattr(current, field.name, value)
            found.applied.append(field.name)
        else:
            found.waiting.append(field.name)
    return found


def option_name(field: str) -> str:
    """The name of a field's option: without its unit."""
    if field.endswith("_bytes_max"):
        return field.removesuffix("_bytes_max") + "_size_max"
    for unit in ("_ms", "_bytes"):
        field = field.removesuffix(unit)
    return field
