"""The performance claims of this service, and whether the results of a run meet them.

They hold for two cores, bodies of 200 bytes, every acknowledged message synced, and none lost. A claim is met
if the median of the rounds reaches the target; for lateness and latency, the percentile over all rounds. It
is never met if one of our rounds had a fault.
"""

import enum
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from bench.peers.registry import OURS, OURS_GROUP
from bench.results import Entry, Rounds, Spread, Subject, by_subject, ratio, spread
from bench.wording import Cell, brief, cell, plain, unit


class How(enum.Enum):
    """How a figure is compared with its target."""

    AT_LEAST = "at least"
    ABOVE = "above"
    AT_MOST = "at most"
    NEVER_ABOVE = "never above"
    """In no round, regardless of the median."""


class Verdict(enum.Enum):
    """The verdict on a claim."""

    HELD = "held"
    NOT_HELD = "not held"
    NOT_MEASURED = "not measured"


class Case(NamedTuple):
    """The case to look at."""

    scenario: str
    name: str
    """May have a `*`; the worst of the matching cases counts."""


class Claim(NamedTuple):
    """Compares a figure with a target, or its ratio to a figure of a peer or of another case."""

    text: str
    case: Case
    figure: str
    """A name, or `lateness p99`: see `bench.results`."""
    how: How
    target: float
    peer: str = ""
    than_case: str = ""
    system: str = OURS
    arguments: str = ""
    """Arguments of the command after the scenario."""

    @property
    def command(self) -> str:
        """The command that measures it."""
        return f"python -m bench {self.case.scenario} {self.arguments}".rstrip()

    @property
    def is_ratio(self) -> bool:
        """Whether the target is a ratio."""
        return bool(self.peer or self.than_case)

    @property
    def target_text(self) -> str:
        """The target as text: `at most 20 ms`."""
        target = f"{self.target:.1f} times" if self.is_ratio else plain(self.target) + unit(self.figure)
        return f"{self.how.value} {target}"


class Judged(NamedTuple):
    """A claim with its result."""

    claim: Claim
    verdict: Verdict
    value: Spread | None
    faults: tuple[str, ...] = ()

    @property
    def value_text(self) -> Cell | None:
        """The result as the tables write it; None without one."""
        if self.value is None:
            return None
        said = cell(self.claim.figure, self.value)
        return said._replace(text=said.text + (" times" if self.claim.is_ratio else unit(self.claim.figure)))

    @property
    def said(self) -> str:
        """The result, and the faults."""
        measured = [str(self.value_text)] if self.value_text else []
        return "; ".join([*measured, *(f"fault: {fault}" for fault in self.faults)])

    @property
    def line(self) -> str:
        """The claim and its result on a line."""
        return f"{self.verdict.value}: {self.claim.text}: {self.claim.target_text}; {self.said or '-'}"


SINGLE = Case("schedule", "64 connections, 1 a request")
ALONE = Case("schedule", "1 connection, 1 a request")
ARRAYS = {array: Case("schedule", f"*, {array:,} a request") for array in (100, 1000)}
BACKLOG = Case("backlog", "10,000,000 pending")
BACKLOG_WORKERS = Case("backlog", "10,000,000 pending, read by 8 workers")
BACKLOG_100M = Case("backlog", "100,000,000 pending")
BURST = Case("burst", "100,000 in one millisecond")
BURST_WORKERS = Case("burst", "100,000 in one millisecond, read by 8 workers")
BURST_1M = Case("burst", "1,000,000 in one millisecond, nobody reading")
STEADY = Case("amplification", "5,000 a second")
LIGHT = Case("amplification", "1,000 a second")
LIGHT_GATHERED = Case("amplification", "1,000 a second, gathered for 5ms")
FAST_FORWARD = Case("amplification", "30 days in fast forward")
KILLED = Case("recover", "SIGKILL with 10,000,000 pending")
ARRAYS_OF_WORK = {
    array: Case("consume", f"4 connections, arrays of {array}, in one step") for array in (32, 256)
}
CLIENT_SINGLE = Case("clients", "16 threads, 1 a request")
CLIENT_BATCHES = Case("clients", "4 threads, 32 a request")
CLIENT_GRPC = Case("clients", "gRPC, 16 threads")
CLIENT_PUSH = Case("clients", "push consumer, backlog of 100,000")
CLIENT_BURST = Case("clients", "100,000 in one millisecond")
CLIENT_STEADY = Case("clients", "5,000 a second")
PUSH = Case("consume", "push, concurrency 64")
AT_LEAST, ABOVE, AT_MOST, NEVER_ABOVE = How
RATE, BEANSTALKD, REDIS = "messages_per_s", "beanstalkd -f 0", "Redis AOF always"
MIB_MAX = round(300e6 / 2**20, 1)

