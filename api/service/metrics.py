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
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.budget import Budgets
from timerwheel.api.http.route import Need, call
from timerwheel.api.http.traffic import Traffic
from timerwheel.api.security import access
from timerwheel.api.security.access import Access
from timerwheel.api.service.families import by, counter, counters, gauge, gauges, histogram, histograms
from timerwheel.api.service.loop_pauses import LoopPauses
from timerwheel.api.service.rocketmq_metrics import rocketmq_families
from timerwheel.engine import Engine
from timerwheel.errors import NotReadyError
from timerwheel.groups.config import UnknownGroupError
from timerwheel.model.kafka_counts import BridgeState, KafkaCounts
from timerwheel.push.stats import FAILURES_IN_ROW, SubscriptionCounts
from timerwheel.runtime.core import Status
from timerwheel.runtime.counters import Counters
from timerwheel.runtime.gauges import NAMED_MAX, GaugeValues, Survey
from timerwheel.version import version

TEXT = "text/plain"
CONTENT_TYPE = f"{TEXT}; version=0.0.4; charset=utf-8"
BOUND_NAMES = ("5s", "1m", "5m", "15m", "1h", "4h", "8h", "24h")
ANY_TIME = "any"
KAFKA_RESULTS = ("scheduled", "recalls", "rejected", "repeated")


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
        if engine.life.status is Status.CLOSED:
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
            yield from _kafka(engine.counters.kafka)
        if self._rocketmq:
            yield from rocketmq_families(engine.counters, gauges)


def _pushed(counts: list[SubscriptionCounts]) -> Iterator[Metric]:
    """Push by subscription."""
    labels = ("topic", "subscription")
    about = "Finished push attempts of a subscription"
    outcomes = [
        ((one.topic, one.id, outcome), getattr(one, outcome))
        for one in counts
        for outcome in ("delivered", "failed")
    ]
    yield counters("push_subscription_attempts", about, (*labels, "outcome"), outcomes)
    about = f"1 while an endpoint has failed {FAILURES_IN_ROW} times or more in a row"
    failing = [((one.topic, one.id), int(one.is_failing)) for one in counts]
    yield gauges("push_subscription_failing", about, labels, failing)


def _ages(ages_ms: dict[tuple[str, str], int]) -> Metric:
    about = "Age of the oldest delivered message that a group has not acknowledged"
    ages = [(place, age_ms / 1_000) for place, age_ms in ages_ms.items()]
    return gauges("group_oldest_unacknowledged_seconds", about, ("topic", "group"), ages)


