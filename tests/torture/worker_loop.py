"""A process that works: it consumes from groups through the client until it is killed, or kills itself.

    python -m tests.torture.worker_loop URL JOURNAL SEED receive|messages|stream|consume

The last argument is the way in which it gets its messages. What it is about to do and what it was answered it
appends to its journal, one JSON array per line, with one write that a kill does not undo: `got` with a
message, then for whatever it does with the receipt a line before (`acking`) and one for the answer (`acked`).
A line for the answer that is missing is an answer that nobody knows.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import orjson

from timerwheel.client import (
    Client,
    ClientError,
    Delivery,
    Group,
    Lease,
    LeaseEndedError,
    ReceiptResult,
    UnreachableError,
)

TOPICS = ("orders", "lanes")
"""Those of `lanes` are ordered by sharding key."""
GROUP = "workers"
WAYS = ("receive", "messages", "stream", "consume")
INVISIBLE_MS = 400
HOLD_MS_MAX = 1_200
RETRY_S = 0.02

Settle = Callable[[list[str]], Awaitable[list[ReceiptResult]]]


class Journal:
    """What this process did and saw; each line is with the kernel when `note` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, topic: str, rows: Sequence[Sequence[object]]) -> None:
        """One line for each row."""
        os.write(self._file, b"".join(orjson.dumps([what, topic, *row]) + b"\n" for row in rows))


class Worker:
    """Works on one topic: most messages it acknowledges, some it gives back, forgets or holds too long."""

    def __init__(self, group: Group, journal: Journal, dice: random.Random) -> None:
        self.group = group
        self.journal = journal
        self.dice = dice

    async def run(self, way: str) -> None:
        """Until the process ends; a service that is away comes back."""
        get = {"messages": self._messages, "stream": self._stream, "consume": self._consume}
        while True:
            try:
                await get.get(way, self._receive)()
            except ClientError as error:
                if not away(error):
                    raise
            await asyncio.sleep(RETRY_S)

    # ------------------------------------------------------------------ ways to get messages

    async def _receive(self) -> None:
        while True:
            got = await self.group.receive(
                self.dice.randint(1, 8), wait_ms=self.dice.choice((0, 100, 2_000)), invisible_ms=INVISIBLE_MS
            )
            self._note_got(got)
            if got and self.dice.random() < 0.03:
                await asyncio.sleep(self.dice.uniform(0, 1.5) * INVISIBLE_MS / 1_000)  # nobody extends these
            done = [delivery for delivery in got if not await self._set_aside(delivery)]
            if self.dice.random() < 0.5:
                await self._settle("ack", self.group.ack, [delivery.receipt for delivery in done])
            else:
                for delivery in done:
                    await self._settle("ack", self.group.ack, [delivery.receipt])

    async def _messages(self) -> None:
        batch = self.dice.randint(1, 4)
        async for lease in self.group.messages(
            batch=batch, invisible_ms=INVISIBLE_MS, hold_ms_max=HOLD_MS_MAX
        ):
            await self._work(lease)
            del lease  # one that is forgotten is not to be extended until the next comes

    async def _stream(self) -> None:
        room = self.dice.randint(1, 16)
        async for lease in self.group.stream(
            max_in_flight=room, invisible_ms=INVISIBLE_MS, hold_ms_max=HOLD_MS_MAX
        ):
            await self._work(lease)
            del lease

    async def _consume(self) -> None:
        await self.group.consume(
            self._handle,
            concurrency=self.dice.randint(1, 4),
            retry_ms=int(RETRY_S * 1_000),
            invisible_ms=INVISIBLE_MS,
            hold_ms_max=HOLD_MS_MAX,
        )

    # ------------------------------------------------------------------ what becomes of a message

    async def _work(self, lease: Lease) -> None:
        self._note_got([lease.message])
        if not await self._set_aside(lease.message):
            await self._ack(lease)

    async def _handle(self, lease: Lease) -> None:
        self._note_got([lease.message])
        if await self._set_aside(lease.message):
            lease.settled = True  # the consumer is to leave it as it is
        else:
            await self._ack(lease)

    async def _ack(self, lease: Lease) -> None:
        async def ack(receipts: list[str]) -> list[ReceiptResult]:
            try:
                await lease.ack()
            except LeaseEndedError as error:
                return [ReceiptResult(receipts[0], ok=False, code=error.code)]
            return [ReceiptResult(receipts[0], ok=True)]

        await self._settle("ack", ack, [lease.message.receipt])
        lease.settled = True

    def _note_got(self, got: Sequence[Delivery]) -> None:
        topic = self.group.topic
        self.journal.note("got", topic, [(d.receipt, d.id, d.attempt, d.dedup_key, d.text) for d in got])
        if got and self.dice.random() < 0.01:
            self._crash_soon()

    def _crash_soon(self) -> None:
        """Before the acknowledgement, while it is under way, or after."""
        loop = asyncio.get_running_loop()
        loop.call_later(self.dice.choice((0, 0.003, 0.02)), os.kill, os.getpid(), signal.SIGKILL)

    async def _set_aside(self, delivery: Delivery) -> bool:
        """Whether it is not to be acknowledged now: it was forgotten or given back."""
        choice, receipts = self.dice.random(), [delivery.receipt]
        if choice < 0.08:
            return True  # its lease runs out
        if choice < 0.2:
            nack = partial(self.group.nack, delay_ms=self.dice.choice((None, 0, 100)), reason="no")
            await self._settle("nack", nack, receipts)
            if choice < 0.1:
                await self._settle("ack", self.group.ack, receipts)  # to be refused
            return True
        if choice < 0.3:
            extend = partial(self.group.extend, invisible_ms=self.dice.randint(1, 2 * INVISIBLE_MS))
            await self._settle("extend", extend, receipts)
        return False

    async def _settle(self, verb: str, settle: Settle, receipts: list[str]) -> None:
        """Ask it of the service, once more or not if there was no answer."""
        again = receipts != []
        while again:
            self.journal.note(f"{verb}ing", self.group.topic, [(receipt,) for receipt in receipts])
            try:
                results = await settle(receipts)
            except ClientError as error:
                if not away(error):
                    raise
                again = self.dice.random() < 0.8
                await asyncio.sleep(RETRY_S)
            else:
                self.journal.note(f"{verb}ed", self.group.topic, [(r.receipt, r.ok, r.code) for r in results])
                again = self.dice.random() < 0.02


def away(error: ClientError) -> bool:
    """Whether the service is not there, or not ready."""
    return isinstance(error, UnreachableError) or error.code == "not_ready"


async def main(url: str, journal: Path, seed: int, way: str) -> None:
    dice = random.Random(seed)
    notes = Journal(journal)
    async with Client(url, timeout_ms=10_000, retry_ms=0) as client:
        workers = [Worker(client.group(t, GROUP), notes, random.Random(dice.random())) for t in TOPICS]
        await asyncio.gather(*(worker.run(way) for worker in workers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
