"""An engine that has to read from the disk."""

import numpy as np

from timerwheel.engine import Engine


def make_cold(engine: Engine) -> None:
    """Nothing is at hand any more, and nothing will be."""
    record_cache = engine.core.record_cache
    record_cache.bytes_max = 0
    record_cache.keep(np.empty(0, np.uint64), [])
