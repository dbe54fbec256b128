"""`groups list|show|put|delete|rewind`: consumer groups of the running service."""

from typing import Annotated, Any

import msgspec
import typer

from timerwheel.cli.backoff import BackoffOption, format_backoff
from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import (
    EtagFlag,
    IfMatchOption,
    YesFlag,
    confirm_or_exit,
    given_or_null,
    length_option,
    parse_at_ms,
    parse_pairs,
    word_option,
)
from timerwheel.cli.output import IdOutput, IdTimeOutput, Output
from timerwheel.cli.units import format_about, length_between
from timerwheel.client import Client, ConflictError, Group, GroupConfig, NotFoundError
from timerwheel.client.connection import given
from timerwheel.errors import PreconditionFailedError
from timerwheel.groups.config import AGE_MS_MAX, INVISIBLE_MS_MAX, OFFSETS
from timerwheel.model.admission import TASK_GROUP, TASK_PREFIX
from timerwheel.model.durations import format_duration
from timerwheel.model.limits import ATTEMPTS_MAX
from timerwheel.model.messages import GroupInfo
from timerwheel.model.text import printable

TopicArgument = Annotated[str, typer.Argument(help="The topic that the group reads.")]
GroupArgument = Annotated[str, typer.Argument(help="The group's name.")]
COLUMNS = (
    "topic",
    "group",
    "#lag",
    "#in flight",
    "+#waiting",
    "+#ready",
    "+#parked",
    "#dead",
    "#oldest",
)

_DIGITS_MAX = 18


StartOption = Annotated[
    str | None,
    word_option("--start", "Where a new group starts.", "head", "tail"),
]
KindOption = Annotated[
    str | None,
    word_option(
        "--kind",
        "Of a new group: whether it leases messages, or its consumers commit offsets.",
        "leases",
        "offsets",
    ),
]
TagsOption = Annotated[str | None, typer.Option(help="Receive only these tags: 'A || B', or '*' for all.")]
AttemptsOption = Annotated[
    int | None,
    typer.Option(
        "--max-attempts", min=1, max=ATTEMPTS_MAX, help="Attempts before a message becomes a dead letter."
    ),
]
MaxAgeOption = Annotated[
    int | None,
    length_option(
        "--max-age",
        "Start no attempt this long after delivery; 0 for no limit.",
        length_between(0, AGE_MS_MAX),
    ),
]
ExpiredOption = Annotated[
    str | None,
    word_option("--expired", "What to do with expired messages.", "drop", "dead_letter"),
]
InvisibleOption = Annotated[
    int | None,
    length_option("--invisible", "How long a receive leases a message.", length_between(1, INVISIBLE_MS_MAX)),
]


def list_groups(
    topic: Annotated[
        str | None, typer.Argument(help="Only the groups of this topic.", show_default=False)
    ] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the service's own groups, which call the URLs of tasks.")
    ] = False,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """List all groups, or those of a topic, with their backlog."""
    found = service.ask(lambda client: client.groups(topic))
    if topic is None and not everything:
        found = [info for info in found if not is_own(info)]
    rows = [
        (
            info.topic,
            info.group,
            *(
                f"{count:,}"
                for count in (
                    info.lag,
                    info.in_flight,
                    info.waiting,
                    info.ready,
                    info.parked,
                    info.dead_letters,
                )
            ),
            _oldest(info),
        )
        for info in found
    ]
    ids = [info.group if topic is not None else f"{info.topic} {info.group}" for info in found]
    output.listing({"groups": found}, COLUMNS, rows, ids=ids)


def is_own(info: GroupInfo) -> bool:
    """Whether the group is one of the service's, which call the URLs of tasks."""
    return info.topic.startswith(TASK_PREFIX) and info.group == TASK_GROUP


