"""`subscriptions list|show|add|update|pause|resume|test|rotate|delete|stats`: messages pushed to URLs."""

from typing import Annotated, Any

import typer

from timerwheel.cli.backoff import BackoffOption, format_backoff, parse_backoff
from timerwheel.cli.connection import ask
from timerwheel.cli.groups import AttemptsOption, StartOption, TagsOption
from timerwheel.cli.options import JsonFlag, UrlOption, UtcFlag, YesFlag, agree_or_end, parse_pairs
from timerwheel.cli.output import Output
from timerwheel.cli.units import length_between
from timerwheel.client import DEFAULT_URL
from timerwheel.model.durations import format_duration
from timerwheel.model.text import printable
from timerwheel.push.subscription import TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, SubscriptionView
from timerwheel.wire.subscriptions import SubscriptionWithSecret

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.")]
ConcurrencyOption = Annotated[int | None, typer.Option(min=1, help="Most requests at a time.")]
TimeoutOption = Annotated[
    int | None,
    typer.Option(
        "--timeout",
        parser=length_between(TIMEOUT_MS_MIN, TIMEOUT_MS_MAX),
        metavar="LENGTH",
        help="Longest wait for an answer.",
    ),
]
HeadersOption = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="Sent along; may be given repeatedly."),
]
CloudEventsOption = Annotated[
    bool | None,
    typer.Option(
        "--cloudevents/--no-cloudevents", help="With the headers of CloudEvents.", show_default=False
    ),
]


