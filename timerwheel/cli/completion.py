"""Shell completion: scripts with which a shell asks this program, and the values that it answers with.

A script sets the variable `_TIMERWHEEL_COMPLETE`; typer answers it before any command runs. Typer's own
options are switched off: one needs a running shell, which a package build does not have, and the other edits
the user's start-up files.

Beside commands and flags, names and ids are completed from the running service. It is asked at each press of
the key, so it has COMPLETION_MS to answer; then, and after any error, nothing is completed and nothing is
shown. Which values an argument takes follows from its name and its command.
"""

import asyncio
import contextlib
import copy
import inspect
import io
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
import typer.completion

if TYPE_CHECKING:
    from timerwheel.client import Client

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_TIMERWHEEL_COMPLETE"
COMPLETION_MS = 1_000
IDS_MAX = 50

Found = list[tuple[str, str]]
Lookup = Callable[["Client", dict[str, Any]], Awaitable[Found]]


async def _topics(client: "Client", _given: dict[str, Any]) -> Found:
    return [
        (one.topic, f"{one.pending:,} scheduled, {one.visible:,} delivered")
        for one in await client.topics(reserved=False)
    ]


async def _groups(client: "Client", given: dict[str, Any]) -> Found:
    from timerwheel.cli.groups import is_own

    found = [one for one in await client.groups(given.get("topic")) if not is_own(one)]
    return list({one.group: (one.group, f"of {one.topic}, lag {one.lag:,}") for one in found}.values())


async def _schedules(client: "Client", _given: dict[str, Any]) -> Found:
    return [(one.name, f"sends to {one.topic}") for one in await client.schedules.all()]


async def _subscriptions(client: "Client", _given: dict[str, Any]) -> Found:
    return [(one.id, f"{one.topic} to {one.url}") for one in await client.subscriptions.all()]


async def _messages(client: "Client", _given: dict[str, Any]) -> Found:
    from timerwheel.cli.output import Output

    output, found = Output(), []
    async for message in client.pending():
        found.append((message.id, f"{message.topic}, due {output.when(message.due_ms)}"))
        if len(found) == IDS_MAX:
            break
    return found


async def _transactions(client: "Client", given: dict[str, Any]) -> Found:
    return [(one.id, f"of {one.topic}") async for one in client.transactions(given.get("topic"))]


async def _tasks(client: "Client", _given: dict[str, Any]) -> Found:
    page = await client.tasks.page(limit=IDS_MAX)
    return [(one.id, f"{one.state}, {one.method} {one.url}") for one in page.tasks]


async def _task_queues(client: "Client", _given: dict[str, Any]) -> Found:
    return [(one.queue, f"{one.scheduled:,} scheduled") for one in await client.tasks.queues()]


_LOOKUPS: dict[str, Lookup] = {
    "topic": _topics,
    "group": _groups,
    "message_id": _messages,
    "message_ids": _messages,
    "subscription_id": _subscriptions,
}
_LOOKUPS_OF_MODULE: dict[tuple[str, str], Lookup] = {
    ("schedules", "name"): _schedules,
    ("transactions", "message_id"): _transactions,
    ("tasks", "task_id"): _tasks,
    ("tasks", "name"): _task_queues,
    ("tasks", "queue"): _task_queues,
}


def with_completion(command: Callable[..., None]) -> Callable[..., None]:
    """Let a shell complete the arguments of a command: the service's names, or the words of its metavar."""
    own = inspect.signature(command, eval_str=True)
    module = command.__module__.rpartition(".")[2]
    asks = "token" in own.parameters
    parameters = [
        parameter.replace(annotation=_completed(parameter, module, asks=asks))
        for parameter in own.parameters.values()
    ]
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _completed(parameter: inspect.Parameter, module: str, *, asks: bool) -> Any:  # noqa: ANN401 - any annotation
    annotation = parameter.annotation
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, info, *_ = get_args(annotation)
    lookup = _LOOKUPS_OF_MODULE.get((module, parameter.name), _LOOKUPS.get(parameter.name)) if asks else None
    words = (info.metavar or "").split("|")
    info = copy.copy(info)
    if lookup is not None:
        info.autocompletion = _completer(lookup)
    elif len(words) > 1 and all(word.islower() for word in words):
        info.autocompletion = lambda: words
    else:
        return annotation
    return Annotated[kind, info]


def _completer(lookup: Lookup) -> Callable[[typer.Context], Found]:
    def complete(ctx: typer.Context) -> Found:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                return _ask(lookup, dict(ctx.params))
        except Exception:  # noqa: BLE001 - an error would end up in the middle of the user's line
            return []

    return complete


def _ask(lookup: Lookup, given: dict[str, Any]) -> Found:
    from timerwheel.cli.connection import Service

    async def work(client: "Client") -> Found:
        async with asyncio.timeout(COMPLETION_MS / 1_000):
            return await lookup(client, given)

    service: Any = {name: given.get(name) for name in Service._fields}
    return Service(**service).ask(work)


def show(shell: str | None) -> None:
    """Print the script of a shell and exit; None does nothing. Raises BadParameter for an unknown shell."""
    if shell is None:
        return
    if shell not in SHELLS:
        raise typer.BadParameter(f"{shell!r}: give {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    script = typer.completion.get_completion_script  # type: ignore[attr-defined]
    print(script(prog_name="timerwheel", complete_var=_VARIABLE, shell=shell))
    raise typer.Exit
