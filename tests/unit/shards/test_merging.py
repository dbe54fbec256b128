import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.errors import IllegalCursorError
from timerwheel.model import list_cursor
from timerwheel.model.figures import Point
from timerwheel.model.live_events import LevelSlots, Tick, Wheel
from timerwheel.model.messages import LevelInfo, QueueInfo, SlotInfo, TopicInfo, WheelInfo, WheelLevelInfo
from timerwheel.shards import merging
from timerwheel.shards.merging import Cursors, Page
from timerwheel.wire.paging import PageQuery
from timerwheel.wire.service import FigureHistory, Levels, Slots
from timerwheel.wire.topics import Topics

encode = msgspec.json.encode
DUES = st.lists(st.lists(st.integers(1, 50), max_size=12).map(sorted), min_size=1, max_size=4)


def pending_page(shard, dues, cursor, limit):
    """What a shard answers to a page of scheduled messages."""
    after = (-1, -1) if cursor is None else tuple(int(part, 16) for part in cursor.split("."))
    rest = [(due, place) for place, due in enumerate(dues) if (due, place) > after]
    given_now = rest[:limit]
    last = f"{given_now[-1][0]:x}.{given_now[-1][1]:x}" if len(rest) > limit else None
    messages = [
        {"id": f"{shard:04x}{place:012x}00000000", "due_ms": due, "body": f"{shard}-{place}"}
        for due, place in given_now
    ]
    return encode({"messages": messages, "cursor": last})


@given(DUES, st.integers(1, 9), st.integers(1, 9))
def test_pages_give_each_message_once_in_due_order_whatever_each_shard_gives_at_once(
    dues, limit, shard_limit
):
    count, cursor, found, asked = len(dues), None, [], 0
    while True:
        cursors = Cursors.parse(cursor, count)
        given_pages = [
            Page(shard, pending_page(shard, dues[shard], cursors.each[shard], min(limit, shard_limit)))
            for shard in cursors.wanted
        ]
        page = msgspec.json.decode(merging.pages("messages", given_pages, cursors, limit, merging.BY_DUE))
        found += page["messages"]
        assert len(page["messages"]) <= limit
        cursor, asked = page["cursor"], asked + 1
        if cursor is None:
            break
        assert asked < 200
    assert [one["due_ms"] for one in found] == sorted(due for own in dues for due in own)
    assert len({one["id"] for one in found}) == len(found)


@pytest.mark.parametrize("text", ["", "a", "1.2_3.4_5.6"])
def test_a_cursor_of_another_number_of_shards_is_refused(text):
    with pytest.raises(IllegalCursorError):
        Cursors.parse(text, 2)


@given(
    st.lists(st.lists(st.integers(0, 30), unique=True, max_size=8).map(sorted), min_size=1, max_size=4),
    st.integers(1, 7),
)
def test_dead_letters_have_one_order_over_all_shards_and_offsets_that_lead_back(offsets, limit):
    count, first, found = len(offsets), 0, []
    while first is not None:
        pages = []
        for shard, own in enumerate(offsets):
            begin = merging.first_in(shard, first, count)
            rest = [one for one in own if one >= begin]
            letters = [{"offset": one, "reason": "x"} for one in rest[:limit]]
            next_offset = rest[limit] if len(rest) > limit else None
            pages.append(Page(shard, encode({"letters": letters, "next_offset": next_offset})))
        page = msgspec.json.decode(merging.letters(pages, count, limit))
        found += [one["offset"] for one in page["letters"]]
        first = page["next_offset"]
    assert found == sorted(
        merging.offset_of(shard, one, count) for shard, own in enumerate(offsets) for one in own
    )
    led_back = [merging.place_of(one, count) for one in found]
    assert sorted(led_back) == sorted((shard, one) for shard, own in enumerate(offsets) for one in own)


