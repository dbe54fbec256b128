"""Every setting, declared once: name, type, bounds, default, help, and whether it can be reloaded.

The command line, the configuration file, `timerwheel config` and the table in `doc/operations.md` follow from
these lines.
"""

import functools
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar, get_args

import msgspec

from timerwheel.errors import RangeError, SettingsError

MIB = 1 << 20
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
TOPIC_QUEUES_MAX = 1024
"""Most queues of a topic: a receive may look at each of them."""
PORT_MAX = 65_535
SHARDS_MAX = 64
"""Most shards: each is a process of its own on every node."""
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_match_origin = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII
).fullmatch
_match_usual_port = re.compile(r"http://.*:80|https://.*:443").fullmatch


class Setting(NamedTuple):
    """What a field declares besides its type and default. A number has both bounds."""

    help: str
    ge: int | None = None
    le: int | None = None
    reloadable: bool = False
    """Whether SIGHUP changes it in a running service; all others need a restart."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's settings. Each field declares its bounds, its help and whether it is reloadable.

    All parts of an engine share one object and read the reloadable fields each time they need them.
    """

    data: Annotated[Path, Setting("The data directory.")]
    flush: Annotated[
        Literal["sync", "async"],
        Setting("When a send is acknowledged: after the fsync (sync) or before it (async)."),
    ] = "sync"
    flush_interval_ms: Annotated[
        int, Setting("Longest time until an fsync, with flush async.", ge=1, le=60_000, reloadable=True)
    ] = 200
    gather_ms: Annotated[
        int,
        Setting(
            "How long each write to the log waits for more records to gather.",
            ge=0,
            le=1_000,
            reloadable=True,
        ),
    ] = 0
    direct_io: Annotated[
        bool,
        Setting("With flush sync, write small batches past the page cache, in sectors of 512 bytes."),
    ] = True
    segment_size_bytes: Annotated[
        int,
        Setting("Size of a segment of the commit log, the unit that retention removes.", ge=4096, le=1 << 40),
    ] = 128 * MIB
    index_interval_ms: Annotated[
        int,
        Setting(
            "Longest time between index commits; a start after a crash replays that much log.",
            ge=1,
            le=60_000,
            reloadable=True,
        ),
    ] = 5_000
    index_records_max: Annotated[
        int, Setting("Commit the index early after this many records.", ge=1, le=10_000_000, reloadable=True)
    ] = 100_000
    index_map_size_bytes: Annotated[
        int,
        Setting(
            "Address space reserved for the index; the index cannot grow beyond it.", ge=1 << 20, le=1 << 46
        ),
    ] = 1 << 38
    near_ms: Annotated[
        int, Setting("How far ahead timers are kept in memory.", ge=1_000, le=60_000, reloadable=True)
    ] = 10_000
    near_entries_max: Annotated[
        int,
        Setting(
            "About how many timers are kept in memory ahead of time, at most.",
            ge=1,
            le=100_000_000,
            reloadable=True,
        ),
    ] = 250_000
    readahead_bytes_max: Annotated[
        int, Setting("Most bytes of message bodies read ahead of their due time.", ge=0, le=1 << 40)
    ] = 64 * MIB
    cascade_entries_max: Annotated[
        int, Setting("Most timers moved down the wheel in one step.", ge=1, le=10_000_000, reloadable=True)
    ] = 32_768
    fire_records_max: Annotated[
        int, Setting("Most due messages written to the log in one step.", ge=1, le=100_000)
    ] = 1_000
    batch_bytes_max: Annotated[int, Setting("Largest group commit.", ge=1, le=1 << 30)] = 4 * MIB
    max_delay_ms: Annotated[int, Setting("Longest delay accepted.", ge=0, le=1000 * YEAR_MS)] = 10 * YEAR_MS
    levels: Annotated[
        str, Setting("Delays of the delay levels 1, 2, ... that the property DELAY selects.")
    ] = DEFAULT_LEVELS
    body_bytes_max: Annotated[int, Setting("Largest message body.", ge=0, le=1 << 30)] = 4 * MIB
    properties_max: Annotated[int, Setting("Most properties of a message.", ge=0, le=65_535)] = 128
    properties_bytes_max: Annotated[
        int, Setting("Largest total size of a message's properties, names and values.", ge=0, le=16 * MIB)
    ] = 32 * 1024
    messages_per_request_max: Annotated[
        int, Setting("Most messages in the array of one request.", ge=1, le=1_000_000)
    ] = 10_000
    request_bytes_max: Annotated[int, Setting("Largest request.", ge=1, le=1 << 31)] = 64 * MIB
    in_progress_bytes_max: Annotated[
        int, Setting("Most memory for requests and responses in progress.", ge=1, le=1 << 40)
    ] = 128 * MIB
    queues_per_topic: Annotated[
        int,
        Setting(
            "Default number of queues per topic; an ordered topic keeps its own.",
            ge=1,
            le=TOPIC_QUEUES_MAX,
        ),
    ] = 1
    topics_max: Annotated[int, Setting("Most topics.", ge=1, le=10_000_000)] = 100_000
    slot_messages_max: Annotated[
        int, Setting("Most messages due in the same second; 0 means no limit.", ge=0, le=1 << 40)
    ] = 0
    groups_max: Annotated[
        int, Setting("Most consumer groups, counted across all topics.", ge=1, le=1_000_000)
    ] = 10_000
    offset_commit_interval_ms: Annotated[
        int,
        Setting(
            "How often committed offsets of groups are stored; a crash loses the commits of one interval.",
            ge=1,
            le=3_600_000,
        ),
    ] = 5_000
    group_items_max: Annotated[
        int,
        Setting("Most messages that one group holds: leased, ready, delayed or parked.", ge=1, le=10_000_000),
    ] = 100_000
    transaction_timeout_ms: Annotated[
        int, Setting("Time from a transaction's begin to the first check with its sender.", ge=1, le=DAY_MS)
    ] = 6_000
    transaction_interval_ms: Annotated[
        int, Setting("How often the sender of an open transaction is asked again.", ge=1, le=DAY_MS)
    ] = 30_000
    transaction_checks_max: Annotated[
        int, Setting("Checks after which an open transaction is rolled back.", ge=1, le=1_000_000)
    ] = 15
    redelivery_delay_ms: Annotated[
        int, Setting("Shortest delay before a message is redelivered to a group.", ge=0, le=3_600_000)
    ] = 1_000
    push_private_targets: Annotated[
        bool, Setting("Let push subscriptions reach private and loopback addresses.")
    ] = False
    cors_origins: Annotated[
        str, Setting("Origins whose pages may call the API, separated by spaces; * allows all.")
    ] = ""
    retention_ms: Annotated[
        int, Setting("How long delivered messages are kept.", ge=0, le=1000 * YEAR_MS, reloadable=True)
    ] = 3 * DAY_MS
    retention_interval_ms: Annotated[
        int, Setting("How often retention looks for segments to remove.", ge=1, le=DAY_MS, reloadable=True)
    ] = 60_000
    retention_archived_only: Annotated[
        bool, Setting("Remove only segments that `timerwheel archive` has archived.", reloadable=True)
    ] = False
    quarantine_retention_ms: Annotated[
        int,
        Setting(
            "How long quarantine files are kept: data cut from a torn or damaged log.",
            ge=0,
            le=1000 * YEAR_MS,
            reloadable=True,
        ),
    ] = 30 * DAY_MS
    disk_reserve_bytes: Annotated[
        int,
        Setting("Free disk space below which new messages are refused.", ge=0, le=1 << 50, reloadable=True),
    ] = 512 * MIB

    def check(self) -> "Settings":
        """Return self if every value is in range, else raise SettingsError with the name of the wrong one."""
        _check_ranges(self)
        _check_origins(self.cors_origins)
        return self


