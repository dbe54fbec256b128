"""The load: senders that send, recall and reschedule, and readers that follow the queues by offset.

Every sender owns what it sent, so what it writes into the books is certain. All of it is bounded: a sender
does its share of work per round and then waits for the next, a reader ends when told.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from tests.torture.books import Books, Entry, Fate, Queue, now_ms
from timerwheel.client import (
    Client,
    ClientError,
    ConflictError,
    Draft,
    NotFoundError,
    OutcomeUnknownError,
    UnreachableError,
)

TOPICS = ("orders", "tickets", "mails")
LEVELS_MS = {1: 1_000, 2: 2_000}
NEAR_MS_MAX = 3_000
FAR_MS_MIN = 3_600_000
FAR_MS_MAX = 400 * 86_400_000
_PAGE = 200
_CALL_S = 40.0  # brokers that choose another leader take 10 s
CUT_OFF = (UnreachableError, OutcomeUnknownError)
"""It is unknown what became of the call."""


@dataclass
class Signals:
    """What the loop tells its clients: whether the service should be up, and that it is over."""

    up: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self, seconds: float) -> None:
        """Let others go on for a while, unless it is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), seconds)


class Sender:
    """One client that sends singles and arrays, and recalls and reschedules what it sent."""

    def __init__(self, url: str, books: Books, signals: Signals, dice: random.Random, share: int) -> None:
        self._url = url
        self._books = books
        self._signals = signals
        self._dice = dice
        self._share = share
        self._left = 0
        self._ended = False
        self._work = asyncio.Event()
        self._mine: list[Entry] = []

    def begin_round(self) -> None:
        """Another share of messages may be sent."""
        self._left = self._share
        self._work.set()

    def end(self) -> None:
        """Let `run` return after what it is doing."""
        self._ended = True
        self._work.set()

    async def run(self) -> None:
        async with Client(self._url, timeout_ms=int(_CALL_S * 1000), retry_ms=0) as client:
            while True:
                await self._work.wait()
                await self._signals.up.wait()
                if self._ended:
                    return
                if self._left <= 0:
                    self._work.clear()
                    continue
                await self._one(client)
                if self._dice.random() < 0.3:
                    await self._signals.pause(self._dice.uniform(0, 0.03))

    async def _one(self, client: Client) -> None:
        choice = self._dice.random()
        if choice < 0.45 or not self._mine:
            await self._send(client, 1)
        elif choice < 0.65:
            await self._send(client, self._dice.randint(2, 30))
        elif choice < 0.85:
            await self._recall(client, self._pick())
        else:
            await self._reschedule(client, self._pick())

    def _pick(self) -> Entry:
        """Mostly a recent one: old ones are delivered or far away."""
        self._left -= 1
        recent = self._mine[-40:] if self._dice.random() < 0.8 else self._mine
        return self._dice.choice(recent)

    # ------------------------------------------------------------------ sending

    async def _send(self, client: Client, count: int) -> None:
        self._left -= count
        dice = self._dice
        entries = self._books.write(dice.choice(TOPICS), [self._padding() for _ in range(count)])
        begun_ms = now_ms()
        whens = [self._when(begun_ms) for _ in entries]
        drafts = [
            Draft(topic=entry.topic, body=_text_or_bytes(entry), **when[0])
            for entry, when in zip(entries, whens, strict=True)
        ]
        try:
            if count == 1:
                draft = dict(drafts[0])
                receipts = [await client.send(draft.pop("topic"), draft.pop("body"), **draft)]
            else:
                receipts = await client.send_many(drafts)
        except CUT_OFF as error:
            self._check_cut_off(error)
            return
        except ClientError as error:
            for entry in entries:
                entry.fate = Fate.REFUSED
            self._check_refusal(error)
            return
        ended_ms = now_ms()
        if len(receipts) != count:
            self._books.wrong(f"{len(receipts)} receipts for {count} messages")
        for entry, (_, low_ms, relative_ms), receipt in zip(entries, whens, receipts, strict=False):
            latest_ms = ended_ms + relative_ms if relative_ms is not None else max(low_ms, ended_ms)
            self._books.acknowledge(entry, receipt, (low_ms, latest_ms))
        self._mine += entries

    def _padding(self) -> bytes:
        size = self._dice.choice((0, 20, 200, 200, 3_000))
        return self._dice.choice((b".", b".", b"\xff")) * size

    def _delay_ms(self) -> int:
        return self._dice.choice(
            (
                0,
                self._dice.randint(1, 60),
                self._dice.randint(60, NEAR_MS_MAX),
                self._dice.randint(60, NEAR_MS_MAX),
                self._dice.randint(900, 1_100),  # many in few milliseconds
                self._dice.randint(FAR_MS_MIN, FAR_MS_MAX),
            )
        )

    def _when(self, at_ms: int) -> tuple[dict[str, Any], int, int | None]:
        """The fields of a draft, the earliest due time that they allow, the delay if it is relative."""
        choice = self._dice.random()
        if choice < 0.1:
            level = self._dice.choice(list(LEVELS_MS))
            return {"delay_level": level}, at_ms + LEVELS_MS[level], LEVELS_MS[level]
        delay_ms = self._delay_ms()
        if choice < 0.3:
            return {"deliver_at_ms": at_ms + delay_ms}, at_ms + delay_ms, None
        return {"delay_ms": delay_ms}, at_ms + delay_ms, delay_ms

    # ------------------------------------------------------------------ changing one's mind

    async def _recall(self, client: Client, entry: Entry) -> None:
        try:
            await client.recall(entry.id)
            if entry.fate is Fate.RECALLED:
                self._books.wrong(f"{entry.key} could be recalled twice")
            elif entry.fate is Fate.OWED:
                entry.fate = Fate.RECALLED
        except ConflictError as error:
            self._check_conflict(entry, error)
        except NotFoundError:
            self._check_gone(entry)
        except CUT_OFF as error:
            self._check_cut_off(error)
            await self._look_up(client, entry, None)
        except ClientError as error:
            self._check_refusal(error)

    async def _reschedule(self, client: Client, entry: Entry) -> None:
        delay_ms, begun_ms = self._delay_ms(), now_ms()
        try:
            sent = await client.reschedule(entry.id, delay_ms=delay_ms)
            if entry.fate is Fate.RECALLED:
                self._books.wrong(f"{entry.key} was recalled and then rescheduled")
            self._books.move(entry, sent.due_ms, (begun_ms + delay_ms, now_ms() + delay_ms))
        except ConflictError as error:
            self._check_conflict(entry, error)
        except NotFoundError:
            self._check_gone(entry)
        except CUT_OFF as error:
            self._check_cut_off(error)
            await self._look_up(client, entry, (begun_ms + delay_ms, now_ms() + delay_ms))
        except ClientError as error:
            self._check_refusal(error)

    async def _look_up(self, client: Client, entry: Entry, dues_ms: tuple[int, int] | None) -> None:
        """Ask what became of it, for as long as it takes: the loop ends with the service up."""
        while True:
            await self._signals.up.wait()
            try:
                message = await client.get(entry.id)
            except NotFoundError:
                self._check_gone(entry)
                if entry.fate is Fate.OWED:
                    entry.fate = Fate.RETIRED
                return
            except CUT_OFF:
                await asyncio.sleep(0)
            except ClientError as error:
                self._check_refusal(error)
                if error.code != "not_ready":
                    return
            else:
                self._books.learn(entry, message, dues_ms)
                return

    def _check_conflict(self, entry: Entry, error: ConflictError) -> None:
        if error.code == "already_recalled":
            if entry.fate is Fate.OWED:
                self._books.wrong(f"{entry.key} is recalled, and no recall may have stored that: {entry}")
        elif entry.fate is Fate.RECALLED:
            self._books.wrong(f"{entry.key} was recalled; now the service says {error.code}")

    def _check_gone(self, entry: Entry) -> None:
        """Only what was delivered or recalled may go past its retention."""
        if entry.fate is Fate.OWED and entry.due_ms > now_ms():
            self._books.wrong(f"{entry.key} waits, but the service does not know it: {entry}")

    def _check_refusal(self, error: ClientError) -> None:
        if error.code != "not_ready":
            self._books.wrong(f"answered {error.status} {error.code}: {error.detail}")

    def _check_cut_off(self, error: ClientError) -> None:
        if error.code == "timeout":
            self._books.wrong(f"no answer: {error.detail}")


