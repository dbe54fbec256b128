"""The page about lateness."""

import datetime as dt
import math

from timerwheel.model.durations import format_ms
from timerwheel.spark_jobs.lateness.dashboard import Dashboard, Period, TopicLateness
from timerwheel.spark_jobs.lateness.plots import by_topic, over_time, share_within
from timerwheel.spark_jobs.pages.page import page
from timerwheel.spark_jobs.pages.svg import about
from timerwheel.spark_jobs.storage import shown

TOPICS_SHOWN = 200
TOPICS_DRAWN = 15
_HEAT_MAX = 80
_HEAT_FULL_MS = 600_000  # as warm as it gets


def share(of: Dashboard | Period | TopicLateness) -> str:
    """The share on time as a percentage, never rounded up."""
    if not of.lateness.count:
        return "-"
    return percent(of.on_time, of.lateness.count)


def percent(part: int, whole: int) -> str:
    """A share with two decimals, cut off: 100% means all."""
    hundredths = part * 10_000 // whole
    return "100%" if part == whole else f"{hundredths / 100:.2f}%"


def lateness_page(board: Dashboard, zone: dt.tzinfo) -> str:
    """The page as text. Whatever comes from a log is escaped."""
    step = dt.timedelta(hours=1) if board.step == "hour" else dt.timedelta(days=1)
    times = [dt.datetime.fromisoformat(period.start).astimezone(zone) for period in board.periods]

    def time(ms: int) -> str:
        return format_ms(ms, zone).replace("T", " ")

    def hour(ms: int) -> str:
        return hour_of(ms, zone)

    def start(text: str) -> str:
        if board.step == "day":
            return text[: len("2026-12-24")]
        return _hour_text(dt.datetime.fromisoformat(text).astimezone(zone))

    return page(
        "lateness.html",
        {
            "share": share,
            "about": about,
            "heat": heat,
            "time": time,
            "hour": hour,
            "start": start,
            "place": shown,
        },
        board=board,
        topics=board.topics[:TOPICS_SHOWN],
        latest=max(board.topics, key=lambda one: one.lateness.max_ms, default=None),
        share_plot=share_within(board.counted),
        periods_plot=over_time(times, [one.lateness for one in board.periods], step, board.step),
        topics_plot=by_topic([(one.topic, one.lateness) for one in board.topics[:TOPICS_DRAWN]]),
    )


def hour_of(ms: int, zone: dt.tzinfo) -> str:
    """An hour in the zone, as 2026-12-24 17:00; one that occurs twice, in autumn, with its offset to UTC."""
    return _hour_text(dt.datetime.fromtimestamp(ms / 1_000, zone))


def _hour_text(time: dt.datetime) -> str:
    text = time.isoformat(" ", "minutes")  # with its offset
    occurs_twice = time.replace(fold=0).utcoffset() != time.replace(fold=1).utcoffset()
    return text if occurs_twice else text[: len("2026-12-24 17:00")]


def heat(ms: int) -> int:
    """How warm a cell is, in percent: by the logarithm of the lateness."""
    return round(_HEAT_MAX * min(math.log1p(ms) / math.log1p(_HEAT_FULL_MS), 1))
