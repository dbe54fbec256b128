import copy
from collections import Counter

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from timerwheel.model.admission import DOMAIN_PROPERTY, HASH_PROPERTY, KEY_PROPERTY
from timerwheel.state.config_table import CONTROL_TOPIC, Put, encode_puts
from timerwheel.state.dedup_key import SCHEDULE_DOMAIN, KeyEntry
from timerwheel.state.groups import Changed
from timerwheel.state.key_columns import NewKeys
from timerwheel.state.memtable import IndexState, Kept, Memtable, QueuePages, SegmentCount
from timerwheel.state.positions import POSITION_DTYPE
from timerwheel.state.state import LogState
from timerwheel.store.index import INDEX_FORMAT
from timerwheel.store.record import (
    FLAG_EARLY,
    FLAG_ENDED,
    FLAG_KEYED,
    FLAG_LEASE,
    FLAG_LIMITED,
    FLAG_RUN,
    NO_OFFSET,
    Kind,
    encode,
)
from timerwheel.store.table import ROW_DTYPE, Table
from timerwheel.wheel.geometry import first_horizons

BASES = (0, 10_000, 20_000)
SIZE = 96
DUE_MS = 50_000


class Written:
    """A log of rows, made the way the engine makes them, and what must follow from it."""

    def __init__(self) -> None:
        self.tail = 64
        self.waiting: dict[int, tuple] = {}  # offset -> (topic, level, due, root)
        self.visible: dict[tuple[str, int], list[int]] = {}
        self.pointers: dict[int, int] = {}

    def row(self, kind: Kind, topic: str, **fields) -> tuple[str, np.ndarray]:
        row = np.zeros(1, ROW_DTYPE)
        row["kind"], row["size"], row["offset"], row["root"] = kind, SIZE, self.tail, self.tail
        row["origin"] = NO_OFFSET
        for name, value in fields.items():
            row[name] = value
        self.tail += SIZE
        return topic, row

    def timer(self, topic: str = "a", level: int = 0, due_ms: int = DUE_MS, store_ms: int = 0):
        self.waiting[self.tail] = (topic, level, due_ms, self.tail)
        return self.row(Kind.TIMER, topic, level=level, due_ms=due_ms, store_ms=store_ms)

    def message(self, topic: str = "a", queue: int = 0, store_ms: int = 0):
        self.visible.setdefault((topic, queue), []).append(self.tail)
        return self.row(Kind.MESSAGE, topic, queue=queue, store_ms=store_ms)

    def fire(self, offset: int, queue: int = 0, flags: int = 0, due_ms: int | None = None):
        topic, level, prior_due_ms, root = self.waiting.pop(offset)
        self.visible.setdefault((topic, queue), []).append(self.tail)
        if flags & FLAG_EARLY:
            self.pointers[root] = self.tail
        return self.row(
            Kind.MESSAGE,
            topic,
            origin=offset,
            root=root,
            level=level,
            prior_level=level,
            prior_due_ms=prior_due_ms,
            due_ms=prior_due_ms if due_ms is None else due_ms,
            queue=queue,
            flags=flags,
        )

    def cancel(self, offset: int):
        topic, level, prior_due_ms, root = self.waiting.pop(offset)
        self.pointers[root] = self.tail
        return self.row(
            Kind.CANCEL, topic, origin=offset, root=root, prior_level=level, prior_due_ms=prior_due_ms
        )

    def move(self, offset: int, level: int, due_ms: int):
        topic, prior_level, prior_due_ms, root = self.waiting.pop(offset)
        self.waiting[self.tail] = (topic, level, due_ms, root)
        self.pointers[root] = self.tail
        return self.row(
            Kind.TIMER,
            topic,
            origin=offset,
            root=root,
            level=level,
            due_ms=due_ms,
            prior_level=prior_level,
            prior_due_ms=prior_due_ms,
        )


def table(*rows: tuple[str, np.ndarray]) -> Table:
    topics = list(dict.fromkeys(topic for topic, _ in rows))
    found = np.concatenate([row for _, row in rows]) if rows else np.zeros(0, ROW_DTYPE)
    found["topic"] = [topics.index(topic) for topic, _ in rows]
    return Table(found, topics)


