"""Listings by state, tag and key: what they show, what they hide, and how much work one page does."""

import random

import pytest

from timerwheel.errors import IllegalCursorError
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.listing import Listing, Times
from timerwheel.model.messages import Outgoing, State
from timerwheel.model.tags import IllegalFilterError, TagFilter
from timerwheel.runtime import listings
from timerwheel.runtime import registers as kept
from timerwheel.runtime.registers import BUSY_BYTES, LOOK_MS
from timerwheel.store.errors import NoSpaceError

ENDED = frozenset({State.DELIVERED, State.RECALLED})
RECALLED = frozenset({State.RECALLED})
DELIVERED = frozenset({State.DELIVERED})


async def send(engine, *keys, delay_ms=60_000, topic="orders", tag=None, dedup_key=None, body=b"x"):
    """Send a message for each value of KEYS; returns their ids."""
    ids = []
    for value in keys:
        properties = {"TIMER_DELAY_MS": str(delay_ms)} | ({"KEYS": value} if value else {})
        if tag is not None:
            properties["TAGS"] = tag
        [receipt] = await engine.sender.send([Outgoing(topic, body, properties, dedup_key=dedup_key)])
        ids.append(receipt.id)
    return ids


def registers(world):
    """The names of the registers on disk."""
    return [name for name in world.files.names(world.directory / "log") if name.endswith(".keys")]


async def whole(engine, limit=100, **conditions):
    """Every page of a listing, and how many there were."""
    found, cursor, pages = [], None, 0
    while True:
        page = await engine.listings.page(Listing(**conditions), limit, cursor)
        found += page.messages
        pages += 1
        cursor = page.cursor
        if cursor is None:
            return found, pages


async def ids(engine, limit=100, **conditions):
    return [view.id for view in (await whole(engine, limit, **conditions))[0]]


async def test_a_key_leads_to_its_messages_in_every_state(world):
    engine = await world.open()
    [recalled, delivered, scheduled] = await send(engine, "4711 a", "b 4711", "4711")
    [other] = await send(engine, "47110", dedup_key="4711", topic="tickets")
    await send(engine, "47", "", "471 1")
    await engine.recalls.recall(recalled)
    await engine.recalls.reschedule(scheduled, {"TIMER_DELAY_MS": "90000"})
    await world.advance(61_000)
    found, _ = await whole(engine, key="4711")
    assert [(view.id, view.state) for view in found] == [
        (recalled, State.RECALLED),
        (delivered, State.DELIVERED),
        (scheduled, State.SCHEDULED),
        (other, State.DELIVERED),
    ]
    for view in found:
        assert view == await engine.messages.get(view.id)
    assert await ids(engine, key="4711", newest=True) == [other, scheduled, delivered, recalled]
    assert await ids(engine, key="4711", topic="orders", states=ENDED) == [recalled, delivered]
    assert await ids(engine, key="4711", limit=1, newest=True) == [other, scheduled, delivered, recalled]
    assert await ids(engine, key="never") == []


async def test_what_was_recalled_with_a_tag_in_a_time_is_listed(world):
    engine = await world.open()
    vip = await send(engine, *[""] * 12, tag="vip")
    plain = await send(engine, *[""] * 5, tag="plain")
    elsewhere = await send(engine, "", tag="vip", topic="tickets")
    times = {}
    for message_id in [*vip[:6], plain[0], *elsewhere]:
        times[message_id] = world.clock.now_ms()
        await engine.recalls.recall(message_id)
        world.clock.advance(1_000)
        await world.roll()
    wanted = {"topic": "orders", "states": RECALLED, "tags": TagFilter.parse("vip")}
    assert await ids(engine, **wanted, limit=2) == vip[:6]
    assert await ids(engine, **wanted, limit=4, newest=True) == vip[:6][::-1]
    span = Times(times[vip[1]], times[vip[4]])
    assert await ids(engine, **wanted, at=span) == vip[1:4]
    assert await ids(engine, **wanted, at=span, newest=True, limit=1) == vip[1:4][::-1]
    assert await ids(engine, topic="orders", states=RECALLED, tags=TagFilter.parse("plain || vip")) == [
        *vip[:6],
        plain[0],
    ]