def list_subscriptions(url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """List the subscriptions."""
    found = ask(url, lambda client: client.subscriptions.all())
    output = Output()
    if as_json:
        output.json({"subscriptions": found})
    else:
        output.table(
            ("id", "topic", "group", "status", "url"),
            [(one.id, one.topic, one.group, one.status, printable(one.url)) for one in found],
        )


def show(subscription_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """Show a subscription. Its secret and the values of its headers are never shown."""
    _show(ask(url, lambda client: client.subscriptions.get(subscription_id)), as_json=as_json)


def add(
    topic: Annotated[str, typer.Argument(help="Whose messages are pushed.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The URL that they are posted to.")],
    *,
    subscription_id: Annotated[str | None, typer.Option("--id", help="Its id; else one is made.")] = None,
    group: Annotated[str | None, typer.Option(help="The group to consume as; else one of its own.")] = None,
    start: StartOption = None,
    tags: TagsOption = None,
    max_attempts: AttemptsOption = None,
    backoff: BackoffOption = None,
    concurrency: ConcurrencyOption = None,
    timeout_ms: TimeoutOption = None,
    headers: HeadersOption = None,
    cloudevents: CloudEventsOption = None,
    paused: Annotated[bool, typer.Option("--paused", help="Begin paused.")] = False,
    secret: Annotated[
        str | None,
        typer.Option(envvar="TIMERWHEEL_SECRET", help="Signs the requests, whsec_...; else one is made."),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """Push the messages of a topic to a URL. The secret is shown this once."""
    options: Any = _given(
        id=subscription_id,
        group=group,
        start=start,
        tags=tags,
        max_attempts=max_attempts,
        backoff=parse_backoff(backoff),
        concurrency=concurrency,
        timeout_ms=timeout_ms,
        headers=parse_pairs(headers, "--header") or None,
        cloudevents=cloudevents,
        paused=paused or None,
        secret=secret,
    )
    _show(ask(url, lambda client: client.subscriptions.add(topic, target, **options)), as_json=as_json)


def update(
    subscription_id: IdArgument,
    *,
    target: Annotated[str | None, typer.Option(metavar="URL", help="Where messages are posted to.")] = None,
    tags: TagsOption = None,
    max_attempts: AttemptsOption = None,
    backoff: BackoffOption = None,
    concurrency: ConcurrencyOption = None,
    timeout_ms: TimeoutOption = None,
    headers: HeadersOption = None,
    cloudevents: CloudEventsOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """Change what is given of a subscription; headers are replaced as a whole."""
    changes: Any = _given(
        url=target,
        tags=tags,
        max_attempts=max_attempts,
        backoff=parse_backoff(backoff),
        concurrency=concurrency,
        timeout_ms=timeout_ms,
        headers=None if headers is None else parse_pairs(headers, "--header"),
        cloudevents=cloudevents,
    )
    if not changes:
        raise typer.BadParameter("give what is to change")
    _show(ask(url, lambda client: client.subscriptions.update(subscription_id, **changes)), as_json=as_json)


def pause(subscription_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """Push nothing until `resume`."""
    _show(ask(url, lambda client: client.subscriptions.pause(subscription_id)), as_json=as_json)


def resume(subscription_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """Push again at once, also if the service stopped by itself."""
    _show(ask(url, lambda client: client.subscriptions.resume(subscription_id)), as_json=as_json)


def fire(subscription_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """Push one made-up message now and tell what came of it."""
    outcome = ask(url, lambda client: client.subscriptions.test(subscription_id))
    output = Output()
    if as_json:
        output.json(outcome)
    else:
        output.line(f"{outcome.kind}: {printable(outcome.reason)} ({outcome.latency_ms} ms)")
    if outcome.kind != "delivered":
        raise typer.Exit(1)


def rotate(
    subscription_id: IdArgument,
    *,
    finish: Annotated[bool, typer.Option("--finish", help="Sign with the new secret alone.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """Sign with a new secret and the old one; when the receiver knows the new one, `--finish`."""
    if finish:
        _show(ask(url, lambda client: client.subscriptions.finish_rotation(subscription_id)), as_json=as_json)
    else:
        _show(ask(url, lambda client: client.subscriptions.rotate_secret(subscription_id)), as_json=as_json)


def delete(
    subscription_id: IdArgument,
    *,
    yes: YesFlag = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonFlag = False,
) -> None:
    """Forget a subscription, with the group that was made for it; asks first."""
    if not yes:
        agree_or_end(f"Delete subscription {subscription_id}, with the group that was made for it?")
    view = ask(url, lambda client: client.subscriptions.delete(subscription_id))
    output = Output()
    if as_json:
        output.json(view)
    else:
        output.line(f"subscription {view.id} of topic {view.topic} is deleted")


def stats(
    subscription_id: IdArgument, url: UrlOption = DEFAULT_URL, utc: UtcFlag = False, as_json: JsonFlag = False
) -> None:
    """Show what became of the requests since the service started."""
    found = ask(url, lambda client: client.subscriptions.stats(subscription_id))
    output = Output(utc=utc)
    if as_json:
        output.json(found)
        return
    facts = [
        ("delivered", f"{found.delivered:,}"),
        ("failed", f"{found.failed:,}, {found.failures_in_row:,} in a row"),
        ("in flight", f"{found.in_flight:,}"),
    ]
    if found.last_attempt_ms is not None:
        status = "no answer" if found.last_status is None else f"status {found.last_status}"
        facts.append(("last", f"{status}, {output.time_and_distance(found.last_attempt_ms)}"))
        facts.append(("latency", f"{found.latency_p50_ms} ms (median), {found.latency_p99_ms} ms (p99)"))
    if found.last_error is not None:
        facts.append(("last error", printable(found.last_error)))
    output.facts(facts)


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _health(view: SubscriptionView, output: Output) -> list[tuple[str, str]]:
    """What a person has to know of an endpoint that fails."""
    if view.failing_since_ms is None:
        return []
    status = "no answer" if view.last_status is None else f"status {view.last_status}"
    facts = [
        (
            "failing",
            f"since {output.time_and_distance(view.failing_since_ms)}, {view.failures_in_row:,} in a row",
        ),
        ("last attempt", f"{status}: {printable(view.last_error or '')}"),
    ]
    if view.next_attempt_ms is not None:
        facts.append(("next attempt", output.time_and_distance(view.next_attempt_ms)))
    return facts


def _show(view: SubscriptionView, *, as_json: bool) -> None:
    output = Output()
    if as_json:
        output.json(view)
        return
    disabled = "" if view.disabled is None else f": {printable(view.disabled)}"
    facts = [
        ("id", view.id),
        ("topic", view.topic),
        ("group", f"{view.group}, tags {printable(view.tags)}"),
        ("url", printable(view.url)),
        ("status", f"{view.status}{disabled}"),
        *_health(view, output),
        ("attempts", f"{view.max_attempts}, backoff {format_backoff(view.backoff)}"),
        ("requests", f"{view.concurrency} at a time, time-out {format_duration(view.timeout_ms)}"),
    ]
    if view.header_names:
        facts.append(("headers", ", ".join(view.header_names)))
    if view.cloudevents:
        facts.append(("format", "CloudEvents"))
    if isinstance(view, SubscriptionWithSecret):
        facts.append(("secret", f"{view.secret} (shown this once)"))
    elif view.secrets_valid > 1:
        facts.append(("secret", "being rotated: the old one signs too"))
    output.facts(facts)
