"""Recurrence: hand-checked moments around changes of clocks, and what a minute by minute walk finds."""

import datetime as dt
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timerwheel.schedules.errors import ScheduleError
from timerwheel.schedules.recurrence import EVERY_MS_MIN, MOMENT_MS_MAX, Recurrence

MINUTE_MS = 60_000
DAY_MS = 86_400_000
UTC = dt.UTC
NOT_ZONES = ("right/UTC", "right/Europe/Berlin", "posix/UTC", "posixrules", "localtime", "Factory", "factory")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)


def ms(text: str) -> int:
    """Epoch milliseconds of a UTC time such as 2026-03-29T01:00."""
    return (dt.datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // dt.timedelta(milliseconds=1)


def texts(runs: list[int]) -> list[str]:
    return [(EPOCH + dt.timedelta(milliseconds=run)).strftime("%Y-%m-%dT%H:%M") for run in runs]


def runs_between(recurrence: Recurrence, after_ms: int, until_ms: int) -> list[int]:
    return list(takewhile(lambda run: run <= until_ms, recurrence.runs_after(after_ms)))


def first(recurrence: Recurrence, after: str, count: int) -> list[str]:
    return texts(list(islice(recurrence.runs_after(ms(after)), count)))


# zone, cron, policies (skipped, repeated), after, the runs that follow; all times UTC
CASES = {
    "Berlin, gap at 02:00, a daily job runs at 03:00": (
        ("Europe/Berlin", "30 2 * * *", "auto", "auto", "2026-03-27T12:00"),
        ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"],
    ),
    "Berlin, gap, skip": (
        ("Europe/Berlin", "30 2 * * *", "skip", "auto", "2026-03-27T12:00"),
        ["2026-03-28T01:30", "2026-03-30T00:30", "2026-03-31T00:30"],
    ),
    "Berlin, gap, several times of it and the moment after it are one run": (
        ("Europe/Berlin", "*/20 2,3 * * *", "auto", "auto", "2026-03-29T00:00"),
        ["2026-03-29T01:00", "2026-03-29T01:20", "2026-03-29T01:40", "2026-03-30T00:00"],
    ),
    "Berlin, gap, an hourly job goes by elapsed time": (
        ("Europe/Berlin", "30 * * * *", "auto", "auto", "2026-03-28T23:45"),
        ["2026-03-29T00:30", "2026-03-29T01:30", "2026-03-29T02:30"],
    ),
    "Berlin, gap, every second hour misses the one that is skipped": (
        ("Europe/Berlin", "0 */2 * * *", "auto", "auto", "2026-03-28T22:30"),
        ["2026-03-28T23:00", "2026-03-29T02:00", "2026-03-29T04:00"],
    ),
    "Berlin, gap, every second hour with run_after": (
        ("Europe/Berlin", "0 */2 * * *", "run_after", "auto", "2026-03-28T22:30"),
        ["2026-03-28T23:00", "2026-03-29T01:00", "2026-03-29T02:00"],
    ),
    "Berlin, repeat, a daily job runs at the first": (
        ("Europe/Berlin", "30 2 * * *", "auto", "auto", "2026-10-23T12:00"),
        ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"],
    ),
    "Berlin, repeat, asked between the two": (
        ("Europe/Berlin", "30 2 * * *", "auto", "first", "2026-10-25T00:45"),
        ["2026-10-26T01:30"],
    ),
    "Berlin, repeat, both": (
        ("Europe/Berlin", "30 2 * * *", "auto", "both", "2026-10-24T12:00"),
        ["2026-10-25T00:30", "2026-10-25T01:30", "2026-10-26T01:30"],
    ),
    "Berlin, repeat, both, asked between the two": (
        ("Europe/Berlin", "30 2 * * *", "auto", "both", "2026-10-25T00:30"),
        ["2026-10-25T01:30", "2026-10-26T01:30"],
    ),
    "Berlin, repeat, both, in order of UTC": (
        ("Europe/Berlin", "15,45 2,3 * * *", "auto", "both", "2026-10-25T00:00"),
        [
            "2026-10-25T00:15",
            "2026-10-25T00:45",
            "2026-10-25T01:15",
            "2026-10-25T01:45",
            "2026-10-25T02:15",
            "2026-10-25T02:45",
            "2026-10-26T01:15",
        ],
    ),
    "Berlin, repeat, an hourly job runs 25 times that day": (
        ("Europe/Berlin", "0 * * * *", "auto", "auto", "2026-10-24T23:30"),
        ["2026-10-25T00:00", "2026-10-25T01:00", "2026-10-25T02:00"],
    ),
    "New York, gap": (
        ("America/New_York", "30 2 * * *", "auto", "auto", "2026-03-06T12:00"),
        ["2026-03-07T07:30", "2026-03-08T07:00", "2026-03-09T06:30"],
    ),
    "New York, repeat": (
        ("America/New_York", "30 1 * * *", "auto", "auto", "2026-10-31T12:00"),
        ["2026-11-01T05:30", "2026-11-02T06:30"],
    ),
    "New York, repeat, both": (
        ("America/New_York", "30 1 * * *", "auto", "both", "2026-10-31T12:00"),
        ["2026-11-01T05:30", "2026-11-01T06:30", "2026-11-02T06:30"],
    ),
    "Lord Howe, gap of half an hour": (
        ("Australia/Lord_Howe", "15 2 * * *", "auto", "auto", "2026-10-02T00:00"),
        ["2026-10-02T15:45", "2026-10-03T15:30", "2026-10-04T15:15"],
    ),
    "Lord Howe, the time after its gap is its own": (
        ("Australia/Lord_Howe", "45 2 * * *", "auto", "auto", "2026-10-03T00:00"),
        ["2026-10-03T15:45", "2026-10-04T15:45"],
    ),
    "Lord Howe, repeat of half an hour, both": (
        ("Australia/Lord_Howe", "45 1 * * *", "auto", "both", "2026-04-04T00:00"),
        ["2026-04-04T14:45", "2026-04-04T15:15", "2026-04-05T15:15"],
    ),
    "Lord Howe, repeat, every ten minutes": (
        ("Australia/Lord_Howe", "*/10 * * * *", "auto", "auto", "2026-04-04T14:45"),
        ["2026-04-04T14:50", "2026-04-04T15:00", "2026-04-04T15:10", "2026-04-04T15:20", "2026-04-04T15:30"],
    ),
    "Sao Paulo 2018, midnight does not exist": (
        ("America/Sao_Paulo", "0 0 * * *", "auto", "auto", "2018-11-02T12:00"),
        ["2018-11-03T03:00", "2018-11-04T03:00", "2018-11-05T02:00"],
    ),
    "Sao Paulo 2018, midnight does not exist, skip": (
        ("America/Sao_Paulo", "0 0 * * *", "skip", "auto", "2018-11-02T12:00"),
        ["2018-11-03T03:00", "2018-11-05T02:00"],
    ),
    "Sao Paulo 2018, the hour before midnight comes twice": (
        ("America/Sao_Paulo", "30 23 * * *", "auto", "both", "2018-02-17T12:00"),
        ["2018-02-18T01:30", "2018-02-18T02:30", "2018-02-19T02:30"],
    ),
    "Sao Paulo 2018, the hour before midnight, first": (
        ("America/Sao_Paulo", "30 23 * * *", "auto", "auto", "2018-02-17T12:00"),
        ["2018-02-18T01:30", "2018-02-19T02:30"],
    ),
    "Beirut, midnight does not exist": (
        ("Asia/Beirut", "0 0 * * *", "auto", "auto", "2026-03-27T12:00"),
        ["2026-03-27T22:00", "2026-03-28T22:00", "2026-03-29T21:00"],
    ),
    "Kolkata, no daylight saving": (
        ("Asia/Kolkata", "0 6 * * *", "auto", "auto", "2026-03-28T12:00"),
        ["2026-03-29T00:30", "2026-03-30T00:30"],
    ),
    "Apia, a day that was skipped runs when the next one begins": (
        ("Pacific/Apia", "0 9 * * *", "auto", "auto", "2011-12-29T00:00"),
        ["2011-12-29T19:00", "2011-12-30T10:00", "2011-12-30T19:00"],
    ),
    "Apia, a day that was skipped, merged with the midnight after it": (
        ("Pacific/Apia", "0 0 * * *", "auto", "auto", "2011-12-29T00:00"),
        ["2011-12-29T10:00", "2011-12-30T10:00", "2011-12-31T10:00"],
    ),
    "Apia, a day that was skipped, skip": (
        ("Pacific/Apia", "0 9 * * *", "skip", "auto", "2011-12-29T00:00"),
        ["2011-12-29T19:00", "2011-12-30T19:00"],
    ),
    "UTC, the leap day": (
        ("UTC", "0 12 29 2 *", "auto", "auto", "2026-01-01T00:00"),
        ["2028-02-29T12:00", "2032-02-29T12:00"],
    ),
}


@pytest.mark.parametrize(("asked", "wanted"), CASES.values(), ids=CASES.keys())
def test_runs_around_changes_of_clocks(asked, wanted):
    zone, cron, skipped, repeated, after = asked
    recurrence = Recurrence(cron=cron, zone=zone, skipped_hour=skipped, repeated_hour=repeated).check()
    assert first(recurrence, after, len(wanted)) == wanted


def walk(
    fields: tuple[set[int], set[int], set[int] | None], zone: str, window: tuple[int, int], policy: tuple
) -> list[int]:
    """The oracle: look at the clock on the wall each minute of UTC, and at what it left out."""
    minutes, hours, weekdays = fields
    run_after, both = policy
    info = ZoneInfo(zone)

    def matches(local: dt.datetime) -> bool:
        day = weekdays is None or local.isoweekday() % 7 in weekdays
        return day and local.minute in minutes and local.hour in hours

    found = []
    low, high = window
    before = None
    for at in range(low, high + 1, MINUTE_MS):
        aware = (EPOCH + dt.timedelta(milliseconds=at)).astimezone(info)
        local = aware.replace(tzinfo=None, fold=0)
        runs = matches(local) and (both or not aware.fold)
        if before is not None and run_after:
            left_out = before + dt.timedelta(minutes=1)
            while left_out < local:
                runs = runs or matches(left_out)
                left_out += dt.timedelta(minutes=1)
        before = local
        if runs:
            found.append(at)
    return found[1:] if found and found[0] == low else found


CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00"),
    ("Europe/Berlin", "2026-10-25T01:00"),
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),
    ("America/Sao_Paulo", "2018-11-04T03:00"),
    ("America/Sao_Paulo", "2018-02-18T02:00"),
    ("Asia/Beirut", "2026-03-28T22:00"),
    ("Asia/Kolkata", "2026-06-01T00:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),
    ("Africa/Casablanca", "2026-02-15T02:00"),
    ("Antarctica/Troll", "2026-03-29T01:00"),
    ("America/St_Johns", "2006-10-29T02:31"),
    ("Asia/Kathmandu", "1985-12-31T18:30"),
    ("Asia/Pyongyang", "2018-05-04T15:00"),
    ("America/Caracas", "2016-05-01T07:00"),
    ("Pacific/Kwajalein", "1993-08-21T12:00"),
]


