"""Flipped bits: one byte of one file of a data directory is changed, and an engine is started on it.

Allowed is the truth, or a refusal that names the place. The truth is what an engine says of the undamaged
directory, at once and after all time has passed (`tests/harness/golden.py` has the questions). Child
processes start the engines, so that one which damage kills is seen, too.
"""

import asyncio
import logging
import multiprocessing as mp
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness import golden
from tests.harness.clock import ManualClock
from tests.harness.world import World
from timerwheel import tokens
from timerwheel.runtime.archived import read_archived
from timerwheel.store.errors import IndexDamagedError, StoreError
from timerwheel.store.files import DiskFiles

DAY_MS = 86_400_000
ALL_TIME_MS = 60 * DAY_MS
GROUP = golden.GROUP


class Flip(NamedTuple):
    """One bit of one byte of a file, by its path in the data directory."""

    name: str
    at: int
    bit: int


class Case(NamedTuple):
    """An undamaged data directory, the time when it was left, and what an engine says of it."""

    directory: Path
    now_ms: int
    truth: list[Any]


class Outcome(NamedTuple):
    """What came of a flip: one of OUTCOMES, and the words in which it was said, or what was wrong."""

    kind: str
    detail: str = ""


RIGHT = "right answers"
REBUILT = "right answers, index set aside"
NAMED = "damage named, the rest right"
REFUSED = "start refused, place named"
WRONG = "WRONG"
OUTCOMES = (RIGHT, REBUILT, NAMED, REFUSED, WRONG)


async def make(scratch: Path) -> Case:
    """Write a data directory with something of everything in it, stopped in order.

    No message is leased: damage that ends an engine after its start would end the leases, too.
    """
    directory = scratch / "data"
    world = World(directory)
    world.files = DiskFiles()
    await world.open(retention_ms=golden.RETENTION_MS)
    await golden.live(world)
    await world.crash()
    [one] = await world.engine.groups.receive("lanes", "riders", count_max=2)
    await world.engine.groups.nack("lanes", "riders", [one.receipt], delay_ms=golden.HOLD_MS)
    await world.engine.close()
    golden.put_beside(directory, world.engine.core.log.log_id.hex(), world.clock.now_ms())
    now_ms = world.clock.now_ms()
    copy = scratch / "copy"
    shutil.copytree(directory, copy)
    return Case(directory, now_ms, await truth(copy, now_ms))


async def truth(directory: Path, now_ms: int) -> list[Any]:
    """What an engine says of a data directory: when it has started, and when all time has passed."""
    world = World(directory)
    world.files = DiskFiles()
    world.clock = ManualClock(now_ms)
    try:
        await world.open(retention_ms=10**12)
        found: list[Any] = [await golden.told(world)]
        await world.advance(ALL_TIME_MS)
        found.append(await golden.told(world))
        found.append(sorted(world.engine.firing.quarantined))
        await world.engine.close()
    except BaseException:
        if hasattr(world, "engine"):
            await world.engine.abandon()
        raise
    return [*found, tokens.read(directory).all, read_archived(DiskFiles(), directory)]


def flips_of(directory: Path, bit_of: Callable[[int], int]) -> Iterator[Flip]:
    """One flip for every byte of every file."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            for at in range(path.stat().st_size):
                yield Flip(str(path.relative_to(directory)), at, bit_of(at))


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def outcome_of(case: Case, flip: Flip, place: Path) -> Outcome:
    """Copy the directory, flip the bit, start an engine on the copy, and judge what it says."""
    shutil.copytree(case.directory, place)
    try:
        path = place / flip.name
        with path.open("r+b") as file:
            file.seek(flip.at)
            byte = file.read(1)[0]
            file.seek(flip.at)
            file.write(bytes([byte ^ 1 << flip.bit]))
        return _judged(case, flip, place)
    finally:
        shutil.rmtree(place)


def _judged(case: Case, flip: Flip, place: Path) -> Outcome:
    lines, log = _Lines(), logging.getLogger("timerwheel")
    log.addHandler(lines)
    try:
        try:
            found = asyncio.run(truth(place, case.now_ms))
        except IndexDamagedError:  # met by a question: it ends the service, and the next start rebuilds
            found = asyncio.run(truth(place, case.now_ms))
    except (StoreError, tokens.TokensError) as error:
        named = flip.name in str(error) and not isinstance(error, IndexDamagedError)
        return Outcome(REFUSED if named else WRONG, f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - a start that ends in any other error is what this looks for
        return Outcome(WRONG, f"{type(error).__name__}: {error}")
    finally:
        log.removeHandler(lines)
    aside = (place / "index.aside").exists()
    if found == case.truth:
        return Outcome(REBUILT if aside else RIGHT)
    said = "\n".join(lines.lines)
    if flip.name.startswith("log/") and flip.name in said and "damaged at log offset" in said:
        return Outcome(NAMED, said)
    return Outcome(WRONG, f"the answers differ; it said: {said}")


class _Worker:
    """A child process that tries flips one after the other."""

    def __init__(self, case: Case, flips: list[Flip], place: Path) -> None:
        self.left = flips
        self.place = place
        self._case = case
        self.results: Connection
        self._child: mp.process.BaseProcess
        self.begin()

    def begin(self) -> None:
        self.results, sending = mp.Pipe(duplex=False)
        arguments = (self._case, self.left, self.place, sending)
        self._child = mp.get_context("fork").Process(target=_work, args=arguments)
        self._child.start()
        sending.close()

    def next(self) -> tuple[Flip, Outcome]:
        """The outcome of the next flip; a child that died of it is replaced."""
        flip = self.left.pop(0)
        try:
            outcome = self.results.recv()
        except EOFError:
            self._child.join()
            outcome = Outcome(WRONG, f"the process ended with {self._child.exitcode}")
            shutil.rmtree(self.place, ignore_errors=True)
            self.end()
            if self.left:
                self.begin()
        return flip, outcome

    def end(self) -> None:
        self._child.join()
        self.results.close()


def _work(case: Case, flips: list[Flip], place: Path, out: Connection) -> None:
    logging.getLogger("timerwheel").propagate = False
    for flip in flips:
        out.send(outcome_of(case, flip, place))
    out.close()


def outcomes(
    case: Case, flips: Iterable[Flip], scratch: Path, workers: int = 1
) -> Iterator[tuple[Flip, Outcome]]:
    """What comes of each flip, tried by so many child processes at a time."""
    every = list(flips)
    shards = [every[number::workers] for number in range(workers)]
    running = {}
    for number, shard in enumerate(shard for shard in shards if shard):
        worker = _Worker(case, shard, scratch / f"flipped-{number}")
        running[worker.results] = worker
    while running:
        for ready in wait(list(running)):
            worker = running.pop(ready)
            yield worker.next()
            if worker.left:
                running[worker.results] = worker
            elif not worker.results.closed:
                worker.end()


def table(counts: dict[str, Counter[str]]) -> str:
    """A line for each sort of file: how many flips came to what."""
    lines = [f"{'file':16}" + "".join(f"{kind:>32}" for kind in OUTCOMES)]
    lines += [
        f"{name:16}" + "".join(f"{found[kind]:>32,}" for kind in OUTCOMES)
        for name, found in sorted(counts.items())
    ]
    return "\n".join(lines)


def sort_of(flip: Flip) -> str:
    """The sort of a file: segments are one sort, sidecars another."""
    path = Path(flip.name)
    return f"log/*{path.suffix}" if path.parent.name == "log" and path.suffix else flip.name
