import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.undone import undone
from timerwheel.store.keys import slot_of
from timerwheel.store.pages import PAGE_ROWS_MAX
from timerwheel.store.record import NO_OFFSET, Kind
from timerwheel.store.table import ROW_DTYPE
from timerwheel.wheel import slot_table
from timerwheel.wheel.geometry import DAY_MS, HOUR_MS, MINUTE_MS, SLOT_MS, Level, first_horizons, place
from timerwheel.wheel.slot_table import ADD, ENTRY_DTYPE, REMOVE

NOW_MS = 1_750_000_000_123
YEAR_MS = 365 * DAY_MS
FAR_MS = 1 << 62


class Driven:
    """A wheel in one transaction beside the dictionary that it must agree with."""

    def __init__(self, txn) -> None:
        self.txn = txn
        self.now_ms = NOW_MS
        self.horizons = first_horizons(NOW_MS)
        self.sequence = 0
        self.count = 0
        self.pending: dict[int, tuple[int, int]] = {}  # offset -> (due, root)

    def entry(self, offset: int, due_ms: int, root: int, op: int) -> tuple:
        return (due_ms, root, offset, 200, 7, 1, offset // 8 % 5, op, 0)

    def write(self, chosen: list[tuple]) -> None:
        """As one commit of the index does."""
        found = slot_table.cancel_out(np.array(chosen, ENTRY_DTYPE))
        self.sequence, lost = slot_table.put(self.txn, found, self.horizons, self.sequence)
        slot_table.drop_empty(self.txn, lost, self.horizons)

    def add(self, delays_ms: list[int], *, roots_down: bool = False) -> list[tuple]:
        chosen = []
        for delay_ms in delays_ms:
            self.count += 1
            offset = 64 + 8 * self.count
            root = (1 << 40) - offset if roots_down else offset
            due_ms = max(self.now_ms + delay_ms, 0)
            self.pending[offset] = (due_ms, root)
            chosen.append(self.entry(offset, due_ms, root, ADD))
        return chosen

    def remove(self, picks: list[int]) -> list[tuple]:
        chosen = []
        for pick in picks:
            if self.pending:
                offset = sorted(self.pending)[pick % len(self.pending)]
                chosen.append(self.entry(offset, *self.pending.pop(offset), REMOVE))
        return chosen

    def cascade(self, steps: int, entries_max: int) -> bool:
        """Returns whether there is more to do."""
        more = True
        for _ in range(steps):
            self.horizons, self.sequence, more = slot_table.cascade(
                self.txn, self.horizons, self.now_ms, entries_max=entries_max, sequence=self.sequence
            )
            if not more:
                break
        return more

    def cascade_all(self, entries_max: int = 5) -> None:
        assert not self.cascade(20 * self.count + 200, entries_max)

    def slots(self) -> list[tuple[Level, int]]:
        return sorted(
            {(Level(level), start) for level, start in (slot_of(k) for k, _ in self.txn.items("wheel"))}
        )

    def compact(self, pick: int) -> None:
        """Compact one slot, whatever is in it; as the engine does, never a second."""
        coarse = [slot for slot in self.slots() if slot[0] != Level.SECOND]
        if coarse:
            slot = coarse[pick % len(coarse)]
            self.sequence = slot_table.compact(self.txn, slot, self.horizons, self.sequence)

    def loaded(self) -> list[int]:
        """Offsets of what may be loaded, in the order of firing."""
        until = slot_table.loadable_until(self.txn, self.horizons)
        return slot_table.net(slot_table.load(self.txn, 0, until, 1 << 60)[0])["offset"].tolist()

    def fire(self) -> None:
        """Take out what is due, as the engine's commit after firing does."""
        until = slot_table.loadable_until(self.txn, self.horizons)
        found, _ = slot_table.load(self.txn, 0, min(until, self.now_ms // 1000 * 1000), 1 << 60)
        fired = slot_table.net(found)["offset"].tolist()
        self.write([self.entry(offset, *self.pending.pop(offset), REMOVE) for offset in fired])

    def ordered(self, before_ms: int = FAR_MS) -> list[int]:
        chosen = [(*self.pending[offset], offset) for offset in self.pending]
        return [offset for due_ms, _, offset in sorted(chosen) if due_ms < before_ms]

    def check(self) -> None:
        slots: dict[tuple[int, int], int] = {}
        parts = []
        for key, page in self.txn.pages("wheel", b""):
            level, start_ms = slot_of(key)
            rows = page.rows(ENTRY_DTYPE)
            assert (rows["due_ms"] // SLOT_MS[level] * SLOT_MS[level] == start_ms).all()
            assert len(rows) <= PAGE_ROWS_MAX
            removes = int(np.count_nonzero(rows["op"] == REMOVE))
            head = page.head()
            assert head.weight == len(rows) - 2 * removes
            assert head.mask == sum(1 << level for level in set(rows["delay_level"].tolist()))
            slots[(level, start_ms)] = slots.get((level, start_ms), 0) + head.weight
            parts.append(rows)
        everything = np.concatenate(parts) if parts else np.zeros(0, ENTRY_DTYPE)
        # Invariant 1: each offset at most once added and once removed.
        for op in (ADD, REMOVE):
            offsets = everything["offset"][everything["op"] == op].tolist()
            assert len(offsets) == len(set(offsets))
        assert slot_table.net(everything)["offset"].tolist() == self.ordered()
        weights = [
            ((level, start_ms), weight)
            for level in Level
            for start_ms, weight, _ in slot_table.slot_weights(self.txn, level, 0, FAR_MS)
        ]
        assert dict(weights) == slots
        assert len(weights) == len(slots)
        assert sum(weight for _, weight in weights) == len(self.pending)
        # Invariant 3: what may be loaded is complete.
        until = slot_table.loadable_until(self.txn, self.horizons)
        assert self.loaded() == self.ordered(until)


DELAYS = st.one_of(
    st.integers(-20_000, 5_000),
    st.integers(0, 3 * MINUTE_MS),
    st.integers(0, 3 * HOUR_MS),
    st.integers(0, 3 * DAY_MS),
    st.integers(0, 400 * DAY_MS),
    st.sampled_from([0, MINUTE_MS, HOUR_MS, DAY_MS, 10 * YEAR_MS]),
)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(DELAYS, max_size=10), st.booleans()),
    st.tuples(st.just("remove"), st.lists(st.integers(0, 50), max_size=5)),
    st.tuples(st.just("both"), st.lists(DELAYS, max_size=5), st.lists(st.integers(0, 50), max_size=5)),
    st.tuples(st.just("clock"), DELAYS | st.integers(-3 * DAY_MS, 0)),
    st.tuples(st.just("cascade"), st.integers(1, 12), st.integers(1, 5)),
    st.tuples(st.just("fire")),
    st.tuples(st.just("compact"), st.integers(0, 20)),
)


def take(driven: Driven, step: tuple) -> None:
    match step:
        case ("add", delays, roots_down):
            driven.write(driven.add(delays, roots_down=roots_down))
        case ("remove", picks):
            driven.write(driven.remove(picks))
        case ("both", delays, picks):
            driven.write([*driven.add(delays), *driven.remove(picks)])
        case ("clock", step_ms):
            driven.now_ms = max(driven.now_ms + step_ms, 0)
        case ("cascade", steps, entries_max):
            driven.cascade(steps, entries_max)
        case ("fire",):
            driven.fire()
        case ("compact", pick):
            driven.compact(pick)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_wheel_holds_what_a_dictionary_of_pending_timers_holds(index, steps):
    with undone(index) as txn:
        driven = Driven(txn)
        for step in steps:
            take(driven, step)
            driven.check()
        driven.cascade_all()
        driven.check()
        driven.now_ms += 20 * YEAR_MS
        driven.cascade_all()
        driven.check()
        assert driven.loaded() == driven.ordered()


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=20))
def test_no_slot_is_left_when_every_timer_is_gone(index, steps):
    with undone(index) as txn:
        driven = Driven(txn)
        for step in steps:
            take(driven, step)
        driven.now_ms += 20 * YEAR_MS
        driven.cascade_all(entries_max=1)
        driven.fire()
        driven.check()
        assert driven.pending == {}
        assert [slot_of(key) for key, _ in txn.pages("wheel", b"")] == []


