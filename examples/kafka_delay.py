"""Orders that close themselves, told in Kafka: no program here talks to anything but Kafka.

An order opens, and a record in the topic `timers` asks for another in `orders.close`, due at the order's
time-out. A payment recalls it. Orders that are not paid in time are closed by a reader of `orders.close`.

    timerwheel serve --data data --kafka 127.0.0.1:9092
    python examples/kafka_delay.py --brokers 127.0.0.1:9092 --orders 200

The run ends by proving its books: each order is paid or closed, and none is both. Exit code 1 if not.
"""

import argparse
import random
import sys
import uuid
from collections import Counter

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PAYING_SHARE = 0.7
TIMEOUT_MS = 3_000
OPENING_S = 2.0
PATIENCE_S = 60
TOPIC = "orders.close"


def main() -> int:
    """Run the story; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--brokers", default="127.0.0.1:9092")
    parser.add_argument("--inlet", default="timers", help="the setting kafka_inlet of the service")
    parser.add_argument("--orders", type=int, default=200)
    given = parser.parse_args()
    brokers = {"bootstrap.servers": given.brokers}
    run = uuid.uuid4().hex[:8]
    make_topic(AdminClient(brokers))
    reader = Consumer(brokers | {"group.id": f"closer-{run}", "auto.offset.reset": "latest"})
    reader.subscribe([TOPIC])
    while not reader.assignment():
        reader.poll(0.1)

    producer = Producer(brokers)
    paid = open_and_pay(producer, given.inlet, run, given.orders)
    closed = close(reader, run, given.orders - len(paid))
    both = paid & closed.keys()
    twice = [order for order, times in closed.items() if times > 1]
    missing = given.orders - len(paid) - len(closed)
    print(f"{given.orders} orders: {len(paid)} paid, {len(closed)} closed")
    print(f"paid and closed: {len(both)}, closed twice: {len(twice)}, neither: {missing}")
    return int(bool(both or twice or missing))


def make_topic(admin: AdminClient) -> None:
    """Make the topic to which due messages go, unless it is there."""
    if TOPIC not in admin.list_topics(timeout=PATIENCE_S).topics:
        admin.create_topics([NewTopic(TOPIC)])[TOPIC].result()


def open_and_pay(producer: Producer, inlet: str, run: str, count: int) -> set[str]:
    """Open orders over OPENING_S and pay most of them; returns those that were paid."""
    paid: set[str] = set()
    for number in range(count):
        order = f"{run}-{number}"
        headers = {"TIMER_TOPIC": TOPIC, "TIMER_KEY": order}
        # With one key they are in one partition, so the recall follows what it recalls.
        producer.produce(inlet, b"close", order, headers=headers | {"TIMER_DELAY_MS": str(TIMEOUT_MS)})
        if random.random() < PAYING_SHARE:
            producer.produce(inlet, None, order, headers=headers | {"TIMER_RECALL": "true"})
            paid.add(order)
        producer.poll(OPENING_S / count)
    producer.flush()
    return paid


def close(reader: Consumer, run: str, count: int) -> Counter[str]:
    """Close what comes due, until it is so many and another second brought no more."""
    closed: Counter[str] = Counter()
    quiet_s = 0
    while quiet_s < (PATIENCE_S if len(closed) < count else 1):
        message = reader.poll(1.0)
        if message is None:
            quiet_s += 1
            continue
        order = (message.key() or b"").decode()
        if message.error() is None and order.startswith(run):
            closed[order] += 1
            quiet_s = 0
    reader.close()
    return closed


if __name__ == "__main__":
    sys.exit(main())
