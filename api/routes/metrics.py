"""The call that Prometheus makes."""

from timerwheel.api.metrics import TEXT, Metrics
from timerwheel.api.routes.route import Route
from timerwheel.api.security.needs import Need


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