def registry_of(collector: ServiceCollector) -> CollectorRegistry:
    """Collect everything that a scrape returns, of the service and of its process."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


# ---------------------------------------------------------------------- the service and HTTP


def _service(handle: EngineHandle) -> Iterator[Metric]:
    about = "Always 1; the label carries the version"
    yield gauges("build_info", about, ("version", "python"), [((version(), platform.python_version()), 1)])
    yield gauge("ready", "1 if recovered and not stopping or failed, else 0", int(handle.ready))
    accepting = handle.ready and handle.engine.disk.refusal is None
    yield gauge("accepting", "1 if new messages are accepted: ready, and the disk has room", int(accepting))


def _cluster(handle: EngineHandle) -> Iterator[Metric]:
    """The part of a node among those with its journal."""
    if handle.cluster is None:
        return
    yield gauge("leader", "1 if this node leads, 0 if it stands by", int(handle.role == "leader"))
    position = handle.journal_position
    if position is not None:
        about = (
            "Position in the journal up to which this node has it; what it lacks of the leader's is its lag"
        )
        yield gauge("journal_position", about, position)


def _http(traffic: Traffic) -> Iterator[Metric]:
    yield gauge("http_requests_in_progress", "Requests in progress", traffic.in_progress)
    labels = ("route", "method", "status")
    about = "Requests answered; status aborted: the client disconnected"
    yield counters("http_requests", about, labels, traffic.requests().items())
    about = "Response time, including the time that a client asked to wait"
    seconds = [((route,), found) for route, found in traffic.seconds().items()]
    yield histograms("http_request_seconds", about, ("route",), seconds)


def _resources(budgets: Budgets, pauses: LoopPauses) -> Iterator[Metric]:
    for name, about, which in (
        ("http_in_progress_bytes", "Bytes of requests and responses held in memory", "used_bytes"),
        ("http_in_progress_limit_bytes", "Limit of these bytes; requests beyond it are refused", "bytes_max"),
    ):
        counts = [("request", getattr(budgets.requests, which)), ("answer", getattr(budgets.answers, which))]
        yield gauges(name, about, ("direction",), by(counts))
    refused = budgets.requests.refused + budgets.answers.refused
    yield counter("http_overloaded", "Requests refused with overloaded", refused)
    about = "How late a timer of the event loop fires that is set 50 times a second"
    yield histogram("loop_pause_seconds", about, pauses.seconds)
    yield gauge("loop_pause_longest_seconds", "The longest such lateness since the start", pauses.longest_s)


# ---------------------------------------------------------------------- what was done since the start


def _done(done: Counters) -> Iterator[Metric]:
    accepted = {"waiting": done.accepted_waiting, "at_once": done.accepted_at_once}
    about = "Messages stored, scheduled or delivered at once"
    yield counters("messages_accepted", about, ("delivery",), by(accepted))
    fired = {"due": done.fired_due, "early": done.fired_early}
    about = "Scheduled messages delivered; early: rescheduled to now, or their delay level was shortened"
    yield counters("messages_fired", about, ("when",), by(fired))
    for name, about, count in (
        ("messages_recalled", "Messages recalled", done.recalled),
        ("messages_rescheduled", "Scheduled messages that were rescheduled", done.rescheduled),
        ("messages_moved", "Scheduled messages that retention copied forward", done.moved),
        ("group_leases", "Messages leased to consumers of groups", done.leased),
        ("group_returns", "Retries of groups that became due", done.leases_back),
        ("group_expired", "Messages of groups whose TTL was over", done.expired),
        ("cascade_entries", "Entries moved to a finer level of the wheel", done.cascaded),
    ):
        yield counter(name, about, count)
    yield counters("push_attempts", "Finished push attempts", ("outcome",), by(done.push_attempts))
    yield counters("task_calls", "Finished calls of tasks", ("outcome",), by(done.task_calls))
    yield counters("tasks_ended", "Tasks that ended", ("state",), by(done.task_ends))
    about, labels = "Calls answered over other protocols than HTTP", ("protocol", "call", "status")
    yield counters("front_calls", about, labels, list(done.front_calls.items()))
    about = (
        "From the due time until consumers can see the message, fsync included; without messages fired early"
    )
    yield histogram("lateness_seconds", about, done.lateness_ms.all, divisor=1_000)
    for name, about, found in (
        ("delay_seconds", "How far ahead accepted messages are due", done.delay_s),
        ("commit_records", "Records in a group commit", done.batch_records),
        ("commit_bytes", "Bytes in a group commit", done.batch_bytes),
        ("commit_seconds", "Duration of a group commit, from the event loop and back", done.append_s),
        ("log_sync_seconds", "Duration of a sync of the log (fdatasync)", done.sync_s),
        ("index_commit_seconds", "Duration of an index commit", done.index_commit_s),
        ("cascade_seconds", "Duration of a cascade step; most steps find nothing to do", done.cascade_s),
        ("push_attempt_seconds", "Duration of a push attempt, from connecting to the response", done.push_s),
        ("task_call_seconds", "Duration of a call of a task, from connecting to the response", done.task_s),
    ):
        yield histogram(name, about, found)


# ---------------------------------------------------------------------- what is held


def _held(held: GaugeValues, reserve_bytes: int) -> Iterator[Metric]:
    for name, about, value in (
        ("leases", "Retries of consumer groups that wait in the wheel", held.leases),
        ("topics", "Topics that clients made", held.topics),
        ("groups", "Consumer groups", held.groups),
        ("schedules", "Recurring schedules", held.schedules),
        ("subscriptions", "Push subscriptions", held.subscriptions),
        ("log_start_offset_bytes", "Offset where the retained log begins", held.log_start),
        ("log_tail_offset_bytes", "Offset where the log ends", held.log_tail),
        (
            "log_unsynced_bytes",
            "Bytes of the log that are not known to be durable",
            held.log_tail - held.log_synced,
        ),
        ("log_segments", "Segments of the log", held.segments),
        ("index_behind_bytes", "Bytes of the log that are not indexed yet", held.index_behind_bytes),
        ("index_behind_records", "Records that are not indexed yet", held.index_behind_records),
        (
            "index_behind_seconds",
            "Age of the oldest record that is not indexed yet",
            held.index_behind_ms / 1_000,
        ),
        ("near_timers", "Timers due in the next seconds, held in memory", held.near_timers),
        ("overdue_seconds", "How long the oldest due message has been overdue", held.overdue_ms / 1_000),
        ("set_aside_messages", "Due messages that could not be read", held.quarantined),
        ("disk_free_bytes", "Free space on the data disk, updated every second", held.disk_free_bytes),
        ("disk_reserve_bytes", "Free-space limit below which new messages are refused", reserve_bytes),
        ("survey_age_seconds", "Age of the counts by topic, group and due time", held.survey_age_ms / 1_000),
    ):
        yield gauge(name, about, value)
    about = "Batches of due messages that were retried because the log had no room for them"
    yield counter("fire_retries", about, held.retries)


def _surveyed(survey: Survey) -> Iterator[Metric]:
    largest = "; the 100 largest topics, the rest summed without a label"
    yield gauges("pending_messages", f"Scheduled messages{largest}", ("topic",), by(survey.pending))
    yield gauges(
        "visible_messages", f"Delivered messages that are retained{largest}", ("topic",), by(survey.visible)
    )
    yield gauges("dead_letter_messages", "Dead letters that are retained", ("group",), by(survey.dead))
    about = (
        "Scheduled messages due within this time from now, overdue ones included: exact to a second "
        "up to 5m, to a minute up to 1h, to an hour beyond"
    )
    counts = [*zip(BOUND_NAMES, survey.within, strict=True), (ANY_TIME, survey.pending_all)]
    yield gauges("pending_due_messages", about, ("within",), by(counts))
    yield gauge("overdue_messages", "Overdue messages not yet delivered, exact to a second", survey.overdue)
    for name, about in (
        ("lag", "Messages that no consumer of the group has seen"),
        ("in_flight", "Messages leased to consumers"),
        ("waiting", "Messages waiting for their next attempt"),
        ("ready", "Returned messages that are ready to be received again"),
        ("parked", "Messages held behind an earlier one with the same sharding key"),
    ):
        values = [((group.topic, group.group), getattr(group, name)) for group in survey.groups]
        yield gauges(f"group_{name}_messages", about, ("topic", "group"), values)


def _kafka(counts: KafkaCounts) -> Iterator[Metric]:
    """Yield the metrics of the bridge to Kafka."""
    sides = {"inlet": counts.inlet_state, "outlet": counts.outlet_state}
    working = {side: int(state is BridgeState.WORKING) for side, state in sides.items()}
    yield gauges("kafka_working", "1 while this side of the bridge works", ("side",), by(working))
    fenced = int(counts.outlet_state is BridgeState.FENCED)
    yield gauge("kafka_fenced", "1 if another process on a copy of the data sends instead", fenced)
    taken = {result: getattr(counts, result) for result in KAFKA_RESULTS} | {"lost": counts.inlet_lost}
    about = "Records taken from the inlet, by what became of them"
    yield counters("kafka_inlet_records", about, ("result",), by(taken))
    places = {str(partition): place for partition, place in counts.inlet.items()}
    position = {partition: place.next for partition, place in places.items()}
    yield gauges("kafka_inlet_position", "Offset of the next record to take", ("partition",), by(position))
    lag = {partition: place.behind for partition, place in places.items()}
    yield gauges("kafka_inlet_lag", "Offsets of the inlet that were not taken yet", ("partition",), by(lag))
    sent = {"sent": counts.sent, "rejected": counts.not_sent, "lost": counts.lost}
    about = "Messages that left the outlet, by where they went"
    yield counters("kafka_outlet_messages", about, ("result",), by(sent))
    yield counter("kafka_outlet_transactions", "Transactions committed", counts.transactions)
    about = "Delivered messages that are not in Kafka yet"
    yield gauge("kafka_outlet_behind_messages", about, counts.behind)
