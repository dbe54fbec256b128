"""The life in the demo's service: what is there at the start, and what customers and workers do from then on.

Customers place orders at a steady rate, which bounds everything else: an order is a few messages, and most
orders are paid, which recalls their time-outs. A task that meets an error pauses and continues, because
someone may delete or pause anything in the console.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from numpy.random import Generator

from timerwheel.client import Client, ClientError, Draft, Exponential, GroupConfig, Lease
from timerwheel.clock import Clock
from timerwheel.demo import shop
from timerwheel.demo.endpoints import Endpoints

RETRY_MS = 2_000
ARRAY = 1_000
SOON_MS = 10_000
PAYING_MS = (3_000, 60_000)  # how long customers take to pay, at least and at most
PACKING_MS = (50, 400)
FAILING_SHARE = 0.06
PACKERS = 4
FLASH_SALE_AHEAD_MS = 4 * shop.MINUTE_MS
BACKOFF = Exponential(initial_ms=1_000, factor=2.0, max_ms=60_000)
ATTEMPTS_MAX = 3
REASONS = ("the label printer is out of paper", "the carrier does not answer", "box too small")

CLOSERS, PACKING, MAILERS, SHOPPERS = "closers", "packers", "mailers", "shoppers"


class Pace(NamedTuple):
    """How many orders come in per second, and when the rush is due."""

    orders_per_s: float
    rush_ms: int


class Life:
    """The shop on one service."""

    def __init__(self, client: Client, clock: Clock, random: Generator, pace: Pace) -> None:
        self._client = client
        self._clock = clock
        self._random = random
        self._pace = pace
        self._next_order = shop.FIRST_ORDER + shop.open_orders(pace.orders_per_s)
        self._next_sale_ms = 0

    async def begin(self, hooks: Endpoints, filled: Callable[[], Awaitable[None]]) -> int:
        """Create groups, subscriptions and schedules, and send what is scheduled; returns how many messages.

        Workers of `go_on` find their groups, so no message of the start is missed. `filled` is called when
        all is sent but what is due within SOON_MS, and may take some of that time.
        """
        config = GroupConfig(max_attempts=ATTEMPTS_MAX, backoff=BACKOFF)
        for topic, group in (
            (shop.PARCELS, PACKING),
            (shop.TIMEOUTS, CLOSERS),
            (shop.MAILS, MAILERS),
            (shop.FLASH_SALE, SHOPPERS),
        ):
            await self._client.group(topic, group).put(config)
        await self._client.subscriptions.add(shop.PARCELS, hooks.alive, id="warehouse", start="head")
        await self._client.subscriptions.add(
            shop.MAILS, hooks.dead, id="crm", start="head", max_attempts=ATTEMPTS_MAX, backoff=BACKOFF
        )
        await self._put_schedules()
        now_ms = self._clock.now_ms()
        drafts = list(shop.stock(now_ms, self._pace.rush_ms, self._pace.orders_per_s, self._random))
        soon = [draft for draft in drafts if _is_soon(draft, now_ms)]
        await self._send([draft for draft in drafts if not _is_soon(draft, now_ms)])
        await filled()
        await self._send(soon)
        self._next_sale_ms = shop.next_flash_sale_ms(now_ms) + shop.FLASH_SALE_EVERY_MS
        return len(drafts)

    async def _send(self, drafts: list[Draft]) -> None:
        for at in range(0, len(drafts), ARRAY):
            await self._client.send_many(drafts[at : at + ARRAY])

    async def _put_schedules(self) -> None:
        put = self._client.schedules.put
        await put("daily-report", shop.REPORTS, body="yesterday", cron="30 2 * * *", zone="Europe/Berlin")
        await put("month-end", shop.REPORTS, body="invoices", cron="0 6 1 * *", zone="Europe/Berlin")
        await put("stock-check", shop.STOCK, body="count", every="30s")
        await put("inventory", shop.STOCK, body="count everything", cron="0 22 * * SUN", paused=True)

    async def go_on(self) -> None:
        """Live until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._without_end(self._take_orders))
            tasks.create_task(self._without_end(self._prepare_sales))
            for topic, group, handler, concurrency in (
                (shop.PARCELS, PACKING, self._pack, PACKERS),
                (shop.TIMEOUTS, CLOSERS, _finish, 1),
                (shop.MAILS, MAILERS, _finish, 1),
                (shop.FLASH_SALE, SHOPPERS, _finish, PACKERS),
            ):
                tasks.create_task(self._without_end(self._worker(topic, group, handler, concurrency)))

    async def _without_end(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except ClientError:
                await self._clock.sleep_for(RETRY_MS)

    # ------------------------------------------------------------------ customers

    async def _take_orders(self) -> None:
        """Let customers come, at the pace of the shop."""
        async with asyncio.TaskGroup() as customers:
            while True:
                await self._clock.sleep_for(int(self._random.exponential(1000 / self._pace.orders_per_s)))
                number, self._next_order = self._next_order, self._next_order + 1
                customers.create_task(self._buy(number))

    async def _buy(self, number: int) -> None:
        """Place an order, and pay for it in time, or not."""
        try:
            await self._place(number)
            if self._random.random() >= shop.UNPAID_SHARE:
                await self._clock.sleep_for(int(self._random.integers(*PAYING_MS)))
                await self._pay(number)
        except ClientError:
            return  # someone recalled the time-out or deleted a topic: this order is lost, others come

    async def _place(self, number: int) -> None:
        drafts = [
            shop.timeout(number, shop.TIMEOUT_MS, self._random),
            shop.confirmation(number, self._random),
        ]
        if self._random.random() < shop.REMINDER_SHARE:
            drafts.append(shop.reminder(self._clock.now_ms(), self._random))
        await self._client.send_many(drafts)

    async def _pay(self, number: int) -> None:
        """Recall the time-out, and have the parcel packed."""
        wrong_address = self._random.random() < shop.WRONG_ADDRESS_SHARE
        await self._client.recall_key(shop.TIMEOUTS, shop.order_key(number))
        await self._client.send_many([shop.parcel(number, self._random, wrong_address=wrong_address)])

    async def _prepare_sales(self) -> None:
        """Schedule each flash sale some minutes ahead."""
        while True:
            await self._clock.sleep_for(
                max(0, self._next_sale_ms - FLASH_SALE_AHEAD_MS - self._clock.now_ms())
            )
            at_ms, self._next_sale_ms = self._next_sale_ms, self._next_sale_ms + shop.FLASH_SALE_EVERY_MS
            await self._client.send_many(shop.flash_sale(at_ms))

    # ------------------------------------------------------------------ workers

    def _worker(
        self, topic: str, group: str, handler: Callable[[Lease], Awaitable[None]], concurrency: int
    ) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            await self._client.group(topic, group).consume(handler, concurrency=concurrency, create=True)

        return work

    async def _pack(self, lease: Lease) -> None:
        """Pack a parcel; it fails now and then, and always if the address is wrong."""
        await self._clock.sleep_for(int(self._random.integers(*PACKING_MS)))
        if shop.has_wrong_address(lease.body):
            await lease.nack(reason="the carrier does not know this address")
        elif self._random.random() < FAILING_SHARE:
            await lease.nack(reason=REASONS[int(self._random.integers(len(REASONS)))])


def _is_soon(draft: Draft, now_ms: int) -> bool:
    return draft.get("deliver_at_ms", now_ms + draft.get("delay_ms", 0)) < now_ms + SOON_MS


async def _finish(_lease: Lease) -> None:
    """Do nothing: returning acknowledges."""