def new_state() -> LogState:
    log_state = LogState(lambda: BASES)
    log_state.memtable.start = log_state.memtable.until = 64
    return log_state


def apply(log_state: LogState, written: Written, *rows) -> None:
    log_state.apply(table(*rows), written.tail)


def pending(log_state: LogState) -> dict[str, int]:
    return {name: topic.pending for name, topic in log_state.topics.items() if topic.pending}


def tail_of(log_state: LogState, topic: str, queue: int = 0) -> list[int] | None:
    found = log_state.topics[topic].queues[queue]
    positions = log_state.queue_tail(found, found.min_offset, 1_000_000)
    return None if positions is None else positions["offset"].tolist()


def state_of(until: int, snapshot) -> IndexState:
    return IndexState(
        INDEX_FORMAT, b"", until, first_horizons(0), 0, snapshot.fired_until_ms, snapshot.level_pending
    )


# ---------------------------------------------------------------------- taking effect


class Books:
    """What the index was given, as the commits of sealed stages."""

    def __init__(self) -> None:
        self.commits = 0
        self.pointers: dict[int, int] = {}
        self.queues: dict[tuple[int, int], list[int]] = {}

    def settle(self, log_state: LogState, outcome: str) -> None:
        if outcome == "nothing" or (outcome == "freeze" and log_state.immutable is not None):
            return
        if log_state.immutable is None:
            log_state.freeze()
        if outcome == "thaw":
            log_state.thaw()
        if outcome == "commit":
            for topic_id, number, first, positions in log_state.immutable.queues:
                known = self.queues.setdefault((topic_id, number), [])
                assert first == len(known)
                known += positions["offset"].tolist()
            self.pointers.update(log_state.immutable.pointers)
            log_state.committed()
            self.commits += 1


def drawn_row(data, written: Written) -> tuple[str, np.ndarray]:
    """One legal record, the next segment begun where it is time."""
    if BASES[1] - SIZE < written.tail < BASES[1]:
        written.tail = BASES[1] + 64
    verbs = ["timer", "message"] + ["fire", "early", "cancel", "move"] * bool(written.waiting)
    verb = data.draw(st.sampled_from(verbs))
    topic, level, queue = data.draw(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 1)))
    if verb == "timer":
        return written.timer(topic, level)
    if verb == "message":
        return written.message(topic, queue)
    offset = data.draw(st.sampled_from(sorted(written.waiting)))
    if verb == "cancel":
        return written.cancel(offset)
    if verb == "move":
        return written.move(offset, level, DUE_MS + level)
    return written.fire(offset, queue, FLAG_EARLY if verb == "early" else 0)


def check_pending(log_state: LogState, written: Written) -> None:
    assert pending(log_state) == Counter(topic for topic, _, _, _ in written.waiting.values())
    assert log_state.pending == len(written.waiting)
    levels = {level: count for level, count in log_state.level_pending.items() if count}
    assert levels == Counter(level for _, level, _, _ in written.waiting.values() if level)
    segments = Counter(max(base for base in BASES if base <= offset) for offset in written.waiting)
    assert {base: found.pending for base, found in log_state.segments.items() if found.pending} == segments


def check_queues_and_marks(log_state: LogState, written: Written, books: Books) -> None:
    for (topic, queue), offsets in written.visible.items():
        found = log_state.topics[topic].queues[queue]
        assert (found.min_offset, found.next_offset) == (0, len(offsets))
        known = books.queues.get((log_state.topics[topic].id, queue), [])
        positions = log_state.queue_tail(found, len(known), 1_000_000)
        assert known + ([] if positions is None else positions["offset"].tolist()) == offsets
    roots = {*written.pointers, 8}
    assert {root: log_state.pointer_of(root) or books.pointers.get(root) for root in roots} == {
        root: written.pointers.get(root) for root in roots
    }


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_counts_queues_and_marks_follow_from_the_rows(data):
    written, log_state, books = Written(), new_state(), Books()
    for _ in range(data.draw(st.integers(0, 8))):
        rows = [drawn_row(data, written) for _ in range(data.draw(st.integers(0, 30)))]
        apply(log_state, written, *rows)
        books.settle(log_state, data.draw(st.sampled_from(["nothing", "freeze", "commit", "thaw"])))
        assert log_state.generation == books.commits
        assert log_state.until == written.tail
        check_pending(log_state, written)
        check_queues_and_marks(log_state, written, books)


