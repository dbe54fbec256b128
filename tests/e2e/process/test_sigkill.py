"""SIGKILL under load, a few times, and what such loops have found; the long loop is in tests/torture."""

import shutil
import signal
from collections.abc import AsyncIterator

import pytest

from tests.harness.forgetful_disk import ForgetfulDisk, why_missing
from tests.harness.ports import reserved_port
from tests.torture.killing import Loop, Plan, seed_given
from tests.torture.process import Service
from timerwheel.client import Client
from timerwheel.offline.fsck import fsck
from timerwheel.store.index import Index

TURNS_MAX = 500
NO_DISK = why_missing()
SHORT = {"senders": 2, "share": 150, "up_s_max": 0.6}
SMALL = ("--segment-size", "64KiB", "--index-interval", "20ms")


@pytest.fixture
async def service(tmp_path) -> AsyncIterator[Service]:
    with Service(tmp_path / "data", reserved_port(), tmp_path / "stderr", forked=True) as service:
        yield service


async def killed(service: Service) -> None:
    service.signal(signal.SIGKILL)
    await service.killed()


async def first_offset(client: Client) -> int:
    return (await client.topic("t")).queues[0].min_offset


async def test_after_three_kills_under_load_the_books_are_right(tmp_path):
    await Loop(Plan(seed_given(), kills=3, **SHORT), tmp_path, forked=True).run()


@pytest.mark.skipif(NO_DISK is not None, reason=str(NO_DISK))
async def test_after_three_power_cuts_that_drop_all_unsynced_bytes_and_names_the_books_are_right(tmp_path):
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with ForgetfulDisk(data / "log", tmp_path / "platter") as disk:
        plan = Plan(seed_given(), kills=3, flags={"--flush": "sync"}, **SHORT)
        await Loop(plan, tmp_path, after_kill=disk.power_cut, forked=True).run()
    assert disk.cuts >= 3


async def test_a_queue_begins_where_retention_left_it_after_a_kill(service):
    service.start(*SMALL, "--retention", "100ms", "--retention-interval", "50ms")
    await service.ready()
    async with Client(service.url) as client:
        sent = await client.send_many({"topic": "t", "body": "x" * 1_000} for _ in range(100))
        sent += await client.send_many({"topic": "t", "body": "x" * 1_000} for _ in range(100))
        for _ in range(TURNS_MAX):
            first = await first_offset(client)
            if first:
                break
            await service.running(0.02)
        assert first > 0
        await killed(service)
        service.start(*SMALL)
        await service.ready()
        assert await first_offset(client) == first
        kept = [message async for message in client.receive("t", follow=False)]
        assert [message.id for message in kept] == [receipt.id for receipt in sent[first:]]


async def test_an_index_that_was_begun_when_the_kill_came_is_filled_by_the_next_start(service):
    service.start(*SMALL)
    await service.ready()
    async with Client(service.url) as client:
        receipt = await client.send("t", "x", delay="1h")
        await killed(service)
        shutil.rmtree(service.data / "index")
        Index(service.data / "index", 1 << 20).close()
        assert fsck(service.data).ok
        service.start(*SMALL)
        await service.ready()
        assert [message.id async for message in client.pending()] == [receipt.id]
