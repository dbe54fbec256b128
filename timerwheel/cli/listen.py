"""`listen`: sends the messages of a topic to a program on this machine, as a push subscription would.

The command consumes the topic as a group and posts each message with the requests of `timerwheel.push`: the
same headers, signature, time limit and outcomes. So a webhook can be tried on a laptop, which the service
cannot reach. A group that the command created for itself is deleted at the end, or if it was killed, by the
next one on this machine.
"""

import asyncio
import contextlib
import logging
import re
import secrets
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from timerwheel.cli.backoff import BackoffOption
from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.groups import AttemptsOption, TagsOption, config_of
from timerwheel.cli.options import parse_pairs, word_option
from timerwheel.cli.output import LineOutput, Output, body_shown
from timerwheel.cli.own_groups import OwnGroup, noted, of_dead_commands, state_directory
from timerwheel.cli.subscriptions import CloudEventsOption, HeadersOption, SecretOption, TimeoutOption
from timerwheel.client import (
    Client,
    ClientError,
    Delivery,
    DeniedError,
    Group,
    GroupConfig,
    Lease,
    NotFoundError,
)
from timerwheel.client.connection import given
from timerwheel.clock import SystemClock
from timerwheel.model.messages import MessageView
from timerwheel.model.text import printable
from timerwheel.push.addresses import TargetError, check_url
from timerwheel.push.signing import SecretError, key_of, random_secret
from timerwheel.push.subscription import Subscription

if TYPE_CHECKING:
    from timerwheel.push.outcome import Outcome

GROUP_PREFIX = "listen-"
CONCURRENCY_MAX = 256
TIMEOUT_MS = 15_000
_STOPPED = "`timerwheel listen` was stopped"
_PORT = re.compile(r"[0-9]{1,5}(?:/.*)?")


def _target(text: str) -> str:
    """The URL of `3000`, `localhost:3000`, `localhost:3000/hook` or a whole one."""
    whole = f"localhost:{text}" if _PORT.fullmatch(text) else text
    whole = whole if "://" in whole else f"http://{whole}"
    try:
        return check_url(whole, allow_private=True)
    except TargetError as error:
        raise typer.BadParameter(f"{text!r}: {error}; write localhost:3000 or a URL") from None


def _secret(text: str | None) -> str:
    if text is None:
        return random_secret()
    try:
        key_of(text)
    except SecretError as error:
        raise typer.BadParameter(str(error), param_hint="--secret") from None
    return text


def listen(
    topic: Annotated[str, typer.Argument(help="The topic whose messages are forwarded.")],
    *,
    target: Annotated[
        str,
        typer.Option(
            "--forward-to",
            parser=_target,
            metavar="ADDRESS",
            help="Where to post messages: localhost:3000, localhost:3000/hook, or a URL.",
        ),
    ],
    group: Annotated[
        str | None,
        typer.Option(help="Consume as this group, which stays; by default a new one, deleted at the end."),
    ] = None,
    start: Annotated[
        str | None,
        word_option(
            "--start",
            "Where a new group starts; the default is tail, so only with messages from now on.",
            "head",
            "tail",
        ),
    ] = None,
    tags: TagsOption = None,
    max_attempts: AttemptsOption = None,
    backoff: BackoffOption = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=CONCURRENCY_MAX, help="Most concurrent requests.")
    ] = 8,
    timeout_ms: TimeoutOption = None,
    headers: HeadersOption = None,
    cloudevents: CloudEventsOption = None,
    print_bodies: Annotated[
        bool, typer.Option("--print", help="Print the body of each message too.")
    ] = False,
    secret: SecretOption = None,
    service: ServiceOptions,
    output: LineOutput,
) -> None:
    """Forward the messages of a topic to a program on this machine, signed as push signs them.

    Prints the signing secret, then a line for each attempt. A message that is not answered with 2xx is
    retried by the rules of the group. Ctrl-C ends it: what is in progress goes back to the group.
    """
    subscription = Subscription(
        id="listen",
        topic=topic,
        url=target,
        secrets=[_secret(secret)],
        group=group or GROUP_PREFIX + secrets.token_hex(4),
        headers=parse_pairs(headers, "--header"),
        concurrency=concurrency,
        timeout_ms=TIMEOUT_MS if timeout_ms is None else timeout_ms,
        cloudevents=bool(cloudevents),
    )
    wishes: dict[str, Any] = given(
        start=start or (None if group else "tail"),
        tags=tags,
        max_attempts=max_attempts,
        backoff=backoff,
    )
    report = Report(output, print_bodies=print_bodies)
    _report_outages()
    ended = asyncio.Event()

    async def work(client: Client) -> None:
        await _tidy(client)
        handle = client.group(topic, subscription.group)
        own = OwnGroup(client.url, topic, subscription.group)
        with contextlib.nullcontext() if group is not None else noted(own, state_directory()) as note:
            config = await _prepare(handle, subscription, wishes, own=group is None)
            try:
                with _set_by_signals(ended):
                    report.begin(msgspec.structs.replace(subscription, max_attempts=config.max_attempts))
                    await _forward(handle, subscription, report, ended)
            finally:
                if group is None and await _deleted(handle) and note is not None:
                    note.unlink(missing_ok=True)
        report.end()

    service.ask(work)


