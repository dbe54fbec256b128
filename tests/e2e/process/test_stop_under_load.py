"""SIGTERM while clients send: requests that were taken are finished, and what was acknowledged is there."""

import asyncio
import signal

from tests.harness.processes import serving, timerwheel
from timerwheel.client import Client, ClientError, UnreachableError

CLIENTS = 8
ARRAY = 50
HOUR_MS = 3_600_000


async def send_until_refused(url: str, acknowledged: list[str], refused: list[ClientError]) -> None:
    drafts = [{"topic": "orders", "body": "b" * 300, "delay_ms": HOUR_MS} for _ in range(ARRAY)]
    async with Client(url) as client:
        while True:
            try:
                acknowledged += [sent.id for sent in await client.send_many(drafts)]
            except ClientError as error:
                refused.append(error)
                return


async def test_a_stop_under_load_finishes_in_order_and_loses_nothing_that_was_acknowledged(tmp_path):
    acknowledged: list[str] = []
    refused: list[ClientError] = []
    with serving(tmp_path / "d", "--log-level", "warning") as service:
        load = [
            asyncio.create_task(send_until_refused(service.url, acknowledged, refused))
            for _ in range(CLIENTS)
        ]
        while len(acknowledged) < 2 * CLIENTS * ARRAY:
            await asyncio.sleep(0.001)
        ended = await asyncio.to_thread(service.end, signal.SIGTERM)
        await asyncio.gather(*load)
    assert (ended.code, ended.err) == (0, "")
    assert len(refused) == CLIENTS
    for error in refused:  # told that it stops, or the connection was closed: never an answer of another kind
        assert isinstance(error, UnreachableError) or error.code == "not_ready"
    records = timerwheel("log", "--data", tmp_path / "d", "--json").lines
    assert set(acknowledged) <= {record["id"] for record in records}
    assert timerwheel("fsck", "--data", tmp_path / "d", "--json").json["findings"] == []
