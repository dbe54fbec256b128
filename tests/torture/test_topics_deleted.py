"""`mqadmin deleteTopic` while clients send, consume, send back and commit, and SIGKILL in between."""

import asyncio
import random
import shutil
import signal
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from tests.harness.ports import reserved_port
from tests.harness.processes import timerwheel
from tests.harness.stored_messages import decode_all
from tests.torture.killing import SEED_VARIABLE, seed_given
from tests.torture.process import Service
from tests.torture.topic_life import QUEUES, TOPIC, Books, Clients, Wire
from timerwheel.offline.fsck import fsck
from timerwheel.rocketmq.codes import Call, Result

KILLS = 5
SETTLE_S_MAX = 60
LOOK_S = 0.1


@asynccontextmanager
async def attached(clients: Clients):
    tasks = clients.all()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [one for one in ended if not isinstance(one, asyncio.CancelledError)]


async def until(condition) -> None:
    async with asyncio.timeout(SETTLE_S_MAX):
        while not condition():
            await asyncio.sleep(LOOK_S)


async def read_all(port: int, books: Books) -> dict[tuple[int, int], bytes]:
    """All messages of the topic, by queue and offset."""
    wire, found = Wire(port), {}
    for queue in range(QUEUES):
        offset, end = 0, 1
        while offset < end:
            asked = books.tick()
            fields = {"consumerGroup": "others", "topic": TOPIC, "queueId": queue, "queueOffset": offset}
            answer = await wire.ask(Call.PULL, fields | {"maxMsgNums": 32, "sysFlag": 0})
            for message in decode_all(answer.body):
                books.found(message, asked)
                found[message.queue, message.queue_offset] = message.body
            moved = answer.code != Result.SUCCESS and int(answer.fields["nextBeginOffset"]) == offset
            offset, end = int(answer.fields["nextBeginOffset"]), int(answer.fields["maxOffset"])
            assert not moved or offset == end, answer
    wire.close()
    return found


async def killed_again(service: Service, flags: tuple[object, ...], dice: random.Random) -> None:
    service.start(*flags)
    await service.ready()
    await service.running(dice.uniform(0.2, 2.5))
    service.signal(signal.SIGKILL)
    await service.killed()
    assert (await asyncio.to_thread(fsck, service.data)).ok
    if dice.random() < 0.25:
        shutil.rmtree(service.data / "index", ignore_errors=True)


async def settled(service: Service, flags: tuple[object, ...], clients: Clients, books: Books) -> None:
    """Start the service again, delete no more, then send no more, and let everything come out."""
    service.start(*flags)
    await service.ready()
    await service.running(1)
    clients.may_delete = False
    await until(lambda: books.deletions[-1].ended is not None)
    await service.running(1)
    clients.may_send = False
    await until(lambda: books.owed() <= books.seen and books.sent_back <= books.retried)


async def stopped(service: Service) -> None:
    service.signal(signal.SIGTERM)
    await service.stopped()
    assert (await asyncio.to_thread(fsck, service.data)).ok


@pytest.mark.torture
async def test_killed_while_topics_are_deleted_what_was_answered_stands(tmp_path):
    seed = seed_given()
    print(f"{SEED_VARIABLE}={seed}")
    dice, books, port = random.Random(seed), Books(), reserved_port()
    flags = ("--rocketmq", f"127.0.0.1:{port}", "--segment-size", "256KiB", "--index-interval", "100ms")
    clients = Clients(port, books, random.Random(dice.random()))
    backup, restored, errors = tmp_path / "backup", tmp_path / "restored", tmp_path / "stderr"
    with Service(tmp_path / "data", reserved_port(), errors) as service:
        async with attached(clients):
            for _ in range(KILLS):
                await killed_again(service, flags, dice)
            await settled(service, flags, clients, books)
        stored = await read_all(port, books)
        assert timerwheel("backup", "create", backup, "--data", service.data).code == 0
        await stopped(service)
    assert not books.wrongs, Counter(books.wrongs).most_common(20)
    assert books.owed() <= set(stored.values())
    assert timerwheel("backup", "restore", backup, "--data", restored).code == 0
    with Service(restored, reserved_port(), errors) as service:
        service.start(*flags)
        await service.ready()
        assert await read_all(port, books) == stored
        await stopped(service)
    assert not books.wrongs, books.wrongs[:20]
    assert "Traceback" not in (text := errors.read_text()), text[-6_000:]
    print(
        f"{len(books.sent)} sent, {len(books.deletions)} deletions, {len(books.owed())} owed, "
        f"{len(books.seen)} seen, {len(books.sent_back)} sent back"
    )
