"""`serve`: runs the service. Every option of `timerwheel.cli.configuration` is a flag of it."""

import logging
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timerwheel.cli import systemd
from timerwheel.cli.configuration import OPTIONS, Configuration, Option, configure, misspelt
from timerwheel.cli.options import JsonFlag, Options
from timerwheel.cli.output import Output
from timerwheel.errors import SettingsError
from timerwheel.settings import Serving, Settings
from timerwheel.shards import layout
from timerwheel.shards.processes import ProcessPlace
from timerwheel.telemetry.logs import log_to_stderr, name_shard
from timerwheel.version import version

if TYPE_CHECKING:
    from timerwheel.kafka.front import KafkaFront
    from timerwheel.rocketmq.front import RemotingFront
    from timerwheel.rocketmq.grpc.front import GrpcFront
    from timerwheel.runtime.election import Election
    from timerwheel.store.journal import Journal
    from timerwheel.store.log import OnDamage

logger = logging.getLogger("timerwheel")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", envvar="TIMERWHEEL_CONFIG", dir_okay=False, help="A TOML file with settings."),
]
SalvageFlag = Annotated[
    bool,
    typer.Option("--salvage", help="Start with a damaged log: keep every whole record and skip the damage."),
]
CutFlag = Annotated[
    bool,
    typer.Option("--cut", help="Start with a damaged log: end it at the damage and quarantine the rest."),
]
AsShardOption = Annotated[str | None, typer.Option("--as-shard", hidden=True)]
BESIDE = {"rocketmq": "for RocketMQ's clients", "rocketmq_grpc": "for RocketMQ's gRPC clients"}
METAVAR_CHARACTERS_MAX = 12  # longer ones leave no room for the flags' names
METAVARS = {"words": "WORD", "length": "LENGTH", "size": "SIZE", "path": "PATH", "number": "NUMBER"}


def _reader(option: Option) -> Callable[[Any], Any]:
    def read(text: Any) -> Any:  # noqa: ANN401 - typer passes texts, and its own defaults
        try:
            return option.read(text) if isinstance(text, str) else text
        except SettingsError as error:
            raise typer.BadParameter(str(error)) from None

    return read


def _annotation(option: Option) -> Any:  # noqa: ANN401 - an annotation made at run time
    """The typer annotation of one setting; None means that the flag was not given."""
    shown = option.write(option.default)
    if option.kind == "yes or no":
        # A --no- flag would take a column of the help and cut the names of all flags.
        return Annotated[bool | None, typer.Option(option.flag, help=option.setting.help, show_default="no")]
    words = "|".join(option.words)
    if not 0 < len(words) <= METAVAR_CHARACTERS_MAX:
        words = METAVARS.get(option.kind, option.name.upper())
        words = words if len(words) <= METAVAR_CHARACTERS_MAX else "TEXT"
    return Annotated[
        str | None,
        typer.Option(
            option.flag,
            help=option.setting.help,
            show_default=shown or False,
            parser=_reader(option),
            metavar=words,
        ),
    ]


SettingFlags = Annotated[
    dict[str, Any], Options({name: (_annotation(one), None) for name, one in OPTIONS.items()}, dict)
]
"""A flag for every setting; the value has those that were given, and None for the others."""


def serve(
    *,
    config: ConfigOption = None,
    salvage: SalvageFlag = False,
    cut: CutFlag = False,
    json_line: JsonFlag = False,
    as_shard: AsShardOption = None,
    flags: SettingFlags,
) -> None:
    """Run the service until Ctrl-C or SIGTERM; SIGHUP reads the configuration again."""
    from timerwheel.store.log import OnDamage

    if salvage and cut:
        raise typer.BadParameter("give either --salvage or --cut, not both")
    found = configure(flags, file=config)
    if as_shard is not None:
        name_shard(ProcessPlace.parse(as_shard).shard)
    log_to_stderr(found.serving.log_level, found.serving.log_format)
    for warning in filter(None, map(misspelt, found.ignored)):
        logger.warning("%s", warning)
    on_damage = OnDamage.SALVAGE if salvage else OnDamage.CUT if cut else OnDamage.REFUSE
    again = partial(configure, flags, file=config)
    if as_shard is not None:
        _run_shard(found, again, on_damage, ProcessPlace.parse(as_shard))
    elif found.serving.shards > 1:
        _run_node(found, again, json_line=json_line)
    else:
        layout.check(found.settings, found.serving)
        _run(found, again, on_damage, json_line=json_line)


