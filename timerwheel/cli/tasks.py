"""`tasks create|list|show|cancel|run|reschedule|queues|queue|rotate`: URLs to call when they are due."""

from collections.abc import Awaitable
from typing import Annotated, Any, get_args

import typer

from timerwheel.cli.backoff import BackoffOption, format_backoff
from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.groups import AttemptsOption
from timerwheel.cli.messages import AtOption, DelayOption, time_of
from timerwheel.cli.options import (
    FinishFlag,
    JsonBodyFlag,
    body_or_json,
    given_or_null,
    one_of,
    parse_pairs,
)
from timerwheel.cli.output import IdOutput, IdTimeOutput, Output
from timerwheel.cli.subscriptions import ROTATION, HeadersOption, RateLimitOption, TimeoutOption
from timerwheel.client import Client
from timerwheel.client.connection import given
from timerwheel.model.durations import format_duration
from timerwheel.model.text import printable
from timerwheel.push.tasks.task import TASK_ATTEMPTS_MAX
from timerwheel.push.tasks.task_queue import TaskQueueView, TaskQueueWithSecret
from timerwheel.push.tasks.view import TaskState, TaskView

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id that `tasks create` printed.")]
TaskQueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="The task queue; by default `default`.")
]
TaskQueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The task queue's name.")]


def create(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The URL to call.")],
    body: Annotated[str, typer.Argument(help="The body; - reads it from stdin.")] = "",
    *,
    json_body: JsonBodyFlag = False,
    method: Annotated[str | None, typer.Option(help="The method; POST by default.")] = None,
    headers: HeadersOption = None,
    delay: DelayOption = None,
    at: AtOption = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="'M H D M W'", help="Repeat by a cron expression, or @daily."),
    ] = None,
    zone: Annotated[str | None, typer.Option(metavar="NAME", help="Time zone of --cron.")] = None,
    schedule: Annotated[str | None, typer.Option(metavar="NAME", help="Name of --cron's schedule.")] = None,
    queue: TaskQueueOption = None,
    max_attempts: AttemptsOption = None,
    retries: Annotated[
        int | None,
        typer.Option(min=0, max=TASK_ATTEMPTS_MAX - 1, help="Attempts after the first; 15 by default."),
    ] = None,
    backoff: BackoffOption = None,
    timeout_ms: TimeoutOption = None,
    callback: Annotated[
        str | None, typer.Option(metavar="URL", help="URL that gets the outcome of a success.")
    ] = None,
    failure_callback: Annotated[
        str | None, typer.Option(metavar="URL", help="URL that gets the outcome of a failure.")
    ] = None,
    dedup_key: Annotated[
        str | None,
        typer.Option("--dedup-key", help="Deduplication key: a second task with it stores nothing."),
    ] = None,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Create a task: call a URL now, later or repeatedly."""
    if retries is not None and max_attempts is not None:
        raise typer.BadParameter("give only one of --retries and --max-attempts")
    options: Any = given(
        **time_of(delay, at, None, output.zone),
        method=None if method is None else method.upper(),
        headers=parse_pairs(headers, "--header") or None,
        cron=cron,
        zone=zone,
        schedule=schedule,
        queue=queue,
        max_attempts=max_attempts,
        retries=retries,
        backoff=backoff,
        timeout_ms=timeout_ms,
        callback=callback,
        failure_callback=failure_callback,
        dedup_key=dedup_key,
    )
    content = body_or_json(body, options, json_body=json_body)
    made = service.ask(lambda client: client.tasks.create(target, content, **options))
    if made.schedule is not None:
        due = "never" if made.due_ms is None else output.time_and_distance(made.due_ms)
        output.result(made, f"schedule {made.schedule}, next run {due}", ids=[made.schedule])
        return
    due = output.time_and_distance(made.due_ms or 0)
    known = ", stored before under this key" if made.duplicate else ""
    output.result(made, f"{made.id} due {due}{known}", ids=[made.id] if made.id else [])


def list_tasks(
    *,
    queue: TaskQueueOption = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            parser=one_of(*get_args(TaskState)),
            metavar="STATE",
            help=f"Only those in this state: {', '.join(get_args(TaskState))}.",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Only those that call this host.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """List the tasks of a queue: scheduled ones first, then the others, newest first."""

    async def work(client: Client) -> list[TaskView]:
        wanted: Any = {"queue": queue, "state": state, "host": host}
        return [task async for task in client.tasks.all(**wanted, limit=limit)]

    tasks = service.ask(work)
    rows = [
        (one.id, one.state, f"{one.method} {printable(one.url)}", f"{one.attempts}", _time(one, output))
        for one in tasks
    ]
    columns = ("id", "state", "~call", "+#attempts", "time")
    output.listing({"tasks": tasks}, columns, rows, ids=[one.id for one in tasks])


def show(task_id: IdArgument, *, service: ServiceOptions, output: IdTimeOutput) -> None:
    """Show a task and its state, but not the values of its headers."""
    _show(service.ask(lambda client: client.tasks.get(task_id)), output)


def cancel(task_id: IdArgument, *, service: ServiceOptions, output: IdTimeOutput) -> None:
    """Cancel a task that is not being called."""
    _show(service.ask(lambda client: client.tasks.cancel(task_id)), output)


def run(task_id: IdArgument, *, service: ServiceOptions, output: IdTimeOutput) -> None:
    """Run a scheduled task now."""
    _show(service.ask(lambda client: client.tasks.run(task_id)), output)


def reschedule(
    task_id: IdArgument,
    *,
    delay: DelayOption = None,
    at: AtOption = None,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Reschedule a task."""
    options: Any = time_of(delay, at, None, output.zone)
    if not options:
        raise typer.BadParameter("give --delay or --at")
    _show(service.ask(lambda client: client.tasks.reschedule(task_id, **options)), output)


