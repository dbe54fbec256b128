"""Runs `clients/python-scenarios.json` with the Python clients. Its `about` says what the file means."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from timerwheel.client import (
    Client,
    ClientError,
    ConflictError,
    DeniedError,
    GroupConfig,
    NotFoundError,
    SyncClient,
)

FILE = Path(__file__).parents[2] / "clients" / "python-scenarios.json"
KINDS = {"not_found": NotFoundError, "conflict": ConflictError, "denied": DeniedError}


def scenarios() -> list[dict[str, Any]]:
    return json.loads(FILE.read_text())["scenarios"]


def _body(args: dict[str, Any]) -> dict[str, Any]:
    """A message as the client takes it: bytes in place of base64."""
    if "body_base64" not in args:
        return args
    body = msgspec.convert(args["body_base64"], bytes)
    return {name: value for name, value in args.items() if name != "body_base64"} | {"body": body}


def _group(method: str, *places: str) -> Callable[[Any, dict[str, Any]], Any]:
    """A call of a group; `places` are its positional arguments."""

    def call(client: Any, args: dict[str, Any]) -> Any:
        given = dict(args)
        group = client.group(given.pop("topic"), given.pop("group"))
        first = [given.pop(name) for name in places if name in given]
        return getattr(group, method)(*first, **given)

    return call


def _letters(method: str) -> Callable[[Any, dict[str, Any]], Any]:
    return lambda client, args: getattr(client.dead_letters(args["group"], args["topic"]), method)()


def _put_group(client: Any, args: dict[str, Any]) -> Any:
    return client.group(args["topic"], args["group"]).put(msgspec.convert(args["config"], GroupConfig))


CALLS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "send": lambda client, args: client.send(**_body(args)),
    "send_many": lambda client, args: client.send_many(map(_body, args["messages"])),
    "begin": lambda client, args: client.begin(**_body(args)),
    "read": lambda client, args: client.receive(**args),
    **{
        name: lambda client, args, name=name: getattr(client, name)(**args)
        for name in (
            *(
                "commit",
                "roll_back",
                "get",
                "recall",
                "reschedule",
                "get_key",
                "recall_key",
                "reschedule_key",
            ),
            *("recall_many", "recall_where", "pending", "groups"),
        )
    },
    "topic": lambda client, args: client.topic(args["topic"]),
    "delete_topic": lambda client, args: client.delete_topic(**args),
    "receive": _group("receive", "max"),
    **{name: _group(name, "receipts", "invisible_ms") for name in ("ack", "nack", "extend")},
    "group": _group("info"),
    "put_group": _put_group,
    "delete_group": _group("delete"),
    "rewind": _group("rewind"),
    "dead_letters": _letters("all"),
    "redrive": _letters("redrive"),
    "drop": _letters("drop"),
    "put_schedule": lambda client, args: client.schedules.put(**args),
    "schedule": lambda client, args: client.schedules.get(args["name"]),
    "schedule_runs": lambda client, args: client.schedules.runs(**args),
    "pause_schedule": lambda client, args: client.schedules.pause(**args),
    "resume_schedule": lambda client, args: client.schedules.resume(**args),
    "delete_schedule": lambda client, args: client.schedules.delete(**args),
}


async def run(client: Client | SyncClient, scenario: dict[str, Any], topic: str) -> None:
    """Run one scenario; raises AssertionError that names its step."""
    saved: dict[str, Any] = {"topic": topic}
    for number, step in enumerate(scenario["steps"]):
        place = f"step {number}, {step['call']}"
        wanted = _filled(step.get("error"), saved)
        answer, error = await _outcome(CALLS[step["call"]], client, _filled(step["args"], saved))
        if wanted is not None:
            kind = KINDS.get(wanted.pop("kind"), ClientError)
            assert type(error) is kind, f"{place}: {error!r}"
            _compare(place, msgspec.to_builtins(vars(error)), wanted)
            continue
        assert error is None, f"{place}: {error!r}"
        plain = msgspec.to_builtins(answer)
        if "expect" in step:
            _compare(place, plain, _filled(step["expect"], saved), answer)
        for name, path in step.get("save", {}).items():
            saved[name] = _part(plain, path)


async def _outcome(call: Any, client: Any, args: dict[str, Any]) -> tuple[Any, ClientError | None]:
    """What the call returns, or raises."""
    try:
        return await _value(call(client, args)), None
    except ClientError as error:
        return None, error


async def _value(found: Any) -> Any:
    if inspect.isawaitable(found):
        return await found
    if inspect.isasyncgen(found):
        return [one async for one in found]
    return list(found) if inspect.isgenerator(found) else found


def _filled(value: Any, saved: dict[str, Any]) -> Any:
    """The value with everything saved in its place."""
    if isinstance(value, str) and value.startswith("$"):
        return saved[value[1:]]
    if isinstance(value, list):
        return [_filled(one, saved) for one in value]
    if isinstance(value, dict):
        return {name: one if name == "$json" else _filled(one, saved) for name, one in value.items()}
    return value


def _part(plain: Any, path: str) -> Any:
    for name in path.split("."):
        plain = plain[int(name)] if isinstance(plain, list) else plain[name]
    return plain


def _compare(place: str, found: Any, wanted: Any, answer: Any = None) -> None:
    """Assert that what is wanted is in what was found; `answer` is the same as the client's own object."""
    if not isinstance(wanted, (dict, list)):
        assert found == wanted, f"{place}: {found!r}, not {wanted!r}"
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), f"{place}: {found}"
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            _compare(f"{place}[{at}]", one, other, answer[at] if isinstance(answer, list) else None)
    else:
        for name, value in wanted.items():
            if name == "$length":
                assert len(found) == value, f"{place}: {found}"
            elif name == "$at_least":
                assert found >= value, f"{place}: {found}"
            elif name == "$json":
                assert answer.json() == value, f"{place}: {found}"
            else:
                assert name in found, f"{place}: no {name} in {found}"
                _compare(f"{place}.{name}", found[name], value)