def test_slot_whose_timers_were_recalled_before_it_cascaded_in_steps_leaves_nothing(index):
    with undone(index) as txn:
        driven = Driven(txn)
        for _ in range(3):
            driven.write(driven.add([10 * MINUTE_MS]))
        driven.write(driven.remove([0, 0, 0]))
        driven.now_ms += 8 * MINUTE_MS
        driven.cascade_all(entries_max=1)
        assert [slot_of(key) for key, _ in txn.pages("wheel", b"")] == []


def test_second_slot_emptied_while_a_coarser_slot_is_still_being_moved_leaves_nothing(index):
    with undone(index) as txn:
        driven = Driven(txn)
        for _ in range(4):
            driven.write(driven.add([10 * MINUTE_MS]))
        driven.now_ms += 8 * MINUTE_MS
        while not list(slot_table.slot_weights(txn, Level.SECOND, 0, FAR_MS)):
            driven.cascade(1, 1)
        assert slot_table.first_slot(txn, Level.MINUTE) is not None
        driven.write(driven.remove([0, 0, 0, 0]))
        driven.cascade_all(entries_max=1)
        driven.check()
        assert [slot_of(key) for key, _ in txn.pages("wheel", b"")] == []


def test_a_second_slot_that_more_can_come_down_to_is_not_dropped_though_its_counts_are_even(index):
    """Of two timers of one second one came down; the other one, still above, is recalled."""
    with undone(index) as txn:
        driven = Driven(txn)
        [stays] = driven.add([10 * MINUTE_MS])
        driven.write([stays])
        [recalled] = driven.add([10 * MINUTE_MS])
        driven.write([recalled])
        driven.now_ms += 8 * MINUTE_MS
        while driven.horizons.second_until <= stays[0]:
            assert driven.cascade(1, 1)
        assert None not in (
            slot_table.first_slot(txn, Level.SECOND),
            slot_table.first_slot(txn, Level.MINUTE),
        )
        offset = recalled[2]
        driven.write([driven.entry(offset, *driven.pending.pop(offset), REMOVE)])
        driven.cascade_all(1)
        driven.check()
        assert driven.loaded() == [stays[2]]


