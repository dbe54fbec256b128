"""What the shop of the demo sends: due when a shop's messages are due, and as many as its pace allows."""

import datetime as dt
from collections import Counter

import pytest
from numpy.random import default_rng

from timerwheel.demo import shop

NOW_MS = 1_800_000_123_456
RUSH_MS = NOW_MS + 5 * shop.MINUTE_MS


def local(at_ms):
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).astimezone()


def stock(orders_per_s):
    return list(shop.stock(NOW_MS, RUSH_MS, orders_per_s, default_rng(7)))


def due_ms(draft):
    return draft.get("deliver_at_ms") or NOW_MS + draft["delay_ms"]


def test_nothing_is_due_in_the_past():
    assert min(map(due_ms, stock(5))) >= NOW_MS


def test_orders_have_keys_of_their_own_below_the_first_order_to_come():
    keys = [draft["dedup_key"] for draft in stock(5) if "dedup_key" in draft]
    wanted = range(shop.FIRST_ORDER, shop.FIRST_ORDER + shop.open_orders(5))
    assert sorted(keys) == sorted(map(shop.order_key, wanted))


def test_open_orders_are_what_the_pace_leaves_open_at_a_time():
    assert shop.open_orders(5) == 5 * 1800 * shop.UNPAID_SHARE
    assert shop.open_orders(0.1) == 54


def test_reminders_come_by_day_from_tomorrow_on():
    random = default_rng(1)
    dues = [local(due_ms(shop.reminder(NOW_MS, random))) for _ in range(500)]
    today = local(NOW_MS).date()
    assert {shop.OPENS <= due.hour < shop.CLOSES for due in dues} == {True}
    assert min(dues).date() > today
    assert max(dues).date() <= today + dt.timedelta(days=shop.REMINDER_DAYS)


def test_half_of_the_rush_is_due_in_one_second():
    offers = shop.evening_offers(RUSH_MS, default_rng(2))
    per_second = Counter((due_ms(offer) - RUSH_MS) // 1000 for offer in offers)
    assert len(offers) == shop.OFFERS
    assert per_second[0] > 0.45 * shop.OFFERS
    assert max(per_second) < shop.OFFER_TAIL_MS // 1000
    assert min(per_second) == 0


def test_a_flash_sale_is_due_in_one_second_at_least_a_minute_away():
    at_ms = shop.next_flash_sale_ms(NOW_MS)
    assert {due_ms(draft) // 1000 for draft in shop.flash_sale(at_ms)} == {at_ms // 1000}
    assert shop.MINUTE_MS <= at_ms - NOW_MS <= shop.MINUTE_MS + shop.FLASH_SALE_EVERY_MS
    assert at_ms % shop.FLASH_SALE_EVERY_MS == 0


@pytest.mark.parametrize("hour", [0, 7, 19, 23])
def test_the_next_full_hour_is_ahead_by_a_day_at_most(hour):
    found_ms = shop.next_hour_ms(NOW_MS, hour)
    assert local(found_ms).hour == hour
    assert NOW_MS < found_ms <= NOW_MS + 25 * 3_600_000
    assert shop.next_hour_ms(found_ms, hour) > found_ms


def test_a_wrong_address_is_one_that_the_packers_know_to_be_wrong():
    right = shop.parcel(1, default_rng(3), wrong_address=False)
    wrong = shop.parcel(1, default_rng(3), wrong_address=True)
    assert shop.has_wrong_address(wrong["body"])
    assert not shop.has_wrong_address(right["body"])
