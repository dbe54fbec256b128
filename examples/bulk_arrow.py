"""A hundred thousand reminders, sent and received as Arrow tables.

    python examples/bulk_arrow.py --url http://127.0.0.1:8686 --messages 100000

A table of reminders is sent in parts of 10,000 rows, each of which is stored as a whole or not at all. They
fall due within a few seconds. A consumer group receives them as tables and acknowledges them by the column of
their receipts, in the same round trip that asks for more. The run ends by proving its books: every reminder
that was sent was received, with its own body, and not before it was due. Exit code 1 if they do not balance.

Needs the extra: pip install 'timerwheel[arrow]'
"""

import argparse
import asyncio
import os
import sys

import pyarrow as pa
import pyarrow.compute as pc

from timerwheel.client import DEFAULT_URL, Client, ClientError
from timerwheel.clock import SystemClock

ROWS_PER_SEND = 10_000  # the service's messages_per_request_max
SPREAD_MS = 3_000  # the reminders fall due within this time
LIMIT_MS = 60_000  # how long to wait for the last one
CLOCK = SystemClock()


def reminders(topic: str, count: int) -> pa.Table:
    """Return a table of reminders, each with its own body and due time."""
    numbers = pa.array(range(count))
    delays_ms = pc.cast(pc.divide(pc.multiply(numbers, SPREAD_MS), count), pa.int64())
    bodies = pc.binary_join_element_wise("reminder", pc.cast(numbers, pa.string()), " ")
    topics = pa.array([topic] * count).dictionary_encode()
    return pa.table({"topic": topics, "body": bodies, "delay_ms": delays_ms, "tags": ["bulk"] * count})


async def send(client: Client, table: pa.Table) -> pa.Table:
    """Send a table in parts; returns the receipts of all rows."""
    parts = [table.slice(at, ROWS_PER_SEND) for at in range(0, table.num_rows, ROWS_PER_SEND)]
    return pa.concat_tables([await client.send_arrow(part) for part in parts])


async def receive(client: Client, topic: str, count: int) -> pa.Table:
    """Receive and acknowledge so many messages, or fewer if the last ones do not arrive."""
    group = client.group(topic, "readers")
    found: list[pa.Table] = []
    done: list[str] = []
    end_ms = CLOCK.monotonic_ms() + LIMIT_MS
    while sum(map(len, found)) < count and CLOCK.monotonic_ms() < end_ms:
        table = await group.receive_arrow(wait_ms=1_000, ack=done)
        done = table["receipt"].to_pylist()
        found.append(table)
    if done:
        await group.ack(done)
    return pa.concat_tables(found).unify_dictionaries()


def faults(sent: pa.Table, receipts: pa.Table, received: pa.Table) -> list[str]:
    """Return what does not balance."""
    wanted = {message_id: body.encode() for message_id, body in _pairs(receipts["id"], sent["body"])}
    found = dict(_pairs(received["id"], received["body"]))
    told = []
    if len(found) != received.num_rows:
        told.append(f"{received.num_rows - len(found)} messages were received twice")
    if found != wanted:
        told.append(f"{len(wanted)} were sent, {len(found)} received; the bodies differ")
    early = pc.sum(pc.less(received["delivered_ms"], received["due_ms"])).as_py() or 0
    if early:
        told.append(f"{early} came before they were due")
    return told


def _pairs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> zip:
    return zip(one.to_pylist(), other.to_pylist(), strict=True)


async def run(url: str, count: int) -> list[str]:
    """Send, receive, compare."""
    topic = f"reminders-{CLOCK.now_ms()}"
    table = reminders(topic, count)
    async with Client(url) as client:
        began_ms = CLOCK.monotonic_ms()
        receipts = await send(client, table)
        took_ms = max(CLOCK.monotonic_ms() - began_ms, 1)
        print(
            f"sent      {receipts.num_rows} in {took_ms} ms, {receipts.num_rows * 1000 // took_ms} a second"
        )
        received = await receive(client, topic, count)
        late_ms = pc.max(received["lateness_ms"]).as_py()
        print(f"received  {received.num_rows}, the latest {late_ms} ms after it was due")
    return faults(table, receipts, received)


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Send and receive reminders as Arrow tables.")
    parser.add_argument("--url", default=os.environ.get("TIMERWHEEL_URL", DEFAULT_URL))
    parser.add_argument("--messages", type=int, default=100_000)
    given = parser.parse_args()
    if given.messages < 1:
        parser.error("--messages must be greater than 0")
    try:
        told = asyncio.run(run(given.url, given.messages))
    except ClientError as error:
        print(f"bulk_arrow: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for fault in told:
        print(f"WRONG: {fault}", file=sys.stderr)
    if not told:
        print("The books balance: every reminder came once, and none too early.")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
