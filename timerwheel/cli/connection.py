"""The service that a command calls, and the options that name it and hold the credentials for it."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import typer

from timerwheel.cli.options import Options
from timerwheel.client import DEFAULT_URL, Client, ClientError, DeniedError, NotFoundError
from timerwheel.client.connection import without_user
from timerwheel.errors import SettingsError
from timerwheel.tokens import is_secret

_Answer = TypeVar("_Answer")

FILE_MARK = "@"
_PANEL = "Service"
_SECRET_HELP = "The API token, or @ and the path of its file. Other users can see flags: prefer the variable."  # noqa: S105


class Service(NamedTuple):
    """The service that a command calls, and the credentials for it, as options give them."""

    url: str = DEFAULT_URL
    token: str | None = None
    ca: Path | None = None
    cert: Path | None = None

    def ask(self, work: Callable[[Client], Awaitable[_Answer]]) -> _Answer:
        """Run `work` with an open client; Ctrl-C ends it with KeyboardInterrupt."""
        token, context = self.secret, self.ssl_context

        async def run() -> _Answer:
            # A command fails at once: its caller sees why, and decides.
            async with Client(self.url, token=token, ssl_context=context, retry_ms=0) as client:
                return await work(client)

        try:
            return asyncio.run(run())
        except NotFoundError as error:
            if error.code == "unknown_route" and _names_nothing(error.detail):
                detail = "a name or an id is empty; is a variable of your shell not set?"
                raise NotFoundError(error.status, error.code, detail) from None
            if error.code == "unknown_route":
                raise NotFoundError(error.status, error.code, f"{error.detail}; {self._elsewhere}") from None
            raise
        except DeniedError as error:
            if token is not None or error.code != "unauthenticated":
                raise
            detail = (
                "the service requires a token: set TIMERWHEEL_TOKEN to it, or to @ and the path of its file"
            )
            raise DeniedError(error.status, error.code, detail) from None

    @property
    def _elsewhere(self) -> str:
        """What to check if the service does not know a call."""
        if urlsplit(self.url).path.strip("/"):
            return "is --url the service itself, without a path?"
        here = without_user(self.url)
        return f"the service at {here} may be older than this program, and without this call"

    @property
    def secret(self) -> str | None:
        """The token itself; raises SettingsError if it is malformed. The error never quotes it."""
        if self.token is None:
            return None
        text = self.token.strip()
        if text.startswith(FILE_MARK):
            path = Path(text.removeprefix(FILE_MARK))
            try:
                text = path.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(f"--token @{path}: {_reason(error)}") from error
        if not is_secret(text):
            raise SettingsError("--token: not a complete token; a token is tw_ and 49 letters and digits")
        return text

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context for the options; None means Python's defaults."""
        if self.ca is None and self.cert is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise SettingsError(f"--ca {self.ca}: {_pem_reason(error, 'certificates')}") from error
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert)
            except OSError as error:
                wanted = "a certificate and its matching key"
                raise SettingsError(f"--cert {self.cert}: {_pem_reason(error, wanted)}") from error
        return context


def _option(flag: str, help_text: str, **more: Any) -> Any:  # noqa: ANN401 - as typer takes them
    variable = f"TIMERWHEEL_{flag.removeprefix('--').upper()}"
    return typer.Option(flag, envvar=variable, help=help_text, rich_help_panel=_PANEL, **more)


def service_options(url: str | None, shown_url: str | bool = True) -> Options:
    """The options of a `Service`, with this default for its URL."""
    trusted = _option("--ca", "Trust these authorities for https (PEM).", metavar="FILE")
    own = "Client certificate to present, with its key in the same file (PEM)."
    secret = _option("--token", _SECRET_HELP, metavar="TOKEN|@FILE", show_default=False)
    return Options(
        {
            "url": (
                Annotated[str | None, _option("--url", "The service to call.", show_default=shown_url)],
                url,
            ),
            "token": (Annotated[str | None, secret], None),
            "ca": (Annotated[Path | None, trusted], None),
            "cert": (Annotated[Path | None, _option("--cert", own, metavar="FILE")], None),
        },
        Service,
    )


ServiceOptions = Annotated[Service, service_options(DEFAULT_URL)]


def _names_nothing(detail: str) -> bool:
    """Whether the path of an unknown route has an empty part, as from an empty argument."""
    path = detail.partition(";")[0]
    return path.endswith("/") or "//" in path


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


def _pem_reason(error: OSError, wanted: str) -> str:
    # OpenSSL's message names its functions, not what is wrong with the file.
    return f"not {wanted} in PEM format" if isinstance(error, ssl.SSLError) else _reason(error)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
