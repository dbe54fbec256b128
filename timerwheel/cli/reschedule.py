"""`reschedule`: another due time for one message, or for all waiting messages that match conditions."""

from typing import Annotated, Any

import typer

from timerwheel.cli.connection import ask
from timerwheel.cli.form import prints_ids
from timerwheel.cli.messages import (
    AtOption,
    DelayOption,
    IdArgument,
    LevelOption,
    put_when,
    show_sent,
    which_message,
)
from timerwheel.cli.options import (
    JsonFlag,
    KeyOption,
    UrlOption,
    UtcFlag,
    YesFlag,
    confirm_or_exit,
    parse_at_ms,
)
from timerwheel.cli.output import Output
from timerwheel.client import DEFAULT_URL, Client, RescheduleCount, Sent, When
from timerwheel.client.connection import given
from timerwheel.errors import AdmissionError
from timerwheel.model.durations import parse_shift_ms


def _shift(text: str) -> int:
    try:
        return parse_shift_ms(text)
    except AdmissionError as error:
        raise typer.BadParameter(str(error)) from None


@prints_ids
def reschedule(
    message_id: IdArgument = None,
    *,
    key: KeyOption = None,
    topic: Annotated[str | None, typer.Option(help="Messages of this topic.")] = None,
    tags: Annotated[str | None, typer.Option(help="Messages with one of these tags: 'A || B'.")] = None,
    key_prefix: Annotated[
        str | None,
        typer.Option(help="Messages with a key that starts with this: the deduplication key or another."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Messages due at this time or later.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Messages due before this time.")
    ] = None,
    delay: DelayOption = None,
    at: AtOption = None,
    level: LevelOption = None,
    shift_ms: Annotated[
        int | None,
        typer.Option(
            "--shift",
            parser=_shift,
            metavar="LENGTH",
            help="With conditions: so much later than each message's own time, 2h, or earlier, -30m.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the matching messages.")] = False,
    yes: YesFlag = False,
    url: UrlOption = DEFAULT_URL,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Change the due time of a waiting message, or of all that match conditions; ids stay the same.

    Give an id, a key, or conditions. A message must match all conditions. The matching messages are counted
    first and rescheduled after you confirm.
    """
    output = Output(utc=utc, as_json=as_json)
    when: When = {}
    put_when(when, delay, at, level, utc=utc)
    if len(when) + (shift_ms is not None) != 1:
        raise typer.BadParameter("give one of --delay, --at, --level and --shift")
    conditions = given(
        topic=topic,
        tags=tags,
        key_prefix=key_prefix,
        due_from_ms=None if start is None else parse_at_ms(start, utc=utc, option="--from"),
        due_to_ms=None if end is None else parse_at_ms(end, utc=utc, option="--to"),
    )
    if conditions and (message_id is not None or key is not None):
        raise typer.BadParameter("give either an ID, or --key TOPIC KEY, or conditions")
    if conditions:
        shift = {} if shift_ms is None else {"shift": f"{shift_ms:+d}ms"}
        _where(url, conditions, when | shift, output, dry_run=dry_run, yes=yes)
        return
    if dry_run or yes or shift_ms is not None:
        raise typer.BadParameter("--dry-run, --yes and --shift need conditions")

    async def work(client: Client) -> Sent:
        match which_message(message_id, key):
            case (key_topic, key_text):
                return await client.reschedule_key(key_topic, key_text, **when)
            case known_id:
                return await client.reschedule(known_id, **when)

    show_sent(ask(url, work), output, asked_ms=when.get("deliver_at_ms"))


def _where(
    url: str,
    conditions: dict[str, object],
    when: dict[str, Any],
    output: Output,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    def run(*, dry: bool) -> RescheduleCount:
        async def work(client: Client) -> RescheduleCount:
            return await client.reschedule_where(**conditions, **when, dry_run=dry)  # type: ignore[arg-type]

        return ask(url, work)

    if dry_run or not yes:
        counted = run(dry=True)
        if dry_run or counted.matched == 0:
            _show(counted, output)
            return
        confirm_or_exit(f"Reschedule {counted.matched:,} waiting message(s)?")
    _show(run(dry=False), output)


def _show(count: RescheduleCount, output: Output) -> None:
    missed = f", {count.missed:,} missed: already delivered, or not readable" if count.missed else ""
    refused = f", {count.refused:,} unchanged: too far away, or their second is full" if count.refused else ""
    if count.dry_run:
        output.result(count, f"{count.matched:,} waiting message(s) would be rescheduled")
    else:
        output.result(count, f"{count.rescheduled:,} rescheduled{missed}{refused}")
