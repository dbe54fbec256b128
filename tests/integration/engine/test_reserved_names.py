"""Names that clients may not use: topics, properties and keys of the service. Old logs may hold them."""

import orjson
import pytest

from tests.harness import golden
from tests.harness.drive import settle
from tests.integration.index.test_dedup import HOUR_MS, STARTS, keyed, refusal_of, send_one, start_again
from tests.integration.offline.test_golden import VERSIONS, copied, expected_of, opened, room  # noqa: F401 - a fixture
from timerwheel.errors import AdmissionError, RefusedError
from timerwheel.groups.config import GroupConfig
from timerwheel.model.admission import HASH_PROPERTY, KEY_PROPERTY
from timerwheel.model.messages import Outgoing, State
from timerwheel.schedules.recurrence import Recurrence
from timerwheel.schedules.spec import ScheduleSpec, run_key
from timerwheel.state.dedup_key import content_of
from timerwheel.store.record import FLAG_KEYED, Kind, crc_of, encode

TOPICS = ("%RETRY%g", "%RETRY%", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_x", "Rmq_Sys_", "TBW102", "%DLQ%g", "%DLQ%")
NEAR_TOPICS = ("RETRY", "a%RETRY%", "rmq-sys_x", "TBW1024", "tbw102", "SCHEDULE_JOBS", "DLQ_a", "%DLQ")
PROPERTIES = ("SCHEDULE_NAME", "SCHEDULE_RUN_MS", "SCHEDULE_", "DLQ_ORIGIN_TOPIC", "DLQ_x")
NEAR_PROPERTIES = ("SCHEDULE", "schedule_name", "DLQ", "dlq_x", "MY_SCHEDULE_NAME")
RUN_KEY = "schedule:n:1:2"


def hourly(**fields):
    spec = {"topic": "orders", "body": b"tick", "recurrence": Recurrence(every_ms=HOUR_MS), **fields}
    return ScheduleSpec(**spec)


async def planted(world, topic, key=None, delay_ms=HOUR_MS, **properties):
    """A message as a program from before the names were reserved stored it; returns its id."""
    engine, now_ms = world.engine, world.clock.now_ms()
    flags = 0
    if key is not None:
        flags = FLAG_KEYED
        content = content_of(Outgoing(topic, b"old", properties)).hex()
        properties = {**properties, KEY_PROPERTY: key, HASH_PROPERTY: content}
    kind = Kind.TIMER if delay_ms else Kind.MESSAGE
    record = encode(
        *(kind, topic.encode(), orjson.dumps(properties), b"old"),
        store_ms=now_ms,
        due_ms=now_ms + delay_ms,
        enqueue_ms=now_ms,
        flags=flags,
    )
    unit = [record]
    offset = await engine.core.commit.submit(unit, [topic])
    await settle(engine)
    return engine.core.ids.encode(offset, crc_of(unit[0]))


@pytest.mark.parametrize("topic", TOPICS)
async def test_a_client_names_no_topic_of_the_service(world, topic):
    engine = await world.open()
    tail = engine.core.log.tail
    assert await refusal_of(world, Outgoing(topic, b"x")) == "system_topic"
    assert await refusal_of(world, keyed(topic=topic)) == "system_topic"
    with pytest.raises(RefusedError) as refused:
        await engine.sender.send([Outgoing("orders", b"x"), Outgoing(topic, b"x", after_ms=5)])
    assert [(fault.index, fault.code) for fault in refused.value.faults] == [(1, "system_topic")]
    with pytest.raises(RefusedError) as refused:
        await engine.schedules.put("n", hourly(topic=topic))
    assert refused.value.faults[0].code == "system_topic"
    assert engine.core.log.tail == tail


@pytest.mark.parametrize(
    "topic", [name for name in TOPICS if name != "%RETRY%g" and not name.startswith("%DLQ%")]
)
async def test_a_client_makes_no_group_and_no_order_on_a_topic_of_the_service(world, topic):
    engine = await world.open()
    tail = engine.core.log.tail
    for call in (
        engine.groups.put(topic, "g", GroupConfig()),
        engine.groups.receive(topic, "g"),
        engine.topics.change(topic, ordered=True),
    ):
        with pytest.raises(AdmissionError) as refused:
            await call
        assert refused.value.code == "system_topic"
    assert engine.core.log.tail == tail


@pytest.mark.parametrize("group", ["TBW102", "rmq_sys_workers"])
async def test_dead_letters_of_a_group_with_such_a_name_can_be_consumed_before_there_are_any(world, group):
    engine = await world.open()
    await engine.groups.put(f"%DLQ%{group}", "undertaker", GroupConfig())
    assert await engine.groups.receive(f"%DLQ%{group}", "undertaker") == []


async def test_the_retries_of_a_group_can_be_consumed_before_there_are_any(world):
    engine = await world.open()
    await engine.groups.put("%RETRY%workers", "workers", GroupConfig(kind="offsets"))
    await engine.topics.change("%RETRY%workers", queues=1)
    assert engine.groups.offsets.committed("%RETRY%workers", "workers", 0) is None
    assert (await engine.queues.read_queue("%RETRY%workers", 0, 0, 10)).messages == []


@pytest.mark.parametrize("name", PROPERTIES)
async def test_a_client_sets_no_property_of_the_service(world, name):
    engine = await world.open()
    for value in ("", "1"):
        assert (
            await refusal_of(world, Outgoing("orders", b"x", {"a": "b", name: value})) == "reserved_property"
        )
    receipt = await send_one(world, keyed())
    with pytest.raises(AdmissionError) as refused:
        await engine.recalls.reschedule(receipt.id, {"TIMER_DELAY_MS": "5", name: "1"})
    assert refused.value.code == "reserved_property"
    if name.startswith("DLQ_"):
        with pytest.raises(RefusedError) as caught:
            await engine.schedules.put("n", hourly(properties={name: "1"}))
        assert caught.value.faults[0].code == "reserved_property"


async def test_names_that_are_merely_alike_are_the_clients_own(world):
    engine = await world.open()
    await engine.sender.send([Outgoing(topic, b"x") for topic in NEAR_TOPICS])
    assert [[one.topic for one in await world.delivered(topic)] for topic in NEAR_TOPICS] == [
        [topic] for topic in NEAR_TOPICS
    ]
    await engine.sender.send([Outgoing("named", b"x", {name: "1"}) for name in NEAR_PROPERTIES])
    named = [one.properties for one in await world.delivered("named")]
    assert named == [{name: "1"} for name in NEAR_PROPERTIES]
    keys = ("schedule", "Schedule:n:1:2", "my-schedule:n:1:2", "schedule n")
    receipts = await engine.sender.send([keyed(key) for key in keys])
    again = await engine.sender.send([keyed(key) for key in keys])
    assert [(one.id, one.duplicate) for one in again] == [(one.id, True) for one in receipts]


@pytest.mark.parametrize("key", [RUN_KEY, "schedule:", "schedule:mine"])
async def test_a_client_takes_no_key_of_a_schedule(world, key):
    engine = await world.open()
    assert await refusal_of(world, keyed(key)) == "reserved_key"
    with pytest.raises(RefusedError) as refused:
        await engine.sender.send([keyed(), Outgoing("orders", b"x"), keyed(key)])
    assert [(fault.index, fault.code) for fault in refused.value.faults] == [(2, "reserved_key")]


@pytest.mark.parametrize("start", STARTS)
async def test_a_key_of_a_client_never_stands_for_a_run(world, start):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    moments = [start_ms + n * HOUR_MS for n in range(1, 4)]
    old = {await planted(world, "orders", run_key("n", start_ms, run_ms)) for run_ms in moments}
    await start_again(world, start)
    engine = world.engine
    await engine.schedules.put("n", hourly())
    assert (await engine.schedules.get("n")).generation == start_ms
    for _ in range(3):
        await start_again(world, start)
        await world.advance(HOUR_MS)
    views = await world.delivered()
    runs = [view for view in views if view.id not in old]
    assert [int(view.properties["SCHEDULE_RUN_MS"]) for view in runs] == moments
    assert old < {view.id for view in views}
    for view in views:
        assert not view.properties.keys() & {HASH_PROPERTY, "DEDUP_DOMAIN"}


@pytest.mark.parametrize("start", STARTS)
async def test_a_schedule_that_ends_recalls_its_runs_and_not_what_a_client_named_alike(world, start):
    engine = await world.open()
    start_ms = world.clock.now_ms()
    old = await planted(world, "orders", run_key("n", start_ms, start_ms + HOUR_MS))
    await engine.schedules.put("n", hourly())
    await start_again(world, start)
    await world.engine.schedules.delete("n")
    assert await world.pending_ids() == [old]


@pytest.mark.parametrize("start", STARTS)
async def test_a_key_of_before_it_was_reserved_still_names_its_message(world, start):
    await world.open()
    old = await planted(world, "orders", RUN_KEY)
    await start_again(world, start)
    engine = world.engine
    assert await engine.keys.id_of("orders", RUN_KEY) == old
    assert (await engine.recalls.reschedule(old, {"TIMER_DELAY_MS": "5000"})).id == old
    view = await engine.recalls.recall_key("orders", RUN_KEY)
    assert (view.id, view.state) == (old, State.RECALLED)


@pytest.mark.parametrize("start", STARTS)
async def test_a_topic_of_before_its_name_was_reserved_is_read_and_consumed_and_not_written(world, start):
    await world.open()
    old = [await planted(world, topic, delay_ms=0, DLQ_x="1", DEDUP_DOMAIN="9" * 99) for topic in TOPICS[:4]]
    waits = await planted(world, "TBW102", "a key", SCHEDULE_NAME="n", DEDUP_DOMAIN="9" * 99)
    await start_again(world, start)
    engine = world.engine
    for topic, message_id in zip(TOPICS, old, strict=False):
        assert await world.delivered_ids(topic) == [message_id]
        assert await refusal_of(world, Outgoing(topic, b"x")) == "system_topic"
        await engine.groups.put(topic, "g", GroupConfig())
        [delivery] = await engine.groups.receive(topic, "g")
        assert delivery.message.id == message_id
        assert (await engine.groups.ack(topic, "g", [delivery.receipt]))[0].ok
    assert await engine.keys.id_of("TBW102", "a key") == waits
    await world.advance(HOUR_MS)
    assert await world.delivered_ids("TBW102") == [waits]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
async def test_runs_of_an_older_program_end_with_their_schedule(version, room):  # noqa: F811 - the fixture
    expected = expected_of(version)
    copied(version, room / "d")
    world = await opened(room / "d", expected)
    runs = [one.id for one in (await world.engine.messages.pending("reports")).messages]
    assert runs
    await world.engine.schedules.delete("daily")
    assert (await world.engine.messages.pending("reports")).messages == []
    assert (await golden.told(world))["schedules"] == []
    await world.engine.close()
