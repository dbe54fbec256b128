"""An engine that has to read from the disk."""

from timerwheel.engine import Engine


def make_cold(engine: Engine) -> None:
    """Nothing is at hand any more, and nothing will be."""
    record_cache = engine.core.record_cache
    record_cache._records.clear()
    record_cache._order.clear()
    record_cache._bytes = record_cache._bytes_max = 0
