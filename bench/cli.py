"""`python -m bench [SCENARIO]...`: measures, records and reports."""

import importlib
import os
import shlex
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.markup import escape

from bench import machine, results
from bench.claims import Verdict, judge
from bench.generator.run import LoadFailedError
from bench.peers.registry import SYSTEMS
from bench.runner import Bench, Options

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "results.jsonl"
SCENARIOS = {
    "limits": "fdatasync, sequential write, bare aiohttp, the load generator alone",
    "schedule": "single requests over 1 to 256 connections, arrays of 10 to 1,000, Arrow; with peers",
    "fire": "lateness at a steady rate; with peers",
    "burst": "many due in one millisecond, with steady load on another topic; with peers",
    "backlog": "speed, lateness, memory and disk with a large backlog",
    "amplification": "bytes written for each byte stored",
    "recover": "time to recover after SIGKILL, after losing the index, with Spark",
    "recall": "one at a time, in bulk, in races with firing",
    "mixed": "all at once, one topic bursting",
    "soak": "a steady load for a long time",
    "clients": "RocketMQ's own Java client: sends, a backlog, a burst, a steady rate; beside RocketMQ",
    "consume": "receive and acknowledge, with peers; of our groups, nack, streams, push, idle workers",
    "logs": "whole logs: reading, replay, the jobs on Spark",
    "rows": "a table into the wheel, from Spark, a deduplication key for each row",
}
STANDARD = tuple(name for name in SCENARIOS if name not in {"logs", "rows"})
REPORT = "report"
_COLOURS = {Verdict.HELD: "green", Verdict.NOT_HELD: "bold red", Verdict.NOT_MEASURED: "yellow"}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers such as 1000,100000") from None


def _chosen_systems(text: str) -> list[str]:
    if text == "all":
        return list(SYSTEMS)
    found = [
        name for name in SYSTEMS if any(part.strip().lower() in name.lower() for part in text.split(","))
    ]
    if not found:
        raise typer.BadParameter(f"no system has {text!r} in its name; choose from {', '.join(SYSTEMS)}")
    return found


def _help() -> str:
    listed = "\n\n".join(f"**{name}**: {text}" for name, text in SCENARIOS.items())
    return f"""Measure this service and its alternatives on this machine.

Without a scenario, runs all but logs and rows. End with **{REPORT}** to write
bench/RESULTS.md and its plots from the results file.

{listed}"""


@app.command(help=_help(), rich_help_panel=None)
def bench(  # noqa: PLR0913, PLR0917 - options of a command line
    scenarios: Annotated[list[str] | None, typer.Argument(metavar="[SCENARIO]...")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; the systems take turns in each.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of each load in seconds.")] = 5.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Warm-up before that in seconds.")] = 1.0,
    systems: Annotated[
        str, typer.Option(help="Parts of system names, separated by commas: timerwheel,redis")
    ] = "all",
    pending: Annotated[str, typer.Option(help="Backlogs, separated by commas.")] = "0,1000000,10000000",
    rates: Annotated[
        str, typer.Option(help="Messages due per second, in fire and clients.")
    ] = "1000,5000,20000",
    counts: Annotated[
        str, typer.Option(help="Messages due in one millisecond, in burst and clients; or stored.")
    ] = "1000,100000,1000000",
    soak_seconds: Annotated[float, typer.Option(min=1, help="Duration of soak in seconds.")] = 60.0,
    records: Annotated[
        int, typer.Option(min=1000, help="Records of the log, in logs, or rows of the table, in rows.")
    ] = 2_000_000,
    segments: Annotated[int, typer.Option(min=0, help="Segments of that log; 0 for those of 128 MiB.")] = 0,
    parts: Annotated[
        str, typer.Option(help="Parts of clients, consume or logs, separated by commas; default all.")
    ] = "",
    out: Annotated[
        Path, typer.Option(dir_okay=False, help="File to append results to, one JSON object per line.")
    ] = RESULTS,
    work: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Directory for the data of the systems: the disk that is measured.",
        ),
    ] = None,
) -> None:
    """The command; its help is `_help`."""
    names = scenarios or [*STANDARD, REPORT]
    if unknown := [name for name in names if name not in {*SCENARIOS, REPORT}]:
        raise typer.BadParameter(f"no scenario {unknown[0]!r}; choose from {', '.join(SCENARIOS)}, {REPORT}")
    options = Options(
        rounds=rounds,
        seconds=seconds,
        warm_up_s=warm_up,
        systems=_chosen_systems(systems),
        pending=_whole_numbers(pending),
        rates=_whole_numbers(rates),
        counts=_whole_numbers(counts),
        soak_s=soak_seconds,
        records=records,
        segments=segments,
        parts=_chosen_parts(parts, [name for name in names if name != REPORT]),
    )
    console = Console(stderr=True)
    chosen = [name for name in names if name != REPORT]
    if chosen:
        with tempfile.TemporaryDirectory(prefix="timerwheel-bench-", dir=work) as made:
            _measure(chosen, options, Path(made), out, console)
    if REPORT in names:
        _report(out, console)


def _chosen_parts(text: str, names: Sequence[str]) -> list[str]:
    """The parts of a list; BadParameter for one that a chosen scenario does not have."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for name in names if parts else ():
        known = getattr(importlib.import_module(f"bench.scenarios.{name}"), "PARTS", None)
        if known is not None and (unknown := [part for part in parts if part not in known]):
            raise typer.BadParameter(f"{name} has no part {unknown[0]!r}; choose from {', '.join(known)}")
    return parts


def _measure(names: list[str], options: Options, work: Path, out: Path, console: Console) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    run = results.Run(
        id=uuid.uuid4().hex[:12],
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
        machine=machine.facts(work),
        commit=machine.commit(),
    )
    results.write(out, run)
    for name, value in run.machine.items():
        console.print(f"[dim]{name}: {value}", highlight=False)
    here = Bench(options, run.id, work, out, console)
    try:
        for name in names:
            uvloop.run(importlib.import_module(f"bench.scenarios.{name}").measure(here))
            here.table(name)
    except KeyboardInterrupt:
        console.print("stopped; results so far are kept")
        raise typer.Exit(130) from None
    except LoadFailedError as error:
        console.print(f"[red]the load failed:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(1) from None
    except (RuntimeError, TimeoutError) as error:  # from `System.ready`: it exited, or never came up
        console.print(f"[red]a system failed:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(1) from None
    if here.faults:
        console.print(f"[red]{here.faults} cases failed", highlight=False)
        raise typer.Exit(1)


def _report(out: Path, console: Console) -> None:
    from bench.report import write_report  # noqa: PLC0415 - matplotlib is slow to load

    if not out.exists():
        console.print(f"there are no results in {out}: run python -m bench first", highlight=False)
        raise typer.Exit(1)
    path = out.parent.parent / "RESULTS.md" if out == RESULTS else out.with_name("RESULTS.md")
    try:
        entries = results.read(out)
    except ValueError as error:
        console.print(escape(str(error)), highlight=False)
        raise typer.Exit(1) from None
    write_report(entries, path)
    for one in judge(entries):
        console.print(one.line, style=_COLOURS[one.verdict], markup=False, highlight=False, soft_wrap=True)
    console.print(f"written: {path}", highlight=False)


def main() -> None:
    """Entry point. SIGTERM stops the systems that it started, like Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        app()
    except BrokenPipeError:
        pass  # the reader of our output closed the pipe
    except OSError as error:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None]
        print(f"bench: {' -> '.join([*names, error.strerror or str(error)])}", file=sys.stderr)
        sys.exit(1)