CLAIMS = [
    Claim("single sends over 64 connections", SINGLE, RATE, AT_LEAST, 10_000),
    Claim("the same, latency p99", SINGLE, "latency p99", AT_MOST, 20),
    Claim("the same, beside beanstalkd -f 0", SINGLE, RATE, AT_LEAST, 1.5, peer=BEANSTALKD),
    Claim("the same, beside Redis with AOF always", SINGLE, RATE, AT_LEAST, 0.6, peer=REDIS),
    Claim(
        "single sends over 1 connection, beside beanstalkd -f 0", ALONE, RATE, AT_LEAST, 0.7, peer=BEANSTALKD
    ),
    *(
        Claim(f"sends in arrays of {array:,}", case, RATE, AT_LEAST, 150_000)
        for array, case in ARRAYS.items()
    ),
    *(
        Claim(
            f"sends in arrays of {array:,}, beside Redis with AOF always, pipelined",
            case,
            RATE,
            ABOVE,
            1,
            peer=REDIS,
        )
        for array, case in ARRAYS.items()
    ),
    *(
        Claim(f"5,000 due a second with 10 M pending, {name}", BACKLOG, name, AT_MOST, target_ms)
        for name, target_ms in (("lateness p50", 2), ("lateness p99", 10), ("lateness p99.9", 25))
    ),
    *(
        Claim(
            f"the same, read by a group of 8 workers that acknowledge, {name}",
            BACKLOG_WORKERS,
            name,
            AT_MOST,
            target_ms,
        )
        for name, target_ms in (("lateness p50", 2), ("lateness p99", 8), ("lateness p99.9", 20))
    ),
    Claim("100,000 due in one millisecond, the first", BURST, "first_ms", AT_MOST, 10),
    Claim("the same, lateness p99", BURST, "lateness p99", AT_MOST, 1_000),
    Claim("the same, lateness p99 of another topic", BURST, "other_lateness p99", AT_MOST, 100),
    *(
        Claim(
            f"100,000 due in one millisecond, read by a group of 8 workers that acknowledge, {text}",
            BURST_WORKERS,
            name,
            AT_MOST,
            target_ms,
            system=OURS_GROUP,
        )
        for text, name, target_ms in (
            ("the last", "last_ms", 500),
            ("lateness p99 of another topic", "other_lateness p99", 20),
        )
    ),
    Claim("1 M due in one millisecond, all re-injected", BURST_1M, "last_ms", AT_MOST, 2_000),
    Claim(
        "single sends with 10 M pending, beside none pending",
        BACKLOG,
        "schedule_per_s",
        AT_LEAST,
        0.9,
        than_case="0 pending",
    ),
    Claim("memory but for pages of files, 10 M pending (300 MB)", BACKLOG, "anonymous_mib", AT_MOST, MIB_MAX),
    Claim(
        "the same, 100 M pending",
        BACKLOG_100M,
        "anonymous_mib",
        AT_MOST,
        MIB_MAX,
        arguments="--pending 100000000",
    ),
    Claim("bytes written for a byte stored, 5,000 a second", STEADY, "write_amplification", AT_MOST, 4),
    Claim("the same, 1,000 a second", LIGHT, "write_amplification", AT_MOST, 4),
    Claim("the same, with --gather 5ms", LIGHT_GATHERED, "write_amplification", AT_MOST, 4),
    Claim(
        "the same, due after 30 days, all cascades included",
        FAST_FORWARD,
        "write_amplification",
        AT_MOST,
        4,
        system="timerwheel engine",
    ),
    Claim("SIGKILL with 10 M pending, ready again", KILLED, "ready_s", AT_MOST, 1),
    Claim("the same, first due message delivered", KILLED, "first_due_s", AT_MOST, 2),
    *(
        Claim(f"recall in {name}", Case("recall", name), RATE, AT_LEAST, 100_000)
        for name in ("bulk by id", "bulk by filter")
    ),
    Claim("recall in races, wrong answers", Case("recall", "races"), "wrong", NEVER_ABOVE, 0),
    *(
        Claim(
            f"receive and acknowledge one at a time over {name}, {steps}, beside beanstalkd -f 0",
            Case("consume", f"{name}, one at a time, {steps}"),
            RATE,
            ABOVE,
            1,
            peer=BEANSTALKD,
            arguments="--parts receive",
        )
        for name in ("1 connection", "16 connections", "64 connections")
        for steps in ("in one step", "in two steps")
    ),
    Claim(
        "receive and acknowledge one at a time over 16 connections, in one step, CPU time of the service",
        Case("consume", "16 connections, one at a time, in one step"),
        "service_cpu_us_per_message",
        AT_MOST,
        120,
        arguments="--parts receive",
    ),
    *(
        Claim(
            f"receive and acknowledge in arrays of {array} over 4 connections",
            case,
            RATE,
            AT_LEAST,
            60_000,
            arguments="--parts receive",
        )
        for array, case in ARRAYS_OF_WORK.items()
    ),
    *(
        Claim(f"RocketMQ's Java client, {text}", case, RATE, AT_LEAST, target)
        for text, case, target in (
            ("single sends from 16 threads", CLIENT_SINGLE, 20_000),
            ("sends in batches of 32", CLIENT_BATCHES, 80_000),
            ("a push consumer with a backlog", CLIENT_PUSH, 50_000),
        )
    ),
    *(
        Claim(
            f"RocketMQ's Java client, {text}, beside RocketMQ 5", case, figure, how, 1, peer="RocketMQ 5 sync"
        )
        for text, case, figure, how in (
            ("single sends from 16 threads", CLIENT_SINGLE, RATE, ABOVE),
            ("sends in batches of 32", CLIENT_BATCHES, RATE, ABOVE),
            ("sends over gRPC", CLIENT_GRPC, RATE, ABOVE),
            ("a push consumer with a backlog", CLIENT_PUSH, RATE, ABOVE),
            ("the last of 100,000 due in one millisecond", CLIENT_BURST, "last_ms", AT_MOST),
        )
    ),
    Claim(
        "RocketMQ's Java client, the last of 100,000 due in one millisecond",
        CLIENT_BURST,
        "last_ms",
        AT_MOST,
        600,
    ),
    Claim(
        "RocketMQ's Java client, 5,000 due a second, lateness p99", CLIENT_STEADY, "lateness p99", AT_MOST, 10
    ),
    Claim(
        "RocketMQ's Java client, a send over gRPC, CPU (3,000/s a core)",
        CLIENT_GRPC,
        "service_cpu_us_per_message",
        AT_MOST,
        333,
    ),
    Claim("push, concurrency 64", PUSH, RATE, AT_LEAST, 8_000, arguments="--parts push"),
]


