"""Leases are extended while they are worked on: service and client under one manual clock."""

import asyncio

import pytest
from aiohttp.test_utils import unused_port

from tests.harness.apps import app_of
from tests.harness.clock import ManualClock
from tests.harness.served import Served
from timerwheel.client import Client, Exponential, GroupConfig, LeaseEndedError
from timerwheel.client.group import RETRY_MS
from timerwheel.engine import Engine
from timerwheel.settings import Settings

LEASE_MS = 30_000


@pytest.fixture
async def clock():
    return ManualClock()


@pytest.fixture
async def client(tmp_path, clock):
    engine = await Engine.open(
        Settings(data=tmp_path / "data", disk_reserve_bytes=0, redelivery_delay_ms=0), clock
    )
    server = Served(app_of(engine))
    await server.start_server()
    async with Client(str(server.make_url("/")), clock=clock) as client:
        yield client
    await server.close()
    await engine.close()


@pytest.fixture
async def group(client):
    """A group that reports in `extended` each extension of its leases when it is done."""
    group = client.group("t", "g")
    extend, group.extended = group.extend, asyncio.Queue()

    async def extend_and_report(receipts, invisible_ms):
        results = await extend(receipts, invisible_ms)
        group.extended.put_nowait(len(results))
        return results

    group.extend = extend_and_report
    await group.put(GroupConfig(invisible_ms=LEASE_MS, backoff=Exponential(initial_ms=0)))
    return group


async def _take(client, group, **options):
    await client.send("t", "x")
    return await anext(group.messages(**options))


async def _pass(clock, group, times):
    """Let a third of a lease pass so often, and its extensions happen."""
    await clock.breathe()  # the keeper begins to wait
    for _ in range(times):
        clock.advance(LEASE_MS // 3)
        await group.extended.get()


async def test_a_message_that_is_worked_on_for_long_stays_with_its_worker(client, clock, group):
    lease = await _take(client, group)
    await _pass(clock, group, 12)
    assert await group.receive() == []
    await lease.ack()
    assert not lease.lost


async def test_a_message_whose_worker_forgot_it_comes_again(client, clock, group):
    lease = await _take(client, group)
    await _pass(clock, group, 3)
    del lease
    clock.advance(LEASE_MS)
    [again] = await group.receive(wait_ms=60_000)
    assert again.attempt == 2
    assert group.extended.empty()


async def test_a_message_is_not_held_for_longer_than_allowed(client, clock, group):
    lease = await _take(client, group, hold_ms_max=LEASE_MS)
    await _pass(clock, group, 2)
    clock.advance(LEASE_MS)
    [again] = await group.receive(wait_ms=60_000)
    assert again.attempt == 2
    with pytest.raises(LeaseEndedError):
        await lease.nack()


async def test_a_lease_that_ended_in_between_is_known_to_be_lost(client, clock, group):
    lease = await _take(client, group)
    await group.rewind(to="tail")
    await _pass(clock, group, 1)
    assert lease.lost


async def test_a_lease_that_was_acknowledged_while_it_was_extended_is_not_lost(client, clock, group):
    lease = await _take(client, group)
    ack = group.ack

    async def ack_with_a_late_answer(receipts):
        results = await ack(receipts)
        await _pass(clock, group, 1)
        while not lease.lost:  # the keeper cannot know yet
            await clock.breathe()
        return results

    group.ack = ack_with_a_late_answer
    await lease.ack()
    assert lease.settled
    assert not lease.lost


async def test_what_a_stream_sent_is_extended_too(client, clock, group):
    await client.send("t", "x")
    stream = group.stream()
    lease = await anext(stream)
    await _pass(clock, group, 4)
    await lease.ack()
    await stream.aclose()


async def test_a_consumer_outlives_a_service_that_is_away(tmp_path, clock, caplog):
    port, stop = unused_port(), asyncio.Event()
    seen = []

    async def handle(lease):
        seen.append(lease.text)
        stop.set()

    async with Client(f"http://127.0.0.1:{port}", clock=clock) as client:
        consuming = asyncio.create_task(client.group("t", "g").consume(handle, stop=stop))
        while not caplog.records:
            await clock.breathe()
        engine = await Engine.open(Settings(data=tmp_path / "data", disk_reserve_bytes=0))
        server = Served(app_of(engine), port=port)
        await server.start_server()
        await client.send("t", "after all")
        clock.advance(RETRY_MS)
        await consuming
    assert seen == ["after all"]
    assert "cannot receive" in caplog.text
    await server.close()
    await engine.close()
