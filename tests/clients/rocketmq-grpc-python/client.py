"""RocketMQ's Python client, driven by lines of JSON: see tests/harness/grpc_clients.py."""

import json
import sys
import threading
import time

from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import ConsumeResult, MessageListener, PushConsumer, SimpleConsumer
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer

ENDPOINT, ACCESS_KEY, TLS = sys.argv[1], sys.argv[2], sys.argv[3] == "tls"
SECRET_KEY = "any" if ACCESS_KEY else ""


class Listener(MessageListener):
    def __init__(self, failures):
        self.failures = failures
        self.consumed = []
        self.arrived = threading.Condition()

    def consume(self, message):
        with self.arrived:
            self.consumed.append(shown(message))
            self.arrived.notify_all()
            fails = len(self.consumed) <= self.failures
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


def configuration():
    return ClientConfiguration(ENDPOINT, Credentials(ACCESS_KEY, SECRET_KEY))


def shown(message):
    return {
        "id": message.message_id,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "group": message.message_group,
        "attempt": message.delivery_attempt,
        "properties": message.properties,
        "corrupted": message.corrupted,
    }


class Driver:
    def __init__(self):
        self.producer = None
        self.consumers = {}
        self.views = {}
        self.listeners = {}

    def send(self, topic, body, *, tag=None, keys=(), group=None, delay_ms=0, properties=None):
        if self.producer is None:
            self.producer = Producer(configuration(), tls_enable=TLS)
            self.producer.startup()
        message = Message()
        message.topic, message.body = topic, body.encode()
        if tag:
            message.tag = tag
        for key in keys:
            message.keys = key
        if group:
            message.message_group = group
        if delay_ms:
            # This client sends whole seconds, rounded down.
            message.delivery_timestamp = -(-int(time.time() * 1000 + delay_ms) // 1000)
        for name, value in (properties or {}).items():
            message.add_property(name, value)
        receipt = self.producer.send(message)
        return {"id": receipt.message_id, "handle": receipt.recall_handle}

    def recall(self, topic, handle):
        return {"id": self.producer.recall_message(topic, handle)}

    def receive(self, topic, group, tags="*", count=32, invisible_ms=15_000, wait_ms=5_000):
        consumer = self.consumers.get((topic, group, tags))
        if consumer is None:
            consumer = self.consumers[topic, group, tags] = SimpleConsumer(
                configuration(), group, {topic: FilterExpression(tags)}, await_duration=5, tls_enable=TLS
            )
            consumer.startup()
        consumer.await_duration = wait_ms // 1000
        found = consumer.receive(count, invisible_ms // 1000) or []
        self.views.update({one.message_id: (consumer, one) for one in found})
        return {"messages": [shown(one) for one in found]}

    def ack(self, message_id):
        consumer, message = self.views[message_id]
        consumer.ack(message)
        return {}

    def hide(self, message_id, ms):
        consumer, message = self.views[message_id]
        consumer.change_invisible_duration(message, ms // 1000)
        return {}

    def push(self, topic, group, tags="*", failures=0):
        listener = self.listeners[topic] = Listener(failures)
        consumer = PushConsumer(
            configuration(), group, listener, {topic: FilterExpression(tags)}, tls_enable=TLS
        )
        consumer.startup()
        return {}

    def consumed(self, topic, count):
        listener = self.listeners[topic]
        with listener.arrived:
            listener.arrived.wait_for(lambda: len(listener.consumed) >= count)
            return {"messages": list(listener.consumed)}


driver = Driver()
for line in sys.stdin:
    command = json.loads(line)
    try:
        answer = getattr(driver, command.pop("do"))(**command)
    except Exception as error:  # noqa: BLE001 - whatever it is goes to the test
        code = getattr(error, "code", None)
        answer = {"error": code if isinstance(code, int) else 0, "detail": f"{type(error).__name__}: {error}"}
    print("@" + json.dumps(answer), flush=True)