def test_applying_nothing_only_moves_the_log_on():
    log_state = new_state()
    assert len(log_state.apply(table(), 4096).rows) == 0
    assert (log_state.until, log_state.memtable.count, log_state.pending) == (4096, 0, 0)


def test_applied_rows_carry_the_topic_ids_of_the_view():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.timer("x"), written.timer("y"))
    rows = log_state.apply(
        table(written.timer("z"), written.timer("y"), written.timer("x")), written.tail
    ).rows
    assert rows["topic"].tolist() == [2, 1, 0]


def test_fired_until_is_the_millisecond_after_the_latest_fired_due_time():
    written, log_state = Written(), new_state()
    apply(log_state, written, *[written.timer(due_ms=due) for due in (500, 900, 700)])
    assert log_state.fired_until_ms == 0
    apply(log_state, written, written.fire(64 + SIZE), written.fire(64))
    assert log_state.fired_until_ms == 901


def test_early_delivery_and_plain_message_do_not_move_fired_until():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.timer(due_ms=900))
    apply(log_state, written, written.fire(64, flags=FLAG_EARLY, due_ms=10), written.message())
    assert log_state.fired_until_ms == 0


def test_ordinary_delivery_leaves_no_mark():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.timer())
    apply(log_state, written, written.fire(64))
    assert log_state.pointer_of(64) is None


def test_moved_timer_whose_origin_is_before_the_kept_log_is_new():
    written, log_state = Written(), new_state()
    log_state.begin_at(10_000)
    written.tail = 10_064
    written.waiting[500] = ("a", 2, DUE_MS, 500)
    written.waiting[10_000 + 8] = ("a", 0, DUE_MS, 8)
    apply(log_state, written, written.move(500, 2, DUE_MS))
    assert (pending(log_state), log_state.level_pending) == ({"a": 1}, {2: 1})
    assert log_state.pointer_of(500) == 10_064
    assert log_state.memtable.rows[0]["origin"].tolist() == [NO_OFFSET]


def test_each_segment_of_a_table_gets_its_own_newest_store_time():
    """One batch may roll the log, even more than once; retention asks for every segment."""
    written, log_state = Written(), new_state()
    rows = []
    for base, store_ms in zip(BASES, (500, 600, 700), strict=True):
        written.tail = base + 64
        rows += [written.message(store_ms=store_ms), written.message(store_ms=store_ms - 1)]
    apply(log_state, written, *rows)
    newest = {base: log_state.segments[base].last_store_ms for base in BASES if base in log_state.segments}
    assert newest == {0: 500, 10_000: 600, 20_000: 700}
    assert log_state.memtable.segments == set(BASES)


def test_newest_store_time_does_not_step_back_with_the_clock():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.message(store_ms=900))
    apply(log_state, written, written.message(store_ms=100))
    assert log_state.segments[0].last_store_ms == 900


# ---------------------------------------------------------------------- sealing


def test_sealed_stage_keeps_what_it_had_and_a_new_one_begins_at_its_end():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.timer(), written.message("b"))
    memtable, snapshot = log_state.freeze()
    sealed_until = written.tail
    apply(log_state, written, written.timer("c", level=1))
    assert (memtable.start, memtable.until, memtable.count) == (64, sealed_until, 2)
    assert (log_state.memtable.start, log_state.memtable.until, log_state.memtable.count) == (
        sealed_until,
        written.tail,
        1,
    )
    assert set(snapshot.topics) == {0, 1}
    assert snapshot.level_pending == {}
    assert [pages.positions["offset"].tolist() for pages in memtable.queues] == [[64 + SIZE]]


