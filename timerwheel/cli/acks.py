"""`acks done|back|extend`: acknowledge a push or a task later, by hand or from a script."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from timerwheel.cli.connection import Service, ServiceOptions
from timerwheel.cli.options import length_option
from timerwheel.cli.output import JsonOutput, Output
from timerwheel.cli.units import length_between
from timerwheel.client import Client
from timerwheel.groups.config import INVISIBLE_MS_MAX
from timerwheel.wire.acks import AckAnswer

AckArgument = Annotated[
    str,
    typer.Argument(metavar="ACK", help="The URL in the header timerwheel-ack-url, or the token at its end."),
]


def done(ack: AckArgument, *, service: ServiceOptions, output: JsonOutput) -> None:
    """Acknowledge a push or task."""
    _settle(service, output, lambda client: client.acks.acknowledge(ack))


def back(
    ack: AckArgument,
    *,
    delay_ms: Annotated[
        int | None,
        length_option("--delay", "Retry after this delay instead of the backoff."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="The reason, which the history records.")] = None,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Report the attempt as failed."""
    _settle(service, output, lambda client: client.acks.give_back(ack, delay_ms=delay_ms, reason=reason))


def extend(
    ack: AckArgument,
    *,
    invisible_ms: Annotated[
        int,
        length_option("--for", "New lease, from now.", length_between(1, INVISIBLE_MS_MAX)),
    ],
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Extend the lease."""
    _settle(service, output, lambda client: client.acks.extend(ack, invisible_ms))


def _settle(service: Service, output: Output, work: Callable[[Client], Awaitable[AckAnswer]]) -> None:
    answer = service.ask(work)
    output.result(answer, answer.result.replace("_", " "))