def _text_or_bytes(entry: Entry) -> str | bytes:
    return entry.body.decode() if entry.padding.isascii() else entry.body


class Reader:
    """Reads one queue by offset."""

    def __init__(self, url: str, books: Books, signals: Signals, queue: Queue) -> None:
        self._address = f"{url}/v1/topics/{queue[0]}/queues/{queue[1]}/messages"
        self._books = books
        self._signals = signals
        self.queue = queue

    async def follow(self) -> None:
        """Long polls from the beginning on until it is over."""
        offset = 0
        async with aiohttp.ClientSession() as session:
            while not self._signals.over.is_set():
                await self._signals.up.wait()
                page = await self.page(session, offset, wait_ms=2_000)
                if page is None:
                    await self._signals.pause(0.02)
                    continue
                if page["min_offset"] > offset:
                    self._books.retired += page["min_offset"] - offset
                offset = page["next_offset"]

    async def again(self, session: aiohttp.ClientSession, offset: int, count_max: int) -> None:
        """Read a stretch another time: offsets must mean what they meant."""
        while count_max > 0:
            page = await self.page(session, offset)
            if page is None or not page["messages"]:
                return
            offset = page["next_offset"]
            count_max -= len(page["messages"])

    async def page(
        self, session: aiohttp.ClientSession, offset: int, wait_ms: int = 0
    ) -> dict[str, Any] | None:
        """One page, entered into the books; None if the service could not be asked."""
        query = {"offset": offset, "max": _PAGE, "wait_ms": wait_ms}
        timeout = aiohttp.ClientTimeout(total=_CALL_S)
        before = self._books.begin_of(self.queue)  # not later: another call may be answered in the meantime
        try:
            async with session.get(self._address, params=query, timeout=timeout) as response:
                status, raw = response.status, await response.read()
        except TimeoutError:
            self._books.wrong(f"{self.queue}: a read from {offset} was not answered")
            return None
        except (aiohttp.ClientError, OSError):
            return None
        if status != 200:
            is_early = status == 404 and offset == 0  # nothing was sent to the topic yet
            if status != 503 and not is_early:
                self._books.wrong(f"{self.queue}: a read from {offset} was answered {status} {raw!r}")
            return None
        page: dict[str, Any] = orjson.loads(raw)
        self._books.bounds(self.queue, page["min_offset"], before)
        self._enter(offset, page)
        return page

    def _enter(self, offset: int, page: dict[str, Any]) -> None:
        first = max(offset, page["min_offset"])
        offsets = [message["offset"] for message in page["messages"]]
        if offsets != list(range(first, page["next_offset"])):
            self._books.wrong(f"{self.queue} from {offset}: {page['next_offset']=}, but offsets {offsets}")
        for message in page["messages"]:
            self._books.receive(self.queue, message)
