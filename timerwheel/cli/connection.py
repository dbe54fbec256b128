"""Calling the service from a command that is not async, and the options by which one is let in there."""

import asyncio
import functools
import inspect
import ssl
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from timerwheel.client import Client, DeniedError
from timerwheel.errors import SettingsError
from timerwheel.tokens import is_secret

_Answer = TypeVar("_Answer")

FILE_MARK = "@"
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="TIMERWHEEL_TOKEN",
        metavar="TOKEN|@FILE",
        show_default=False,
        help="The API token, or @ and its file. Others can see a command line: use the variable.",
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="TIMERWHEEL_CA", metavar="FILE", help="Authorities to trust with https (PEM)."
    ),
]
CertOption = Annotated[
    Path | None,
    typer.Option(
        "--cert",
        envvar="TIMERWHEEL_CERT",
        metavar="FILE",
        help="Show this certificate; its key is in the file, too (PEM).",
    ),
]


class Credentials(NamedTuple):
    """What a command was given to be let in."""

    token: str | None = None
    ca: Path | None = None
    cert: Path | None = None


_OPTIONS = {"token": TokenOption, "ca": CaOption, "cert": CertOption}
_credentials: ContextVar[Credentials] = ContextVar("credentials")


def with_credentials(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that calls the service the options of `Credentials`; `ask` uses what they say."""
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def called(**values: Any) -> None:  # noqa: ANN401 - values of every type of option
        _credentials.set(Credentials(*(values.pop(name) for name in _OPTIONS)))
        command(**values)

    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    parameters = [*own.parameters.values(), *more]
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


def ask(url: str, work: Callable[[Client], Awaitable[_Answer]]) -> _Answer:
    """Run `work` with an open client; Ctrl-C ends it with KeyboardInterrupt."""
    credentials = _credentials.get(Credentials())
    token = None if credentials.token is None else _token(credentials.token)
    context = _ssl_context(credentials)

    async def run() -> _Answer:
        async with Client(url, token=token, ssl_context=context) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except DeniedError as error:
        if token is not None or error.code != "unauthenticated":
            raise
        detail = "the service asks for a token: put it into TIMERWHEEL_TOKEN, or @ and a file that holds it"
        raise DeniedError(error.status, error.code, detail) from None


def _token(given: str) -> str:
    """The token itself; SettingsError if it is none, which never shows what was given."""
    text = given.strip()
    if text.startswith(FILE_MARK):
        path = Path(text.removeprefix(FILE_MARK))
        try:
            text = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--token @{path}: {_reason(error)}") from error
    if not is_secret(text):
        raise SettingsError("--token: this is no whole token; one is tw_ and 49 letters and digits")
    return text


def _ssl_context(credentials: Credentials) -> ssl.SSLContext | None:
    """None for what Python does by itself."""
    if credentials.ca is None and credentials.cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=credentials.ca)
    except OSError as error:
        raise SettingsError(f"--ca {credentials.ca}: {_pem_reason(error, 'certificates')}") from error
    if credentials.cert is not None:
        try:
            context.load_cert_chain(credentials.cert)
        except OSError as error:
            wanted = "a certificate and its key, which belong together"
            raise SettingsError(f"--cert {credentials.cert}: {_pem_reason(error, wanted)}") from error
    return context


def _pem_reason(error: OSError, wanted: str) -> str:
    # OpenSSL's own words name its functions, not what is wrong with the file.
    return f"it does not hold {wanted}, as PEM" if isinstance(error, ssl.SSLError) else _reason(error)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
