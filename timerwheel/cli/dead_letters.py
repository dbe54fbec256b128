"""`dlq list|redrive|drop`: dead letters of a group, or of all groups with one name."""

from typing import Annotated

import msgspec
import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import YesFlag, confirm_or_exit
from timerwheel.cli.output import IdTimeOutput, JsonOutput, Output, body_shown
from timerwheel.client import Client, DeadLetter
from timerwheel.model.text import printable
from timerwheel.wire.groups import Letter, Letters
from timerwheel.wire.paging import LIMIT_MAX

GroupArgument = Annotated[
    str, typer.Argument(help="The group's name; includes the groups of this name on all topics.")
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", help="Only dead letters of this topic's group; required with `--all`."),
]
OffsetsArgument = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="OFFSET", help="Offsets of dead letters, as `dlq list` shows them.", show_default=False
    ),
]


def list_letters(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    first: Annotated[int, typer.Option("--from", min=0, help="Start at this offset.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many.")] = 100,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """List the messages that the group gave up on, oldest first, with the reason."""

    async def work(client: Client) -> Letters:
        letters, at, found = client.dead_letters(group, topic), first, list[Letter]()
        while True:
            page = await letters.page(at, min(limit - len(found), LIMIT_MAX))
            found += page.letters
            if page.next_offset is None or len(found) >= limit:
                return msgspec.structs.replace(page, letters=found)
            at = page.next_offset

    page = service.ask(work)
    output.listing(
        page,
        (
            "#offset",
            "dead since",
            "#attempts",
            "topic" if topic is None else "+topic",
            "+id",
            "~reason",
            "~body",
        ),
        [_row(letter, output) for letter in page.letters],
        ids=[str(letter.offset) for letter in page.letters],
    )
    if page.next_offset is not None and output.for_people:
        output.line(f"more: continue with --from {page.next_offset}")


def redrive(
    group: GroupArgument,
    offsets: OffsetsArgument = None,
    *,
    topic: TopicOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Deliver dead letters to their group again, starting at the first attempt."""
    chosen = _chosen(offsets, topic, everything=everything)
    done = service.ask(lambda client: client.dead_letters(group, topic).redrive(chosen))
    left = f", {done.left:,} not redriven: their group was deleted or is full" if done.left else ""
    output.result(done, f"{done.redriven:,} redriven{left}")
    if done.left:
        raise typer.Exit(1)


def drop(
    group: GroupArgument,
    offsets: OffsetsArgument = None,
    *,
    topic: TopicOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters; asks first.")] = False,
    yes: YesFlag = False,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Delete dead letters permanently."""
    chosen = _chosen(offsets, topic, everything=everything)
    if everything and not yes:
        confirm_or_exit(f"Drop all dead letters of group {group} of topic {topic}?")
    count = service.ask(lambda client: client.dead_letters(group, topic).drop(chosen))
    output.result({"dropped": count}, f"{count:,} dropped")


def _chosen(offsets: list[int] | None, topic: str | None, *, everything: bool) -> list[int] | None:
    if bool(offsets) == everything:
        raise typer.BadParameter("give either offsets or --all")
    if everything and topic is None:
        raise typer.BadParameter(
            "--all needs --topic: groups with the same name on several topics share one dead-letter queue; "
            "`dlq list` shows the topic of each dead letter"
        )
    return offsets or None


def _row(letter: DeadLetter, output: Output) -> tuple[str, ...]:
    return (
        str(letter.offset),
        output.when(letter.dead_ms),
        str(letter.attempts),
        letter.origin_topic,
        letter.origin_id,
        printable(letter.reason),
        body_shown(letter.message.body),
    )