def test_second_freeze_before_the_first_is_committed_is_refused():
    log_state = new_state()
    log_state.freeze()
    with pytest.raises(AssertionError):
        log_state.freeze()


@pytest.mark.parametrize("settle", ["committed", "thaw"])
def test_nothing_can_be_committed_that_was_not_frozen(settle):
    with pytest.raises(AssertionError):
        getattr(new_state(), settle)()


def test_a_memtable_put_back_comes_before_what_was_applied_since():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.timer(), written.timer(), written.message("b"))
    log_state.freeze()
    apply(log_state, written, written.cancel(64), written.message("b"), written.message("c"))
    rows_before = np.concatenate(log_state.unindexed_rows(0))
    log_state.thaw()
    assert log_state.immutable is None
    memtable, snapshot = log_state.freeze()
    assert (memtable.start, memtable.until, memtable.count) == (64, written.tail, 6)
    offsets = np.concatenate(memtable.rows)["offset"].tolist()
    assert offsets == sorted(offsets) == rows_before["offset"].tolist()
    assert set(snapshot.topics) == {0, 1, 2}
    assert memtable.pointers == {64: 64 + 3 * SIZE}
    assert [(p.topic_id, p.first, len(p.positions)) for p in memtable.queues] == [
        (1, 0, 1),
        (1, 1, 1),
        (2, 0, 1),
    ]
    log_state.committed()
    assert log_state.unindexed_rows(0) == []


def test_staged_rows_are_those_that_an_index_at_the_checkpoint_lacks():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.timer(), written.timer())
    apply(log_state, written, written.timer())
    log_state.freeze()
    apply(log_state, written, written.timer(), written.timer())
    everything = [64 + SIZE * number for number in range(5)]
    for checkpoint in (0, 64, *[offset + SIZE for offset in everything]):
        found = [
            offset for part in log_state.unindexed_rows(checkpoint) for offset in part["offset"].tolist()
        ]
        assert found == [offset for offset in everything if offset >= checkpoint]


def test_newest_mark_wins_over_the_sealed_one():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.timer())
    apply(log_state, written, written.move(64, 0, DUE_MS + 1))
    first = written.tail - SIZE
    log_state.freeze()
    assert log_state.pointer_of(64) == first
    apply(log_state, written, written.move(first, 0, DUE_MS + 2))
    assert log_state.pointer_of(64) == first + SIZE
    log_state.thaw()
    assert log_state.pointer_of(64) == first + SIZE


def test_committed_positions_leave_memory_and_later_ones_stay():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.message(), written.message())
    log_state.freeze()
    apply(log_state, written, written.message())
    assert tail_of(log_state, "a") == [64, 64 + SIZE, 64 + 2 * SIZE]
    log_state.committed()
    queue = log_state.topics["a"].queues[0]
    assert log_state.queue_tail(queue, 1, 10) is None
    assert log_state.queue_tail(queue, 2, 10)["offset"].tolist() == [64 + 2 * SIZE]
    assert log_state.queue_tail(queue, 3, 10)["offset"].tolist() == []


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 25), st.integers(0, 25))
def test_queue_tail_is_a_slice_of_the_positions_in_memory(sizes, first, count_max):
    written, log_state = Written(), new_state()
    for size in sizes:
        apply(log_state, written, *[written.message() for _ in range(size)])
    offsets = written.visible[("a", 0)]
    found = log_state.queue_tail(log_state.topics["a"].queues[0], first, count_max)
    assert found["offset"].tolist() == offsets[first : first + count_max]


# ---------------------------------------------------------------------- restoring


