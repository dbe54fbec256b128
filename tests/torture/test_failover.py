"""What a failover costs, with many messages waiting; recalls that meet it; a lost disk; a quiet night.

Figures are printed (`-s`), not judged: they depend on the machine. doc/cluster.md has those of one.
"""

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest

from tests.harness.index_dump import dump_index, pending_of
from tests.harness.kafka.broker import Broker, missing
from tests.torture.books import now_ms
from tests.torture.killing import seed_given
from tests.torture.nodes import ARRAY, PATIENCE_S, Nodes, two_nodes
from tests.torture.process import Service

pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(missing(own=True) is not None, reason=f"needs Kafka: {missing(own=True)}"),
]

WAITING = int(os.environ.get("TIMERWHEEL_TORTURE_WAITING") or 1_000_000)
KILLS = int(os.environ.get("TIMERWHEEL_TORTURE_KILLS") or 50)
IDLE_S = float(os.environ.get("TIMERWHEEL_TORTURE_IDLE_S") or 600)
OVERDUE = 20_000
RACED = 200
MOVES = 6
MOVE_S = aiohttp.ClientTimeout(total=60)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "broker")
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
async def nodes(tmp_path: Path, broker: Broker) -> AsyncIterator[Nodes]:
    async with two_nodes(tmp_path, broker) as found:
        yield found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_sends_are_taken_again_and_what_is_overdue_comes_in_due_order(
    nodes: Nodes, number: signal.Signals
) -> None:
    first, second = await nodes.leading_pair()
    began = monotonic()
    await nodes.fill(first, WAITING)
    print(f"\n{WAITING:,} waiting, sent in {monotonic() - began:.1f} s")
    dice, begin_ms = random.Random(2), now_ms() + 8_000
    dues = [begin_ms + dice.randrange(5_000) for _ in range(OVERDUE)]
    for at in range(0, OVERDUE, ARRAY):
        assert await nodes.send(first, "near", dues[at : at + ARRAY]) == 201
    await nodes.copied(first)
    await asyncio.sleep(max(begin_ms - 1_000 - now_ms(), 0) / 1000)
    first.signal(number)
    began = monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while (await nodes.call(second, "POST", "/v1/messages", {"topic": "other"}))[0] != 201:
            await asyncio.sleep(0.02)
    print(f"{number.name}: no send was taken for {monotonic() - began:.2f} s")
    found = await nodes.read(second, "near", OVERDUE)
    print(f"all {OVERDUE:,} overdue were read after {monotonic() - began:.2f} s")
    assert sorted(int(one["body"]) for one in found) == sorted(dues)
    came = [int(one["body"]) for one in found]
    overdue = [due_ms for due_ms in came if due_ms <= found[0]["delivered_ms"]]
    assert len(overdue) > OVERDUE // 2
    assert came == sorted(came)
    assert all(one["delivered_ms"] >= int(one["body"]) for one in found)


async def test_a_lead_that_is_moved_is_taken_over_at_once(nodes: Nodes) -> None:
    leader, standby = await nodes.leading_pair()
    await nodes.fill(leader, WAITING)
    gaps_s = []
    for _ in range(MOVES):
        await nodes.copied(leader)
        began = monotonic()
        moving = asyncio.create_task(nodes.call(leader, "POST", "/v1/cluster/move", timeout=MOVE_S))
        last = began  # when a send was answered last
        async with asyncio.timeout(PATIENCE_S):
            while (await nodes.call(standby, "POST", "/v1/messages", {"topic": "other"}))[0] != 201:
                if (await nodes.call(leader, "POST", "/v1/messages", {"topic": "other"}))[0] == 201:
                    last = monotonic()
        gaps_s.append(monotonic() - last)
        assert (await moving)[0] == 200
        leader, standby = standby, leader
    print(f"\n{WAITING:,} waiting, lead moved {MOVES} times: no send was taken for", end=" ")
    print(f"{min(gaps_s):.2f} to {max(gaps_s):.2f} s")


