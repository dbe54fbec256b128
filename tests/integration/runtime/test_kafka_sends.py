"""Records of the inlet in the engine: those that are read quickly are stored as those read in full."""

import msgspec

from timerwheel.kafka.names import KafkaTopics
from timerwheel.kafka.translation import Taken, in_full, usual_message

TOPICS = KafkaTopics("timers")
KEYS = [None, b"", *(b"k%d" % number for number in range(20))]


def taken(key, due_ms):
    headers = [("source", b"web"), ("TIMER_TOPIC", b"orders.new"), ("TIMER_DELIVER_MS", b"%d" % due_ms)]
    return Taken("timers", 0, 1, key, b"body", headers)


def shared(view):
    """What does not depend on a message's place."""
    properties = {name: value for name, value in view.properties.items() if name != "REAL_QID"}
    return msgspec.structs.replace(view, id="", queue=0, queue_offset=0, properties=properties)


async def test_a_usual_record_has_the_queue_and_the_properties_of_one_read_in_full(world):
    engine = await world.open(queues_per_topic=4)
    now_ms = engine.clock.now_ms()
    records = [taken(key, due_ms) for key in KEYS for due_ms in (now_ms - 1, now_ms, now_ms + 5_000)]
    quick, full = (
        [read(record, TOPICS, engine.sender.rules) for record in records] for read in (usual_message, in_full)
    )
    views = []
    for messages in (quick, full):
        receipts = await engine.sender.send(messages)
        views.append([await engine.messages.get(receipt.id) for receipt in receipts])
    for one, other, message, record in zip(*views, quick, records, strict=True):
        assert one.envelope == other.envelope != ""
        if record.key is not None:  # those without take turns
            assert engine.sender.queue_of(message) == one.queue == other.queue
        assert shared(one) == shared(other)
    assert {view.queue for view in views[0]} == {0, 1, 2, 3}
