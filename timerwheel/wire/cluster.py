"""The nodes that share a journal; see `timerwheel.wire`."""

from typing import Literal

import msgspec

Role = Literal["alone", "leader", "standby"]


class NodeInfo(msgspec.Struct, frozen=True):
    """A node: `behind` is the number of the journal's runs that its copy lacks, null while unknown."""

    url: str
    role: Role
    behind: int | None


class ClusterInfo(msgspec.Struct, frozen=True):
    """The nodes by URL; `node` is the one that answers. One without a journal is alone."""

    node: str
    role: Role
    nodes: list[NodeInfo]


class Moved(msgspec.Struct, frozen=True):
    """A hand-over that is done: the URL of the node that leads now."""

    leader: str