@given(
    st.sampled_from(CHANGES),
    st.sets(st.integers(0, 59), min_size=1, max_size=5),
    st.sets(st.integers(0, 23), min_size=1, max_size=24),
    st.one_of(st.none(), st.sets(st.integers(0, 6), min_size=1)),
    st.tuples(st.integers(-1_800, 200), st.integers(100, 1_800)),
    st.tuples(st.booleans(), st.booleans()),
)
@example(CHANGES[1], {15, 45}, {2, 3}, None, (-90, 300), (False, True))
def test_cron_runs_are_those_of_a_walk_minute_by_minute(change, minutes, hours, weekdays, window, policy):
    zone, moment = change
    from_minute, width = window
    low = ms(moment) + from_minute * MINUTE_MS
    window = (low, low + width * MINUTE_MS)
    run_after, both = policy
    recurrence = Recurrence(
        cron=" ".join(",".join(map(str, sorted(field))) for field in (minutes, hours))
        + " * * "
        + ("*" if weekdays is None else ",".join(map(str, sorted(weekdays)))),
        zone=zone,
        skipped_hour="run_after" if run_after else "skip",
        repeated_hour="both" if both else "first",
    ).check()
    assert runs_between(recurrence, *window) == walk((minutes, hours, weekdays), zone, window, policy)