def show(
    topic: TopicArgument,
    group: GroupArgument,
    *,
    etag: EtagFlag = False,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """Show a group: its configuration, its position, and the messages it holds."""
    if etag:
        output.tag(service.ask(lambda client: client.group(topic, group).etag()))
        return
    _show(service.ask(lambda client: client.group(topic, group).info()), output)


def put(
    topic: TopicArgument,
    group: GroupArgument,
    *,
    kind: KindOption = None,
    start: StartOption = None,
    tags: TagsOption = None,
    max_attempts: AttemptsOption = None,
    invisible_ms: InvisibleOption = None,
    backoff: BackoffOption = None,
    max_age_ms: MaxAgeOption = None,
    expired: ExpiredOption = None,
    if_match: IfMatchOption = None,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """Create a group, or change the given settings of one. `--start` applies only to a new group."""
    changes: Any = given(
        kind=kind,
        start=start,
        tags=tags,
        max_attempts=max_attempts,
        invisible_ms=invisible_ms,
        backoff=backoff,
        expired=expired,
    ) | given_or_null(max_age_ms=max_age_ms)

    async def work(client: Client) -> GroupInfo:
        handle = client.group(topic, group)
        if if_match is not None:
            return await _changed(handle, changes, if_match)
        while True:
            try:
                return await _changed(handle, changes, await _seen(handle))
            except ConflictError as error:
                if error.code != PreconditionFailedError.code:
                    raise

    _show(service.ask(work), output)


async def _seen(handle: Group) -> str | None:
    """Return the tag of a group; None if it does not exist."""
    try:
        return await handle.etag()
    except NotFoundError:
        return None


async def _changed(handle: Group, changes: dict[str, Any], if_match: str | None) -> GroupInfo:
    """Change the group with this tag, or create it without one; ConflictError if that has changed."""
    config = GroupConfig() if if_match is None else config_of(await handle.info())
    wanted = msgspec.structs.replace(config, **changes)
    return await handle.put(wanted, if_match=if_match, if_new=if_match is None)


def delete(
    topic: TopicArgument,
    group: GroupArgument,
    *,
    yes: YesFlag = False,
    if_match: IfMatchOption = None,
    service: ServiceOptions,
    output: IdOutput,
) -> None:
    """Delete a group with its position and leases; asks first. Dead letters and messages stay."""
    if not yes:
        confirm_or_exit(f"Delete group {group} of topic {topic}, with its position and leases?")
    info = service.ask(lambda client: client.group(topic, group).delete(if_match=if_match))
    text = f"deleted group {info.group} of topic {info.topic}; its lag was {info.lag:,}"
    output.result(info, text, ids=[info.group])


def rewind(
    topic: TopicArgument,
    group: GroupArgument,
    *,
    to: Annotated[
        str | None,
        word_option("--to", "Go to the first message (beginning) or past the last (end).", "head", "tail"),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Go to the first message delivered at this time or later."),
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option("--offset", metavar="QUEUE=N", help="Go to this offset of one queue; may be repeated."),
    ] = None,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Move a group back to read messages again, or forward to skip them.

    The group drops what it holds: outstanding receipts become invalid.
    """
    if sum(one is not None for one in (to, at, offsets)) != 1:
        raise typer.BadParameter("give one of --to, --at and --offset")
    time_ms = None if at is None else parse_at_ms(at, output.zone)
    places = None if offsets is None else _offsets(offsets)

    async def work(client: Client) -> GroupInfo:
        start: Any = to
        return await client.group(topic, group).rewind(to=start, time_ms=time_ms, offsets=places)

    _show(service.ask(work), output)


def config_of(info: GroupInfo) -> GroupConfig:
    """The configuration part of a group's info."""
    return msgspec.convert(info.config, GroupConfig)


def _offsets(texts: list[str]) -> dict[int, int]:
    pairs = parse_pairs(texts, "--offset", "QUEUE=N")
    if not all(_is_number(text) for pair in pairs.items() for text in pair):
        raise typer.BadParameter("give QUEUE=N, two numbers from 0", param_hint="--offset")
    return {int(queue): int(offset) for queue, offset in pairs.items()}


def _is_number(text: str) -> bool:
    return len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()


def _oldest(info: GroupInfo) -> str:
    return "-" if info.oldest_age_ms is None else format_about(info.oldest_age_ms)


def _since(info: GroupInfo, what: str) -> str:
    return "-" if info.oldest_age_ms is None else f"{_oldest(info)} since {what}"


def _show(info: GroupInfo, output: Output) -> None:
    config = config_of(info)
    if config.kind == OFFSETS:
        output.details(
            info,
            [
                ("group", info.group),
                ("topic", info.topic),
                ("kind", "offsets: its consumers read the queues and commit how far they are"),
                ("lag", f"{info.lag:,}"),
                ("dead letters", f"{info.dead_letters:,}"),
                ("oldest", _since(info, "the oldest message that is not committed was delivered")),
                *_queues(info),
            ],
            ids=[info.group],
        )
        return
    order = ", in order by key" if info.ordered else ""
    order += ", paused" if info.paused else ""
    output.details(
        info,
        [
            ("group", info.group),
            ("topic", f"{info.topic}{order}"),
            ("tags", printable(config.tags)),
            ("attempts", f"{config.max_attempts}, backoff {format_backoff(config.backoff)}"),
            ("invisible", format_duration(config.invisible_ms)),
            ("age", limits_words(config.max_age_ms, config.expired)),
            ("lag", f"{info.lag:,}"),
            ("in flight", f"{info.in_flight:,}"),
            ("waiting", f"{info.waiting:,} until their next attempt"),
            ("ready", f"{info.ready:,} ready again"),
            ("parked", f"{info.parked:,} behind an earlier message with the same key"),
            ("dead letters", f"{info.dead_letters:,}"),
            ("oldest", _since(info, "the oldest unacknowledged message was delivered")),
            *_queues(info),
        ],
        ids=[info.group],
    )


def limits_words(max_age_ms: int | None, expired: str) -> str:
    """Say how long a group tries a message, and what becomes of one whose TTL is over."""
    age = "no limit" if max_age_ms is None else f"no other attempt after {format_duration(max_age_ms)}"
    over = "dropped" if expired == "drop" else "dead letters"
    return f"{age}; messages whose TTL is over are {over}"


def _queues(info: GroupInfo) -> list[tuple[str, str]]:
    return [
        (f"queue {queue.queue}", f"at {queue.cursor} of {queue.max_offset}, lag {queue.lag:,}")
        for queue in info.queues
    ]
