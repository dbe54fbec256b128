"""`serve`: runs the service. Every field of `Settings` is a flag, named without its unit.

`max_delay_ms` is `--max-delay 10y`, `segment_size_bytes` is `--segment-size 256MiB`, `body_bytes_max` is
`--body-size-max 4MiB`. A new field becomes a flag by itself; only its help is written here.
"""

import inspect
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from timerwheel.cli.options import DATA_DEFAULT, DataOption, JsonFlag
from timerwheel.cli.output import Output
from timerwheel.cli.units import format_size, parse_length_ms, parse_size_bytes
from timerwheel.cli.version import version
from timerwheel.durations import format_duration
from timerwheel.settings import Settings

HELP = {
    "flush": "When a send is acknowledged: sync, once fsynced; async, before.",
    "flush_interval_ms": "With flush async: longest time until an fsync.",
    "segment_size_bytes": "Size of a segment of the commit log.",
    "index_interval_ms": "Longest time between commits of the index.",
    "index_records_max": "Records after which the index is committed early.",
    "index_map_size_bytes": "Address space kept for the index: its upper limit.",
    "near_ms": "How far ahead timers are held in memory.",
    "near_entries_max": "How many timers are held in memory ahead of time.",
    "readahead_bytes_max": "Bodies read ahead of their due time.",
    "cascade_entries_max": "Timers moved down the wheel in one step.",
    "fire_records_max": "Due messages written in one step.",
    "batch_bytes_max": "Most that one group commit writes.",
    "max_delay_ms": "Longest delay accepted.",
    "levels": "Delay levels 1, 2, ... of the property DELAY.",
    "body_bytes_max": "Largest body of a message.",
    "properties_max": "Most properties of a message.",
    "properties_bytes_max": "Most that a message's properties may take.",
    "messages_per_request_max": "Most messages in one array.",
    "request_bytes_max": "Largest request.",
    "queues_per_topic": "Queues of each topic.",
    "topics_max": "Most topics.",
    "slot_messages_max": "Most messages due in one second; 0 is no limit.",
    "groups_max": "Most consumer groups.",
    "group_items_max": "Most messages that one group holds: in flight or to come again.",
    "redelivery_delay_ms": "Least time before a message comes to a group again.",
    "push_private_targets": "Let push subscriptions reach private and loopback addresses.",
    "cors_origins": "Origins whose pages may call, apart by spaces; * is all.",
    "retention_ms": "How long delivered messages are kept.",
    "retention_interval_ms": "How often retention looks for segments to remove.",
    "retention_archived_only": "Remove only segments that `timerwheel archive` has archived.",
    "disk_reserve_bytes": "Free disk space below which new messages are refused.",
}
PORT_MAX = 65_535
_LOG_LEVELS = ("debug", "info", "warning", "error")


def flag_of(field: str) -> str:
    """The flag of a field of `Settings`."""
    if field.endswith("_bytes_max"):
        field = field.removesuffix("_bytes_max") + "_size_max"
    for unit in ("_ms", "_bytes"):
        field = field.removesuffix(unit)
    return "--" + field.replace("_", "-")


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise typer.BadParameter(f"{text!r}: give {' or '.join(allowed)}")
        return text

    return parse


def _port(text: str | int) -> int:
    """With typer's own bounds the help would cut the names of long flags to make room for them."""
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= PORT_MAX:
        raise typer.BadParameter(f"{text!r}: a port is a number from 0 to {PORT_MAX}")
    return port


def _option(field: msgspec.structs.FieldInfo) -> Any:  # noqa: ANN401 - an annotation made at run time
    """The annotation that makes typer read one setting; None stands for the default."""
    shown: str | bool = str(field.default) or False
    details: dict[str, Any] = {}
    kind: Any = str
    flag = flag_of(field.name)
    if field.name == "flush":
        details = {"parser": _one_of("sync", "async"), "metavar": "sync|async"}
    elif field.name == "cors_origins":
        details = {"metavar": "ORIGINS"}
    elif field.type is bool:
        # A flag of its own for no would take a column of the help, and cut the names of all flags.
        kind, shown = bool, "no"
    elif field.name.endswith("_ms"):
        details = {"parser": parse_length_ms, "metavar": "LENGTH"}
        shown = format_duration(field.default)
    elif "_bytes" in field.name:
        details = {"parser": parse_size_bytes, "metavar": "SIZE"}
        shown = format_size(field.default)
    elif field.type is int:
        kind = int
    option = typer.Option(flag, help=HELP.get(field.name), show_default=shown, **details)
    return Annotated[kind | None, option]


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command a flag for every setting, before its own."""
    own = inspect.signature(command, eval_str=True)
    flags = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(field))
        for field in msgspec.structs.fields(Settings)
        if field.name != "data"
    ]
    named = [p for p in own.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    command.__signature__ = own.replace(parameters=named + flags)  # type: ignore[attr-defined]
    return command


@_with_settings
def serve(
    *,
    data: DataOption = DATA_DEFAULT,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(parser=_port, metavar="PORT", help="The port; 0 takes a free one.")
    ] = 8686,
    log_level: Annotated[
        str,
        typer.Option(
            parser=_one_of(*_LOG_LEVELS), metavar="LEVEL", help=f"What is logged: {', '.join(_LOG_LEVELS)}."
        ),
    ] = "warning",
    as_json: JsonFlag = False,
    **settings: Any,  # noqa: ANN401 - values of every type of setting
) -> None:
    """Run the service until Ctrl-C or SIGTERM."""
    given = {name: value for name, value in settings.items() if value is not None}
    checked = Settings(data=data, **given).check()
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _run(checked, host, port, as_json=as_json)


def _run(settings: Settings, host: str, port: int, *, as_json: bool) -> None:
    import uvloop

    from api.server import serve as serve_http

    output = Output()

    def ready(url: str) -> None:
        if as_json:
            output.json({"url": url, "data": str(settings.data), "flush": settings.flush, "pid": os.getpid()})
        else:
            output.line(
                f"timerwheel {version()} is ready on {url}, data in {_shown(settings.data)}, "
                f"flush {settings.flush}; Ctrl-C stops it"
            )

    uvloop.run(serve_http(settings, host, port, ready))


def _shown(path: Path) -> str:
    return str(path) if path.is_absolute() else f"./{path}"
