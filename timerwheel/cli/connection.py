"""Calls the service from a command that is not async; also the options with its credentials."""

import asyncio
import contextlib
import functools
import inspect
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from timerwheel.cli.options import SERVICE_PANEL
from timerwheel.client import Client, ClientError, DeniedError
from timerwheel.errors import SettingsError
from timerwheel.tokens import is_secret

_Answer = TypeVar("_Answer")

FILE_MARK = "@"
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="TIMERWHEEL_TOKEN",
        rich_help_panel=SERVICE_PANEL,
        metavar="TOKEN|@FILE",
        show_default=False,
        help="The API token, or @ and the path of its file. Other users can see flags: prefer the variable.",
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        envvar="TIMERWHEEL_CA",
        rich_help_panel=SERVICE_PANEL,
        metavar="FILE",
        help="Trust these authorities for https (PEM).",
    ),
]
CertOption = Annotated[
    Path | None,
    typer.Option(
        "--cert",
        envvar="TIMERWHEEL_CERT",
        rich_help_panel=SERVICE_PANEL,
        metavar="FILE",
        help="Client certificate to present, with its key in the same file (PEM).",
    ),
]


class Credentials(NamedTuple):
    """Credentials from the options of a command."""

    token: str | None = None
    ca: Path | None = None
    cert: Path | None = None


_OPTIONS = {"token": TokenOption, "ca": CaOption, "cert": CertOption}
_credentials: ContextVar[Credentials] = ContextVar("credentials")


def with_credentials(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `Credentials` to a command that calls the service; `ask` uses them."""
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


def use_credentials(values: Mapping[str, Any]) -> None:
    """Call the service with the credentials among these values of options."""
    _credentials.set(Credentials(*(values.get(name) for name in _OPTIONS)))


def ask(url: str, work: Callable[[Client], Awaitable[_Answer]]) -> _Answer:
    """Run `work` with an open client; Ctrl-C ends it with KeyboardInterrupt."""
    credentials = _credentials.get(Credentials())
    token = None if credentials.token is None else _token(credentials.token)
    context = ssl_context(credentials)

    async def run() -> _Answer:
        # A command fails at once: its caller sees why, and decides.
        async with Client(url, token=token, ssl_context=context, retry_ms=0) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except DeniedError as error:
        if token is not None or error.code != "unauthenticated":
            raise
        detail = "the service requires a token: set TIMERWHEEL_TOKEN to it, or to @ and the path of its file"
        raise DeniedError(error.status, error.code, detail) from None


def credentials_to_pass_on() -> Credentials:
    """The options' credentials for another process, checked, with the token itself in place of its file."""
    credentials = _credentials.get(Credentials())
    ssl_context(credentials)
    return credentials._replace(token=None if credentials.token is None else _token(credentials.token))


@contextlib.contextmanager
def advising(code: str, advice: str) -> Iterator[None]:
    """Give this advice in errors with this code instead of the API's, which does not name the CLI's flags."""
    try:
        yield
    except ClientError as error:
        if error.code != code:
            raise
        wrong = error.detail.partition(";")[0]
        raise type(error)(error.status, code, f"{wrong}; {advice}") from None


def _token(given: str) -> str:
    """The token itself; raises SettingsError if it is malformed. The error never quotes it."""
    text = given.strip()
    if text.startswith(FILE_MARK):
        path = Path(text.removeprefix(FILE_MARK))
        try:
            text = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--token @{path}: {_reason(error)}") from error
    if not is_secret(text):
        raise SettingsError("--token: not a complete token; a token is tw_ and 49 letters and digits")
    return text


def ssl_context(credentials: Credentials) -> ssl.SSLContext | None:
    """The TLS context for the options; None means Python's defaults."""
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
            wanted = "a certificate and its matching key"
            raise SettingsError(f"--cert {credentials.cert}: {_pem_reason(error, wanted)}") from error
    return context


def _pem_reason(error: OSError, wanted: str) -> str:
    # OpenSSL's message names its functions, not what is wrong with the file.
    return f"not {wanted} in PEM format" if isinstance(error, ssl.SSLError) else _reason(error)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
