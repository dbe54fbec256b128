"""`tokens create|list|revoke`: who may call the service. Works on a data directory, also of one that runs."""

import re
from typing import Annotated, Any

import msgspec
import typer

from timerwheel import tokens
from timerwheel.cli.options import DATA_DEFAULT, DataOption, JsonFlag, UtcFlag
from timerwheel.cli.output import Output
from timerwheel.cli.units import parse_length_ms
from timerwheel.clock import SystemClock
from timerwheel.tokens import Scope, Token

_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:/(s|m|h))?", re.ASCII)
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}


def _rate(text: str) -> float:
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a rate; write 100/s, 30/m or 500/h")
    return float(found[1]) / _SECONDS[found[2]]


def create(
    name: Annotated[str, typer.Argument(help="What logs and `list` call it.")],
    *,
    scope: Annotated[list[Scope], typer.Option("--scope", help="What it is for; may be given repeatedly.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="PATTERN", help="A topic, or with * and ? several; may be given repeatedly."
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", parser=_rate, metavar="N/s", help="Most calls; also N/m, N/h.")
    ] = None,
    expires: Annotated[
        int | None,
        typer.Option("--expires", parser=parse_length_ms, metavar="LENGTH", help="How long it is good: 30d."),
    ] = None,
    data: DataOption = DATA_DEFAULT,
    utc: UtcFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a token; its secret is shown this once. From the first one on, the service asks for tokens."""
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
    output = Output(utc=utc)
    if as_json:
        output.json({**_shown(token), "token": secret})
        return
    output.facts(
        [
            ("token", f"{secret} (shown this once)"),
            ("name", token.name),
            ("scopes", ", ".join(token.scopes)),
            ("topics", _topics(token)),
            ("rate", _rate_text(token)),
            ("expires", _end(token, now_ms, output)),
        ]
    )


def list_tokens(data: DataOption = DATA_DEFAULT, utc: UtcFlag = False, as_json: JsonFlag = False) -> None:
    """List the tokens, without their secrets."""
    found = tokens.read(data).all
    output = Output(utc=utc)
    if as_json:
        output.json({"tokens": [_shown(token) for token in found]})
        return
    now_ms = SystemClock().now_ms()
    output.table(
        ("name", "begins with", "scopes", "topics", "rate", "made", "expires"),
        [
            (
                token.name,
                token.starts,
                ", ".join(token.scopes),
                _topics(token),
                _rate_text(token),
                output.time(token.made_ms),
                _end(token, now_ms, output),
            )
            for token in found
        ],
    )


def revoke(
    name: Annotated[str, typer.Argument(help="The token.")],
    data: DataOption = DATA_DEFAULT,
    as_json: JsonFlag = False,
) -> None:
    """End a token: a running service refuses it within two seconds."""
    token, left = tokens.revoke(data, name)
    output = Output()
    if as_json:
        output.json({**_shown(token), "left": left})
        return
    output.line(f"token {token.name} is revoked")
    if not left:
        output.line("no token is left: a service on the loopback address is now open to this whole machine")


def _shown(token: Token) -> dict[str, Any]:
    """What programs get; the hash stays in the file."""
    fields: dict[str, Any] = msgspec.to_builtins(token)
    del fields["sha256"]
    return fields


def _topics(token: Token) -> str:
    return "all" if token.has_all_topics else ", ".join(token.topics)


def _rate_text(token: Token) -> str:
    return "-" if token.rate_per_s is None else f"{token.rate_per_s:g}/s"


def _end(token: Token, now_ms: int, output: Output) -> str:
    if token.expires_ms is None:
        return "never"
    return "expired" if token.expired(now_ms) else output.time(token.expires_ms)
