"""The Python client with Arrow: tables to send, and tables of what was delivered."""

import subprocess
import sys

import pyarrow as pa
import pytest

from timerwheel.client import Client, ClientError, ConflictError, NotFoundError


@pytest.fixture
async def client(service):
    async with Client(str(service.url)) as client:
        yield client


TABLE = pa.table(
    {"topic": ["orders"] * 3, "body": ["a", "b", "c"], "delay_ms": pa.array([None, 0, 3_600_000])}
)


@pytest.mark.parametrize(
    "messages",
    [TABLE, TABLE.to_batches()[0], pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches())],
    ids=["table", "batch", "reader"],
)
async def test_a_table_is_sent_and_its_receipts_are_a_table(client, messages):
    receipts = await client.send_arrow(messages)
    assert receipts["topic"].to_pylist() == ["orders"] * 3
    assert receipts["state"].to_pylist() == ["delivered", "delivered", "scheduled"]
    assert (await client.get(receipts["id"][2].as_py())).text == "c"


async def test_a_refused_table_lists_its_faults(client):
    with pytest.raises(ClientError) as caught:
        await client.send_arrow(pa.table({"topic": ["orders", "no good"]}))
    assert (caught.value.code, [fault.index for fault in caught.value.errors]) == ("refused", [1])
    with pytest.raises(ConflictError):
        await _recalled_again(client)


async def _recalled_again(client):
    table = pa.table({"topic": ["t"], "dedup_key": ["k"], "delay": ["1h"]})
    await client.recall((await client.send_arrow(table))["id"][0].as_py())
    await client.send_arrow(table)


async def test_a_queue_is_read_as_tables_from_offset_to_offset(client):
    await client.send_arrow(pa.table({"topic": ["t"] * 5, "body": [f"{number}" for number in range(5)]}))
    found, offset = [], 0
    while (table := await client.read_arrow("t", offset=offset, count_max=2)).num_rows:
        found += table["body"].to_pylist()
        offset = int(table.schema.metadata[b"next_offset"])
    assert found == [b"0", b"1", b"2", b"3", b"4"]
    assert (await client.read_arrow("t", offset=-1)).num_rows == 0


async def test_a_group_is_received_as_tables_and_acknowledged_by_a_column(client):
    await client.send_arrow(pa.table({"topic": ["t"] * 5}))
    group = client.group("t", "g")
    first = await group.receive_arrow(3, wait_ms=20_000)
    second = await group.receive_arrow(3, ack=first["receipt"].to_pylist())
    assert (first.num_rows, second.num_rows) == (3, 2)
    assert all(one.ok for one in await group.ack(second["receipt"].to_pylist()))
    assert (await group.info()).in_flight == 0


async def test_a_group_that_must_not_be_created_is_not(client):
    await client.send("t", "x")
    with pytest.raises(NotFoundError):
        await client.group("t", "g").receive_arrow(create=False)


def test_importing_the_client_does_not_import_pyarrow():
    code = "import sys, timerwheel.client; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_pyarrow_the_client_says_what_to_install():
    code = """
import asyncio, sys
sys.modules["pyarrow"] = None
from timerwheel.client import Client
async def main():
    async with Client() as client:
        await client.read_arrow("t")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'timerwheel[arrow]'" in done.stderr
