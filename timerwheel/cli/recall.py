"""`recall`: takes back one message, several, or all scheduled messages that match conditions."""

from typing import Annotated

import typer

from timerwheel.cli.conditions import ConditionOptions
from timerwheel.cli.connection import Service, ServiceOptions
from timerwheel.cli.messages import show_message
from timerwheel.cli.options import (
    IfMatchOption,
    KeyOption,
)
from timerwheel.cli.output import Output, TimeOutput
from timerwheel.client import RecallCount, RecallResult


def recall(
    message_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="The ids that `send` printed.", show_default=False),
    ] = None,
    *,
    key: KeyOption = None,
    where: ConditionOptions,
    if_match: IfMatchOption = None,
    damaged: Annotated[
        bool,
        typer.Option(
            "--damaged", help="Also a message whose record cannot be read; for one ID, and it stays unread."
        ),
    ] = False,
    service: ServiceOptions,
    output: TimeOutput,
) -> None:
    """Recall scheduled messages: they will not be delivered.

    Give ids, a key, or conditions. A message must match all conditions. The matching messages are counted
    first and recalled after you confirm.
    """
    conditions = where.fields(output.zone)
    if sum(map(bool, (message_ids, key, conditions))) != 1:
        raise typer.BadParameter("give either ids, or --key TOPIC KEY, or conditions")
    if where.need_conditions and not conditions:
        raise typer.BadParameter("--dry-run, --yes and --all need conditions")
    if if_match is not None and (conditions or len(message_ids or ()) > 1):
        raise typer.BadParameter("--if-match is for one message: give one ID or --key TOPIC KEY")
    if damaged and len(message_ids or ()) != 1:
        raise typer.BadParameter("--damaged is for one message: give one ID")
    if conditions:

        def run(dry_run: bool) -> RecallCount:
            return service.ask(lambda client: client.recall_where(**conditions, dry_run=dry_run))

        _show_count(where.confirmed("Recall", run), output)
    elif key is not None:
        named = key
        show_message(service.ask(lambda client: client.recall_key(*named, if_match=if_match)), output)
    elif message_ids is not None and len(message_ids) == 1:
        [message_id] = message_ids
        show_message(
            service.ask(lambda client: client.recall(message_id, if_match=if_match, damaged=damaged)), output
        )
    else:
        _recall_many(service, message_ids or [], output)


def _recall_many(service: Service, message_ids: list[str], output: Output) -> None:
    results = service.ask(lambda client: client.recall_many(message_ids))
    count = sum(result.ok for result in results)
    rows = [(result.id, _result_words(result)) for result in results]
    output.listing({"results": results, "recalled": count}, ("id", "result"), rows)
    if count < len(results):
        raise typer.Exit(1)


def _result_words(result: RecallResult) -> str:
    return "recalled" if result.ok else f"not recalled: {(result.code or '').replace('_', ' ')}"


def _show_count(count: RecallCount, output: Output) -> None:
    missed = f", {count.missed:,} missed: already delivered, or not readable" if count.missed else ""
    if count.dry_run:
        output.result(count, f"{count.matched:,} scheduled message(s) would be recalled")
    else:
        output.result(count, f"{count.recalled:,} recalled{missed}")
