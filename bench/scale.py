"""`python -m bench.scale`: what a load takes, by `bench.scale_model`; the page is doc/scale.md."""

import dataclasses
import json
from typing import Annotated

import typer

from bench.scale_model import INPUTS, Check, Load, Plan, Reading, checks, plan

UNITS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
RATES = (10_000, 100_000, 1_000_000)
PENDING = (10_000_000, 1_000_000_000, 10_000_000_000)
HOUR_S = 3_600
DAY_S = 24 * HOUR_S
TABLE_HEAD = (
    "| messages/s | pending | shards | node cores | brokers | log | index | brokers write | ready | first |",
    "|---|---|---|---|---|---|---|---|---|---|",
)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def size(value: float) -> str:
    """Bytes for people, in powers of 1,000."""
    for least, unit in UNITS:
        if value >= least:
            return f"{value / least:.3g} {unit}"
    return f"{value:.0f} B"


def span(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 2 * HOUR_S:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / HOUR_S:.3g} h"


def table(reading: Reading, retention_s: float) -> list[str]:
    """The rows of the page: rates and numbers of pending messages."""
    rows = list(TABLE_HEAD)
    for rate in RATES:
        for pending in PENDING:
            made = plan(Load(in_per_s=rate, pending=pending, reading=reading, retention_s=retention_s))
            shards = f"{made.shards}{' (!)' if made.breaks else ''}"
            cells = (
                f"{rate:,}",
                f"{pending:,}",
                shards,
                str(made.node_cores),
                str(made.brokers),
                size(made.log_bytes),
                size(made.index_bytes),
                f"{size(made.broker_disk_bytes_s)}/s",
                "" if made.ready_s is None else span(made.ready_s),
                made.first_bottleneck,
            )
            rows.append("| " + " | ".join(cells) + " |")
    return rows


def check_table(found: tuple[Check, ...]) -> list[str]:
    """The rows of the page: what was measured, what the model says, and its error."""
    rows = ["| measured, and no input | figure | the model | error | page |", "|---|---|---|---|---|"]
    for one in found:
        figures = f"{one.measured:,.6g} {one.unit} | {one.modelled:,.4g} | {one.error:+.0%}"
        rows.append(f"| {one.what} | {figures} | {one.page} |")
    return rows


def lines(made: Plan) -> list[str]:
    """A plan for people."""
    wanted = ", ".join(f"{name} {count}" for name, count in made.shards_wanted_by.items())
    takeover = "nobody takes over" if made.takeover_s is None else f"no sends for {span(made.takeover_s)}"
    ready = "never: no journal" if made.ready_s is None else f"ready after {span(made.ready_s)}"
    return [
        f"shards                  {made.shards}, by resource: {wanted}",
        f"first bottleneck        {made.first_bottleneck}",
        f"cores                   {made.shard_cores} of shards, {made.standby_cores} of standbys",
        f"                        {made.node_cores} of nodes that pass calls on",
        f"brokers                 {made.brokers}",
        f"one topic               {made.topic_per_s_max:,.0f} messages/s at most",
        f"log                     {size(made.log_bytes_s)}/s",
        f"                        {size(made.log_bytes)} in one copy, {size(made.broker_bytes)} on brokers",
        f"index                   {size(made.index_bytes)} in one copy",
        f"written by nodes        {size(made.node_disk_bytes_s)}/s",
        f"written by brokers      {size(made.broker_disk_bytes_s)}/s",
        f"network                 {size(made.network_bytes_s)}/s",
        f"memory                  {size(made.shard_memory_bytes)} for each shard and standby; the page cache",
        f"pending in a shard      {made.pending_a_shard:,.0f}",
        f"restart                 {span(made.restart_s)}",
        f"a leader dies           {takeover}",
        f"an empty node           {ready}",
        f"a lost index            read and replayed in {span(made.ready_least_s)}",
        *(f"breaks                  {what}" for what in made.breaks),
        *(f"untried                 {what}" for what in made.untried),
    ]


def page() -> list[str]:
    """The tables of doc/scale.md."""
    return [
        *table(Reading.GROUP, 3 * DAY_S),
        "",
        *table(Reading.QUEUE, HOUR_S),
        "",
        *check_table(checks()),
    ]


@app.command()
def main(  # noqa: PLR0913 - one for each field of a load
    *,
    in_per_s: Annotated[float, typer.Option("--in", help="Messages sent a second.")] = 10_000,
    out_per_s: Annotated[
        float | None, typer.Option("--out", help="Messages due a second; default as many as are sent.")
    ] = None,
    pending: Annotated[float, typer.Option(help="Scheduled messages.")] = 10_000_000,
    body: Annotated[int, typer.Option(help="Bytes of a body.")] = 200,
    text: Annotated[int, typer.Option(help="Bytes of topic and properties.")] = 4,
    array: Annotated[int, typer.Option(help="Messages in a send, and in a receive.")] = 100,
    consumers: Annotated[float, typer.Option(help="Consumers or groups that read each message.")] = 1,
    reading: Annotated[
        Reading, typer.Option(help="Groups that acknowledge, or long polls of the queue.")
    ] = Reading.GROUP,
    retention_hours: Annotated[float, typer.Option(help="How long delivered messages are kept.")] = 72,
    replicas: Annotated[int, typer.Option(help="Of the log, on brokers; 0 for logs on the local disk.")] = 3,
    standbys: Annotated[int, typer.Option(help="Standbys of each shard.")] = 1,
    direct: Annotated[
        bool, typer.Option("--direct", help="Clients call the right shard themselves.")
    ] = False,
    busy: Annotated[float, typer.Option(help="How busy a core is planned to be.")] = 0.6,
    broker_mb_s: Annotated[
        float, typer.Option(help="MB/s that a broker writes; 0 for what was measured.")
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with the inputs of the model.")
    ] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Print the tables of doc/scale.md instead.")
    ] = False,
) -> None:
    """What a load takes: shards, cores, brokers, bytes, times, and what ends first."""
    if tables:
        typer.echo("\n".join(page()))
        return
    try:
        load = Load(
            in_per_s=in_per_s,
            out_per_s=out_per_s,
            pending=pending,
            body_bytes=body,
            text_bytes=text,
            array=array,
            consumers=consumers,
            reading=reading,
            retention_s=retention_hours * HOUR_S,
            replicas=replicas,
            standbys=standbys,
            through_node=not direct,
            busy=busy,
            broker_bytes_s=broker_mb_s * 1e6,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    made = plan(load)
    if not as_json:
        typer.echo("\n".join(lines(made)))
        return
    inputs = {name.lower(): one._asdict() for name, one in INPUTS.items()}
    shown = {"load": dataclasses.asdict(load), "plan": dataclasses.asdict(made), "inputs": inputs}
    typer.echo(json.dumps(shown, indent=2))


if __name__ == "__main__":
    app()
