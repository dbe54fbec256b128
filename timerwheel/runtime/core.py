"""The shared parts that every path of the engine works with."""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from timerwheel.clock import Clock
from timerwheel.errors import NotReadyError
from timerwheel.index.writer import IndexWriter
from timerwheel.model.ids import Ids
from timerwheel.runtime.ages import Ages, LogAges
from timerwheel.runtime.counters import Counters
from timerwheel.runtime.disk_space import DiskSpace
from timerwheel.runtime.group_commit import GroupCommit
from timerwheel.runtime.in_flight import InFlight
from timerwheel.runtime.lead import Lead
from timerwheel.runtime.record_cache import RecordCache
from timerwheel.runtime.threads import Threads
from timerwheel.settings import Settings
from timerwheel.state.state import LogState
from timerwheel.store.files import Files
from timerwheel.store.log import CommitLog
from timerwheel.wheel.near import NearWheel
from timerwheel.wheel.slot_limit import SlotLimit


class Status(StrEnum):
    """A state of an engine's life."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"
    CLOSED = "closed"


_NEXT = {
    Status.STARTING: {Status.READY, Status.FAILED, Status.STOPPING, Status.CLOSED},
    Status.READY: {Status.FAILED, Status.STOPPING, Status.CLOSED},
    Status.FAILED: {Status.STOPPING, Status.CLOSED},
    Status.STOPPING: {Status.FAILED, Status.CLOSED},
    Status.CLOSED: set(),
}


class Life:
    """The status of one engine, and the reason if it failed. Belongs to the event loop."""

    def __init__(self) -> None:
        self.status = Status.STARTING
        self._reason = ""

    def __str__(self) -> str:
        """Return the status in words, for people and for `/readyz`."""
        return f"{self.status}: {self._reason}" if self.status is Status.FAILED else str(self.status)

    def become(self, status: Status, reason: str = "") -> bool:
        """Enter a state; returns False, and changes nothing, if it may not follow the current one."""
        if status not in _NEXT[self.status]:
            return False
        self.status, self._reason = status, reason
        return True

    @property
    def ready(self) -> bool:
        """Whether the engine accepts work."""
        return self.status is Status.READY

    def check_ready(self) -> None:
        """Raise NotReadyError unless the engine accepts work."""
        if not self.ready:
            raise NotReadyError(f"the service is {self}")


@dataclass(frozen=True, kw_only=True)
class Core:
    """The log, the state derived from it, and the tools to work: one instance per open engine.

    `near_changed` is set when the near wheel gets timers that may be due before the ones already there.
    """

    settings: Settings
    clock: Clock
    threads: Threads
    files: Files
    life: Life
    lead: Lead
    disk: DiskSpace
    counters: Counters
    log: CommitLog
    ids: Ids
    state: LogState
    index: IndexWriter
    near: NearWheel
    near_changed: asyncio.Event
    commit: GroupCommit
    in_flight: InFlight
    record_cache: RecordCache
    slot_limit: SlotLimit
    ages: Ages
    log_ages: LogAges