def test_lists_are_sorted_by_name_topic_and_group():
    parts = [
        encode({"groups": [{"topic": "b", "group": "z"}, {"topic": "d", "group": "a"}]}),
        encode({"groups": [{"topic": "a", "group": "y", "more": {"x": 1}}]}),
    ]
    merged = msgspec.json.decode(merging.lists("groups", parts))["groups"]
    assert [(one["topic"], one["group"]) for one in merged] == [("a", "y"), ("b", "z"), ("d", "a")]
    assert merged[0]["more"] == {"x": 1}


def test_topics_that_every_shard_has_are_added_up_without_their_queues():
    own = TopicInfo("orders", [QueueInfo(0, 0, 3)], 3, 1)
    dead = TopicInfo("%DLQ%w", [QueueInfo(0, 0, 2)], 2, 0, queue_count=1)
    parts = [encode(Topics([dead, own])), encode(Topics([dead]))]
    found = merging.topics(parts).topics
    assert [one.topic for one in found] == ["%DLQ%w", "orders"]
    assert (found[0].visible, found[0].queues) == (4, [])
    assert found[1] == own


def test_wheels_and_slots_are_added_up():
    level = WheelLevelInfo("second", 1000, 1, 2, 5000, 6000)
    empty = WheelLevelInfo("second", 1000, 0, 0, None, None)
    one, other = WheelInfo(10, 2, 1, 5000, [level], [], 1), WheelInfo(12, 0, 0, None, [empty], [])
    found = merging.wheel([encode(one), encode(other)])
    assert (found.now_ms, found.pending, found.overdue, found.next_due_ms, found.leases) == (
        12,
        2,
        1,
        5000,
        1,
    )
    assert found.levels == [level]
    slots = Slots([SlotInfo("second", 5000, 6000, 2)])
    assert merging.slots([encode(slots), encode(slots)]).slots == [SlotInfo("second", 5000, 6000, 4)]


def test_a_page_of_slots_has_the_first_of_all_shards_and_goes_on_behind_them():
    both, minute = SlotInfo("second", 5000, 6000, 2), SlotInfo("minute", 0, 60_000, 1)
    third = SlotInfo("second", 7000, 8000, 1)
    bodies = [encode(Slots([both, minute], None)), encode(Slots([both, third], "more"))]
    page = merging.slots(bodies, PageQuery(limit=2))
    assert page.slots == [SlotInfo("second", 5000, 6000, 4), third]
    assert page.cursor == list_cursor.encode(list_cursor.slot_key(third))
    last = merging.slots([encode(Slots([minute], None)), encode(Slots([], None))], PageQuery(limit=2))
    assert (last.slots, last.cursor) == ([minute], None)


def test_live_figures_are_added_up_and_the_worst_lateness_counts():
    ticks = [
        Tick(1, "ready", 2, {"accepted_total": 3.0, "lateness_ms_p99": 4.0}),
        Tick(2, "ready", 5, {"accepted_total": 1.0, "lateness_ms_p99": 9.0}, refusing="full"),
    ]
    found = merging.tick(ticks, [])
    assert found == Tick(2, "ready", 7, {"accepted_total": 4.0, "lateness_ms_p99": 9.0}, refusing="full")
    assert "shard 2" in merging.tick(ticks, [2]).status
    wheels = [
        Wheel(1, [LevelSlots("day", [(1, 2)], 1)], 1),
        Wheel(3, [LevelSlots("day", [(0, 1), (1, 1)], 0)], 0),
    ]
    assert merging.wheel_event(wheels) == Wheel(3, [LevelSlots("day", [(0, 1), (1, 3)], 1)], 1)


def test_a_level_has_moved_as_far_as_in_the_shard_that_is_furthest_behind():
    wheels = [Wheel(1, [LevelSlots("minute", [], 0, until_ms)]) for until_ms in (120, 60)]
    assert merging.wheel_event(wheels).levels[0].moved_until_ms == 60


