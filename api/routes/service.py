"""The calls on the service itself: its wheel, its delay levels, its health."""

from timerwheel.api.gate import Gate
from timerwheel.api.health import HealthCalls
from timerwheel.api.routes.route import ENGINE, Route
from timerwheel.api.security.needs import Need
from timerwheel.api.wheel import WheelCalls
from timerwheel.api.wire import Health, Levels, Readiness, ReadinessQuery, Slots, SlotsQuery
from timerwheel.model.messages import WheelInfo


def wheel_routes(gate: Gate) -> list[Route]:
    """Calls on the wheel and the levels."""
    calls = WheelCalls(gate)
    return [
        Route(
            method="GET",
            path="/v1/wheel",
            name="getWheel",
            summary="The wheel at a glance",
            needs=Need.TOKEN,
            handler=calls.wheel,
            answer=WheelInfo,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path="/v1/wheel/slots",
            name="listSlots",
            summary="What fires when: counts per slot",
            needs=Need.TOKEN,
            handler=calls.slots,
            answer=Slots,
            query_type=SlotsQuery,
            problems=ENGINE,
        ),
        Route(
            method="GET",
            path="/v1/levels",
            name="listLevels",
            summary="The delay levels with what waits in each",
            needs=Need.TOKEN,
            handler=calls.levels,
            answer=Levels,
            problems=ENGINE,
        ),
    ]


def health_routes(gate: Gate) -> list[Route]:
    """Calls on health."""
    calls = HealthCalls(gate)
    return [
        Route(
            method="GET",
            path="/healthz",
            name="getHealth",
            summary="Alive",
            needs=Need.OPEN,
            handler=calls.alive,
            answer=Health,
        ),
        Route(
            method="GET",
            path="/readyz",
            name="getReadiness",
            summary="Recovered; with for=send, also taking new messages",
            needs=Need.OPEN,
            handler=calls.ready,
            answer=Readiness,
            query_type=ReadinessQuery,
            problems=("not_ready", "disk_reserve"),
        ),
    ]
