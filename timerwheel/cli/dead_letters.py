"""`dlq list|reasons|redrive|drop`: dead letters of a group, or of all groups with one name."""

import datetime as dt
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import Options, YesFlag, confirm_or_exit, parse_at_ms
from timerwheel.cli.output import IdTimeOutput, JsonOutput, Output, body_shown
from timerwheel.client import Client, DeadLetter
from timerwheel.client.connection import given
from timerwheel.model.text import printable
from timerwheel.wire.groups import Letter, Letters
from timerwheel.wire.paging import LIMIT_MAX

GroupArgument = Annotated[
    str,
    typer.Argument(
        help="The group, as TOPIC/GROUP; its name alone includes the groups of this name on all topics."
    ),
]
TopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        help="Only dead letters of this topic's group; `--all` needs the topic, here or in TOPIC/GROUP.",
    ),
]
OffsetsArgument = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="OFFSET", help="Offsets of dead letters, as `dlq list` shows them.", show_default=False
    ),
]


class Conditions(NamedTuple):
    """What a dead letter must meet, all of it."""

    reason: str | None
    key: str | None
    since: str | None
    until: str | None

    def fields(self, zone: dt.tzinfo | None) -> dict[str, Any]:
        """The conditions as the client takes them; empty if none was given. Raises BadParameter."""
        from_ms = None if self.since is None else parse_at_ms(self.since, zone, "--since")
        until_ms = None if self.until is None else parse_at_ms(self.until, zone, "--until")
        if from_ms is not None and until_ms is not None and from_ms >= until_ms:
            raise typer.BadParameter(
                f"{self.since!r} is not before --until {self.until!r}", param_hint="--since"
            )
        return given(reason=self.reason, key=self.key, from_ms=from_ms, until_ms=until_ms)


def _option(flag: str, help_text: str, metavar: str = "TEXT") -> tuple[Any, None]:
    return Annotated[str | None, typer.Option(flag, help=help_text, metavar=metavar)], None


ConditionOptions = Annotated[
    Conditions,
    Options(
        {
            "reason": _option("--reason", "Only those whose reason contains this, in any case."),
            "key": _option("--key", "Only those with this key: the deduplication key, or one of the keys."),
            "since": _option("--since", "Only those that died at this time or later.", "TIME"),
            "until": _option("--until", "Only those that died before this time.", "TIME"),
        },
        Conditions,
    ),
]


class _Reason:
    """How many dead letters have one reason, and when the first and the last of them died."""

    def __init__(self, first_ms: int) -> None:
        self.count = 0
        self.first_ms = self.last_ms = first_ms

    def take(self, dead_ms: int) -> None:
        self.count += 1
        self.first_ms, self.last_ms = min(self.first_ms, dead_ms), max(self.last_ms, dead_ms)


def list_letters(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    wanted: ConditionOptions,
    first: Annotated[int, typer.Option("--from", min=0, help="Start at this offset.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many.")] = 100,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """List the messages that the group gave up on, oldest first, with the reason."""
    group, topic = _named(group, topic)
    conditions = wanted.fields(output.zone)

    async def work(client: Client) -> Letters:
        letters, at, found = client.dead_letters(group, topic), first, list[Letter]()
        while True:
            page = await letters.page(at, min(limit - len(found), LIMIT_MAX), **conditions)
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


def reasons(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    wanted: ConditionOptions,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Count the dead letters by reason, the most frequent one first."""
    group, topic = _named(group, topic)
    conditions = wanted.fields(output.zone)

    async def work(client: Client) -> dict[str, _Reason]:
        found: dict[str, _Reason] = {}
        async for letter in client.dead_letters(group, topic).all(**conditions):
            found.setdefault(letter.reason, _Reason(letter.dead_ms)).take(letter.dead_ms)
        return found

    counted = sorted(service.ask(work).items(), key=lambda pair: -pair[1].count)
    output.listing(
        {"reasons": [{"reason": reason, **vars(one)} for reason, one in counted]},
        ("#letters", "first", "last", "~reason"),
        [
            (f"{one.count:,}", output.when(one.first_ms), output.when(one.last_ms), printable(reason))
            for reason, one in counted
        ],
        ids=[reason for reason, _ in counted],
    )


def redrive(
    group: GroupArgument,
    offsets: OffsetsArgument = None,
    *,
    topic: TopicOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All dead letters, or all that meet the conditions.")
    ] = False,
    wanted: ConditionOptions,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Deliver dead letters to their group again, starting at the first attempt."""
    group, topic = _named(group, topic)
    chosen, conditions = _chosen(offsets, topic, everything=everything), wanted.fields(output.zone)
    done = service.ask(lambda client: client.dead_letters(group, topic).redrive(chosen, **conditions))
    left = f", {done.left:,} not redriven: their group was deleted or is full" if done.left else ""
    output.result(done, f"{done.redriven:,} redriven{left}")
    if done.left:
        raise typer.Exit(1)


def drop(
    group: GroupArgument,
    offsets: OffsetsArgument = None,
    *,
    topic: TopicOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All dead letters, or all that meet the conditions; asks first.")
    ] = False,
    wanted: ConditionOptions,
    yes: YesFlag = False,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Delete dead letters permanently."""
    group, topic = _named(group, topic)
    chosen, conditions = _chosen(offsets, topic, everything=everything), wanted.fields(output.zone)
    if everything and not yes:
        which = " that meet the conditions" if conditions else ""
        confirm_or_exit(f"Drop all dead letters of group {group} of topic {topic}{which}?")
    count = service.ask(lambda client: client.dead_letters(group, topic).drop(chosen, **conditions))
    output.result({"dropped": count}, f"{count:,} dropped")


def _named(group: str, topic: str | None) -> tuple[str, str | None]:
    """Return the group's name, and its topic if TOPIC/GROUP or `--topic` names it. Raises BadParameter."""
    of, slash, name = group.rpartition("/")
    if slash and topic not in {None, of}:
        raise typer.BadParameter(
            f"{group!r} is not a group of {topic!r}; give one of the two", param_hint="--topic"
        )
    return (name, of) if slash else (group, topic)


def _chosen(offsets: list[int] | None, topic: str | None, *, everything: bool) -> list[int] | None:
    if bool(offsets) == everything:
        raise typer.BadParameter("give either offsets or --all")
    if everything and topic is None:
        raise typer.BadParameter(
            "--all needs --topic, or TOPIC/GROUP: groups with the same name on several topics share one "
            "dead-letter queue; `dlq list` shows the topic of each dead letter"
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
