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
from timerwheel.api.http.budget import Budgets
from timerwheel.api.http.route import Need, call
from timerwheel.api.http.traffic import Traffic
from timerwheel.api.security import access
from timerwheel.api.security.access import Access
from timerwheel.api.service.kafka_metrics import kafka_families
from timerwheel.api.service.loop_pauses import LoopPauses
from timerwheel.api.service.rocketmq_metrics import rocketmq_families
from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError
from timerwheel.groups.config import UnknownGroupError
from timerwheel.push.stats import FAILURES_IN_ROW, SubscriptionCounts
from timerwheel.runtime.counters import Counters, Histogram
from timerwheel.runtime.gauges import NAMED_MAX, GaugeValues, Survey
from timerwheel.version import version

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

    @call("GET", "/metrics", "getMetrics", needs=Need.TOKEN, answer=str, answer_kind=TEXT, needs_engine=False)
    async def scrape(self, request: web.Request) -> web.Response:
        """Metrics for Prometheus.

        Scrapes are answered one after the other.
        """
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
    """Collects metrics of the service and of the last survey of its engine; called in a thread."""

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
        """Read the push counts and group ages of these topics; of subscriptions, the worst NAMED_MAX."""
        self.pushed, self.ages_ms = [], {}
        if self.seen is None:
            return
        engine, gauges = self.seen
        with contextlib.suppress(NotReadyError):  # as below
            own = (one for one in self._handle.push.counts() if may(one.topic))
            self.pushed = list(itertools.islice(own, NAMED_MAX))
        for group in gauges.survey.groups if gauges.survey is not None else ():
            if group.topic:
                with contextlib.suppress(UnknownGroupError, NotReadyError):  # it may be gone by now
                    age_ms = await engine.groups.oldest_age_ms(group.topic, group.group)
                    self.ages_ms[group.topic, group.group] = age_ms or 0

    def collect(self) -> Iterator[Metric]:
        """Collect every metric except those of the process."""
        yield from _service(self._handle)
        yield from _cluster(self._handle)
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
        if engine.counters.kafka is not None:
            yield from kafka_families(engine.counters.kafka)
        if self._rocketmq:
            yield from rocketmq_families(engine.counters, gauges)


def _pushed(counts: list[SubscriptionCounts]) -> Iterator[Metric]:
    """Push by subscription."""
    labels = ("topic", "subscription")
    attempts = CounterMetricFamily(
        "timerwheel_push_subscription_attempts",
        "Finished push attempts of a subscription",
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
        "Age of the oldest delivered message that a group has not acknowledged",
        labels=("topic", "group"),
    )
    for place, age_ms in ages_ms.items():
        oldest.add_metric(place, age_ms / 1_000)
    return oldest


