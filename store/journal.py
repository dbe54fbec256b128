"""A journal: a place outside this machine where the bytes of a log are durable before they count.

    leader    places units in the log -> `append` (durable on return) -> writes them to its copy, the segments
    anybody   `read` -> takes the runs that count -> the same segments, byte for byte

A *run* is a range of bytes of the log, in one segment. It counts if it begins where the log ends, as far as
the runs before it count (`counts`). Everything else is skipped: what was seen already, and what a leader
wrote that another had replaced. All readers meet the runs in the same order, so all decide alike.

A journal has one leader. `claim` makes a process the leader, and from then on nothing that an earlier leader
appends is stored. Why that holds with Kafka: `doc/decisions.md`. A claim may leave a run of its own, the
`FENCE`, which no reader counts: a journal with nothing else is empty.
"""

from collections.abc import Generator, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from timerwheel.store.errors import FormatError


class RunKind(Enum):
    """What the bytes of a run are."""

    SEGMENT = "segment"  # the header of a new segment
    RECORDS = "records"  # whole units of records
    START = "start"  # a part of the manifest `start`, which takes no room in the log


class Run(NamedTuple):
    """Bytes of the log from the offset `base` on; of a manifest, the `part`th of so many `parts`."""

    kind: RunKind
    base: int
    data: bytes
    part: int = 0
    parts: int = 1

    @property
    def end(self) -> int:
        """The log offset behind the run."""
        return self.base if self.kind is RunKind.START else self.base + len(self.data)


FENCE: Final = Run(RunKind.RECORDS, (1 << 63) - 1, b"")
"""What a claim may store. It begins where no log ends, and so is passed over."""


class Placed(NamedTuple):
    """A run, and its position in the journal."""

    position: int
    run: Run


class Extent(NamedTuple):
    """Positions of a journal: of its first run, and behind its last. No other journal has its `name`."""

    name: str
    start: int
    end: int


class Journal(Protocol):
    """See the module. Each method blocks. `append` and `rest` belong to one thread, as `claim` does.

    All raise JournalAwayError if the journal does not answer in time.
    """

    run_bytes_max: int
    """The most bytes of a run; known once `claim` has returned."""

    def extent(self, *, make: bool = True) -> Extent:
        """Return what there is now, without becoming the leader. Any thread may call.

        A journal that is missing is made, or is a JournalMismatchError if `make` is false.
        """

    def claim(self, *, make: bool = True) -> Extent:
        """Become the leader; the extent has all that earlier leaders stored, and not this claim's own fence.

        `make` as for `extent`. Raises JournalFencedError if another process claims it at the same time.
        """

    def read(self, start: int, end: int) -> Iterator[Placed]:
        """Yield the runs at the positions [start, end) that were not dropped. Any thread may call."""

    def follow(self, start: int) -> Generator[Placed | int, None, None]:
        """Yield the runs from a position on, without an end; and a position when there is none before it.

        Raises JournalAwayError also if runs from there on were dropped. Close it to let go of what it holds.
        """

    def append(self, runs: Sequence[Run]) -> list[int]:
        """Store runs in order; returns their positions once all are durable.

        Raises JournalFencedError if there is another leader. After any error nothing may be appended.
        """

    def rest(self) -> None:
        """Tidy up between appends: call it every second. Raises as `append`."""

    def check(self) -> None:
        """Look whether what keeps the journal may still be trusted with it, as a claim does; warn of doubts.

        Raises JournalMismatchError if records would be lost. Any thread may call.
        """

    def trim(self, position: int) -> None:
        """Drop the runs before a position. Any thread may call."""

    def close(self) -> None:
        """Let go of the journal."""


def counts(run: Run, tail: int | None) -> bool:
    """Whether a run counts in a log that ends at `tail`, or that begins with this run if that is None."""
    return run.kind is RunKind.SEGMENT if tail is None else run.base == tail


def is_empty(journal: Journal, extent: Extent) -> bool:
    """Whether a journal has no runs there but fences; JournalAwayError."""
    return all(placed.run == FENCE for placed in journal.read(extent.start, extent.end))


class Parts:
    """Puts a manifest together from its runs, which one leader appended one after another."""

    def __init__(self) -> None:
        self._found: list[bytes] = []

    def add(self, run: Run) -> bytes | None:
        """Add the next run of a journal that counts; returns the manifest if it is complete now."""
        if run.kind is not RunKind.START or run.part == 0:
            self._found.clear()
        if run.kind is not RunKind.START or run.part != len(self._found):
            return None
        self._found.append(run.data)
        return b"".join(self._found) if len(self._found) == run.parts else None


def in_parts(base: int, raw: bytes, bytes_max: int) -> list[Run]:
    """Return the runs that carry a manifest."""
    parts = -(-len(raw) // bytes_max)
    cuts = [raw[at : at + bytes_max] for at in range(0, len(raw), bytes_max)]
    return [Run(RunKind.START, base, data, number, parts) for number, data in enumerate(cuts)]


_LABEL = "{} {} {} {}"


def label(run: Run) -> bytes:
    """Encode everything of a run but its bytes."""
    return _LABEL.format(run.kind.value, run.base, run.part, run.parts).encode()


def labelled(text: bytes, data: bytes) -> Run:
    """Decode a run; FormatError if its label was not made by `label`."""
    try:
        kind, base, part, parts = text.decode().split(" ")
        return Run(RunKind(kind), int(base), data, int(part), int(parts))
    except ValueError:
        raise FormatError(f"a record of the journal has the label {text!r}; use a newer version") from None
