"""Families of metrics, in the shapes that the service has: under `timerwheel_` and a name."""

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from timerwheel.runtime.counters import Histogram

PREFIX = "timerwheel_"
Labels = tuple[str, ...]


def gauge(name: str, about: str, value: float) -> Metric:
    """One value."""
    return GaugeMetricFamily(PREFIX + name, about, value=value)


def gauges(name: str, about: str, labels: Labels, values: Iterable[tuple[Labels, float]]) -> Metric:
    """Values by labels."""
    family = GaugeMetricFamily(PREFIX + name, about, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def counter(name: str, about: str, value: float) -> Metric:
    """One count that only grows."""
    return CounterMetricFamily(PREFIX + name, about, value=value)


def counters(name: str, about: str, labels: Labels, values: Iterable[tuple[Labels, float]]) -> Metric:
    """Counts by labels."""
    family = CounterMetricFamily(PREFIX + name, about, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def by(values: Mapping[str, float] | Iterable[tuple[str, float]]) -> Iterable[tuple[Labels, float]]:
    """Return values of one label for `gauges` and `counters`."""
    pairs = list(values.items()) if isinstance(values, Mapping) else values
    return [((label,), value) for label, value in pairs]


def histogram(name: str, about: str, found: Histogram, divisor: int = 1) -> Metric:
    """One distribution."""
    return histograms(name, about, (), [((), found)], divisor)


def histograms(
    name: str, about: str, labels: Labels, found: Iterable[tuple[Labels, Histogram]], divisor: int = 1
) -> Metric:
    """Distributions by labels; bounds as Prometheus writes them, with the number of values up to each."""
    family = HistogramMetricFamily(PREFIX + name, about, labels=labels)
    for key, one in found:
        bounds = [str(float(bound / divisor)) for bound in one.bounds]
        buckets = list(zip([*bounds, "+Inf"], one.cumulative(), strict=True))
        family.add_metric(key, buckets, one.sum / divisor)
    return family
