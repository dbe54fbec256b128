"""Listings of pending timers: those of a dictionary in order, whatever the wheel did, and no more is read."""

import random

import numpy as np
import pytest

from tests.harness.undone import undone
from timerwheel.index.lookups import FAR_MS, IndexReader, Window
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import DAY_MS, HOUR_MS, MINUTE_MS, first_horizons
from timerwheel.wheel.slot_table import ADD, ENTRY_DTYPE, REMOVE

NOW_MS = 1_750_000_000_123
REACHES_MS = (20_000, 10 * MINUTE_MS, 5 * HOUR_MS, 4 * DAY_MS, 60 * DAY_MS)
TOPICS = 3

Timer = tuple[int, int, int]
"""Due time, root, topic."""


def entry(offset: int, timer: Timer, op: int) -> tuple[int, ...]:
    due_ms, root, topic = timer
    return (due_ms, root, offset, 200, topic, 0, 0, op, 0)


class Built:
    """A wheel that grew by commits and cascades, beside what is pending."""

    def __init__(self, txn, dice: random.Random) -> None:
        self.pending: dict[int, Timer] = {}
        self.horizons = first_horizons(NOW_MS)
        self.staged = np.zeros(0, ENTRY_DTYPE)
        now_ms, sequence, count = NOW_MS, 0, 0
        for _ in range(dice.randint(1, 5)):
            sequence, _ = slot_table.put(txn, self.staged, self.horizons, sequence)
            rows = []
            for _ in range(dice.randint(0, 40)):
                count += 1
                due_ms = now_ms + dice.randrange(dice.choice(REACHES_MS))
                self.pending[8 * count] = timer = (
                    due_ms,
                    dice.randrange(1 << 20) * 100 + count,
                    count % TOPICS,
                )
                rows.append(entry(8 * count, timer, ADD))
            ended = dice.sample(sorted(self.pending), len(self.pending) // 4)
            rows += [entry(offset, self.pending.pop(offset), REMOVE) for offset in ended]
            self.staged = np.array(rows, ENTRY_DTYPE)
            now_ms += dice.choice((0, 1_000, HOUR_MS, 2 * DAY_MS))
            for _ in range(dice.randint(0, 30)):
                self.horizons, sequence, moved = slot_table.cascade(
                    txn, self.horizons, now_ms, entries_max=dice.choice((1, 5, 100)), sequence=sequence
                )
                if not moved:
                    break

    def expected(self, window: Window) -> list[tuple[int, int]]:
        found = []
        for due_ms, root, topic in sorted(self.pending.values()):
            is_later = (due_ms, root) > (window.after_due_ms, window.after_root)
            if is_later and due_ms < window.to_ms and window.topic_id in (None, topic):
                found.append((due_ms, root))
        return found


def places(found: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(found["due_ms"].tolist(), found["root"].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_pages_have_what_is_pending_in_due_order(index, seed):
    dice = random.Random(seed)
    with undone(index) as txn:
        built = Built(txn, dice)
        reader = IndexReader(txn, built.staged, built.horizons)
        for _ in range(10):
            begin_ms = NOW_MS + dice.randrange(-1, dice.choice(REACHES_MS))
            window = Window(
                dice.choice((-1, begin_ms)),
                -1,
                dice.choice((FAR_MS, begin_ms + dice.randrange(dice.choice(REACHES_MS)))),
                dice.choice((None, *range(TOPICS))),
            )
            expected = built.expected(window)
            assert places(reader.pending(window, 1 << 30)) == expected
            size, found = dice.randint(1, 7), []
            while page := places(reader.pending(window, size)):
                found += page
                window = window._replace(after_due_ms=page[-1][0], after_root=page[-1][1])
            assert found == expected


class Seen:
    """A transaction that counts the pages that are read."""

    def __init__(self, txn) -> None:
        self._txn = txn
        self.pages_read = 0
        self.first_key = txn.first_key

    def pages(self, table, start, stop=None):
        for found in self._txn.pages(table, start, stop):
            self.pages_read += 1
            yield found


def test_the_first_of_many_is_found_without_a_look_at_the_slots_behind_it(index):
    with undone(index) as txn:
        horizons = first_horizons(NOW_MS)
        delays_ms = [1_000, HOUR_MS, *range(3 * DAY_MS, 1_003 * DAY_MS, DAY_MS)]
        timers = [(NOW_MS + delay_ms, 8 * number, 0) for number, delay_ms in enumerate(delays_ms)]
        rows = [entry(8 * number, timer, ADD) for number, timer in enumerate(timers)]
        slot_table.put(txn, np.array(rows, ENTRY_DTYPE), horizons, 0)
        seen = Seen(txn)
        reader = IndexReader(seen, np.zeros(0, ENTRY_DTYPE), horizons)
        assert places(reader.pending(Window(-1, -1, FAR_MS), 1)) == [timers[0][:2]]
        assert seen.pages_read == 1
        due_ms, root, _ = timers[500]
        assert places(reader.pending(Window(due_ms, root, FAR_MS), 2)) == [t[:2] for t in timers[501:503]]
        assert seen.pages_read <= 5
        assert reader.next_due_ms(()) == timers[0][0]
        assert seen.pages_read <= 6


@pytest.mark.parametrize("spread_ms", [1, 5, 50_000])
def test_short_pages_of_one_full_slot_are_in_order_too(index, spread_ms):
    dice = random.Random(spread_ms)
    with undone(index) as txn:
        horizons = first_horizons(NOW_MS)
        begin_ms = horizons.hour_until + 10 * DAY_MS
        dues_ms = [begin_ms + dice.randrange(spread_ms) for _ in range(400)]
        timers = [(due_ms, dice.randrange(1 << 20) * 400 + n, 0) for n, due_ms in enumerate(dues_ms)]
        rows = [entry(8 * number, timer, ADD) for number, timer in enumerate(timers)]
        rows += [entry(8 * number, timers[number], REMOVE) for number in range(0, 400, 3)]
        slot_table.put(txn, np.array(rows, ENTRY_DTYPE), horizons, 0)
        reader = IndexReader(txn, np.zeros(0, ENTRY_DTYPE), horizons)
        window, found = Window(-1, -1, FAR_MS), []
        while page := places(reader.pending(window, 7)):
            found += page
            window = window._replace(after_due_ms=page[-1][0], after_root=page[-1][1])
        assert found == sorted(timer[:2] for number, timer in enumerate(timers) if number % 3)
