"""What the generator is asked to do and what it answers; both cross as JSON."""

import msgspec

from bench.wires.wire import Spec


class Delays(msgspec.Struct, frozen=True):
    """When messages are due: `from_ms` to `to_ms` after their sending, evenly drawn; or all at `at_ms`."""

    from_ms: int = 0
    to_ms: int = 0
    at_ms: int | None = None


class Load(msgspec.Struct, frozen=True):
    """Messages sent to one topic, and consumed from it if `receiver` is given.

    Without `per_second` each of `connections` sends its next request as soon as one is answered (closed
    loop). With it, requests are planned at even times whatever was answered, and latency counts from the
    plan: a stall shows in each request that it delayed (open loop, no coordinated omission).
    """

    name: str
    sender: Spec
    delays: Delays
    connections: int = 1
    array: int = 1
    per_second: float | None = None
    """Messages, not requests."""
    count: int | None = None
    """Stop after so many messages (of which `array` must be a divisor)."""
    seconds: float | None = None
    """Stop after so long; one of both must be given."""
    warm_up_s: float = 0.0
    """Sends of this time at first are made, but not measured."""
    start_s: float = 0.0
    """When to begin, after the job begins."""
    receiver: Spec | None = None
    receivers: int = 1
    patience_s: float = 60.0
    """How long after the last due time, or after the last message came, messages may still be waited for."""
    settle_s: float = 1.0
    """How long to listen for duplicates when all have come."""
    early_us: int = 0
    """How much before its due time a message may come: rounding of systems that know delays only."""


class Job(msgspec.Struct, frozen=True):
    """Loads that run side by side."""

    loads: list[Load]
    seed: int = 7


class Sent(msgspec.Struct, frozen=True):
    """What sending was. `measured` messages were answered within `seconds`, after the warm-up."""

    count: int
    measured: int
    seconds: float
    latency: str
    """HDR histogram of requests in microseconds, encoded."""


class Delivered(msgspec.Struct, frozen=True):
    """What consuming was. Times of the first and last are microseconds after the earliest due time."""

    count: int
    lost: int
    duplicates: int
    early: int
    earliest_us: int
    """The least lateness; negative if one was early."""
    first_us: int
    last_us: int
    lateness: str
    """HDR histogram in microseconds, encoded; early ones count as zero."""

    @property
    def faults(self) -> str | None:
        """None if each came once and in time."""
        found = {"lost": self.lost, "twice": self.duplicates, "early": self.early}
        said = ", ".join(f"{count:,} {name}" for name, count in found.items() if count)
        return f"{said} (earliest {self.earliest_us / 1000:.1f} ms)" if self.early else said or None


class Outcome(msgspec.Struct, frozen=True):
    """Of one load."""

    name: str
    sent: Sent
    delivered: Delivered | None = None


class Done(msgspec.Struct, frozen=True):
    """Of a job: its loads in their order, and what the generator itself needed."""

    loads: list[Outcome]
    cpu_s: float
    wall_s: float


class Progress(msgspec.Struct, frozen=True):
    """Totals so far."""

    sent: int
    received: int
