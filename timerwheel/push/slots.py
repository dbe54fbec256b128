"""The connections that all subscriptions share, beyond the one that each always has."""

SHARED_SLOTS = 1_024


class Slots:
    """A count that is taken from and given back to; nobody ever waits for it.

    A subscription with nothing under way needs no slot. So endpoints that hang with all the slots there are
    bring the others down to one request at a time each, but stop none.
    """

    def __init__(self, count: int = SHARED_SLOTS) -> None:
        self.free = count

    def take(self, wanted: int) -> int:
        """Take up to this many; returns how many there were."""
        taken = max(min(wanted, self.free), 0)
        self.free -= taken
        return taken

    def give(self, count: int) -> None:
        """Give back what was taken."""
        self.free += count
