"""What the shop of the demo sends, as drafts: pure functions of a time, a random generator and a number.

order-timeouts   closes an order that is not paid within 30 minutes; payment recalls it by its key
parcels          packed a few seconds after payment; a few addresses are wrong, and those never succeed
mails            confirmations, seconds after the order
reminders        "your subscription ends soon", days to months ahead, by day and not by night
flash-sale       some hundred messages due in one second, every five minutes
evening-offer    thousands of messages due around one time of the day: the rush
"""

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

from numpy.random import Generator

from timerwheel.client import Draft

SECOND_MS, MINUTE_MS, DAY_MS = 1_000, 60_000, 86_400_000

TIMEOUTS, PARCELS, MAILS, REMINDERS = "order-timeouts", "parcels", "mails", "reminders"
FLASH_SALE, EVENING_OFFER, REPORTS, STOCK = "flash-sale", "evening-offer", "reports", "stock-checks"

TIMEOUT_MS = 30 * MINUTE_MS
UNPAID_SHARE = 0.3
REMINDER_SHARE = 0.1
WRONG_ADDRESS_SHARE = 0.01
REMINDER_DAYS = 60
REMINDERS_AT_START = 4_000
WRONG_ADDRESSES_AT_START = 3
MAILS_AT_START, MAILS_TAKE_MS = 300, 20 * SECOND_MS
OFFERS = 5_000
OFFER_TAIL_MS = 5 * MINUTE_MS
OFFERS_AT_ONCE_SHARE = 0.5
FLASH_SALE_MESSAGES = 400
FLASH_SALE_EVERY_MS = 5 * MINUTE_MS
FIRST_ORDER = 1_001
UNKNOWN = "unknown"
OPENS, CLOSES = 8, 21  # reminders are due at these hours of the day, and between
NAMES = ("Ada", "Ben", "Chen", "Dana", "Emil", "Fatma", "Goran", "Hana", "Ines", "Jan")


def next_hour_ms(now_ms: int, hour: int) -> int:
    """Return when the local clock next shows this full hour."""
    now = dt.datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006 - the clock on the wall, whose day it is
    found = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    if found <= now:
        found += dt.timedelta(days=1)
    return int(found.timestamp() * 1000)


def next_flash_sale_ms(now_ms: int) -> int:
    """Return the first start of a flash sale that is at least a minute away."""
    return -(-(now_ms + MINUTE_MS) // FLASH_SALE_EVERY_MS) * FLASH_SALE_EVERY_MS


def order_key(number: int) -> str:
    """Return the deduplication key of an order's time-out."""
    return f"order-{number}"


def timeout(number: int, delay_ms: int, random: Generator) -> Draft:
    """Return what closes this order after the delay."""
    return {
        "topic": TIMEOUTS,
        "body": _json(order=number, customer=_name(random), total=_total(random)),
        "delay_ms": delay_ms,
        "dedup_key": order_key(number),
        "tags": "unpaid",
        "keys": order_key(number),
    }


def confirmation(number: int, random: Generator) -> Draft:
    """Return the mail that confirms an order, a few seconds later."""
    delay_ms = int(random.integers(1, 6)) * SECOND_MS
    return {"topic": MAILS, "body": _json(order=number, mail="thank you"), "delay_ms": delay_ms}


def parcel(number: int, random: Generator, *, wrong_address: bool) -> Draft:
    """Return what has a paid order packed, a few seconds later."""
    address = UNKNOWN if wrong_address else f"{int(random.integers(1, 99))} Market Street"
    delay_ms = int(random.integers(1_000, 8_000))
    body = _json(order=number, address=address)
    return {"topic": PARCELS, "body": body, "delay_ms": delay_ms, "keys": order_key(number)}


def has_wrong_address(body: str | bytes) -> bool:
    """Whether a parcel with this body can never be packed."""
    return bool(json.loads(body)["address"] == UNKNOWN)


def reminder(now_ms: int, random: Generator) -> Draft:
    """Return a reminder that is due on one of the coming days, during the day."""
    day = dt.date.fromtimestamp(now_ms / 1000) + dt.timedelta(  # noqa: DTZ012 - as above
        days=1 + int(random.exponential(REMINDER_DAYS / 4)) % REMINDER_DAYS
    )
    minute = int(random.triangular(OPENS * 60, (OPENS + 1) * 60, CLOSES * 60))
    due = dt.datetime.combine(day, dt.time()) + dt.timedelta(minutes=minute)
    due_ms = int(due.timestamp() * 1000) + int(random.integers(0, MINUTE_MS))
    body = _json(customer=_name(random), text="your subscription ends in a week")
    return {"topic": REMINDERS, "body": body, "deliver_at_ms": due_ms, "tags": "renewal"}


def flash_sale(at_ms: int) -> list[Draft]:
    """Return the messages of a flash sale, which are all due in one second."""
    return [
        {"topic": FLASH_SALE, "body": _json(device=number), "deliver_at_ms": at_ms + number % SECOND_MS}
        for number in range(FLASH_SALE_MESSAGES)
    ]


def evening_offers(rush_ms: int, random: Generator) -> list[Draft]:
    """Return the rush: half of it is due in one second, the rest in the minutes after it."""
    drafts: list[Draft] = []
    for number in range(OFFERS):
        if random.random() < OFFERS_AT_ONCE_SHARE:
            after_ms = int(random.integers(0, SECOND_MS))
        else:
            after_ms = int(random.exponential(OFFER_TAIL_MS / 5)) % OFFER_TAIL_MS
        body = _json(customer=number, text="today only")
        drafts.append({"topic": EVENING_OFFER, "body": body, "deliver_at_ms": rush_ms + after_ms})
    return drafts


def stock(now_ms: int, rush_ms: int, orders_per_s: float, random: Generator) -> Iterator[Draft]:
    """Yield what is scheduled when the demo begins.

    The orders have numbers below `FIRST_ORDER + open_orders(...)`. Mails and parcels are due within seconds:
    they are the first that fire, and so the demo's past.
    """
    for number in range(open_orders(orders_per_s)):
        yield timeout(FIRST_ORDER + number, int(random.integers(1_000, TIMEOUT_MS)), random)
    for number in range(MAILS_AT_START):
        delay_ms = int(random.integers(0, MAILS_TAKE_MS))
        yield {"topic": MAILS, "body": _json(order=number, mail="shipped"), "delay_ms": delay_ms}
    for number in range(WRONG_ADDRESSES_AT_START):
        yield parcel(number, random, wrong_address=True)
    for _ in range(REMINDERS_AT_START):
        yield reminder(now_ms, random)
    yield from flash_sale(next_flash_sale_ms(now_ms))
    yield from evening_offers(rush_ms, random)


def open_orders(orders_per_s: float) -> int:
    """Return how many unpaid orders are open at a time, at this rate."""
    return int(orders_per_s * TIMEOUT_MS / SECOND_MS * UNPAID_SHARE)


def _json(**fields: Any) -> str:  # noqa: ANN401 - the values of a JSON object
    return json.dumps(fields)


def _name(random: Generator) -> str:
    return NAMES[int(random.integers(len(NAMES)))]


def _total(random: Generator) -> str:
    return f"{random.integers(500, 20_000) / 100:.2f} EUR"
