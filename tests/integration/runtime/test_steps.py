"""Long sends are done in steps: between two of them, other work on the event loop has its turn."""

import asyncio
import contextlib
from collections import Counter
from hashlib import blake2s

import msgspec
import pytest

from tests.harness.columns import send_in_columns
from timerwheel.errors import RefusedError
from timerwheel.model.messages import Outgoing
from timerwheel.runtime import column_sender
from timerwheel.runtime.column_sender import ROWS_AT_ONCE
from timerwheel.runtime.steps import AT_ONCE_BYTES, AT_ONCE_MAX, steps
from timerwheel.state import dedup_key

MIB = 1 << 20
SENDS = {
    "many messages": [Outgoing("orders", b"%d" % n, dedup_key=f"k{n}") for n in range(3 * AT_ONCE_MAX)],
    "large properties": [
        Outgoing("orders", b"%d" % n, {"p": "x" * 30_000}, dedup_key=f"k{n}") for n in range(400)
    ],
    "large messages": [Outgoing("orders", b"%d" % n * MIB, dedup_key=f"k{n}") for n in range(10)],
}


@contextlib.asynccontextmanager
async def bodies_by_turn(monkeypatch):
    """For each turn of the loop, the sizes of what was hashed in it: bodies, a few bytes more each."""
    hashed, turn = {}, 0

    async def count():
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def noted(content, **options):
        if "person" not in options:  # not a key of a topic
            hashed.setdefault(turn, []).append(len(content))
        return blake2s(content, **options)

    def noted_columns(columns, rows):
        hashed.setdefault(turn, []).extend((columns.ends - columns.begins)[rows].tolist())
        return content_hashes(columns, rows)

    content_hashes = column_sender.content_hashes
    counting = asyncio.create_task(count())
    with monkeypatch.context() as patched:
        patched.setattr(dedup_key, "blake2s", noted)
        patched.setattr(column_sender, "content_hashes", noted_columns)
        yield hashed
    counting.cancel()


@pytest.mark.parametrize("messages", SENDS.values(), ids=SENDS)
@pytest.mark.parametrize(
    ("send", "at_once"),
    [(lambda engine, sent: engine.sender.send(sent), AT_ONCE_MAX), (send_in_columns, ROWS_AT_ONCE)],
    ids=["send", "send_in_columns"],
)
async def test_the_contents_of_keyed_messages_are_hashed_in_steps(
    world, monkeypatch, send, at_once, messages
):
    engine = await world.open(segment_size_bytes=1 << 26, batch_bytes_max=1 << 25)
    for how in ("new", "repeated"):
        async with bodies_by_turn(monkeypatch) as hashed:
            receipts = await send(engine, messages)
        assert Counter(receipt.duplicate for receipt in receipts) == {how == "repeated": len(messages)}
        assert len(messages) <= sum(map(len, hashed.values()))
        assert max(len(sizes) for sizes in hashed.values()) <= at_once
        assert max(sum(sizes) for sizes in hashed.values()) <= AT_ONCE_BYTES + 64 * at_once


async def test_keyed_messages_with_other_contents_are_hashed_in_steps(world, monkeypatch):
    engine = await world.open(segment_size_bytes=1 << 26, batch_bytes_max=1 << 25)
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    large = [Outgoing("orders", b"%d" % n * MIB, parent, dedup_key=f"k{n}") for n in range(10)]
    await engine.sender.send(large)
    async with bodies_by_turn(monkeypatch) as hashed:
        with pytest.raises(RefusedError):
            await engine.sender.send([msgspec.structs.replace(one, body=one.body + b"!") for one in large])
    assert max(sum(sizes) for sizes in hashed.values()) <= 2 * AT_ONCE_BYTES


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([0] * AT_ONCE_MAX, [AT_ONCE_MAX]),
        ([0] * (AT_ONCE_MAX + 1), [AT_ONCE_MAX, 1]),
        ([AT_ONCE_BYTES, 0, 1], [2, 1]),
        ([AT_ONCE_BYTES * 2, 1], [1, 1]),
        ([1, AT_ONCE_BYTES, AT_ONCE_BYTES], [1, 1, 1]),
    ],
)
def test_a_step_ends_before_the_limits_are_passed(sizes, expected):
    parts = list(steps([Outgoing("orders", bytes(size)) for size in sizes]))
    assert [part.stop - part.start for part in parts] == expected
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