def test_view_restored_from_a_snapshot_goes_on_like_the_old_one():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.timer("b", level=2), written.timer("a"), written.message("c", queue=3))
    apply(log_state, written, written.fire(64), written.message("c", queue=3))
    memtable, snapshot = log_state.freeze()
    other = new_state()
    other.restore(
        state_of(memtable.until, snapshot),
        Kept([snapshot.topics[n] for n in sorted(snapshot.topics)], snapshot.segments, [], [], [], []),
    )
    log_state.committed()
    for found in (log_state, other):
        assert found.until == written.tail
        assert {name: topic.id for name, topic in found.topics.items()} == {"b": 0, "a": 1, "c": 2}
        assert pending(found) == {"a": 1}
        assert {k: v for k, v in found.level_pending.items() if v} == {}
        assert found.segments == {0: SegmentCount(1, 0)}
        assert found.fired_until_ms == DUE_MS + 1
        assert (found.topics["c"].queues[3].min_offset, found.topics["c"].queues[3].next_offset) == (0, 2)
    rows = table(written.message("c", queue=3), written.timer("d"))
    for found in (log_state, other):
        found.apply(Table(rows.rows.copy(), rows.topics), written.tail)
        assert found.memtable.queues[0].first == 2
        assert found.topics["d"].id == 3


def test_topic_whose_rows_are_still_to_come_keeps_its_id_over_a_restart():
    """A sidecar's table names every topic of its segment, also those that a slice of it does not use."""
    written, log_state = Written(), new_state()
    rows = table(written.timer("late"), written.timer("early"))
    sliced = Table(rows.rows[1:].copy(), rows.topics)
    log_state.apply(sliced, written.tail)
    ids = {name: topic.id for name, topic in log_state.topics.items()}
    memtable, snapshot = log_state.freeze()
    other = new_state()
    other.restore(
        state_of(memtable.until, snapshot),
        Kept([snapshot.topics[n] for n in sorted(snapshot.topics)], snapshot.segments, [], [], [], []),
    )
    assert other.topics["early"].id == ids["early"]


def test_snapshot_holds_only_the_topics_and_segments_that_changed():
    written, log_state = Written(), new_state()
    apply(log_state, written, written.timer("a"), written.timer("b"))
    log_state.freeze()
    log_state.committed()
    written.tail = BASES[1] + 64
    apply(log_state, written, written.timer("b"))
    _, snapshot = log_state.freeze()
    assert set(snapshot.topics) == {1}
    assert set(snapshot.segments) == {BASES[1]}
    assert msgspec.msgpack.decode(snapshot.topics[1])[:2] == ["b", 2]


def test_topics_of_different_views_share_no_queues():
    one, other = new_state(), new_state()
    one.queue(one.topic("a"), 0).next_offset = 9
    assert other.queue(other.topic("a"), 0).next_offset == 0
    assert other.queue(other.topic("b"), 0).tail is not other.queue(other.topic("a"), 0).tail


def full_stage(start: int) -> Memtable:
    """A stage with something of its own in each of its parts."""
    memtable = Memtable(start)
    memtable.until, memtable.count = start + 100, 1
    memtable.rows = [np.zeros(1, ROW_DTYPE)]
    memtable.pointers = {start: start + 8}
    memtable.queues = [QueuePages(start, 0, 0, np.zeros(1, POSITION_DTYPE))]
    memtable.topics, memtable.segments = {start}, {start}
    memtable.control = {("group", str(start)): Put("group", str(start), {})}
    memtable.groups = Changed({start}, {(start, 1)}, {start})
    memtable.keys.put({bytes([start]): KeyEntry(start, 1, b"", 1)})
    return memtable


def contents(memtable: Memtable) -> dict[str, object]:
    return {
        name: len(value)
        if isinstance(value, list)
        else copy.deepcopy(value.all_entries() if isinstance(value, NewKeys) else value)
        for name, value in vars(memtable).items()
    }


def test_what_could_not_be_written_is_kept_whole_while_the_index_thread_still_reads_it():
    log_state = new_state()
    first, second = full_stage(0), full_stage(100)
    log_state.immutable, log_state.memtable = first, second
    before = [contents(first), contents(second)]
    log_state.thaw()
    assert [contents(first), contents(second)] == before, "a sealed stage was changed"
    joined = vars(log_state.memtable)
    assert (joined.pop("start"), joined.pop("until"), joined.pop("count")) == (0, 200, 2)
    groups = joined.pop("groups")
    assert (groups.groups, groups.items, groups.dead) == ({0, 100}, {(0, 1), (100, 1)}, {0, 100})
    assert {name: len(part) for name, part in joined.items()} == dict.fromkeys(joined, 2)
    assert log_state.immutable is None


