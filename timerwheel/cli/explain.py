"""`explain`: the history of one message, from send to acknowledgement, read from the log."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.output import IdTimeOutput, Output
from timerwheel.cli.units import format_about
from timerwheel.client import MessageHistory
from timerwheel.history.history import Event, Standing, What
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.messages import State
from timerwheel.model.text import printable


def explain(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id that `send` printed.", show_default=False)
    ],
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Read this data directory instead of asking a service.",
            file_okay=False,
        ),
    ] = None,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Show the history of a message: sent, due, delivered, and what each group did with it, with times."""
    if data is None:
        history = service.ask(lambda client: client.history(message_id))
    else:
        from timerwheel.history.directory import offline_history

        history = offline_history(data, message_id)
    if output.for_people:
        _show(history, output)
    else:
        output.details(history, (), ids=[history.id])


def _show(history: MessageHistory, output: Output) -> None:
    facts = [
        ("id", history.id),
        ("state", history.state.value),
        ("topic", f"{history.topic}, queue {history.queue}"),
        ("due", _due(history, output)),
    ]
    if history.slot is not None:
        begin, end = output.slot_time(history.slot.start_ms), output.slot_time(history.slot.end_ms)
        count = f"{history.slot.count:,} messages there"
        facts.append(("scheduled", f"in the {history.slot.level} slot {begin} to {end}, {count}"))
    if history.level:
        facts.append(("level", str(history.level)))
    output.facts(facts)
    output.line("")
    output.table(("time", "#after", "=what happened", "#log offset"), _rows(history, output))
    if history.groups:
        output.line("")
        output.table(
            ("group", "=the message", "#attempts"),
            [(one.group, STANDINGS[one.standing], str(one.attempts)) for one in history.groups],
        )
    for line in _gaps(history):
        output.line(line)


def _due(history: MessageHistory, output: Output) -> str:
    if history.due_ms != HALF_DUE_MS:
        return output.time_and_distance(history.due_ms)
    if history.state is State.SCHEDULED:
        return "not yet: its transaction is open, and the delay counts from the commit"
    return "never: its transaction was rolled back"


def _rows(history: MessageHistory, output: Output) -> list[tuple[str, ...]]:
    """A row for each event, with the time since the previous one."""
    rows: list[tuple[str, ...]] = []
    before_ms = None
    for event in history.events:
        words = WORDS[event.what](event, output)
        if event.what is What.DELIVERED:
            words = f"{words}, as {history.topic}/{history.queue}@{event.queue_offset}"
        if event.group is not None:
            words = f"{event.group}: {words}"
        if event.reason:
            words = f"{words}: {printable(event.reason)}"
        after = "" if before_ms is None else f"+{format_about(event.at_ms - before_ms)}"
        place = "" if event.offset is None else str(event.offset)
        rows.append((output.moment(event.at_ms), after, words, place))
        before_ms = event.at_ms
    return rows


def _gaps(history: MessageHistory) -> list[str]:
    """Lines about what is missing from the history."""
    lines = []
    if history.problem is None and any(event.what is What.FORGOTTEN for event in history.events):
        lines.append("Earlier events were in segments that retention has removed.")
    if not history.complete:
        lines.append(
            f"The log was read only up to offset {history.looked_until}; later events may be missing."
        )
    if history.problem is not None:
        lines.append(f"problem: {history.problem}")
    if history.state is State.DELIVERED and not history.groups:
        lines.append("The topic has no group. The log does not record reads by offset.")
    return lines


def _sent(event: Event, output: Output) -> str:
    return "sent, due at once" if event.due_ms is None else f"sent, due {output.moment(event.due_ms)}"


def _committed(event: Event, output: Output) -> str:
    due = "due at once" if event.due_ms is None else f"due {output.moment(event.due_ms)}"
    return f"transaction committed, {due}"


def _leased(event: Event, output: Output) -> str:
    return f"attempt {event.attempt}, leased until {output.moment(event.due_ms)}"


def _failed(words: str) -> Callable[[Event, Output], str]:
    def describe(event: Event, output: Output) -> str:
        what = words if event.attempt is None else f"attempt {event.attempt} {words}"
        return f"{what}, redelivered {output.moment(event.due_ms)}"

    return describe


def _acknowledged(event: Event, _output: Output) -> str:
    return "acknowledged" if event.attempt is None else f"attempt {event.attempt} acknowledged"


def _words(words: str) -> Callable[[Event, Output], str]:
    return lambda _event, _output: words


def _until(words: str) -> Callable[[Event, Output], str]:
    return lambda event, output: f"{words} {output.moment(event.due_ms)}"


WORDS: Mapping[What, Callable[[Event, Output], str]] = {
    What.SENT: _sent,
    What.BEGUN: _words("sent as a half message: its transaction began"),
    What.FORGOTTEN: _words("sent"),
    What.RESCHEDULED: _until("rescheduled to"),
    What.MOVED: _words("copied forward by retention, otherwise unchanged"),
    What.RECALLED: _words("recalled"),
    What.COMMITTED: _committed,
    What.ROLLED_BACK: _words("transaction rolled back"),
    What.DUE: _words("due"),
    What.DELIVERED: lambda event, _: f"delivered, {event.lateness_ms} ms after due",
    What.PARKED: _words("kept behind an earlier message of its sharding key"),
    What.HANDED_OUT: _leased,
    What.EXTENDED: _until("lease extended until"),
    What.GIVEN_BACK: _failed("nacked by its consumer"),
    What.EXPIRED: _failed("not done in time"),
    What.TTL_OVER: _words("its time to live is over, so the group is done with it"),
    What.CAME_BACK: _words("ready for the next attempt"),
    What.ACKNOWLEDGED: _acknowledged,
    What.DEAD_LETTERED: lambda event, _: f"became a dead letter after attempt {event.attempt}",
    What.GIVEN_UP: lambda event, _: f"given up after attempt {event.attempt}, still a dead letter",
    What.REDRIVEN: _words("redriven from the dead letters"),
    What.DROPPED: _words("dead letter dropped"),
}
STANDINGS: Mapping[Standing, str] = {
    Standing.NOT_RECEIVED: "not received yet",
    Standing.PASSED_OVER: "skipped: by the group's filter, or because the group moved past it",
    Standing.NOT_COMMITTED: "the group has not committed an offset past it",
    Standing.COMMITTED_PAST: "the group has committed an offset past it",
    Standing.PARKED: "waiting behind an earlier message of its sharding key",
    Standing.IN_FLIGHT: "leased by a consumer",
    Standing.WAITING: "waiting for its next attempt",
    Standing.READY: "ready to be received again",
    Standing.ACKNOWLEDGED: "acknowledged",
    Standing.EXPIRED: "not acknowledged within its time to live",
    Standing.DEAD_LETTER: "dead letter",
    Standing.GIVEN_UP: "given up, still a dead letter",
    Standing.DROPPED: "dropped dead letter",
    Standing.UNKNOWN: "unknown: the log was not read to its end",
}
