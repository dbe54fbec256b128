"""The metrics of the bridge to Kafka."""

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from timerwheel.model.kafka_counts import BridgeState, KafkaCounts


def kafka_families(counts: KafkaCounts) -> Iterator[Metric]:
    """Yield every metric of the bridge."""
    states = GaugeMetricFamily(
        "timerwheel_kafka_working", "1 while this side of the bridge works", labels=("side",)
    )
    for side, state in (("inlet", counts.inlet_state), ("outlet", counts.outlet_state)):
        states.add_metric((side,), int(state is BridgeState.WORKING))
    yield states
    yield GaugeMetricFamily(
        "timerwheel_kafka_fenced",
        "1 if another process on a copy of the data sends instead",
        value=int(counts.outlet_state is BridgeState.FENCED),
    )
    taken = CounterMetricFamily(
        "timerwheel_kafka_inlet_records",
        "Records taken from the inlet, by what became of them",
        labels=("result",),
    )
    for result in ("scheduled", "recalls", "rejected", "repeated"):
        taken.add_metric((result,), getattr(counts, result))
    yield taken
    position = GaugeMetricFamily(
        "timerwheel_kafka_inlet_position", "Offset of the next record to take", labels=("partition",)
    )
    lag = GaugeMetricFamily(
        "timerwheel_kafka_inlet_lag", "Offsets of the inlet that were not taken yet", labels=("partition",)
    )
    for partition, place in counts.inlet.items():
        position.add_metric((str(partition),), place.next)
        lag.add_metric((str(partition),), place.behind)
    yield position
    yield lag
    sent = CounterMetricFamily(
        "timerwheel_kafka_outlet_messages",
        "Messages that left the outlet, by where they went",
        labels=("result",),
    )
    for result, count in (
        ("sent", counts.sent),
        ("rejected", counts.not_sent),
        ("lost", counts.lost),
    ):
        sent.add_metric((result,), count)
    yield sent
    yield CounterMetricFamily(
        "timerwheel_kafka_outlet_transactions", "Transactions committed", value=counts.transactions
    )
    yield GaugeMetricFamily(
        "timerwheel_kafka_outlet_behind_messages",
        "Delivered messages that are not in Kafka yet",
        value=counts.behind,
    )
