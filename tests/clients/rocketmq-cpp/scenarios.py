"""RocketMQ's C++ client, through its binding for Python: prints a line of JSON for each scenario.

Nothing is shut down, and no client ends before the process: it crashes if its callbacks still run.
"""

import json
import os
import queue
import signal
import sys
import time
import traceback

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer

ADDRESS, TOKEN, SCENARIOS = sys.argv[1], sys.argv[2], sys.argv[3:]
WAIT_S = 120
FIRST_RETRY_S = 2
KEPT = []


def connected(client):
    KEPT.append(client)
    client.set_namesrv_addr(ADDRESS)
    if TOKEN != "-":
        client.set_session_credentials(TOKEN, "unused", "")
    return client


def producer(name):
    made = connected(Producer(name))
    made.start()
    return made


def message(topic, body, tags="", keys="", level=0, **properties):
    made = Message(topic)
    made.set_body(body)
    if tags:
        made.set_tags(tags)
    if keys:
        made.set_keys(keys)
    if level:
        made.set_delay_time_level(level)
    for name, value in properties.items():
        made.set_property(name, value)
    return made


class Consumer:
    """A push consumer that fails so many times at first."""

    def __init__(self, topic, group, tags="*", failures=0, *, orderly=False):
        self.found = queue.Queue()
        self.failures = failures
        consumer = connected(PushConsumer(group, orderly))
        consumer.subscribe(topic, self.take, tags)
        consumer.start()

    def take(self, found):
        shown = (found.body.decode(), found.tags.decode(), found.keys.decode(), found.reconsume_times)
        self.found.put((*shown, time.time()))
        if self.failures:
            self.failures -= 1
            raise RuntimeError("fails, as it was told to")

    def next(self):
        return self.found.get(timeout=WAIT_S)

    def bodies(self, count):
        return [self.next()[0] for _ in range(count)]


def send():
    sender = producer("cpp-send")
    sent = sender.send_sync(message("cpp-send", "one", "red", "k1", colour="blue"))
    assert sent.status == 0, sent
    assert sent.msg_id
    sender.send_oneway(message("cpp-send", "two"))
    reader = Consumer("cpp-send", "cpp-send-readers")
    found = sorted(reader.next()[:3] for _ in range(2))
    assert found == [("one", "red", "k1"), ("two", "", "")], found


def delays():
    sender = producer("cpp-delays")
    began_s = time.time()
    sender.send_sync(message("cpp-delays", "later", level=2))
    sender.send_sync(message("cpp-delays", "soon", TIMER_DELAY_MS="1500"))
    reader = Consumer("cpp-delays", "cpp-delays-readers")
    # A consumer that takes long to start finds both, and its queues have no order among each other.
    after_s = {body: at_s - began_s for body, *_, at_s in (reader.next(), reader.next())}
    assert after_s.keys() == {"soon", "later"}, after_s
    assert after_s["soon"] >= 1.5, after_s
    assert after_s["later"] >= 5, after_s


def batch():
    sender = producer("cpp-batch")
    sender.send_sync(message("cpp-batch", "first"))
    sender.send_batch([message("cpp-batch", str(number)) for number in range(10)])
    found = sorted(Consumer("cpp-batch", "cpp-batch-readers").bodies(11))
    assert found == sorted(["first", *map(str, range(10))]), found


def orderly():
    sender = producer("cpp-orderly")
    for number in range(10):
        sender.send_orderly(message("cpp-orderly", str(number)), 1)
    found = Consumer("cpp-orderly", "cpp-orderly-readers", orderly=True).bodies(10)
    assert found == list(map(str, range(10))), found


def tags():
    sender = producer("cpp-tags")
    for tag in ("red", "green", "blue"):
        sender.send_sync(message("cpp-tags", tag, tag))
    found = sorted(Consumer("cpp-tags", "cpp-tags-readers", "red || blue").bodies(2))
    assert found == ["blue", "red"], found


def retry():
    producer("cpp-retry").send_sync(message("cpp-retry", "again"))
    reader = Consumer("cpp-retry", "cpp-retry-readers", failures=1)
    (first, *_, first_s), (second, _, _, tries, second_s) = reader.next(), reader.next()
    assert (first, second, tries) == ("again", "again", 1), (first, second, tries)
    assert second_s - first_s >= FIRST_RETRY_S, second_s - first_s


def pull():
    sender = producer("cpp-pull")
    for number in range(5):
        sender.send_sync(message("cpp-pull", str(number)))
    reader = connected(PullConsumer("cpp-pull-readers"))
    reader.start()
    found = sorted(one.body.decode() for one in reader.pull("cpp-pull"))
    assert found == list("01234"), found


def refused():
    said = "nothing"
    try:
        producer("cpp-refused").send_sync(message("cpp-refused", "forbidden"))
    except Exception as error:  # noqa: BLE001 - the binding has one type for each call
        said = str(error)
    assert "No route info" in said, said  # it asks for the route first, and keeps the reason to itself


for scenario in SCENARIOS:
    problem = ""
    try:
        globals()[scenario]()
    except Exception:  # noqa: BLE001 - whatever it is goes to the test
        problem = traceback.format_exc()
    print(json.dumps({"scenario": scenario, "problem": problem}), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