def crowded(driven, removed, kept, delay_ms=40 * DAY_MS):
    """Whether a slot with so many timers is crowded once those removed have been, and the slot."""
    driven.write(driven.add([delay_ms] * (removed + kept)))
    driven.write(driven.remove([0] * removed))
    [slot] = driven.slots()
    found = slot_table.crowded(driven.txn, {slot}, driven.horizons)
    assert found in ({slot}, set())
    return bool(found), slot


def test_a_slot_is_crowded_when_a_third_of_its_entries_are_removes_and_they_are_more_than_a_page(index):
    for removed, kept, is_crowded in (
        (PAGE_ROWS_MAX // 2, 0, True),
        (PAGE_ROWS_MAX // 2 - 1, 0, False),
        (PAGE_ROWS_MAX, PAGE_ROWS_MAX, True),
        (PAGE_ROWS_MAX, PAGE_ROWS_MAX + 1, False),
    ):
        with undone(index) as txn:
            assert crowded(Driven(txn), removed, kept)[0] == is_crowded
    with undone(index) as txn:
        assert not crowded(Driven(txn), PAGE_ROWS_MAX, 1, delay_ms=1_000)[0]


def test_compacting_a_slot_leaves_what_is_pending(index):
    with undone(index) as txn:
        driven = Driven(txn)
        _, slot = crowded(driven, PAGE_ROWS_MAX, 10)
        driven.sequence = slot_table.compact(txn, slot, driven.horizons, driven.sequence)
        driven.check()
        assert len(slot_table.slot_entries(txn, *slot)) == 10
        driven.write(driven.remove([0] * 10))
        slot_table.compact(txn, slot, driven.horizons, driven.sequence)
        assert driven.slots() == []


def test_compacting_a_slot_keeps_a_remove_whose_add_is_still_above(index):
    with undone(index) as txn:
        driven = Driven(txn)
        for _ in range(4):
            driven.write(driven.add([40 * DAY_MS]))
        driven.now_ms += 38 * DAY_MS
        while not any(level == Level.HOUR for level, _ in driven.slots()):
            assert driven.cascade(1, 1)
        assert any(level == Level.DAY for level, _ in driven.slots())
        last = sorted(driven.pending)[-1]
        driven.write([driven.entry(last, *driven.pending.pop(last), REMOVE)])
        for slot in driven.slots():
            driven.sequence = slot_table.compact(txn, slot, driven.horizons, driven.sequence)
            driven.check()
        driven.now_ms += 3 * DAY_MS
        driven.cascade_all(1)
        driven.check()
        assert driven.loaded() == driven.ordered()


def test_second_slot_disappears_when_its_last_timer_goes(index):
    with undone(index) as txn:
        driven = Driven(txn)
        driven.write(driven.add([1000, 1001, 1002]))
        driven.write(driven.remove([0]))
        driven.write(driven.remove([0]))
        assert len(list(txn.items("wheel"))) > 0
        driven.check()
        driven.write(driven.remove([0]))
        assert list(txn.items("wheel")) == []


def test_add_and_remove_of_one_commit_cost_no_page(index):
    with undone(index) as txn:
        driven = Driven(txn)
        driven.write([*driven.add([1000, 2 * DAY_MS]), *driven.remove([0, 0])])
        assert list(txn.items("wheel")) == []


def test_crowded_slot_is_kept_in_pages_and_cascades_in_order(index):
    count = 2 * PAGE_ROWS_MAX + 100
    with undone(index) as txn:
        driven = Driven(txn)
        driven.write(driven.add([5 * DAY_MS + i % 7 for i in range(count)], roots_down=True))
        assert len(list(txn.items("wheel"))) == 3
        driven.now_ms += 5 * DAY_MS
        driven.cascade_all(entries_max=100)
        driven.check()
        assert driven.loaded() == driven.ordered()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60_000), max_size=30), st.integers(1, 12), st.integers(0, 60))