STEP_KINDS = (
    *("timer", "message", "fire", "early", "move", "cancel"),
    *("ack", "retry", "hold", "dead", "setting", "keyed", "run", "limited"),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(STEP_KINDS),
        st.sampled_from("ab"),
        st.integers(0, 2),
        st.integers(0, 3_000),
    ),
    max_size=16,
)
SETTINGS = (
    Put("group", "a/g", {"max_attempts": 3}),
    Put("group", "b/g", {}),
    Put("group", "a/g", None),
    Put("cursor", "a/g", {"0": 1, "1": [0, 1, 2, 3]}),
    Put("passed", "b/g", {"0": 2}),
    Put("push", "one", {"url": "http://x"}),
    Put("push", "one", None),
    Put("failure", "a/g", {"reason": "not kept"}),
)
NAMES = ("a", "b", "a/g", "b/g", "%DLQ%g", CONTROL_TOPIC)


class EveryKind(Written):
    """A log that also has records of groups, settings and keys; the payload of some matters."""

    def __init__(self) -> None:
        super().__init__()
        self.payloads: dict[int, bytes] = {}
        self.kept: dict[int, int] = {}  # root -> flags that a record passes on to its replacement

    def read(self, rows: np.ndarray):
        offsets = rows["offset"].copy()
        return lambda places: [self.payloads[offset] for offset in offsets[places].tolist()]

    def of_group(self, kind: Kind, topic: str, flags: int = 0, **fields) -> tuple[str, np.ndarray]:
        return self.row(kind, f"{topic}/g", flags=flags | FLAG_LEASE, **fields)

    def retry(self, topic: str, place: int, number: int, due_ms: int) -> tuple[str, np.ndarray]:
        """Of attempt `number`, or for 0 the lease of an earlier version."""
        self.waiting[self.tail] = (f"{topic}/g", 0, due_ms, self.tail)
        self.kept[self.tail] = FLAG_LEASE
        flags = FLAG_ENDED if due_ms % 2 else 0
        return self.of_group(Kind.TIMER, topic, flags, due_ms=due_ms, prior_due_ms=place, rolls=number)

    def keyed(self, topic: str, number: int, due_ms: int, flags: int) -> tuple[str, np.ndarray]:
        key = {KEY_PROPERTY: f"k{number}", HASH_PROPERTY: f"{due_ms:032x}"}
        properties = orjson.dumps(key | ({DOMAIN_PROPERTY: SCHEDULE_DOMAIN} if flags & FLAG_RUN else {}))
        self.payloads[self.tail] = encode(Kind.TIMER, topic.encode(), properties, b"", 0, due_ms, 0, flags)
        self.kept[self.tail] = flags
        name, row = self.timer(topic, 0, due_ms)
        row["flags"] = flags
        return name, row

    def setting(self, number: int) -> tuple[str, np.ndarray]:
        self.payloads[self.tail] = encode_puts([SETTINGS[number % len(SETTINGS)]], 0)
        return self.row(Kind.CONTROL, CONTROL_TOPIC)

    def end(self, kind: str, number: int, due_ms: int) -> tuple[str, np.ndarray]:
        """Fire, move or cancel a timer that waits."""
        offset = list(self.waiting)[number % len(self.waiting)]
        flags = self.kept.get(self.waiting[offset][3], 0)
        if kind == "cancel":
            name, row = self.cancel(offset)
        elif kind == "move":
            name, row = self.move(offset, number, due_ms)
        else:
            name, row = self.fire(offset, number, FLAG_EARLY if kind == "early" else 0)
        row["flags"] |= flags
        return name, row


