"""`send`, `get`, `recall`, `reschedule`: one message at a time, through the service."""

import os
import sys
from typing import Annotated

import typer

from timerwheel.cli.connection import ask
from timerwheel.cli.options import JsonFlag, UrlOption, UtcFlag, parse_at_ms
from timerwheel.cli.output import Output, message_facts
from timerwheel.cli.units import parse_length_ms
from timerwheel.client import DEFAULT_URL, Message, SendOptions, Sent, When

DelayOption = Annotated[
    int | None,
    typer.Option(
        "--delay", parser=parse_length_ms, metavar="LENGTH", help="Deliver after this: 90s, 1h30m, PT90S."
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Deliver at this time: 'tomorrow 9:00', '2026-12-24 18:00'."),
]
LevelOption = Annotated[int | None, typer.Option("--level", help="Deliver after this delay level, from 1.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id that `send` printed.")]


def send(
    topic: Annotated[str, typer.Argument(help="Where it goes when due.")],
    body: Annotated[str, typer.Argument(help="The message; - reads it from stdin.")] = "",
    *,
    delay: DelayOption = None,
    at: AtOption = None,
    level: LevelOption = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="May be given repeatedly.")
    ] = None,
    tags: Annotated[str | None, typer.Option(help="The message's tags.")] = None,
    keys: Annotated[str | None, typer.Option(help="The message's keys, separated by spaces.")] = None,
    url: UrlOption = DEFAULT_URL,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Send a message, at once or with a delay."""
    options: SendOptions = {}
    _put_when(options, delay, at, level, utc=utc)
    if properties:
        options["properties"] = dict(_property(text) for text in properties)
    if tags is not None:
        options["tags"] = tags
    if keys is not None:
        options["keys"] = keys
    # Arguments that are not UTF-8 arrive as surrogates; fsencode gives their bytes back.
    raw = sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
    sent = ask(url, lambda client: client.send(topic, _text_or_bytes(raw), **options))
    _show_sent(sent, Output(utc=utc), as_json=as_json)


def get(
    message_id: IdArgument, url: UrlOption = DEFAULT_URL, utc: UtcFlag = False, as_json: JsonFlag = False
) -> None:
    """Show a message: its state, when it is due, or when it was delivered."""
    _show(ask(url, lambda client: client.get(message_id)), Output(utc=utc), as_json=as_json)


def recall(
    message_id: IdArgument, url: UrlOption = DEFAULT_URL, utc: UtcFlag = False, as_json: JsonFlag = False
) -> None:
    """Take back a waiting message: it will not be delivered."""
    _show(ask(url, lambda client: client.recall(message_id)), Output(utc=utc), as_json=as_json)


def reschedule(
    message_id: IdArgument,
    *,
    delay: DelayOption = None,
    at: AtOption = None,
    level: LevelOption = None,
    url: UrlOption = DEFAULT_URL,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Give a waiting message another due time; its id stays."""
    when: When = {}
    _put_when(when, delay, at, level, utc=utc)
    if not when:
        raise typer.BadParameter("give one of --delay, --at and --level")
    sent = ask(url, lambda client: client.reschedule(message_id, **when))
    _show_sent(sent, Output(utc=utc), as_json=as_json)


def _put_when(when: When, delay_ms: int | None, at: str | None, level: int | None, *, utc: bool) -> None:
    if delay_ms is not None:
        when["delay_ms"] = delay_ms
    if at is not None:
        when["deliver_at_ms"] = parse_at_ms(at, utc=utc)
    if level is not None:
        when["delay_level"] = level
    if len(when) > 1:
        raise typer.BadParameter("give only one of --delay, --at and --level")


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _show(message: Message, output: Output, *, as_json: bool) -> None:
    if as_json:
        output.json(message)
    else:
        output.facts(message_facts(message, output))


def _show_sent(sent: Sent, output: Output, *, as_json: bool) -> None:
    if as_json:
        output.json(sent)
    else:
        due = ("due", output.time_and_distance(sent.due_ms))
        output.facts([("id", sent.id), ("state", sent.state.value), ("topic", sent.topic), due])
