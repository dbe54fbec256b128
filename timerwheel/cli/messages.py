"""`send`, `get`: one message at a time, through the service."""

from typing import Annotated

import typer

from timerwheel.cli.connection import ask
from timerwheel.cli.form import prints_ids
from timerwheel.cli.options import (
    JsonBodyFlag,
    JsonFlag,
    KeyOption,
    PropertiesOption,
    UrlOption,
    UtcFlag,
    body_or_json,
    one_of,
    parse_at_ms,
    parse_pairs,
)
from timerwheel.cli.output import Output, message_facts
from timerwheel.cli.units import format_distance, parse_length_ms
from timerwheel.client import DEFAULT_URL, Client, Message, SendOptions, Sent, When

_WINS = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")  # these override a time in the properties
_TIMES = ("TIMER_DELIVER_MS", "__STARTDELIVERTIME")

DelayOption = Annotated[
    int | None,
    typer.Option(
        "--delay",
        parser=parse_length_ms,
        metavar="LENGTH",
        help="Deliver after this delay: 90s, 1h30m, PT90S.",
    ),
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
    typer.Option(
        "--ttl",
        parser=parse_length_ms,
        metavar="LENGTH",
        help="Groups get it no later than so long after its delivery: 10m, 1h30m.",
    ),
]
MessageAttemptsOption = Annotated[
    int | None,
    typer.Option("--max-attempts", help="Attempts of each group, in place of the group's setting."),
]
IdArgument = Annotated[
    str | None, typer.Argument(metavar="ID", help="The id that `send` printed.", show_default=False)
]


@prints_ids
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
        typer.Option(
            "--on-duplicate",
            parser=one_of("return", "replace"),
            metavar="return|replace",
            help="With replace, take the place of the scheduled message with this --dedup-key.",
        ),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Send a message, for immediate or delayed delivery."""
    options: SendOptions = {}
    put_when(options, delay, at, level, utc=utc)
    asked_ms = options.get("deliver_at_ms")
    if properties:
        options["properties"] = parse_pairs(properties, "--property")
        asked_ms = asked_ms or _requested_time(options["properties"])
    if tags is not None:
        options["tags"] = tags
    if keys is not None:
        options["keys"] = keys
    if queue is not None:
        options["queue"] = queue
    if ttl_ms is not None:
        options["ttl_ms"] = ttl_ms
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    if dedup_key is not None:
        options["dedup_key"] = dedup_key
    if after_recall is not None:
        options["after_recall"] = after_recall
    if on_duplicate is not None:
        options["on_duplicate"] = "replace" if on_duplicate == "replace" else "return"
    content = body_or_json(body, options, json_body=json_body)
    sent = ask(url, lambda client: client.send(topic, content, **options))
    show_sent(sent, Output(utc=utc, as_json=as_json), asked_ms=asked_ms)


@prints_ids
def get(
    message_id: IdArgument = None,
    *,
    key: KeyOption = None,
    url: UrlOption = DEFAULT_URL,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Show a message: its state, content, and when it is due or was delivered."""

    async def work(client: Client) -> Message:
        match which_message(message_id, key):
            case (topic, key_text):
                return await client.get_key(topic, key_text)
            case known_id:
                return await client.get(known_id)

    show_message(ask(url, work), Output(utc=utc, as_json=as_json))


def which_message(message_id: str | None, key: tuple[str, str] | None) -> str | tuple[str, str]:
    """Return the id, or topic and key, of which exactly one must be given; raises BadParameter."""
    if message_id is not None and key is None:
        return message_id
    if key is not None and message_id is None:
        return key
    raise typer.BadParameter("give either an ID or --key TOPIC KEY")


def put_when(when: When, delay_ms: int | None, at: str | None, level: int | None, *, utc: bool) -> None:
    """Put the delay options of a command among those of a call; at most one may be given."""
    if delay_ms is not None:
        when["delay_ms"] = delay_ms
    if at is not None:
        when["deliver_at_ms"] = parse_at_ms(at, utc=utc)
    if level is not None:
        when["delay_level"] = level
    if len(when) > 1:
        raise typer.BadParameter("give only one of --delay, --at and --level")


def show_message(message: Message, output: Output) -> None:
    """Print a message as facts, as JSON, or its id."""
    output.details(message, message_facts(message, output), ids=[message.id])


def _requested_time(properties: dict[str, str]) -> int | None:
    """The delivery time set by properties; None if there is none, or a delay property overrides it."""
    if any(name in properties for name in _WINS):
        return None
    found = next((properties[name] for name in _TIMES if name in properties), None)
    return None if found is None else int(found)


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
