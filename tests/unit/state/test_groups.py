"""What each record does to an item in each state, and what is kept of it."""

import itertools
import random

import msgspec
import pytest

from tests.harness.group_checks import check_group
from timerwheel.state.groups import (
    DEAD_QUEUE,
    Changed,
    DeadLetters,
    GroupState,
    GroupTables,
    ItemKey,
    ItemState,
    LeaseRow,
    dead_topic,
    group_topic,
    is_internal,
)
from timerwheel.state.offset_set import OffsetSet
from timerwheel.store.record import FLAG_ENDED, FLAG_LEASE, Kind

LANE = 77
PARKED, LEASED, WAITING, READY = ItemState


def group_with(state: str) -> GroupState:
    """A group with the message (0, 5) in this state, held by the record at 100."""
    group = GroupState(3, "orders", "g")
    group.ack(0, 0, 5)
    if state == "done":
        group.ack(0, 5, 6)
    elif state == "parked":
        group.hold(0, 4, LANE, 90)
        group.hold(0, 5, LANE, 100)
    elif state in ("waiting again", "ready again"):
        group.retry(0, 5, 2, 100, 1_000, ended=False)
        if state == "ready again":
            group.ready_again(100)
    elif state != "fresh":
        group.lease(0, 5, 100, 1_000, ended=state == "waiting")
        if state == "ready":
            group.ready_again(100)
    return group


RECORDS = {
    "hold": lambda group: group.hold(0, 5, 0, 200),
    "lease": lambda group: group.lease(0, 5, 200, 2_000, ended=False),
    "lease ended": lambda group: group.lease(0, 5, 200, 2_000, ended=True),
    "retry": lambda group: group.retry(0, 5, 3, 200, 2_000, ended=False),
    "retry ended": lambda group: group.retry(0, 5, 3, 200, 2_000, ended=True),
    "key of a retry": lambda group: group.hold(0, 5, LANE, 200, alone=True),
    "retime": lambda group: group.retime(100, 200, 2_000, ended=False),
    "retime ended": lambda group: group.retime(100, 200, 2_000, ended=True),
    "came back": lambda group: group.ready_again(100),
    "end": lambda group: group.end(100),
    "retime of another": lambda group: group.retime(1, 200, 2_000, ended=True),
    "came back of another": lambda group: group.ready_again(1),
    "end of another": lambda group: group.end(1),
}

# What (0, 5) is after a record: its state (None: no item), attempt, root, offset, due_ms, receipt ended.
AFTER = {
    ("fresh", "hold"): (PARKED, 0, 200, 200, 0, False),
    ("fresh", "lease"): (LEASED, 1, 200, 200, 2_000, False),
    ("fresh", "lease ended"): (WAITING, 0, 200, 200, 2_000, True),
    ("fresh", "retry"): (WAITING, 3, 200, 200, 2_000, False),
    ("fresh", "retry ended"): (WAITING, 3, 200, 200, 2_000, True),
    ("fresh", "key of a retry"): (PARKED, 0, 200, 200, 0, False),
    ("fresh", "retime"): None,
    ("fresh", "retime ended"): None,
    ("fresh", "came back"): None,
    ("fresh", "end"): None,
    ("parked", "lease"): (LEASED, 1, 200, 200, 2_000, False),
    ("parked", "retry"): (WAITING, 3, 200, 200, 2_000, False),
    ("parked", "end"): None,
    ("leased", "retime"): (LEASED, 1, 100, 200, 2_000, False),
    ("leased", "retime ended"): (WAITING, 1, 100, 200, 2_000, True),
    ("leased", "came back"): (READY, 1, 100, 100, 1_000, False),
    ("leased", "end"): None,
    ("waiting", "retime"): (WAITING, 0, 100, 200, 2_000, True),  # retention moved its timer
    ("waiting", "retime ended"): (WAITING, 0, 100, 200, 2_000, True),
    ("waiting", "came back"): (READY, 0, 100, 100, 1_000, True),
    ("waiting", "end"): None,
    ("ready", "lease"): (LEASED, 2, 200, 200, 2_000, False),
    ("ready", "retry"): (WAITING, 3, 200, 200, 2_000, False),
    ("ready", "end"): None,
    ("waiting again", "retime"): (WAITING, 2, 100, 200, 2_000, False),  # retention moved its timer
    ("waiting again", "came back"): (READY, 2, 100, 100, 1_000, False),
    ("waiting again", "end"): None,
    ("ready again", "retry"): (WAITING, 3, 200, 200, 2_000, False),
    ("ready again", "retry ended"): (WAITING, 3, 200, 200, 2_000, True),
    ("ready again", "end"): None,
    ("done", "retime"): None,
    ("done", "retime ended"): None,
    ("done", "came back"): None,
    ("done", "end"): None,
}