async def test_all_states_are_listed_with_the_scheduled_messages_first(world):
    engine = await world.open()
    sent = await send(engine, *[""] * 9)
    [now] = await send(engine, "", delay_ms=0)
    await engine.recalls.recall(sent[3])
    assert await ids(engine, topic="orders", limit=4) == [*sent[:3], *sent[4:], now, sent[3]]
    assert await ids(engine, topic="never") == []


async def test_pages_go_on_behind_a_due_time_whose_digits_look_like_an_offset(world):
    engine = await world.open()
    halves = [(await engine.transactions.begin(Outgoing("orders", b"half"))).id for _ in range(3)]
    [now] = await send(engine, "", delay_ms=0)
    assert f"{HALF_DUE_MS:x}".startswith("e")
    assert await ids(engine, topic="orders", limit=1) == [*halves, now]
    assert await ids(engine, topic="orders", limit=1, states=frozenset({State.SCHEDULED})) == halves


async def test_deliveries_of_many_queues_are_listed_in_the_order_in_which_they_came(world):
    engine = await world.open()
    sent = []
    for turn in range(30):
        sent += await send(engine, "", delay_ms=0)
        if turn % 7 == 0:
            await engine.indexer.commit()
    assert await ids(engine, topic="orders", states=DELIVERED, limit=4) == sent
    assert await ids(engine, topic="orders", states=DELIVERED, limit=4, newest=True) == sent[::-1]


async def test_a_message_that_retention_moves_is_still_found_by_its_key(world):
    engine = await world.open(retention_ms=1_000)
    [far] = await send(engine, "4711", delay_ms=10**9)
    for _ in range(3):
        await world.roll()
        await world.advance(60_000)
        await world.retention_turn()
    assert int(far[:16], 16) < engine.core.log.bases[0]
    assert await ids(engine, key="4711") == [far]
    engine = await world.restart()
    assert await ids(engine, key="4711") == [far]
    await world.advance(10**9)
    [view] = (await whole(engine, key="4711"))[0]
    assert (view.id, view.state) == (far, State.DELIVERED)


async def test_purged_and_deleted_messages_are_not_listed(world):
    engine = await world.open()
    await send(engine, "4711", "", delay_ms=0)
    await engine.topic_purges.purge("orders", scheduled=True, delivered=True)
    [kept] = await send(engine, "4711", delay_ms=0)
    assert await ids(engine, key="4711") == [kept]
    assert await ids(engine, topic="orders", states=DELIVERED) == [kept]
    await engine.topic_deletions.delete("orders")
    await world.advance(1_000)
    assert await ids(engine, key="4711") == []
    assert await ids(engine, topic="orders", states=ENDED) == []


async def test_topics_that_a_caller_may_not_see_are_not_listed(world):
    engine = await world.open()
    [mine] = await send(engine, "4711", topic="mine")
    await send(engine, "4711", topic="other")
    page = await engine.listings.page(Listing(key="4711"), visible=lambda topic: topic == "mine")
    assert [view.id for view in page.messages] == [mine]


async def test_the_services_own_topics_are_listed_only_if_they_are_asked_for(world):
    engine = await world.open()
    [mine] = await send(engine, "4711")
    own = Outgoing("%TASK%mail", b"x", {"TIMER_DELAY_MS": "60000", "KEYS": "4711"}, to_reserved=True)
    [task] = await engine.sender.send([own])
    scheduled = frozenset({State.SCHEDULED})
    for tags in (TagFilter(None), TagFilter.parse("vip")):
        assert task.id not in await ids(engine, states=scheduled, tags=tags)
    assert await ids(engine, states=scheduled) == [mine]
    assert await ids(engine, 1, states=scheduled, reserved=True) == [mine, task.id]
    assert await ids(engine, states=scheduled, topic="%TASK%mail") == [task.id]
    assert await ids(engine, key="4711") == [mine, task.id]


async def test_registers_are_written_when_segments_are_sealed_and_removed_with_them(world):
    engine = await world.open(retention_ms=1_000)
    await send(engine, *["4711"] * 3, delay_ms=0)
    await world.roll()
    await world.advance(LOOK_MS)
    log = engine.core.log
    assert registers(world) == [log.register_path(base).name for base in log.bases[:-1]]
    await world.advance(60_000)
    await world.retention_turn()
    assert log.bases[0] > 0
    assert registers(world) == [log.register_path(base).name for base in log.bases[:-1]]
    assert await ids(engine, key="4711") == []


