"""`acks done|back|extend`: acknowledge a push or a task later, by hand or from a script."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from timerwheel.cli.connection import ask
from timerwheel.cli.options import JsonFlag, UrlOption
from timerwheel.cli.output import Output
from timerwheel.cli.units import length_between, parse_length_ms
from timerwheel.client import DEFAULT_URL, Client
from timerwheel.groups.config import INVISIBLE_MS_MAX
from timerwheel.wire.acks import AckAnswer

AckArgument = Annotated[
    str,
    typer.Argument(metavar="ACK", help="The URL in the header timerwheel-ack-url, or the token at its end."),
]


def done(ack: AckArgument, url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """Acknowledge it: it is done."""
    _settle(url, lambda client: client.acks.acknowledge(ack), as_json=as_json)


def back(
    ack: AckArgument,
    *,
    delay_ms: Annotated[
        int | None,
        typer.Option(
            "--delay",
            parser=parse_length_ms,
            metavar="LENGTH",
            help="Try again after this delay instead of the backoff.",
        ),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="The reason, which the history records.")] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """Give it back: the attempt failed."""
    _settle(
        url,
        lambda client: client.acks.give_back(ack, delay_ms=delay_ms, reason=reason),
        as_json=as_json,
    )


def extend(
    ack: AckArgument,
    *,
    invisible_ms: Annotated[
        int,
        typer.Option(
            "--for",
            parser=length_between(1, INVISIBLE_MS_MAX),
            metavar="LENGTH",
            help="Have this long from now.",
        ),
    ],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """Have longer to acknowledge it."""
    _settle(url, lambda client: client.acks.extend(ack, invisible_ms), as_json=as_json)


def _settle(url: str, work: Callable[[Client], Awaitable[AckAnswer]], *, as_json: bool) -> None:
    answer = ask(url, work)
    Output(as_json=as_json).result(answer, answer.result.replace("_", " "))