def registry_of(collector: ServiceCollector) -> CollectorRegistry:
    """Collect everything that a scrape returns, of the service and of its process."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


# ---------------------------------------------------------------------- the service and HTTP


def _service(handle: EngineHandle) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "timerwheel_build_info", "Always 1; the label carries the version", labels=("version", "python")
    )
    build.add_metric((version(), platform.python_version()), 1)
    yield build
    yield _gauge("ready", "1 if recovered and not stopping or failed, else 0", int(handle.ready))
    accepting = handle.ready and handle.engine.disk.refusal is None
    yield _gauge("accepting", "1 if new messages are accepted: ready, and the disk has room", int(accepting))


def _cluster(handle: EngineHandle) -> Iterator[Metric]:
    """The part of a node among those with its journal."""
    if handle.cluster is None:
        return
    yield _gauge("leader", "1 if this node leads, 0 if it stands by", int(handle.role == "leader"))
    position = handle.journal_position
    if position is not None:
        about = (
            "Position in the journal up to which this node has it; what it lacks of the leader's is its lag"
        )
        yield _gauge("journal_position", about, position)


def _http(traffic: Traffic) -> Iterator[Metric]:
    yield _gauge("http_requests_in_progress", "Requests in progress", traffic.in_progress)
    labels = ("route", "method", "status")
    about = "Requests answered; status aborted: the client disconnected"
    requests = CounterMetricFamily("timerwheel_http_requests", about, labels=labels)
    for key, count in traffic.requests().items():
        requests.add_metric(key, count)
    yield requests
    about = "Response time, including the time that a client asked to wait"
    seconds = HistogramMetricFamily("timerwheel_http_request_seconds", about, labels=("route",))
    for route, histogram in traffic.seconds().items():
        seconds.add_metric((route,), _buckets(histogram), histogram.sum)
    yield seconds


def _resources(budgets: Budgets, pauses: LoopPauses) -> Iterator[Metric]:
    for name, about, which in (
        ("http_in_progress_bytes", "Bytes of requests and responses held in memory", "used_bytes"),
        ("http_in_progress_limit_bytes", "Limit of these bytes; requests beyond it are refused", "bytes_max"),
    ):
        counts = [("request", getattr(budgets.requests, which)), ("answer", getattr(budgets.answers, which))]
        yield _by_name(name, about, "direction", counts)
    refused = budgets.requests.refused + budgets.answers.refused
    yield CounterMetricFamily("timerwheel_http_overloaded", "Requests refused with overloaded", value=refused)
    about = "How late a timer of the event loop fires that is set 50 times a second"
    yield _histogram("loop_pause_seconds", about, pauses.seconds)
    yield _gauge("loop_pause_longest_seconds", "The longest such lateness since the start", pauses.longest_s)


# ---------------------------------------------------------------------- what was done since the start


def _done(counters: Counters) -> Iterator[Metric]:
    accepted = {"waiting": counters.accepted_waiting, "at_once": counters.accepted_at_once}
    yield _counter(
        "messages_accepted",
        "Messages stored, whether they wait or were delivered at once",
        "delivery",
        accepted,
    )
    fired = {"due": counters.fired_due, "early": counters.fired_early}
    about = "Messages delivered after waiting; early: rescheduled to now, or their delay level was shortened"
    yield _counter("messages_fired", about, "when", fired)
    for name, about, count in (
        ("messages_recalled", "Messages recalled", counters.recalled),
        ("messages_rescheduled", "Waiting messages rescheduled", counters.rescheduled),
        ("messages_moved", "Waiting messages that retention copied forward", counters.moved),
        ("group_leases", "Messages leased to consumers of groups", counters.leased),
        ("group_returns", "Retries of groups that became due", counters.leases_back),
        ("group_expired", "Messages of groups whose TTL was over", counters.expired),
        ("cascade_entries", "Entries moved to a finer level of the wheel", counters.cascaded),
    ):
        yield CounterMetricFamily(f"timerwheel_{name}", about, value=count)
    yield _counter("push_attempts", "Finished push attempts", "outcome", counters.push_attempts)
    yield _counter("task_calls", "Finished calls of tasks", "outcome", counters.task_calls)
    yield _counter("tasks_ended", "Tasks that ended", "state", counters.task_ends)
    calls = CounterMetricFamily(
        "timerwheel_front_calls",
        "Calls answered over other protocols than HTTP",
        labels=("protocol", "call", "status"),
    )
    for key, count in list(counters.front_calls.items()):
        calls.add_metric(key, count)
    yield calls
    yield _histogram(
        "lateness_seconds",
        (
            "From the due time until consumers can see the message, fsync included; without messages "
            "fired early"
        ),
        counters.lateness_ms.all,
        divisor=1_000,
    )
    for name, about, histogram in (
        ("delay_seconds", "How far ahead accepted messages are due", counters.delay_s),
        ("commit_records", "Records in a group commit", counters.batch_records),
        ("commit_bytes", "Bytes in a group commit", counters.batch_bytes),
        ("commit_seconds", "Duration of a group commit, from the event loop and back", counters.append_s),
        ("log_sync_seconds", "Duration of a sync of the log (fdatasync)", counters.sync_s),
        ("index_commit_seconds", "Duration of an index commit", counters.index_commit_s),
        ("cascade_seconds", "Duration of a cascade step; most steps find nothing to do", counters.cascade_s),
        (
            "push_attempt_seconds",
            "Duration of a push attempt, from connecting to the response",
            counters.push_s,
        ),
        (
            "task_call_seconds",
            "Duration of a call of a task, from connecting to the response",
            counters.task_s,
        ),
    ):
        yield _histogram(name, about, histogram)


# ---------------------------------------------------------------------- what is held


def _held(gauges: GaugeValues, reserve_bytes: int) -> Iterator[Metric]:
    for name, about, value in (
        ("leases", "Retries of consumer groups that wait in the wheel", gauges.leases),
        ("topics", "Topics that clients made", gauges.topics),
        ("groups", "Consumer groups", gauges.groups),
        ("schedules", "Recurring schedules", gauges.schedules),
        ("subscriptions", "Push subscriptions", gauges.subscriptions),
        ("log_start_offset_bytes", "Offset where the retained log begins", gauges.log_start),
        ("log_tail_offset_bytes", "Offset where the log ends", gauges.log_tail),
        (
            "log_unsynced_bytes",
            "Bytes of the log that are not known to be durable",
            gauges.log_tail - gauges.log_synced,
        ),
        ("log_segments", "Segments of the log", gauges.segments),
        ("index_behind_bytes", "Bytes of the log that are not indexed yet", gauges.index_behind_bytes),
        ("index_behind_records", "Records that are not indexed yet", gauges.index_behind_records),
        (
            "index_behind_seconds",
            "Age of the oldest record that is not indexed yet",
            gauges.index_behind_ms / 1_000,
        ),
        ("near_timers", "Timers due in the next seconds, held in memory", gauges.near_timers),
        ("overdue_seconds", "How long the oldest due message has been overdue", gauges.overdue_ms / 1_000),
        ("set_aside_messages", "Due messages that could not be read", gauges.quarantined),
        ("disk_free_bytes", "Free space on the data disk, updated every second", gauges.disk_free_bytes),
        ("disk_reserve_bytes", "Free-space limit below which new messages are refused", reserve_bytes),
        (
            "survey_age_seconds",
            "Age of the counts by topic, group and due time",
            gauges.survey_age_ms / 1_000,
        ),
    ):
        yield _gauge(name, about, value)
    about = "Batches of due messages that were retried because the log had no room for them"
    yield CounterMetricFamily("timerwheel_fire_retries", about, value=gauges.retries)


def _surveyed(survey: Survey) -> Iterator[Metric]:
    largest = "; the 100 largest topics, the rest summed without a label"
    yield _by_name("pending_messages", f"Waiting messages{largest}", "topic", survey.pending)
    yield _by_name(
        "visible_messages", f"Delivered messages that are retained{largest}", "topic", survey.visible
    )
    yield _by_name("dead_letter_messages", "Dead letters that are retained", "group", survey.dead)
    about = (
        "Waiting messages due within this time from now, overdue ones included: exact to a second "
        "up to 5m, to a minute up to 1h, to an hour beyond"
    )
    counts = [*zip(BOUND_NAMES, survey.within, strict=True), (ANY_TIME, survey.pending_all)]
    yield _by_name("pending_due_messages", about, "within", counts)
    yield _gauge("overdue_messages", "Overdue messages that still wait, exact to a second", survey.overdue)
    for name, about in (
        ("lag", "Messages that no consumer of the group has seen"),
        ("in_flight", "Messages leased to consumers"),
        ("waiting", "Messages waiting for their next attempt"),
        ("ready", "Returned messages that are ready to be received again"),
        ("parked", "Messages held behind an earlier one with the same sharding key"),
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
    """Return upper bounds as Prometheus writes them, with the number of values up to each."""
    bounds = [str(float(bound / divisor)) for bound in histogram.bounds]
    return list(zip([*bounds, "+Inf"], histogram.cumulative(), strict=True))
