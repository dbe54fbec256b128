"""Writes RESULTS.md: measurements, machine and claims, with the commands that reproduce them.

Equal entries always give an equal page.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import plots, tables
from bench.claims import Judged, Verdict, judge
from bench.machine import VARYING
from bench.results import Entry, Figure, Peer, Run, only

SCENARIOS = {
    "schedule": "How many messages a second each system takes, and how long a request waits. Closed loop: a"
    " connection sends its next request when it has its answer. All are due a day later or more.",
    "fire": "How late messages reach a consumer when they fall due at a steady rate.",
    "burst": "Many messages due in the same millisecond, and the lateness of another topic at the same time.",
    "backlog": "Speed, memory and disk with a large number of pending messages.",
    "amplification": "Bytes written to the device for each byte stored, firing and cascades included.",
    "recover": "From the start of the process until it is ready, and until the first due message arrives.",
    "recall": "Recalling scheduled messages. In races with firing, the answer must match the outcome.",
    "mixed": "Sends, recalls and firing at once while one topic bursts.",
    "soak": "A steady load for a long time.",
    "consume": "Workers that receive and acknowledge, each in a closed loop. In two steps: the next request"
    " follows the answer to the acknowledgement; in one step, both are written together. A cycle is the time"
    " from one acknowledgement of a worker to its next. Ours alone: nack, streams, push, idle workers.",
    "clients": "RocketMQ's own Java client with the same load for both: a producer whose threads send in a"
    " closed loop, a push consumer that reads a backlog, and its lateness for delayed messages.",
    "logs": "Whole logs: reading, replay, the jobs on Spark.",
    "rows": "A table into the wheel, from Spark, a deduplication key for each row.",
    "limits": "Upper limits of the machine and of the libraries, for comparison.",
}
"""A description of each scenario, in the order of the page."""
_HEAD = """# What the benchmark measured

Written by `python -m bench`; manual changes are lost.

How to read it:

- A figure is the median of its rounds, with minimum and maximum in brackets where they differ. Systems
  took turns in each round.
- A ratio is ours over the peer's in each round; its median, minimum and maximum are shown. Our setting is the
  one as durable as the peer's; where that was not measured, the default, which syncs everything. Higher rates
  and lower percentiles are better.
- A percentile is over all rounds together, with minimum and maximum of single rounds in brackets.
- Lateness is the time from when a message was due until a consumer had it; latency, from when a request was
  sent, or should have been by its plan, until it was answered.
- The load generator is a process of its own on the same machine. "generator busy" is the share of time it
  used the CPU; close to 100 % it would be the limit.
- A lost, duplicate or early message is a fault; a claim with a fault is not met.
"""
_VERDICTS = {Verdict.HELD: "yes", Verdict.NOT_HELD: "**no**", Verdict.NOT_MEASURED: "not measured"}


def write_report(entries: Sequence[Entry], path: Path) -> None:
    """Write the page, and its plots into `results` beside it."""
    pictures = plots.draw(entries, path.parent / "results")
    found = dict.fromkeys(one.scenario for one in only(Figure, entries))
    ordered = [name for name in SCENARIOS if name in found]
    ordered += [name for name in found if name not in SCENARIOS]
    parts = [_HEAD, *_machine(entries), *_systems(entries), "## Claims\n", _claims(judge(entries))]
    for scenario in ordered:
        parts += _section(scenario, entries)
        for picture in pictures.get(scenario, []):
            parts.append(f"![{picture.stem.replace('-', ', ', 1)}](results/{picture.name})\n")
    path.write_text("\n".join(parts))


def _machine(entries: Iterable[Entry]) -> list[str]:
    runs = only(Run, entries)
    facts = dict.fromkeys(name for run in runs for name in run.machine if name not in VARYING)
    table = [
        [name, "; ".join(dict.fromkeys(run.machine[name] for run in runs if name in run.machine))]
        for name in facts
    ]
    made = [
        [run.at, run.commit, *(run.machine.get(name, "") for name in VARYING), _code(run.command)]
        for run in runs
    ]
    return [
        "## Machine\n",
        tables.table(["fact", ""], table),
        "The runs that this page is made of:\n",
        tables.table(["began", "commit", *VARYING, "command"], made),
    ]


def _systems(entries: Iterable[Entry]) -> list[str]:
    peers = only(Peer, entries)
    present = {peer.name: None for peer in peers if peer.missing is None}
    table = []
    for name in present:
        mine = [peer for peer in peers if peer.name == name and peer.missing is None]
        versions = ", ".join(dict.fromkeys(peer.version for peer in mine))
        settings = "; ".join(
            dict.fromkeys(f"{key}: {value}" for peer in mine for key, value in peer.settings.items())
        )
        table.append([name, versions, settings])
    parts = ["## Systems\n", tables.table(["system", "version", "settings"], table)]
    absent = {peer.name: peer.missing for peer in peers if peer.missing and peer.name not in present}
    if absent:
        parts += [
            "Not measured, because it was not there:\n",
            tables.table(
                ["system", "what installs it"], [[name, _code(line)] for name, line in absent.items()]
            ),
        ]
    return parts


def _claims(judged: Iterable[Judged]) -> str:
    rows = [
        (
            one.claim.text,
            one.claim.target_text,
            one.said,
            _VERDICTS[one.verdict],
            _code(one.claim.command),
        )
        for one in judged
    ]
    return tables.table(["claim", "target", "measured", "held?", "command"], rows)


def _section(scenario: str, entries: Sequence[Entry]) -> list[str]:
    figures = [one for one in only(Figure, entries) if one.scenario == scenario]
    ids = {one.run for one in figures}
    commands = dict.fromkeys(run.command for run in only(Run, entries) if run.id in ids)
    parts = [f"## {scenario}\n"]
    if scenario in SCENARIOS:
        parts.append(SCENARIOS[scenario] + "\n")
    if commands:
        parts.append("```console\n" + "\n".join(commands) + "\n```\n")
    parts.append(_rounds(figures) + "\n")
    return parts + tables.of_scenario(scenario, entries)


def _rounds(figures: Iterable[Figure]) -> str:
    counts: dict[tuple[str, str], int] = {}
    for one in figures:
        counts[one.case, one.system] = counts.get((one.case, one.system), 0) + 1
    least, most = min(counts.values()), max(counts.values())
    said = f"{least} to {most} rounds" if least < most else f"{most} round{'s' if most > 1 else ''}"
    return f"{said} of each case and system."


def _code(text: str) -> str:
    return f"`{text}`"
