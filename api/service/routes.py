"""The calls on the service itself: wheel, delay levels, health, metrics, live events."""

from functools import partial

from timerwheel.api.engine_handle import EngineHandle
from timerwheel.api.http.needs import Need
from timerwheel.api.http.route import ENGINE, EVENTS, Route
from timerwheel.api.service.figures import FigureKeeper
from timerwheel.api.service.handlers import ClusterCalls, HealthCalls, TokenCalls, WheelCalls
from timerwheel.api.service.live import LiveCalls
from timerwheel.api.service.metrics import TEXT, Metrics
from timerwheel.model.messages import WheelInfo
from timerwheel.wire.cluster import ClusterInfo, Moved, MoveQuery
from timerwheel.wire.service import (
    FigureHistory,
    Health,
    HistoryQuery,
    Levels,
    Readiness,
    ReadinessQuery,
    Slots,
    SlotsQuery,
)
from timerwheel.wire.tokens import TokenInfo


def wheel_routes(handle: EngineHandle) -> list[Route]:
    """Calls on the wheel and the levels."""
    calls = WheelCalls(handle)
    look = partial(Route, method="GET", needs=Need.TOKEN, problems=ENGINE)
    return [
        look(
            path="/v1/wheel",
            name="getWheel",
            summary="Get an overview of the wheel",
            handler=calls.wheel,
            answer=WheelInfo,
        ),
        look(
            path="/v1/wheel/slots",
            name="listSlots",
            summary="List the slots of the wheel with their counts",
            handler=calls.slots,
            answer=Slots,
            query_type=SlotsQuery,
        ),
        look(
            path="/v1/levels",
            name="listLevels",
            summary="List the delay levels with the pending messages of each",
            handler=calls.levels,
            answer=Levels,
        ),
    ]


def token_routes() -> list[Route]:
    """The call on the caller's own token."""
    return [
        Route(
            method="GET",
            path="/v1/token",
            name="getToken",
            summary="Get the scopes and topics of the caller's token",
            needs=Need.TOKEN,
            handler=TokenCalls().get,
            answer=TokenInfo,
        )
    ]


def health_routes(handle: EngineHandle) -> list[Route]:
    """Calls on health."""
    calls = HealthCalls(handle)
    look = partial(Route, method="GET", needs=Need.OPEN)
    return [
        look(
            path="/healthz",
            name="getHealth",
            summary="Alive",
            handler=calls.alive,
            answer=Health,
        ),
        look(
            path="/readyz",
            name="getReadiness",
            summary="Readiness: recovery is complete; with for=send, new messages are accepted too",
            handler=calls.ready,
            answer=Readiness,
            query_type=ReadinessQuery,
            problems=("not_ready", "disk_reserve"),
        ),
    ]


def cluster_routes(handle: EngineHandle) -> list[Route]:
    """Calls on the nodes with the same journal."""
    calls = ClusterCalls(handle)
    return [
        Route(
            method="GET",
            path="/v1/cluster",
            name="getCluster",
            summary="List the nodes with the same journal, and which one leads",
            needs=Need.TOKEN,
            handler=calls.get,
            answer=ClusterInfo,
            problems=("not_ready",),
        ),
        Route(
            method="POST",
            path="/v1/cluster/move",
            name="moveLeader",
            summary="Let another node lead; answers once it does",
            needs=Need.ADMIN,
            audited=True,
            handler=calls.move,
            answer=Moved,
            query_type=MoveQuery,
            problems=("not_ready", "not_leader", "no_standby"),
        ),
    ]


def metrics_routes(metrics: Metrics) -> list[Route]:
    """The metrics of one application."""
    return [
        Route(
            method="GET",
            path="/metrics",
            name="getMetrics",
            summary="Metrics for Prometheus",
            needs=Need.TOKEN,
            handler=metrics.scrape,
            answer=str,
            answer_kind=TEXT,
        )
    ]


def live_routes(handle: EngineHandle, figures: FigureKeeper) -> list[Route]:
    """Live events and their history, for the console and other listeners."""
    calls = LiveCalls(handle, figures)
    return [
        Route(
            method="GET",
            path="/v1/live/history",
            name="getLiveHistory",
            summary="Get the figures of the last 15 minutes by second, or of the last 24 hours by minute",
            needs=Need.TOKEN,
            handler=figures.history,
            answer=FigureHistory,
            query_type=HistoryQuery,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path="/v1/live",
            name="live",
            summary="Stream live counts and events, as server-sent events",
            needs=Need.TOKEN,
            handler=calls.live,
            head=calls.head,
            answer=str,
            answer_kind=EVENTS,
            problems=ENGINE,
        ),
    ]
