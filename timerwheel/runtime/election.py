"""Which of several processes leads a journal, and what the others do until it is their turn.

    standby   copies the journal and replays it, step by step (`timerwheel.runtime.recovery.Replica`)
    won       claims the journal, replays the rest, and is the engine
    lost      ends the engine; the next life begins as a standby

An election only says who should lead. That two never do is for the journal to see to: a claim shuts out the
leader before it (`timerwheel.store.journal`). So an election may be late, or wrong, and nothing is lost.

What is stored asks the journal; what is only read does not. So a leader answers nothing unless the election
has confirmed lately that it leads (`leads_until_ms`): one that was replaced while it slept would tell what
was true before.
"""

from typing import NamedTuple, Protocol

from timerwheel.errors import TimerwheelError


class NotLeaderError(TimerwheelError):
    """This process does not lead."""

    code = "not_leader"

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"this node does not lead: {leader or 'no node'} does")
        if leader is not None:
            self.facts = {"leader": leader}


class NoStandbyError(TimerwheelError):
    """There is no other process that could lead."""

    code = "no_standby"


class Node(NamedTuple):
    """A process that takes part in an election."""

    url: str
    is_leader: bool
    behind: int | None
    """How many runs of the journal it has not copied yet; None if it has not said so."""
    has_room: bool | None = None
    """Whether it has room on its disk; None if it has not said so."""
    is_aside: bool = False
    """Whether it cannot be chosen for now."""


class Candidate(Protocol):
    """What an engine asks of an election."""

    @property
    def leads_until_ms(self) -> int:
        """Until when, by `Clock.uptime_ms`, the election can have chosen no other process; while won only."""

    async def won(self) -> None:
        """Take part; return once this process is to lead. Raises JournalAwayError."""

    def report(self, position: int) -> None:
        """Say up to which position of the journal this process has it, also while it leads."""


class Election(Candidate, Protocol):
    """See the module. Belongs to the event loop."""

    @property
    def is_won(self) -> bool:
        """Whether this process is to lead."""

    @property
    def leader_url(self) -> str | None:
        """Who leads, as far as this process has heard."""

    async def lost(self) -> None:
        """Return once this process is not to lead any longer, and has to end its engine."""

    def ended(self) -> None:
        """Say that no engine runs here: after `lost`, another may begin. Otherwise it does nothing."""

    async def leave(self) -> None:
        """Take no part, and do not lead, until the next `won`. A second call does nothing."""

    def say_room(self, *, has_room: bool) -> None:
        """Let others know whether this process has room on its disk."""

    def stand_aside(self, *, is_aside: bool) -> None:
        """Be none of those from whom the leader is chosen, or be one again; only while it does not lead."""

    async def nodes(self) -> list[Node]:
        """Return who takes part, by URL. Raises JournalAwayError."""
