"""One run of the benchmark: its options, its directory, and the file for its results."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as ProgressBar

from bench import results, tables
from bench.cost import Cost
from bench.generator.plan import Delays, Done, Job, Load, Outcome, Progress
from bench.generator.run import LoadFailedError, run
from bench.histograms import percentiles_ms
from bench.peers.registry import SYSTEMS
from bench.peers.system import HOST, System, free_port

DAY_MS = 86_400_000
Place = tuple[str, str, str, int]
"""Scenario, case, system and round of a result."""


class Options(NamedTuple):
    """The options of the command line."""

    rounds: int = 3
    seconds: float = 5.0
    warm_up_s: float = 1.0
    systems: Sequence[str] = tuple(SYSTEMS)
    pending: Sequence[int] = (0, 1_000_000)
    rates: Sequence[int] = (1_000, 5_000, 20_000)
    counts: Sequence[int] = (1_000, 100_000, 1_000_000)
    soak_s: float = 60.0
    records: int = 2_000_000
    segments: int = 0
    parts: Sequence[str] = ()


class Bench:
    """Starts systems, runs loads on them, and records the results."""

    def __init__(self, options: Options, run_id: str, work: Path, out: Path, console: Console) -> None:
        self.options = options
        self.work = work
        self._run_id = run_id
        self._out = out
        self._console = console
        self._reported: set[str] = set()
        self.faults = 0
        """The number of failed cases."""

    def say(self, text: str) -> None:
        """Print a line for the user."""
        self._console.print(text, highlight=False)

    @asynccontextmanager
    async def running(
        self, name: str, *flags: str, remoting: bool = False, grpc: bool = False
    ) -> AsyncIterator[System]:
        """Starts a system in a new directory with these extra flags; removes everything afterwards.

        With `remoting` it serves RocketMQ's own clients, at its `name_server`, and with `grpc` those that
        speak gRPC, at its `grpc_port`.
        """
        system = SYSTEMS[name].make(self.work / name.replace(" ", "-").replace(",", ""))
        system.flags += flags
        if remoting:
            system.name_server = f"{HOST}:{free_port()}"
        if grpc:
            system.grpc_port = free_port()
        shutil.rmtree(system.directory, ignore_errors=True)
        try:
            await system.start()
            self._tell(system)
            if system.warm_up_s:
                await self._warm_up(system)
            yield system
        finally:
            system.stop()
            shutil.rmtree(system.directory, ignore_errors=True)

    async def _warm_up(self, system: System) -> None:
        """Send and deliver without measuring, for as long as the system needs to warm up."""
        await system.prepare("warm-up")
        load = Load(
            "warm-up",
            system.sender("warm-up"),
            Delays(1_000, 2_000),
            connections=16,
            array=4,
            seconds=system.warm_up_s,
            receiver=system.receiver("warm-up"),
        )
        await self.put(f"warming up {system.name}", load)

    def _tell(self, system: System) -> None:
        if system.name not in self._reported:
            self._reported.add(system.name)
            entry = results.Peer(self._run_id, system.name, system.version(), dict(system.settings))
            results.write(self._out, entry)

    def present(self, names: Iterable[str]) -> list[str]:
        """The chosen systems that can start here.

        For the others, prints once which command installs them.
        """
        found = []
        for name in names:
            if name not in self.options.systems:
                continue
            missing = SYSTEMS[name].missing()
            if missing is None:
                found.append(name)
            elif name not in self._reported:
                self._reported.add(name)
                results.write(self._out, results.Peer(self._run_id, name, "", {}, missing))
                self.say(f"[yellow]{name}: not measured. To install it: {missing}")
        return found

    async def put(self, title: str, *loads: Load) -> Done:
        """Run loads concurrently, with progress. Raises LoadFailedError."""
        with ProgressBar(console=self._console, transient=True) as bar:
            total = sum(load.count or 0 for load in loads) or None
            task = bar.add_task(title, total=total)

            def report(progress: Progress) -> None:
                bar.update(task, completed=progress.sent, description=_progress(title, progress))

            return await run(Job(list(loads)), report)

    async def load(self, place: Place, *loads: Load) -> Done | None:
        """Run loads as `put` does; None if they failed, which is then the fault of this place."""
        try:
            return await self.put(f"{place[0]}, {place[1]}, {place[2]}", *loads)
        except LoadFailedError as error:
            self.figure(place, {}, fault=str(error))
            return None

    async def output(self, title: str, *words: str) -> Any:  # noqa: ANN401 - whatever JSON says
        """Run `python WORDS` behind a spinner; returns the JSON that it prints. Raises LoadFailedError."""
        with self.waiting(title):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            said, errors = await process.communicate()
        if process.returncode:
            raise LoadFailedError(errors.decode(errors="replace")[-2000:])
        return json.loads(said)

    @contextmanager
    def waiting(self, title: str) -> Iterator[None]:
        """Show a spinner for work of unknown length."""
        with ProgressBar(console=self._console, transient=True) as bar:
            bar.add_task(title, total=None)
            yield

    def table(self, scenario: str) -> None:
        """Print the results of this run for a scenario."""
        entries = [entry for entry in results.read(self._out) if getattr(entry, "run", "") == self._run_id]
        text = "\n".join([f"## {scenario}\n", *tables.of_scenario(scenario, entries)])
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def figure(
        self,
        place: Place,
        figures: Mapping[str, float],
        histograms: Mapping[str, str] | None = None,
        fault: str | None = None,
    ) -> None:
        """Record and print the result of a place."""
        entry = results.Figure(self._run_id, *place, dict(figures), dict(histograms or {}), fault)
        results.write(self._out, entry)
        self.faults += fault is not None
        scenario, case, system, number = place
        said = [f"{name} {value:,.1f}" for name, value in figures.items()]
        for name, encoded in (histograms or {}).items():
            found = percentiles_ms(encoded)
            said.append(f"{name} ms " + " / ".join(f"{value:,.1f}" for value in found.values()))
        text = f"[dim]{scenario}[/] {case} [bold]{system}[/] [dim]round {number}[/]  {'  '.join(said)}"
        self.say(text + (f"  [red]{escape(fault)}" if fault else ""))


def _progress(title: str, progress: Progress) -> str:
    received = f", {progress.received:,} received" if progress.received else ""
    return f"{title}: {progress.sent:,} sent{received}"


def sent_figures(done: Done, cost: Cost) -> dict[str, float]:
    """The result of a job with one load."""
    sent = done.loads[0].sent
    return {
        "messages_per_s": sent.measured / sent.seconds,
        "service_cpu_us_per_message": cost.cpu_us(sent.count),
        "generator_busy_share": done.cpu_s / done.wall_s,
    }


def fault_of(*outcomes: Outcome) -> str | None:
    """The losses, duplicates and early deliveries of all these loads."""
    found = [
        f"{one.name}: {one.delivered.faults}" for one in outcomes if one.delivered and one.delivered.faults
    ]
    return "; ".join(found) or None