def test_load_stops_at_whole_slots_and_goes_on_where_it_stopped(index, delays, entries_max, seconds):
    with undone(index) as txn:
        driven = Driven(txn)
        for delay_ms in delays:
            driven.write(driven.add([delay_ms]))
        at = NOW_MS // 1000 * 1000
        to_ms = at + seconds * 1000
        wanted = driven.ordered(to_ms)
        found = []
        while at < to_ms:
            rows, until_ms = slot_table.load(txn, at, to_ms, entries_max)
            assert at < until_ms <= to_ms
            assert until_ms % 1000 == 0
            part = slot_table.net(rows)
            assert ((part["due_ms"] >= at) & (part["due_ms"] < until_ms)).all()
            found += part["offset"].tolist()
            at = until_ms
        assert found == wanted


def test_cascade_step_moves_at_most_about_the_entries_allowed(index):
    with undone(index) as txn:
        driven = Driven(txn)
        for _ in range(60):
            driven.write(driven.add([10 * MINUTE_MS]))
        driven.now_ms += 8 * MINUTE_MS
        counts = [60]
        while driven.cascade(1, 7):
            left = sum(weight for _, weight, _ in slot_table.slot_weights(txn, Level.MINUTE, 0, FAR_MS))
            counts.append(left)
            driven.check()
        assert counts[-1] == 0
        assert max(before - after for before, after in itertools.pairwise(counts)) == 7


def test_net_orders_by_due_time_and_then_by_root():
    rows = np.array(
        [(5, 9, 1, 0, 0, 0, 0, ADD, 0), (5, 3, 2, 0, 0, 0, 0, ADD, 0), (4, 10, 3, 0, 0, 0, 0, ADD, 0)],
        ENTRY_DTYPE,
    )
    assert slot_table.net(rows)["offset"].tolist() == [3, 2, 1]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), unique=True, max_size=20))
def test_cancel_out_leaves_the_net_set_and_the_lone_removes(chosen):
    rows = np.array([(offset, offset, offset, 0, 0, 0, 0, int(op), 0) for offset, op in chosen], ENTRY_DTYPE)
    left = slot_table.cancel_out(rows)
    kept = set(zip(left["offset"].tolist(), map(bool, left["op"].tolist()), strict=True))
    assert kept == {(offset, op) for offset, op in chosen if (offset, not op) not in chosen}
    assert slot_table.net(left)["offset"].tolist() == slot_table.net(rows)["offset"].tolist()


@given(st.lists(st.integers(-5 * DAY_MS, 400 * DAY_MS), min_size=1, max_size=60), st.randoms())
def test_slot_pages_hold_each_slot_once_finest_level_first_and_rows_by_root(delays_ms, rng):
    horizons = first_horizons(NOW_MS)
    roots = rng.sample(range(10_000), len(delays_ms))
    rows = np.array(
        [
            (NOW_MS + delay, root, root, 0, 0, 0, 0, ADD, 0)
            for delay, root in zip(delays_ms, roots, strict=True)
        ],
        ENTRY_DTYPE,
    )
    found = list(slot_table.slot_pages(rows, horizons))
    slots = [(page.level, page.start_ms) for page in found]
    assert slots == sorted(set(slots))
    for page in found:
        assert (page.rows["root"][1:] > page.rows["root"][:-1]).all()
        levels, starts = place(page.rows["due_ms"], horizons)
        assert set(zip(levels.tolist(), starts.tolist(), strict=True)) == {(page.level, page.start_ms)}
    assert sorted(np.concatenate([page.rows for page in found]).tolist()) == sorted(rows.tolist())


def test_entries_of_rows_name_the_timer_itself_or_its_origin():
    rows = np.zeros(1, ROW_DTYPE)
    rows["kind"], rows["offset"], rows["root"], rows["origin"] = Kind.TIMER, 640, 64, 320
    rows["due_ms"], rows["prior_due_ms"], rows["size"], rows["topic"] = 9000, 4000, 96, 5
    rows["queue"], rows["level"] = 2, 3
    added = slot_table.entries_of(rows, removed=False)[0]
    assert (added["due_ms"], added["offset"], added["root"], added["op"]) == (9000, 640, 64, ADD)
    assert (added["size"], added["topic"], added["queue"], added["delay_level"]) == (96, 5, 2, 3)
    removed = slot_table.entries_of(rows, removed=True)[0]
    assert (removed["due_ms"], removed["offset"], removed["root"], removed["op"]) == (4000, 320, 64, REMOVE)
    assert NO_OFFSET not in (added["offset"], removed["offset"])
