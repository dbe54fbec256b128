"""A node whose delivered messages Spark reads, and what the HTTP API says of them."""

from pathlib import Path
from typing import Any

import msgspec

from tests.harness.world import World
from timerwheel.model.messages import Outgoing
from timerwheel.store.files import DiskFiles
from timerwheel.wire.messages import Message

FORMAT = "timerwheel.delivered"
BINARY = bytes(range(256))
TOPICS = ("orders", "tickets", "reports")
SEGMENT_BYTES = 4096


def node_at(directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> World:
    world = World(directory)
    world.files = DiskFiles()
    world.limits["segment_size_bytes"] = segment_bytes
    return world


async def deliver(world: World, first: int, count: int = 20) -> None:
    """Messages of three topics: at once, due within a second, with all that a message may have."""
    for number in range(first, first + count):
        topic = TOPICS[number % len(TOPICS)]
        properties = [
            {"TIMER_DELAY_MS": str(number % 7 * 100)},
            {"TAGS": "blue", "KEYS": "a b", "user": "ä"},
            {"DELAY": "1", "__SHARDINGKEY": "s"},
        ][number // 3 % 3]
        key = f"key-{number}" if number % 5 == 0 else None
        body = BINARY if number % 4 == 0 else b"body %d" % number
        await world.engine.sender.send([Outgoing(topic, body, properties, key)])
    await world.engine.sender.send(
        [Outgoing("orders", b"array %d of %d" % (n, first), {"TIMER_DELAY_MS": "50"}) for n in range(4)]
    )
    await world.advance(1_500)


async def answers(world: World, node: str) -> list[dict[str, Any]]:
    """What `GET` of each queue answers, as rows of the source without `log_offset`."""
    found = []
    for topic in world.engine.queues.topics():
        for queue in topic.queues:
            at = queue.min_offset
            while at < queue.max_offset:
                page = await world.engine.queues.read_queue(topic.topic, queue.queue, at, 1000)
                for view in page.messages:
                    message = Message.of(view)
                    found.append({**row_of(message), "node": node})
                at = page.next_offset
    return ordered(found)


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["node"], row["topic"], row["queue"], row["offset"]))


def union(*lists: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of all, each once."""
    found: list[dict[str, Any]] = []
    for rows in lists:
        found += [row for row in rows if row not in found]
    return ordered(found)


def row_of(message: Message) -> dict[str, Any]:
    row = msgspec.structs.asdict(message)
    for name in ("state", "body_text", "body_base64", "recalled_ms", "problem"):
        row.pop(name)
    return row | {"body": message.body}


def rows_of(found: list[Any]) -> list[dict[str, Any]]:
    """Spark's rows in the same shape and order."""
    rows = [row.asDict() for row in found]
    for row in rows:
        row["body"] = bytes(row["body"])
        row.pop("log_offset", None)
    return ordered(rows)


def rows_of_batches(batches: list[Any]) -> list[dict[str, Any]]:
    """The same of Arrow batches."""
    rows = [row | {"properties": dict(row["properties"])} for batch in batches for row in batch.to_pylist()]
    for row in rows:
        row.pop("log_offset")
    return ordered(rows)


class Sink:
    """A `foreachBatch` that keeps the rows of each batch, and fails after it has kept those of some."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Any]]] = []
        self.fails_at: set[int] = set()

    def __call__(self, frame: Any, batch: int) -> None:
        self.batches.append((batch, frame.collect()))
        if batch in self.fails_at:
            self.fails_at.remove(batch)
            raise RuntimeError(f"batch {batch} was written, and the query was killed")

    @property
    def by_batch(self) -> dict[int, list[Any]]:
        """The rows of each batch; all attempts at it must have had the same."""
        found: dict[int, list[Any]] = {}
        for batch, rows in self.batches:
            assert sorted(found.setdefault(batch, rows)) == sorted(rows), batch
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        return rows_of([row for rows in self.by_batch.values() for row in rows])


def run_query(spark: Any, path: Path | str | None, checkpoint: Path, sink: Sink, **options: str) -> None:
    """Run a stream up to where the logs end now."""
    source = spark.readStream.format(FORMAT).options(**options)
    frame = source.load() if path is None else source.load(str(path))
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