def told(group: GroupState):
    item = group.items.get(5)
    if item is None:
        return None
    return (item.state, item.attempt, item.root, item.offset, item.due_ms, item.ended)


@pytest.mark.parametrize(("before", "record"), AFTER)
def test_each_record_does_to_each_state_what_the_table_says(before, record):
    group = group_with(before)
    key = RECORDS[record](group)
    assert told(group) == AFTER[before, record]
    assert key == (None if before in ("fresh", "done") and AFTER[before, record] is None else 5)
    assert group.passed[0] == OffsetSet((0, 5 if before == "fresh" and told(group) is None else 6))
    check_group(group)


@pytest.mark.parametrize("before", sorted({before for before, _ in AFTER}))
@pytest.mark.parametrize("record", ["retime of another", "came back of another", "end of another"])
def test_a_record_about_a_lease_that_is_over_changes_nothing(before, record):
    group = group_with(before)
    was = told(group)
    assert RECORDS[record](group) is None
    assert told(group) == was
    check_group(group)


@pytest.mark.parametrize(
    ("record", "passed"),
    [
        (lambda group: group.ack(0, 8, 10), [0, 5, 8, 10]),
        (lambda group: group.ack(0, 5, 8), [0, 8]),
        (lambda group: group.retry(0, 8, 1, 200, 2_000, ended=True), [0, 5, 8, 9]),
        (lambda group: group.hold(0, 8, LANE, 200, alone=True), [0, 5, 8, 9]),
        (lambda group: group.lease(0, 8, 200, 2_000, ended=False), [0, 9]),
        (lambda group: group.hold(0, 8, LANE, 200), [0, 9]),
    ],
    ids=["ack", "ack next to it", "retry", "key of a retry", "lease", "hold"],
)
def test_a_retry_passes_its_message_alone_and_an_old_lease_all_before_it(record, passed):
    group = group_with("fresh")
    record(group)
    assert group.passed == {0: OffsetSet(passed)}
    check_group(group)


def test_a_queue_of_which_only_a_later_message_is_done_has_its_cursor_at_the_first():
    group = GroupState(3, "orders", "g")
    group.ack(2, 7, 9)
    assert group.cursors == {2: 0}
    assert 7 in group.passed_of(2)
    group.ack(2, 0, 7)
    assert group.cursors == {2: 9}


def test_a_retry_of_what_came_back_makes_the_old_retry_nothing():
    group = group_with("ready again")
    group.retry(0, 5, 3, 200, 2_000, ended=True)
    assert group.end(100) is None
    assert group.ready_again(100) is None
    assert group.end(200) == 5


def test_a_retry_keeps_the_lane_of_its_message():
    group = GroupState(3, "orders", "g")
    group.hold(0, 5, LANE, 90, alone=True)
    group.retry(0, 5, 1, 100, 1_000, ended=False)
    assert (group.items[5].lane, group.lanes, group.ready) == (LANE, {LANE: [5]}, {})
    group.ready_again(100)
    group.retry(0, 5, 2, 200, 2_000, ended=False)
    assert (group.items[5].lane, group.lanes) == (LANE, {LANE: [5]})
    check_group(group)
    group.end(200)
    assert group.lanes == {}


def test_a_lease_of_what_came_back_makes_the_old_lease_nothing():
    group = group_with("ready")
    group.lease(0, 5, 200, 2_000, ended=False)
    assert group.end(100) is None
    assert group.ready_again(100) is None
    assert group.end(200) == 5


def test_a_message_that_was_taken_back_from_the_dead_letters_moves_no_cursor():
    group = group_with("fresh")
    group.lease(DEAD_QUEUE, 9, 300, 0, ended=True)
    assert group.passed == {0: OffsetSet((0, 5))}
    group.ready_again(300)
    group.lease(DEAD_QUEUE, 9, 400, 5_000, ended=False)
    assert [item.attempt for item in group.items.values()] == [1]
    group.ready_again(400)
    group.retry(DEAD_QUEUE, 9, 2, 500, 6_000, ended=False)
    assert [item.attempt for item in group.items.values()] == [2]
    assert group.passed == {0: OffsetSet((0, 5))}
    check_group(group)


