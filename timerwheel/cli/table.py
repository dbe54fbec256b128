"""The table of commands, each with the location of its function, which is loaded when the command runs.

Loading all modules takes as long as starting the service, and a restart would wait for it.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

from timerwheel.cli.completion import with_completion
from timerwheel.cli.options import expanded


class Group(NamedTuple):
    """Commands on one kind of thing, such as `groups list`."""

    help: str
    commands: dict[str, str]


TABLE: dict[str, str | Group] = {
    "serve": "serve:serve",
    "demo": "demo:demo",
    "config": "config:config",
    "send": "messages:send",
    "schedule": "schedule:schedule",
    "get": "messages:get",
    "explain": "explain:explain",
    "recall": "recall:recall",
    "reschedule": "reschedule:reschedule",
    "receive": "receive:receive",
    "worker": "worker:worker",
    "listen": "listen:listen",
    "top": "top:top",
    "slots": "slots:slots",
    "levels": "levels:levels",
    "log": "log:log",
    "fsck": "fsck:fsck",
    "rebuild": "rebuild:rebuild",
    "audit": "audit:audit",
    "lateness": "lateness:lateness",
    "archive": "archive:archive",
    "restore": "restore:restore",
    "forecast": "forecast:forecast",
    "delta": Group(
        "Put audits and archives into tables of Delta Lake.",
        {"audits": "delta:audits", "archive": "delta:archive"},
    ),
    "backup": Group(
        "Back up a data directory while its service runs, and restore it.",
        {"create": "backup:create", "verify": "backup:verify", "restore": "backup:restore"},
    ),
    "cluster": Group(
        "Nodes that share a journal in Kafka.",
        {"status": "cluster:status", "move": "cluster:move", "fill": "cluster:fill"},
    ),
    "tokens": Group(
        "Manage API tokens, which control access to the service.",
        {
            "create": "tokens:create",
            "list": "tokens:list_tokens",
            "revoke": "tokens:revoke",
            "whoami": "tokens:whoami",
        },
    ),
    "messages": Group("Find messages.", {"list": "message_list:list_messages"}),
    "topics": Group(
        "List, change, pause, purge and delete topics.",
        {
            "list": "topics:list_topics",
            "show": "topics:show",
            "set": "topics:change",
            "pause": "topics:pause",
            "resume": "topics:resume",
            "purge": "topics:purge",
            "delete": "topics:delete",
        },
    ),
    "groups": Group(
        "Consumer groups: each receives every message of its topic until it acknowledges it.",
        {
            "list": "groups:list_groups",
            "show": "groups:show",
            "put": "groups:put",
            "delete": "groups:delete",
            "rewind": "groups:rewind",
            "receive": "deliveries:receive",
            "ack": "deliveries:acknowledge",
            "nack": "deliveries:nack",
            "extend": "deliveries:extend",
        },
    ),
    "dlq": Group(
        "Dead letters: messages that a group gave up on.",
        {
            "list": "dead_letters:list_letters",
            "reasons": "dead_letters:reasons",
            "redrive": "dead_letters:redrive",
            "drop": "dead_letters:drop",
        },
    ),
    "transactions": Group(
        "Messages that are delivered once they are committed.",
        {
            "begin": "transactions:begin",
            "list": "transactions:list_open",
            "commit": "transactions:commit",
            "rollback": "transactions:rollback",
        },
    ),
    "schedules": Group(
        "Recurring messages.",
        {
            "list": "schedules:list_schedules",
            "show": "schedules:show",
            "put": "schedules:put",
            "pause": "schedules:pause",
            "resume": "schedules:resume",
            "run": "schedules:run",
            "delete": "schedules:delete",
            "runs": "schedules:runs",
        },
    ),
    "subscriptions": Group(
        "Push messages to URLs.",
        {
            "list": "subscriptions:list_subscriptions",
            "show": "subscriptions:show",
            "add": "subscriptions:add",
            "update": "subscriptions:update",
            "pause": "subscriptions:pause",
            "resume": "subscriptions:resume",
            "test": "subscriptions:fire",
            "rotate": "subscriptions:rotate",
            "delete": "subscriptions:delete",
            "stats": "subscriptions:stats",
            "attempts": "subscriptions:attempts",
            "send-again": "subscriptions:send_again",
        },
    ),
    "acks": Group(
        "Acknowledge a push or a task later, by the URL that its receiver was given.",
        {"done": "acks:done", "back": "acks:back", "extend": "acks:extend"},
    ),
    "tasks": Group(
        "Call URLs when they are due.",
        {
            "create": "tasks:create",
            "list": "tasks:list_tasks",
            "show": "tasks:show",
            "cancel": "tasks:cancel",
            "run": "tasks:run",
            "reschedule": "tasks:reschedule",
            "queues": "tasks:queues",
            "queue": "tasks:queue",
            "rotate": "tasks:rotate",
        },
    ),
}


# The panels of `timerwheel --help`, in their order; a command that is in none of them is in the last.
PANELS = {
    "Messages": ("send", "get", "explain", "messages", "reschedule", "recall", "transactions", "schedules"),
    "Consumers": ("receive", "listen", "worker", "groups", "dlq", "subscriptions", "tasks", "acks"),
    "Operations": ("serve", "demo", "config", "top", "topics", "levels", "tokens", "cluster"),
    "Data directory": ("slots", "log", "fsck", "backup"),
    "Spark": ("schedule", "rebuild", "audit", "lateness", "forecast", "archive", "restore", "delta"),
    "Others": (),
}


def panel_of(name: str) -> str:
    """The panel of a command in the help."""
    return next((panel for panel, names in PANELS.items() if name in names), list(PANELS)[-1])


def in_panels(names: Iterable[str]) -> list[str]:
    """The commands in the order of their panels, and of their names within a panel."""
    order = [name for panel in PANELS.values() for name in panel]
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


class Command(TyperCommand):
    """A command whose arguments are in capitals, whose help has paragraphs, and whose errors know it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - typer's own types
        super().__init__(*arguments, **named)
        # typer joins the lines of the first paragraph only; the terminal would break the others twice.
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
        for param in self.params:
            if param.param_type_name == "argument" and getattr(param, "metavar", "") is None:
                param.metavar = str(param.name).upper()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401
        """The words of the usage line."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse the arguments; an error about a flag's value names this command, too."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                vars(error)["ctx"] = ctx
            raise


class Loaded(Mapping[str, Any]):
    """A typer group that builds each command when it is looked up."""

    def __init__(self, table: Mapping[str, str | Group]) -> None:
        self._table = table
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - typer's own type
        if name not in self._made:
            self._made[name] = _made(name, self._table[name])
            if self._table is TABLE:
                self._made[name].rich_help_panel = panel_of(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(in_panels(self._table) if self._table is TABLE else self._table)

    def __len__(self) -> int:
        return len(self._table)


def typed(command: Callable[..., None]) -> Callable[..., None]:
    """A command with all its options, as typer takes it."""
    return with_completion(expanded(command))


def _made(name: str, entry: str | Group) -> Any:  # noqa: ANN401 - typer's own type
    if isinstance(entry, Group):
        made = typer.main.get_group(typer.Typer(name=name, help=entry.help, no_args_is_help=True))
        made.commands = Loaded(entry.commands)  # type: ignore[assignment]
        return made
    module, _, function = entry.partition(":")
    command = typed(getattr(importlib.import_module(f"timerwheel.cli.{module}"), function))
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    one.command(name, cls=Command)(command)
    return typer.main.get_command(one)
