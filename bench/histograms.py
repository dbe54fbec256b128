"""HDR histograms: latencies and lateness, in microseconds, to three digits."""

from collections.abc import Iterable
from typing import Any

from hdrh.histogram import HdrHistogram

HIGHEST_US = 3_600_000_000
SIGNIFICANT_DIGITS = 3
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


def histogram(values_us: Iterable[int]) -> str:
    """Encodes values in microseconds, clamped to one microsecond and one hour."""
    made = HdrHistogram(1, HIGHEST_US, SIGNIFICANT_DIGITS)
    record = made.record_value
    for value in values_us:
        record(min(max(value, 1), HIGHEST_US))
    return str(made.encode().decode())


def merged(encoded: Iterable[str]) -> Any:  # noqa: ANN401 - the library has no types
    """Merges the histograms of several rounds."""
    made = HdrHistogram(1, HIGHEST_US, SIGNIFICANT_DIGITS)
    for one in encoded:
        made.decode_and_add(one.encode())
    return made


def percentiles_ms(*encoded: str) -> dict[str, float]:
    """p50, p90, p99, p99.9 and the maximum of histograms together, in milliseconds."""
    made = merged(encoded)
    return {name: made.get_value_at_percentile(at) / 1000 for name, at in PERCENTILES.items()}


def joined(encoded: Iterable[str]) -> str:
    """Merges several histograms."""
    return str(merged(encoded).encode().decode())
