"""How long a node leads for certain: what the coordinator of its group has confirmed last.

    asked      when the node asked the coordinator, by the node's clock
    confirmed  the coordinator answered: at some time since then, the node was a member of the group, and had
               the partition. From that time on it is heard of for a session before another node may have it
    until      asked + the session - a margin

It is counted from the question, so it is too short by what the answer took, and never too long. The margin is
for clocks that do not run at the same rate. Without I/O; belongs to the thread of the election, but for
`until_ms`, which anybody may read.
"""

from typing import Final

SESSION_MS: Final = 6_000
"""A node of which the coordinator hears nothing for so long is replaced."""
MARGIN_MS: Final = 1_000
ASK_MS: Final = 1_000
"""How often a leader asks."""
NEVER: Final = -1


class Tenure:
    """See the module."""

    def __init__(self) -> None:
        self.until_ms = NEVER
        """Until when the group can have chosen no other node."""
        self._begun_ms: int | None = None
        self._ask_ms = 0

    def begin(self, now_ms: int) -> None:
        """The node has the partition from now on; what was asked before counts for nothing."""
        self._begun_ms, self._ask_ms = now_ms, now_ms

    def end(self) -> None:
        """The node has the partition no longer."""
        self._begun_ms, self.until_ms = None, NEVER

    def should_ask(self, now_ms: int) -> bool:
        """Whether to ask the coordinator now; the next time is `ASK_MS` later."""
        if self._begun_ms is None or now_ms < self._ask_ms:
            return False
        self._ask_ms = now_ms + ASK_MS
        return True

    def confirmed(self, asked_ms: int) -> None:
        """The coordinator has answered what was asked then."""
        if self._begun_ms is not None and asked_ms >= self._begun_ms:
            self.until_ms = max(self.until_ms, asked_ms + SESSION_MS - MARGIN_MS)