def _run_node(found: Configuration, again: Callable[[], Configuration], *, json_line: bool) -> None:
    """Run a node: the process in front, which starts those of the shards with the arguments of this one."""
    import uvloop

    from timerwheel.shards.front import ShardProcessInfo
    from timerwheel.shards.front import serve as serve_node

    output, settings = Output(), found.settings

    def ready(url: str, shards: list[ShardProcessInfo]) -> None:
        if json_line:
            shown = {"url": url, "data": str(settings.data), "flush": settings.flush, "pid": os.getpid()}
            output.json(shown | {"shards": [one._asdict() for one in shards]})
        else:
            output.line(
                f"timerwheel {version()} is ready on {url} with {len(shards)} shards, "
                f"data in {_shown(settings.data)}, flush {settings.flush}; Ctrl-C stops it"
            )
        systemd.notify(systemd.READY)

    uvloop.run(
        serve_node(
            settings,
            found.serving,
            sys.argv[1:],
            ready,
            reload=lambda: again()[1:3],
            seek=_seek(settings, found.serving),
        )
    )


def _seek(settings: Settings, serving: Serving) -> Callable[[int], str | None] | None:
    """Return what asks the election of a shard who leads it; None without a journal. SettingsError."""
    if not serving.journal:
        return None
    from timerwheel.kafka.front import leader_finder

    each = [leader_finder(layout.settings_of(settings, serving, shard)[1]) for shard in range(serving.shards)]
    return lambda shard: each[shard]()


def _run_shard(
    found: Configuration, again: Callable[[], Configuration], on_damage: "OnDamage", place: ProcessPlace
) -> None:
    """Run the process of a shard: a service with settings, an address and a directory of its own."""
    import uvloop

    from timerwheel.api.engine_handle import NodeContext
    from timerwheel.api.server import serve as serve_http
    from timerwheel.model.shards import Shard

    shard = place.shard
    node = NodeContext(
        Shard(shard, found.serving.shards),
        found.settings.data,
        socket.socket(fileno=place.listening),
        place.from_node,
    )
    settings, serving = layout.settings_of(found.settings, found.serving, shard)
    journal, election = _journal(settings, serving, on_damage)
    uvloop.run(
        serve_http(
            settings,
            serving,
            reload=lambda: layout.settings_of(*again()[1:3], shard),
            on_damage=on_damage,
            journal=journal,
            election=election,
            node=node,
        )
    )


def _run(
    found: Configuration, again: Callable[[], Configuration], on_damage: "OnDamage", *, json_line: bool
) -> None:
    import uvloop

    from timerwheel.api.server import serve as serve_http

    output = Output()
    settings = found.settings

    fronts = _fronts(settings, found.serving)
    bridges = _bridges(settings, found.serving)

    def ready(url: str) -> None:
        beside = {name: _named(front) for name, front in fronts.items()}
        if json_line:
            shown = {"url": url, "data": str(settings.data), "flush": settings.flush, "pid": os.getpid()}
            output.json(shown | beside)
        else:
            text = "".join(f" and {BESIDE[name]} on {address}" for name, address in beside.items())
            output.line(
                f"timerwheel {version()} is ready on {url}{text}, data in {_shown(settings.data)}, "
                f"flush {settings.flush}; Ctrl-C stops it"
            )
        systemd.notify(systemd.READY)

    journal, election = _journal(settings, found.serving, on_damage)
    served = (*fronts.values(), *bridges)
    uvloop.run(
        serve_http(
            settings,
            found.serving,
            ready,
            reload=lambda: again()[1:3],
            on_damage=on_damage,
            fronts=served,
            journal=journal,
            election=election,
        )
    )


def _fronts(settings: Settings, serving: Serving) -> "dict[str, RemotingFront | GrpcFront]":
    """Return the protocols beside HTTP that the settings ask for; SettingsError if a package is missing."""
    fronts = dict[str, "RemotingFront | GrpcFront"]()
    if serving.rocketmq:
        from timerwheel.rocketmq.front import RemotingFront

        fronts["rocketmq"] = RemotingFront(serving)
    if serving.rocketmq_grpc:
        from timerwheel.rocketmq.grpc.front import GrpcFront

        fronts["rocketmq_grpc"] = GrpcFront.of(settings, serving)
    return fronts


def _bridges(settings: Settings, serving: Serving) -> "list[KafkaFront]":
    """Return what connects to other systems by itself; SettingsError if a package is missing."""
    if not serving.kafka:
        return []
    from timerwheel.kafka.front import KafkaFront

    return [KafkaFront.of(settings, serving)]


def _journal(
    settings: Settings, serving: Serving, on_damage: "OnDamage"
) -> "tuple[Journal | None, Callable[[str], Election] | None]":
    """Return the journal that the settings ask for, and what makes its election; SettingsError."""
    from timerwheel.store.log import OnDamage

    if not serving.journal:
        return None, None
    if on_damage is not OnDamage.REFUSE:
        raise SettingsError(
            "journal: --salvage and --cut repair local logs only. This directory is a copy of the journal: "
            "delete it and restart, which copies the log again"
        )
    from timerwheel.kafka.front import journal_from

    return journal_from(settings, serving)


def _named(front: "RemotingFront | GrpcFront") -> str:
    host, port = front.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _shown(path: Path) -> str:
    return str(path) if path.is_absolute() else f"./{path}"
