"""RocketMQ's Python client, driven by lines of JSON: see tests/harness/grpc_clients.py."""

import json
import sys
import threading
import time

from rocketmq.grpc_protocol import TransactionResolution
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import ConsumeResult, MessageListener, PushConsumer, SimpleConsumer
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer, TransactionChecker

ENDPOINT, ACCESS_KEY, TLS = sys.argv[1], sys.argv[2], sys.argv[3] == "tls"
SECRET_KEY = "any" if ACCESS_KEY else ""
OUTCOMES = {"UNKNOWN": "TRANSACTION_RESOLUTION_UNSPECIFIED"}


class Checker(TransactionChecker):
    def __init__(self, outcome):
        self.outcome = TransactionResolution.Value(OUTCOMES.get(outcome, outcome))
        self.checked = []
        self.arrived = threading.Condition()

    def check(self, message):
        with self.arrived:
            self.checked.append(shown(message))
            self.arrived.notify_all()
        return self.outcome


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
        self.checker = None
        self.begun = {}

    def begin(self, topic, body, outcome="UNKNOWN"):
        if self.checker is None:
            self.checker = Checker(outcome)
            self.transactor = Producer(configuration(), [topic], self.checker, tls_enable=TLS)
            self.transactor.startup()
        message = Message()
        message.topic, message.body = topic, body.encode()
        transaction = self.transactor.begin_transaction()
        receipt = self.transactor.send(message, transaction)
        self.begun[receipt.message_id] = transaction
        return {"id": receipt.message_id, "transaction": receipt.transaction_id}

    def end(self, message_id, how):
        transaction = self.begun[message_id]
        (transaction.commit if how == "COMMIT" else transaction.rollback)()
        return {}

    def checked(self, count):
        with self.checker.arrived:
            self.checker.arrived.wait_for(lambda: len(self.checker.checked) >= count)
            return {"messages": list(self.checker.checked)}

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
