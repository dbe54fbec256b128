"""Orders that close themselves: the story that delayed messages exist for.

An order opens and a timer is set for its supplier's own time-out. Payment recalls the timer. If none came
in time, the timer fires and the order is closed. Nobody polls a table of open orders.

    python examples/order_timeout.py --url http://127.0.0.1:8686 --orders 200 --speedup 600

The run ends by proving its own books, in three ways that must agree: what the customers and the closer saw,
the whole topic read once more, and the state of every timer. Exit code 1 if they do not balance.
"""

import argparse
import asyncio
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, field

from timerwheel.client import DEFAULT_URL, Client, ClientError, ConflictError
from timerwheel.clock import SystemClock
from timerwheel.model.messages import State

MINUTE_MS = 60_000
# What a supplier allows between order and payment, minutes.
TIMEOUT_MIN = {"hotel": 30, "tour": 90, "ticket": 45}
OPENING_MIN = 60  # orders open over this time
PAYING_SHARE = 0.7
PAYING_MIN_MAX = 1.1  # of the time-out: some pay too late
LATE_MS_MAX = 30_000  # how long after the last due time the closer is waited for
CLOCK = SystemClock()


@dataclass
class Books:
    """Who opened, paid and was closed; a name may appear in one of the last two only, and once."""

    opened: dict[str, str] = field(default_factory=dict)  # order -> id of its timer
    paid: Counter[str] = field(default_factory=Counter)
    paid_too_late: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    lateness_ms: list[int] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Shop:
    """One run against one service; the topic is the run's own, so that its books are complete."""

    client: Client
    topic: str
    speedup: float
    random: random.Random
    books: Books = field(default_factory=Books)

    def real_ms(self, minutes: float) -> int:
        """Minutes of the story as milliseconds of the run."""
        return round(minutes * MINUTE_MS / self.speedup)

    async def order(self, number: int) -> None:
        """One order from opening to payment; if no payment comes, the closer ends it."""
        supplier = self.random.choice(list(TIMEOUT_MIN))
        opens_min = self.random.uniform(0, OPENING_MIN)
        pays = self.random.random() < PAYING_SHARE
        pays_min = TIMEOUT_MIN[supplier] * self.random.uniform(0, PAYING_MIN_MAX)

        await CLOCK.sleep_for(self.real_ms(opens_min))
        order = f"{supplier}-{number}"
        sent = await self.client.send(
            self.topic,
            json={"order": order, "supplier": supplier},
            delay_ms=self.real_ms(TIMEOUT_MIN[supplier]),
            tags=supplier,
            keys=order,
        )
        self.books.opened[order] = sent.id
        if pays:
            await CLOCK.sleep_for(self.real_ms(pays_min))
            await self.pay(order, sent.id)

    async def pay(self, order: str, timer: str) -> None:
        """The recall decides: if it succeeds the order is paid, if it comes too late the money goes back."""
        try:
            await self.client.recall(timer)
        except ConflictError:
            self.books.paid_too_late += 1
        else:
            self.books.paid[order] += 1
            self.books.changed.set()

    async def close_orders(self) -> None:
        """Close each order whose timer fires; runs until cancelled."""
        async for message in self.client.receive(self.topic):
            self.books.closed[message.json()["order"]] += 1
            self.books.lateness_ms.append(message.lateness_ms or 0)
            self.books.changed.set()

    async def settled(self) -> None:
        """Return when every order is paid or closed."""
        books = self.books
        while len(books.paid | books.closed) < len(books.opened):
            books.changed.clear()
            await books.changed.wait()

    async def faults(self) -> list[str]:
        """What does not balance; none if all is well."""
        books = self.books
        found = []
        if len(books.opened) != books.paid.total() + books.closed.total():
            found.append(
                f"{len(books.opened)} opened, but {books.paid.total()} paid + {books.closed.total()} closed"
            )
        found += [f"{order}: closed {n} times" for order, n in books.closed.items() if n > 1]
        found += [f"{order}: paid and closed" for order in books.paid.keys() & books.closed.keys()]
        found += [
            f"{order}: neither paid nor closed" for order in books.opened.keys() - (books.paid | books.closed)
        ]
        found += [f"a timer fired {-ms} ms early" for ms in books.lateness_ms if ms < 0]
        again: Counter[str] = Counter()
        async for message in self.client.receive(self.topic, follow=False):
            again[message.json()["order"]] += 1
        if again != books.closed:
            found.append("the topic, read again, does not hold what the closer saw")
        for order, timer in books.opened.items():
            state = (await self.client.get(timer)).state
            if state is not (State.RECALLED if order in books.paid else State.DELIVERED):
                found.append(f"{order}: its timer is {state}")
        return found


async def run(url: str, orders: int, speedup: float, seed: int) -> list[str]:
    """Tell the story once; returns what does not balance."""
    topic = f"order-timeouts-{CLOCK.now_ms()}"
    async with Client(url) as client:
        shop = Shop(client, topic, speedup, random.Random(seed))
        begin_ms = CLOCK.monotonic_ms()
        print(f"{orders} orders on topic {topic}, {speedup:g} times as fast as life, seed {seed}")
        closer = asyncio.create_task(shop.close_orders())
        try:
            await asyncio.gather(*(shop.order(number) for number in range(orders)))
            await _wait_for_timers(shop, closer)
        finally:
            closer.cancel()
            await asyncio.gather(closer, return_exceptions=True)
        _tell(shop.books, CLOCK.monotonic_ms() - begin_ms)
        return await shop.faults()


async def _wait_for_timers(shop: Shop, closer: asyncio.Task[None]) -> None:
    """Return when all orders are settled, or too much later; raises what ended the closer."""
    settled = asyncio.create_task(shop.settled())
    wait_s = (shop.real_ms(max(TIMEOUT_MIN.values())) + LATE_MS_MAX) / 1000
    try:
        await asyncio.wait({settled, closer}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if closer.done():
            await closer
        if not settled.done():
            print(f"not all timers fired within {wait_s:g} s", file=sys.stderr)
    finally:
        settled.cancel()


def _tell(books: Books, took_ms: int) -> None:
    late = sorted(books.lateness_ms)
    print(f"opened {len(books.opened):6}  in {took_ms / 1000:.1f} s")
    print(f"paid   {books.paid.total():6}  in time; {books.paid_too_late} more tried when it was too late")
    if late:
        median, worst = late[len(late) // 2], late[-1]
        print(
            f"closed {books.closed.total():6}  by their timers, {median} ms late (median), {worst} ms (worst)"
        )
    else:
        print(f"closed {books.closed.total():6}")


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(
        description="Orders that close themselves when they are not paid in time."
    )
    parser.add_argument("--url", default=os.environ.get("TIMERWHEEL_URL", DEFAULT_URL))
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--speedup", type=float, default=600, help="30 minutes become 3 seconds at 600")
    parser.add_argument("--seed", type=int, default=1, help="the same seed tells the same story")
    given = parser.parse_args()
    if given.orders < 1 or given.speedup <= 0:
        parser.error("--orders and --speedup must be greater than 0")
    try:
        faults = asyncio.run(run(given.url, given.orders, given.speedup, given.seed))
    except ClientError as error:
        print(f"order_timeout: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for fault in faults:
        print(f"WRONG: {fault}", file=sys.stderr)
    if not faults:
        print("The books balance: opened = paid + closed, nothing twice, nothing early.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
