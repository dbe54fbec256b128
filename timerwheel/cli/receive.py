"""`receive`: prints the delivered messages of a queue, and optionally follows new ones."""

import sys
from typing import Annotated

import typer

from timerwheel.cli.connection import ServiceOptions, advising
from timerwheel.cli.output import IdLineOutput, Output, content_shown
from timerwheel.client import BEGINNING, END, Client, Message, NotFoundError

_PLACES = {"beginning": BEGINNING, "end": END}
_DIGITS_MAX = 18


def _place(text: str) -> int:
    if text in _PLACES:
        return _PLACES[text]
    if len(text) <= _DIGITS_MAX and text.isascii() and text.isdecimal():
        return int(text)
    raise typer.BadParameter(f"{text!r}: give beginning, end or an offset from 0")


def receive(
    topic: Annotated[str, typer.Argument(help="The topic to read.")],
    *,
    queue: Annotated[int, typer.Option(min=0, help="The queue of the topic.")] = 0,
    offset: Annotated[
        str, typer.Option("--from", metavar="beginning|end|N", help="Where to start; N is an offset.")
    ] = "beginning",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep waiting for messages until Ctrl-C.")
    ] = False,
    count_max: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after this many messages.")
    ] = None,
    service: ServiceOptions,
    output: IdLineOutput,
) -> None:
    """Print the delivered messages of a queue, one per line."""
    begin = _place(offset)

    async def work(client: Client) -> None:
        count = 0
        if follow:
            await _warn_if_unknown(client, topic)
        async for message in client.receive(topic, queue, offset=begin, follow=follow):
            output.result(message, _line(message, output), ids=[message.id])
            count += 1
            damaged.update({message.id} if message.problem is not None else ())
            if count == count_max:
                return

    damaged: set[str] = set()
    with advising("offset_out_of_range", "read from there, or with --from end"):
        service.ask(work)
    if damaged:
        raise typer.Exit(1)


async def _warn_if_unknown(client: Client, topic: str) -> None:
    """With a mistyped topic the command would wait forever without a word."""
    try:
        await client.topic(topic)
    except NotFoundError:
        print(f"topic {topic} has no messages yet; waiting for the first one", file=sys.stderr)


def _line(message: Message, output: Output) -> str:
    place = f"{message.topic}/{message.queue}@{message.offset}"
    late = "" if message.lateness_ms is None else f" (+{message.lateness_ms} ms)"
    return f"{output.stamp(message.delivered_ms)}{late}  {place}  {message.id}  {content_shown(message)}"
