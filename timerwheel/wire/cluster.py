"""The nodes that share a journal; see `timerwheel.wire`."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Role = Literal["alone", "leader", "standby"]


class NodeInfo(msgspec.Struct, frozen=True):
    """A node: `behind` is the number of the journal's runs that its copy lacks, null while unknown.

    `has_room` is false while its disk has less free than `disk_reserve`: it does not lead while another node
    has room. It is null while that is unknown, and for a node without a journal.
    """

    url: str
    role: Role
    behind: int | None
    has_room: bool | None = None


class ShardInfo(msgspec.Struct, frozen=True):
    """A shard: the URL of the process that serves it, null while none does, and all its processes.

    It has the topics whose CRC-32, of the name in UTF-8, is `shard` modulo the number of shards. Its ids
    begin with `shard` in four hexadecimal digits.
    """

    shard: int
    leader: str | None
    nodes: list[NodeInfo]


class ClusterInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The nodes by URL; `node` is the one that answers. One without a journal is alone.

    A service in shards has `shards`. A node leads if it leads one of them, and is as far behind as in the
    shard where it is furthest behind.
    """

    node: str
    role: Role
    nodes: list[NodeInfo]
    shards: list[ShardInfo] = []


class MoveQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which shard another node is to lead; a service in shards needs it."""

    shard: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class Moved(msgspec.Struct, frozen=True):
    """A hand-over that is done: the URL of the node that leads now."""

    leader: str