def judge(entries: Iterable[Entry], claims: Iterable[Claim] = CLAIMS) -> list[Judged]:
    """Each claim with its verdict, in the order of the claims."""
    subjects = by_subject(entries)
    return [_judged(claim, subjects) for claim in claims]


def _judged(claim: Claim, subjects: dict[Subject, Rounds]) -> Judged:
    ours = {
        subject.case: rounds
        for subject, rounds in subjects.items()
        if subject.scenario == claim.case.scenario
        and subject.system == claim.system
        and (fnmatchcase(subject.case, claim.case.name) or subject.case == claim.than_case)
    }
    faults = tuple(
        f"{case}, round {one.round}: {brief(one.fault)}"
        for case, rounds in ours.items()
        for one in rounds
        if one.fault
    )
    found = [
        value
        for case, rounds in ours.items()
        if case != claim.than_case and (value := _value(claim, case, rounds, subjects)) is not None
    ]
    worst = max if claim.how in (How.AT_MOST, How.NEVER_ABOVE) else min
    value = worst(found, default=None, key=lambda one: one.middle)
    if faults:
        return Judged(claim, Verdict.NOT_HELD, value, faults)
    if value is None:
        return Judged(claim, Verdict.NOT_MEASURED, None)
    return Judged(claim, Verdict.HELD if _holds(claim, value) else Verdict.NOT_HELD, value)


def _value(claim: Claim, case: str, rounds: Rounds, subjects: dict[Subject, Rounds]) -> Spread | None:
    if not claim.is_ratio:
        return spread(rounds, claim.figure)
    other = Subject(claim.case.scenario, claim.than_case or case, claim.peer or claim.system)
    return ratio(rounds, subjects.get(other, []), claim.figure)


def _holds(claim: Claim, value: Spread) -> bool:
    match claim.how:
        case How.AT_LEAST:
            return value.middle >= claim.target
        case How.ABOVE:
            return value.middle > claim.target
        case How.AT_MOST:
            return value.middle <= claim.target
        case How.NEVER_ABOVE:
            return value.most <= claim.target
