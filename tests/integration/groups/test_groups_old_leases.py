"""Logs of earlier versions, which kept leases in the log: they go on, and the receipts given out are good."""

import asyncio
from hashlib import blake2s

import orjson
import pytest

from tests.harness import old_leases
from tests.harness.clock import ManualClock
from tests.harness.consumers import bodies, gated, items, receive, send
from tests.harness.drive import settle
from tests.harness.gated_threads import spin
from tests.harness.group_checks import check_groups
from tests.harness.group_log import LOG_ID, GroupLog
from timerwheel.groups.receipts import Receipts
from timerwheel.state.config_table import ConfigTable
from timerwheel.store.files import DiskFiles

NAME = b"orders/g"
LEASE_MS = 10_000
LANE = int.from_bytes(blake2s(b"x", digest_size=8).digest(), "big") >> 1 | 1
HOWS = [None, "restart", "crash", "lose_index"]


def receipt_of(root):
    return Receipts(LOG_ID, NAME.decode(), 0).encode_root(root)


async def opened(world, log):
    log.close()
    world.files, world.clock = DiskFiles(), ManualClock(log.now_ms)
    await world.open()


async def start_again(world, how):
    if how is not None:
        await getattr(world, how)()
    check_groups(world.engine)


async def ack(world, *receipts):
    return [one.code for one in await world.engine.groups.ack("orders", "g", receipts)]


async def nack(world, *receipts, **options):
    return [one.code for one in await world.engine.groups.nack("orders", "g", receipts, **options)]


async def extend(world, *receipts, invisible_ms):
    return [one.code for one in await world.engine.groups.extend("orders", "g", receipts, invisible_ms)]


def counts(world):
    info = world.engine.groups.info("orders", "g")
    return info.in_flight, info.waiting, info.ready, info.parked


async def old_log(world, leases=4, **config):
    """Of the messages a to f so many are leased in the log; returns their receipts and the log's world."""
    log = GroupLog(world.directory, 4096)
    log.group(NAME.decode(), **config)
    for body in "abcdef":
        log.send("orders", body=body.encode())
    due_ms = log.now_ms + LEASE_MS
    roots = [log.store(old_leases.lease(NAME, (0, n), log.now_ms, due_ms))[0] for n in range(leases)]
    await opened(world, log)
    return [receipt_of(root) for root in roots]


@pytest.mark.parametrize("how", HOWS)
async def test_what_is_leased_in_the_log_stays_away_until_its_timer_fires(world, how):
    await old_log(world)
    await start_again(world, how)
    assert counts(world) == (4, 0, 0, 0)
    assert bodies(await receive(world)) == ["e", "f"]
    await world.advance(LEASE_MS - 1)
    assert counts(world)[0] == 6
    await world.advance(1)
    assert counts(world) == (2, 0, 4, 0)
    again = await receive(world)
    assert [(d.message.body, d.attempt) for d in again] == [(body.encode(), 2) for body in "abcd"]


@pytest.mark.parametrize("how", HOWS)
async def test_an_old_receipt_acknowledges_gives_back_and_extends(world, how):
    a, b, c, d = await old_log(world)
    await start_again(world, how)
    assert await ack(world, a) == [None]
    assert await extend(world, b, invisible_ms=30_000) == [None]
    assert await nack(world, c, delay_ms=2_000, reason="HTTP 500") == [None]
    assert counts(world) == (2, 1, 0, 0)
    for call in (ack(world, c), nack(world, c), extend(world, c, invisible_ms=1), nack(world, a)):
        assert await call == ["receipt_ended"]
    assert await ack(world, a) == [None]  # repeated
    await start_again(world, how)
    assert bodies(await receive(world, invisible_ms=100_000)) == ["e", "f"]
    await world.advance(2_000)
    [again] = await receive(world, invisible_ms=100_000)
    assert (again.message.body, again.attempt) == (b"c", 2)
    await world.advance(LEASE_MS - 2_000)
    [again] = await receive(world, invisible_ms=100_000)
    assert (again.message.body, again.attempt) == (b"d", 2)
    assert await ack(world, d) == ["receipt_ended"]
    assert await ack(world, b) == [None]
    assert b"b" not in {d.message.body for d in await receive(world)}
    check_groups(world.engine)


@pytest.mark.parametrize("how", HOWS)
async def test_an_old_receipt_is_good_for_a_late_acknowledgement_until_the_message_is_received_again(
    world, how
):
    a, b, *_ = await old_log(world)
    await world.advance(LEASE_MS)
    await start_again(world, how)
    assert await nack(world, a) == ["receipt_ended"]
    assert await extend(world, a, invisible_ms=1_000) == ["receipt_ended"]
    assert await ack(world, a) == [None]
    got = await receive(world)
    assert bodies(got) == ["b", "c", "d", "e", "f"]
    assert await ack(world, b) == ["receipt_ended"]
    await start_again(world, how)
    if how in ("crash", "lose_index"):  # and again once it is visible because its lease was lost
        assert await ack(world, b) == [None]
        assert bodies(await receive(world)) == ["c", "d", "e", "f"]
    else:
        assert await ack(world, b) == ["receipt_ended"]
        assert await ack(world, *(d.receipt for d in got)) == [None] * 5
        await settle(world.engine)
        assert not items(world)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("end", ["time", "nack"])
