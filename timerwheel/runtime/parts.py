"""What an open engine is made of."""

from dataclasses import dataclass

from timerwheel.runtime.firing import Firing
from timerwheel.runtime.group_commit import GroupCommit
from timerwheel.runtime.indexer import Indexer
from timerwheel.runtime.recovery import Recovered
from timerwheel.runtime.retention import Retention
from timerwheel.wheel.near import NearWheel


@dataclass
class Parts:
    """What an open engine is made of."""

    recovered: Recovered
    near: NearWheel
    commit: GroupCommit
    firing: Firing
    indexer: Indexer
    retention: Retention