def declared(field: msgspec.structs.FieldInfo) -> Setting:
    """Help, bounds and reloadability of a field of `Settings` or `Serving`."""
    _, found = get_args(field.type)
    assert isinstance(found, Setting)
    return found


def _check_ranges(settings: "Settings | Serving") -> None:
    for name, low, high in _ranges(type(settings)):
        value = getattr(settings, name)
        if not low <= value <= high:
            raise RangeError(name, value, low, high)


@functools.cache
def _ranges(kind: "type[Settings | Serving]") -> list[tuple[str, int, int]]:
    """Return the settings with bounds: name, lowest and highest value."""
    settings = ((field.name, declared(field)) for field in msgspec.structs.fields(kind))
    return [
        (name, found.ge, found.le)
        for name, found in settings
        if found.ge is not None and found.le is not None
    ]


def _check_origins(text: str) -> None:
    """Origins are compared byte for byte with what browsers send: any other spelling would never match."""
    origins = text.split()
    for origin in origins:
        if origins != ["*"] and (_match_origin(origin) is None or _match_usual_port(origin)):
            raise SettingsError(
                f"cors_origins: {origin!r} is not an origin: write https://shop.example or "
                "http://localhost:3000, in lower case, without a path or the default port, and separate "
                "several by spaces; * alone allows all"
            )