async def test_a_register_is_not_written_of_what_the_disk_cannot_read_now(world):
    engine = await world.open()
    await send(engine, *["4711"] * 3, delay_ms=0)
    [name] = [engine.core.log.path(base).name for base in engine.core.log.bases]
    world.files.unreadable = [(name, 100)]
    await world.roll()
    await world.advance(LOOK_MS)
    assert registers(world) == []
    world.files.unreadable = []
    engine = await world.crash()
    assert len(await ids(engine, key="4711")) == 3
    await world.advance(LOOK_MS)
    assert len(registers(world)) == 1


async def test_registers_wait_for_the_end_of_a_rush_but_not_without_end(world, monkeypatch):
    engine = await world.open()
    log = engine.core.log
    await world.advance(LOOK_MS)
    await send(engine, *["4711"] * 5, body=bytes(BUSY_BYTES // 4))
    await world.advance(LOOK_MS)
    assert registers(world) == []
    assert len(await ids(engine, key="4711")) == 5  # a listing waits for nothing
    await world.advance(LOOK_MS)
    assert registers(world) == [log.register_path(base).name for base in log.bases[:-1]]
    monkeypatch.setattr(kept, "BEHIND_BYTES_MAX", BUSY_BYTES)
    await send(engine, *["4711"] * 5, body=bytes(BUSY_BYTES // 4))
    await world.advance(LOOK_MS)
    for _ in range(5):
        await world.advance(kept.PAUSE_MS)
    assert registers(world) == [log.register_path(base).name for base in log.bases[:-1]]


@pytest.mark.parametrize("harm", ["lost", "cut", "flipped"])
@pytest.mark.parametrize("running", [True, False])
async def test_a_register_that_is_lost_or_damaged_is_built_again(world, harm, running):
    engine = await world.open()
    sent = []
    for _ in range(5):
        sent += (await send(engine, "4711", "other"))[:1]
        await world.roll()
    await world.advance(LOOK_MS)
    before = await ids(engine, key="4711")
    assert before == sent
    if not running:
        await engine.close()
    sound = world.files.contents()
    for name in registers(world):
        path = world.directory / "log" / name
        data = sound[str(path)]
        flipped = data[:90] + bytes([data[90] ^ 1]) + data[91:]
        world.files.replace(path, {"lost": None, "cut": data[:80], "flipped": flipped}[harm])
    if not running:
        engine = await world.open()
    assert await ids(engine, key="4711") == sent
    await world.advance(LOOK_MS)
    after = world.files.contents()
    assert all(after[name] == data for name, data in sound.items() if name.endswith(".keys"))


async def test_while_no_descriptor_is_left_no_register_is_taken_for_damaged(world):
    engine = await world.open()
    sent = []
    for _ in range(3):
        sent += await send(engine, "4711")
        await world.roll()
    assert await ids(engine, key="4711") == sent
    before = registers(world)
    assert before
    world.files.descriptors = 0
    with pytest.raises(NoSpaceError, match="Too many open files"):
        await ids(engine, key="4711")
    assert registers(world) == before
    world.files.descriptors = 1
    assert await ids(engine, key="4711") == sent
    await engine.close()
    engine = await world.open()
    world.files.descriptors = 0
    with pytest.raises(NoSpaceError, match="Too many open files"):
        await ids(engine, key="4711")
    world.files.descriptors = 1
    steps = len(world.files.trace)
    assert await ids(engine, key="4711") == sent
    assert not [step for step in world.files.trace[steps:] if ".keys" in step]


@pytest.mark.parametrize("seed", range(10))
async def test_after_a_crash_everything_acknowledged_is_found_by_its_key(world, seed):
    rng = random.Random(seed)
    engine = await world.open()
    sent = []
    for _ in range(4):
        for _ in range(rng.randint(1, 6)):
            sent += await send(engine, "4711", delay_ms=rng.choice([0, 60_000]))
        if rng.random() < 0.7:
            await world.roll()
        await world.advance(rng.choice([1, LOOK_MS]))
        engine = await world.crash(rng)
        assert await ids(engine, key="4711", limit=7) == sent


async def test_a_register_without_its_segment_is_removed_at_the_start(world):
    engine = await world.open()
    await world.roll()
    await world.advance(LOOK_MS)
    orphan = world.directory / "log" / f"{10**9:020d}.keys"
    await engine.close()
    world.files.write_whole(orphan, b"x")
    engine = await world.open()
    await world.advance(LOOK_MS)
    assert registers(world) == [engine.core.log.register_path(0).name]


async def test_a_file_of_somebody_else_in_the_log_stays_and_stops_nothing(world):
    engine = await world.open()
    await world.roll()
    strangers = [world.directory / "log" / name for name in ("notes.keys", "7.keys", ".keys")]
    await engine.close()
    for path in strangers:
        world.files.write_whole(path, b"x")
    engine = await world.open()
    await send(engine, "4711")
    await world.advance(LOOK_MS)
    assert engine.ready
    assert await ids(engine, key="4711")
    assert {path.name for path in strangers} <= set(registers(world))


async def test_a_page_scans_no_more_than_its_share_and_then_has_a_cursor(world, monkeypatch):
    engine = await world.open()
    sent = []
    for _ in range(6):
        sent += await send(engine, "4711")
        await world.roll()
    monkeypatch.setattr(listings, "SCAN_BYTES_MAX", 1)
    first = await engine.listings.page(Listing(key="4711"))
    assert first.messages == []
    assert first.cursor is not None
    found, pages = await whole(engine, key="4711")
    assert [view.id for view in found] == sent
    assert pages > 3


@pytest.mark.parametrize(
    "conditions", [{"states": frozenset({State.SCHEDULED})}, {"states": ENDED}, {"key": "k"}]
)
async def test_a_page_reads_a_bounded_number_of_records_and_may_be_empty(world, monkeypatch, conditions):
    monkeypatch.setattr(listings, "LOOKED_AT_MAX", 20)
    engine = await world.open()
    for delay_ms in (60_000, 0):
        await engine.sender.send(
            [
                Outgoing("orders", b"x", {"TIMER_DELAY_MS": str(delay_ms), "TAGS": "plain", "KEYS": "k"})
                for _ in range(90)
            ]
        )
    [scheduled] = await send(engine, "k", delay_ms=70_000, tag="vip")
    [delivered] = await send(engine, "k", delay_ms=0, tag="vip")
    wanted = {"topic": "orders", "tags": TagFilter.parse("vip"), **conditions}
    page = await engine.listings.page(Listing(**wanted), 10)
    assert page.messages == []
    assert page.cursor is not None
    found, pages = await whole(engine, 10, **wanted)
    states = conditions.get("states", frozenset(State))
    expected = [
        one for one, state in ((scheduled, State.SCHEDULED), (delivered, State.DELIVERED)) if state in states
    ]
    assert [view.id for view in found] == expected
    assert pages >= 5


async def test_a_damaged_record_keeps_its_place_and_says_so(world):
    engine = await world.open()
    sent = await send(engine, *["k"] * 3, delay_ms=0)
    offset = int(sent[1][:16], 16)
    path = engine.core.log.path(0)
    data = bytearray(world.files.contents()[str(path)])
    data[offset + 85] ^= 1
    world.files.replace(path, bytes(data))
    found, _ = await whole(engine, topic="orders", states=DELIVERED)
    assert [view.problem is None for view in found] == [True, False, True]
    assert await ids(engine, key="k") == [sent[0], sent[2]]


@pytest.mark.parametrize(
    "conditions",
    [
        {},
        {"states": ENDED},
        {"key": ""},
        {"key": "k" * 20_000},
        {"topic": "orders", "newest": True},
    ],
)
async def test_a_listing_that_cannot_be_bounded_is_refused(world, conditions):
    engine = await world.open()
    with pytest.raises(IllegalFilterError):
        await engine.listings.page(Listing(**conditions))


@pytest.mark.parametrize("cursor", ["", "e", "k", "e1", "xyz", "1.2", "k12345678901234567"])
async def test_a_cursor_of_another_listing_is_refused(world, cursor):
    engine = await world.open()
    with pytest.raises(IllegalCursorError):
        await engine.listings.page(Listing(key="k"), cursor=cursor)


@pytest.mark.parametrize("cursor", ["e0", "effffffffffffffff"])
@pytest.mark.parametrize("topic", [None, "orders"])
async def test_a_listing_of_scheduled_messages_takes_no_cursor_of_ended_ones(world, cursor, topic):
    engine = await world.open()
    await send(engine, "k")
    scheduled = frozenset({State.SCHEDULED})
    with pytest.raises(IllegalCursorError):
        await engine.listings.page(Listing(topic=topic, states=scheduled), cursor=cursor)
