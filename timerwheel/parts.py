"""What an open engine is made of."""

from dataclasses import dataclass

from timerwheel.commit import GroupCommit
from timerwheel.firing import Firing
from timerwheel.indexer import Indexer
from timerwheel.near import NearWheel
from timerwheel.recovery import Recovered
from timerwheel.retention import Retention


@dataclass
class Parts:
    """What an open engine is made of."""

    recovered: Recovered
    near: NearWheel
    commit: GroupCommit
    firing: Firing
    indexer: Indexer
    retention: Retention