@contextlib.contextmanager
def _set_by_signals(ended: asyncio.Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block in order; a second one ends the command at once.

    Before and after the block they do, too: the service may not answer. The next command deletes the group.
    """
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])

    def end() -> None:
        restore()
        ended.set()

    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        restore()


async def _prepare(
    handle: Group, subscription: Subscription, wishes: dict[str, Any], *, own: bool
) -> GroupConfig:
    """Create the group, or change what was asked for of one that exists; its configuration."""
    if not own:
        try:
            config = config_of(await handle.info())
        except NotFoundError:
            pass
        else:
            kept = {name: value for name, value in wishes.items() if name != "start"}
            if kept:
                config = config_of(await handle.put(msgspec.structs.replace(config, **kept)))
            return config
    made = GroupConfig(start="tail", invisible_ms=subscription.lease_ms)
    config = config_of(await handle.put(msgspec.structs.replace(made, **wishes)))
    if not own:
        print(f"created group {subscription.group} of topic {subscription.topic}", file=sys.stderr)
    return config


async def _tidy(client: Client) -> None:
    """Delete the groups that commands on this machine left on this service when they were killed."""
    for own, note in of_dead_commands(client.url, state_directory()):
        if not own.group.startswith(GROUP_PREFIX):
            continue
        try:
            await client.group(own.topic, own.group).delete()
        except DeniedError:
            continue  # another token may
        except NotFoundError:
            pass
        else:
            words = f"deleted group {own.group} of topic {own.topic}, left by a killed `listen`"
            print(words, file=sys.stderr)
        note.unlink(missing_ok=True)


async def _deleted(handle: Group) -> bool:
    try:
        await handle.delete()
    except NotFoundError:
        return True  # with its topic, or by somebody else
    except ClientError as error:
        words = f"group {handle.name} was not deleted: {error}; delete it: timerwheel groups delete"
        print(f"timerwheel: {words} {handle.topic} {handle.name}", file=sys.stderr)
        return False
    return True


class Report:
    """What the command prints."""

    def __init__(self, output: Output, *, print_bodies: bool) -> None:
        self._output = output
        self._print_bodies = print_bodies
        self._attempts_max = 0
        self._counts = {"delivered": 0, "failed": 0}

    def begin(self, subscription: Subscription) -> None:
        """Print where messages go and the secret that signs them."""
        self._attempts_max = subscription.max_attempts
        shown = {"topic": subscription.topic, "group": subscription.group, "url": subscription.url}
        secret = subscription.secrets[0]
        self._output.result(
            {**shown, "secret": secret},
            f"forwarding {subscription.topic} to {printable(subscription.url)} as group {subscription.group}",
            f"signing secret: {secret}",
            "Ctrl-C ends it",
        )

    def attempt(self, message: Delivery, outcome: "Outcome") -> None:
        """Print the outcome of one attempt."""
        self._counts["delivered" if outcome.is_delivered else "failed"] += 1
        document = {
            "id": message.id,
            "topic": message.topic,
            "queue": message.queue,
            "offset": message.offset,
            "attempt": message.attempt,
            "outcome": outcome.kind,
            "status": outcome.status,
            "reason": outcome.reason,
            "latency_ms": outcome.latency_ms,
        }
        if self._print_bodies:
            is_text = message.body_base64 is None
            document |= {"body": message.body_text or ""} if is_text else {"body_base64": message.body}
        now_ms = SystemClock().now_ms()
        status = "---" if outcome.status is None else str(outcome.status)
        words = f"{self._output.stamp(now_ms)}  {status}  {outcome.latency_ms:>5} ms  {message.id}"
        words += f"  attempt {message.attempt} of {self._attempts_max}"
        if not outcome.is_delivered:
            words += f"  {printable(outcome.reason)}{self._next(message, outcome)}"
        lines = [words]
        if self._print_bodies:
            lines.append(f"  {body_shown(message.body)}")
        self._output.result(document, *lines)

    def _next(self, message: Delivery, outcome: "Outcome") -> str:
        if message.attempt >= self._attempts_max:
            return "; it is a dead letter now"
        return "; a subscription would be disabled by this answer" if outcome.is_gone else ""

    def end(self) -> None:
        """Print how it went."""
        delivered, failed = self._counts["delivered"], self._counts["failed"]
        if self._output.for_people:
            self._output.line(f"{delivered:,} delivered, {failed:,} failed attempts")


async def _forward(handle: Group, subscription: Subscription, report: Report, ended: asyncio.Event) -> None:
    """Forward until `ended` is set; what is in progress then goes back to the group.

    Raises OSError once an attempt cannot be printed: it has been made, so its message must not be retried.
    """
    from timerwheel.push.endpoint import Caller

    caller = Caller(SystemClock(), allow_private=True)
    ending = asyncio.create_task(ended.wait())
    unprinted: list[OSError] = []

    async def forward(lease: Lease) -> None:
        message = lease.message
        attempt = asyncio.create_task(caller.attempt(subscription, view_of(message), message.attempt))
        await asyncio.wait((attempt, ending), return_when=asyncio.FIRST_COMPLETED)
        if not attempt.done():
            attempt.cancel()
            await asyncio.wait([attempt])
            with contextlib.suppress(ClientError):  # once: the user waits, and the lease ends by itself
                await lease.nack(delay_ms=0, reason=_STOPPED)
            return
        outcome = attempt.result()
        try:
            report.attempt(message, outcome)
        except OSError as error:
            unprinted.append(error)
            ended.set()
        if not outcome.is_delivered:
            await lease.nack(delay_ms=outcome.retry_after_ms, reason=outcome.reason)

    try:
        await handle.consume(
            forward,
            concurrency=subscription.concurrency,
            stop=ended,
            create=False,
            invisible_ms=subscription.lease_ms,
        )
    finally:
        ending.cancel()
        await caller.close()
    if unprinted:
        raise unprinted[0]


class _OneLine(logging.Formatter):
    """Words what the client reports in an outage as other errors of commands."""

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802 - as its base
        """The error without its traceback."""
        return str(ei[1])


def _report_outages() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("timerwheel: %(message)s"))
    logging.getLogger("timerwheel.client").addHandler(handler)


def view_of(message: Delivery) -> MessageView:
    """The message as push sees it."""
    return MessageView(
        id=message.id,
        topic=message.topic,
        queue=message.queue,
        state=message.state,
        due_ms=message.due_ms,
        level=message.level,
        enqueue_ms=message.enqueue_ms,
        properties=message.properties,
        body=message.body,
        delivered_ms=message.delivered_ms,
        queue_offset=message.offset,
    )
