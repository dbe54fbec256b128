"""Metrics under the names and labels of Apache RocketMQ's broker, for dashboards made for it.

Names, labels, units (milliseconds; a delay in seconds) and bounds are those of RocketMQ 5:
`DefaultStoreMetricsConstant`, `DefaultStoreMetricsManager` and `TimerMetrics` of its module `store`,
`BrokerMetricsConstant` and `ConsumerLagCalculator` of `broker`, in github.com/apache/rocketmq.
"""

import platform
from collections.abc import Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from timerwheel.model.messages import GroupCounts
from timerwheel.runtime.counters import Counters
from timerwheel.runtime.gauges import BOUNDS_S, GaugeValues

_BROKER = {"cluster": "timerwheel", "node_type": "broker", "node_id": platform.node()}
_STORE = {**_BROKER, "storage_type": "local", "storage_medium": "disk"}
_DELAY_BOUNDS_S = (60, 600, 3_600, 43_200, 86_400, 259_200)


def rocketmq_families(counters: Counters, gauges: GaugeValues) -> Iterator[Metric]:
    """The metrics of timers and consumers that a RocketMQ broker has and that apply here."""
    unsynced = gauges.log_tail - gauges.log_synced
    for name, about, value in (
        ("timer_enqueue_lag", "Records that are not indexed yet", gauges.index_behind_records),
        (
            "timer_enqueue_latency",
            "Age of the oldest record that is not indexed yet, ms",
            gauges.index_behind_ms,
        ),
        ("timer_dequeue_latency", "How long the oldest due message has been overdue, ms", gauges.overdue_ms),
        ("storage_size", "Bytes of the log that are retained", gauges.log_tail - gauges.log_start),
        ("storage_flush_behind_bytes", "Bytes of the log that are not known to be durable", unsynced),
        (
            "storage_dispatch_behind_bytes",
            "Bytes of the log that are not indexed yet",
            gauges.index_behind_bytes,
        ),
    ):
        yield _store_gauge(name, about, [({}, value)])
    survey = gauges.survey
    if survey is not None:
        about = "Overdue messages not yet delivered"
        yield _store_gauge("timer_dequeue_lag", about, [({}, survey.overdue)])
        pending = [({"topic": topic}, count) for topic, count in survey.pending]
        yield _store_gauge("timing_messages", "Scheduled messages", pending)
        steps = zip(BOUNDS_S, survey.within, [0, *survey.within], strict=False)
        parts = [({"timer_bound_s": str(bound_s)}, max(upto - below, 0)) for bound_s, upto, below in steps]
        about = "Messages due within this bound and beyond the previous one"
        yield _store_gauge("timer_message_snapshot", about, parts)
        yield from _consumers(survey.groups)
    yield _store_counter("timer_enqueue", "Messages stored with a delay", counters.accepted_waiting)
    fired = counters.fired_due + counters.fired_early
    yield _store_counter("timer_dequeue", "Scheduled messages delivered", fired)
    yield _delays(counters)


def _consumers(groups: list[GroupCounts]) -> Iterator[Metric]:
    labels = (*_BROKER, "topic", "consumer_group")
    for name, about, counts in (
        ("lag", "Messages that the group has not acknowledged", [sum(group[2:]) for group in groups]),
        ("inflight", "Messages leased to consumers", [group.in_flight for group in groups]),
        ("ready", "Messages ready to be received", [group.lag + group.ready for group in groups]),
    ):
        family = GaugeMetricFamily(f"rocketmq_consumer_{name}_messages", about, labels=labels)
        for group, count in zip(groups, counts, strict=True):
            family.add_metric((*_BROKER.values(), group.topic, group.group), count)
        yield family


def _store_gauge(name: str, about: str, values: list[tuple[dict[str, str], int]]) -> Metric:
    name = f"rocketmq_{name}"
    family = Metric(name, about, "gauge")
    for labels, value in values:
        family.add_sample(name, {**_STORE, **labels}, value)
    return family


def _store_counter(name: str, about: str, count: int) -> Metric:
    family = CounterMetricFamily(f"rocketmq_{name}", about, labels=tuple(_STORE))
    family.add_metric(tuple(_STORE.values()), count)
    return family


def _delays(counters: Counters) -> Metric:
    """Return the measured bounds that RocketMQ has too."""
    delays = counters.delay_s
    *upto, every = delays.cumulative()
    counts = dict(zip(delays.bounds, upto, strict=True))
    buckets = [(str(float(bound_s)), counts[bound_s]) for bound_s in _DELAY_BOUNDS_S]
    buckets.append(("+Inf", every))
    about = "How far ahead accepted messages are due, s"
    family = HistogramMetricFamily("rocketmq_delay_message_latency", about, labels=tuple(_STORE))
    family.add_metric(tuple(_STORE.values()), buckets, delays.sum)
    return family