async def test_no_message_whose_recall_was_answered_comes_however_the_leader_dies(nodes: Nodes) -> None:
    """Messages fall due about when the leader is killed and another one takes over; all are recalled then."""
    seed = seed_given()
    dice = random.Random(seed)
    leader, standby = await nodes.leading_pair()
    answers: Counter[str] = Counter()
    recalled: set[str] = set()
    sent: dict[str, int] = {}
    for kill in range(KILLS):
        await nodes.copied(leader)
        ids = []
        base_ms = now_ms()
        for _ in range(RACED):  # due before the kill, during the takeover, and after it
            due_ms = base_ms + dice.choice((dice.randint(200, 900), dice.randint(900, 12_000)))
            wanted = {"topic": "raced", "body": str(due_ms), "deliver_at_ms": due_ms}
            status, content = await nodes.call(leader, "POST", "/v1/messages", wanted)
            assert status == 201
            sent[content["id"]] = due_ms
            ids.append(content["id"])
        recalls = [
            asyncio.create_task(recall(nodes, (leader, standby), one, dice.uniform(0, 10), answers, recalled))
            for one in ids
        ]
        await asyncio.sleep(dice.uniform(0, 1))
        leader.signal(signal.SIGKILL)
        await leader.killed()
        if dice.random() < 0.5:
            shutil.rmtree(leader.data, ignore_errors=True)
        leader, standby = standby, leader
        await asyncio.gather(*recalls)
        await leader.ready()
        standby.start(*nodes.flags)
        if kill % 10 == 9:
            print(f"{kill + 1} kills: {dict(answers)}")
    await asyncio.sleep(max(max(sent.values()) - now_ms(), 0) / 1000 + 1)
    found = await nodes.read(leader, "raced", 1)
    while len(page := await rest(nodes, leader, len(found))):
        found += page
    times = Counter(one["id"] for one in found)
    print(f"seed {seed}: {KILLS} kills, {len(sent):,} messages, {dict(answers)}, {len(found):,} delivered")
    assert not [one for one in times if times[one] > 1], "twice"
    assert not recalled & set(times), "recalled and delivered"
    assert recalled | set(times) == set(sent), "neither recalled nor delivered"
    assert not [one for one in found if one["delivered_ms"] < sent[one["id"]]], "early"


async def recall(
    nodes: Nodes,
    pair: tuple[Service, Service],
    message_id: str,
    after_s: float,
    answers: Counter[str],
    recalled: set[str],
) -> None:
    """Recall a message at whichever node leads then, until the answer is certain."""
    await asyncio.sleep(after_s)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for node in pair:
                status, content = await nodes.call(
                    node, "DELETE", f"/v1/messages/{message_id}", timeout=aiohttp.ClientTimeout(total=30)
                )
                code = "recalled" if status == 200 else content.get("code", "no answer")
                if code not in {"not_ready", "no answer", "outcome_unknown"}:
                    answers[code] += 1
                    if code in {"recalled", "already_recalled"}:
                        recalled.add(message_id)
                    return
            await asyncio.sleep(0.05)


async def rest(nodes: Nodes, node: Service, offset: int) -> list[Any]:
    path = f"/v1/topics/raced/queues/0/messages?offset={offset}&max=1000"
    page: list[Any] = (await nodes.call(node, "GET", path))[1].get("messages", [])
    return page


async def test_an_empty_disk_is_filled_from_the_journal_and_its_index_is_that_of_the_lost_one(
    nodes: Nodes, tmp_path: Path
) -> None:
    first, second = nodes.each
    first.start(*nodes.flags)
    await first.ready()
    await nodes.fill(first, 2 * WAITING)
    first.signal(signal.SIGTERM)
    await first.stopped()
    shutil.move(first.data, tmp_path / "lost")
    began = monotonic()
    second.start(*nodes.flags)
    await second.ready()
    took_s = monotonic() - began
    status = Path(f"/proc/{second.process.pid}/status").read_text()
    memory = {name: int(size) >> 10 for name, size in _memory(status)}
    print(f"\n{2 * WAITING:,} waiting: ready on an empty disk after {took_s:.1f} s, MiB {memory}")
    second.signal(signal.SIGTERM)
    await second.stopped()
    assert pending_of(second.data) == pending_of(tmp_path / "lost")
    assert without_times(dump_index(second.data)) == without_times(dump_index(tmp_path / "lost"))


def _memory(status: str) -> Iterator[tuple[str, str]]:
    for line in status.splitlines():
        name, _, rest_of_line = line.partition(":")
        if name in {"VmHWM", "VmRSS", "RssAnon"}:
            yield name, rest_of_line.split()[0]


def without_times(dumped: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on when the index was written."""
    return {name: found for name, found in dumped.items() if name not in {"checkpoint", "meta"}}


async def test_a_leader_that_was_idle_for_long_takes_the_next_send(nodes: Nodes) -> None:
    first, second = await nodes.leading_pair()
    assert await nodes.send(first, "quiet", [now_ms()]) == 201
    await nodes.copied(first)
    await asyncio.sleep(IDLE_S)
    began = monotonic()
    assert await nodes.send(first, "quiet", [now_ms()]) == 201
    print(f"\nafter {IDLE_S:.0f} idle s a send took {(monotonic() - began) * 1000:.1f} ms")
    assert len(await nodes.read(first, "quiet", 2)) == 2
    assert (await nodes.call(second, "GET", "/readyz"))[0] == 503