@given(
    st.sampled_from(CHANGES),
    st.integers(0, 3_000),
    st.integers(1, 300),
    st.sampled_from(["* * * * *", "*/7 2 * * *"]),
)
def test_newest_runs_are_the_last_of_all(change, back_minutes, count, cron):
    zone, moment = change
    until_ms = ms(moment) + DAY_MS
    after_ms = until_ms - back_minutes * MINUTE_MS
    recurrence = Recurrence(cron=cron, zone=zone)
    assert (
        recurrence.newest(after_ms, until_ms, count) == runs_between(recurrence, after_ms, until_ms)[-count:]
    )


@pytest.mark.parametrize(
    ("recurrence", "count"),
    [
        (Recurrence(cron="* * * * *"), 1_000),
        (Recurrence(every_ms=1_000, start_ms=5), 1_000),
        (Recurrence(cron="0 0 1 1 *"), 30),
        (Recurrence(cron="*/5 * 1 6 *", zone="Europe/Berlin"), 1_000),
    ],
)
def test_newest_of_thirty_years_are_found_from_the_end(recurrence, count):
    until_ms = ms("2026-06-15T12:00")
    found = recurrence.newest(ms("1996-06-15T12:00"), until_ms, 1_000)
    assert len(found) == count
    assert found == sorted(set(found))
    assert next(recurrence.runs_after(found[-1])) > until_ms
    assert recurrence.newest(until_ms, until_ms, 5) == []


