"""The metrics of the bridge to Kafka."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from timerwheel.api.service.families import by, counter, counters, gauge, gauges
from timerwheel.model.kafka_counts import BridgeState, KafkaCounts

RESULTS = ("scheduled", "recalls", "rejected", "repeated")


def kafka_families(counts: KafkaCounts) -> Iterator[Metric]:
    """Yield every metric of the bridge."""
    sides = {"inlet": counts.inlet_state, "outlet": counts.outlet_state}
    working = {side: int(state is BridgeState.WORKING) for side, state in sides.items()}
    yield gauges("kafka_working", "1 while this side of the bridge works", ("side",), by(working))
    fenced = int(counts.outlet_state is BridgeState.FENCED)
    yield gauge("kafka_fenced", "1 if another process on a copy of the data sends instead", fenced)
    taken = {result: getattr(counts, result) for result in RESULTS}
    about = "Records taken from the inlet, by what became of them"
    yield counters("kafka_inlet_records", about, ("result",), by(taken))
    places = {str(partition): place for partition, place in counts.inlet.items()}
    position = {partition: place.next for partition, place in places.items()}
    yield gauges("kafka_inlet_position", "Offset of the next record to take", ("partition",), by(position))
    lag = {partition: place.behind for partition, place in places.items()}
    yield gauges("kafka_inlet_lag", "Offsets of the inlet that were not taken yet", ("partition",), by(lag))
    sent = {"sent": counts.sent, "rejected": counts.not_sent, "lost": counts.lost}
    about = "Messages that left the outlet, by where they went"
    yield counters("kafka_outlet_messages", about, ("result",), by(sent))
    yield counter("kafka_outlet_transactions", "Transactions committed", counts.transactions)
    about = "Delivered messages that are not in Kafka yet"
    yield gauge("kafka_outlet_behind_messages", about, counts.behind)
