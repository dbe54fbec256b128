"""Whether this node's clock agrees with that of the brokers, who put the time of an append on each record.

    sent      this node's clock before an append        answered    and after it
    stamped   the broker's clock between the two

A broker's time outside of [sent, answered] shows how much the clocks differ, at least; the time that the
append took is not part of it. Timers fire by the clock of the node that leads. All nodes with one journal
have the same brokers, so those that agree with them agree with each other. Without I/O; belongs to one
thread.
"""

from typing import Final

DIFFERENCE_MS_MAX: Final = 1_000
"""Clocks that differ by more are reported."""
SAID_MS: Final = 600_000
"""How often it is said while it lasts."""


class BrokerClock:
    """See the module."""

    def __init__(self) -> None:
        self._said_ms: int | None = None

    def compare(self, sent_ms: int, answered_ms: int, stamped_ms: int, now_ms: int) -> str | None:
        """Return a sentence for the log if the clocks differ and it is time to say so.

        The first three are of wall clocks; `now_ms` is of one that never steps.
        """
        ahead_ms, behind_ms = sent_ms - stamped_ms, stamped_ms - answered_ms
        if max(ahead_ms, behind_ms) <= DIFFERENCE_MS_MAX:
            self._said_ms = None
            return None
        if self._said_ms is not None and now_ms - self._said_ms < SAID_MS:
            return None
        self._said_ms = now_ms
        difference = (
            f"{ahead_ms / 1000:.1f} s ahead of" if ahead_ms > 0 else f"{behind_ms / 1000:.1f} s behind"
        )
        what = "early" if ahead_ms > 0 else "late"
        return (
            f"the clock of this node is {difference} that of the Kafka brokers: while it leads, messages "
            f"arrive that much too {what}; synchronize the clocks of all nodes and brokers"
        )
