"""`groups receive|ack|nack|extend`: consume as a group by hand, or from a script."""

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from timerwheel.cli.connection import Service, ServiceOptions, advising
from timerwheel.cli.groups import GroupArgument, InvisibleOption, StartOption, TagsOption, TopicArgument
from timerwheel.cli.options import length_option
from timerwheel.cli.output import IdLineOutput, JsonOutput, Output, content_shown
from timerwheel.cli.units import length_between, parse_length_ms
from timerwheel.client import Client, Delivery, ReceiptResult
from timerwheel.groups.config import INVISIBLE_MS_MAX

POLL_MS = 20_000
WAIT_MS_MAX = 60_000
BATCH_MESSAGES = 100

ReceiptsArgument = Annotated[
    list[str], typer.Argument(metavar="RECEIPT", help="Receipts that `groups receive` printed.")
]


def _wait(text: str) -> int:
    wait_ms = parse_length_ms(text)
    if wait_ms > WAIT_MS_MAX:
        raise typer.BadParameter("give at most 60s, or --follow to wait indefinitely")
    return wait_ms


def receive(
    topic: TopicArgument,
    group: GroupArgument,
    *,
    count_max: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, help="Stop after this many; the default is 1, or no limit with --follow."
        ),
    ] = None,
    wait_ms: Annotated[
        int | None,
        length_option("--wait", "Wait up to this long for the first message, at most 60s.", _wait),
    ] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge each message after printing it.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep waiting for messages until Ctrl-C.")
    ] = False,
    invisible_ms: InvisibleOption = None,
    tags: TagsOption = None,
    start: StartOption = None,
    create: Annotated[
        bool | None,
        typer.Option(
            "--create/--no-create",
            help="Create the group if it does not exist; without either flag, only if the topic exists.",
            show_default=False,
        ),
    ] = None,
    service: ServiceOptions,
    output: IdLineOutput,
) -> None:
    """Receive messages as a consumer of a group, and print them with their receipts.

    Messages that are not acknowledged are redelivered. A missing group is created if its topic exists.
    """
    if count_max is None and not follow:
        count_max = 1
    begin: Any = start

    async def work(client: Client) -> None:
        handle, announced = client.group(topic, group), False
        left = count_max
        while left is None or left > 0:
            found = await handle.receive(
                BATCH_MESSAGES if left is None else min(left, BATCH_MESSAGES),
                wait_ms=POLL_MS if follow else wait_ms or 0,
                invisible_ms=invisible_ms,
                tags=tags,
                start=begin,
                create=create,
            )
            if handle.created and not announced:
                announced = True
                print(f"created group {group} of topic {topic}", file=sys.stderr)
            for message in found:
                _print(message, output)
            if ack and found:
                whole = [message for message in found if message.problem is None]
                if whole:
                    _end_if_refused(await handle.ack([message.receipt for message in whole]))
                if len(whole) < len(found):
                    raise typer.Exit(1)
            if not found and not follow:
                return
            left = None if left is None else left - len(found)

    with advising("group_not_found", "check the names, or add --create"):
        service.ask(work)


def acknowledge(
    topic: TopicArgument,
    group: GroupArgument,
    receipts: ReceiptsArgument,
    *,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Acknowledge messages: they are done."""
    _answer_receipts(service, output, lambda client: client.group(topic, group).ack(receipts), "acknowledged")


def nack(
    topic: TopicArgument,
    group: GroupArgument,
    receipts: ReceiptsArgument,
    *,
    delay_ms: Annotated[
        int | None,
        length_option("--delay", "Redeliver after this delay instead of the backoff."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="The reason, which a dead letter records.")] = None,
    dead_letter: Annotated[
        bool, typer.Option("--dead-letter", help="Make them dead letters now, whatever attempts are left.")
    ] = False,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Give messages back: they are redelivered, or become dead letters after the last attempt."""

    def work(client: Client) -> Awaitable[list[ReceiptResult]]:
        handle = client.group(topic, group)
        return handle.nack(receipts, delay_ms=delay_ms, reason=reason, dead_letter=dead_letter)

    if dead_letter and delay_ms is not None:
        raise typer.BadParameter("a dead letter is not redelivered", param_hint="--delay")
    verb = "made a dead letter" if dead_letter else "returned"
    _answer_receipts(service, output, work, verb)


def extend(
    topic: TopicArgument,
    group: GroupArgument,
    receipts: ReceiptsArgument,
    *,
    invisible_ms: Annotated[
        int,
        length_option("--for", "Hold them this long from now.", length_between(1, INVISIBLE_MS_MAX)),
    ],
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Extend the lease of messages; their receipts stay valid."""
    _answer_receipts(
        service, output, lambda client: client.group(topic, group).extend(receipts, invisible_ms), "extended"
    )


def _answer_receipts(
    service: Service, output: Output, work: Callable[[Client], Awaitable[list[ReceiptResult]]], done: str
) -> None:
    results = service.ask(work)
    rows = [
        (result.receipt, done if result.ok else (result.code or "").replace("_", " ")) for result in results
    ]
    output.listing({"results": results}, ("receipt", "result"), rows)
    _end_if_refused(results)


def _end_if_refused(results: list[ReceiptResult]) -> None:
    if not all(result.ok for result in results):
        raise typer.Exit(1)


def _print(message: Delivery, output: Output) -> None:
    place = f"{message.topic}/{message.queue}@{message.offset}"
    output.result(
        message,
        f"{output.stamp(message.delivered_ms)}  {place}  {message.id}  attempt {message.attempt}  "
        f"{message.receipt}  {content_shown(message)}",
        ids=[message.id],
    )
