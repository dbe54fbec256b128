"""`transactions begin|list|commit|rollback`: messages that are delivered once they are committed."""

from typing import Annotated

import typer

from timerwheel.cli.connection import ask
from timerwheel.cli.form import prints_ids
from timerwheel.cli.messages import (
    AtOption,
    DelayOption,
    LevelOption,
    QueueOption,
    put_when,
    show_message,
    show_sent,
)
from timerwheel.cli.options import (
    JsonBodyFlag,
    JsonFlag,
    PropertiesOption,
    UrlOption,
    UtcFlag,
    body_or_json,
    parse_pairs,
)
from timerwheel.cli.output import Output
from timerwheel.client import DEFAULT_URL, Client, SendOptions
from timerwheel.model.messages import OpenTransaction

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id that `transactions begin` printed.")]


@prints_ids
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
    url: UrlOption = DEFAULT_URL,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Store a message without delivering it; a delay counts from its commit."""
    options: SendOptions = {}
    put_when(options, delay, at, level, utc=utc)
    if properties:
        options["properties"] = parse_pairs(properties, "--property")
    if queue is not None:
        options["queue"] = queue
    content = body_or_json(body, options, json_body=json_body)
    begun = ask(url, lambda client: client.begin(topic, content, **options))
    Output(as_json=as_json).result(begun, f"{begun.id} is open; commit it or roll it back", ids=[begun.id])


async def _open(client: Client, topic: str | None) -> list[OpenTransaction]:
    return [one async for one in client.transactions(topic)]


@prints_ids
def list_open(
    topic: Annotated[str | None, typer.Argument(help="Only those of this topic.")] = None,
    url: UrlOption = DEFAULT_URL,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List the open transactions, oldest first."""
    found = ask(url, lambda client: _open(client, topic))
    output = Output(utc=utc, as_json=as_json)
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


@prints_ids
def commit(
    message_id: IdArgument, url: UrlOption = DEFAULT_URL, utc: UtcFlag = False, as_json: JsonFlag = False
) -> None:
    """Commit a transaction: its message is delivered after its delay."""
    sent = ask(url, lambda client: client.commit(message_id))
    show_sent(sent, Output(utc=utc, as_json=as_json))


@prints_ids
def rollback(
    message_id: IdArgument, url: UrlOption = DEFAULT_URL, utc: UtcFlag = False, as_json: JsonFlag = False
) -> None:
    """Roll a transaction back: its message is never delivered."""
    show_message(ask(url, lambda client: client.roll_back(message_id)), Output(utc=utc, as_json=as_json))
