"""`reschedule`: another due time for one message, or for all scheduled messages that match conditions."""

from typing import Annotated, Any

import typer

from timerwheel.cli.conditions import ConditionOptions
from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.messages import (
    AtOption,
    DelayOption,
    IdArgument,
    LevelOption,
    show_sent,
    time_of,
    which_message,
)
from timerwheel.cli.options import (
    IfMatchOption,
    KeyOption,
    length_option,
)
from timerwheel.cli.output import IdTimeOutput, Output
from timerwheel.client import Client, RescheduleCount, Sent
from timerwheel.errors import AdmissionError
from timerwheel.model.durations import parse_shift_ms


def _shift(text: str) -> int:
    try:
        return parse_shift_ms(text)
    except AdmissionError as error:
        raise typer.BadParameter(str(error)) from None


def reschedule(
    message_id: IdArgument = None,
    *,
    key: KeyOption = None,
    where: ConditionOptions,
    delay: DelayOption = None,
    at: AtOption = None,
    level: LevelOption = None,
    shift_ms: Annotated[
        int | None,
        length_option(
            "--shift",
            "With conditions: so much later than each message's own time, 2h, or earlier, -30m.",
            _shift,
        ),
    ] = None,
    if_match: IfMatchOption = None,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Change the due time of a scheduled message, or of all that match conditions; ids stay the same.

    Give an id, a key, or conditions. A message must match all conditions. The matching messages are counted
    first and rescheduled after you confirm.
    """
    when = time_of(delay, at, level, output.zone)
    if len(when) + (shift_ms is not None) != 1:
        raise typer.BadParameter("give one of --delay, --at, --level and --shift")
    conditions = where.fields(output.zone)
    if conditions and (message_id is not None or key is not None):
        raise typer.BadParameter("give either an ID, or --key TOPIC KEY, or conditions")
    if conditions and if_match is not None:
        raise typer.BadParameter("--if-match is for one message: give an ID or --key TOPIC KEY")
    if conditions:
        change: Any = {**when} if shift_ms is None else {"shift": f"{shift_ms:+d}ms"}

        def run(dry_run: bool) -> RescheduleCount:
            return service.ask(
                lambda client: client.reschedule_where(**conditions, **change, dry_run=dry_run)
            )

        _show(where.confirmed("Reschedule", run), output)
        return
    if where.need_conditions or shift_ms is not None:
        raise typer.BadParameter("--dry-run, --yes, --all and --shift need conditions")

    async def work(client: Client) -> Sent:
        match which_message(message_id, key):
            case (key_topic, key_text):
                return await client.reschedule_key(key_topic, key_text, **when, if_match=if_match)
            case known_id:
                return await client.reschedule(known_id, **when, if_match=if_match)

    show_sent(service.ask(work), output, asked_ms=when.get("deliver_at_ms"))


def _show(count: RescheduleCount, output: Output) -> None:
    missed = f", {count.missed:,} missed: already delivered, or not readable" if count.missed else ""
    refused = f", {count.refused:,} unchanged: too far away, or their second is full" if count.refused else ""
    if count.dry_run:
        output.result(count, f"{count.matched:,} scheduled message(s) would be rescheduled")
    else:
        output.result(count, f"{count.rescheduled:,} rescheduled{missed}{refused}")
