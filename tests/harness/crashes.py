"""Every crash of a fixed run, and what a disk may make of each.

The same run stops at the same step each time, whatever the disk makes of it afterwards. So for each step it
runs once, what it left is kept, and fates of the disk and of the index are tried on copies. Fates that leave
the same bytes are one.

With TIMERWHEEL_TEST_FATES=all, as in `make torture`, each step meets every fate of the disk with every fate
of the index. Otherwise it meets one of the disk with one of the index, and its neighbours meet others; a run
that asks for a sample then stops at two steps in four.
"""

import contextlib
import copy
import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.harness.clock import ManualClock
from tests.harness.faulty import FaultyFiles, SimulatedCrashError
from timerwheel.engine import Engine
from timerwheel.errors import TimerwheelError
from timerwheel.store.errors import StoreError

INDEXES = ("kept", "older", "lost")
PAGE_BYTES = 4096
ALL_FATES = os.environ.get("TIMERWHEEL_TEST_FATES") == "all"
SAMPLE_OF = 4
SAMPLED = (1, 2)
"""The remainders of the steps in a sample: of twelve steps in a row, those that meet every pair of fates."""

Stopped: TypeAlias = tuple[FaultyFiles, ManualClock, Any]
"""What is left of a run: the disk, the clock, and the books of what clients were told."""
RunOnce: TypeAlias = Callable[[Path, int | None], Awaitable[Stopped]]
"""Runs in an empty directory, up to the step at which the machine is to stop, or to the end."""


@dataclass
class Crash:
    """A machine that has stopped, by the name of the moment."""

    name: str
    directory: Path
    files: FaultyFiles
    clock: ManualClock
    books: Any
    seed: int

    @classmethod
    async def of(cls, run: Awaitable[Stopped], name: str, directory: Path, seed: int) -> "Crash":
        """Run until the machine stops, in a directory that is there and empty."""
        files, clock, books = await run
        directory.rename(_left(directory))
        return cls(f"{name}: {files.trace[-1]}", directory, files, clock, books, seed)

    def meets(self, index: str, indexes: Sequence[str] = INDEXES) -> bool:
        """Whether it is tried with this one of the fates of the index."""
        return ALL_FATES or indexes[self.seed % len(indexes)] == index

    def fates(self, count: int, index: str | None = None) -> list[tuple[int, FaultyFiles]]:
        """Those of `all_fates` that are tried, with a fate of the index if that has several."""
        if index is not None and not self.meets(index):
            return []
        found = list(self.all_fates(count))
        turn = self.seed if index is None else self.seed + INDEXES.index(index)
        return found if ALL_FATES else [found[turn % len(found)]]

    def all_fates(self, count: int) -> Iterator[tuple[int, FaultyFiles]]:
        """What the disk may have kept, drawn `count` times, without those that are as one before."""
        before: list[dict[str, bytes]] = []
        for fate in range(count):
            files = self.fate(fate, count)
            if files.contents() not in before:
                before.append(files.contents())
                yield fate, files

    def fate(self, fate: int, count: int) -> FaultyFiles:
        """One of `count` drawings of what the disk may have kept."""
        return self.files.after_crash(random.Random(self.seed * count + fate))

    @contextmanager
    def again(self, index: str, fate: int) -> Iterator[tuple[Path, ManualClock, Any]]:
        """The directory as it was left, with its index kept, older or lost, a clock and books of one's own.

        An error is told which crash it was.
        """
        shutil.copytree(_left(self.directory), self.directory)
        try:
            keep_index(self.directory, index)
            clock = ManualClock(self.clock.wall_ms)
            clock.mono_ms = self.clock.mono_ms
            yield self.directory, clock, copy.deepcopy(self.books)
        except BaseException as error:
            error.add_note(f"crash at {self.name}; seed {self.seed}, fate {fate}, index {index}")
            raise
        finally:
            shutil.rmtree(self.directory)


async def crashes_of(run_once: RunOnce, root: Path, *, sampled: bool = False) -> list[Crash]:
    """A crash at every step of a run, or at a sample of them, its last step among them."""
    whole = root / "whole"
    whole.mkdir()
    steps = (await run_once(whole, None))[0].steps
    crashes = []
    for step in range(1, steps + 1):
        if sampled and not ALL_FATES and step != steps and step % SAMPLE_OF not in SAMPLED:
            continue
        directory = root / str(step)
        directory.mkdir()
        crashes.append(await Crash.of(run_once(directory, step), f"step {step}", directory, step))
    return crashes


async def work_until_stopped(
    opening: Awaitable[Engine], work: Callable[[Engine], Awaitable[None]], *, close: bool = True
) -> None:
    """Open an engine, work, and perhaps close it in order; what the machine stops stays as it is."""
    engine = None
    with contextlib.suppress(SimulatedCrashError, TimerwheelError, StoreError, RuntimeError):
        engine = await opening
        await work(engine)
        if close:
            await engine.close()
    if engine is not None:
        with contextlib.suppress(SimulatedCrashError):
            await engine.abandon()


def _left(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.left")


def keep_index(directory: Path, index: str) -> None:
    """`older`: the last commit of the index is undone, as a power cut may do without the meta sync."""
    path = directory / "index" / "data.mdb"
    if index == "lost":
        shutil.rmtree(directory / "index", ignore_errors=True)
    elif index == "older" and path.exists():
        undo_last_commit(path)


def undo_last_commit(path: Path) -> None:
    """LMDB keeps its two newest meta pages; without the newer one it opens at the commit before."""
    data = bytearray(path.read_bytes())
    newest = max((0, PAGE_BYTES), key=lambda at: int.from_bytes(data[at + 144 : at + 152], "little"))
    other = PAGE_BYTES - newest
    data[newest : newest + PAGE_BYTES] = data[other : other + PAGE_BYTES]
    data[newest : newest + 8] = (newest // PAGE_BYTES).to_bytes(8, "little")
    path.write_bytes(data)
