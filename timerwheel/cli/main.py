"""The `timerwheel` command; here errors become exit codes. `table` lists the commands.

Exit codes: 0 success; 1 refused, failed, or a check found something; 2 wrong usage or settings; 3 the service
is unreachable; 130 interrupted, 143 terminated by SIGTERM.
"""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from timerwheel.cli import completion, usage
from timerwheel.cli.table import TABLE, Loaded
from timerwheel.client.errors import AddressError, ClientError, OutcomeUnknownError, UnreachableError
from timerwheel.errors import SettingsError, TimerwheelError
from timerwheel.store.errors import StoreError
from timerwheel.store.files import UMASK
from timerwheel.version import version

FAILED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130
STDERR = 2
_ELSEWHERE = "illegal_answer"  # the code when the URL leads to something else
_SHOWN = 100


class ErrorBoundary(TyperGroup):
    """Turns expected errors into one line on stderr and an exit code."""

    def __init__(self, **named: Any) -> None:  # noqa: ANN401 - typer's own types
        super().__init__(**named)
        self.commands = Loaded(TABLE)  # type: ignore[assignment]

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        **named: Any,  # noqa: ANN401 - typer's own types
    ) -> Any:  # noqa: ANN401
        """Run the command line; a usage error is one line on stderr and the exit code 2."""
        named["prog_name"] = named.get("prog_name") or "timerwheel"  # also as `python -m timerwheel.cli.main`
        if not named.pop("standalone_mode", True):
            return super().main(args, standalone_mode=False, **named)
        occupy_standard_streams()
        try:
            code = super().main(args, standalone_mode=False, **named)
        except usage.ClickError as error:
            if not usage.is_help(error):
                print(usage.line_of(error), file=sys.stderr)
            code = USAGE
        except typer.Abort:
            code = INTERRUPTED
        except OSError as error:  # of what is printed before a command runs, such as help
            print(f"timerwheel: {_os_reason(error)}", file=sys.stderr)
            code = FAILED
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own type
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # typer exits quietly: the reader of our output closed the pipe
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except UnreachableError as error:
            raise _exit(f"{error}; {_advice(error)}", UNREACHABLE) from None
        except OutcomeUnknownError as error:
            raise _exit(error, UNREACHABLE) from None
        except AddressError as error:
            raise _exit(f"--url: {error}", USAGE) from None
        except ClientError as error:
            hint = "; is --url the service itself, without a path?" if error.code == _ELSEWHERE else ""
            raise _exit(f"{error}{hint}", FAILED) from None
        except (SettingsError, UnicodeEncodeError) as error:
            raise _exit(_usage_reason(error), USAGE) from None
        except (TimerwheelError, StoreError) as error:
            raise _exit(error, FAILED) from None
        except OSError as error:
            raise _exit(_os_reason(error), FAILED) from None


def occupy_standard_streams() -> None:
    """Give closed standard streams a place where what is printed goes.

    Otherwise the first files that are opened get their descriptors, a log among them, and with these all that
    a library or a child process prints. `sys.stdin` stays None: what was to be read from it is missing.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - open to the end
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115


def _advice(error: UnreachableError) -> str:
    """What to check when no answer came."""
    import aiohttp

    from timerwheel.broken_connection import BrokenConnectionError, UnsentError

    cause = error.__cause__
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        return "--ca sets the authorities to trust"
    if isinstance(cause, aiohttp.ClientSSLError):
        return "does it use TLS? an http:// URL calls it without"
    if isinstance(cause, aiohttp.ServerDisconnectedError) and "http://" in error.detail:
        return "is it running, and without TLS? an https:// URL calls it with TLS"
    if isinstance(cause, BrokenConnectionError) and not isinstance(cause, UnsentError):
        return "whether it did what was asked is not known"
    return "is the service running there? --url selects another"


def _usage_reason(error: SettingsError | UnicodeEncodeError) -> str:
    """The text of an error; an argument that is not UTF-8 is found out where it is used."""
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:_SHOWN]!a} cannot be written as {error.encoding.upper()}"
    return str(error)


def _os_reason(error: OSError) -> str:
    """The text of an OSError without its number."""
    names = [os.fsdecode(n) for n in (error.filename, error.filename2) if isinstance(n, str | bytes | Path)]
    return f"{' -> '.join(names)}: {error.strerror}" if names else error.strerror or str(error)


def _exit(error: Exception | str, code: int) -> typer.Exit:
    print(f"timerwheel: {error}", file=sys.stderr)
    return typer.Exit(code)


app = typer.Typer(
    cls=ErrorBoundary,
    name="timerwheel",
    help="A delayed-message service: stores messages until they are due, then delivers them.",
    epilog="Exit codes: 0 success, 1 refused or problems found, 2 usage error, 3 service unreachable.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)
typer.completion.completion_init()  # type: ignore[attr-defined] # answers the scripts of `completion`


def _version(wanted: bool) -> None:
    if wanted:
        print(f"timerwheel {version()}")
        raise typer.Exit


@app.callback()
def start(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
    _completion: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="SHELL",
            help=f"Print the completion script of a shell: {', '.join(completion.SHELLS)}.",
            callback=completion.show,
            is_eager=True,
        ),
    ] = None,
) -> None:
    """A delayed-message service: stores messages until they are due, then delivers them."""
    os.umask(
        os.umask(UMASK) | UMASK
    )  # other users must not read what a command writes, Spark's files included
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode still gets readable output


if __name__ == "__main__":
    app()
