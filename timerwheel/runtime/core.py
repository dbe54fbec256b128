"""The shared parts that every path of the engine works with."""

import asyncio
from dataclasses import dataclass

from timerwheel.clock import Clock
from timerwheel.index.writer import IndexWriter
from timerwheel.model.ids import Ids
from timerwheel.runtime.counters import Counters
from timerwheel.runtime.disk_space import DiskSpace
from timerwheel.runtime.group_commit import GroupCommit
from timerwheel.runtime.in_flight import InFlight
from timerwheel.runtime.record_cache import RecordCache
from timerwheel.runtime.status import Life
from timerwheel.runtime.threads import Threads
from timerwheel.settings import Settings
from timerwheel.state.state import LogState
from timerwheel.store.files import Files
from timerwheel.store.log import CommitLog
from timerwheel.wheel.near import NearWheel
from timerwheel.wheel.slot_limit import SlotLimit


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
