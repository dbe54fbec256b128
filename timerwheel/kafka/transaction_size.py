"""How many records the outlet's next transaction has at most: fewer after one that failed, then more again.

    a transaction fails                       an eighth
    one takes up to a quarter of its time     twice as many, up to RECORDS_MAX

Its time is how long brokers let a transaction last. One with twice as many records takes twice as long at
most, so half of that time. So one that takes too long is not tried again and again; and where each takes
long whatever it has, as with brokers far away, it has many all the same.
"""

from typing import Final

RECORDS_MAX: Final = 5_000
FEWER: Final = 8
QUICK_PARTS: Final = 4


class TransactionSize:
    """See the module."""

    def __init__(self, lasts_ms: int) -> None:
        self._quick_ms = lasts_ms // QUICK_PARTS
        self.records_max = RECORDS_MAX

    def failed(self) -> None:
        """A transaction has failed, for whatever reason."""
        self.records_max = max(self.records_max // FEWER, 1)

    def ended(self, took_ms: int) -> None:
        """A transaction has ended."""
        if took_ms <= self._quick_ms:
            self.records_max = min(self.records_max * 2, RECORDS_MAX)
