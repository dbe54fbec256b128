"""`messages list`: finds messages by topic, state, tag, key and time."""

from typing import Annotated

import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import parse_range_ms
from timerwheel.cli.output import IdTimeOutput, body_shown
from timerwheel.client import Client, Message
from timerwheel.model.messages import State
from timerwheel.model.text import printable

_COLUMNS = ("time", "id", "topic", "+tag", "+keys", "~body")


def list_messages(
    topic: Annotated[
        str | None,
        typer.Argument(
            help="Only those of this topic; needed for delivered and recalled ones without --key."
        ),
    ] = None,
    *,
    key: Annotated[
        str | None,
        typer.Option(help="Only those with this key: the deduplication key, or one of the keys."),
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="scheduled, delivered or recalled; may be repeated. Default: scheduled, or with --key any.",
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only those with one of these tags: 'A || B'.")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Due, delivered or recalled at this time or later."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Due, delivered or recalled before this time.")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest first.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those of the service's own topics, such as %RETRY%GROUP.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """List messages: what is scheduled, what was delivered or recalled, and all with a key."""
    from_ms, until_ms = parse_range_ms(start, end, output.zone)

    async def work(client: Client) -> list[Message]:
        found = client.messages(
            topic,
            state=states or None,
            tag=tag,
            key=key,
            from_ms=from_ms,
            until_ms=until_ms,
            newest=newest,
            reserved=everything,
            limit=limit,
        )
        return [message async for message in found]

    messages = service.ask(work)
    rows = [
        (
            message.state.value,
            output.when(_time_of(message)),
            message.id,
            message.topic,
            printable(message.tags or "-"),
            printable(" ".join([*message.keys, *([message.dedup_key] if message.dedup_key else [])]) or "-"),
            printable(message.problem) if message.problem else body_shown(message.body),
        )
        for message in messages
    ]
    # A column of one word would only push the table over the edge of a narrow terminal.
    state = "+state" if len({message.state for message in messages}) == 1 else "state"
    output.listing({"messages": messages}, (state, *_COLUMNS), rows, ids=[message.id for message in messages])


def _time_of(message: Message) -> int | None:
    if message.state is State.SCHEDULED:
        return message.due_ms
    return message.delivered_ms if message.state is State.DELIVERED else message.recalled_ms
