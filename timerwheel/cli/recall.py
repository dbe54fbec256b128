"""`recall`: takes back one message, several, or all waiting messages that match conditions."""

from typing import Annotated

import typer

from timerwheel.cli.connection import ask
from timerwheel.cli.messages import show_message
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
from timerwheel.client import DEFAULT_URL, Client, RecallCount, RecallResult
from timerwheel.client.connection import given


def recall(
    message_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="The ids that `send` printed.", show_default=False),
    ] = None,
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the matching messages.")] = False,
    yes: YesFlag = False,
    url: UrlOption = DEFAULT_URL,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Take back waiting messages: they will not be delivered.

    Give ids, a key, or conditions. A message must match all conditions. The matching messages are counted
    first and recalled after you confirm.
    """
    output = Output(utc=utc, as_json=as_json)
    conditions = given(
        topic=topic,
        tags=tags,
        key_prefix=key_prefix,
        due_from_ms=None if start is None else parse_at_ms(start, utc=utc, option="--from"),
        due_to_ms=None if end is None else parse_at_ms(end, utc=utc, option="--to"),
    )
    if sum(map(bool, (message_ids, key, conditions))) != 1:
        raise typer.BadParameter("give either ids, or --key TOPIC KEY, or conditions")
    if (dry_run or yes) and not conditions:
        raise typer.BadParameter("--dry-run and --yes need conditions")
    if conditions:
        _recall_where(url, conditions, output, dry_run=dry_run, yes=yes)
    elif key is not None:
        named = key
        show_message(ask(url, lambda client: client.recall_key(*named)), output)
    elif message_ids is not None and len(message_ids) == 1:
        [message_id] = message_ids
        show_message(ask(url, lambda client: client.recall(message_id)), output)
    else:
        _recall_many(url, message_ids or [], output)


def _recall_many(url: str, message_ids: list[str], output: Output) -> None:
    results = ask(url, lambda client: client.recall_many(message_ids))
    count = sum(result.ok for result in results)
    rows = [(result.id, _result_words(result)) for result in results]
    output.listing({"results": results, "recalled": count}, ("id", "result"), rows)
    if count < len(results):
        raise typer.Exit(1)


def _result_words(result: RecallResult) -> str:
    return "recalled" if result.ok else f"not recalled: {(result.code or '').replace('_', ' ')}"


def _recall_where(
    url: str, conditions: dict[str, object], output: Output, *, dry_run: bool, yes: bool
) -> None:
    def run(*, dry: bool) -> RecallCount:
        async def work(client: Client) -> RecallCount:
            return await client.recall_where(**conditions, dry_run=dry)  # type: ignore[arg-type]

        return ask(url, work)

    if dry_run or not yes:
        counted = run(dry=True)
        if dry_run or counted.matched == 0:
            _show_count(counted, output)
            return
        confirm_or_exit(f"Recall {counted.matched:,} waiting message(s)?")
    _show_count(run(dry=False), output)


def _show_count(count: RecallCount, output: Output) -> None:
    missed = f", {count.missed:,} missed: already delivered, or not readable" if count.missed else ""
    if count.dry_run:
        output.result(count, f"{count.matched:,} waiting message(s) would be recalled")
    else:
        output.result(count, f"{count.recalled:,} recalled{missed}")