async def test_the_last_attempt_of_an_old_lease_ends_among_the_dead_letters(world, how, end):
    a, b, *_ = await old_log(world, leases=2, max_attempts=1)
    await start_again(world, how)
    if end == "time":
        await world.advance(LEASE_MS)
    else:
        assert await nack(world, a, b, reason="no use") == [None, None]
    await start_again(world, how)
    letters = (await world.engine.groups.dead.page("g")).letters
    assert [(one.message.body, one.attempts) for one in letters] == [(b"a", 1), (b"b", 1)]
    why = "no use" if end == "nack" else "attempt 1 was not acknowledged in time"
    assert {one.reason for one in letters} == {why}
    assert not items(world)
    assert await ack(world, a) == ["receipt_ended"]
    assert world.engine.core.state.leases == 0


async def test_an_old_lease_whose_timer_fires_while_it_is_given_up_is_given_up_once(world):
    [a] = await old_log(world, leases=1, max_attempts=1)
    threads = gated(world)
    threads.reads.clear()
    giving_up = asyncio.create_task(nack(world, a, reason="no use"))
    await spin()
    threads.writes.clear()
    world.clock.advance(LEASE_MS)
    await spin()
    assert len(world.engine.core.in_flight)  # the timer is being fired
    threads.reads.set()
    await spin()
    threads.writes.set()
    assert await giving_up == [None]
    await world.advance(0)
    [letter] = (await world.engine.groups.dead.page("g")).letters
    assert letter.message.body == b"a"
    assert world.engine.core.state.leases == 0
    check_groups(world.engine)


@pytest.mark.parametrize("how", HOWS)
async def test_the_group_of_an_old_log_is_rewound_and_its_old_receipts_end(world, how):
    receipts = await old_log(world)
    await world.engine.groups.rewind("orders", "g", to="head")
    await start_again(world, how)
    assert world.engine.core.state.leases == 0
    assert await ack(world, *receipts) == ["receipt_ended"] * 4
    assert bodies(await receive(world)) == list("abcdef")


async def test_an_old_receipt_of_another_group_or_log_is_none(world):
    [a, *_] = await old_log(world)
    root = int(a[:16], 16)
    strange = [
        Receipts(LOG_ID, "orders/h", 0).encode_root(root),
        Receipts(LOG_ID[::-1], "orders/g", 0).encode_root(root),
        a[:-1] + ("0" if a[-1] != "0" else "1"),
    ]
    assert await ack(world, *strange) == ["illegal_receipt"] * 3


# ---------------------------------------------------------------------- lanes


async def old_lane(world):
    """x1 is leased in the log, x2 and x3 parked behind it; x4 and y1 came later. Returns x1's receipt."""
    log = GroupLog(world.directory, 4096)
    log.put(ConfigTable.TOPIC, "orders", {"ordered": True})
    log.group(NAME.decode())
    key = orjson.dumps({"__SHARDINGKEY": "x"})
    for body in (b"x1", b"x2", b"x3"):
        log.send("orders", body=body, properties=key)
    hold = (old_leases.hold(NAME, (0, n), log.now_ms, LANE) for n in range(3))
    log.store(next(hold))
    [root] = log.store(old_leases.lease(NAME, (0, 0), log.now_ms, log.now_ms + LEASE_MS))
    log.store(*hold)
    log.send("orders", body=b"x4", properties=key)
    log.send("orders", body=b"y1", properties=orjson.dumps({"__SHARDINGKEY": "y"}))
    await opened(world, log)
    return receipt_of(root)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("first", ["ack", "late ack", "time", "nack"])
async def test_an_old_lane_goes_on_in_order_with_new_messages_of_its_key_behind_it(world, how, first):
    x1 = await old_lane(world)
    await start_again(world, how)
    [y1] = await receive(world)
    assert bodies([y1]) == ["y1"]
    assert await ack(world, y1.receipt) == [None]
    assert await receive(world) == []
    info = world.engine.groups.info("orders", "g")
    assert (info.in_flight, info.parked, info.lag) == (1, 3, 0)
    await send(world, "x5", __SHARDINGKEY="x")
    assert await receive(world) == []
    expected = ["x2", "x3", "x4", "x5"]
    if first == "ack":
        assert await ack(world, x1) == [None]
    elif first == "nack":
        assert await nack(world, x1, delay_ms=1_000) == [None]
        assert await receive(world) == []
        await world.advance(1_000)
        expected = ["x1", *expected]
    else:
        await world.advance(LEASE_MS)
        if first == "late ack":
            assert await ack(world, x1) == [None]
        else:
            expected = ["x1", *expected]
    found = []
    while got := await receive(world):
        assert len(got) == 1
        await start_again(world, how)
        if how in ("crash", "lose_index"):  # it is visible again, and nothing behind it
            assert bodies(await receive(world)) == bodies(got)
            await start_again(world, how)
        assert await ack(world, got[0].receipt) == [None]
        await start_again(world, how)
        found += bodies(got)
    assert found == expected
    assert not items(world)
    assert counts(world) == (0, 0, 0, 0)


@pytest.mark.parametrize("how", HOWS)
async def test_in_an_old_lane_a_message_that_fails_is_not_overtaken(world, how):
    x1 = await old_lane(world)
    assert await ack(world, x1) == [None]
    got = await receive(world)
    assert sorted(bodies(got)) == ["x2", "y1"]
    receipts = {d.message.body: d.receipt for d in got}
    assert await ack(world, receipts[b"y1"]) == [None]
    assert await nack(world, receipts[b"x2"], delay_ms=5_000) == [None]
    await start_again(world, how)
    assert await receive(world) == []
    await world.advance(5_000)
    assert [(d.message.body, d.attempt) for d in await receive(world)] == [(b"x2", 2)]