def step(written: EveryKind, kind: str, topic: str, number: int, late_ms: int) -> list:  # noqa: PLR0911
    """The rows of one step; none if it has no timer to end."""
    due_ms = DUE_MS + late_ms
    if kind == "timer":
        return [written.timer(topic, number, due_ms, late_ms)]
    if kind == "message":
        return [written.message(topic, number, late_ms)]
    if kind == "ack":
        fields = {"queue": number, "prior_due_ms": late_ms % 5, "due_ms": late_ms % 7 + 1}
        return [written.of_group(Kind.ACK, topic, rolls=number, **fields)]
    if kind == "retry":
        return [written.retry(topic, late_ms % 5, number, due_ms)]
    if kind == "hold":  # and its retry, at a place of their own
        place = written.tail
        hold = written.of_group(Kind.HOLD, topic, prior_due_ms=place, due_ms=number + 1, rolls=1)
        return [hold, written.retry(topic, place, 1, due_ms)]
    if kind == "dead":
        return [written.row(Kind.CANCEL, "%DLQ%g", flags=FLAG_LEASE, prior_due_ms=number)]
    if kind == "setting":
        return [written.setting(late_ms)]
    if kind in {"keyed", "run", "limited"}:
        flags = {"keyed": FLAG_KEYED, "run": FLAG_KEYED | FLAG_RUN, "limited": FLAG_LIMITED}[kind]
        return [written.keyed(topic, number, due_ms, flags)]
    return [written.end(kind, number, due_ms)] if written.waiting else []


def ready_state() -> LogState:
    """A state that knows all topics, and one group of two: names in one table are numbered at once."""
    log_state = new_state()
    for name in NAMES:
        log_state.topic(name)
    log_state.put(SETTINGS[0], 1)
    return log_state


def said_by(log_state: LogState) -> dict:
    """All that a state says of the records that were applied to it."""
    memtable, groups = log_state.memtable, log_state.groups
    return {
        "groups": groups.dump(),
        "ready": {group.name: (list(group.ready), group.lanes, group.counts) for group in groups},
        "dead": {number: (dead.low, sorted(dead.removed)) for number, dead in groups.dead.items()},
        "control": (list(log_state.control.all()), memtable.control),
        "keys": memtable.keys.all_entries(),
        "of groups": memtable.groups,
        "topics": {
            name: (
                topic.pending,
                {
                    number: (
                        queue.next_offset,
                        np.concatenate([part for _, part in queue.tail]).tolist(),
                    )
                    for number, queue in topic.queues.items()
                },
            )
            for name, topic in log_state.topics.items()
        },
        "levels": {level: count for level, count in log_state.level_pending.items() if count},
        "segments": {base: msgspec.structs.astuple(one) for base, one in log_state.segments.items()},
        "pointers": memtable.pointers,
        "fired_until_ms": log_state.fired_until_ms,
        "rows": np.concatenate(memtable.rows or [np.zeros(0, ROW_DTYPE)]).tolist(),
        "changed": (memtable.topics, memtable.segments, memtable.count, memtable.until),
    }


@given(STEPS, st.integers(64, 20_000), st.integers(0, 1 << 40))
@example([("timer", "a", 0, 0), ("move", "a", 0, 0)], 64, 7)
@example([(kind, "a", 1, 1) for kind in ("retry", "hold", "fire", "ack", "setting", "keyed", "dead")], 64, 7)
@example([("hold", "a", 1, 0), ("setting", "a", 0, 2), ("setting", "a", 0, 0), ("retry", "a", 0, 0)], 64, 7)
def test_records_applied_one_by_one_say_what_they_say_together(steps, tail, store_ms):
    """A single row is counted without arrays: one meaning at two speeds.

    The records have one store time: of a batch with several, the latest counts as the end of each timer.
    """
    written = EveryKind()
    written.tail = tail
    rows = [row for one in steps for row in step(written, *one)]
    for _, row in rows:
        row["store_ms"] = store_ms
    one_by_one, together = ready_state(), ready_state()
    for topic, row in rows:
        one_by_one.apply(table((topic, row.copy())), int(row["offset"][0]) + SIZE, written.read(row))
    if rows:
        found = table(*rows)
        together.apply(found, written.tail, written.read(found.rows))
    assert said_by(one_by_one) == said_by(together)
