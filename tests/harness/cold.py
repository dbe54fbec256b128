"""An engine that has to read from the disk."""

from timerwheel.engine import Engine


def make_cold(engine: Engine) -> None:
    """Nothing is at hand any more, and nothing will be."""
    at_hand = engine.core.record_cache
    at_hand._records.clear()
    at_hand._order.clear()
    at_hand._bytes = at_hand._bytes_max = 0