def queues(*, service: ServiceOptions, output: IdOutput) -> None:
    """List the task queues."""
    found = service.ask(lambda client: client.tasks.queues())
    rows = [
        (
            one.queue,
            f"{one.scheduled:,}",
            f"{one.ready:,}",
            f"{one.running:,}",
            f"{one.retrying:,}",
            "paused" if one.paused else "active",
        )
        for one in found
    ]
    columns = ("queue", "#scheduled", "#ready", "#running", "#retrying", "state")
    output.listing({"queues": found}, columns, rows, ids=[one.queue for one in found])


def queue(
    name: TaskQueueArgument,
    *,
    rate_limit: RateLimitOption = None,
    concurrency: Annotated[
        int | None, typer.Option(min=0, help="Most concurrent calls; 0 for no limit.")
    ] = None,
    host_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most concurrent calls to one host.")
    ] = None,
    paused: Annotated[
        bool | None,
        typer.Option("--pause/--resume", help="Pause or resume calls.", show_default=False),
    ] = None,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """Show a task queue; with options, create it or change its limits."""
    limits = given_or_null(rate_limit=rate_limit, concurrency=concurrency)
    options: Any = given(host_concurrency=host_concurrency, paused=paused) | limits

    def work(client: Client) -> Awaitable[TaskQueueView]:
        return client.tasks.put_queue(name, **options) if options else client.tasks.get_queue(name)

    _show_queue(service.ask(work), output)


def rotate(
    name: TaskQueueArgument,
    *,
    finish: FinishFlag = False,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """Sign with a new secret and the old one; use `--finish` once the receivers have the new one."""

    def work(client: Client) -> Awaitable[TaskQueueView]:
        change = client.tasks.finish_rotation if finish else client.tasks.rotate_secret
        return change(name)

    _show_queue(service.ask(work), output)


def _time(task: TaskView, output: Output) -> str:
    """Return the time that matters most: of the end, of the next attempt, or when it was due."""
    return output.when(task.finished_ms or task.next_attempt_ms or task.due_ms)


def _show(task: TaskView, output: Output) -> None:
    facts = [
        ("id", task.id),
        ("queue", task.queue),
        ("state", task.state),
        ("call", f"{task.method} {printable(task.url)}"),
        ("due", output.time_and_distance(task.due_ms)),
        ("attempts", f"{task.attempts} of {task.max_attempts}, backoff {format_backoff(task.backoff)}"),
        ("timeout", format_duration(task.timeout_ms)),
    ]
    if task.next_attempt_ms is not None and task.state != "scheduled":
        facts.append(("next attempt", output.time_and_distance(task.next_attempt_ms)))
    if task.finished_ms is not None:
        facts.append(("ended", output.time_and_distance(task.finished_ms)))
    if task.last_status is not None:
        facts.append(("last status", str(task.last_status)))
    if task.last_error is not None:
        facts.append(("last error", printable(task.last_error)))
    if task.header_names:
        facts.append(("headers", ", ".join(task.header_names)))
    named = {"callback": task.callback, "failure callback": task.failure_callback, "reports": task.reports}
    facts += [(name, printable(value)) for name, value in named.items() if value is not None]
    output.details(task, facts, ids=[task.id])


def _show_queue(view: TaskQueueView, output: Output) -> None:
    limits = [
        "no rate limit" if view.rate_limit is None else f"at most {view.rate_limit:g} a second",
        "no limit of concurrent calls"
        if view.concurrency is None
        else f"{view.concurrency} concurrent calls",
        f"{view.host_concurrency} to one host",
    ]
    facts = [
        ("queue", view.queue),
        ("topic", view.topic),
        ("state", "paused" if view.paused else "active"),
        ("limits", ", ".join(limits)),
        (
            "tasks",
            (
                f"{view.scheduled:,} scheduled, {view.ready:,} ready, {view.running:,} running, "
                f"{view.retrying:,} retrying"
            ),
        ),
    ]
    if view.failing_hosts:
        facts.append(("failing", ", ".join(map(printable, view.failing_hosts))))
    if isinstance(view, TaskQueueWithSecret):
        facts.append(("secret", f"{view.secret} (shown only now)"))
    elif view.secrets_valid > 1:
        facts.append(ROTATION)
    output.details(view, facts, ids=[view.queue])
