"""`tokens create|list|revoke|whoami`: API tokens of a data directory, whether its service runs or not."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from timerwheel import tokens
from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import DATA_DEFAULT, DataOption, length_option
from timerwheel.cli.output import IdOutput, IdTimeOutput, TimeOutput
from timerwheel.cli.units import YEAR_MS, length_between, parse_rate
from timerwheel.clock import SystemClock
from timerwheel.model.shards import ALONE
from timerwheel.store.errors import FormatError
from timerwheel.tokens import Scope, Token

EXPIRES_MS_MAX = 1_000 * YEAR_MS
NONE_LEFT = (
    "no token is left. The effect depends on where the service listens:",
    "- on a loopback address: from now on every program on this machine has full access",
    "- elsewhere: it refuses all calls, and does not start again until there is a token",
    "- with --open-to-all: from now on everyone who can reach it has full access",
)


def create(
    name: Annotated[str, typer.Argument(help="Its name in logs and in `list`.")],
    *,
    scope: Annotated[list[Scope], typer.Option("--scope", help="Scope to grant; may be repeated.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="PATTERN",
            help="Grant access to this topic only; * and ? match several; may be repeated.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", parser=parse_rate, metavar="N/s", help="Most calls per second; also N/m, N/h."
        ),
    ] = None,
    expires: Annotated[
        int | None,
        length_option("--expires", "How long it is valid: 30d.", length_between(1, EXPIRES_MS_MAX)),
    ] = None,
    data: DataOption = DATA_DEFAULT,
    output: IdTimeOutput,
) -> None:
    """Create a token; its secret is shown only now. Once a token exists, every call needs one."""
    _refuse_unread(data)
    now_ms = SystemClock().now_ms()
    secret = tokens.new_secret()
    token = Token(
        name=name,
        starts=secret[: tokens.SHOWN_CHARACTERS],
        sha256=tokens.hash_of(secret),
        scopes=tuple(dict.fromkeys(scope)),
        topics=tuple(dict.fromkeys(topic or ())),
        rate_per_s=rate,
        made_ms=now_ms,
        expires_ms=None if expires is None else now_ms + expires,
    )
    tokens.create(data, token)
    _warn_if_new(data)
    output.details(
        {**_shown(token), "token": secret},
        [
            ("token", f"{secret} (shown only now)"),
            ("name", token.name),
            ("scopes", ", ".join(token.scopes)),
            ("topics", _topics(token)),
            ("rate", _rate_text(token)),
            ("expires", _end(token, now_ms, output.time)),
        ],
        ids=[token.name],
    )


def list_tokens(data: DataOption = DATA_DEFAULT, *, output: IdTimeOutput) -> None:
    """List the tokens without their secrets."""
    _check(data)
    found = tokens.read(data).all
    now_ms = SystemClock().now_ms()
    output.listing(
        {"tokens": [_shown(token) for token in found]},
        ("name", "begins with", "=scopes", "~topics", "+rate", "+made", "expires"),
        [
            (
                token.name,
                token.starts,
                ", ".join(token.scopes),
                _topics(token),
                _rate_text(token),
                output.when(token.made_ms),
                _end(token, now_ms, output.when),
            )
            for token in found
        ],
        ids=[token.name for token in found],
    )


def revoke(
    name: Annotated[str, typer.Argument(help="The token.")],
    data: DataOption = DATA_DEFAULT,
    *,
    output: IdOutput,
) -> None:
    """Revoke a token; a running service refuses it within a second."""
    _check(data)
    token, left = tokens.revoke(data, name)
    lines = (f"revoked token {token.name}", *(() if left else NONE_LEFT))
    output.result({**_shown(token), "left": left}, *lines, ids=[token.name])


def whoami(*, service: ServiceOptions, output: TimeOutput) -> None:
    """Show what the token in use may do, according to the service."""
    found = service.ask(lambda client: client.token())
    expires = "never" if found.expires_ms is None else output.time_and_distance(found.expires_ms)
    output.details(
        found,
        [
            ("name", found.name or "none: the service has no tokens"),
            ("scopes", ", ".join(found.scopes)),
            ("topics", ", ".join(found.topics)),
            ("rate", "no limit" if found.rate_per_s is None else f"{found.rate_per_s:g}/s"),
            ("expires", expires),
        ],
    )


def _check(data: Path) -> None:
    """Raise FormatError if the directory has neither tokens nor a log: it is probably the wrong one."""
    from timerwheel.state.log_manifest import log_directory, shards_in

    _refuse_unread(data)
    if not (data / tokens.FILE).exists() and not shards_in(data):
        log_directory(data)


def _refuse_unread(data: Path) -> None:
    """Raise FormatError for a directory whose tokens no service reads: a backup, or a shard of a node."""
    from timerwheel.runtime.data_directory import is_backup
    from timerwheel.shards.layout import shard_at
    from timerwheel.state.log_manifest import SHARD_DIRECTORY

    if is_backup(data):
        raise FormatError(f"{data} is a backup, which no service uses; give the data directory of a service")
    shard = shard_at(data)
    own = Path(os.path.abspath(data))  # noqa: PTH100 - a shard's directory may be a link to another disk
    if shard is not None and shard != ALONE and own.name == SHARD_DIRECTORY.format(shard.number):
        raise FormatError(
            f"{data} is the directory of a shard; the tokens are those of its node: {own.parent}"
        )


def _warn_if_new(data: Path) -> None:
    """Warn that no service used this directory: with a mistyped path the real service stays open."""
    from timerwheel.state.log_manifest import LOG_DIRECTORY, shards_in

    if not (data / LOG_DIRECTORY).is_dir() and not shards_in(data):
        print(
            f"no service has used {data} yet: the token is for one started with this --data", file=sys.stderr
        )


def _shown(token: Token) -> dict[str, Any]:
    """The JSON form of a token, without its hash."""
    fields: dict[str, Any] = msgspec.to_builtins(token)
    del fields["sha256"]
    return fields


def _topics(token: Token) -> str:
    return "all" if token.has_all_topics else ", ".join(token.topics)


def _rate_text(token: Token) -> str:
    return "-" if token.rate_per_s is None else f"{token.rate_per_s:g}/s"


def _end(token: Token, now_ms: int, shown: Callable[[int], str]) -> str:
    if token.expires_ms is None:
        return "never"
    return "expired" if token.expired(now_ms) else shown(token.expires_ms)
