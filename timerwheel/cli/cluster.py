"""`cluster status|move`: the nodes that share a journal."""

from collections.abc import Sequence
from typing import Annotated

import typer

from timerwheel.cli.connection import ServiceOptions
from timerwheel.cli.output import IdOutput, Output
from timerwheel.wire.cluster import ShardInfo

ShardOption = Annotated[
    int | None,
    typer.Option("--shard", min=0, show_default=False, help="The shard to move, of a service in shards."),
]


def status(*, service: ServiceOptions, output: IdOutput) -> None:
    """List the nodes with the same journal: which one leads, and how far behind the others are."""
    found = service.ask(lambda client: client.cluster())
    output.listing(
        found,
        ("node", "role", "#behind"),
        [(node.url, node.role, _behind(node.behind)) for node in found.nodes],
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
        ("#shard", "process", "role", "#behind"),
        [
            (str(shard.shard), node.url, node.role, _behind(node.behind))
            for shard in shards
            for node in shard.nodes
        ],
    )
    waiting = [str(shard.shard) for shard in shards if shard.leader is None]
    if waiting:
        output.line(f"nobody leads shard {', '.join(waiting)}")


def _behind(behind: int | None) -> str:
    return "-" if behind is None else f"{behind:,}"


def move(shard: ShardOption = None, *, service: ServiceOptions, output: IdOutput) -> None:
    """Let another node lead, in place of the one at --url or of a shard; returns once it does."""
    leader = service.ask(lambda client: client.move_leader(shard))
    line = f"{leader} leads now" if shard is None else f"{leader} leads shard {shard} now"
    output.result({"leader": leader}, line, ids=[leader])
