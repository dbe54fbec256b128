"""A handle on the engine for the API: empty while the engine opens; it also knows when the service stops.

With it the socket can be bound, and `/healthz` can answer, before a long recovery is over. It is empty again
between two engines, while the journal is away: so ask it for the engine in each call and each turn of a loop.
"""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from timerwheel.api.cluster import Cluster
from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError
from timerwheel.model.admission import check_shard
from timerwheel.model.shards import Shard
from timerwheel.push.push import Push
from timerwheel.push.traces import Traces
from timerwheel.settings import Settings
from timerwheel.store.journaled_log import JournaledLog
from timerwheel.wire.cluster import Role


class NodeContext(NamedTuple):
    """What a node hands to the process of one of its shards."""

    shard: Shard
    home: Path
    """The data directory of the node, with the tokens of all its shards."""
    listening: socket.socket
    """A socket that listens already, on the shard's port."""
    from_node: int
    """Descriptor of a pipe from the node's own process: see `timerwheel.shards.processes`."""


LOOK_UP_MS = 500
"""How often a waiting request checks whether its client is still there and the service is not stopping."""


class EngineHandle:
    """Holds the engine once it is open. Used on the event loop only."""

    def __init__(
        self, settings: Settings, traces: Traces | None = None, node: NodeContext | None = None
    ) -> None:
        self.settings = settings
        self.home = settings.data if node is None else node.home
        """The directory with the tokens."""
        self.shard = 0 if node is None else node.shard.number
        self.is_of_node = node is not None
        """Whether calls may come from a node in front of shards."""
        self.traces = traces
        self.stopping = False
        """Whether `stop` was called."""
        self._engine: Engine | None = None
        self._push: Push | None = None
        self.why_closed = ""
        """Why there is no engine after there was one, or was to be one."""
        self._on_open: list[Callable[[Engine], None]] = []
        self.cluster: Cluster | None = None
        """The nodes that share a journal, with this one among them."""

    def open(self, engine: Engine, push: Push) -> None:
        """Let requests through to `engine`, and to `push`, which delivers its messages."""
        self._engine = engine
        self._push = push
        self.why_closed = ""
        for call in self._on_open:
            call(engine)

    def at_each_open(self, call: Callable[[Engine], None]) -> None:
        """Call this with the engine that is open, if one is, and with each that opens from now on."""
        self._on_open.append(call)
        if self._engine is not None:
            call(self._engine)

    def close(self, reason: str) -> None:
        """Answer requests with this reason until the next `open`."""
        self._engine = self._push = None
        self.why_closed = reason

    def stop(self) -> None:
        """The service stops: nothing waits any longer, and nothing new is accepted."""
        self.stopping = True

    @property
    def push(self) -> Push:
        """The push subscriptions; raises `NotReadyError` before `open`."""
        if self._push is None:
            raise self._not_open()
        return self._push

    @property
    def engine(self) -> Engine:
        """The engine; raises `NotReadyError` before `open`."""
        if self._engine is None:
            raise self._not_open()
        return self._engine

    def _not_open(self) -> NotReadyError:
        if self.is_standby:
            return self.not_ready
        return NotReadyError(self.why_closed or "the service is starting and still recovering its data")

    @property
    def not_ready(self) -> NotReadyError:
        """What to answer while new messages are not accepted."""
        reason, leader = f"the service is not ready: {self.status}", self._known_leader
        own = self.cluster is not None and leader == self.cluster.url
        # Its own URL is that of another one by mistake, or it has not heard of the next leader yet.
        return NotReadyError(reason, is_standby=leader is not None, leader=None if own else leader)

    @property
    def role(self) -> Role:
        """Its part among the nodes with the same journal."""
        if self.cluster is None:
            return "alone"
        return "leader" if self.cluster.is_leader else "standby"

    def check_topic(self, topic: str) -> None:
        """Raise AdmissionError wrong_shard for a topic of another shard; NotReadyError before `open`."""
        check_shard(topic, self.engine.shard)

    @property
    def journal_position(self) -> int | None:
        """Up to which position of the journal this node has it; None while that is not known."""
        if self._engine is None:
            return None if self.cluster is None else self.cluster.position
        log = self._engine.core.log
        return log.position if isinstance(log, JournaledLog) else None

    @property
    def _known_leader(self) -> str | None:
        """Who leads instead of this node, as far as it has heard."""
        if self.cluster is None or self.cluster.is_leader:
            return None
        return self.cluster.leader_url if self.is_standby or self.cluster.lacks_room else None

    @property
    def status(self) -> str:
        """One of starting, ready, stopping, or "waiting: " or "failed: " and why."""
        if self._engine is None:
            if self.is_standby and self.cluster is not None:
                return f"standby: {self.cluster.leader_url or 'no node'} leads"
            if self.cluster is not None and self.cluster.is_copying:
                return "starting"
            return f"waiting: {self.why_closed}" if self.why_closed else "starting"
        return "stopping" if self.stopping else self._engine.status

    @property
    def is_standby(self) -> bool:
        """Whether this node copies what another one stores."""
        return self.cluster is not None and self.cluster.is_copying and not self.cluster.is_leader

    @property
    def refusal(self) -> str:
        """Why it is not ready, as a sentence."""
        return "the service is stopping" if self.stopping else f"the service is not ready: {self.status}"

    @property
    def has_lead(self) -> bool:
        """Whether it is certain, without asking, that no other node leads; True while there is no engine."""
        return self._engine is None or self._engine.lead.is_certain

    async def assure_lead(self) -> None:
        """Return if no other node leads, or there is no engine; NotReadyError if that is not certain."""
        if self._engine is not None:
            await self._engine.lead.assure()

    @property
    def ready(self) -> bool:
        """Whether new messages are accepted."""
        return self._engine is not None and self._engine.ready and not self.stopping
