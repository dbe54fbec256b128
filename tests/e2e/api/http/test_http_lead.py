"""A leader that the election has not confirmed lately asks the journal before it answers from what it has."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.harness.memory_election import MemoryElection
from tests.harness.memory_journal import MemoryJournal
from timerwheel.api.server import serve
from timerwheel.settings import Serving, Settings

GROUP = "/v1/topics/a/groups/g"
SIGN = {"X-Requested-With": "tests"}
ALWAYS_MS, NEVER_MS = 1 << 62, -1


class Leader:
    """The only node of a cluster, in this process."""

    def __init__(self, data: Path, session: aiohttp.ClientSession) -> None:
        self.election = MemoryElection()
        self.election.win()
        self.journal = MemoryJournal()
        self._session = session
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(
            serve(
                Settings(data=data, disk_reserve_bytes=0),
                Serving(port=0),
                self._url.set_result,
                journal=self.journal.leader(run_bytes_max=1 << 22),
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