@given(st.integers(0, 10**13), st.integers(EVERY_MS_MIN, 10**10), st.integers(-1, 2 * 10**14))
def test_interval_runs_are_start_plus_multiples(start_ms, every_ms, after_ms):
    recurrence = Recurrence(every_ms=every_ms, start_ms=start_ms).check()
    found = list(islice(recurrence.runs_after(after_ms), 5))
    assert all((run - start_ms) % every_ms == 0 and run > after_ms and run >= start_ms for run in found)
    assert all(later - run == every_ms for run, later in pairwise(found))
    assert found[0] - every_ms <= after_ms or found[0] == start_ms


def test_interval_ignores_changes_of_clocks():
    recurrence = Recurrence(every_ms=DAY_MS, zone="Europe/Berlin", start_ms=ms("2026-03-28T12:00"))
    assert first(recurrence, "2026-03-28T12:00", 2) == ["2026-03-29T12:00", "2026-03-30T12:00"]


def test_interval_without_a_start_counts_from_when_it_was_made_and_cron_does_not():
    assert next(Recurrence(every_ms=7_000).anchored(1_234).runs_after(1_234)) == 8_234
    assert Recurrence(every_ms=7_000, start_ms=5).anchored(1_234).start_ms == 5
    assert Recurrence(cron="@daily").anchored(1_234).start_ms is None


