"""`cluster status|move|fill`: the nodes that share a journal; and a log that is to be in one."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.options import DATA_DEFAULT, DataOption
from timerwheel.cli.output import IdOutput, JsonOutput, Output, progress_bar
from timerwheel.errors import SettingsError
from timerwheel.settings import journal_of
from timerwheel.wire.cluster import ShardInfo

ShardOption = Annotated[
    int | None,
    typer.Option("--shard", min=0, show_default=False, help="The shard to move, of a service in shards."),
]


def status(*, service: ServiceOptions, output: IdOutput) -> None:
    """List the nodes with the same journal: which one leads, how far behind each is, and which has room."""
    found = service.ask(lambda client: client.cluster())
    output.listing(
        found,
        ("node", "role", "#behind", "room"),
        [(node.url, node.role, _behind(node.behind), _room(node.has_room)) for node in found.nodes],
        ids=[node.url for node in found.nodes],
    )
    if not output.for_people:
        return
    if found.shards:
        _list_shards(output, found.shards)
    if found.role == "alone":
        output.line("the service has no journal: it is the only node")


def _list_shards(output: Output, shards: Sequence[ShardInfo]) -> None:
    output.line("")
    output.listing(
        shards,
        ("#shard", "process", "role", "#behind", "room"),
        [
            (str(shard.shard), node.url, node.role, _behind(node.behind), _room(node.has_room))
            for shard in shards
            for node in shard.nodes
        ],
    )
    waiting = [str(shard.shard) for shard in shards if shard.leader is None]
    if waiting:
        output.line(f"nobody leads shard {', '.join(waiting)}")


def _behind(behind: int | None) -> str:
    return "-" if behind is None else f"{behind:,}"


def _room(has_room: bool | None) -> str:
    return "-" if has_room is None else "yes" if has_room else "no"


def move(shard: ShardOption = None, *, service: ServiceOptions, output: IdOutput) -> None:
    """Let another node lead, in place of the one at --url or of a shard; returns once it does."""
    leader = service.ask(lambda client: client.move_leader(shard))
    line = f"{leader} leads now" if shard is None else f"{leader} leads shard {shard} now"
    output.result({"leader": leader}, line, ids=[leader])


def fill(
    data: DataOption = DATA_DEFAULT,
    *,
    journal: Annotated[
        str,
        typer.Option(
            "--journal",
            metavar="kafka://HOST:PORT,.../CLUSTER",
            help="The empty journal to fill; later start the service with it as --journal.",
        ),
    ],
    journal_replicas: Annotated[
        int, typer.Option("--journal-replicas", min=0, help="Replicas of its topic; 0 for 3, or all brokers.")
    ] = 0,
    kafka_properties: Annotated[
        Path | None,
        typer.Option(
            "--kafka-properties", metavar="FILE", help="Properties of librdkafka, for TLS and SASL."
        ),
    ] = None,
    from_copy: Annotated[
        bool,
        typer.Option(
            "--from-copy", help="The directory is a copy of a journal that is lost: put it into this one."
        ),
    ] = False,
    output: JsonOutput,
) -> None:
    """Store the log of a stopped service in a journal; its data directory is a copy from then on.

    Ids stay as they are. If it is cut off, the service may start as before; or the command may be repeated.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise SettingsError("confluent_kafka is missing: a journal needs `pip install 'timerwheel[kafka]'`")
    from timerwheel.kafka.clients import read_properties
    from timerwheel.kafka.log_fill import fill_journal

    properties = read_properties(kafka_properties)
    with progress_bar("storing the log in Kafka") as progress:
        address = journal_of(journal)
        found = fill_journal(address, properties, data, journal_replicas, progress, from_copy=from_copy)
    done = [one._asdict() for one in found]
    if output.as_data({"logs": done}):
        return
    for one in found:
        output.line(
            f"{one.topic}: log offsets {one.start:,} to {one.tail:,}, {one.appended_bytes:,} bytes stored"
        )
    output.line(f"from now on, start with --journal {journal}")
