"""The call that Prometheus makes."""

from api.metrics import TEXT, Metrics
from api.routes.route import Route
from api.security.needs import Need


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
