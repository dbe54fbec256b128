"""The producer of the workers' loop: every message has a key, and is sent until there is an answer."""

import asyncio
import random

from tests.torture.worker_books import LANE, Entry, WorkerBooks
from tests.torture.worker_loop import RETRY_S, TOPICS, away
from timerwheel.client import Client, ClientError, Draft, Sent

DELAY_MS_MAX = 2_000
LANES = 7


class Producer:
    """Sends arrays of messages, and now and then one anew that was answered before."""

    def __init__(self, url: str, books: WorkerBooks, dice: random.Random) -> None:
        self._url = url
        self._books = books
        self._dice = dice
        self._left = 0
        self._ended = False
        self._work = asyncio.Event()

    def begin_round(self, share: int) -> None:
        """So many messages more may be sent."""
        self._left = share
        self._work.set()

    def end(self) -> None:
        """Send no more; `run` returns when everything was answered."""
        self._ended = True
        self._work.set()

    async def run(self) -> None:
        """Send what may be sent."""
        # The answers of the impatient one are lost most of the time, whether it was killed or not.
        async with (
            Client(self._url, timeout_ms=10_000, retry_ms=0) as patient,
            Client(self._url, timeout_ms=4, retry_ms=0) as hasty,
        ):
            sent: list[tuple[list[Entry], list[Draft]]] = []
            while True:
                await self._work.wait()
                if self._ended:
                    return
                if sent and self._dice.random() < 0.1:
                    batch = self._dice.choice(sent)
                else:
                    batch = self._write()
                    sent.append(batch)
                await self._send(*batch, hasty if self._dice.random() < 0.2 else patient, patient)
                await asyncio.sleep(self._dice.uniform(0, 0.04))

    def _write(self) -> tuple[list[Entry], list[Draft]]:
        topic = self._dice.choice(TOPICS)
        entries: list[Entry] = []
        drafts: list[Draft] = []
        for _ in range(self._dice.choice((1, 1, 5, 12))):
            key = f"k{len(self._books.entries)}"
            lane = str(self._dice.randrange(LANES)) if topic == "lanes" else ""
            entry = self._books.write(topic, f"{key}:{'x' * self._dice.choice((0, 10, 500))}", lane)
            draft: Draft = {"topic": topic, "body": entry.text, "dedup_key": key}
            if lane:
                draft["properties"] = {LANE: lane}
            if self._dice.random() < 0.7:
                draft["delay_ms"] = self._dice.randint(0, DELAY_MS_MAX)
            entries.append(entry)
            drafts.append(draft)
        self._left -= len(entries)
        if self._left <= 0:
            self._work.clear()
        return entries, drafts

    async def _send(self, entries: list[Entry], drafts: list[Draft], first: Client, then: Client) -> None:
        """The same array under the same keys until there is an answer."""
        client = first
        while True:
            try:
                receipts = await client.send_many(drafts)
            except ClientError as error:
                if not away(error):
                    raise
                self._books.counts["sends without an answer"] += 1
                client = then
                await asyncio.sleep(RETRY_S)
            else:
                self._answered(entries, receipts)
                return

    def _answered(self, entries: list[Entry], receipts: list[Sent]) -> None:
        if len({receipt.duplicate for receipt in receipts}) != 1:
            told = [(entry.key, receipt.duplicate) for entry, receipt in zip(entries, receipts, strict=True)]
            self._books.wrongs.append(f"an array was stored in part: {told}")
        for entry, receipt in zip(entries, receipts, strict=True):
            self._books.answer(entry, receipt.id, duplicate=receipt.duplicate)