_match_base_url = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?").fullmatch
_match_name = re.compile(r"[\w-]+(\.[\w-]+)*\.?").fullmatch
_match_numbers = re.compile(r"[0-9.]+").fullmatch


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the process around the engine: where it listens and what it logs, exports and traces."""

    host: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Setting("Port to listen on; 0 picks a free one.", ge=0, le=PORT_MAX)] = 8686
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Setting("Lowest level that is logged; debug adds a line for each request.", reloadable=True),
    ] = "info"
    log_format: Annotated[
        Literal["console", "json"],
        Setting("Log lines for people (console) or one JSON object per line (json).", reloadable=True),
    ] = "console"
    tls_certificate: Annotated[Path | None, Setting("Serve HTTPS with this certificate chain (PEM).")] = None
    tls_key: Annotated[Path | None, Setting("Private key of the certificate (PEM).")] = None
    tls_client_ca: Annotated[
        Path | None, Setting("Accept only clients with a certificate signed by these authorities (PEM).")
    ] = None
    open_to_all: Annotated[bool, Setting("Listen beyond this machine even without API tokens.")] = False
    rocketmq_metrics: Annotated[bool, Setting("Also export metrics under RocketMQ's names.")] = False
    fast_path: Annotated[
        bool,
        Setting("Take plain sends, receives and acknowledgements on a shorter path with the same answers."),
    ] = True
    rocketmq: Annotated[
        str, Setting("Address (HOST:PORT) to listen on for RocketMQ's own clients; unset for none.")
    ] = ""
    rocketmq_address: Annotated[
        str,
        Setting(
            "Address (HOST:PORT) to advertise to RocketMQ clients; unset for the one that they connected to."
        ),
    ] = ""
    rocketmq_grpc: Annotated[
        str,
        Setting(
            "Address (HOST:PORT) to listen on for RocketMQ's gRPC clients; unset for none. "
            "It needs the extra grpc."
        ),
    ] = ""
    rocketmq_repeats_max: Annotated[
        int,
        Setting(
            "Recent sends of RocketMQ's clients that are remembered, to store a repeated one once.",
            ge=0,
            le=10_000_000,
        ),
    ] = 100_000
    rocketmq_exact: Annotated[
        bool,
        Setting(
            "Make the UNIQ_KEY of each message of RocketMQ's clients its deduplication key: a repeated send "
            "is stored once, after a crash too."
        ),
    ] = False
    kafka: Annotated[
        str,
        Setting(
            "Kafka brokers (HOST:PORT,...) from which to take and to which to send messages; unset for none. "
            "It needs the extra kafka."
        ),
    ] = ""
    kafka_inlet: Annotated[str, Setting("Kafka topic whose records are scheduled.")] = "timers"
    kafka_outlets: Annotated[
        str,
        Setting("Topics (NAME,...) to forward to Kafka, besides those that inlet records name."),
    ] = ""
    kafka_properties: Annotated[
        Path | None,
        Setting("File of librdkafka properties (name=value), for TLS and SASL towards Kafka."),
    ] = None
    journal: Annotated[
        str,
        Setting(
            "Kafka topic that makes the log durable (kafka://HOST:PORT,.../CLUSTER: the topic CLUSTER-log); "
            "unset for the local disk. It needs the extra kafka."
        ),
    ] = ""
    node_url: Annotated[
        str,
        Setting(
            "URL at which other nodes with the same journal, and their clients, reach this one; "
            "unset for the address it listens on."
        ),
    ] = ""
    public_url: Annotated[
        str,
        Setting(
            "URL at which receivers of pushes and tasks reach the service, to acknowledge later; unset for "
            "node_url or the address it listens on."
        ),
    ] = ""
    journal_replicas: Annotated[
        int,
        Setting("Replicas of the journal's topic when it is made; 0 for 3, or all brokers.", ge=0, le=100),
    ] = 0
    shards: Annotated[
        int,
        Setting(
            "Shards of the service, each a process with a log and topics of its own; it never changes.",
            ge=1,
            le=SHARDS_MAX,
        ),
    ] = 1
    traces: Annotated[
        Literal["off", "otlp"],
        Setting("Send spans of traced messages to a collector (otlp), or not at all (off)."),
    ] = "off"

    def check(self) -> "Serving":
        """Return self if the values are valid together. Files are opened later, at the start."""
        if not _is_host(self.host):
            raise SettingsError(
                f"host = {self.host!r} is not an address or a host name; give 127.0.0.1 for programs on this "
                "machine, 0.0.0.0 or :: to listen on all its addresses, or one of them; "
                "the port is a separate setting"
            )
        _check_ranges(self)
        for name in ("rocketmq", "rocketmq_address", "rocketmq_grpc"):
            if text := getattr(self, name):
                _check_address(name, text)
        for address in filter(None, self.kafka.split(",")):
            _check_address("kafka", address.strip())
        if self.journal:
            journal_of(self.journal)
        self._check_kafka()
        if self.public_url and _match_base_url(self.public_url) is None:
            raise SettingsError(
                f"public_url = {self.public_url!r} is not the URL of a service; give http:// or https://, a "
                "host, and a port or path if needed, such as https://timers.example"
            )
        if self.rocketmq_address and not self.rocketmq:
            raise SettingsError("rocketmq_address: nothing listens for RocketMQ's clients; give rocketmq too")
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise SettingsError(f"{missing}: give tls_certificate and tls_key together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise SettingsError(
                "tls_client_ca: client certificates need TLS; give tls_certificate and tls_key too"
            )
        return self

    def _check_kafka(self) -> None:
        """Raise SettingsError for settings of something that does not run."""
        for name in ("kafka_inlet", "kafka_outlets"):
            if not self.kafka and getattr(self, name) != getattr(Serving(), name):
                raise SettingsError(f"{name}: nothing goes to Kafka or comes from there; give kafka too")
        if self.kafka_properties is not None and not (self.kafka or self.journal):
            raise SettingsError("kafka_properties: nothing connects to Kafka; give kafka or journal too")

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the service over HTTP."""
        return is_loopback(self.host)

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach the service at all."""
        return not self.exposed

    @property
    def exposed(self) -> dict[str, str]:
        """The addresses that other machines can reach, by the setting that names each."""
        fronts = {name: getattr(self, name) for name in ("rocketmq", "rocketmq_grpc")}
        hosts = {"host": self.host} | {name: address_of(text)[0] for name, text in fronts.items() if text}
        return {name: getattr(self, name) for name, host in hosts.items() if not is_loopback(host)}


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of a HOST:PORT that `Serving.check` accepted; an IPv6 host is in brackets."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


class JournalAddress(NamedTuple):
    """Where a journal is: brokers, and the name of the log there."""

    servers: str
    cluster: str

    def of_shard(self, shard: int) -> "JournalAddress":
        """Return the address of a shard's journal, if this is that of a service in shards."""
        return self._replace(cluster=f"{self.cluster}-{shard}")

    @property
    def topic(self) -> str:
        """The name of the topic that the journal is in."""
        return f"{self.cluster}-log"

    @property
    def text(self) -> str:
        """The address as the setting `journal` has it."""
        return f"kafka://{self.servers}/{self.cluster}"


