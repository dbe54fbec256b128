"""The `timerwheel` command: the table of commands, and the border where errors become exit codes.

Exit codes: 0 done; 1 refused, failed, or something was found; 2 wrong usage or settings; 3 the service
cannot be reached; 130 interrupted.
"""

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from store.errors import StoreError
from timerwheel.cli import fsck, levels, log, messages, receive, serve, slots
from timerwheel.cli.version import version
from timerwheel.client import ClientError, UnreachableError
from timerwheel.errors import SettingsError, TimerwheelError

FAILED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130


class Border(TyperGroup):
    """Turns expected failures into one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own type
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # typer ends quietly: whoever read our output has had enough
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except UnreachableError as error:
            raise _exit(
                f"{error}; is the service running there? --url chooses another", UNREACHABLE
            ) from None
        except ClientError as error:
            raise _exit(error, FAILED) from None
        except SettingsError as error:
            raise _exit(error, USAGE) from None
        except (TimerwheelError, StoreError, OSError) as error:
            raise _exit(error, FAILED) from None


def _exit(error: Exception | str, code: int) -> typer.Exit:
    print(f"timerwheel: {error}", file=sys.stderr)
    return typer.Exit(code)


app = typer.Typer(
    cls=Border,
    name="timerwheel",
    help="Keeps messages until they are due, then delivers them.",
    epilog="Exit codes: 0 done, 1 refused or found, 2 usage, 3 service unreachable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"timerwheel {version()}")
        raise typer.Exit


@app.callback()
def start(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Keeps messages until they are due, then delivers them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode still gets an answer


app.command("serve")(serve.serve)
app.command("send")(messages.send)
app.command("get")(messages.get)
app.command("recall")(messages.recall)
app.command("reschedule")(messages.reschedule)
app.command("receive")(receive.receive)
app.command("slots")(slots.slots)
app.command("levels")(levels.levels)
app.command("log")(log.log)
app.command("fsck")(fsck.fsck)

if __name__ == "__main__":
    app()
