"""`GET /metrics`: the service in numbers, in the text format of Prometheus. `doc/metrics.md` lists them.

    scrape   gauges of the engine [event loop, reader thread] -> text [a thread of its own]

A registry for each application; nothing is registered globally. A token with some topics sees only the
others without their names. While the engine opens, and after it has closed, the metrics of the process and of
HTTP are there, and `timerwheel_ready` is 0.
"""

import asyncio
import contextlib
import itertools
import platform
from collections.abc import Callable, Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http import query
from timerwheel.api.http.budget import Budgets
from timerwheel.api.http.traffic import Traffic
from timerwheel.api.security import access
from timerwheel.api.security.access import Access
from timerwheel.api.service.loop_pauses import LoopPauses
from timerwheel.api.service.rocketmq_metrics import rocketmq_families
from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError
from timerwheel.groups.config import UnknownGroupError
from timerwheel.push.stats import FAILURES_IN_ROW, SubscriptionCounts
from timerwheel.runtime.counters import Counters, Histogram
from timerwheel.runtime.gauges import NAMED_MAX, GaugeValues, Survey
from timerwheel.version import version
from timerwheel.wire.fields import NoQuery

TEXT = "text/plain"
CONTENT_TYPE = f"{TEXT}; version=0.0.4; charset=utf-8"
BOUND_NAMES = ("5s", "1m", "5m", "15m", "1h", "4h", "8h", "24h")
ANY_TIME = "any"


class Metrics:
    """The metrics of one application."""

    def __init__(
        self, handle: EngineHandle, budgets: Budgets, pauses: LoopPauses, *, rocketmq: bool = False
    ) -> None:
        self.traffic = Traffic()
        self._handle = handle
        self._collector = ServiceCollector(handle, self.traffic, budgets, pauses, rocketmq=rocketmq)
        self._registry = registry_of(self._collector)
        self._turn = asyncio.Lock()

    async def scrape(self, request: web.Request) -> web.Response:
        """GET /metrics. Scrapes are answered one after the other."""
        query.read(request, NoQuery)
        caller = access.of(request)
        async with self._turn:
            self._collector.seen = await self._look(caller)
            await self._collector.look_closer(caller.may)
            # Not one of the engine's readers: the engine may not be there yet.
            text = await asyncio.to_thread(generate_latest, self._registry)
        headers = {"Content-Type": CONTENT_TYPE, "X-Content-Type-Options": "nosniff"}
        return web.Response(body=text, headers=headers)

    async def _look(self, caller: Access) -> tuple[Engine, GaugeValues] | None:
        try:
            engine = self._handle.engine
        except NotReadyError:
            return None
        if engine.status == "closed":
            return None
        gauges = await engine.gauges.take()
        if gauges.survey is not None and not caller.has_all_topics:
            gauges = gauges._replace(survey=gauges.survey.seen_by(caller.may))
        return engine, gauges


class ServiceCollector(Collector):
    """Makes metrics of the service and of what was last seen of its engine; called in a thread."""

    def __init__(
        self, handle: EngineHandle, traffic: Traffic, budgets: Budgets, pauses: LoopPauses, *, rocketmq: bool
    ) -> None:
        self.seen: tuple[Engine, GaugeValues] | None = None
        self.pushed: list[SubscriptionCounts] = []
        self.ages_ms: dict[tuple[str, str], int] = {}
        self._handle = handle
        self._traffic = traffic
        self._budgets = budgets
        self._pauses = pauses
        self._rocketmq = rocketmq

    async def look_closer(self, may: Callable[[str], bool]) -> None:
        """Look at single subscriptions and groups of what was seen: the worst NAMED_MAX of these topics."""
        self.pushed, self.ages_ms = [], {}
        if self.seen is None:
            return
        engine, gauges = self.seen
        own = (one for one in self._handle.push.counts() if may(one.topic))
        self.pushed = list(itertools.islice(own, NAMED_MAX))
        for group in gauges.survey.groups if gauges.survey is not None else ():
            if group.topic:
                with contextlib.suppress(UnknownGroupError, NotReadyError):  # it may be gone by now
                    age_ms = await engine.groups.oldest_age_ms(group.topic, group.group)
                    self.ages_ms[group.topic, group.group] = age_ms or 0

    def collect(self) -> Iterator[Metric]:
        """Every metric but those of the process."""
        yield from _service(self._handle)
        yield from _http(self._traffic)
        yield from _resources(self._budgets, self._pauses)
        if self.seen is None:
            return
        engine, gauges = self.seen
        yield from _done(engine.counters)
        yield from _pushed(self.pushed)
        yield from _held(gauges, engine.settings.disk_reserve_bytes)
        if gauges.survey is not None:
            yield from _surveyed(gauges.survey)
            yield _ages(self.ages_ms)
        if self._rocketmq:
            yield from rocketmq_families(engine.counters, gauges)


