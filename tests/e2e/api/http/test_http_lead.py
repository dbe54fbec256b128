"""A leader that the election has not confirmed lately asks the journal before it answers from what it has."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.harness.faulty import FaultyFiles
from tests.harness.memory_election import MemoryElection
from tests.harness.memory_journal import MemoryJournal, MemoryLeader
from timerwheel.api.server import serve
from timerwheel.settings import Serving, Settings
from timerwheel.store.journal import Run

GROUP = "/v1/topics/a/groups/g"
SIGN = {"X-Requested-With": "tests"}
ALWAYS_MS, NEVER_MS = 1 << 62, -1
PATIENCE_S = 60.0


class HeldLeader(MemoryLeader):
    """Whose journal takes runs when the test lets it."""

    def __init__(self, journal: MemoryJournal) -> None:
        super().__init__(journal, FaultyFiles(), 1 << 22)
        self.gate = threading.Event()
        self.gate.set()
        self.waits = 0

    def append(self, runs: Sequence[Run]) -> list[int]:
        self.waits += not self.gate.is_set()
        self.gate.wait(PATIENCE_S)
        return super().append(runs)


class Leader:
    """The only node of a cluster, in this process."""

    def __init__(self, data: Path, session: aiohttp.ClientSession) -> None:
        self.election = MemoryElection()
        self.election.win()
        self.journal = MemoryJournal()
        self.held = HeldLeader(self.journal)
        self._session = session
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(
            serve(
                Settings(data=data, disk_reserve_bytes=0),
                Serving(port=0),
                self._url.set_result,
                journal=self.held,
                election=lambda _: self.election,
            )
        )

    async def ready(self) -> None:
        await asyncio.wait({self.task, self._url}, return_when=asyncio.FIRST_COMPLETED)

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        async with self._session.request(method, f"{self._url.result()}{path}", json=body) as answer:
            return answer.status, await answer.json()

    def open(self, path: str) -> Any:
        return self._session.get(f"{self._url.result()}{path}", headers=SIGN)


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[Leader]:
    async with aiohttp.ClientSession() as session:
        found = Leader(tmp_path / "data", session)
        await found.ready()
        yield found
        os.kill(os.getpid(), signal.SIGTERM)
        await found.task


async def prepared(leader: Leader) -> list[tuple[str, str, object]]:
    """Calls of all kinds about what is there."""
    _, sent = await leader.call("POST", "/v1/messages", {"topic": "a", "body": "x", "delay_ms": 3_600_000})
    await leader.call("PUT", GROUP, {})
    return [
        ("GET", f"/v1/messages/{sent['id']}", None),
        ("GET", "/v1/messages", None),
        ("GET", "/v1/topics", None),
        ("GET", "/v1/topics/a/queues/0/messages", None),
        ("GET", "/v1/wheel", None),
        ("GET", "/v1/subscriptions", None),
        ("GET", "/readyz", None),
        ("POST", f"{GROUP}/receive", {}),
        ("POST", f"{GROUP}/ack", {"receipts": ["x"]}),
        ("POST", "/v1/messages", {"topic": "a", "body": "another"}),
        ("DELETE", f"/v1/messages/{sent['id']}", None),
    ]


async def test_a_leader_that_the_election_does_not_confirm_asks_the_journal(leader: Leader) -> None:
    calls = await prepared(leader)
    leader.election.leads_until_ms = NEVER_MS
    runs = len(leader.journal.runs)
    answers = await asyncio.gather(*(leader.call(*call) for call in calls))
    assert {status for status, _ in answers} <= {200, 201}, answers
    assert any(not data for _, data in leader.journal.runs[runs:])
    leader.election.leads_until_ms = ALWAYS_MS
    runs = len(leader.journal.runs)
    assert (await leader.call("GET", "/v1/topics"))[0] == 200
    assert len(leader.journal.runs) == runs


async def test_a_leader_that_was_replaced_answers_no_call(leader: Leader) -> None:
    calls = await prepared(leader)
    leader.election.leads_until_ms = NEVER_MS
    leader.journal.leader().claim()  # another one, which may have changed everything by now
    answers = await asyncio.gather(*(leader.call(*call) for call in calls))
    assert {(status, content["code"]) for status, content in answers} == {(503, "not_ready")}
    assert (await leader.call("GET", "/healthz"))[0] == 200


async def test_a_leader_whose_journal_does_not_answer_answers_no_call(leader: Leader) -> None:
    calls = await prepared(leader)
    leader.election.leads_until_ms = NEVER_MS
    leader.journal.is_away = True
    answers = await asyncio.gather(*(leader.call(*call) for call in calls))
    assert {(status, content["code"]) for status, content in answers} == {(503, "not_ready")}


async def test_streams_end_when_another_node_leads(leader: Leader) -> None:
    await leader.call("PUT", GROUP, {"start": "head"})
    await leader.call("POST", "/v1/messages", {"topic": "a", "body": "x"})
    async with (
        asyncio.timeout(60),
        leader.open(f"{GROUP}/stream") as stream,
        leader.open("/v1/live") as live,
    ):
        await anext(part async for part in stream.content if b"data" in part)
        await anext(part async for part in live.content if b"tick" in part)
        leader.election.leads_until_ms = NEVER_MS
        leader.journal.leader().claim()
        for ended in (stream, live):
            assert b"not_ready" in (await ended.content.read()).rpartition(b"event: end")[2]


@pytest.mark.parametrize("count", [1, 20])
async def test_a_send_that_is_stored_while_the_lead_goes_is_never_called_refused(
    leader: Leader, count: int
) -> None:
    """Its answer comes after the engine was closed to callers, and says what became of it."""
    await leader.call("POST", "/v1/messages", {"topic": "a", "body": "before"})
    wanted = [{"topic": "a", "body": str(number), "delay_ms": 3_600_000} for number in range(count)]
    leader.held.gate.clear()
    sending = asyncio.create_task(leader.call("POST", "/v1/messages", wanted[0] if count == 1 else wanted))
    async with asyncio.timeout(PATIENCE_S):
        while not leader.held.waits:
            await asyncio.sleep(0.01)
        leader.election.lose()
        while (await leader.call("GET", "/readyz"))[0] != 503:
            await asyncio.sleep(0.01)
        leader.held.gate.set()
        status, content = await sending
    assert status == 201, content
