"""`schedules list|show|put|pause|resume|run|delete|runs`: recurring messages."""

from typing import Annotated, Any

import msgspec
import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import (
    EtagFlag,
    IfMatchOption,
    JsonBodyFlag,
    PropertiesOption,
    YesFlag,
    body_or_json,
    confirm_or_exit,
    length_option,
    parse_at_ms,
    parse_pairs,
    word_option,
)
from timerwheel.cli.output import IdOutput, IdTimeOutput, Output, TimeOutput, body_shown
from timerwheel.cli.units import length_between
from timerwheel.client import Client
from timerwheel.client.connection import given
from timerwheel.model.durations import format_duration
from timerwheel.model.text import printable
from timerwheel.schedules.spec import NextRun
from timerwheel.wire.schedules import Schedule

RUNS_SHOWN = 5

NameArgument = Annotated[str, typer.Argument(help="The schedule's name.")]


def _every(text: str) -> int:
    from timerwheel.schedules.recurrence import EVERY_MS_MAX, EVERY_MS_MIN

    return length_between(EVERY_MS_MIN, EVERY_MS_MAX)(text)


def _jitter(text: str) -> int:
    from timerwheel.schedules.spec import JITTER_MS_MAX

    return length_between(0, JITTER_MS_MAX)(text)


def list_schedules(*, service: ServiceOptions, output: IdTimeOutput) -> None:
    """List the schedules with their next runs."""
    found = service.ask(lambda client: client.schedules.all())
    output.listing(
        {"schedules": [_fields(one) for one in found]},
        ("name", "topic", "runs", "next run", "~state"),
        [(one.name, one.topic, _rule(one), output.when(one.next_run_ms), _standing(one)) for one in found],
        ids=[one.name for one in found],
    )


def show(
    name: NameArgument, *, etag: EtagFlag = False, service: ServiceOptions, output: IdTimeOutput
) -> None:
    """Show a schedule and its next runs."""
    if etag:
        output.tag(service.ask(lambda client: client.schedules.etag(name)))
        return

    async def work(client: Client) -> tuple[Schedule, list[NextRun]]:
        return await client.schedules.get(name), await client.schedules.runs(name, RUNS_SHOWN)

    schedule, runs = service.ask(work)
    _show(schedule, runs, output)


