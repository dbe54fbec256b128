"""A model of a service in shards with its log in Kafka: what a load takes, from figures of this project.

The model is arithmetic: it starts nothing and reads no clock. Each input is a `Measured`, with the page that
has it. Costs are straight lines through measured points, and a shard is a process that has one core. `checks`
gives measured points that are not inputs, each with what the model says about it and the error that is
allowed. The page is doc/scale.md.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from timerwheel.settings import SHARDS_MAX, Settings

RESULTS = "bench/results/epyc-fast/RESULTS.md"
PERFORMANCE = "doc/performance.md"
OPERATIONS = "doc/operations.md"
CLUSTER = "doc/cluster.md"
MIB = 2**20


class Measured(NamedTuple):
    """A figure of this project and where it is from."""

    value: float
    unit: str
    page: str
    what: str


SEND_1 = Measured(27.0, "µs of CPU", RESULTS, "schedule: 64 connections, 1 a request")
SEND_100 = Measured(3.42, "µs of CPU a message", RESULTS, "schedule: 16 connections, 100 a request")
FIRED = Measured(451_950, "messages/s", RESULTS, "burst: 1,000,000 in one millisecond, nobody reading")
BURST_ALONE = Measured(225, "ms", RESULTS, "burst: 100,000 in one millisecond, nobody reading, last")
BURST_READ = Measured(557, "ms", RESULTS, "burst: 100,000 in one millisecond, last")
RECEIVE_1 = Measured(209, "µs of CPU", PERFORMANCE, "consuming: 16 connections, in one step")
RECEIVE_256 = Measured(
    15, "µs of CPU a message", PERFORMANCE, "consuming: 4 connections, arrays of 256, in one step"
)
NODE_1 = Measured(420, "µs of CPU a call", PERFORMANCE, "shards: node, a send")
NODE_100 = Measured(700, "µs of CPU a call", PERFORMANCE, "shards: node, an array of 100")
BUSY_SEND = Measured(190, "µs of CPU a call", PERFORMANCE, "shards: a send, called directly, busy machine")
QUIET_SEND = Measured(47.4, "µs of CPU", RESULTS, "schedule: 16 connections, 1 a request")
KAFKA_ARRAYS = Measured(
    113_600, "messages/s", CLUSTER, "figures: arrays of 100 over 16 connections, in Kafka"
)
DISK_ARRAYS = Measured(
    141_350, "messages/s", CLUSTER, "figures: arrays of 100 over 16 connections, on the disk"
)
HEADER = Measured(80, "bytes", OPERATIONS, "sizing: a record besides topic, properties and body")
SIDECAR = Measured(64, "bytes", OPERATIONS, "sizing: a record in a sidecar")
INDEX_PENDING = Measured(43.2, "bytes", RESULTS, "backlog: 10,000,000 pending, index bytes a message")
INDEX_DELIVERED = Measured(32, "bytes", OPERATIONS, "sizing: a delivered message in the index")
WRITTEN_1K = Measured(5.3, "bytes for a byte stored", PERFORMANCE, "what limits the rest: 1,000 a second")
WRITTEN_10K = Measured(3.4, "bytes for a byte stored", PERFORMANCE, "what limits the rest: 10,000 a second")
WRITTEN_ASYNC = Measured(
    2.5, "bytes for a byte stored", PERFORMANCE, "what limits the rest: flush = async, 5,000"
)
DISK = Measured(1_616, "MiB/s", RESULTS, "limits: sequential write")
MEMORY = Measured(198, "MiB", RESULTS, "backlog: 10,000,000 pending, anonymous memory")
RESTART = Measured(0.5, "s", RESULTS, "recover: SIGKILL with 10,000,000 pending, ready")
START = Measured(0.82, "s", PERFORMANCE, "the claims on three machines: SIGKILL on the Xeon, ready")
SCAN = Measured(649_000, "records/s", PERFORMANCE, "whole logs: scanning, every CRC checked")
REPLAY = Measured(980_000, "records/s", PERFORMANCE, "whole logs: replay, the slowest run")
EMPTY_READY = Measured(12.9, "s", CLUSTER, "figures: an empty disk, 2,000,000 waiting")
MISSED = Measured(6, "s", CLUSTER, "who leads: the session time-out of the group")
TAKEN_OVER = Measured(
    1, "s", CLUSTER, "who leads: a standby leads within about a second, of a planned hand-over"
)
INPUTS = {name: value for name, value in vars().items() if isinstance(value, Measured)}

EMPTY_RECORDS = 2_000_000  # what EMPTY_READY copied
BENCH_TEXT_BYTES, BENCH_BODY_BYTES = 4, 200  # the topic and the body of the benchmark's messages
PENDING_MEASURED = 100_000_000  # the most pending messages that one process has had
SHARDS_MEASURED = 2  # doc/performance.md, "Shards"
INDEX_MAP_BYTES = Settings(data=Path("data")).index_map_size_bytes  # the default
US = 1e6


def line(one: float, many: float, size: int, at: float) -> float:
    """Cost of a message in an array of `at`: a part for the message, and a share of the part for the call.

    `one` is the cost alone, `many` that of a message in an array of `size`.
    """
    call = (one - many) / (1 - 1 / size)
    return one - call + call / at


def send_us(array: float) -> float:
    """CPU of a shard for a message that is sent in an array."""
    return line(SEND_1.value, SEND_100.value, 100, array)


def fire_us() -> float:
    """CPU of a shard for a message that falls due, in large batches."""
    return US / FIRED.value


def receive_us(array: float) -> float:
    """CPU of a shard for a message that a group receives and acknowledges."""
    return line(RECEIVE_1.value, RECEIVE_256.value, 256, array)


def read_us() -> float:
    """CPU of a shard for a message that a long poll of the queue reads, in large pages."""
    return (BURST_READ.value - BURST_ALONE.value) * 1_000 / 100_000


def quiet(busy_us: float) -> float:
    """A figure of the busy machine on which shards were measured, in proportion to a send on a quiet one."""
    return busy_us * QUIET_SEND.value / BUSY_SEND.value


def forward_us(array: float) -> float:
    """CPU of a node for a call that it passes on."""
    return quiet(NODE_1.value + (NODE_100.value - NODE_1.value) * (array - 1) / 99)


def journal_factor() -> float:
    """How many times the CPU of a send, or of firing, it takes with the log in Kafka."""
    return DISK_ARRAYS.value / KAFKA_ARRAYS.value


def record_bytes(body: int, text: int) -> int:
    """Bytes of a record in the log; `text` is topic and properties."""
    return math.ceil((HEADER.value + text + body) / 8) * 8


def written_factor(per_s: float) -> float:
    """Bytes written to the disk for a byte stored, `flush = sync`; not extrapolated on either side."""
    decade = min(max(math.log10(max(per_s, 1) / 1_000), 0), 1)
    return WRITTEN_1K.value + (WRITTEN_10K.value - WRITTEN_1K.value) * decade


def broker_bytes_s() -> float:
    """Bytes a second that one broker took beside service and generator on two cores; it can take more."""
    return KAFKA_ARRAYS.value * record_bytes(BENCH_BODY_BYTES, BENCH_TEXT_BYTES)


def ready_least_s(records: float) -> float:
    """Seconds until an empty node is ready, if it only reads and replays as it does from its disk."""
    return START.value + records / SCAN.value + records / REPLAY.value


def ready_s(records: float, *, start: float = START.value) -> float:
    """Seconds until an empty node is ready: in proportion to the one measurement with Kafka."""
    return start + (EMPTY_READY.value - START.value) * records / EMPTY_RECORDS


def takeover_s() -> float:
    """Seconds from the death of a leader until its standby leads."""
    return MISSED.value + TAKEN_OVER.value


class Reading(StrEnum):
    """How consumers read."""

    GROUP = "group"
    QUEUE = "queue"


@dataclass(frozen=True)
class Load:
    """What is wanted of the service."""

    in_per_s: float = 10_000
    out_per_s: float | None = None
    """Messages that fall due a second; None for as many as come in."""
    pending: float = 10_000_000
    body_bytes: int = 200
    text_bytes: int = 4
    """Topic and properties of a message."""
    array: int = 100
    """Messages in a send; also in a receive."""
    consumers: float = 1
    """How many consumers or groups read each message."""
    reading: Reading = Reading.GROUP
    retention_s: float = 3 * 86_400
    replicas: int = 3
    """Replicas of the topics of the log, on brokers; 0 for logs on the local disk."""
    standbys: int = 1
    through_node: bool = True
    """Whether clients call any node, or the right shard directly."""
    busy: float = 0.6
    """How busy a core is planned to be."""
    broker_bytes_s: float = 0
    """Bytes a second that a broker writes; 0 for what was measured."""

    def __post_init__(self) -> None:
        if self.array < 1 or not 0 < self.busy <= 1:
            raise ValueError(f"array is {self.array}, busy {self.busy}: at least 1; above 0 and at most 1")
        rest = (self.in_per_s, self.due_per_s, self.pending, self.body_bytes, self.text_bytes, self.consumers)
        if min(*rest, self.retention_s, self.replicas, self.standbys, self.broker_bytes_s) < 0:
            raise ValueError("no number of a load may be below 0")

    @property
    def due_per_s(self) -> float:
        """Messages that fall due a second."""
        return self.in_per_s if self.out_per_s is None else self.out_per_s


@dataclass(frozen=True)
class Plan:
    """What a load takes. Bytes a second are of the whole service."""

    shards: int
    shards_wanted_by: dict[str, int]
    first_bottleneck: str
    shard_cores: int
    standby_cores: int
    node_cores: int
    brokers: int
    topic_per_s_max: float
    log_bytes_s: float
    node_disk_bytes_s: float
    broker_disk_bytes_s: float
    network_bytes_s: float
    log_bytes: float
    index_bytes: float
    broker_bytes: float
    shard_memory_bytes: float
    pending_a_shard: float
    restart_s: float
    takeover_s: float | None
    ready_least_s: float
    ready_s: float | None
    breaks: tuple[str, ...]
    """What the service refuses or cannot survive with this load."""
    untried: tuple[str, ...]
    """Where the plan is beyond what was measured."""


def reader_us(load: Load) -> float:
    """CPU of a shard for a message and one of its readers."""
    return receive_us(load.array) if load.reading is Reading.GROUP else read_us()


class _Storage(NamedTuple):
    records: float
    log_bytes: float
    index_bytes: float


def _storage(load: Load) -> _Storage:
    """The log has what was written in the time of retention, and what is pending for longer."""
    window = (load.in_per_s + load.due_per_s) * load.retention_s
    records = window + max(load.pending - load.in_per_s * load.retention_s, 0)
    index = load.pending * INDEX_PENDING.value + load.due_per_s * load.retention_s * INDEX_DELIVERED.value
    return _Storage(
        records, records * (record_bytes(load.body_bytes, load.text_bytes) + SIDECAR.value), index
    )


def _busy_cores(load: Load) -> float:
    journal = journal_factor() if load.replicas else 1.0
    logged = load.in_per_s * send_us(load.array) + load.due_per_s * fire_us()
    return (logged * journal + load.due_per_s * load.consumers * reader_us(load)) / US


def _written_s(load: Load, shards: int, stored_s: float) -> float:
    """Bytes that leaders and standbys write to their disks a second; a copy is written as with `async`."""
    if load.replicas:
        return stored_s * WRITTEN_ASYNC.value * (1 + load.standbys)
    return stored_s * written_factor(load.in_per_s / shards)


def _shards_used(load: Load, log_bytes_s: float, broker: float) -> dict[str, float]:
    """How many shards each resource of a shard would fill, by its name."""
    wanted = {
        "processor of the shards": _busy_cores(load) / load.busy,
        "size of the index": _storage(load).index_bytes / INDEX_MAP_BYTES,
    }
    if load.replicas:
        wanted["partition of the log"] = log_bytes_s / broker
        wanted["copying by a standby"] = (load.in_per_s + load.due_per_s) * ready_s(1, start=0) / load.busy
    else:
        wanted["disk"] = log_bytes_s / 2 * WRITTEN_1K.value / (DISK.value * MIB)
    return wanted


def plan(load: Load) -> Plan:
    """What the load takes, and what ends first."""
    record = record_bytes(load.body_bytes, load.text_bytes)
    log_bytes_s = (load.in_per_s + load.due_per_s) * record
    broker = load.broker_bytes_s or broker_bytes_s()
    used = _shards_used(load, log_bytes_s, broker)
    wanted = {name: max(math.ceil(value), 1) for name, value in used.items()}
    shards = max(wanted.values())
    stored = _storage(load)
    standbys = load.standbys if load.replicas else 0
    reads_per_s = load.due_per_s * load.consumers
    calls = (load.in_per_s + reads_per_s) / load.array
    node_cores = math.ceil(calls * forward_us(load.array) / US / load.busy) if load.through_node else 0
    bodies_s = (load.in_per_s + reads_per_s) * load.body_bytes * (2 if load.through_node else 1)
    # The leader writes once, brokers copy to each other, standbys read.
    copies_s = log_bytes_s * (load.replicas + standbys)
    return Plan(
        shards=shards,
        shards_wanted_by=wanted,
        first_bottleneck=max(used, key=used.__getitem__),
        shard_cores=shards,
        standby_cores=math.ceil(standbys * used.get("copying by a standby", 0)),
        node_cores=node_cores,
        brokers=max(math.ceil(log_bytes_s * load.replicas / broker), load.replicas),
        topic_per_s_max=_topic_per_s_max(load),
        log_bytes_s=log_bytes_s,
        node_disk_bytes_s=_written_s(load, shards, load.in_per_s * record),
        broker_disk_bytes_s=log_bytes_s * load.replicas,
        network_bytes_s=bodies_s + copies_s,
        log_bytes=stored.log_bytes,
        index_bytes=stored.index_bytes,
        broker_bytes=stored.records * record * load.replicas,
        shard_memory_bytes=MEMORY.value * MIB,
        pending_a_shard=load.pending / shards,
        restart_s=RESTART.value,
        takeover_s=takeover_s() if standbys else None,
        ready_least_s=ready_least_s(stored.records / shards),
        ready_s=ready_s(stored.records / shards) if load.replicas else None,
        breaks=_breaks(load, wanted),
        untried=_untried(load, shards),
    )


def _topic_per_s_max(load: Load) -> float:
    """Messages a second of one topic, which is in one shard: as many as its core takes of this load."""
    rate = max(load.in_per_s, load.due_per_s)
    return rate / _busy_cores(load) * load.busy if rate else 0.0


def _breaks(load: Load, wanted: dict[str, int]) -> tuple[str, ...]:
    found = [
        f"{name}: {count} shards, and the setting `shards` ends at {SHARDS_MAX}"
        for name, count in wanted.items()
        if count > SHARDS_MAX
    ]
    if not load.replicas:
        found.append("a disk that is lost takes its messages along: no replicas")
    return tuple(found)


def _untried(load: Load, shards: int) -> tuple[str, ...]:
    found = []
    if load.pending / shards > PENDING_MEASURED:
        found.append(
            f"{load.pending / shards:,.0f} pending in a shard; measured were up to {PENDING_MEASURED:,}"
        )
    if shards > SHARDS_MEASURED:
        found.append(f"{shards} shards under load; measured were {SHARDS_MEASURED}, all on one machine")
    return tuple(found)


class Check(NamedTuple):
    """A measured point that is not an input, beside what the model says."""

    what: str
    page: str
    measured: float
    modelled: float
    unit: str
    error_max: float
    """Largest relative error that is allowed: the error seen when the model was made, rounded up."""

    @property
    def error(self) -> float:
        """Relative error of the model; above 0 if it says more than was measured."""
        return self.modelled / self.measured - 1


def checks() -> tuple[Check, ...]:
    """All points that check the model."""
    bench = record_bytes(BENCH_BODY_BYTES, BENCH_TEXT_BYTES)
    us = "µs a message"
    soak = send_us(10) + fire_us() + receive_us(1)
    burst = fire_us() + receive_us(1_000)
    return (
        Check("send, 10 a request", RESULTS, 7.82, send_us(10), us, 0.30),
        Check("send, 1,000 a request", RESULTS, 3.31, send_us(1_000), us, 0.05),
        Check(
            "sends in arrays of 1,000 by one shard", RESULTS, 301_500, US / send_us(1_000), "a second", 0.05
        ),
        Check("100,000 fired at once, nobody reading", RESULTS, 446_264, US / fire_us(), "a second", 0.02),
        Check(
            "1,000,000 fired at once and read",
            RESULTS,
            157_157,
            US / (fire_us() + read_us()),
            "a second",
            0.16,
        ),
        Check("send, 1 a request, 256 connections", RESULTS, 19.5, send_us(1), us, 0.39),
        Check("send, 1 a request, 1 connection", RESULTS, 155, send_us(1), us, 0.83),
        Check("1,000 fired at once, nobody reading", RESULTS, 116_003, US / fire_us(), "a second", 2.91),
        Check("received in one step, arrays of 32, 4 connections", PERFORMANCE, 26, receive_us(32), us, 0.23),
        Check("received in one step, 64 connections", PERFORMANCE, 151, receive_us(1), us, 0.39),
        Check("received in one step, 1 connection", PERFORMANCE, 499, receive_us(1), us, 0.59),
        Check("received in two steps, 16 connections", PERFORMANCE, 332, receive_us(1), us, 0.38),
        Check("burst with 8 workers, until the last", PERFORMANCE, 20.06, burst, us, 0.18),
        Check("soak at 2,000/s with groups, all of it", RESULTS, 415, soak, us, 0.49),
        Check("single sends, in Kafka beside the disk", CLUSTER, 0.92, 1 / journal_factor(), "times", 0.15),
        Check("log, 10 M pending", RESULTS, 351, bench + SIDECAR.value, "bytes a message", 0.01),
        Check("log, 100 M pending", RESULTS, 352, bench + SIDECAR.value, "bytes a message", 0.01),
        Check("index, 100 M pending", RESULTS, 43.4, INDEX_PENDING.value, "bytes a message", 0.01),
        Check("written for a byte stored, 2,000/s", PERFORMANCE, 4.9, written_factor(2_000), "times", 0.05),
        Check("written for a byte stored, 5,000/s", PERFORMANCE, 4.3, written_factor(5_000), "times", 0.10),
        Check("anonymous memory, 100 M pending", RESULTS, 180, MEMORY.value, "MiB", 0.11),
        Check("leader killed, 1 M pending: no sends for", CLUSTER, 8.2, takeover_s(), "s", 0.15),
        Check("leader asleep, 1 M pending: no sends for", CLUSTER, 7.8, takeover_s(), "s", 0.11),
        Check("empty disk, 2 M: ready, least", CLUSTER, 12.9, ready_least_s(EMPTY_RECORDS), "s", 0.56),
    )
