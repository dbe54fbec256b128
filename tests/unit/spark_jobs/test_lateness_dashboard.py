"""The page about lateness against the deliveries that its tables were made from."""

import datetime as dt
import html
import random
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.audit_tables import HOUR_MS, START_MS, write_audit
from timerwheel.spark_jobs.audit.output import AuditOutputError
from timerwheel.spark_jobs.audit.tallies import LATENESS
from timerwheel.spark_jobs.lateness.dashboard import dashboard
from timerwheel.spark_jobs.lateness.report import heat, hour_of, lateness_page, percent

BERLIN = ZoneInfo("Europe/Berlin")


def board_of(*urls, target_ms=1_000, zone=dt.UTC):
    return dashboard(urls, target_ms, zone, "UTC")


DELIVERIES = st.lists(
    st.tuples(
        st.sampled_from(["orders", "invoices", "007", "ü <b>"]),
        st.integers(START_MS, START_MS + 9 * 24 * HOUR_MS),
        st.one_of(st.integers(0, 40), st.integers(0, 100_000)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(DELIVERIES, DELIVERIES, st.integers(0, 2_000))
def test_the_page_counts_every_delivery_of_all_audits(tmp_path_factory, one, two, target_ms):
    room = tmp_path_factory.mktemp("audits")
    urls = [
        write_audit(room / "one", one, files=2),
        write_audit(room / "two", two, begin=1_000, until=2_000),
    ]
    board = board_of(*urls, target_ms=target_ms, zone=BERLIN)
    every = one + two
    assert board.lateness.count == len(every) == sum(count for _, count in board.counted)
    assert board.lateness.max_ms == max((late for _, _, late in every), default=0)
    within = sum(late <= target_ms for _, _, late in every)
    # Never too high; too low only by what shares a bucket with the target.
    bucket_ms = target_ms // 16 + 1
    assert within - sum(target_ms - bucket_ms <= late <= target_ms for _, _, late in every) <= board.on_time
    assert board.on_time <= within
    for topic in board.topics:
        own = [late for name, _, late in every if name == topic.topic]
        assert topic.lateness.count == len(own)
        assert topic.lateness.max_ms == max(own)
        assert (topic.topic, max(own)) in {
            (name, late) for name, due_ms, late in every if due_ms // HOUR_MS * HOUR_MS == topic.worst_hour_ms
        }
    assert {topic.topic for topic in board.topics} == {name for name, _, _ in every}
    assert [one.lateness.p99_ms for one in board.topics] == sorted(
        (one.lateness.p99_ms for one in board.topics), reverse=True
    )
    assert sum(period.lateness.count for period in board.periods) == len(every)
    assert sum(period.on_time for period in board.periods) == board.on_time


def test_what_comes_from_a_log_is_escaped_and_a_page_without_deliveries_says_so(tmp_path):
    deliveries = [("ü <b>", START_MS, 5), ("orders", START_MS, 2_000)]
    page = lateness_page(board_of(write_audit(tmp_path / "a", deliveries)), BERLIN)
    assert "ü &lt;b&gt;" in page
    assert "ü <b>" not in page
    empty = lateness_page(board_of(write_audit(tmp_path / "b", [])), BERLIN)
    assert "Nothing was delivered when it fell due." in empty


def test_up_to_a_week_is_shown_by_the_hour_and_more_by_the_day_of_the_zone(tmp_path):
    hours = [START_MS + hour * HOUR_MS for hour in (0, 1, 7 * 24 - 1)]
    short = board_of(write_audit(tmp_path / "short", [("a", due_ms, 5) for due_ms in hours]))
    assert short.step == "hour"
    assert [one.start for one in short.periods][:2] == [
        "2026-11-21T00:00:00+00:00",
        "2026-11-21T01:00:00+00:00",
    ]
    late = START_MS + 23 * HOUR_MS  # the next day in Berlin
    hours = [START_MS, late, START_MS + 8 * 24 * HOUR_MS]
    long = board_of(write_audit(tmp_path / "long", [("a", due_ms, 5) for due_ms in hours]), zone=BERLIN)
    assert long.step == "day"
    assert [one.start[:10] for one in long.periods] == ["2026-11-21", "2026-11-22", "2026-11-29"]


def test_the_hours_of_the_day_are_those_of_the_zone(tmp_path):
    url = write_audit(tmp_path / "a", [("orders", START_MS, 20), ("orders", START_MS + 24 * HOUR_MS, 30)])
    (day,) = board_of(url, zone=BERLIN).day
    assert day.p99_ms == [None, 30] + [None] * 22


AUTUMN_MS = 1_792_886_400_000  # 2026-10-25T00:00:00Z, 02:00 in Berlin for the first time
SPRING_MS = 1_774_742_400_000  # 2026-03-29T00:00:00Z, 01:00 in Berlin, an hour before 03:00


def test_both_hours_at_two_of_an_autumn_night_are_shown_each_with_its_offset(tmp_path):
    deliveries = [("a", AUTUMN_MS + hour * HOUR_MS, 10 + hour) for hour in range(-1, 3)]
    board = board_of(write_audit(tmp_path / "a", deliveries), zone=BERLIN)
    assert [(one.start, one.lateness.count, one.lateness.max_ms) for one in board.periods] == [
        ("2026-10-25T01:00:00+02:00", 1, 9),
        ("2026-10-25T02:00:00+02:00", 1, 10),
        ("2026-10-25T02:00:00+01:00", 1, 11),
        ("2026-10-25T03:00:00+01:00", 1, 12),
    ]
    page = html.unescape(lateness_page(board, BERLIN))
    for text in ("01:00", "02:00+02:00", "02:00+01:00", "03:00"):
        assert f">2026-10-25 {text}<" in page
    assert hour_of(AUTUMN_MS, BERLIN) == "2026-10-25 02:00+02:00"
    assert hour_of(AUTUMN_MS + HOUR_MS, BERLIN) == "2026-10-25 02:00+01:00"
    assert hour_of(AUTUMN_MS, dt.UTC) == "2026-10-25 00:00"


def test_no_hour_of_a_spring_night_is_lost(tmp_path):
    deliveries = [("a", SPRING_MS + hour * HOUR_MS, 10) for hour in range(3)]
    board = board_of(write_audit(tmp_path / "a", deliveries), zone=BERLIN)
    assert [one.start for one in board.periods] == [
        "2026-03-29T01:00:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-29T04:00:00+02:00",
    ]


@pytest.mark.parametrize("change_ms", [AUTUMN_MS, SPRING_MS])
def test_days_of_23_and_25_hours_have_all_their_deliveries(tmp_path, change_ms):
    hours = range(-4 * 24, 5 * 24)
    board = board_of(
        write_audit(tmp_path / "a", [("a", change_ms + hour * HOUR_MS, 5) for hour in hours]), zone=BERLIN
    )
    assert board.step == "day"
    counts = [one.lateness.count for one in board.periods]
    assert sum(counts) == len(hours)
    assert counts[1:-1].count(24) == len(counts) - 3
    assert (25 if change_ms == AUTUMN_MS else 23) in counts
    starts = [one.start for one in board.periods]
    assert starts == sorted(set(starts))


HEADER = 64  # of a segment


def test_what_several_audits_judged_counts_once_as_the_latest_says(tmp_path):
    monday = write_audit(tmp_path / "monday", [("a", START_MS, 5)] * 4, begin=HEADER, until=1_000)
    tuesday = write_audit(
        tmp_path / "tuesday",
        [("a", START_MS, 700)] * 3,
        begin=HEADER,
        until=2_000,
        ended_ms=START_MS + 1,
    )
    other = write_audit(tmp_path / "other", [("a", START_MS, 5)], node="node-2", begin=HEADER, until=2_000)
    for urls in ((monday, tuesday, other), (other, tuesday, monday, monday)):
        board = board_of(*urls)
        assert board.lateness.count == 3 + 1
        assert board.lateness.max_ms == 700
    assert len(board.audits) == 3


def test_of_two_audits_of_one_moment_the_one_with_the_last_url_counts(tmp_path):
    for name, count in (("b", 2), ("a", 1), ("c", 3)):
        write_audit(tmp_path / name, [("orders", START_MS, 5)] * count)
    assert board_of(*(str(tmp_path / name) for name in "cab")).lateness.count == 3


def test_what_retention_has_removed_before_a_later_audit_still_counts(tmp_path):
    first = write_audit(tmp_path / "first", [("a", START_MS, 5)] * 4, until=5_000, segment=0)
    more = write_audit(
        tmp_path / "more", [("a", START_MS, 5)] * 2, begin=4_000 + HEADER, until=5_000, segment=4_000
    )
    later = write_audit(
        tmp_path / "later",
        [("a", START_MS, 9)] * 7,
        begin=4_000 + HEADER,
        until=6_000,
        segment=4_000,
        ended_ms=START_MS + 1,
    )
    assert board_of(first, later).lateness.count == 4 + 7
    assert board_of(first, later).lateness.max_ms == 9
    assert board_of(more, later).lateness.count == 7


def test_audits_with_a_checkpoint_continue_each_other_and_a_whole_one_supersedes_them(tmp_path):
    begun = write_audit(tmp_path / "begun", [("a", START_MS, 5)], until=700, since=HEADER)
    went_on = write_audit(
        tmp_path / "went-on", [("a", START_MS, 5)] * 2, until=900, since=700, ended_ms=START_MS + 1
    )
    assert board_of(begun, went_on).lateness.count == 3
    again = write_audit(
        tmp_path / "again", [("a", START_MS, 5)] * 2, until=900, since=700, ended_ms=START_MS + 2
    )
    assert board_of(begun, went_on, again).lateness.count == 3
    whole = write_audit(tmp_path / "whole", [("a", START_MS, 5)] * 4, until=1_000, ended_ms=START_MS + 3)
    assert board_of(begun, went_on, again, whole).lateness.count == 4


@pytest.mark.parametrize(
    "later", [{"until": 2_000, "since": 700}, {"until": 900}], ids=["amid a segment", "a shorter log"]
)
def test_audits_that_share_a_part_that_cannot_be_told_from_the_rest_are_refused(tmp_path, later):
    one = write_audit(tmp_path / "one", [("a", START_MS, 5)], until=1_000)
    two = write_audit(tmp_path / "two", [("a", START_MS, 5)], ended_ms=START_MS + 1, **later)
    with pytest.raises(AuditOutputError, match=r"one and .*two both account for offsets from .* of node-1"):
        board_of(one, two)


def test_an_audit_of_an_earlier_version_is_refused_beside_a_later_one_of_the_same(tmp_path):
    old = write_audit(tmp_path / "old", [("a", START_MS, 5)])
    for path in (tmp_path / "old" / LATENESS).iterdir():
        pq.write_table(pq.read_table(path).drop_columns(["segment"]), path)
    new = write_audit(tmp_path / "new", [("a", START_MS, 5)], ended_ms=START_MS + 1)
    assert board_of(old).lateness.count == 1
    with pytest.raises(AuditOutputError, match="old was made by an earlier version"):
        board_of(old, new)


def test_what_is_no_audit_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(AuditOutputError, match=r"is not the directory of an audit: it has no audit.json"):
        board_of(str(tmp_path / "empty"))
    url = write_audit(tmp_path / "only", [])
    for path in (tmp_path / "only" / LATENESS).iterdir():
        path.write_bytes(b"nothing of the kind")
    with pytest.raises(AuditOutputError, match=r"the table lateness is damaged"):
        board_of(url)
    for path in (tmp_path / "only" / LATENESS).iterdir():
        path.unlink()
    with pytest.raises(AuditOutputError, match=r"has no table lateness: it was made with --report-only"):
        board_of(url)
    (tmp_path / "only" / "audit.json").write_text('{"nodes": 3}')
    with pytest.raises(AuditOutputError, match=r"audit.json is not that of an audit"):
        board_of(url)


def test_many_topics_are_cut_to_the_latest(tmp_path):
    generator = random.Random(3)
    deliveries = [(f"topic-{n:03d}", START_MS, generator.randrange(60_000)) for n in range(230)]
    board = board_of(write_audit(tmp_path / "a", deliveries))
    assert len(board.topics) == 230
    assert "The 200 latest of 230 topics." in lateness_page(board, dt.UTC)


def test_all_is_100_percent_and_almost_all_is_not():
    assert percent(10, 10) == "100%"
    assert percent(99_999_999, 100_000_000) == "99.99%"
    assert percent(0, 10) == "0.00%"
    assert (heat(0), heat(10**12)) == (0, 80)


@pytest.mark.filterwarnings("error")
def test_topics_in_other_scripts_are_drawn_as_text(tmp_path):
    topics = ["订单", "שלום", "$x$", "a<b>"]
    audit = write_audit(tmp_path / "one", [(name, START_MS, 5) for name in topics])
    page = lateness_page(board_of(audit), dt.UTC)
    for name in topics:
        assert page.count(f">{html.escape(name)}<") >= 2  # in the plot and in tables