_match_journal = re.compile(r"kafka://([^/]+)/([A-Za-z0-9._-]{1,200})").fullmatch


def journal_of(text: str) -> JournalAddress:
    """Parse the setting `journal`; SettingsError."""
    found = _match_journal(text)
    if found is None:
        raise SettingsError(
            f"journal = {text!r} is not the address of a journal; give kafka://HOST:PORT/CLUSTER, where the "
            "topic is CLUSTER-log, and separate several HOST:PORT by commas"
        )
    for address in found[1].split(","):
        _check_address("journal", address)
    return JournalAddress(found[1], found[2])


def _check_address(name: str, text: str) -> None:
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_port = (
        port.isascii() and port.isdecimal() and len(port) <= len(str(PORT_MAX)) and int(port) <= PORT_MAX
    )
    if not (colon and is_port and _is_host(bare) and (":" in bare) == host.startswith("[")):
        raise SettingsError(
            f"{name} = {text!r} is not an address; give a host and a port, such as 127.0.0.1:9876"
        )


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach this address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def listens_to_all(host: str) -> bool:
    """Whether a service on this address listens on all addresses of its machine, so that it names none."""
    try:
        return ip_address(host).is_unspecified
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
    """Names of the fields that changed: those applied at once, and those waiting for a restart."""

    applied: list[str]
    waiting: list[str]


def take_over(current: S, wanted: S) -> Reloaded:
    """Copy the reloadable fields of `wanted` into `current`, the object that all parts share.

    Call it on the event loop, with settings that were checked.
    """
    found = Reloaded([], [])
    for field in msgspec.structs.fields(type(current)):
        value = getattr(wanted, field.name)
        if value == getattr(current, field.name):
            continue
        if declared(field).reloadable:
            msgspec.structs.force_setattr(current, field.name, value)
            found.applied.append(field.name)
        else:
            found.waiting.append(field.name)
    return found


def option_name(field: str) -> str:
    """The name of a field's option: the field without its unit."""
    if field.endswith("_bytes_max"):
        return field.removesuffix("_bytes_max") + "_size_max"
    for unit in ("_ms", "_bytes"):
        field = field.removesuffix(unit)
    return field
