"""`transactions begin|list|commit|rollback`: messages that are delivered once they are committed."""

from typing import Annotated, Any

import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.messages import (
    AtOption,
    DelayOption,
    LevelOption,
    QueueOption,
    show_message,
    show_sent,
    time_of,
)
from timerwheel.cli.options import (
    JsonBodyFlag,
    PropertiesOption,
    body_or_json,
    parse_pairs,
)
from timerwheel.cli.output import IdTimeOutput
from timerwheel.client import Client
from timerwheel.client.connection import given
from timerwheel.model.messages import OpenTransaction

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id that `transactions begin` printed.")]


def begin(
    topic: Annotated[str, typer.Argument(help="The topic that receives it once it is committed and due.")],
    body: Annotated[str, typer.Argument(help="The body; - reads it from stdin.")] = "",
    *,
    json_body: JsonBodyFlag = False,
    delay: DelayOption = None,
    at: AtOption = None,
    level: LevelOption = None,
    properties: PropertiesOption = None,
    queue: QueueOption = None,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Store a message without delivering it; a delay counts from its commit."""
    options: Any = given(
        **time_of(delay, at, level, output.zone),
        properties=parse_pairs(properties, "--property") or None,
        queue=queue,
    )
    content = body_or_json(body, options, json_body=json_body)
    begun = service.ask(lambda client: client.begin(topic, content, **options))
    output.result(begun, f"{begun.id} is open; commit it or roll it back", ids=[begun.id])


async def _open(client: Client, topic: str | None) -> list[OpenTransaction]:
    return [one async for one in client.transactions(topic)]


def list_open(
    topic: Annotated[str | None, typer.Argument(help="Only those of this topic.")] = None,
    *,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """List the open transactions, oldest first."""
    found = service.ask(lambda client: _open(client, topic))
    output.listing(
        {"transactions": found},
        ("id", "topic", "begun", "#checks", "+next check"),
        [
            (
                one.id,
                one.topic,
                output.when(one.began_ms),
                str(one.checks),
                output.when(one.next_check_ms),
            )
            for one in found
        ],
        ids=[one.id for one in found],
    )


def commit(message_id: IdArgument, *, service: ServiceOptions, output: IdTimeOutput) -> None:
    """Commit a transaction: its message is delivered after its delay."""
    sent = service.ask(lambda client: client.commit(message_id))
    show_sent(sent, output)


def rollback(message_id: IdArgument, *, service: ServiceOptions, output: IdTimeOutput) -> None:
    """Roll a transaction back: its message is never delivered."""
    show_message(service.ask(lambda client: client.roll_back(message_id)), output)
