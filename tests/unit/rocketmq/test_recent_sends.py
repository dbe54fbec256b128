"""Sends that a client repeats are stored once, as long as they are remembered."""

import asyncio

import pytest

from tests.harness.clock import ManualClock
from timerwheel.model.messages import Receipt, State
from timerwheel.rocketmq.grpc import recent_sends
from timerwheel.rocketmq.grpc.recent_sends import WINDOW_MS, Outcome, RecentSends


class Store:
    def __init__(self) -> None:
        self.places: list[list[int]] = []
        self.pending: list[Outcome] = []
        self.at_once = True
        self.fault: Exception | None = None

    def __call__(self, places: list[int]) -> Outcome:
        self.places.append(places)
        self.pending.append(asyncio.get_running_loop().create_future())
        if self.at_once:
            self.end()
        return self.pending[-1]

    def end(self) -> None:
        count = len(self.places)
        if self.fault is not None:
            self.pending[-1].set_exception(self.fault)
        else:
            receipts = [Receipt(f"{count}-{place}", "t", 0, State.DELIVERED) for place in self.places[-1]]
            self.pending[-1].set_result(receipts)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def recent(clock) -> RecentSends:
    return RecentSends(clock.monotonic_ms)


async def once(recent: RecentSends, names: list[recent_sends.Name], store: Store) -> list[Receipt]:
    """What `recent.once` returns or raises, when it knows how that ended."""
    try:
        return await recent.once(names, store)
    finally:
        await asyncio.sleep(0)


async def test_a_repeat_within_the_window_gets_the_first_receipt(recent, clock):
    store = Store()
    (first,) = await once(recent, [("t", "a")], store)
    clock.advance(WINDOW_MS - 1)
    again, new = await once(recent, [("t", "a"), ("t", "b")], store)
    assert (again, new.id) == (first, "2-1")
    assert store.places == [[0], [1]]
    clock.advance(1)
    await once(recent, [("t", "a")], store)
    assert store.places == [[0], [1], [0]]


async def test_the_same_id_in_another_topic_is_another_message(recent):
    store = Store()
    await recent.once([("t", "a"), ("u", "a"), ("t", "a")], store)
    assert store.places == [[0, 1]]


async def test_a_repeat_waits_for_the_first_even_if_its_client_has_gone(recent):
    store = Store()
    store.at_once = False
    first = asyncio.create_task(recent.once([("t", "a")], store))
    await asyncio.sleep(0)
    second = asyncio.create_task(recent.once([("t", "a")], store))
    await asyncio.sleep(0)
    first.cancel()
    store.end()
    (receipt,) = await second
    assert (receipt.id, store.places) == ("1-0", [[0]])


async def test_a_send_that_is_refused_is_not_remembered(recent):
    def refuse(_: list[int]) -> Outcome:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await recent.once([("t", "a")], refuse)
    assert len(recent) == 0


async def test_a_send_that_failed_is_not_remembered(recent):
    store = Store()
    store.fault = ValueError("refused")
    for _ in range(2):
        with pytest.raises(ValueError, match="refused"):
            await once(recent, [("t", "a")], store)
    assert (len(recent), store.places) == (0, [[0], [0]])


async def test_no_more_are_remembered_than_allowed(recent, monkeypatch):
    monkeypatch.setattr(recent_sends, "COUNT_MAX", 3)
    store = Store()
    for number in range(10):
        await once(recent, [("t", str(number))], store)
    await once(recent, [("t", "9")], store)
    assert (len(recent), len(store.places)) == (3, 10)
