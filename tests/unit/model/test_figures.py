"""The figures over time: what a point says, how many are kept, and what a step of the clock does."""

from timerwheel.model.figures import MINUTE_MS, MINUTES_MAX, SECONDS_MAX, Figures, Point, Totals, columns

BOUNDS = (0, 1, 10, 100)
START_MS = 1_800_000_000_000 // MINUTE_MS * MINUTE_MS


def totals(accepted=0, fired=0, recalled=0, lateness=(0, 0, 0, 0, 0)):
    return Totals(accepted, fired, recalled, list(lateness))


def test_a_point_says_what_happened_since_the_one_before_it():
    figures = Figures(BOUNDS)
    figures.take(START_MS, totals(accepted=10), 10)
    assert figures.newest is None, "what happened before the first look belongs to no second"
    figures.take(START_MS + 1_000, totals(accepted=15, fired=2, recalled=1, lateness=(0, 0, 2, 0, 0)), 12)
    point = figures.newest
    assert (point.at_ms, point.span_ms) == (START_MS + 1_000, 1_000)
    assert (point.accepted, point.fired, point.recalled, point.pending) == (5, 2, 1, 12)


def test_lateness_is_that_of_the_second_and_unknown_when_nothing_fired():
    figures = Figures(BOUNDS)
    figures.take(START_MS, totals(), 0)
    figures.take(START_MS + 1_000, totals(fired=1, lateness=(0, 0, 0, 1, 0)), 0)
    assert 10 < figures.newest.lateness_ms_p99 <= 100
    figures.take(START_MS + 2_000, totals(fired=2, lateness=(0, 1, 0, 1, 0)), 0)
    assert figures.newest.lateness_ms_p99 <= 1, "the late one was in the second before"
    figures.take(START_MS + 3_000, totals(fired=2, lateness=(0, 1, 0, 1, 0)), 0)
    assert figures.newest.lateness_ms_p50 is None
    assert figures.newest.lateness_ms_p99 is None


def test_a_minute_sums_its_seconds_and_has_the_quantiles_of_all_its_messages():
    figures = Figures(BOUNDS)
    for second in range(61):
        late = (0, second, 0, 1 if second > 30 else 0, 0)
        figures.take(START_MS + second * 1_000, totals(fired=second, lateness=late), second)
    (minute,) = figures.minutes
    assert (minute.span_ms, minute.fired, minute.pending) == (MINUTE_MS, 60, 60)
    assert minute.lateness_ms_p50 <= 1
    assert minute.lateness_ms_p99 > 1


def test_no_more_points_are_kept_than_the_limits_say():
    figures = Figures(BOUNDS)
    for second in range(SECONDS_MAX + 10):
        figures.take(START_MS + second * 1_000, totals(), 0)
    assert len(figures.seconds) == SECONDS_MAX
    assert figures.seconds[0].at_ms == START_MS + 10_000
    for minute in range(20, MINUTES_MAX + 40):
        figures.take(START_MS + minute * MINUTE_MS, totals(), 0)
    assert len(figures.minutes) == MINUTES_MAX


def test_when_the_clock_steps_back_the_points_of_the_future_go_and_the_others_stay():
    figures = Figures(BOUNDS)
    for second in range(10):
        figures.take(START_MS + second * 1_000, totals(accepted=second), 0)
    figures.take(START_MS + 4_500, totals(accepted=20), 0)
    assert [point.at_ms for point in figures.seconds] == [START_MS + second * 1_000 for second in range(1, 5)]
    figures.take(START_MS + 5_500, totals(accepted=22), 0)
    assert figures.newest.accepted == 2


def test_another_engine_begins_at_zero_and_is_not_counted_as_minus():
    figures = Figures(BOUNDS)
    figures.take(START_MS, totals(accepted=90), 0)
    figures.take(START_MS + 1_000, totals(accepted=91), 0)
    figures.restart()
    figures.take(START_MS + 2_000, totals(accepted=3), 0)
    figures.take(START_MS + 3_000, totals(accepted=4), 0)
    assert [point.accepted for point in figures.seconds] == [1, 4], "its first messages are not left out"


def test_columns_have_a_list_for_each_figure():
    figures = Figures(BOUNDS)
    assert columns(figures.seconds)["fired"] == []
    for second in range(3):
        figures.take(START_MS + second * 1_000, totals(fired=second), second)
    found = columns(figures.seconds)
    assert found["fired"] == [1, 1]
    assert found["pending"] == [1, 2]
    assert found["lateness_ms_p50"] == [None, None]


def points(*at_ms):
    return [Point(at, 1_000, 1, 1, 0, 0, None, None) for at in at_ms]


def test_points_of_an_earlier_process_stand_before_those_there_are_with_a_gap_where_there_was_none():
    figures = Figures(BOUNDS)
    earlier = range(START_MS - 60_000, START_MS - 50_000, 1_000)
    figures.take(START_MS, totals(), 0)
    figures.take(START_MS + 1_000, totals(), 0)
    figures.bring_back(points(*earlier), points(START_MS - MINUTE_MS), START_MS + 1_000)
    assert [point.at_ms for point in figures.seconds] == [*earlier, START_MS + 1_000]
    assert [point.at_ms for point in figures.minutes] == [START_MS - MINUTE_MS]
    figures.take(START_MS + 2_000, totals(accepted=3), 0)
    assert figures.newest.accepted == 3, "totals of another process are not compared"


def test_points_that_are_too_old_or_in_the_future_do_not_come_back():
    figures = Figures(BOUNDS)
    old_ms, good_ms, future_ms = START_MS - SECONDS_MAX * 1_000, START_MS - 1_000, START_MS + 1
    figures.bring_back(
        points(old_ms, good_ms, future_ms),
        points(START_MS - MINUTES_MAX * MINUTE_MS, old_ms, future_ms),
        START_MS,
    )
    assert [point.at_ms for point in figures.seconds] == [good_ms]
    assert [point.at_ms for point in figures.minutes] == [old_ms]


def test_points_that_come_back_push_out_none_of_this_process():
    figures = Figures(BOUNDS)
    for second in range(SECONDS_MAX + 1):
        figures.take(START_MS + second * 1_000, totals(), 0)
    before = list(figures.seconds)
    figures.bring_back(points(START_MS - 2_000, START_MS), [], START_MS + SECONDS_MAX * 1_000)
    assert list(figures.seconds) == before
