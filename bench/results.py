"""Results of benchmark runs as JSON lines: facts about the run first, then a line for each round.

A file may hold several runs; a reader combines them, so that claims can cover scenarios from separate runs.

A figure is named `messages_per_s`, or after a histogram and a percentile, `lateness p99`, in milliseconds.
"""

import functools
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from bench.histograms import percentiles_ms
from bench.peers.registry import OURS, OURS_ASYNC, OURS_GROUP

LIKE = {
    "beanstalkd -f 0": (OURS, OURS_GROUP),
    "beanstalkd -f 50": (OURS_ASYNC,),
    "Redis AOF always": (OURS, OURS_GROUP),
    "Redis AOF everysec": (OURS_ASYNC,),
    "RocketMQ 5 sync": (OURS, OURS_GROUP),
    "RocketMQ 5 async": (OURS_ASYNC,),
}
"""For each peer, our settings with the same durability when the power fails."""


class Run(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """One call of `python -m bench`."""

    id: str
    at: str
    """When it started, ISO 8601 with zone."""
    command: str
    machine: dict[str, str]
    commit: str
    """The commit of the project, with `+` if files differ from it."""


class Peer(msgspec.Struct, frozen=True, tag="system", tag_field="kind"):
    """One system that was measured, or why it was not."""

    run: str
    name: str
    version: str
    settings: dict[str, str]
    missing: str | None = None
    """The command that installs it."""


class Figure(msgspec.Struct, frozen=True, tag="figure", tag_field="kind"):
    """The result of one system in one case of a scenario, in one round."""

    run: str
    scenario: str
    case: str
    system: str
    round: int
    figures: dict[str, float]
    """Figures by name, with the unit last: `messages_per_s`, `first_ms`, `generator_busy_share`."""
    histograms: dict[str, str] = {}
    """`latency` and `lateness`, in microseconds: see `bench.histograms`."""
    fault: str | None = None
    """Why this round failed: a loss, a duplicate, an early delivery, a refusal."""


Entry = Run | Peer | Figure
_decode = msgspec.json.Decoder(Entry).decode
_Entry = TypeVar("_Entry", Run, Peer, Figure)


def write(path: Path, entry: Entry) -> None:
    """Append a line."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(entry) + b"\n")


def read(path: Path) -> list[Entry]:
    """All entries of a file, in order. Raises ValueError that names an invalid line."""
    entries: list[Entry] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entries.append(_decode(line))
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}:{number} is not a result: {error}") from error
    return entries


def only(kind: type[_Entry], entries: Iterable[Entry]) -> list[_Entry]:
    """The entries of one kind."""
    return [entry for entry in entries if isinstance(entry, kind)]


class Subject(NamedTuple):
    """What the rounds measure."""

    scenario: str
    case: str
    system: str


Rounds: TypeAlias = list[Figure]


def by_subject(entries: Iterable[Entry]) -> dict[Subject, Rounds]:
    """All rounds of each subject, in the order of the file."""
    found: dict[Subject, Rounds] = {}
    for one in only(Figure, entries):
        found.setdefault(Subject(one.scenario, one.case, one.system), []).append(one)
    return found


class Spread(NamedTuple):
    """Several rounds of one figure."""

    middle: float
    """The median; for a percentile, that of all rounds together."""
    least: float
    most: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float], middle: float | None = None) -> "Spread":
        """Return the spread of at least one value."""
        chosen = statistics.median(values) if middle is None else middle
        return cls(chosen, min(values), max(values), len(values))


def spread(rounds: Rounds, name: str) -> Spread | None:
    """The spread of a figure or percentile; None if no round has it."""
    values = [value for one in rounds if (value := _value(one, name)) is not None]
    if not values:
        return None
    histogram, _, percentile = name.partition(" ")
    encoded = tuple(one.histograms[histogram] for one in rounds if histogram in one.histograms)
    return Spread.of(values, _percentiles_ms(encoded)[percentile] if percentile else None)


def ratio(ours: Rounds, theirs: Rounds, name: str) -> Spread | None:
    """Our figure divided by theirs in each common round; None without one.

    The systems take turns, so a slow machine slows both. Rounds with a fault, or where theirs is zero, do not
    count.
    """
    pairs = {(one.run, one.round): _value(one, name) for one in theirs if not one.fault}
    found = [
        value / other
        for one in ours
        if not one.fault
        and (value := _value(one, name)) is not None
        and (other := pairs.get((one.run, one.round)))
    ]
    return Spread.of(found) if found else None


def _value(one: Figure, name: str) -> float | None:
    histogram, _, percentile = name.partition(" ")
    if not percentile:
        return one.figures.get(name)
    if histogram not in one.histograms:
        return None
    found = _percentiles_ms((one.histograms[histogram],))
    return found[percentile] if found["max"] else None  # an empty histogram does not mean a lateness of zero


@functools.cache  # decoding takes milliseconds, and tables, claims and plots ask for the same ones
def _percentiles_ms(encoded: tuple[str, ...]) -> dict[str, float]:
    return percentiles_ms(*encoded)
