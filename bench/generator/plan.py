"""The jobs and results of the generator, exchanged as JSON."""

import msgspec

from bench.wires.wire import Spec


class Delays(msgspec.Struct, frozen=True):
    """Due times: uniformly random from `from_ms` to `to_ms` after the send, or all at `at_ms`."""

    from_ms: int = 0
    to_ms: int = 0
    at_ms: int | None = None


class Load(msgspec.Struct, frozen=True):
    """Messages sent to one topic, and consumed from it if `receiver` is given.

    Without `per_second` each of `connections` sends its next request after the previous response (closed
    loop). With it, requests are planned at even intervals regardless of responses, and latency counts from
    the planned time, so that a stall shows in every request it delays (open loop, no coordinated omission).
    """

    name: str
    sender: Spec
    delays: Delays
    connections: int = 1
    array: int = 1
    per_second: float | None = None
    """In messages, not requests."""
    count: int | None = None
    """Stop after this many messages, a multiple of `array`."""
    seconds: float | None = None
    """Stop after this time; set this or the number of messages."""
    warm_up_s: float = 0.0
    """Sends in this first period are not measured."""
    start_s: float = 0.0
    """Delay from the start of the job."""
    receiver: Spec | None = None
    receivers: int = 1
    patience_s: float = 60.0
    """How long to wait for messages after the last due time or the last arrival."""
    settle_s: float = 1.0
    """How long to listen for duplicates once all messages have arrived."""
    early_us: int = 0
    """How early a message may arrive: rounding of systems that only support delays."""


class Job(msgspec.Struct, frozen=True):
    """Loads that run concurrently."""

    loads: list[Load]
    seed: int = 7


class Sent(msgspec.Struct, frozen=True):
    """The result of sending. `measured` messages were acknowledged within `seconds`, after the warm-up."""

    count: int
    measured: int
    seconds: float
    latency: str
    """HDR histogram of requests in microseconds, encoded."""


class Delivered(msgspec.Struct, frozen=True):
    """The result of consuming. First and last are microseconds after the earliest due time."""

    count: int
    lost: int
    duplicates: int
    early: int
    earliest_us: int
    """The smallest lateness; negative if a message was early."""
    first_us: int
    last_us: int
    lateness: str
    """HDR histogram in microseconds, encoded; early messages count as zero."""

    @property
    def faults(self) -> str | None:
        """Faults as text; None if each message arrived once and not early."""
        found = {"lost": self.lost, "twice": self.duplicates, "early": self.early}
        said = ", ".join(f"{count:,} {name}" for name, count in found.items() if count)
        return f"{said} (earliest {self.earliest_us / 1000:.1f} ms)" if self.early else said or None


class Outcome(msgspec.Struct, frozen=True):
    """The result of one load."""

    name: str
    sent: Sent
    delivered: Delivered | None = None


class Done(msgspec.Struct, frozen=True):
    """The result of a job: its loads in order, and the cost of the generator itself."""

    loads: list[Outcome]
    cpu_s: float
    wall_s: float


class Progress(msgspec.Struct, frozen=True):
    """Totals so far."""

    sent: int
    received: int