def test_the_newest_points_of_shards_add_up_and_the_worst_lateness_counts():
    points = [Point(5, 1_000, 1, 2, 3, 4, None, None), Point(6, 1_001, 1, 2, 3, 4, 7.5, 9.5)]
    ticks = [Tick(5, "ready", 0, {}, second=point) for point in (*points, None)]
    assert merging.tick(ticks, []).second == Point(6, 1_001, 2, 4, 6, 8, 7.5, 9.5)
    assert merging.tick(ticks[2:], []).second is None


def test_figures_of_the_same_second_are_added_up():
    def of(at_ms, accepted, late):
        return FigureHistory(9_999, at_ms, [1_000] * 2, accepted, [0, 1], [0, 0], [5, 6], late, late)

    parts = [
        encode(of([3_003, 4_001], [1, 2], [None, 2.0])),
        encode(of([3_998, 5_000], [10, 20], [7.0, None])),
    ]
    found = merging.figures(parts)
    assert found.at_ms == [3_003, 4_001, 5_000]
    assert found.accepted == [1, 12, 20]
    assert found.pending == [5, 11, 6]
    assert found.lateness_ms_p99 == [None, 7.0, None]


def test_metrics_have_one_group_for_each_family_and_the_shard_of_each_sample():
    text = '# HELP m about\n# TYPE m gauge\nm{topic="a b"} 1.0\n# HELP n other\n# TYPE n counter\nn 2.0\n'
    assert merging.metrics([("0", text), ("1", text)]) == (
        '# HELP m about\n# TYPE m gauge\nm{shard="0",topic="a b"} 1.0\nm{shard="1",topic="a b"} 1.0\n'
        '# HELP n other\n# TYPE n counter\nn{shard="0"} 2.0\nn{shard="1"} 2.0\n'
    )


@given(
    st.lists(st.sets(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_pages_of_groups_of_all_shards_have_each_once_in_order(each, limit):
    def page_of(own, wanted):
        found, cursor = list_cursor.page(own, lambda key: key, wanted.count_max, wanted.after)
        groups = [{"topic": topic, "group": group} for topic, group in found]
        return encode({"groups": groups, "cursor": cursor})

    found, wanted = [], PageQuery(limit=limit)
    while True:
        merged = msgspec.json.decode(merging.lists("groups", [page_of(own, wanted) for own in each], wanted))
        found += [(one["topic"], one["group"]) for one in merged["groups"]]
        if merged["cursor"] is None:
            break
        wanted = PageQuery(limit=limit, cursor=merged["cursor"])
    assert found == sorted(pair for own in each for pair in own)


@given(st.lists(st.sets(st.sampled_from("abcdef")), min_size=1, max_size=4), st.integers(1, 4))
def test_pages_of_topics_of_all_shards_have_each_once_in_order(each, limit):
    found, wanted = [], PageQuery(limit=limit)
    while True:
        parts = []
        for own in each:
            names, cursor = list_cursor.page(own, list_cursor.topic_key, limit, wanted.after)
            parts.append(encode(Topics([TopicInfo(name, [], 1, 0) for name in names], cursor)))
        merged = merging.topics(parts, wanted)
        found += [one.topic for one in merged.topics]
        if merged.cursor is None:
            break
        wanted = PageQuery(limit=limit, cursor=merged.cursor)
    assert found == sorted(set().union(*each))


def test_levels_are_added_up_where_they_are_the_same_and_shown_each_where_they_differ():
    def page(shard_delays, pending, next_due_ms):
        return encode(
            Levels(
                [
                    LevelInfo(level, f"{delay_ms // 1000}s", delay_ms, pending, next_due_ms)
                    for level, delay_ms in enumerate(shard_delays, 1)
                ]
            )
        )

    merged = merging.levels([page([1_000, 5_000], 2, 70), page([1_000, 9_000, 30_000], 3, 50)])
    assert [(one.level, one.delay_ms, one.pending, one.next_due_ms) for one in merged.levels] == [
        (1, 1_000, 5, 50),
        (2, 5_000, 2, 70),
        (2, 9_000, 3, 50),
        (3, 30_000, 3, 50),
    ]
