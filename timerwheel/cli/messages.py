"""`send`, `get`: one message at a time, through the service."""

import datetime as dt
import re
from typing import Annotated, Any, cast

import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import (
    EtagFlag,
    JsonBodyFlag,
    KeyOption,
    PropertiesOption,
    body_or_json,
    length_option,
    parse_at_ms,
    parse_pairs,
    word_option,
)
from timerwheel.cli.output import IdTimeOutput, Output, message_facts
from timerwheel.cli.units import format_distance
from timerwheel.client import Client, Message, Sent, When
from timerwheel.client.connection import given

_WINS = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")  # these override a time in the properties
_TIMES = ("TIMER_DELIVER_MS", "__STARTDELIVERTIME")
_match_time = re.compile(r"-?[0-9]{1,19}").fullmatch

DelayOption = Annotated[
    int | None,
    length_option("--delay", "Deliver after this delay: 90s, 1h30m, PT90S."),
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Deliver at this time: 'tomorrow 9:00', '2026-12-24 18:00'."),
]
LevelOption = Annotated[
    int | None, typer.Option("--level", help="Deliver after the delay of this level, from 1.")
]
QueueOption = Annotated[
    int | None, typer.Option("--queue", help="Queue of the topic; by default the service chooses.")
]
TtlOption = Annotated[
    int | None,
    length_option("--ttl", "Expire for groups this long after delivery: 10m, 1h30m."),
]
MessageAttemptsOption = Annotated[
    int | None,
    typer.Option("--max-attempts", help="Attempts of each group, in place of the group's setting."),
]
IdArgument = Annotated[
    str | None, typer.Argument(metavar="ID", help="The id that `send` printed.", show_default=False)
]


def send(
    topic: Annotated[str, typer.Argument(help="The topic that receives it when due.")],
    body: Annotated[str, typer.Argument(help="The body; - reads it from stdin.")] = "",
    *,
    json_body: JsonBodyFlag = False,
    delay: DelayOption = None,
    at: AtOption = None,
    level: LevelOption = None,
    properties: PropertiesOption = None,
    tags: Annotated[str | None, typer.Option(help="The message's tags.")] = None,
    keys: Annotated[str | None, typer.Option(help="The message's keys, separated by spaces.")] = None,
    queue: QueueOption = None,
    ttl_ms: TtlOption = None,
    max_attempts: MessageAttemptsOption = None,
    dedup_key: Annotated[
        str | None,
        typer.Option("--dedup-key", help="Deduplication key: a second send with it stores nothing."),
    ] = None,
    after_recall: Annotated[
        str | None,
        typer.Option(
            "--after-recall",
            metavar="ID",
            help="Id of the recalled message with this --dedup-key, to send it again on purpose.",
        ),
    ] = None,
    on_duplicate: Annotated[
        str | None,
        word_option(
            "--on-duplicate",
            "With replace, take the place of the scheduled message with this --dedup-key.",
            "return",
            "replace",
        ),
    ] = None,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Send a message, for immediate or delayed delivery."""
    when = time_of(delay, at, level, output.zone)
    given_properties = parse_pairs(properties, "--property")
    asked_ms = when.get("deliver_at_ms") or _requested_time(given_properties)
    options: Any = given(
        **when,
        properties=given_properties or None,
        tags=tags,
        keys=keys,
        queue=queue,
        ttl_ms=ttl_ms,
        max_attempts=max_attempts,
        dedup_key=dedup_key,
        after_recall=after_recall,
        on_duplicate=on_duplicate,
    )
    content = body_or_json(body, options, json_body=json_body)
    sent = service.ask(lambda client: client.send(topic, content, **options))
    show_sent(sent, output, asked_ms=asked_ms)


def get(
    message_id: IdArgument = None,
    *,
    key: KeyOption = None,
    etag: EtagFlag = False,
    service: ServiceOptions,
    output: IdTimeOutput,
) -> None:
    """Show a message: its state, content, and when it is due or was delivered."""

    async def tag(client: Client) -> str:
        match which_message(message_id, key):
            case (topic, key_text):
                return await client.key_etag(topic, key_text)
            case known_id:
                return await client.etag(known_id)

    if etag:
        output.tag(service.ask(tag))
        return

    async def work(client: Client) -> Message:
        match which_message(message_id, key):
            case (topic, key_text):
                return await client.get_key(topic, key_text)
            case known_id:
                return await client.get(known_id)

    show_message(service.ask(work), output)


def which_message(message_id: str | None, key: tuple[str, str] | None) -> str | tuple[str, str]:
    """Return the id, or topic and key, of which exactly one must be given; raises BadParameter."""
    if message_id is not None and key is None:
        return message_id
    if key is not None and message_id is None:
        return key
    raise typer.BadParameter("give either an ID or --key TOPIC KEY")


def time_of(delay_ms: int | None, at: str | None, level: int | None, zone: dt.tzinfo | None) -> When:
    """Return the delay options of a command as a call has them; at most one may be given."""
    at_ms = None if at is None else parse_at_ms(at, zone)
    when: Any = given(delay_ms=delay_ms, deliver_at_ms=at_ms, delay_level=level)
    if len(when) > 1:
        raise typer.BadParameter("give only one of --delay, --at and --level")
    return cast("When", when)


def show_message(message: Message, output: Output) -> None:
    """Print a message as facts, as JSON, or its id."""
    output.details(message, message_facts(message, output), ids=[message.id])


def _requested_time(properties: dict[str, str]) -> int | None:
    """The delivery time set by properties; None if there is none, or a delay property overrides it."""
    if any(name in properties for name in _WINS):
        return None
    found = next((properties[name] for name in _TIMES if name in properties), None)
    if found is None or _match_time(found) is None:
        return None  # the service says what is wrong with it
    return int(found)


def show_sent(sent: Sent, output: Output, *, asked_ms: int | None = None) -> None:
    """Print a receipt as facts, as JSON, or its id; `asked_ms` is the time of delivery that was asked for."""
    due = ("due", output.time_and_distance(sent.due_ms))
    if asked_ms is not None and asked_ms < sent.due_ms and not sent.duplicate:
        due = ("due", f"{format_distance(asked_ms, sent.due_ms)}: delivered now")
    facts = [("id", sent.id), ("state", sent.state.value), ("topic", sent.topic), due]
    if sent.duplicate:
        facts.append(("duplicate", "already sent earlier; nothing was stored"))
    if sent.replaced is not None:
        facts.append(("replaced", f"{sent.replaced}, which is recalled"))
    output.details(sent, facts, ids=[sent.id])