@pytest.mark.parametrize("what", [{"every_ms": 60_000}, {"cron": "* * * * *"}])
def test_start_is_a_run_and_end_is_none_and_after_is_exclusive(what):
    recurrence = Recurrence(start_ms=120_000, end_ms=240_000, **what).check()
    assert list(recurrence.runs_after(-1)) == [120_000, 180_000]
    assert list(recurrence.runs_after(119_999)) == [120_000, 180_000]
    assert list(recurrence.runs_after(120_000)) == [180_000]
    assert list(recurrence.runs_after(180_000)) == []
    assert list(recurrence.runs_after(10**15)) == []


def test_start_between_two_milliseconds_of_a_second_is_kept():
    recurrence = Recurrence(cron="* * * * *", start_ms=60_001)
    assert next(recurrence.runs_after(0)) == 120_000


def test_runs_end_with_the_calendar():
    assert list(Recurrence(cron="0 0 * * *").runs_after(MOMENT_MS_MAX - 2 * DAY_MS)) == [
        MOMENT_MS_MAX - DAY_MS
    ]
    assert list(Recurrence(cron="0 0 29 2 *").runs_after(MOMENT_MS_MAX - DAY_MS)) == []


@pytest.mark.parametrize(
    ("alias", "fields"),
    [
        ("@hourly", "0 * * * *"),
        (" @Daily ", "0 0 * * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@yearly", "0 0 1 1 *"),
    ],
)
def test_aliases_are_the_fields_they_stand_for(alias, fields):
    zone = "Europe/Berlin"
    [named, written] = (Recurrence(cron=cron, zone=zone).check() for cron in (alias, fields))
    assert first(named, "2026-03-28T00:00", 30) == first(written, "2026-03-28T00:00", 30)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("cron", {}),
        ("cron", {"cron": "* * * * *", "every_ms": 1_000}),
        ("cron", {"cron": "* * * * * *"}),
        ("cron", {"cron": "* * * *"}),
        ("cron", {"cron": ""}),
        ("cron", {"cron": "@reboot"}),
        ("cron", {"cron": "60 * * * *"}),
        ("cron", {"cron": "a * * * *"}),
        ("cron", {"cron": "0 0 30 2 *"}),
        ("cron", {"cron": "0 0 */30 2 1#5"}),
        ("cron", {"cron": "1," * 200 + "1 * * * *"}),
        ("every_ms", {"every_ms": 999}),
        ("every_ms", {"every_ms": 10**18}),
        ("zone", {"cron": "* * * * *", "zone": "Europe/Atlantis"}),
        ("zone", {"cron": "* * * * *", "zone": "America"}),
        ("zone", {"cron": "* * * * *", "zone": "../etc/passwd"}),
        ("zone", {"cron": "* * * * *", "zone": ""}),
        *(("zone", {"cron": "* * * * *", "zone": name}) for name in NOT_ZONES),
        ("zone", {"cron": "* * * * *", "zone": "x" * 5_000}),
        ("start_ms", {"every_ms": 1_000, "start_ms": -1}),
        ("end_ms", {"every_ms": 1_000, "end_ms": MOMENT_MS_MAX + 1}),
        ("end_ms", {"every_ms": 1_000, "start_ms": 9, "end_ms": 9}),
        ("skipped_hour", {"every_ms": 1_000, "skipped_hour": "both"}),
        ("repeated_hour", {"every_ms": 1_000, "repeated_hour": "skip"}),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_field(field, wrong):
    with pytest.raises(ScheduleError) as caught:
        Recurrence(**wrong).check()
    assert caught.value.field == field
    unreadable = field in {"cron", "zone"} and len(wrong.keys() & {"cron", "every_ms"}) == 1
    assert caught.value.code == ("illegal_schedule" if unreadable else "invalid_field")
    assert len(str(caught.value)) < 600


@given(st.text(max_size=40), st.text(alphabet="0123456789*/,-L#W MONJAN", max_size=40))
def test_any_text_is_a_recurrence_or_is_refused(zone, cron):
    for fields in (cron, " ".join([cron.replace(" ", "") or "*"] * 5)):
        try:
            Recurrence(cron=fields, zone=zone).check()
        except ScheduleError:
            continue