def test_only_the_first_of_a_lane_is_ready_and_the_next_when_it_is_done():
    group = GroupState(3, "orders", "g")
    for at, lane in enumerate((LANE, LANE, LANE + 2, LANE)):
        group.hold(0, at, lane, 100 + at)
    assert list(group.ready) == [0, 2]
    group.lease(0, 0, 200, 1_000, ended=False)
    assert list(group.ready) == [2]
    group.ready_again(200)
    assert list(group.ready) == [2, 0]
    group.end(101)  # one in the middle: retention removed it
    group.end(200)
    assert list(group.ready) == [2, 3]
    group.end(103)
    group.end(102)
    assert group.lanes == {}
    check_group(group)


def test_what_came_back_is_ready_in_that_order():
    group = GroupState(3, "orders", "g")
    for at in range(4):
        group.lease(0, at, 100 + at, 1_000 - at, ended=False)
    for at in (2, 0, 3):
        group.ready_again(100 + at)
    assert list(group.ready) == [2, 0, 3]


def test_what_came_back_is_ready_in_the_order_of_its_time_after_a_start():
    """The index keeps items by queue and offset, whatever order they came back in."""
    group = GroupState(3, "orders", "g")
    for at, due_ms in enumerate((1_000, 700, 900, 700)):
        group.lease(0, at, 100 + at, due_ms, ended=False)
    for at in (1, 3, 2, 0):
        group.ready_again(100 + at)
    restored = GroupState(3, "orders", "g")
    restored.restore((key, group.pack(key)) for key in sorted(group.items))
    assert list(restored.ready) == list(group.ready) == [1, 3, 2, 0]


def test_setting_the_cursors_forgets_every_item():
    group = group_with("parked")
    group.lease(1, 7, 300, 1_000, ended=False)
    group.ack(0, 8, 9)
    assert sorted(group.reset({0: 2, 1: 0})) == sorted([4, 5, 1 << 48 | 7])
    assert group.passed == {0: OffsetSet((0, 2)), 1: OffsetSet()}
    assert group.cursors == {0: 2, 1: 0}
    assert (group.items, group.by_root, group.ready, group.lanes) == ({}, {}, {}, {})
    assert set(group.counts.values()) == {0}