def put(
    name: NameArgument,
    topic: Annotated[str, typer.Argument(help="The topic of the messages.")],
    body: Annotated[str, typer.Argument(help="The body of the messages; - reads it from stdin.")] = "",
    *,
    json_body: JsonBodyFlag = False,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="'M H D M W'", help="Cron expression: five fields, or @hourly, @daily and so on."
        ),
    ] = None,
    every_ms: Annotated[
        int | None,
        length_option("--every", "Interval between runs: 15m.", _every),
    ] = None,
    zone: Annotated[str, typer.Option(metavar="NAME", help="Time zone of --cron: Europe/Berlin.")] = "UTC",
    start: Annotated[str | None, typer.Option(metavar="TIME", help="No run before it.")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="No run from it on.")] = None,
    jitter_ms: Annotated[
        int | None,
        length_option("--jitter", "Delay each message by a random time up to this.", _jitter),
    ] = None,
    missed: Annotated[
        str, word_option("--missed", "What to do with runs missed in an outage.", "skip", "once", "all")
    ] = "once",
    skipped_hour: Annotated[
        str,
        word_option(
            "--skipped-hour", "What to do when a clock change skips the time.", "auto", "run_after", "skip"
        ),
    ] = "auto",
    repeated_hour: Annotated[
        str,
        word_option(
            "--repeated-hour", "What to do when a clock change repeats the time.", "auto", "first", "both"
        ),
    ] = "auto",
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    properties: PropertiesOption = None,
    tags: Annotated[str | None, typer.Option(help="The messages' tags.")] = None,
    keys: Annotated[str | None, typer.Option(help="The messages' keys, separated by spaces.")] = None,
    if_match: IfMatchOption = None,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Create or replace a schedule; give either --cron or --every."""
    if (cron is None) == (every_ms is None):
        raise typer.BadParameter("give one of --cron and --every")
    start_ms = None if start is None else parse_at_ms(start, output.zone, option="--start")
    end_ms = None if end is None else parse_at_ms(end, output.zone, option="--end")
    if start_ms is not None and end_ms is not None and end_ms <= start_ms:
        raise typer.BadParameter("is not after --start", param_hint="--end")
    options: Any = given(
        cron=cron,
        every_ms=every_ms,
        start_ms=start_ms,
        end_ms=end_ms,
        properties=parse_pairs(properties, "--property") or None,
        tags=tags,
        keys=keys,
        zone=zone,
        jitter_ms=jitter_ms,
        missed=missed,
        skipped_hour=skipped_hour,
        repeated_hour=repeated_hour,
        paused=paused,
        if_match=if_match,
    )
    options["body"] = body_or_json(body, options, json_body=json_body)

    async def work(client: Client) -> tuple[Schedule, list[NextRun]]:
        made = await client.schedules.put(name, topic, **options)
        return made, await client.schedules.runs(name, RUNS_SHOWN)

    schedule, runs = service.ask(work)
    _show(schedule, runs, output)


def pause(name: NameArgument, *, service: ServiceOptions, output: IdOutput) -> None:
    """Pause a schedule: it sends nothing until `resume`."""
    _report(service.ask(lambda client: client.schedules.pause(name)), "is paused", output)


def resume(name: NameArgument, *, service: ServiceOptions, output: IdTimeOutput) -> None:
    """Resume a schedule with its next run from now on."""
    schedule = service.ask(lambda client: client.schedules.resume(name))
    words = f"is resumed; next run {_next_run(schedule, output)}"
    _report(schedule, words, output)


def delete(
    name: NameArgument,
    *,
    yes: YesFlag = False,
    if_match: IfMatchOption = None,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """Delete a schedule; messages that it sent ahead are recalled. Asks first."""
    if not yes:
        confirm_or_exit(f"Delete schedule {name}, and recall the runs that it sent ahead?")
    deleted = service.ask(lambda client: client.schedules.delete(name, if_match=if_match))
    _report(deleted, "is deleted", output)


def runs(
    name: NameArgument,
    *,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many runs to list.")] = 10,
    service: ServiceOptions,
    output: TimeOutput,
) -> None:
    """List the next runs."""
    found = service.ask(lambda client: client.schedules.runs(name, count))
    rows = [(output.when(run.run_ms), output.when(run.due_ms)) for run in found]
    output.listing({"runs": found}, ("run", "message due"), rows)


def run(
    name: NameArgument,
    *,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Your name for this run: repeated with it, nothing is sent again."
        ),
    ] = None,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """Send its message at once, besides the planned runs."""
    sent = service.ask(lambda client: client.schedules.run(name, key))
    words = "was sent before, under this key" if sent.duplicate else f"is sent to {sent.topic}"
    output.result(sent, f"the message of schedule {name} {words}: {sent.id}", ids=[sent.id])


def _report(schedule: Schedule, words: str, output: Output) -> None:
    output.result(_fields(schedule), f"schedule {schedule.name} {words}", ids=[schedule.name])


def _fields(schedule: Schedule) -> dict[str, Any]:
    """Every field, also those that the API leaves out because they do not apply."""
    return {field.encode_name: getattr(schedule, field.name) for field in msgspec.structs.fields(schedule)}


def _rule(schedule: Schedule) -> str:
    if schedule.every_ms is not None:
        return f"every {format_duration(schedule.every_ms)}"
    return f"{printable(schedule.cron or '')} ({schedule.zone})"


def _standing(schedule: Schedule) -> str:
    return printable(schedule.problem) if schedule.problem is not None else _state(schedule)


def _state(schedule: Schedule) -> str:
    if schedule.paused:
        return "paused"
    return "active" if schedule.next_run_ms is not None else "ended"


def _next_run(schedule: Schedule, output: Output) -> str:
    return "-" if schedule.next_run_ms is None else output.time_and_distance(schedule.next_run_ms)


def _show(schedule: Schedule, coming: list[NextRun], output: Output) -> None:
    facts = [
        ("name", schedule.name),
        ("state", _state(schedule)),
        ("topic", schedule.topic),
        ("runs", _rule(schedule)),
    ]
    if schedule.start_ms is not None:
        facts.append(("from", output.time(schedule.start_ms)))
    if schedule.end_ms is not None:
        facts.append(("until", output.time(schedule.end_ms)))
    if schedule.jitter_ms:
        facts.append(("jitter", f"up to {format_duration(schedule.jitter_ms)}"))
    facts.append(("missed runs", schedule.missed))
    if schedule.missed_last_ms is not None:
        last = output.time_and_distance(schedule.missed_last_ms)
        facts.append(
            ("missed lately", f"{schedule.missed_runs:,} since the service started, the last {last}")
        )
    if schedule.problem is not None:
        facts.append(("problem", printable(schedule.problem)))
    facts += [(f"property {printable(k)}", printable(v)) for k, v in schedule.properties.items()]
    facts.append(("body", body_shown(schedule.body)))
    facts += [
        ("next run" if place == 0 else "", output.time_and_distance(run.due_ms))
        for place, run in enumerate(coming)
    ]
    output.details(_fields(schedule), facts, ids=[schedule.name])
