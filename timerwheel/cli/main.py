"""The `timerwheel` command: the table of commands, and the border where errors become exit codes.

Exit codes: 0 done; 1 refused, failed, or something was found; 2 wrong usage or settings; 3 the service
cannot be reached; 130 interrupted.
"""

import io
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from store.errors import StoreError
from timerwheel.cli import (
    archive,
    audit,
    backup,
    completion,
    config,
    deliveries,
    dlq,
    explain,
    forecast,
    fsck,
    groups,
    levels,
    log,
    messages,
    rebuild,
    recall,
    receive,
    restore,
    schedules,
    serve,
    slots,
    subscriptions,
    tokens,
    top,
    topics,
)
from timerwheel.cli.connection import Commands
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


app = Commands(
    cls=Border,
    name="timerwheel",
    help="Keeps messages until they are due, then delivers them.",
    epilog="Exit codes: 0 done, 1 refused or found, 2 usage, 3 service unreachable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
completion.answer_shells()


def _version(wanted: bool) -> None:
    if wanted:
        print(f"timerwheel {version()}")
        raise typer.Exit


@app.callback()
def start(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", callback=_version, is_eager=True)
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
    """Keeps messages until they are due, then delivers them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode still gets an answer


app.command("serve")(serve.serve)
app.command("config")(config.config)
app.command("send")(messages.send)
app.command("get")(messages.get)
app.command("explain")(explain.explain)
app.command("recall")(recall.recall)
app.command("reschedule")(messages.reschedule)
app.command("receive")(receive.receive)
app.command("top")(top.top)
app.command("slots")(slots.slots)
app.command("levels")(levels.levels)
app.command("log")(log.log)
app.command("fsck")(fsck.fsck)
app.command("rebuild")(rebuild.rebuild)
app.command("audit")(audit.audit)
app.command("archive")(archive.archive)
app.command("restore")(restore.restore)
app.command("forecast")(forecast.forecast)


def _add_group(name: str, help_text: str, commands: dict[str, Callable[..., None]]) -> None:
    """Commands on one kind of thing, below its name."""
    group = Commands(help=help_text, no_args_is_help=True)
    for command, function in commands.items():
        group.command(command)(function)
    app.add_typer(group, name=name)


_add_group(
    "backup",
    "Backups: a copy of a data directory while its service runs, and the way back.",
    {"create": backup.create, "verify": backup.verify, "restore": backup.restore},
)
_add_group(
    "tokens",
    "API tokens: who may call the service.",
    {"create": tokens.create, "list": tokens.list_tokens, "revoke": tokens.revoke},
)
_add_group("topics", "Topics.", {"list": topics.list_topics, "set": topics.change})
_add_group(
    "groups",
    "Consumer groups: each gets every message of its topic until it is acknowledged.",
    {
        "list": groups.list_groups,
        "show": groups.show,
        "put": groups.put,
        "delete": groups.delete,
        "rewind": groups.rewind,
        "receive": deliveries.receive,
        "ack": deliveries.acknowledge,
        "nack": deliveries.nack,
        "extend": deliveries.extend,
    },
)
_add_group(
    "dlq",
    "Dead letters: what a group gave up.",
    {"list": dlq.list_letters, "redrive": dlq.redrive, "drop": dlq.drop},
)
_add_group(
    "schedules",
    "Messages that are sent again and again.",
    {
        "list": schedules.list_schedules,
        "show": schedules.show,
        "put": schedules.put,
        "pause": schedules.pause,
        "resume": schedules.resume,
        "delete": schedules.delete,
        "runs": schedules.runs,
    },
)
_add_group(
    "subscriptions",
    "Messages that are pushed to a URL.",
    {
        "list": subscriptions.list_subscriptions,
        "show": subscriptions.show,
        "add": subscriptions.add,
        "update": subscriptions.update,
        "pause": subscriptions.pause,
        "resume": subscriptions.resume,
        "test": subscriptions.fire,
        "rotate": subscriptions.rotate,
        "delete": subscriptions.delete,
        "stats": subscriptions.stats,
    },
)

if __name__ == "__main__":
    app()