def _pushed(counts: list[SubscriptionCounts]) -> Iterator[Metric]:
    """Push by subscription."""
    labels = ("topic", "subscription")
    attempts = CounterMetricFamily(
        "timerwheel_push_subscription_attempts",
        "Push attempts of one subscription that ended",
        labels=(*labels, "outcome"),
    )
    failing = GaugeMetricFamily(
        "timerwheel_push_subscription_failing",
        f"1 while an endpoint has failed {FAILURES_IN_ROW} times or more in a row",
        labels=labels,
    )
    for one in counts:
        attempts.add_metric((one.topic, one.id, "delivered"), one.delivered)
        attempts.add_metric((one.topic, one.id, "failed"), one.failed)
        failing.add_metric((one.topic, one.id), int(one.is_failing))
    yield attempts
    yield failing


def _ages(ages_ms: dict[tuple[str, str], int]) -> Metric:
    oldest = GaugeMetricFamily(
        "timerwheel_group_oldest_unacknowledged_seconds",
        "Since the oldest message that a group is not done with was delivered",
        labels=("topic", "group"),
    )
    for place, age_ms in ages_ms.items():
        oldest.add_metric(place, age_ms / 1_000)
    return oldest


def registry_of(collector: ServiceCollector) -> CollectorRegistry:
    """All that a scrape tells: of the service, and of its process."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


# ---------------------------------------------------------------------- the service and HTTP


def _service(handle: EngineHandle) -> Iterator[Metric]:
    build = GaugeMetricFamily("timerwheel_build_info", "1, with the version", labels=("version", "python"))
    build.add_metric((version(), platform.python_version()), 1)
    yield build
    yield _gauge("ready", "1 if recovered and not stopping or failed, else 0", int(handle.ready))
    accepting = handle.ready and handle.engine.disk.refusal is None
    yield _gauge("accepting", "1 if new messages are taken: ready, and the disk has room", int(accepting))


def _http(traffic: Traffic) -> Iterator[Metric]:
    yield _gauge("http_requests_in_progress", "Requests that are being answered", traffic.in_progress)
    labels = ("route", "method", "status")
    about = "Requests answered; status aborted: the client went away"
    requests = CounterMetricFamily("timerwheel_http_requests", about, labels=labels)
    for key, count in traffic.requests().items():
        requests.add_metric(key, count)
    yield requests
    about = "Time to answer, with the time that a client asked to wait"
    seconds = HistogramMetricFamily("timerwheel_http_request_seconds", about, labels=("route",))
    for route, histogram in traffic.seconds().items():
        seconds.add_metric((route,), _buckets(histogram), histogram.sum)
    yield seconds


def _resources(budgets: Budgets, pauses: LoopPauses) -> Iterator[Metric]:
    for name, about, which in (
        ("http_in_progress_bytes", "Bytes of requests and answers that are held in memory", "used_bytes"),
        ("http_in_progress_limit_bytes", "Bytes beyond which requests are refused", "bytes_max"),
    ):
        counts = [("request", getattr(budgets.requests, which)), ("answer", getattr(budgets.answers, which))]
        yield _by_name(name, about, "direction", counts)
    refused = budgets.requests.refused + budgets.answers.refused
    yield CounterMetricFamily("timerwheel_http_overloaded", "Requests refused with overloaded", value=refused)
    about = "By how much a timer of the event loop that rings 50 times a second was late"
    yield _histogram("loop_pause_seconds", about, pauses.seconds)
    yield _gauge("loop_pause_longest_seconds", "The longest of these since the start", pauses.longest_s)


# ---------------------------------------------------------------------- what was done since the start


def _done(counters: Counters) -> Iterator[Metric]:
    accepted = {"waiting": counters.accepted_waiting, "at_once": counters.accepted_at_once}
    yield _counter("messages_accepted", "Messages stored, to wait or delivered at once", "delivery", accepted)
    fired = {"due": counters.fired_due, "early": counters.fired_early}
    about = "Messages delivered after they waited; early: rescheduled to now, or their level was shortened"
    yield _counter("messages_fired", about, "when", fired)
    for name, about, count in (
        ("messages_recalled", "Messages recalled", counters.recalled),
        ("messages_rescheduled", "Waiting messages given another due time", counters.rescheduled),
        ("messages_moved", "Waiting messages that retention stored again", counters.moved),
        ("group_leases", "Messages handed to consumers of groups", counters.leased),
        ("group_returns", "Messages that their group got back, unacknowledged", counters.leases_back),
        ("cascade_entries", "Entries moved down the wheel", counters.cascaded),
    ):
        yield CounterMetricFamily(f"timerwheel_{name}", about, value=count)
    yield _counter("push_attempts", "Push attempts that ended", "outcome", counters.push_attempts)
    yield _histogram(
        "lateness_seconds",
        "From the due time until consumers can see the message, fsync included; not of those fired early",
        counters.lateness_ms.all,
        divisor=1_000,
    )
    for name, about, histogram in (
        ("delay_seconds", "How far ahead accepted messages are due", counters.delay_s),
        ("commit_records", "Records in a group commit", counters.batch_records),
        ("commit_bytes", "Bytes in a group commit", counters.batch_bytes),
        ("commit_seconds", "Group commits, from the event loop and back to it", counters.append_s),
        ("log_sync_seconds", "Syncs of the log (fdatasync)", counters.sync_s),
        ("index_commit_seconds", "Writing a commit of the index", counters.index_commit_s),
        ("cascade_seconds", "A step of the cascade, mostly with nothing to do", counters.cascade_s),
        ("push_attempt_seconds", "Push attempts, from connecting to the answer", counters.push_s),
    ):
        yield _histogram(name, about, histogram)


# ---------------------------------------------------------------------- what is held


def _held(gauges: GaugeValues, reserve_bytes: int) -> Iterator[Metric]:
    for name, about, value in (
        ("leases", "Timers of consumer groups that wait in the wheel", gauges.leases),
        ("topics", "Topics that clients made", gauges.topics),
        ("groups", "Consumer groups", gauges.groups),
        ("schedules", "Recurring schedules", gauges.schedules),
        ("subscriptions", "Push subscriptions", gauges.subscriptions),
        ("log_start_offset_bytes", "Offset at which the kept log begins", gauges.log_start),
        ("log_tail_offset_bytes", "Offset at which the log ends", gauges.log_tail),
        ("log_unsynced_bytes", "Log that is not known to be durable", gauges.log_tail - gauges.log_synced),
        ("log_segments", "Segments of the log", gauges.segments),
        ("index_behind_bytes", "Log that the index does not reflect yet", gauges.index_behind_bytes),
        ("index_behind_records", "Records that the index does not reflect yet", gauges.index_behind_records),
        ("index_behind_seconds", "Age of the oldest of them", gauges.index_behind_ms / 1_000),
        ("near_timers", "Timers of the coming seconds, in memory", gauges.near_timers),
        ("overdue_seconds", "How long the next message to fire is overdue", gauges.overdue_ms / 1_000),
        ("set_aside_messages", "Due messages that could not be read", gauges.quarantined),
        ("disk_free_bytes", "Free space where the data is, as of the last second", gauges.disk_free_bytes),
        ("disk_reserve_bytes", "Free space below which new messages are refused", reserve_bytes),
        ("survey_age_seconds", "Age of counts by topic, group, due time", gauges.survey_age_ms / 1_000),
    ):
        yield _gauge(name, about, value)
    about = "Batches of due messages that the log had no room for and that were tried again"
    yield CounterMetricFamily("timerwheel_fire_retries", about, value=gauges.retries)


def _surveyed(survey: Survey) -> Iterator[Metric]:
    largest = "; the 100 topics with most, the others together without a label"
    yield _by_name("pending_messages", f"Messages that wait{largest}", "topic", survey.pending)
    yield _by_name("visible_messages", f"Delivered messages that are kept{largest}", "topic", survey.visible)
    yield _by_name("dead_letter_messages", "Dead letters that are kept", "group", survey.dead)
    about = (
        "Messages that wait and are due within this time from now, overdue ones included: up to 5m true to a "
        "second, up to 1h to a minute, beyond to an hour"
    )
    counts = [*zip(BOUND_NAMES, survey.within, strict=True), (ANY_TIME, survey.pending_all)]
    yield _by_name("pending_due_messages", about, "within", counts)
    yield _gauge("overdue_messages", "Messages that wait although they are due, to a second", survey.overdue)
    for name, about in (
        ("lag", "Messages that no consumer of the group has seen"),
        ("in_flight", "Messages with consumers"),
        ("waiting", "Messages that wait for their next attempt"),
        ("ready", "Messages that are ready again and can be received"),
        ("parked", "Messages behind an earlier one with the same sharding key"),
    ):
        family = GaugeMetricFamily(f"timerwheel_group_{name}_messages", about, labels=("topic", "group"))
        for group in survey.groups:
            family.add_metric((group.topic, group.group), getattr(group, name))
        yield family


# ---------------------------------------------------------------------- shapes


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"timerwheel_{name}", about, value=value)


def _counter(name: str, about: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"timerwheel_{name}", about, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family


def _by_name(name: str, about: str, label: str, counts: Iterable[tuple[str, int]]) -> Metric:
    family = GaugeMetricFamily(f"timerwheel_{name}", about, labels=(label,))
    for value, count in counts:
        family.add_metric((value,), count)
    return family


def _histogram(name: str, about: str, histogram: Histogram, divisor: int = 1) -> Metric:
    family = HistogramMetricFamily(f"timerwheel_{name}", about, labels=())
    family.add_metric((), _buckets(histogram, divisor), histogram.sum / divisor)
    return family


def _buckets(histogram: Histogram, divisor: int = 1) -> list[tuple[str, float]]:
    """Upper bounds as Prometheus writes them, and how many values were not above each."""
    bounds = [str(float(bound / divisor)) for bound in histogram.bounds]
    return list(zip([*bounds, "+Inf"], histogram.cumulative(), strict=True))