def random_group(seed: int) -> GroupState:
    dice = random.Random(seed)
    group = GroupState(3, "orders", "g")
    for at in range(30):
        queue, offset = at % 3, 1_000 + at * 10
        sort = dice.random()
        if sort < 0.2:
            group.ack(queue, at // 3, at // 3 + dice.randint(1, 2))
        elif sort < 0.4:
            group.retry(queue, at // 3, dice.randint(1, 9), offset, dice.randint(1, 99), ended=sort < 0.3)
        elif sort < 0.6:
            group.hold(queue, at // 3, dice.choice((1, 3)), offset, alone=sort < 0.5)
        else:
            group.lease(queue, at // 3, offset, dice.randint(1, 99), ended=dice.random() < 0.3)
    group.since = seed
    for root in dice.sample(sorted(group.by_root), 10):
        item = group.by_root[root]
        if item.timed:
            group.ready_again(root)
        elif item.key in group.ready:
            group.lease(item.queue, item.queue_offset, root + 1, dice.randint(1, 99), ended=False)
        else:
            group.end(root)
    return group


@pytest.mark.parametrize("seed", range(20))
def test_what_is_packed_is_restored(seed):
    group = random_group(seed)
    check_group(group)
    again = GroupState(3, "orders", "g")
    again.passed = dict(group.passed)
    rows = [(key, group.pack(key)) for key in group.items]
    random.Random(seed).shuffle(rows)
    again.restore(iter(rows))
    check_group(again)
    assert again.items == group.items
    assert set(again.ready) == set(group.ready)
    assert again.counts == group.counts
    assert again.lanes == group.lanes


def test_an_item_that_is_done_packs_to_nothing():
    group = group_with("leased")
    group.end(100)
    assert group.pack(5) is None


# ------------------------------------------------------------------ the tables


def row(
    kind: int,
    *,
    offset: int,
    root: int = 0,
    due_ms: int = 0,
    at: int = 0,
    flags: int = 0,
    rolls: int = 0,
) -> LeaseRow:
    return LeaseRow(offset, root or offset, due_ms, at, 0, kind, FLAG_LEASE | flags, rolls)


def tables_with_groups() -> GroupTables:
    tables = GroupTables()
    for number, name in ((3, "orders/g"), (4, "orders/h"), (9, "tickets/g")):
        tables.make(number, name, Changed())
    return tables


def test_records_take_effect_in_the_group_of_their_topic_and_are_noted_as_changed():
    tables, changed = tables_with_groups(), Changed()
    tables.apply(row(Kind.TIMER, offset=100, due_ms=50, at=2), 3, changed)
    tables.apply(row(Kind.TIMER, offset=200, root=100, due_ms=60, flags=FLAG_ENDED), 3, changed)
    item = tables.by_name["orders/g"].items[2]
    assert (item.state, item.offset, item.due_ms) == (WAITING, 200, 60)
    assert (changed.groups, changed.items) == ({3}, {(3, 2)})
    assert tables.timer_of(3, 100) == 200
    assert tables.timer_of(4, 100) is None
    tables.apply(row(Kind.MESSAGE, offset=300, root=100, due_ms=60), 3, changed)
    assert tables.timer_of(3, 100) is None
    tables.apply(row(Kind.CANCEL, offset=400, root=100), 3, changed)
    tables.apply(row(Kind.HOLD, offset=500, due_ms=LANE, at=3), 3, changed)
    assert [i.state for i in tables.by_name["orders/g"].items.values()] == [PARKED]
    assert not tables.by_name["orders/h"].items
    tables.apply(row(Kind.TIMER, offset=600), 77, changed)  # of a group that was deleted
    assert changed.items == {(3, 2), (3, 3)}


def test_the_first_record_of_a_timer_is_a_retry_if_it_names_an_attempt_and_else_a_lease():
    tables, changed = tables_with_groups(), Changed()
    group = tables.by_name["orders/g"]
    tables.apply(row(Kind.TIMER, offset=100, due_ms=50, at=2, rolls=4), 3, changed)
    assert (group.items[2].state, group.items[2].attempt, group.items[2].ended) == (WAITING, 4, False)
    assert group.passed == {0: OffsetSet((2, 3))}
    tables.apply(row(Kind.TIMER, offset=200, root=100, due_ms=50, at=50, rolls=5), 3, changed)
    assert (group.items[2].attempt, group.items[2].offset) == (4, 200)  # retention moved it
    tables.apply(row(Kind.HOLD, offset=300, due_ms=LANE, at=4, rolls=1), 3, changed)
    tables.apply(row(Kind.TIMER, offset=400, due_ms=60, at=4, rolls=1, flags=FLAG_ENDED), 3, changed)
    assert (group.items[4].lane, group.items[4].ended) == (LANE, True)
    assert group.passed == {0: OffsetSet((2, 3, 4, 5))}
    tables.apply(row(Kind.TIMER, offset=500, due_ms=60, at=6), 3, changed)
    assert (group.items[6].state, group.items[6].attempt) == (LEASED, 1)
    assert group.passed == {0: OffsetSet((0, 7))}
    assert (changed.groups, changed.items) == ({3}, {(3, 2), (3, 4), (3, 6)})


def test_an_acknowledgement_takes_effect_in_the_group_of_its_topic_and_changes_no_item():
    tables, changed = tables_with_groups(), Changed()
    tables.apply(row(Kind.ACK, offset=100, at=3, due_ms=6), 3, changed)
    tables.apply(row(Kind.ACK, offset=200, at=6, due_ms=7, flags=FLAG_ENDED), 3, changed)
    tables.apply(row(Kind.ACK, offset=300, at=0, due_ms=7), 77, changed)  # of a group that was deleted
    assert tables.by_name["orders/g"].passed == {0: OffsetSet((3, 7))}
    assert tables.by_name["orders/h"].passed == {}
    assert (changed.groups, changed.items) == ({3}, set())


def test_a_group_knows_where_it_was_made_or_last_rewound():
    tables, changed = GroupTables(), Changed()
    assert tables.make(3, "orders/g", changed, 100).since == 100
    assert tables.make(3, "orders/g", changed, 200).since == 100  # its settings were changed
    tables.advance("orders/g", {"0": 5}, changed)
    assert tables.by_name["orders/g"].since == 100
    tables.reset("orders/g", {"0": 2}, changed, 300)
    assert tables.by_name["orders/g"].since == 300
    tables.drop("orders/g", changed)
    assert tables.make(3, "orders/g", changed, 400).since == 400


def test_groups_as_earlier_versions_wrote_them_are_read():
    group = group_with("waiting")
    packed = [(5, group.pack(5))]
    again = GroupTables()
    again.restore([(3, msgspec.msgpack.encode(("orders/g", {0: 6})))], [(3, *packed[0])], [])
    loaded = GroupTables()
    loaded.load("orders/g", 3, [{"0": 6}, [(5, packed[0][1].hex())]], Changed())
    for found in (again, loaded):
        assert found.by_name["orders/g"].passed == {0: OffsetSet((0, 6))}
        assert found.by_name["orders/g"].items == group.items
        assert found.by_name["orders/g"].since == 0


def test_a_group_that_is_dropped_is_emptied_and_gone_from_the_index():
    tables, changed = tables_with_groups(), Changed()
    group = tables.by_name["orders/g"]
    group.lease(0, 2, 100, 50, ended=False)
    tables.drop("orders/g", changed)
    assert not group.by_root
    assert [state.name for state in tables.of_topic["orders"]] == ["orders/h"]
    writes = tables.writes(changed)
    assert (writes.groups, writes.items) == ({3: None}, {(3, 2): None})
    tables.drop("orders/g", changed)
    tables.make(3, "orders/g", changed)
    assert tables.writes(changed).items == {(3, 2): None}


def test_cursors_are_set_or_only_moved_forward():
    tables, changed = tables_with_groups(), Changed()
    tables.reset("orders/g", {"0": 7, "1": 2}, changed)
    tables.advance("orders/g", {"0": 5, "1": 9, "2": 1, "3": 0}, changed)
    assert tables.by_name["orders/g"].cursors == {0: 7, 1: 9, 2: 1}
    tables.reset("orders/none", {"0": 7}, changed)
    tables.advance("orders/none", {"0": 7}, changed)
    assert changed.groups == {3}


@pytest.mark.parametrize("seed", range(5))
def test_tables_that_were_written_or_dumped_are_what_they_were(seed):
    tables = GroupTables()
    group = random_group(seed)
    tables.by_name[group.name] = tables.by_topic_id[3] = group
    tables.dead_of(12).remove(4)
    changed = Changed({3}, {(3, key) for key in group.items}, {12})
    writes = tables.writes(changed)
    again = GroupTables()
    again.restore(
        writes.groups.items(), [(*place, raw) for place, raw in writes.items.items()], writes.dead.items()
    )
    loaded, noted = GroupTables(), Changed()
    for name, dumped in tables.dump().items():
        loaded.load(name, 3, dumped, noted)
    for found in (again, loaded):
        assert found.by_name["orders/g"].items == group.items
        assert found.by_name["orders/g"].passed == group.passed
        assert found.by_name["orders/g"].since == seed
    assert again.dead == {12: DeadLetters(0, {4})}
    assert noted.items == changed.items


# ------------------------------------------------------------------ dead letters


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_dead_letters_are_dealt_with_in_any_order(order):
    letters = DeadLetters()
    for done, offset in enumerate(order, 1):
        assert letters.has(offset)
        letters.remove(offset)
        letters.remove(offset)
        assert not letters.has(offset)
        assert sum(letters.has(at) for at in range(4)) == 4 - done
    assert letters == DeadLetters(4, set())
    assert letters.has(4)


def test_names_of_what_belongs_to_a_group():
    assert group_topic("orders", "g") == "orders/g"
    assert dead_topic("g") == "%DLQ%g"
    assert [is_internal(name) for name in ("orders/g", "/control", "%DLQ%g", "orders")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("seed", range(30))
def test_fresh_messages_of_a_queue_are_those_that_are_kept_and_not_passed(seed):
    rng = random.Random(seed)
    group, low, end = GroupState(3, "orders", "g"), rng.randint(0, 20), 20
    for _ in range(rng.randint(0, 4)):
        first = rng.choice((0, rng.randint(0, 19)))
        group.ack(0, first, rng.randint(first + 1, 20))
    fresh = [offset for offset in range(low, end) if offset not in group.passed_of(0)]
    assert group.fresh(0, low, end) == (fresh[0] if fresh else end, len(fresh))
    assert group.fresh(1, low, end) == (low, end - low)


@pytest.mark.parametrize("queue", [0, 7, DEAD_QUEUE])
@pytest.mark.parametrize("queue_offset", [0, 1, (1 << 48) - 1])
def test_a_key_is_queue_and_queue_offset_in_one_number(queue, queue_offset):
    key = ItemKey.of(queue, queue_offset)
    assert key == queue << 48 | queue_offset
    assert (ItemKey.queue(key), ItemKey.offset(key)) == (queue, queue_offset)
